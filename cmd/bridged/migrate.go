package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/keys"
	"fleetd/fault"
	"fleetd/herdr"
	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/store"
)

// migrateFlags say what is moved, and how.
type migrateFlags struct {
	apply, remove bool
	queues, maps  []string
	skip          []string
	to            string
	management    string
}

// migrated is the JSON of a migration.
type migrated struct {
	Applied bool               `json:"applied"`
	Plan    []migrations.Row   `json:"plan"`
	Queues  []migrations.Count `json:"queues,omitempty"` // those that it came to
	Note    string             `json:"note,omitempty"`
	// Absent are queues that --map speaks of and the broker does not have: moved
	// before, or mistyped.
	Absent []string `json:"absent,omitempty"`
}

func (a *app) migrateCmd() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move the mail that the old daemon left on the broker",
		Long: `Move the replies that the older single-host daemon left in its broker queues
(agent.PANE.inbox) to the inbox of a main of this host, each as a reply from the
worker of that pane. Without --apply it prints what it would do and changes
nothing. The daemon has to run; the old one must not.

It may be interrupted, and killed, at any time: run again it goes on, and the main
gets each reply once, in the order of each queue. An empty queue stays unless
--delete is given.

The queues are those of the panes that herdr has and of the workers that are
registered, those that --queue names, and those that the broker's management API
lists. That API lists the queues of other hosts too: leave them out with --skip.
Those that nobody here knows are never touched. A worker whose pane is no more:
register it without a pane, and say whose mail it was with --map.`,
		Example: "  bridged migrate\n  bridged migrate --apply --delete\n  bridged migrate --map wQ:p2=reviewer --management http://broker:15672",
		GroupID: groupHost,
		Args:    cobra.NoArgs,
		RunE:    a.run(func(cmd *cobra.Command, _ []string) error { return a.migrate(cmd, f) }),
	}
	cmd.Flags().BoolVar(&f.apply, "apply", false, "move the mail; without it nothing is changed")
	cmd.Flags().BoolVar(&f.remove, "delete", false, "with --apply: delete old queues that are empty and that nobody uses")
	cmd.Flags().StringArrayVar(&f.queues, "queue", nil, "an old `QUEUE` that must be looked at; can be repeated")
	cmd.Flags().StringArrayVar(&f.skip, "skip", nil, "a `QUEUE` that is left alone, as another host's; may hold * and ?, and can be repeated")
	cmd.Flags().StringArrayVar(&f.maps, "map", nil, "`PANE=NAME`: what lies in the queue of PANE is from the worker NAME; can be repeated")
	cmd.Flags().StringVar(&f.to, "to", "", "the `MAIN` that gets the mail (default mcp.default_main, else the only main of this host)")
	cmd.Flags().StringVar(&f.management, "management", "", "`URL` of the broker's management API, to find queues whose panes are no more, and to delete none whose mail is in somebody's hands; with another login than broker.uri has: http://USER@broker:15672, and its password in $"+managementPassword)
	config.AddFlags(cmd.Flags(), "host", "broker.uri", "broker.prefix", "herdr.socket", "mcp.default_main")
	return cmd
}

