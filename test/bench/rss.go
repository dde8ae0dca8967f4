package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/inbox"
	"fleetd/mcp"
	"fleetd/mcp/api"
	"fleetd/store"
)

const (
	manyReplies = 100_000
	fewReplies  = 1000
	restFor     = 2 * time.Second // from the full window to the look at the memory
	rssRounds   = 3
)

// heldRSS is the resident memory of a daemon with 100 000 replies queued for
// its one main, against one with 1000: once on the broker, sent by another
// host, once as local mail in the store. Every round starts the daemon anew.
func heldRSS(ctx context.Context, h *host) error {
	binary, err := h.build(ctx)
	if err != nil {
		return err
	}
	return errors.Join(h.remoteRSS(ctx, binary), h.localRSS(ctx, binary))
}

// queued is one daemon whose main has n replies.
type queued struct {
	home
	n int
}

func (h *host) printRSS(ctx context.Context, name, note, binary string, few, many queued, env ...string) error {
	ofFiles := map[int][]float64{}
	look := func(q queued) func() (float64, error) {
		return func() (float64, error) {
			resident, files, err := q.look(ctx, binary, env...)
			ofFiles[q.n] = append(ofFiles[q.n], files)
			return resident, err
		}
	}
	o, b, err := h.sides(rssRounds, look(few), look(many))
	if err == nil {
		note += fmt.Sprintf("; pages of files in it: ours %.1f, base %.1f", median(ofFiles[many.n]), median(ofFiles[few.n]))
		line{name: name, unit: "MiB", ours: o, base: b, bars: []bar{oursBelow(80, "MiB"), ratioAtMost(1.3)}, note: note}.print()
	}
	return err
}

// look starts the daemon, waits until it holds what it takes, and reads its
// memory.
func (q queued) look(ctx context.Context, binary string, env ...string) (resident, ofFiles float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	d, _, err := q.start(ctx, binary, env...)
	if err != nil {
		return 0, 0, err
	}
	defer d.stop()
	client := &api.Client{Socket: q.socket(), As: "reader"}
	err = untilEvery(ctx, 50*time.Millisecond, func() error {
		me, err := client.Whoami(ctx)
		if err == nil && me.Held < q.n {
			err = fmt.Errorf("%d replies, %d are there", q.n, me.Held)
		}
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%w; the daemon's log: %s", err, d.log.String())
	}
	select {
	case <-time.After(restFor):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	return d.memory()
}

// remoteRSS queues the replies on the broker, through a gateway that runs here,
// so that the home of their sender is known.
func (h *host) remoteRSS(ctx context.Context, binary string) error {
	uri, err := h.broker(ctx)
	if err != nil {
		return err
	}
	const prefix, host = "rss.", "sender"
	all, err := newKeys(host)
	if err != nil {
		return err
	}
	few, err := h.trusting(fewReplies, host, all)
	if err != nil {
		return err
	}
	many, err := h.trusting(manyReplies, host, all)
	if err != nil {
		return err
	}
	dir := filepath.Join(h.dir, "rss")
	sender, err := startGateway(ctx, setting{
		host: host, dir: dir, broker: uri, prefix: prefix, herdr: filepath.Join(dir, "none"), keys: all, trip: &trip{},
	})
	if err != nil {
		return err
	}
	defer sender.close()
	worker, _, _, err := sender.inbox.Register(ctx, inbox.Registration{Name: "worker", Kind: store.Worker})
	if err != nil {
		return err
	}
	env := []string{"BRIDGED_BROKER_URI=" + uri, "BRIDGED_BROKER_PREFIX=" + prefix}
	for _, q := range []queued{few, many} {
		if err := q.fill(ctx, binary, sender, worker.GID, env); err != nil {
			return err
		}
	}
	return h.printRSS(ctx, "held_100k_rss", "queued on the broker", binary, few, many, env...)
}

// trusting makes the daemon of n replies; it and sender trust each other.
func (h *host) trusting(n int, sender string, all map[string]ed25519.PrivateKey) (queued, error) {
	o, err := h.newHome(fmt.Sprintf("held%d", n))
	if err != nil {
		return queued{}, err
	}
	if all[o.host], err = o.key(); err != nil {
		return queued{}, err
	}
	return queued{o, n}, o.trust(sender, all[sender])
}

// fill registers the main and publishes its replies while the daemon runs.
func (q queued) fill(ctx context.Context, binary string, sender *gateway, from string, env []string) error {
	d, _, err := q.start(ctx, binary, env...)
	if err != nil {
		return err
	}
	defer d.stop()
	r, err := (&api.Client{Socket: q.socket()}).Register(ctx, mcp.RegisterArgs{Name: "reader", Kind: store.Main})
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	tickets := make(chan struct{}, q.n)
	for range q.n {
		tickets <- struct{}{}
	}
	close(tickets)
	if err := d.ready(ctx); err != nil { // the new inbox is attached
		return err
	}
	var all sync.WaitGroup
	for range mailInFlight {
		all.Go(func() {
			for range tickets {
				if err := sender.reply(ctx, from, r.GID); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// reply publishes one reply without an intent.
func (g *gateway) reply(ctx context.Context, from, to string) error {
	now := time.Now()
	env := &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Reply, MsgID: newID(), TraceID: newTrace(), From: from, To: to, Signer: g.host,
		InReplyTo: newID(), TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.Life(envelope.Reply, 0)).UnixMilli(), Body: body,
	}
	if err := env.Sign(g.key); err != nil {
		return err
	}
	out, err := g.fabric.Publish(ctx, envelope.LaneMail, env, nil)
	if err == nil && out != fabric.Confirmed {
		err = fmt.Errorf("a reply was %s", out)
	}
	return err
}

// localRSS has the replies in the store: they came from workers of this host.
func (h *host) localRSS(ctx context.Context, binary string) error {
	var both [2]queued
	for i, n := range []int{fewReplies, manyReplies} {
		o, err := h.newHome(fmt.Sprintf("local%d", n))
		if err != nil {
			return err
		}
		both[i] = queued{o, n}
		if err := o.store(ctx, func(st *store.Store) error { return fillHeld(ctx, st, n) }); err != nil {
			return err
		}
	}
	return h.printRSS(ctx, "held_100k_rss_local", "local mail, in the store", binary, both[0], both[1])
}

// fillHeld makes a main with n local replies.
func fillHeld(ctx context.Context, st *store.Store, n int) error {
	const perTx = 1000
	now := time.Now()
	gid, worker := newID(), newID()
	for done := 0; done < n; done += perTx {
		err := st.Write(ctx, func(tx *store.Tx) error {
			err := tx.PutEntity(store.Entity{GID: gid, Kind: store.Main, Name: "reader", State: store.EntityLive, CreatedAt: now.UnixMilli()})
			for range perTx {
				if err != nil {
					return err
				}
				err = tx.PutHeld(store.Held{
					GID: gid, MsgID: newID(), TraceID: newTrace(), Kind: string(envelope.Reply), From: worker, FromHost: "local",
					InReplyTo: newID(), TS: now.UnixMilli(), ExpiresAt: now.Add(envelope.MaxLife).UnixMilli(), At: now.UnixMilli(),
					Local: true, Size: len(body), Cost: len(body) + 400, BodyHash: envelope.Hash(body), Body: body,
				})
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
