package store

import (
	"encoding/binary"
	"time"
)

// Keys of the meta bucket.
var (
	keySchema = []byte("schema") // uint32, the number of schema steps taken
	keyHostID = []byte("host")   // text
	keyBoot   = []byte("boot")   // uint64
	keyClean  = []byte("clean")  // there if the last run ended in good order
	keyClosed = []byte("closed") // there while the file is closed, if Close did it
	keyProbe  = []byte("probe")  // written while finding out whether writes work again
)

// NextBoot counts a start of the gateway and returns its boot epoch:
// max(stored + 1, now in Unix milliseconds), so that it neither repeats nor
// goes back when the clock does or the file is an old copy (design §1, §14).
func (tx *Tx) NextBoot(now time.Time) (uint64, error) {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return 0, err
	}
	stored, err := metaUint(b.Get(keyBoot))
	if err != nil {
		return 0, err
	}
	boot := stored + 1
	if ms := now.UnixMilli(); ms > 0 && uint64(ms) > boot {
		boot = uint64(ms)
	}
	return boot, tx.put(b, keyBoot, append([]byte{recordVersion}, u64(boot)...))
}

// PutClean notes that this run ends in good order: nothing that Later was given
// will be missing.
func (tx *Tx) PutClean() error {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return err
	}
	return tx.put(b, keyClean, []byte{recordVersion})
}

// TakeClean reports whether the run before ended in good order, and forgets it.
func (tx *Tx) TakeClean() (bool, error) {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return false, err
	}
	return tx.delete(b, keyClean)
}

// RaiseBoot notes a boot epoch that was taken after the start, so that the next
// one is above it. It never goes back.
func (tx *Tx) RaiseBoot(boot uint64) error {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return err
	}
	stored, err := metaUint(b.Get(keyBoot))
	if err != nil || stored >= boot {
		return err
	}
	return tx.put(b, keyBoot, append([]byte{recordVersion}, u64(boot)...))
}

// Boot returns the boot epoch of the latest start, 0 before the first.
func (tx *Tx) Boot() (uint64, error) {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return 0, err
	}
	return metaUint(b.Get(keyBoot))
}

func metaUint(value []byte) (uint64, error) {
	if value == nil {
		return 0, nil
	}
	if len(value) != 9 || value[0] != recordVersion {
		return 0, damaged(bucketMeta, errDamaged)
	}
	return binary.BigEndian.Uint64(value[1:]), nil
}

// HostID returns the host id under which this file was last used, "" if none
// was noted.
func (tx *Tx) HostID() (string, error) {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return "", err
	}
	v := b.Get(keyHostID)
	if v == nil {
		return "", nil
	}
	if len(v) == 0 || v[0] != recordVersion {
		return "", damaged(bucketMeta, errDamaged)
	}
	return string(v[1:]), nil
}

// PutHostID notes the host id.
func (tx *Tx) PutHostID(host string) error {
	b, err := tx.bucket(bucketMeta)
	if err != nil {
		return err
	}
	return tx.put(b, keyHostID, append([]byte{recordVersion}, host...))
}
