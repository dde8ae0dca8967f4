// Package test holds no code of its own. Below it is all that the tests and
// the demo need beside the product: a private RabbitMQ node (rabbit), a herdr
// (herdrsim) with scripted agents (agent), a proxy that breaks connections
// (faultproxy), what the kernel tells of files (fslog), whole gateways as their
// users run them (fleet), the tests that use all of it (e2e), the demo that
// shows it (demo) and the measurements against the raw paths below it (bench).
//
// What tests one package alone lies beside that package.
package test
