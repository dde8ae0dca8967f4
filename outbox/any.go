package outbox

import (
	"cmp"
	"slices"
	"strings"

	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// anyPrefix begins an address that means one member of a group, whichever is
// free (design §7).
const anyPrefix = "any:"

// anyOf returns the group of an address that leaves the choice to us.
func anyOf(address string) (group string, ok bool) {
	return strings.CutPrefix(strings.TrimSpace(address), anyPrefix)
}

// candidate is a member of a group that could take a brief.
type candidate struct {
	roster.EntityView
	busy   int    // 0: it is idle
	queue  int    // briefs that are on their way to it, as far as this host knows
	picked uint64 // when it was last picked, 0: never
}

// choose finds whom any:GROUP means: under a key that was used before whom it
// meant then, else the one that is picked now.
func (o *Outbox) choose(r Request, group string) (roster.Target, error) {
	if r.Key == "" {
		return o.pick(r.From, group)
	}
	switch k, known, err := o.keyOf(r.From, r.Key); {
	case err != nil:
		return roster.Target{}, err
	case !known || k.To == "":
		return o.pick(r.From, group)
	default:
		return o.cfg.Directory.Resolve(k.To)
	}
}

// pick chooses the member of a group that is likely to begin soonest: idle ones
// first, then the shortest queue, then the one not picked for the longest time.
func (o *Outbox) pick(from, group string) (roster.Target, error) {
	if group != everyone && !envelope.ValidName(group) {
		return roster.Target{}, fault.New(fault.BadRequest, "%.80q is no group: write any: and the name of one, or any:all for any worker", group)
	}
	f := roster.Filter{Kind: store.Worker, Group: group}
	if group == everyone {
		f.Group = ""
	}
	linked, everybody := o.connected(), o.cfg.Directory.Entities(f)
	o.mu.Lock()
	queues := o.queues()
	var all []candidate
	members := 0
	for _, e := range everybody {
		if e.GID == from || e.Gone {
			continue
		}
		members++
		if !e.Local && (!linked || e.HostState != roster.Online) {
			continue
		}
		busy, able := busyness(e)
		if !able {
			continue
		}
		all = append(all, candidate{EntityView: e, busy: busy, queue: queues[e.GID], picked: o.picked[e.GID]})
	}
	o.mu.Unlock()
	for i, c := range all {
		if c.Local {
			all[i].queue += o.local.Backlog(c.GID)
		}
	}
	if len(all) == 0 {
		return roster.Target{}, o.nobodyOf(group, members)
	}
	best := slices.MinFunc(all, func(a, b candidate) int {
		// What is on its way makes an idle one busy.
		return cmp.Or(cmp.Compare(min(a.queue, 1)+a.busy, min(b.queue, 1)+b.busy), cmp.Compare(a.queue, b.queue),
			cmp.Compare(a.picked, b.picked), a.Status.Since.Compare(b.Status.Since), cmp.Compare(a.GID, b.GID))
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.picks++
	o.picked[best.GID] = o.picks
	return targetOf(best.EntityView), nil
}

// busyness orders what a worker is doing; able is false if it takes nothing.
func busyness(e roster.EntityView) (busy int, able bool) {
	switch e.Status.State {
	case roster.NoPane, roster.PaneChanged, roster.HerdrDown, roster.Contested, roster.Mismatched:
		return 0, false
	case roster.Idle, roster.Done:
		if e.Status.Refusing == "" {
			return 0, true
		}
		return 2, true
	case roster.Working:
		return 1, true
	}
	return 2, true
}

// queues counts by gid the briefs that left and are not known to be in; o.mu is
// held.
func (o *Outbox) queues() map[string]int {
	n := map[string]int{}
	for _, op := range o.open {
		if op.kind().Brief() && !op.many() && !op.ended() && !op.intent.Told {
			n[op.intent.To]++
		}
	}
	return n
}

func (o *Outbox) nobodyOf(group string, members int) error {
	who := "nobody else is in the group " + group
	switch {
	case members > 0:
		return fault.New(fault.UnknownRecipient, "%d workers of the group %s are known, and none of them can take a message now: their hosts are away or they have no agent; nothing was sent. Look at bridge_roster, and try again later", members, group)
	case group == everyone:
		who = "there is no worker besides you"
	}
	return fault.New(fault.UnknownRecipient, "%s; nothing was sent. bridge_roster shows who is in which group", who)
}
