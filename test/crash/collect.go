package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/migrations"
	"fleetd/store"
	"fleetd/test/crash/history"
)

// collect ends the fleet and puts the history together.
func (w *world) collect(ctx context.Context) (h history.History, err error) {
	left, err := w.onBroker(ctx)
	if err != nil {
		return h, err
	}
	h.Left = left
	seen, err := w.rosters(ctx)
	if err != nil {
		return h, err
	}
	for _, s := range []*site{w.a, w.b} {
		h.Hosts = append(h.Hosts, s.host.Name)
		if err := w.inPanes(ctx, s, &h); err != nil {
			return h, err
		}
		if err := s.host.Stop(); err != nil {
			return h, err
		}
		if err := w.inStore(ctx, s, seen, &h); err != nil {
			return h, fmt.Errorf("the store of %s: %w", s.host.Name, err)
		}
	}
	w.rec.mu.Lock()
	defer w.rec.mu.Unlock()
	for _, s := range w.rec.sends {
		h.Sends = append(h.Sends, s.Send)
	}
	for _, s := range w.rec.spawns {
		h.Spawns = append(h.Spawns, s.Spawn)
	}
	for _, s := range w.rec.ends {
		h.Stops = append(h.Stops, *s)
	}
	for _, m := range w.rec.old {
		h.Moves = append(h.Moves, *m)
	}
	h.Shown, h.Told, h.Kills, h.Faults, h.Astray = w.rec.shown, w.rec.told, w.rec.kills, w.rec.broke, w.rec.astray
	return h, nil
}

func (w *world) inPanes(ctx context.Context, s *site, h *history.History) error {
	if err := w.agents(ctx, s, h); err != nil {
		return err
	}
	prompts, replies, err := s.spawned.model()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // none was spawned
		return err
	}
	h.Prompts, h.Answers = append(h.Prompts, prompts...), append(h.Answers, replies...)
	for _, one := range s.workers {
		pastes, err := one.pasted()
		if err != nil {
			return err
		}
		prompts, replies, err := one.model()
		if err != nil {
			return err
		}
		questions, err := one.questions()
		if err != nil {
			return err
		}
		h.Pastes, h.Prompts, h.Answers = append(h.Pastes, pastes...), append(h.Prompts, prompts...), append(h.Answers, replies...)
		h.Questions = append(h.Questions, questions...)
	}
	return nil
}

// inStore reads what a gateway that has stopped still has to do, and which ids
// the messages of its clients got.
func (w *world) inStore(ctx context.Context, s *site, seen map[string][]string, h *history.History) (err error) {
	st, err := store.Open(ctx, store.Options{Dir: filepath.Join(w.dir, s.host.Name, "data"), Steps: migrations.Steps})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	add := func(msgID, format string, args ...any) {
		h.Left = append(h.Left, history.Left{Where: "the store of " + s.host.Name, MsgID: msgID, What: fmt.Sprintf(format, args...)})
	}
	return st.View(func(tx *store.Tx) error {
		open, err := tx.OpenIntents()
		if err != nil {
			return err
		}
		for _, in := range open {
			add(in.MsgID, "an open %s, %s %s", in.Kind, in.State, in.Outcome)
		}
		briefs, err := tx.AllBriefs()
		if err != nil {
			return err
		}
		for _, b := range briefs {
			seen, _, err := tx.FindSeen(b.MsgID, b.GID)
			if err != nil {
				return err
			}
			// That it was injected stands in one of the two, or that it was answered.
			if b.State == "injecting" && seen.Outcome == "injecting" {
				add(b.MsgID, "a brief that is being injected")
			}
		}
		all, err := tx.Entities()
		if err != nil {
			return err
		}
		for _, e := range all {
			held, err := tx.HeldIndex(e.GID)
			if err != nil {
				return err
			}
			for _, one := range held {
				add(one.MsgID, "a %s held for %s", one.Kind, e.Name)
			}
		}
		if err := w.keys(tx, s); err != nil {
			return err
		}
		if err := w.records(tx, s); err != nil {
			return err
		}
		if err := w.entities(tx, s, seen, h); err != nil {
			return err
		}
		return w.trails(tx, s)
	})
}

