package main

import (
	"cmp"
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/store"
)

// deadLetters is the broker's dead-letter queue as the local API shows it: the
// fabric finds and moves letters, here they get names.
type deadLetters struct{ g *gateway }

const (
	lettersListed = 100     // unless asked otherwise
	bodyShown     = 1 << 20 // bytes of a body: more than ours can have, less than a stranger's may
)

func (d deadLetters) fabric() (*fabric.Fabric, error) {
	if d.g.fabric == nil {
		return nil, fault.New(fault.BrokerDown, "this gateway has no broker, and without one nothing is dead-lettered; set broker.uri to reach other hosts")
	}
	return d.g.fabric, nil
}

// ListDeadLetters implements mcp.DeadLetters.
func (d deadLetters) ListDeadLetters(ctx context.Context, a mcp.ListDeadLettersArgs) (mcp.ListDeadLettersResult, error) {
	r := mcp.ListDeadLettersResult{Letters: []mcp.DeadLetter{}}
	f, err := d.fabric()
	if err != nil {
		return r, err
	}
	limit := cmp.Or(a.Limit, lettersListed)
	done, err := f.Find(ctx, filter("", a.Reason, a.Queue, a.OlderThanSeconds), func(l *fabric.DeadLetter) fabric.Fate {
		r.Letters = append(r.Letters, d.letter(l))
		if len(r.Letters) == limit {
			return fabric.Last
		}
		return fabric.Keep
	})
	r.Total = done.Total
	if !done.Complete && err == nil {
		r.Note = fmt.Sprintf("%d of %d letters were looked at, the oldest; raise the limit or narrow the search to see others", done.Seen, done.Total)
	}
	return r, err
}

func filter(msgID, reason, queue string, olderThan int) fabric.Filter {
	q := fabric.Filter{MsgID: msgID, Reason: reason, Queue: queue}
	if olderThan > 0 {
		q.DiedBefore = time.Now().Add(-time.Duration(olderThan) * time.Second)
	}
	return q
}

func (d deadLetters) letter(l *fabric.DeadLetter) mcp.DeadLetter {
	death := l.Death()
	return mcp.DeadLetter{
		MsgID: l.MsgID, TraceID: l.TraceID, Kind: l.Kind, Signer: l.Signer,
		From: d.name(l.From), FromID: l.From, To: d.name(l.To), ToID: l.To,
		Reason: death.Reason, Queue: death.Queue, DiedAt: moment(death.At), SentAt: moment(l.Sent),
		ExpiresAt: moment(l.Expires), Expired: !l.Expires.IsZero() && time.Now().After(l.Expires),
		Bytes: l.Bytes, Own: l.Own, Verified: l.Problem == "", Problem: l.Problem,
	}
}

