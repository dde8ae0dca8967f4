package store

import "time"

// The states of a Spawn.
const (
	SpawnAsked     = "asked"     // of another host, whose outcome is not known
	SpawnLaunching = "launching" // here, by the run of Boot
	SpawnSpawned   = "spawned"
	SpawnFailed    = "failed"
)

// spawnLife is how long a spawn's outcome is kept (design §10).
const spawnLife = 15 * 24 * time.Hour

// Spawn is one agent that was asked for (design §9), on either side.
type Spawn struct {
	SpawnID  string // also the gid
	State    string
	Boot     uint64 // of the run that launches it
	From     string // who asked: a gid or a gateway
	FromHost string
	Host     string // where it is to live
	Profile  string
	Name     string
	Groups   []string
	TraceID  string
	Code     string // of a failure
	Detail   string // in which way it failed
	At       int64  // Unix ms of the first request

	// Of one that was asked for here.
	Key       string
	Task      string // the brief that it still has to be sent; "" if none
	TaskID    string
	ExpiresAt int64 // nothing is launched after it, Unix ms
}

// PutSpawn stores s under its id, new or not.
func (tx *Tx) PutSpawn(s Spawn) error { return putByID(tx, bucketSpawns, s.SpawnID, s) }

// Spawn returns the spawn of that id.
func (tx *Tx) Spawn(id string) (Spawn, bool, error) { return getByID[Spawn](tx, bucketSpawns, id) }

// Spawns returns all spawns, in order of their ids.
func (tx *Tx) Spawns() ([]Spawn, error) { return allByID[Spawn](tx, bucketSpawns) }

// DeleteSpawn forgets a spawn, which need not exist.
func (tx *Tx) DeleteSpawn(id string) error { return deleteByID(tx, bucketSpawns, id) }

// PruneSpawns forgets the spawns that are more than 15 days old.
func (tx *Tx) PruneSpawns(now time.Time) error {
	all, err := tx.Spawns()
	if err != nil {
		return err
	}
	limit := now.Add(-spawnLife).UnixMilli()
	for _, s := range all {
		if s.At < limit && s.State != SpawnLaunching {
			if err := deleteByID(tx, bucketSpawns, s.SpawnID); err != nil {
				return err
			}
		}
	}
	return nil
}
