package migrations

import bolt "go.etcd.io/bbolt"

// Steps are the schema steps of the store, oldest first. The schema version of
// a file is the number of steps it took. Each runs in one transaction with the
// new version number, so it happens whole or not at all.
var Steps = []func(*bolt.Tx) error{
	createBuckets,
	noteLocalExpiry,
}