// name is what people call a gid; anything else is left as it is: an unverified
// letter may hold an address that would be resolved to somebody.
func (d deadLetters) name(id string) string {
	if !envelope.ValidGID(id) {
		return id
	}
	return directory{d.g.roster}.Name(id)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// ShowDeadLetter implements mcp.DeadLetters.
func (d deadLetters) ShowDeadLetter(ctx context.Context, a mcp.ShowDeadLetterArgs) (mcp.ShowDeadLetterResult, error) {
	r := mcp.ShowDeadLetterResult{Letters: []mcp.DeadLetterDetail{}}
	f, err := d.fabric()
	if err != nil {
		return r, err
	}
	done, err := f.Find(ctx, fabric.Filter{MsgID: a.MsgID}, func(l *fabric.DeadLetter) fabric.Fate {
		r.Letters = append(r.Letters, d.detail(l, a.Body))
		return fabric.Keep
	})
	if err == nil && len(r.Letters) == 0 {
		err = noSuchLetter(a.MsgID, done)
	}
	return r, err
}

func noSuchLetter(msgID string, done fabric.Browsed) error {
	if !done.Complete {
		return fault.New(fault.Unconfirmed, "the letter %.80q is not among the oldest %d of %d; the broker was too slow to look further. Try again", msgID, done.Seen, done.Total)
	}
	return fault.New(fault.BadRequest, "there is no dead letter %.80q; `bridged dlq list` shows those there are (what another host looks at in this very moment is not)", msgID)
}

func (d deadLetters) detail(l *fabric.DeadLetter, body bool) mcp.DeadLetterDetail {
	out := mcp.DeadLetterDetail{Letter: d.letter(l), RoutingKey: l.Key}
	out.Headers, out.OtherHeaders = l.Headers()
	for _, death := range l.Deaths {
		out.Deaths = append(out.Deaths, mcp.Death{Queue: death.Queue, Reason: death.Reason, Count: int(death.Count), At: moment(death.At)})
	}
	if l.Err != nil {
		out.Detail = fault.From(l.Err).Sentence
	}
	if !body {
		return out
	}
	shown := l.Body[:min(len(l.Body), bodyShown)]
	out.BodyCut = len(shown) < len(l.Body)
	if utf8.Valid(shown) {
		out.Body = string(shown)
	} else {
		out.BodyBase64 = append([]byte(nil), shown...)
	}
	return out
}

// RedeliverDeadLetters implements mcp.DeadLetters.
func (d deadLetters) RedeliverDeadLetters(ctx context.Context, a mcp.RedeliverDeadLettersArgs) (mcp.RedeliverDeadLettersResult, error) {
	r := mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{}}
	f, err := d.fabric()
	if err != nil {
		return r, err
	}
	var anew fabric.Anew
	if a.Anew {
		anew = func(ctx context.Context, dead *envelope.Envelope) (string, error) {
			sent, err := d.g.outbox.Anew(ctx, dead, a.QueueIfOffline)
			return sent.MsgID, err
		}
	}
	all, done, err := f.Redeliver(ctx, filter(a.MsgID, a.Reason, a.Queue, a.OlderThanSeconds), anew)
	for _, one := range all {
		r.Letters = append(r.Letters, d.redelivery(one))
		if one.Err == nil {
			r.Redelivered++
		} else {
			r.Stay++
		}
	}
	switch {
	case err != nil && (len(all) == 0 || ctx.Err() != nil):
		return r, err
	case err != nil: // what was done is worth telling
		r.Note = fault.From(err).Sentence
	case len(all) == 0 && a.MsgID != "":
		return r, noSuchLetter(a.MsgID, done)
	case !done.Complete:
		r.Note = unfinished(done)
	}
	return r, nil
}

func unfinished(done fabric.Browsed) string {
	return fmt.Sprintf("the work ended after %d of %d letters; repeat it for the rest", done.Seen, done.Total)
}

// redelivery tells of one letter, and leaves its trace.
func (d deadLetters) redelivery(one fabric.Redelivery) mcp.Redelivery {
	out := mcp.Redelivery{MsgID: one.MsgID, TraceID: one.TraceID, To: d.name(one.To), State: mcp.StateRedelivered, NewMsgID: one.NewID}
	switch {
	case one.Err != nil:
		f := fault.From(one.Err)
		out.State, out.Code, out.Detail, out.NewMsgID = mcp.StateStays, f.Code, f.Sentence, ""
	case one.NewID != "":
		out.State = mcp.StateSentAnew // the outbox traced it
	default:
		d.g.store.Trace(store.Event{
			TraceID: one.TraceID, MsgID: one.MsgID, Kind: one.Kind, Step: "redelivered",
			Host: d.g.cfg.Host, Entity: one.From, Peer: one.To,
		})
	}
	return out
}

// PurgeDeadLetters implements mcp.DeadLetters.
func (d deadLetters) PurgeDeadLetters(ctx context.Context, a mcp.PurgeDeadLettersArgs) (mcp.PurgeDeadLettersResult, error) {
	f, err := d.fabric()
	if err != nil {
		return mcp.PurgeDeadLettersResult{}, err
	}
	purged, done, err := f.Purge(ctx, filter(a.MsgID, a.Reason, a.Queue, a.OlderThanSeconds))
	r := mcp.PurgeDeadLettersResult{Purged: purged, Stay: done.Seen - purged}
	switch {
	case err != nil:
	case purged == 0 && a.MsgID != "":
		err = noSuchLetter(a.MsgID, done)
	case !done.Complete:
		r.Note = unfinished(done)
	}
	return r, err
}
