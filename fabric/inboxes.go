package fabric

import (
	"context"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Attach consumes the inbox of a local entity from now on: at once if the link
// is connected, else as soon as it is. Attaching a gid again replaces what was
// attached; its groups that are no longer named are unbound.
func (f *Fabric) Attach(spec Inbox) error {
	if !envelope.ValidGID(spec.GID) || spec.Handler == nil || spec.Prefetch < 1 {
		return fault.New(fault.Internal, "an inbox needs a gid, a handler and a prefetch of at least 1")
	}
	f.attachMu.Lock()
	defer f.attachMu.Unlock()
	f.mu.Lock()
	old := f.inboxes[spec.GID]
	f.mu.Unlock()
	if old != nil {
		old.stop()
		was := old.snapshot()
		spec.Former = without(append(slices.Clone(spec.Former), append(was.Former, was.Groups...)...), spec.Groups)
	}
	in := newInbox(f, spec)
	f.mu.Lock()
	f.inboxes[spec.GID] = in
	s := f.sess
	ready, declared := s != nil && s.inboxes, s != nil && s.declared
	f.mu.Unlock()
	switch {
	case ready:
		in.start(s)
	case declared: // it is attached with the others, and announced before
		s.declareInbox(in)
	}
	return nil
}

// declareInboxes has every inbox on the broker before its entity is announced:
// whoever reads the announcement may send at once. What cannot be declared is
// told of when it is to be attached.
func (s *session) declareInboxes() {
	f := s.f
	f.mu.Lock()
	s.declared = true
	all := slices.Collect(maps.Values(f.inboxes))
	f.mu.Unlock()
	for _, in := range all {
		s.declareInbox(in)
	}
}

func (s *session) declareInbox(in *inbox) {
	spec := in.snapshot()
	err := s.bindSignal(s.ctx, spec.GID)
	if err == nil {
		err = s.aside(s.ctx, func(ch *amqp.Channel) error { return in.declare(ch, spec) })
	}
	if err != nil {
		s.f.log.Debug("an inbox is not declared yet", "gid", spec.GID, "error", err)
	}
}

// attachAll starts the inboxes once the roster is synced (design §3).
func (f *Fabric) attachAll(s *session) {
	f.attachMu.Lock()
	defer f.attachMu.Unlock()
	f.mu.Lock()
	s.inboxes = f.sess == s
	all := make([]*inbox, 0, len(f.inboxes))
	for _, in := range f.inboxes {
		all = append(all, in)
	}
	f.mu.Unlock()
	for _, in := range all {
		in.start(s)
	}
}

// Detach stops consuming an inbox; what is unsettled goes back to the broker,
// where the queue stays. An unknown gid is fine.
func (f *Fabric) Detach(gid string) {
	f.attachMu.Lock()
	defer f.attachMu.Unlock()
	f.mu.Lock()
	in := f.inboxes[gid]
	delete(f.inboxes, gid)
	s := f.sess
	f.mu.Unlock()
	if in == nil {
		return
	}
	in.stop()
	if s != nil {
		if err := s.unbindSignal(s.ctx, gid); err != nil {
			f.log.Debug("signal key not unbound; it ends with the connection", "gid", gid, "error", err)
		}
	}
}

// InboxState returns the state of an attached inbox; detached for others.
func (f *Fabric) InboxState(gid string) InboxInfo {
	f.mu.Lock()
	in := f.inboxes[gid]
	f.mu.Unlock()
	if in == nil {
		return InboxInfo{Status: InboxDetached}
	}
	return in.status()
}

// SetGroups changes the groups of an attached inbox without touching what it
// holds. Without a link it takes effect with the next one.
func (f *Fabric) SetGroups(ctx context.Context, gid string, groups []string) error {
	f.attachMu.Lock()
	defer f.attachMu.Unlock()
	f.mu.Lock()
	in, s := f.inboxes[gid], f.sess
	f.mu.Unlock()
	if in == nil {
		return fault.New(fault.UnknownRecipient, "no inbox of %s is attached here", gid)
	}
	in.mu.Lock()
	left := without(append(slices.Clone(in.spec.Former), in.spec.Groups...), groups)
	in.spec.Groups, in.spec.Former = slices.Clone(groups), left
	in.mu.Unlock()
	if s == nil || in.status().Status != InboxAttached {
		return nil
	}
	return s.aside(ctx, func(ch *amqp.Channel) error {
		for _, g := range left {
			if err := ch.QueueUnbind(f.names.Inbox(gid), envelope.BroadcastKey(g), f.names.Msg(), nil); err != nil {
				return err
			}
		}
		for _, g := range groups {
			if err := ch.QueueBind(f.names.Inbox(gid), envelope.BroadcastKey(g), f.names.Msg(), false, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// without returns the names of list that are not in others, each once.
func without(list, others []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(others, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Full reports whether the window of an attached inbox is full, so that mail may
// lie behind it on the broker: with room in it the broker keeps none back.
func (f *Fabric) Full(gid string) bool {
	f.mu.Lock()
	in := f.inboxes[gid]
	f.mu.Unlock()
	return in != nil && in.consumer().full()
}

// More takes another window of an attached inbox whose window is full of held
// mail. False: a bound is reached (window_full), which is 4096 messages or 64 MiB
// of an inbox, or 256 MiB of all.
func (f *Fabric) More(ctx context.Context, gid string) (bool, error) {
	f.mu.Lock()
	in, state := f.inboxes[gid], f.state
	f.mu.Unlock()
	if in == nil || in.status().Status != InboxAttached {
		return false, state.down()
	}
	in.mu.Lock()
	done := in.done
	in.mu.Unlock()
	answer := make(chan moreResult, 1)
	select {
	case in.more <- answer:
	case <-done:
		return false, f.State().down()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	select {
	case r := <-answer:
		return r.taken, r.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// ReadyCount is how many messages wait on the broker behind what is held.
func (f *Fabric) ReadyCount(ctx context.Context, gid string) (int, error) {
	q, err := f.look(ctx, gid)
	return q.Messages, err
}

// DeadCount is how many dead letters lie on the broker, those of all hosts.
func (f *Fabric) DeadCount(ctx context.Context) (int, error) {
	q, err := f.lookAt(ctx, f.names.DLQ())
	return q.Messages, err
}

// InboxFull reports whether the inbox of gid is at its cap: what tells a nack
// of a full inbox from any other (design §5).
func (f *Fabric) InboxFull(ctx context.Context, gid string) (bool, error) {
	q, err := f.look(ctx, gid)
	return int64(q.Messages) >= f.inboxCap, err
}

// Renew renews the lease of an inbox whose host is not seen alive: publishing
// does not (design §3, Orphans). exists is false if the queue is gone, and the
// mail with it.
func (f *Fabric) Renew(ctx context.Context, gid string) (exists bool, err error) {
	_, err = f.look(ctx, gid)
	if isCode(err, amqp.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// look declares the inbox of gid passively, which any login may.
func (f *Fabric) look(ctx context.Context, gid string) (amqp.Queue, error) {
	return f.lookAt(ctx, f.names.Inbox(gid))
}

func (f *Fabric) lookAt(ctx context.Context, queue string) (amqp.Queue, error) {
	s, err := f.session()
	if err != nil {
		return amqp.Queue{}, err
	}
	var found amqp.Queue // read only after the goroutine that writes it is done
	err = s.aside(ctx, func(ch *amqp.Channel) error {
		var err error
		found, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return amqp.Queue{}, err
	}
	return found, nil
}
