package inbox

import (
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// What was drained or injected lately can be read again: "written" is all that
// was known of it (design §6). In memory, an hour, and bounded per entity.
const (
	recentFor   = time.Hour
	recentBytes = 8 << 20
)

type recent struct {
	env *envelope.Envelope
	at  time.Time
}

// keep remembers a message that has left its box.
func (b *box) keep(e *envelope.Envelope, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recent = append(b.recent, recent{e, now})
	b.recentSize += len(e.Body)
	for len(b.recent) > 1 && (b.recentSize > recentBytes || now.Sub(b.recent[0].at) > recentFor) {
		b.recentSize -= len(b.recent[0].env.Body)
		b.recent = slices.Delete(b.recent, 0, 1)
	}
}

// Recent is one message that gid was given lately.
type Recent struct {
	*envelope.Envelope
	FromName string
	At       time.Time
}

// Recently lists what gid was given within the last hour, the newest first.
func (in *Inbox) Recently(gid string) []Recent {
	b := in.box(gid)
	if b == nil {
		return nil
	}
	now := in.cfg.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Recent
	for _, r := range slices.Backward(b.recent) {
		if now.Sub(r.at) <= recentFor {
			all = append(all, Recent{r.env, in.cfg.Names.Name(r.env.From), r.at})
		}
	}
	return all
}

// Read gives the whole of one message that was announced, offered or handed to
// gid; nobody reads what was not addressed to him.
func (in *Inbox) Read(gid, msgID string) (Mail, error) {
	b := in.box(gid)
	if b == nil {
		return Mail{}, fault.New(fault.NotAuthenticated, "this identity has no inbox here any more; register again")
	}
	for _, r := range in.Recently(gid) {
		if r.MsgID == msgID {
			return Mail{Envelope: r.Envelope, FromName: r.FromName}, nil
		}
	}
	b.mu.Lock()
	it := b.byID[msgID]
	if it != nil && it.state != waiting {
		m := Mail{Envelope: it.env, FromName: in.cfg.Names.Name(it.env.From), Redelivered: it.redelivered}
		b.mu.Unlock()
		return m, nil
	}
	b.mu.Unlock()
	brief, found, err := in.briefOf(gid, msgID)
	if err != nil {
		return Mail{}, err
	}
	if !found || !brief.Announced {
		return Mail{}, fault.New(fault.BadRequest, "no message %s can be read here: it was not announced to you, "+
			"or it is more than an hour ago; bridge_whoami lists what can be read", msgID)
	}
	return Mail{Envelope: &envelope.Envelope{
		Kind: envelope.Kind(brief.Kind), MsgID: brief.MsgID, TraceID: brief.TraceID, From: brief.Sender,
		To: gid, TS: brief.TS, ExpiresAt: brief.ExpiresAt, Hops: brief.Hops, Body: brief.Body,
	}, FromName: brief.SenderName}, nil
}

func (in *Inbox) briefOf(gid, msgID string) (brief store.Brief, found bool, err error) {
	err = in.cfg.Store.View(func(tx *store.Tx) (err error) {
		brief, found, err = tx.BriefByMsg(gid, msgID)
		return err
	})
	return brief, found, err
}

// OpenBriefs lists what gid was given and has not answered, the oldest first.
func (in *Inbox) OpenBriefs(gid string) ([]store.Brief, error) {
	all, err := in.briefs(gid)
	return slices.DeleteFunc(all, func(b store.Brief) bool { return b.State == briefReplied }), err
}

func (in *Inbox) briefs(gid string) (all []store.Brief, err error) {
	err = in.cfg.Store.View(func(tx *store.Tx) (err error) {
		all, err = tx.Briefs(gid)
		return err
	})
	return all, err
}

// BriefToAnswer picks the brief that an answer of gid is for: the one named,
// which may have been answered before, else the only open one (design §7).
func (in *Inbox) BriefToAnswer(gid, msgID string) (store.Brief, error) {
	all, err := in.briefs(gid)
	if err != nil {
		return store.Brief{}, err
	}
	all = append(all, in.offeredBriefs(gid, all)...)
	var open []store.Brief
	for _, b := range all {
		switch {
		case msgID == b.MsgID:
			return b, nil
		case b.State == briefOpen || b.State == briefInjecting:
			open = append(open, b)
		}
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

// offeredBriefs are those that a client has been given and whose record is
// still on its way: it may answer faster than its mail is known to be drained.
func (in *Inbox) offeredBriefs(gid string, recorded []store.Brief) (briefs []store.Brief) {
	b := in.box(gid)
	if b == nil {
		return nil
	}
	var items []*item
	b.mu.Lock()
	for _, it := range b.items {
		if it.state == offered && it.env.Kind.Brief() {
			items = append(items, it)
		}
	}
	b.mu.Unlock()
	for _, it := range items {
		if !slices.ContainsFunc(recorded, func(r store.Brief) bool { return r.MsgID == it.env.MsgID }) {
			briefs = append(briefs, in.brief(gid, it, briefOpen))
		}
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

// MarkReplied returns the change to commit together with the answer to brief.
func MarkReplied(brief store.Brief) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		now, found, err := tx.BriefByMsg(brief.GID, brief.MsgID)
		if err != nil {
			return err
		}
		if !found {
			now = brief // answered before it was known to be drained
		}
		now.State = briefReplied
		return tx.PutBrief(now)
	}
}

// Reopen returns the change to commit when the answer could not be sent.
func Reopen(brief store.Brief) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		return changeBrief(tx, brief.GID, brief.MsgID, briefReplied, brief.State)
	}
}
