package mcp

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fleetd/fabric/roster"
	"fleetd/inbox"
	"fleetd/store"
)

// Roster shows the fleet as this host sees it.
func (c *Conversation) Roster(ctx context.Context, a RosterArgs) (RosterResult, error) {
	r := RosterResult{Self: c.Host, Hosts: []RosterHost{}, Entities: []RosterEntity{}}
	if a.Kind != "" {
		if err := inbox.CheckKind(a.Kind); err != nil { // an empty list would be taken for the truth
			return r, err
		}
	}
	r.Broker, r.Reason = c.Broker()
	r.ViewAge = c.Fleet.Age().Seconds()
	if who, ok := CallerFrom(ctx); ok {
		r.Held = c.Mailbox.Held(who.GID)
	}
	for _, h := range c.Fleet.Hosts() {
		if a.Host != "" && a.Host != h.Host {
			continue
		}
		r.Hosts = append(r.Hosts, rosterHost(h))
	}
	for _, e := range c.Fleet.Entities(roster.Filter{Host: a.Host, Kind: a.Kind, Group: a.Group, Status: roster.State(a.Status)}) {
		r.Entities = append(r.Entities, rosterEntity(e))
	}
	return r, nil
}

func rosterHost(h roster.HostView) RosterHost {
	out := RosterHost{
		Host: h.Host, State: h.State, AgeSeconds: h.Age.Seconds(), Entities: h.Entities, ClockOffset: h.Offset.Seconds(),
		Profiles: h.Profiles,
	}
	switch {
	case h.Age < 0:
		out.AgeSeconds, out.Note = -1, "not heard since this gateway started; listed from memory"
	case h.Silent && !h.Local:
		out.Note = "it does not answer this host, which it does not trust, it seems: see bridged doctor"
	case !h.Complete && !h.Local:
		out.Note = "not all of its entities are known yet"
	}
	return out
}

func rosterEntity(e roster.EntityView) RosterEntity {
	out := RosterEntity{
		GID: e.GID, Name: e.Name, Host: e.Host, Kind: e.Kind, Groups: e.Groups, Pane: e.Pane,
		Status: string(e.Status.State), Since: stamp(e.Status.Since), Progress: stamp(e.Status.Progress),
	}
	if e.Status.Refusing != "" {
		out.Refusing = e.Status.Refusing
		if at := stamp(e.Status.RefusingSince); at != "" {
			out.Refusing += " since " + at
		}
	}
	return out
}

// stamp writes a time for readers; "" for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// name is what people call a gid, or the gid.
func (c *Conversation) name(gid string) string {
	if t, err := c.Fleet.Resolve(gid); err == nil && gid != "" {
		return t.Address()
	}
	return gid
}

// listed is how many open briefs, and how many fetched messages, whoami names.
const listed = 24

// Whoami shows the caller what is his.
func (c *Conversation) Whoami(ctx context.Context) (WhoamiResult, error) {
	who, err := caller(ctx)
	if err != nil {
		return WhoamiResult{}, err
	}
	briefs, err := c.Mailbox.OpenBriefs(who.GID)
	if err != nil {
		return WhoamiResult{}, err
	}
	r := WhoamiResult{
		GID: who.GID, Name: who.Name, Host: c.Host, Kind: who.Kind,
		OpenBriefs: []OpenBrief{}, Questions: c.openQuestions(who.GID), Drained: []Drained{}, Held: c.Mailbox.Held(who.GID),
	}
	if e, ok := c.Mailbox.ByName(who.GID); ok {
		r.Groups, r.Pane = e.Groups, e.Pane
	}
	// The newest are what a reader acts on; all of them fit no result.
	if older := len(briefs) - listed; older > 0 {
		r.Note = fmt.Sprintf("%d older open briefs are not listed. ", older)
		briefs = briefs[older:]
	}
	for _, b := range briefs {
		open := OpenBrief{MsgID: b.MsgID, From: b.SenderName, At: stamp(time.UnixMilli(b.At))}
		if b.Announced {
			open.Bytes = len(b.Body)
		}
		r.OpenBriefs = append(r.OpenBriefs, open)
	}
	recent := c.Mailbox.Recently(who.GID)
	if older := len(recent) - listed; older > 0 {
		r.Note += fmt.Sprintf("%d older fetched messages are not listed; bridge_read takes their ids all the same.", older)
		recent = recent[:listed]
	}
	for _, d := range recent {
		r.Drained = append(r.Drained, Drained{MsgID: d.MsgID, From: d.FromName, At: stamp(d.At)})
	}
	return r, nil
}

// openQuestions lists what gid was asked and has not answered, the newest first.
func (c *Conversation) openQuestions(gid string) []OpenTurn {
	open := []OpenTurn{}
	for _, q := range slices.Backward(c.Mailbox.Questions(gid)) {
		open = append(open, OpenTurn{TurnID: q.TurnID, MsgID: q.MsgID, From: c.name(q.From), Until: stamp(q.Expiry())})
		if len(open) == listed {
			break
		}
	}
	return open
}

// Register makes or changes an entity of this host.
func (c *Conversation) Register(ctx context.Context, a RegisterArgs) (RegisterResult, error) {
	e, token, created, err := c.Mailbox.Register(ctx, inbox.Registration{
		Name: a.Name, Kind: a.Kind, Pane: a.Pane, Groups: a.Groups, NewToken: a.NewToken,
	})
	if err != nil {
		return RegisterResult{}, err
	}
	return RegisterResult{
		GID: e.GID, Name: e.Name, Host: c.Host, Kind: e.Kind, Pane: e.Pane, Token: token, Created: created, URL: c.URL,
	}, nil
}

// Info says what a process beside the daemon has to agree with it about.
func (c *Conversation) Info(context.Context) (InfoResult, error) { return c.About(), nil }

// Groups changes and shows what an entity of this host belongs to.
func (c *Conversation) Groups(ctx context.Context, a GroupsArgs) (GroupsResult, error) {
	e, err := c.Mailbox.ChangeGroups(ctx, a.Name, a.Add, a.Remove)
	if err != nil {
		return GroupsResult{}, err
	}
	return GroupsResult{GID: e.GID, Name: e.Name, Groups: append([]string{}, e.Groups...)}, nil
}

// endPatience is how long a call waits for the end that it began.
const endPatience = 30 * time.Second

// Unregister ends an entity of this host, and waits for its end some time.
func (c *Conversation) Unregister(ctx context.Context, a UnregisterArgs) (UnregisterResult, error) {
	e, err := c.Mailbox.Unregister(ctx, a.Name)
	if err != nil {
		return UnregisterResult{}, err
	}
	r := UnregisterResult{GID: e.GID, State: StateStopped}
	if c.ended(ctx, e.GID).State != store.EntityGone {
		r.State, r.Note = StateStopping, stoppingNote
	}
	return r, nil
}

const stoppingNote = "Its end is on record and goes on by itself: herdr, the broker or a client that is being given mail is waited for."

// ended waits for the end of a local entity, as long as a call may.
func (c *Conversation) ended(ctx context.Context, gid string) store.Entity {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	return c.Mailbox.AwaitEnd(ctx, gid)
}