// keys finds the ids of messages whose senders never heard them.
func (w *world) keys(tx *store.Tx, s *site) error {
	for _, one := range w.rec.sends {
		if one.task || !strings.HasSuffix(one.From, "@"+s.host.Name) {
			continue
		}
		k, found, err := tx.KeyOf(one.gid, one.Token)
		if err != nil {
			return err
		}
		// The key of a broadcast says that it had begun. Members here whose copy
		// was not stored by then get it when the call is repeated, and nobody was
		// told that they have it.
		here := strings.HasSuffix(one.To, "@"+s.host.Name)
		one.Stored = found && !(one.Cast && here)
		if found {
			w.rec.named(one, k.MsgID)
			one.trace = k.TraceID
		}
	}
	return nil
}

// records finds what was given to somebody of s whose store has no record of
// it: neither what became of it nor that it waits.
func (w *world) records(tx *store.Tx, s *site) error {
	gids := map[string]string{}
	for _, one := range s.workers {
		gids[one.address] = one.GID
	}
	for _, c := range slices.Concat(w.mains, []*client{w.peer, w.heir}) {
		if strings.HasSuffix(c.name, "@"+s.host.Name) {
			gids[c.name] = c.main.GID
		}
	}
	forgot := func(gid string, ids ...string) (bool, error) {
		for _, id := range ids {
			if _, found, err := tx.FindSeen(id, gid); found || err != nil {
				return false, err
			}
		}
		return len(ids) > 0, nil
	}
	var err error
	for _, one := range w.rec.sends {
		if gid := gids[one.To]; gid != "" && one.Worker && err == nil {
			one.Forgot, err = forgot(gid, one.MsgIDs...)
		}
	}
	for i := range w.rec.shown {
		m := &w.rec.shown[i]
		if gid := gids[m.Reader]; gid != "" && m.Kind != "ASK" && err == nil { // a question is never stored
			m.Forgot, err = forgot(gid, m.MsgID)
		}
	}
	return err
}

// trails notes what s saw of each message, for people.
func (w *world) trails(tx *store.Tx, s *site) error {
	for _, one := range w.rec.sends {
		if one.trace == "" {
			continue
		}
		events, err := tx.TraceOf(one.trace)
		if err != nil {
			return err
		}
		for _, e := range events {
			one.trail = append(one.trail, fmt.Sprintf("%s %s %s %s %s %s", time.UnixMilli(e.At).Format(clock), e.Host, e.Step, e.Kind, e.Outcome, e.Reason))
		}
	}
	return nil
}

// emptyBound is how long queues may take to empty once all is drained: some
// are acked in batches.
const emptyBound = 90 * time.Second

// onBroker lists what the broker still holds.
func (w *world) onBroker(ctx context.Context) ([]history.Left, error) {
	var left []history.Left
	for end := time.Now().Add(emptyBound); ; pause(ctx, look) {
		out, err := w.node.Ctl(ctx, "list_queues", "name", "messages")
		if err != nil {
			return nil, err
		}
		left = nil
		for line := range strings.Lines(out) {
			name, n, _ := strings.Cut(strings.TrimSpace(line), "\t")
			if strings.HasPrefix(name, "roster.") || strings.HasPrefix(name, "signal.") || name == "name" || name == (fabric.Names{}).DLQ() || n == "0" || name == "" {
				continue
			}
			left = append(left, history.Left{Where: "the broker's queue " + name, What: n + " messages"})
		}
		if len(left) == 0 || ctx.Err() != nil || time.Now().After(end) {
			break
		}
	}
	dead, err := w.deadLetters()
	return append(left, dead...), err
}

// deadLetters reads what died.
func (w *world) deadLetters() (left []history.Left, err error) {
	conn, err := amqp.Dial(w.node.URI)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	for {
		d, ok, err := ch.Get((fabric.Names{}).DLQ(), true)
		if err != nil || !ok {
			return left, err
		}
		left = append(left, history.Left{
			Where: "the dead letters", MsgID: d.MessageId, Dead: true,
			What: fmt.Sprintf("a %s that died of %v in %v", d.Type, d.Headers["x-first-death-reason"], d.Headers["x-first-death-queue"]),
		})
	}
}
