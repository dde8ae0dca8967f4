package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/store"
	"fleetd/test/crash/history"
	"fleetd/test/failpoint"
	"fleetd/test/rabbit"
)

// The old daemon's mail goes from a worker whose pane is no more to a main that
// gets nothing else.
const (
	oldWorker = "bygone"
	newMain   = "heir"
)

// oldMail is how much lies in an old queue: a batch and some.
const oldMail = 200

// archive makes those two.
func (w *world) archive(ctx context.Context) (err error) {
	if w.heir, err = w.addMain(ctx, w.a, newMain, false); err != nil {
		return err
	}
	_, err = w.a.host.Register(ctx, mcp.RegisterArgs{Name: oldWorker, Kind: store.Worker})
	return err
}

// nthMove is the hit of a mover's point that is struck: in the second batch, of
// steps that are taken once a batch or once a message.
func nthMove(point string) int {
	switch point {
	case "migrate.taken", "migrate.numbered", "migrate.settled":
		return 2
	case "migrate.delivered", "migrate.acked":
		return 150
	}
	return 1
}

// upgrading: old mail is moved, and the run is broken off and made again.
func (w *world) upgrading(ctx context.Context, k kase) (hit bool, err error) {
	pane := "w" + uuid.NewString()[:8] + ":p1"
	m := &history.Moved{
		Case: k.n, Queue: migrations.QueueOf(pane), From: oldWorker + "@" + w.a.host.Name, To: w.heir.name,
	}
	if m.Want, err = fill(ctx, w.node, m.Queue); err != nil {
		return false, err
	}
	w.rec.moves(m)
	if err := w.mover.arm(ctx, k.order()); err != nil {
		return false, err
	}
	args := []string{"migrate", "--apply", "--delete", "--json", "--to", newMain, "--map", pane + "=" + oldWorker}
	first, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		first <- w.migrate(ctx, m, args, w.mover.environ())
	}()
	w.traffic(ctx, k, wish{})
	hit = w.mover.hit(ctx, hitBound)
	if hit && k.damage != kill {
		if err := w.damage(ctx, k, w.a, w.mover); err != nil {
			return true, err
		}
	}
	<-ended
	if err = <-first; k.damage == kill && !errors.Is(err, errKilled) {
		return false, fmt.Errorf("the migration was not killed: %w", err)
	}
	for end := time.Now().Add(upBound); err != nil; pause(ctx, againAfter) { // the gateway and its link may still be on their way back
		if err = w.migrate(ctx, m, args, "BRIDGED_FAILPOINT="); err != nil && (ctx.Err() != nil || time.Now().After(end)) {
			return hit, fmt.Errorf("the migration does not get through any more: %w", err)
		}
	}
	return hit, nil
}

var errKilled = errors.New("killed")

// migrate runs bridged migrate once, and notes what it says.
func (w *world) migrate(ctx context.Context, m *history.Moved, args []string, env string) error {
	cmd := w.a.host.Command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(cmd.Env, env), &out, &errs
	if env != w.mover.environ() {
		cmd.Env = append(cmd.Env, "BRIDGED_FAILPOINT_CONTROL=")
	}
	err := cmd.Run()
	if cmd.ProcessState != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return errKilled
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, errs.String())
	}
	var said struct{ Queues []migrations.Count }
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		return fmt.Errorf("what it says is no JSON: %w: %s", err, out.String())
	}
	var its migrations.Count // of a queue that is no more there is no word
	for _, q := range said.Queues {
		if q.Queue == m.Queue {
			its = q
		}
	}
	w.rec.moved(m, its)
	if its.Queue != "" && !its.Deleted {
		return errors.New("the old queue is there still")
	}
	return nil
}

// moved notes what a run of the migration said at its end.
func (r *recorder) moved(m *history.Moved, c migrations.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.Runs = append(m.Runs, history.Run{
		Found: c.Found, Arrived: c.Arrived, Moved: c.Moved, Copies: c.Copies, Left: c.Left, Vanished: c.Vanished,
	})
}

// moves notes that old mail is to be moved.
func (r *recorder) moves(m *history.Moved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.old = append(r.old, m)
}

// inherited waits until all old mail of case n has been fetched.
func (w *world) inherited(ctx context.Context, n int) {
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < settleBound; pause(ctx, look) {
		if w.rec.fetched(n) {
			return
		}
	}
}

func (r *recorder) fetched(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.old {
		if m.Case != n {
			continue
		}
		got := 0
		for _, one := range r.shown {
			if strings.HasPrefix(one.Content, m.Queue+" ") {
				got++
			}
		}
		if got < len(m.Want) {
			return false
		}
	}
	return true
}

// fill makes a queue of the old daemon: some replies have an id, and many say
// the same.
func fill(ctx context.Context, node *rabbit.Node, queue string) (want []string, err error) {
	conn, err := amqp.DialConfig(node.URI, amqp.Config{Heartbeat: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return nil, err
	}
	if err := node.Sync(ctx); err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	var last *amqp.DeferredConfirmation
	for i := range oldMail {
		m := amqp.Publishing{DeliveryMode: 2, Body: []byte(queue + " done")}
		if i%3 == 0 {
			m.Body = fmt.Appendf(nil, "%s %d", queue, i)
		}
		if i%2 == 0 {
			m.MessageId = uuid.NewString()
		}
		if last, err = ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, m); err != nil {
			return nil, err
		}
		want = append(want, string(m.Body))
	}
	if ok, err := last.WaitContext(ctx); !ok || err != nil { // those before it are there by then
		return nil, fmt.Errorf("an old reply was not stored: %w", err)
	}
	return want, nil
}

// upgrades reports whether old mail is moved in k.
func upgrades(k kase) bool { return k.path == failpoint.Upgrade }
