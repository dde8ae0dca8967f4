package migrations

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// noteLocalExpiry is step 2: each count of local mail (held/counts) gets the
// time before which none of it expires. Without it the whole backlog of a main
// had to be read every minute.
func noteLocalExpiry(tx *bolt.Tx) error {
	const gidLen, head = 16, 1 + 32 // of a key of held/local; before the JSON of its value
	held := tx.Bucket([]byte("held"))
	local, counts := held.Bucket([]byte("local")), held.Bucket([]byte("counts"))
	type sum struct {
		n      uint32
		expiry int64
	}
	sums := map[string]sum{}
	err := local.ForEach(func(k, v []byte) error {
		var h struct{ ExpiresAt int64 }
		if len(k) < gidLen || len(v) < head {
			return fmt.Errorf("local mail %x is cut off", k)
		}
		if err := json.Unmarshal(v[head:], &h); err != nil {
			return fmt.Errorf("local mail %x: %w", k, err)
		}
		s := sums[string(k[:gidLen])]
		if s.n++; h.ExpiresAt != 0 && (s.expiry == 0 || h.ExpiresAt < s.expiry) {
			s.expiry = h.ExpiresAt
		}
		sums[string(k[:gidLen])] = s
		return nil
	})
	if err != nil {
		return err
	}
	var old [][]byte
	err = counts.ForEach(func(gid, _ []byte) error {
		old = append(old, slices.Clone(gid))
		return nil
	})
	if err != nil {
		return err
	}
	for _, gid := range old {
		if err := counts.Delete(gid); err != nil {
			return err
		}
	}
	for gid, s := range sums {
		v := binary.BigEndian.AppendUint32([]byte{2}, s.n)
		if err := counts.Put([]byte(gid), binary.BigEndian.AppendUint64(v, uint64(s.expiry))); err != nil {
			return err
		}
	}
	return nil
}
