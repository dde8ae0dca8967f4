package store

import bolt "go.etcd.io/bbolt"

// The briefs bucket has two parts: an entity may have hundreds that it has
// answered, and one is found by its message id for every answer.
const (
	briefEntries = "entries" // gid+seq → Brief
	briefIDs     = "ids"     // gid+msgId → seq
)

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

func (tx *Tx) briefBuckets() (entries, ids *bolt.Bucket, err error) {
	if entries, err = tx.ordered(bucketBriefs, briefEntries); err != nil {
		return nil, nil, err
	}
	ids, err = tx.bucket(bucketBriefs, briefIDs)
	return entries, ids, err
}

// PutBrief stores br. One with Seq 0 is new and gets the next number, else the
// record of that Seq is replaced, body included.
func (tx *Tx) PutBrief(br Brief) error {
	b, ids, err := tx.briefBuckets()
	if err != nil {
		return err
	}
	id, err := pairKey("gid", br.GID, "message id", br.MsgID)
	if err != nil {
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
	if err := tx.put(b, key, value); err != nil {
		return err
	}
	return tx.put(ids, id, append([]byte{recordVersion}, u64(br.Seq)...))
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
	b, err := tx.bucket(bucketBriefs, briefEntries)
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

// BriefByMsg returns the brief of gid with this message id.
func (tx *Tx) BriefByMsg(gid, msgID string) (Brief, bool, error) {
	b, ids, err := tx.briefBuckets()
	if err != nil {
		return Brief{}, false, err
	}
	id, err := pairKey("gid", gid, "message id", msgID)
	if err != nil {
		return Brief{}, false, err
	}
	v := ids.Get(id)
	if v == nil {
		return Brief{}, false, nil
	}
	if len(v) != 1+8 {
		return Brief{}, false, short(bucketBriefs, len(v), 1+8)
	}
	br, err := decodeBrief(b.Get(append(id[:idLen:idLen], v[1:]...)))
	return br, err == nil, err
}

// DeleteBrief forgets one brief, which need not exist.
func (tx *Tx) DeleteBrief(gid string, seq uint64) error {
	b, ids, err := tx.briefBuckets()
	if err != nil {
		return err
	}
	key, err := seqKey(gid, seq)
	if err != nil {
		return err
	}
	v := b.Get(key)
	if v == nil {
		return nil
	}
	br, err := decodeBrief(v)
	if err != nil {
		return err
	}
	id, err := pairKey("gid", gid, "message id", br.MsgID)
	if err != nil {
		return err
	}
	if _, err := tx.delete(b, key); err != nil {
		return err
	}
	_, err = tx.delete(ids, id)
	return err
}