func (a *app) migrate(cmd *cobra.Command, f migrateFlags) error {
	if f.remove && !f.apply {
		return usagef("--delete goes with --apply")
	}
	maps, err := readMaps(f.maps)
	if err != nil {
		return err
	}
	c, cfg, err := a.dial(cmd)
	if err != nil {
		return err
	}
	if cfg.Broker.URI == "" {
		return usagef("there is no broker: set broker.uri to the one that the old daemon used")
	}
	ctx := a.signals(cmd.Context())
	people, err := c.Roster(ctx, mcp.RosterArgs{})
	if err != nil {
		return err
	}
	daemon, err := c.Info(ctx)
	if err != nil {
		return infoFault(err)
	}
	key, err := daemonsKey(cfg, daemon)
	if err != nil {
		return err
	}
	cfg.Host = daemon.Host // as the daemon settled it
	broker, err := fabric.DialOldQueues(ctx, fabricConfig(cfg), key)
	if err != nil {
		return err
	}
	defer broker.Close()
	var management *migrations.Management
	if f.management != "" {
		if management, err = a.managementAPI(f.management, cfg); err != nil {
			return err
		}
	}
	sources, err := a.sources(ctx, cfg, f, people, broker.Names(), maps, management)
	if err != nil {
		return err
	}
	if to := sources.Main; to.GID != "" {
		switch err := broker.CheckInbox(ctx, to.GID); {
		case fault.Is(err, fault.Unroutable), fault.Is(err, fault.Conflict):
			sources.Main, sources.NoMain = migrations.Person{}, fault.From(err).Sentence
		case err != nil:
			return err
		}
	}
	out := migrated{}
	if out.Plan, err = migrations.Plan(ctx, broker, sources); err != nil {
		return err
	}
	out.Absent = absent(out.Plan, maps)
	for _, q := range out.Absent {
		a.note("there is no queue %s, which --map speaks of: its mail was moved before, or the pane is another", q)
	}
	if !f.apply {
		out.Note = planned(out.Plan)
		return a.emit(out, func(w *printer) { a.printPlan(w, out) })
	}
	if err := migrations.Ready(out.Plan); err != nil {
		return err
	}
	journal, err := migrations.OpenJournal(filepath.Join(cfg.DataDir, migrations.JournalFile))
	if err != nil {
		return err
	}
	out.Applied = true
	mover := migrations.Mover{
		Broker: broker, Journal: journal, Limit: daemon.ContentBytes, Delete: f.remove, Now: time.Now, Progress: a.moved(),
		// RabbitMQ notices within three heartbeats that a peer is gone, LavinMQ
		// within one and 5 s (broker facts §3).
		Patience: 3*cfg.Broker.Heartbeat + 5*time.Second, Return: 5 * time.Second,
	}
	if management != nil {
		mover.Held, mover.Counted = management.Held, countedAnew
	}
	var moveErr error
	out.Queues, moveErr = mover.Move(ctx, out.Plan)
	return errors.Join(moveErr, a.emit(out, func(w *printer) { a.printMoved(w, out.Queues) }), journal.Close())
}

// countedAnew is the time in which RabbitMQ tells anew what is in whose hands: it
// counts every 5 s, and is asked for the last count.
const countedAnew = 7 * time.Second

// infoFault says what it means that the daemon does not know the question.
func infoFault(err error) error {
	if fault.Is(err, fault.BadRequest) {
		return fault.Wrap(err, fault.BadRequest, "the daemon that runs is of another version than this command; nothing was changed. Restart it, then run this again")
	}
	return err
}

// daemonsKey is the key in data_dir, if the running daemon believes it: mail
// signed with another would be refused by it after it was moved, and one made
// here would be another.
func daemonsKey(cfg config.Config, daemon mcp.InfoResult) (ed25519.PrivateKey, error) {
	key, err := keys.Load(cfg.KeyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.BadRequest, "%s is not there, so %s is not the data_dir of the daemon that runs; nothing was changed. Run this with the daemon's own configuration (--config, --data-dir)", cfg.KeyPath(), cfg.DataDir)
	}
	if err != nil {
		return nil, err
	}
	if print := keys.Fingerprint(publicKey(key)); !slices.Contains(daemon.Keys, print) {
		return nil, fault.New(fault.Conflict, "the key in %s (%s) is none of the running daemon's (%s), which would refuse what is signed with it; nothing was changed. Run this with the daemon's own data_dir; if its key was changed, restart it first", cfg.KeyPath(), print, strings.Join(daemon.Keys, ", "))
	}
	return key, nil
}

// readMaps reads --map.
func readMaps(pairs []string) (map[string]string, error) {
	maps := map[string]string{}
	for _, pair := range pairs {
		pane, name, ok := strings.Cut(pair, "=")
		if !ok || pane == "" || name == "" {
			return nil, usagef("--map %q: write PANE=NAME, as wQ:p2=reviewer", pair)
		}
		if maps[pane] != "" {
			return nil, usagef("--map names pane %s twice", pane)
		}
		maps[pane] = name
	}
	return maps, nil
}

