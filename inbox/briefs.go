package inbox

import (
	"cmp"
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// States of a brief's record. A brief stays on record after it was answered so
// that a worker can add a second answer.
const (
	// Going in. That it is in stands in the seen-set alone, so that no second
	// record has to be found and written per brief; the next start makes it open.
	briefInjecting = "injecting"
	briefOpen      = "open"
	briefInDoubt   = "in_doubt" // it may be in the pane; an answer to it proves that it was
	briefReplied   = "replied"
	briefMail      = "mail" // no brief: other mail that was announced, to be read whole
)

// How long records of briefs are kept, after their last change of state.
const (
	briefsFor  = 7 * 24 * time.Hour
	repliedFor = 24 * time.Hour

	repliedMost = 256 // of one entity
)

func (in *Inbox) brief(gid string, e *envelope.Envelope, state string) store.Brief {
	return in.briefBy(in.cfg.Names.Name(e.From), gid, e, state)
}

// briefBy is brief where the sender's name is known.
func (in *Inbox) briefBy(name, gid string, e *envelope.Envelope, state string) store.Brief {
	return store.Brief{
		GID: gid, MsgID: e.MsgID, TraceID: e.TraceID, Sender: e.From, SenderHost: e.Signer,
		SenderName: name, Kind: string(e.Kind), Hops: e.Hops, TS: e.TS,
		ExpiresAt: e.ExpiresAt, At: in.cfg.Now().UnixMilli(), State: state, Boot: in.cfg.Boot,
	}
}

// announcedMail is the record from which mail that is no brief is read whole.
func (in *Inbox) announcedMail(gid string, e *envelope.Envelope) store.Brief {
	b := in.brief(gid, e, briefMail)
	b.Announced, b.Body = true, e.Body
	return b
}

// putBrief makes the record of a brief. What one that there may be says stays
// as it is.
func putBrief(tx *store.Tx, b store.Brief, onRecord bool) error {
	if onRecord {
		if _, found, err := tx.BriefByMsg(b.GID, b.MsgID); err != nil || found {
			return err
		}
	}
	return tx.PutBrief(b)
}

func dropBrief(tx *store.Tx, gid, msgID string) error {
	brief, found, err := tx.BriefByMsg(gid, msgID)
	if err != nil || !found {
		return err
	}
	return tx.DeleteBrief(gid, brief.Seq)
}

// changeBrief moves a brief's record from one state to another; a record in
// any other state has been moved by somebody who knew more.
func (in *Inbox) changeBrief(tx *store.Tx, gid, msgID, from, to string) error {
	brief, found, err := tx.BriefByMsg(gid, msgID)
	if err != nil || !found || brief.State != from {
		return err
	}
	brief.State, brief.At = to, in.cfg.Now().UnixMilli()
	return tx.PutBrief(brief)
}

// pruneBriefs drops the records of briefs that nobody answers any more.
func pruneBriefs(tx *store.Tx, now time.Time) error {
	briefs, err := tx.AllBriefs()
	if err != nil {
		return err
	}
	replied := map[string]int{} // by gid
	for _, b := range slices.Backward(briefs) {
		age := now.Sub(time.UnixMilli(b.At))
		if b.State == briefReplied {
			replied[b.GID]++
		}
		if age > briefsFor || b.State == briefReplied && (age > repliedFor || replied[b.GID] > repliedMost) {
			if err := tx.DeleteBrief(b.GID, b.Seq); err != nil {
				return err
			}
		}
	}
	return nil
}

func (in *Inbox) briefOf(gid, msgID string) (brief store.Brief, found bool, err error) {
	return store.Find(in.cfg.Store, func(tx *store.Tx) (store.Brief, bool, error) { return tx.BriefByMsg(gid, msgID) })
}

// briefs lists the briefs of gid, the oldest first, with those that a client
// has been given just now.
func (in *Inbox) briefs(gid string) (all []store.Brief, err error) {
	given := in.givenJustNow(gid) // first: what leaves here is on record
	all, err = store.Read(in.cfg.Store, func(tx *store.Tx) ([]store.Brief, error) { return tx.Briefs(gid) })
	all = slices.DeleteFunc(all, func(b store.Brief) bool { return b.State == briefMail })
	for _, g := range given {
		if !slices.ContainsFunc(all, func(b store.Brief) bool { return b.MsgID == g.MsgID }) {
			all = append(all, g)
		}
	}
	return all, err
}

// OpenBriefs lists what gid was given and has not answered, the oldest first.
func (in *Inbox) OpenBriefs(gid string) ([]store.Brief, error) {
	all, err := in.briefs(gid)
	slices.SortStableFunc(all, func(a, b store.Brief) int { return cmp.Compare(a.At, b.At) })
	return slices.DeleteFunc(all, func(b store.Brief) bool { return b.State == briefReplied }), err
}

// BriefLast returns the brief that an agent had to do with last: the one that it
// was given, or answered, latest within the last hour, else the only one that it
// has not answered. Several that lie there for longer say nothing of what it does
// now, as with a worker whose helpers report by bridge_send.
func (in *Inbox) BriefLast(gid string) (last store.Brief, found bool, err error) {
	all, err := in.briefs(gid)
	since := in.cfg.Now().Add(-recentFor).UnixMilli()
	open := 0
	for _, b := range all {
		if b.State != briefReplied {
			open++
		}
	}
	for _, b := range all {
		if (b.At >= since || open == 1 && b.State != briefReplied) && (!found || b.At >= last.At) {
			last, found = b, true
		}
	}
	return last, found, err
}

// BriefToAnswer picks the brief that an answer of gid is for: the one named,
// which may have been answered before, else the only open one (design §7), else
// the only one in doubt: whoever answers must have got something.
func (in *Inbox) BriefToAnswer(gid, msgID string) (store.Brief, error) {
	if msgID != "" { // what is no id is answered with the list of those that are
		if b, found, err := in.briefOf(gid, msgID); err == nil && found && b.State != briefMail {
			return b, nil
		}
	}
	all, err := in.briefs(gid)
	if err != nil {
		return store.Brief{}, err
	}
	var open, doubt []store.Brief
	for _, b := range all {
		switch {
		case msgID == b.MsgID:
			return b, nil
		case b.State == briefOpen || b.State == briefInjecting:
			open = append(open, b)
		case b.State == briefInDoubt:
			doubt = append(doubt, b)
		}
	}
	if len(open) == 0 {
		open = doubt
	}
	switch {
	case msgID != "":
		return store.Brief{}, fault.New(fault.BadRequest, "you have no brief %s: %s", msgID, listBriefs(open))
	case len(open) == 0:
		return store.Brief{}, fault.New(fault.BadRequest, "you have no open brief to answer; "+
			"name the one you mean with in_reply_to, or write to somebody with bridge_send")
	case len(open) > 1:
		return store.Brief{}, fault.New(fault.BadRequest, "several briefs are open, so say with in_reply_to which one you answer: %s", listBriefs(open))
	}
	return open[0], nil
}

// givenJustNow are briefs that a client has been given and whose record is
// still on its way: it may answer faster than its mail is known to be drained.
func (in *Inbox) givenJustNow(gid string) (briefs []store.Brief) {
	b := in.box(gid)
	if b == nil {
		return nil
	}
	var items []*item
	b.mu.Lock()
	for e := b.items.Front(); e != nil; e = e.Next() {
		if it := e.Value.(*item); it.state == offered && it.env.Kind.Brief() {
			it.onRecord = true // it may be, from here on
			items = append(items, it)
		}
	}
	b.mu.Unlock()
	for _, it := range items {
		briefs = append(briefs, in.brief(gid, it.env, briefOpen))
	}
	return briefs
}

func listBriefs(open []store.Brief) string {
	if len(open) == 0 {
		return "no brief is open"
	}
	text := "open are "
	for i, b := range open {
		if i == 10 {
			return text + ", and more"
		}
		if i > 0 {
			text += ", "
		}
		text += b.MsgID + " from " + b.SenderName
	}
	return text
}

// MarkReplied returns the change to commit together with the answer to brief,
// which was given at now.
func MarkReplied(brief store.Brief, now time.Time) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		b, found, err := tx.BriefByMsg(brief.GID, brief.MsgID)
		if err != nil {
			return err
		}
		if !found {
			b = brief // answered before it was known to be drained
		}
		b.State, b.At = briefReplied, now.UnixMilli()
		return tx.PutBrief(b)
	}
}

// Reopen returns the change to commit when the answer could not be sent.
func Reopen(brief store.Brief) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		b, found, err := tx.BriefByMsg(brief.GID, brief.MsgID)
		if err != nil || !found || b.State != briefReplied {
			return err
		}
		b.State, b.At = brief.State, brief.At
		return tx.PutBrief(b)
	}
}
