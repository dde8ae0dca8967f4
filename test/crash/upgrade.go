package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/test/failpoint"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// move is a case of its own: `bridged migrate` is killed at a step, at its nth
// time there, and run again.
type move struct {
	point string
	nth   int
}

func (m move) String() string { return m.point + " upgrade kill" }

// moves are the migration's cases: every step, in the middle of a queue where
// it is taken often.
func moves(which *regexp.Regexp) (chosen []move) {
	for _, name := range failpoint.Moves() {
		m := move{name, 2} // batches
		if name == "migrate.delivered" || name == "migrate.acked" {
			m.nth = 150 // in the second
		}
		if which.MatchString(m.String()) {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// playMoves plays the cases one after the other on a host of their own, and
// reports whether every old reply came once, and in order, in each.
func playMoves(ctx context.Context, chosen []move, out io.Writer) (kept bool, err error) {
	if len(chosen) == 0 {
		return true, nil
	}
	dir, err := os.MkdirTemp("", "crash")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	node, err := rabbit.Start(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, node.Stop()) }()
	f, err := fleet.New(ctx, dir, node.URI, "", "failpoints")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h, err := f.AddHost(ctx, "hosta")
	if err != nil {
		return false, err
	}
	if err := h.Start(ctx); err != nil {
		return false, err
	}
	if err := h.Ready(ctx); err != nil {
		return false, err
	}
	primary, err := h.AddMain(ctx, "main")
	if err != nil {
		return false, err
	}
	if _, err := h.Register(ctx, mcp.RegisterArgs{Name: "worker", Kind: "worker"}); err != nil {
		return false, err
	}
	good := 0
	for _, m := range chosen {
		began := time.Now()
		err := m.play(ctx, h, primary, node.URI)
		verdict := "kept"
		if err != nil {
			verdict = err.Error()
		} else {
			good++
		}
		fmt.Fprintf(out, "     %-55s %s  %.1f s\n", m, verdict, time.Since(began).Seconds())
	}
	fmt.Fprintf(out, "crash: migration cases=%d kept=%d\n", len(chosen), good)
	return good == len(chosen), primary.Disconnect()
}

// oldMail is how much lies in the old queue: two batches and some.
const oldMail = 300

func (m move) play(ctx context.Context, h *fleet.Host, primary *fleet.Main, uri string) error {
	pane := "w" + uuid.NewString()[:8] + ":p1"
	want, err := fill(ctx, uri, migrations.QueueOf(pane))
	if err != nil {
		return err
	}
	args := []string{"migrate", "--apply", "--delete", "--map", pane + "=worker"}
	first := h.Command(ctx, args...)
	first.Env = append(first.Env, fmt.Sprintf("BRIDGED_FAILPOINT=%s:%d=kill", m.point, m.nth))
	if text, err := first.CombinedOutput(); first.ProcessState == nil || first.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("the first run was not killed: %v: %s", err, text)
	}
	if text, err := h.Command(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("the second run: %w: %s", err, text)
	}
	var got []string
	for len(got) < len(want) {
		r, err := primary.Poll(ctx, map[string]any{"max": 100, "wait_seconds": 10})
		if err != nil {
			return err
		}
		if len(r.Messages) == 0 {
			break
		}
		for _, one := range r.Messages {
			got = append(got, one.Content)
		}
	}
	more, err := primary.Poll(ctx, map[string]any{})
	if err != nil {
		return err
	}
	for _, one := range more.Messages {
		got = append(got, one.Content)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		return fmt.Errorf("the main gets %d replies, want %d, each once and in order: %q", len(got), len(want), got)
	}
	if n := strings.Count(h.Log(), "reject"); n > 0 {
		return fmt.Errorf("the gateway refused %d letters", n)
	}
	return nil
}

// fill makes a queue of the old daemon: some replies have an id, and many say
// the same.
func fill(ctx context.Context, uri, queue string) (want []string, err error) {
	conn, err := amqp.DialConfig(uri, amqp.Config{Heartbeat: 5 * time.Second})
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
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	for i := range oldMail {
		m := amqp.Publishing{DeliveryMode: 2, Body: []byte("done")}
		if i%3 == 0 {
			m.Body = fmt.Appendf(nil, "%s %d", queue, i)
		}
		if i%2 == 0 {
			m.MessageId = uuid.NewString()
		}
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, m)
		if err != nil {
			return nil, err
		}
		if ok, err := confirm.WaitContext(ctx); !ok || err != nil {
			return nil, fmt.Errorf("an old reply was not stored: %w", err)
		}
		want = append(want, string(m.Body))
	}
	return want, nil
}
