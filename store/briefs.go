package store

import bolt "go.etcd.io/bbolt"

// Brief is a brief that is being injected into a local worker or is open
// there (design §6); all that the scan at boot reads.
type Brief struct {
	GID        string // the worker
	Seq        uint64 // order of arrival in this store; PutBrief assigns it
	MsgID      string
	TraceID    string
	Sender     string // gid, or _gateway@<host>
	SenderHost string
	SenderName string
	Kind       string
	Hops       int
	TS         int64  // signed time, Unix ms
	ExpiresAt  int64  // Unix ms
	At         int64  // of the latest change of State, Unix ms
	State      string // "injecting", "open", "replied" …
	Boot       uint64 // boot epoch that began to inject it
	Announced  bool   // injected as one line; the worker fetches Body
	Body       []byte `json:"-"` // only of an announced brief
}

// seqKey is gid, then a sequence number.
func seqKey(gid string, seq uint64) ([]byte, error) {
	key, err := idKey("gid", gid)
	if err != nil {
		return nil, err
	}
	return append(key, u64(seq)...), nil
}

// PutBrief stores br. One with Seq 0 is new and gets the next number, else the
// record of that Seq is replaced, body included.
func (tx *Tx) PutBrief(br Brief) error {
	b, err := tx.ordered(bucketBriefs)
	if err != nil {
		return err
	}
	if _, err := idKey("gid", br.GID); err != nil {
		return err
	}
	if br.Seq, err = tx.sequence(b, br.Seq); err != nil {
		return err
	}
	key, err := seqKey(br.GID, br.Seq)
	if err != nil {
		return err
	}
	value, err := encodeBody(br, br.Body)
	if err != nil {
		return err
	}
	return tx.put(b, key, value)
}

func decodeBrief(v []byte) (br Brief, err error) {
	br.Body, err = decodeBody(bucketBriefs, v, &br)
	return br, err
}

// Briefs returns the briefs of gid in order of Seq.
func (tx *Tx) Briefs(gid string) ([]Brief, error) {
	id, err := idKey("gid", gid)
	if err != nil {
		return nil, err
	}
	return tx.briefs(id)
}

// AllBriefs returns the briefs of all workers, in order of gid and Seq.
func (tx *Tx) AllBriefs() ([]Brief, error) { return tx.briefs(nil) }

func (tx *Tx) briefs(prefix []byte) ([]Brief, error) {
	b, err := tx.bucket(bucketBriefs)
	if err != nil {
		return nil, err
	}
	var all []Brief
	err = prefixed(b, prefix, func(_, v []byte) error {
		br, err := decodeBrief(v)
		all = append(all, br)
		return err
	})
	return all, err
}

// BriefByMsg returns the brief of gid with this message id. It scans gid's
// briefs, which are few.
func (tx *Tx) BriefByMsg(gid, msgID string) (Brief, bool, error) {
	all, err := tx.Briefs(gid)
	if err != nil {
		return Brief{}, false, err
	}
	for _, br := range all {
		if br.MsgID == msgID {
			return br, true, nil
		}
	}
	return Brief{}, false, nil
}

// DeleteBrief forgets one brief, which need not exist.
func (tx *Tx) DeleteBrief(gid string, seq uint64) error {
	b, err := tx.bucket(bucketBriefs)
	if err != nil {
		return err
	}
	_, err = tx.deleteSeq(b, gid, seq)
	return err
}

func (tx *Tx) deleteSeq(b *bolt.Bucket, gid string, seq uint64) (bool, error) {
	key, err := seqKey(gid, seq)
	if err != nil {
		return false, err
	}
	return tx.delete(b, key)
}
