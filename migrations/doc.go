// Package migrations holds what moves old state forward: the schema steps of
// the store, and the mail that the older single-host daemon left in its broker
// queues (design §12).
//
// A step is history. It names buckets and keys as they were when it was
// written, never by the constants of today's store, and does not change after
// a release: files that took it are in the field.
//
// Of the broker only what a move needs is known here, by the interface Broker:
// how a letter is signed and published is the fabric's.
package migrations
