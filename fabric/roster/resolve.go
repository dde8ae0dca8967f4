package roster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Target is whom an address means.
type Target struct {
	GID       string
	Name      string
	Host      string
	Kind      store.EntityKind
	Groups    []string
	Pane      string // local targets only
	Local     bool
	Gone      bool   // withdrawn: nothing will ever reach it again
	HostState string // Online, Unknown, Offline
}

// Address is the way to write t that is the same on every host.
func (t Target) Address() string { return t.Name + "@" + t.Host }

const (
	maxListed = 10 // addresses in one sentence
	maxNear   = 3
	anyPrefix = "any:"
)

// Resolve finds the one entity that address means (design §1): a gid, a pane
// of this host, name@host, or a name. A bare name prefers nobody: several who
// were not withdrawn, here or elsewhere, are AMBIGUOUS_RECIPIENT. Withdrawn
// ones count only where there is no other, and of several on one host the
// latest. UNKNOWN_RECIPIENT names the nearest and says when the view is too
// old to be sure; whether to trust it then is the caller's (Current).
func (r *Roster) Resolve(address string) (Target, error) {
	now := r.cfg.Mono()
	// In a pane every at sign is shown full-width (agent fact §1.8), so that is
	// how an agent may give an address back.
	address = strings.ReplaceAll(strings.TrimSpace(address), "＠", "@")
	r.mu.Lock()
	found, everyone := r.find(address, now)
	doubt := ""
	if len(found) == 0 { // it looks at every host
		doubt = r.doubt(address, now)
	}
	r.mu.Unlock()
	switch {
	case strings.HasPrefix(address, anyPrefix):
		return Target{}, fault.New(fault.UnknownRecipient, "%.80q is not an address here; name one member of the group, bridge_roster lists them", address)
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Target{}, ambiguous(address, found)
	}
	return Target{}, unknown(address, everyone, doubt)
}

// find returns those whom address means and, where it is nobody, all whom it
// might have meant.
func (r *Roster) find(address string, now time.Time) (found, everyone []Target) {
	if gid := strings.ToLower(address); envelope.ValidGID(gid) {
		return r.byGID(gid, now), nil
	}
	name, host, qualified := strings.Cut(address, "@")
	var gone []sleeper
	for _, id := range r.hostIDs() {
		state := r.stateOf(id, now)
		r.eachOf(id, now, func(e *resident) {
			t := r.target(e, id, state)
			match := t.Name == name && (!qualified || id == host) || t.Pane != "" && t.Pane == address
			switch {
			case match && !t.Gone:
				found = append(found, t)
			case match:
				gone = append(gone, sleeper{t, e.at})
			case !t.Gone:
				everyone = append(everyone, t)
			}
		})
	}
	if len(found) == 0 {
		found = latestPerHost(gone)
	}
	return found, everyone
}

// byGID knows also whom only the homes remember.
func (r *Roster) byGID(gid string, now time.Time) []Target {
	home := r.homes[gid]
	if home == nil {
		return nil
	}
	e := r.remembered(home)
	if h := r.hosts[home.Host]; h != nil {
		if rec := h.records[gid]; rec != nil && !rec.refused {
			e.Entity, e.gone = rec.Entity, rec.gone
		}
	}
	return []Target{r.target(e, home.Host, r.stateOf(home.Host, now))}
}

func (r *Roster) target(e *resident, host, state string) Target {
	t := Target{
		GID: e.GID, Name: e.Name, Host: host, Kind: e.Kind, Groups: slices.Clone(e.Groups),
		Local: host == r.cfg.Host, Gone: e.gone, HostState: state,
	}
	if t.Local {
		t.Pane = e.Pane
	}
	return t
}

// sleeper is a withdrawn match and when it last gave a sign of life.
type sleeper struct {
	Target
	at time.Time
}

func latestPerHost(gone []sleeper) []Target {
	slices.SortFunc(gone, func(a, b sleeper) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), b.at.Compare(a.at), strings.Compare(b.GID, a.GID))
	})
	var latest []Target
	for _, s := range gone {
		if n := len(latest); n == 0 || latest[n-1].Host != s.Host {
			latest = append(latest, s.Target)
		}
	}
	return latest
}

// ambiguous lists all matches in a form that means one each: by gid where two
// of a name share a host.
func ambiguous(address string, found []Target) error {
	times := map[string]int{}
	for _, t := range found {
		times[t.Address()]++
	}
	names := make([]string, 0, len(found))
	for _, t := range found {
		name := t.Address()
		if times[name] > 1 {
			name = fmt.Sprintf("%s (%s)", t.GID, name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if more := len(names) - maxListed; more > 0 {
		names = append(names[:maxListed], fmt.Sprintf("%d more", more))
	}
	return fault.New(fault.AmbiguousRecipient, "%q could be any of %s; write the one that you mean", address, strings.Join(names, ", "))
}

func unknown(address string, everyone []Target, doubt string) error {
	sentence := fmt.Sprintf("nobody is known as %s", printable(fmt.Sprintf("%.120q", address), 200))
	if near := nearest(address, everyone); len(near) > 0 {
		sentence += "; did you mean " + strings.Join(near, " or ") + "?"
	} else {
		sentence += "; bridge_roster lists everyone"
		if doubt != "" {
			sentence += "."
		}
	}
	if doubt != "" {
		sentence += " " + doubt
	}
	return fault.New(fault.UnknownRecipient, "%s", sentence)
}

// doubt says in a sentence why the view of other hosts lacks whom address
// means, or may do so; "" if it is whole.
func (r *Roster) doubt(address string, now time.Time) string {
	_, host, qualified := strings.Cut(address, "@")
	age := r.age(now).Round(time.Second)
	switch {
	case r.cfg.Publish == nil && qualified && host != r.cfg.Host:
		return "This host has no broker configured, so only its own entities can be reached."
	case r.cfg.Publish == nil:
		return ""
	case r.echoAt.IsZero():
		return fmt.Sprintf("This host was not connected to the others since its start %s ago and knows only its own; try again once it is.", age)
	case !r.current(now):
		return fmt.Sprintf("This host's view of the others is %s old, so somebody new may be missing; try again once it is connected.", age)
	}
	if qualified && r.stateOf(host, now) == Never {
		return fmt.Sprintf("No host %.80q was ever heard; the host ids are in bridge_roster.", host)
	}
	var partly, silent []string
	for _, id := range sortedKeys(r.hosts) {
		switch h := r.hosts[id]; {
		case h == r.self || h.state(now) != Online || h.settled():
		case h.silent():
			silent = append(silent, id)
		default:
			partly = append(partly, id)
		}
	}
	var sentences []string
	if len(silent) > 0 {
		sentences = append(sentences, fmt.Sprintf("This host is not told who lives on %s: it is not trusted there, it seems; `bridged doctor` says what to do.", listed(silent)))
	}
	if len(partly) > 0 {
		sentences = append(sentences, fmt.Sprintf("Who lives on %s is not fully known yet; try again in some seconds.", listed(partly)))
	}
	return strings.Join(sentences, " ")
}

func listed(hosts []string) string { return strings.Join(hosts[:min(len(hosts), maxListed)], ", ") }
