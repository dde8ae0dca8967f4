package outbox

import (
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// everyone is the group of all workers.
const everyone = "all"

// Broadcast is one message to all members of a group.
type Broadcast struct {
	From    string // gid of the local sender, who gets no copy
	Group   string // "all": every worker
	Content []byte
	Life    time.Duration // 0: 15 min
	Key     string        // idempotency key, may be empty
	Hops    int           // as in Request
	TraceID string        // as in Request
	Leaving func(msgID string)
}

// Spread says what is known when a broadcast returns.
type Spread struct {
	MsgID     string
	TraceID   string
	ExpiresAt time.Time
	To        []Share
	// Away is why members on other hosts could not be reached; nil if they were,
	// or there are none.
	Away error

	failed map[string]Share // members here that got no copy in process, by gid
}

// Share is how the message of a broadcast stands at one recipient.
type Share struct {
	roster.Target
	Outcome store.Outcome // "" if nothing is known; or one of the next
	Reason  string        // an error code, or why it waits
}

// Outcomes of a share besides those of design §1.
const (
	ShareQueued  store.Outcome = "queued"   // in the durable inbox of somebody who fetches mail, or whose host is away
	ShareInDoubt store.Outcome = "in_doubt" // the connection broke on the way, and what became of it is asked; or only the broker may bring it here
	ShareNotSent store.Outcome = "not_sent" // Reason says why; the same key tries again, unless that is EXPIRED
)

// shareID is the id of the intent of one recipient's share.
func shareID(msgID, gid string) string { return envelope.ReportID(msgID, gid, envelope.Broadcast) }

// many reports whether the intent is a broadcast as a whole. Its shares have
// outcomes, it has none.
func (op *open) many() bool { return op.kind() == envelope.Broadcast && op.intent.Of == "" }

// wireOf is the id under which the message of an intent travels.
func (o *Outbox) wireOf(msgID string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.open[msgID]; op != nil {
		return wire(op.intent)
	}
	return msgID
}

// Broadcast sends one message to all members of a group: members here get a
// copy of their own, all others share one publication. Which members the
// message reached, and which not, is in the result, member by member; an error
// means that nobody got it. Under a key that was used before it reaches those
// that it had not been sent to.
func (o *Outbox) Broadcast(ctx context.Context, b Broadcast) (Spread, error) {
	if err := o.check(Request{Content: b.Content, Life: b.Life, Hops: b.Hops}); err != nil {
		return Spread{}, err
	}
	if b.Group != everyone && !envelope.ValidName(b.Group) {
		return Spread{}, fault.New(fault.BadRequest, "%.80q is no group: use \"all\" for every worker, or the name of a group; bridge_roster shows them", b.Group)
	}
	if b.Key == "" {
		return o.spread(ctx, b, o.wrap(b), nil)
	}
	release, err := o.alone(ctx, b)
	if err != nil {
		return Spread{}, err
	}
	defer release()
	env, before, err := o.earlier(b)
	if err != nil {
		return Spread{}, err
	}
	return o.spread(ctx, b, env, before)
}

func (b Broadcast) hash() [32]byte {
	h := sha256.New()
	h.Write([]byte(string(envelope.Broadcast) + "\n" + b.Group + "\n"))
	h.Write(b.Content)
	return [32]byte(h.Sum(nil))
}

// wrap makes the envelope of a new broadcast.
func (o *Outbox) wrap(b Broadcast) *envelope.Envelope {
	return o.envelope(Request{
		From: b.From, Content: b.Content, Life: b.Life, Hops: b.Hops, TraceID: b.TraceID, kind: envelope.Broadcast,
		target: &roster.Target{GID: envelope.BroadcastKey(b.Group)},
	}, o.cfg.NewID())
}

// alone lets one call at a time run under a key; a later one finds what the
// earlier one left.
func (o *Outbox) alone(ctx context.Context, b Broadcast) (release func(), err error) {
	id := b.From + "\n" + b.Key
	for {
		o.mu.Lock()
		running := o.calls[id]
		if running == nil {
			mine := &call{done: make(chan struct{}), hash: b.hash(), left: true}
			o.calls[id] = mine
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				delete(o.calls, id)
				o.mu.Unlock()
				close(mine.done)
			}, nil
		}
		o.mu.Unlock()
		if running.hash != b.hash() {
			return nil, conflict(b.Key)
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return nil, fault.Wrap(ctx.Err(), fault.Unconfirmed, "the call ended while another one with the key %q was sending the message; call again with that key to learn what became of it", b.Key)
		}
	}
}

