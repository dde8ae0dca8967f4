// Package store is what survives a restart of the gateway: one bbolt file, one
// writer, and a typed record for every bucket of design §10.
//
// Writes of many callers share one commit (Store.Write); what a crash may take,
// because a query or a redelivery brings it back, rides with the next commit
// (Store.Later, Store.Trace). When a commit fails it is taken back if it stands
// all the same (revoke.go); the store says so to everybody, refuses writes and
// probes until they work again (Store.Healthy). Damage that is met ends its work
// for this run (damage.go).
//
// Keys are fixed-width fields first, big-endian, times as Unix milliseconds,
// UUIDs as their 16 bytes, a text field last. A value begins with one version
// byte, so it is never empty: inside the transaction that wrote it an empty
// value would read as absent and hide a duplicate of the same batch.
//
// The package decides nothing: which record is written when is the business of
// inbox and outbox. It imports no other package of the gateway but fault, and
// the schema steps are handed to Open from outside.
package store
