package migrations

// SetBatch has a mover take so few messages at once.
func (m *Mover) SetBatch(n int) { m.batch = n }

// NoSync has the journal not wait for the disk: no power fails in a test.
func (j *Journal) NoSync() { j.db.NoSync, j.db.NoFreelistSync = true, true }
