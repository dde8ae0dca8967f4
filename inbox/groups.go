package inbox

import (
	"context"
	"slices"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// groupsMost is how many groups one entity can be in; a roster takes no more.
const groupsMost = 32

// ChangeGroups lets the live entity of that name or gid join groups and leave
// others, and returns it; with none of both it only does that. It gets what is
// broadcast to a group from then on.
func (in *Inbox) ChangeGroups(ctx context.Context, name string, join, leave []string) (store.Entity, error) {
	for _, g := range slices.Concat(join, leave) {
		if !envelope.ValidName(g) {
			return store.Entity{}, badGroup(g)
		}
	}
	in.registry.Lock()
	defer in.registry.Unlock()
	e, found := in.ByName(name)
	b := in.box(e.GID)
	if !found || b == nil {
		return store.Entity{}, fault.New(fault.UnknownRecipient, "nobody here is called %q; `bridged roster` lists who is", name)
	}
	for _, g := range leave {
		if !slices.Contains(e.Groups, g) {
			return e, fault.New(fault.BadRequest, "%s is not in the group %s; nothing was changed", e.Name, g)
		}
	}
	groups := slices.DeleteFunc(slices.Concat(e.Groups, join), func(g string) bool { return slices.Contains(leave, g) })
	slices.Sort(groups)
	groups = slices.Compact(groups)
	switch {
	case len(groups) > groupsMost:
		return e, fault.New(fault.TooLarge, "%s would be in %d groups; at most %d are possible", e.Name, len(groups), groupsMost)
	case slices.Equal(groups, e.Groups):
		return e, nil
	}
	e.Groups = groups
	if err := in.record(ctx, e, "", nil); err != nil {
		return e, err
	}
	b.become(e)
	in.cfg.Changed(e)
	return e, nil
}

func badGroup(g string) error {
	return fault.New(fault.BadRequest, "%q is no group name: use lower-case letters, digits and dashes, a letter first; all is taken", g)
}