// earlier is the envelope that the key of b stands for, and whom it was for:
// no copy may differ from another. A key that stands for nothing gets a new one.
func (o *Outbox) earlier(b Broadcast) (env *envelope.Envelope, to []store.Recipient, err error) {
	k, known, err := o.keyOf(b.From, b.Key)
	env = o.wrap(b)
	switch {
	case err != nil:
		return nil, nil, err
	case !known:
		return env, nil, nil
	case k.Hash != b.hash():
		return nil, nil, conflict(b.Key)
	}
	in, found, err := o.intent(k.MsgID)
	if err != nil || !found {
		return env, nil, err
	}
	env.MsgID, env.TraceID, env.Hops, env.TS, env.ExpiresAt = in.MsgID, in.TraceID, in.Hops, in.TS, in.ExpiresAt
	return env, in.Recipients, nil
}

// spread sends env to all who are not known to have it. before is whom it was
// for when it was sent first, nil if it was not.
func (o *Outbox) spread(ctx context.Context, b Broadcast, env *envelope.Envelope, before []store.Recipient) (Spread, error) {
	to := o.members(b, before)
	if len(to) == 0 {
		return Spread{}, o.nobody(b)
	}
	if before == nil {
		if err := o.pace.allow(o.cfg.Now(), b.From, env.To, "the group "+b.Group); err != nil {
			return Spread{}, err
		}
	}
	s := Spread{MsgID: env.MsgID, TraceID: env.TraceID, ExpiresAt: env.Expiry(), To: to}
	local, remote, err := o.missing(env, to)
	if err != nil {
		return Spread{}, err
	}
	if len(remote) > 0 {
		if s.Away = o.away(ctx, b.From); s.Away != nil {
			remote = nil
		}
	}
	if s.Away != nil && len(local) == 0 && before == nil {
		return Spread{}, s.Away
	}
	if env.Expired(o.cfg.Now(), 0) {
		local, remote = nil, nil // who has not got it will not
	}
	shares, err := o.commitSpread(ctx, b, env, to, remote)
	if err != nil {
		return Spread{}, err
	}
	if b.Leaving != nil {
		b.Leaving(env.MsgID)
	}
	failed := o.handOut(ctx, env, local)
	if len(remote) > 0 {
		s.Away = o.publishSpread(ctx, env, shares)
	}
	o.conclude(store.Intent{MsgID: env.MsgID}, store.EndAccepted, "") // the shares go on
	if s.failed, err = o.failures(env.MsgID, to, failed); err != nil {
		return s, err
	}
	s.To, err = o.Shares(s)
	return s, err
}

// failures says how the message stands at members here whose copy was refused.
// Once it was published the broker brings them one, and that may go in.
func (o *Outbox) failures(msgID string, to []Share, failed map[string]error) (map[string]Share, error) {
	published := false
	for _, s := range to {
		if s.Local {
			continue
		}
		in, found, err := o.intent(shareID(msgID, s.GID))
		if err != nil {
			return nil, err
		}
		published = published || found && in.Outcome != store.EndRefused
	}
	all := map[string]Share{}
	for gid, cause := range failed {
		outcome := ShareNotSent
		if published && !fault.Is(cause, fault.PaneGone) {
			outcome = ShareInDoubt
		}
		all[gid] = Share{Outcome: outcome, Reason: string(fault.CodeOf(cause))}
	}
	return all, nil
}