// absent are the queues of maps that the plan does not have.
func absent(plan []migrations.Row, maps map[string]string) (queues []string) {
	for pane := range maps {
		q := migrations.QueueOf(pane)
		if !slices.ContainsFunc(plan, func(r migrations.Row) bool { return r.Queue == q }) {
			queues = append(queues, q)
		}
	}
	slices.Sort(queues)
	return queues
}

// sources gathers where old queues may be and who is who.
func (a *app) sources(ctx context.Context, cfg config.Config, f migrateFlags, r mcp.RosterResult, names fabric.Names, maps map[string]string, management *migrations.Management) (migrations.Sources, error) {
	s := migrations.Sources{Queues: f.queues, Skip: f.skip, Workers: map[string]migrations.Person{}}
	var mains []mcp.RosterEntity
	byName := map[string]mcp.RosterEntity{}
	for _, e := range r.Entities {
		if e.Host != r.Self {
			continue
		}
		byName[e.Name] = e
		if e.Kind != store.Worker {
			mains = append(mains, e)
		} else if e.Pane != "" {
			s.Workers[e.Pane] = person(e)
			s.Panes = append(s.Panes, e.Pane)
		}
	}
	for pane, name := range maps {
		e, ok := byName[name]
		switch {
		case !ok:
			return s, fault.New(fault.BadRequest, "--map %s=%s: this host has no worker %s; make it with `bridged register %s --kind worker`", pane, name, name, name)
		case e.Kind != store.Worker:
			return s, fault.New(fault.BadRequest, "--map %s=%s: %s is a %s, and what lies in an old queue is from a worker; name another, or make one with `bridged register NAME --kind worker`", pane, name, name, e.Kind)
		}
		s.Workers[pane] = person(e)
		s.Panes = append(s.Panes, pane)
	}
	if err := chooseMain(&s, cfg, f.to, byName, mains); err != nil {
		return s, err
	}
	if s.Main.GID != "" {
		s.Inbox = names.Inbox(s.Main.GID)
	}
	client := &herdr.Client{Socket: cfg.Herdr.Socket}
	panes, err := client.PaneList(ctx)
	if err != nil {
		a.note("herdr was not asked for its panes: %s", fault.From(err).Sentence)
	}
	for _, p := range panes {
		s.Panes = append(s.Panes, p.PaneID)
	}
	if management != nil {
		s.Found, err = management.Queues(ctx)
		return s, err
	}
	return s, nil
}

// managementPassword names the variable with the password of the user in
// --management.
const managementPassword = "BRIDGED_MANAGEMENT_PASSWORD"

// managementAPI asks as the user that base names, else with the login of the
// broker's URI. Like that one's, no password may stand on the command line.
func (a *app) managementAPI(base string, cfg config.Config) (*migrations.Management, error) {
	uri, err := url.Parse(cfg.Broker.URI.Secret())
	if err != nil {
		return nil, usagef("broker.uri is no URI")
	}
	m := &migrations.Management{Base: base, VHost: vhost(uri), User: uri.User.Username()}
	m.Password, _ = uri.User.Password()
	if at, err := url.Parse(base); err == nil && at.User != nil { // what is no URL is refused when it is asked
		if _, has := at.User.Password(); has {
			return nil, usagef("--management has a password, and every user of this machine can read command lines (ps); leave it out and set %s", managementPassword)
		}
		m.User, m.Password = at.User.Username(), a.getenv(managementPassword)
		at.User = nil
		m.Base = at.String()
	}
	m.Secure, err = fabricConfig(cfg).TLS.Client()
	return m, err
}

// vhost is that of an AMQP URI: / where it names none.
func vhost(uri *url.URL) string {
	if name := strings.TrimPrefix(uri.Path, "/"); name != "" {
		return name
	}
	return "/"
}

func person(e mcp.RosterEntity) migrations.Person {
	return migrations.Person{GID: e.GID, Address: e.Name + "@" + e.Host}
}

