// Package migrations holds what moves old state forward: the schema steps of
// the store.
//
// A step is history. It names buckets and keys as they were when it was
// written, never by the constants of today's store, and does not change after
// a release: files that took it are in the field.
package migrations