// members lists whom a broadcast is for: those of the roster and those it was
// for before, without the sender.
func (o *Outbox) members(b Broadcast, before []store.Recipient) []Share {
	f := roster.Filter{Group: b.Group}
	if b.Group == everyone {
		f = roster.Filter{Kind: store.Worker}
	}
	var to []Share
	for _, e := range o.cfg.Directory.Entities(f) {
		if e.GID != b.From {
			to = append(to, Share{Target: targetOf(e)})
		}
	}
	for _, r := range before {
		if slices.ContainsFunc(to, func(s Share) bool { return s.GID == r.GID }) {
			continue
		}
		if t, err := o.cfg.Directory.Resolve(r.GID); err == nil {
			to = append(to, Share{Target: t})
		}
	}
	return to
}

func targetOf(e roster.EntityView) roster.Target {
	return roster.Target{
		GID: e.GID, Name: e.Name, Host: e.Host, Kind: e.Kind, Groups: e.Groups, Pane: e.Pane,
		Local: e.Local, Gone: e.Gone, HostState: e.HostState,
	}
}

func recipients(to []Share) []store.Recipient {
	list := make([]store.Recipient, len(to))
	for i, s := range to {
		list[i] = store.Recipient{GID: s.GID, Host: s.Host, Name: s.Address()}
	}
	return list
}

// nobody says why a broadcast is for nobody.
func (o *Outbox) nobody(b Broadcast) error {
	who := "nobody else is in the group " + b.Group
	if b.Group == everyone {
		who = "there is no worker besides you"
	}
	if o.cfg.Broker != nil {
		if ok, reason := o.cfg.Broker.Connected(); !ok {
			return fault.New(fault.BrokerDown, "%s on this host, and other hosts cannot be reached now (%s); nothing was sent. Try again later", who, reason)
		}
		if !o.cfg.Directory.Current() {
			return fault.New(fault.BrokerDown, "%s as far as this host knows, and what it knows of the others is old; nothing was sent. Try again in some seconds", who)
		}
	}
	return fault.New(fault.UnknownRecipient, "%s; nothing was sent. bridge_roster shows who is in which group", who)
}

// missing picks those who are not known to have the message, here and elsewhere.
func (o *Outbox) missing(env *envelope.Envelope, to []Share) (local, remote []Share, err error) {
	for _, s := range to {
		if s.Local {
			if outcome, _ := o.local.Local(s.GID, env.MsgID); outcome == "" {
				local = append(local, s)
			}
			continue
		}
		in, found, err := o.intent(shareID(env.MsgID, s.GID))
		if err != nil {
			return nil, nil, err
		}
		if !found || in.Outcome == store.EndRefused {
			remote = append(remote, s)
		}
	}
	return local, remote, nil
}

// away says why members on other hosts cannot be reached.
func (o *Outbox) away(ctx context.Context, from string) error {
	if o.cfg.Broker == nil {
		return fault.New(fault.BrokerDown, "this gateway has no broker; set broker.uri to reach other hosts")
	}
	if ok, reason := o.cfg.Broker.Connected(); !ok {
		return fault.New(fault.BrokerDown, "other hosts cannot be reached now (%s)", reason)
	}
	if err := o.cfg.Broker.Reachable(ctx, from); err != nil {
		return err
	}
	return o.behindOlder(ctx, from)
}