// chooseMain finds the main that gets the mail, and guesses none.
func chooseMain(s *migrations.Sources, cfg config.Config, to string, byName map[string]mcp.RosterEntity, mains []mcp.RosterEntity) error {
	to = cmp.Or(to, cfg.MCP.DefaultMain)
	switch e, ok := byName[to]; {
	case to != "" && !ok:
		s.NoMain = fmt.Sprintf("this host has no main %s to deliver to: make it with `bridged register %s --kind main`", to, to)
	case to != "" && e.Kind == store.Worker:
		s.NoMain = fmt.Sprintf("%s is a worker, and the mail is for a main: say which with --to", to)
	case to != "":
		s.Main = person(e)
	case len(mains) == 1:
		s.Main = person(mains[0])
	case len(mains) == 0:
		s.NoMain = "this host has no main to deliver to: make it with `bridged register main --kind main`"
	default:
		s.NoMain = "this host has several mains: say which gets the mail with --to"
	}
	if to != "" && !envelope.ValidName(to) {
		return usagef("--to takes the name of a main of this host")
	}
	return nil
}

func planned(rows []migrations.Row) string {
	messages, problems := 0, 0
	for _, r := range rows {
		messages += r.Messages
		if r.Problem != "" {
			problems++
		}
	}
	switch {
	case problems > 0:
		return fmt.Sprintf("queues with a problem: %d; nothing is moved before that is solved", problems)
	case messages == 0:
		return "there is nothing to move"
	}
	return fmt.Sprintf("%d messages would be moved; nothing was changed: add --apply to move them", messages)
}

func (a *app) printPlan(w *printer, out migrated) {
	if len(out.Plan) > 0 {
		rows := make([][]string, len(out.Plan))
		for i, r := range out.Plan {
			rows[i] = []string{r.Queue, fmt.Sprint(r.Messages), fmt.Sprint(r.Consumers), r.From, r.To, r.Inbox, r.Problem}
		}
		w.table([]string{"queue", "messages", "consumers", "from", "to", "inbox", "problem"}, rows)
	}
	a.note("%s", out.Note)
}

func (a *app) printMoved(w *printer, counts []migrations.Count) {
	if len(counts) == 0 {
		a.note("there are no old queues")
		return
	}
	head := []string{"queue", "found", "arrived", "moved", "copies", "unsettled", "left", "vanished", "parts", "escaped", "doubtful", "deleted", "problem"}
	var sum migrations.Count
	rows := make([][]string, 0, len(counts)+1)
	row := func(c migrations.Count, deleted string) {
		cells := []string{c.Queue}
		for _, n := range []int{c.Found, c.Arrived, c.Moved, c.Copies, c.Unsettled, c.Left, c.Vanished, c.Parts, c.Escaped, c.Doubtful} {
			cells = append(cells, fmt.Sprint(n))
		}
		rows = append(rows, append(cells, deleted, c.Problem))
	}
	for _, c := range counts {
		row(c, map[bool]string{true: "yes", false: "no"}[c.Deleted])
		sum.Found, sum.Arrived, sum.Moved, sum.Copies = sum.Found+c.Found, sum.Arrived+c.Arrived, sum.Moved+c.Moved, sum.Copies+c.Copies
		sum.Left, sum.Vanished, sum.Parts, sum.Escaped = sum.Left+c.Left, sum.Vanished+c.Vanished, sum.Parts+c.Parts, sum.Escaped+c.Escaped
		sum.Unsettled, sum.Doubtful = sum.Unsettled+c.Unsettled, sum.Doubtful+c.Doubtful
	}
	if len(counts) > 1 {
		sum.Queue = "all"
		row(sum, "")
	}
	w.table(head, rows)
	if sum.Vanished > 0 {
		a.note("%d messages were not moved and are gone: they expired, somebody else took them, or they went with a queue that somebody deleted", sum.Vanished)
	}
}

// progressEvery is how often a person is told how far it is.
const progressEvery = 2 * time.Second

// moved tells how far a queue is, to a person who waits.
func (a *app) moved() func(queue string, moved, found int) {
	var last time.Time
	return func(queue string, moved, found int) {
		if now := time.Now(); !a.json && now.Sub(last) >= progressEvery {
			last = now
			a.note("%s: %d of %d", queue, moved, found)
		}
	}
}
