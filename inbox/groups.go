package inbox

import (
	"context"
	"slices"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// ChangeGroups lets the live entity of that name or gid join groups and leave
// others, and returns it; with none of both it only does that. It gets what is
// broadcast to a group from then on.
func (in *Inbox) ChangeGroups(ctx context.Context, name string, join, leave []string) (store.Entity, error) {
	e, changed, err := in.regroup(ctx, name, join, leave)
	if changed {
		in.tell(e.GID)
	}
	return e, err
}

// regroup records the groups of an entity, if they change.
func (in *Inbox) regroup(ctx context.Context, name string, join, leave []string) (e store.Entity, changed bool, err error) {
	in.registry.Lock()
	defer in.registry.Unlock()
	e, found := in.ByName(name)
	b := in.box(e.GID)
	if !found || b == nil {
		return store.Entity{}, false, fault.New(fault.UnknownRecipient, "nobody here is called %q; `bridged roster` lists who is", name)
	}
	for _, g := range leave {
		if !slices.Contains(e.Groups, g) {
			return e, false, fault.New(fault.BadRequest, "%s is not in the group %s; nothing was changed", e.Name, g)
		}
	}
	groups := slices.DeleteFunc(slices.Concat(e.Groups, join), func(g string) bool { return slices.Contains(leave, g) })
	slices.Sort(groups)
	groups = slices.Compact(groups)
	if err := envelope.CheckMember(e.Name, groups); err != nil {
		return e, false, err
	}
	if slices.Equal(groups, e.Groups) {
		return e, false, nil
	}
	e.Groups = groups
	if err := in.record(ctx, e, "", nil); err != nil {
		return e, false, err
	}
	b.become(e)
	return e, true, nil
}