// commitSpread makes a broadcast durable before any copy of it leaves, with a
// share for each member on another host.
func (o *Outbox) commitSpread(ctx context.Context, b Broadcast, env *envelope.Envelope, to, remote []Share) ([]*open, error) {
	whole := store.Intent{
		MsgID: env.MsgID, TraceID: env.TraceID, Kind: string(env.Kind), From: env.From, To: env.To, Hops: env.Hops,
		TS: env.TS, ExpiresAt: env.ExpiresAt, State: store.IntentIntended, Recipients: recipients(to), Key: b.Key,
	}
	ops := []*open{{pinned: true, intent: whole}}
	for _, s := range remote {
		in := whole
		in.MsgID, in.Of, in.Recipients, in.Key = shareID(env.MsgID, s.GID), env.MsgID, nil, ""
		in.To, in.ToHost, in.ToName, in.ToKind = s.GID, s.Host, s.Address(), s.Kind
		ops = append(ops, &open{flight: true, pinned: true, away: s.HostState != roster.Online, silent: s.HostState != roster.Online, intent: in})
	}
	failpoint.Hit("outbox.cast.intent.before")
	err := o.cfg.Store.Write(ctx, func(tx *store.Tx) error {
		for _, op := range ops {
			if err := tx.DeleteIntent(op.intent.MsgID); err != nil {
				return err
			}
			if err := tx.PutIntent(op.intent); err != nil {
				return err
			}
		}
		if b.Key == "" {
			return nil
		}
		k := o.key(Request{kind: envelope.Broadcast, target: &roster.Target{}}, env)
		k.Hash = b.hash()
		return tx.PutKey(b.From, b.Key, k)
	})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("outbox.cast.intent.after")
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range ops {
		o.keep(op)
	}
	ops[0].pinned = false
	return ops[1:], nil
}

// handOutAtOnce is how many local copies are stored at the same time: they
// share commits.
const handOutAtOnce = 32

// Shares tells how a broadcast stands now at each of its recipients.
func (o *Outbox) Shares(s Spread) ([]Share, error) {
	to := slices.Clone(s.To)
	for i := range to {
		one := &to[i]
		if one.Local {
			one.Outcome, one.Reason = o.local.Local(one.GID, s.MsgID)
			switch {
			case one.Outcome == "":
				one.Outcome = ShareNotSent
				if f, refused := s.failed[one.GID]; refused {
					one.Outcome, one.Reason = f.Outcome, f.Reason
				}
			case one.Outcome == store.Waiting && one.Kind != store.Worker:
				one.Outcome, one.Reason = ShareQueued, ""
			case one.Outcome == store.Waiting && one.Reason == "", one.Outcome == store.Injecting:
				one.Outcome = ""
			case one.Outcome == store.Drained:
				one.Outcome = store.Injected
			}
			o.late(one, s.ExpiresAt)
			continue
		}
		in, found, err := o.intent(shareID(s.MsgID, one.GID))
		if err != nil {
			return nil, err
		}
		if t, err := o.cfg.Directory.Resolve(one.GID); err == nil {
			one.HostState = t.HostState // it may be back by now
		}
		one.Outcome, one.Reason = shareOutcome(in, found, one.HostState != roster.Online)
		if !found && s.Away != nil {
			one.Reason = string(fault.CodeOf(s.Away))
		}
		o.late(one, s.ExpiresAt)
	}
	return to, nil
}

// late says of what was not sent within its life that it never will be.
func (o *Outbox) late(s *Share, expires time.Time) {
	if s.Outcome == ShareNotSent && o.cfg.Now().After(expires) {
		s.Reason = string(fault.Expired)
	}
}

func shareOutcome(in store.Intent, found, away bool) (outcome store.Outcome, reason string) {
	switch {
	case !found:
		return ShareNotSent, ""
	case in.Outcome == store.EndRefused:
		return ShareNotSent, in.OutcomeReason
	case in.Outcome == store.EndInjected || in.Outcome == store.EndReplied:
		return store.Injected, ""
	case in.Outcome.Failed():
		return store.Failed, in.OutcomeReason
	case in.Outcome == store.EndAbandoned:
		return store.Failed, string(fault.Abandoned)
	case in.State == store.IntentDeferred:
		return store.Waiting, in.OutcomeReason
	case in.State == store.IntentInDoubt, in.State == store.IntentIntended: // an earlier run may have published it, or not
		return ShareInDoubt, ""
	case in.ToKind != store.Worker || away && in.State == store.IntentAccepted:
		return ShareQueued, ""
	}
	return "", ""
}
