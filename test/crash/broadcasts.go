package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/crash/history"
)

// crew is a group of workers and mains of both hosts.
const crew = "crew"

// member is one of the crew; worker is nil of a main.
type member struct {
	address string
	worker  *worker
}

// enlist makes the crew.
func (w *world) enlist(ctx context.Context) error {
	w.crew = []member{{w.mains[1].name, nil}, {w.peer.name, nil}}
	for _, one := range []*worker{w.a.workers[0], w.b.workers[0], w.b.workers[1]} {
		w.crew = append(w.crew, member{one.address, one})
	}
	for _, m := range w.crew {
		for _, s := range []*site{w.a, w.b} {
			name, here := strings.CutSuffix(m.address, "@"+s.host.Name)
			if !here {
				continue
			}
			if _, err := s.host.API("").Groups(ctx, mcp.GroupsArgs{Name: name, Add: []string{crew}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// broadcast has main 0 send one message to the crew in the background.
func (w *world) broadcast(ctx context.Context, k kase, one wish) {
	w.tokens++
	token := fmt.Sprintf("tok%04dx%05d", k.n, w.tokens)
	one.retries = one.retries || w.ask
	c := w.mains[0]
	var all []*sending
	for _, m := range w.crew {
		s := &sending{
			Send: history.Send{Case: k.n, Token: token, From: c.name, To: m.address, Worker: m.worker != nil, Cast: true},
			gid:  c.main.GID, target: m.worker, life: ordinaryLife, began: time.Now(), running: true, expected: m.worker != nil,
		}
		all = append(all, s)
		c.rec.add(s)
	}
	w.sends.Go(func() { c.broadcast(ctx, token, all, one) })
}

// broadcast sends one message to the crew; all has the part of each.
func (c *client) broadcast(ctx context.Context, token string, all []*sending, w wish) {
	defer func() {
		for _, s := range all {
			c.rec.over(s)
		}
	}()
	ses := c.session()
	defer ses.drop()
	for again := true; again && ctx.Err() == nil && time.Since(all[0].began) < sendFor; {
		if err := ses.connect(ctx); err != nil {
			pause(ctx, againAfter)
			continue
		}
		call := history.Call{Began: time.Now()}
		r, err := ses.main.Broadcast(ctx, map[string]any{
			"group": crew, "content": "please look at " + token, "wait_seconds": w.wait,
			"expires_in_seconds": int(ordinaryLife.Seconds()), "idempotency_key": token,
		})
		call.Ended = time.Now()
		again = false
		for _, s := range all {
			one := call
			c.toldOf(s, &one, r, err)
			again = again || one.Broken() || slices.Contains(unreached, fault.Code(one.Code)) && !one.Report
		}
		if _, failed := errors.AsType[*fault.Error](err); err != nil && !failed {
			ses.drop()
		}
		if again = again && w.retries; again {
			pause(ctx, againAfter)
		}
	}
}

// unreached are the codes of members that a repeated call may reach.
var unreached = []fault.Code{fault.BrokerDown, fault.HostOffline, fault.UnknownRecipient, notSent}

// notSent stands for a member that nothing was sent to, without a reason.
const notSent = "NOT_SENT"

// toldOf writes down what a broadcast came to at one of its members.
func (c *client) toldOf(s *sending, call *history.Call, r mcp.BroadcastResult, err error) {
	if err != nil {
		c.told(s, call, mcp.SendResult{}, err)
		return
	}
	c.rec.named(s, r.MsgID)
	i := slices.IndexFunc(r.Recipients, func(one mcp.Recipient) bool { return one.To == s.To })
	if i < 0 { // the gateway did not know it then
		call.Code = string(fault.UnknownRecipient)
		c.rec.call(s, *call)
		return
	}
	one := r.Recipients[i]
	call.Text = one.State + " " + one.Reason
	switch one.State {
	case mcp.StateInDoubt:
		call.Code = string(fault.InDoubt)
	case mcp.StateUnconfirmed:
		call.Code = string(fault.Unconfirmed)
	case mcp.StateNotSent:
		call.Code, call.NotSent = cmp.Or(one.Reason, notSent), true
	case mcp.StateFailed:
		call.Code, call.Report = one.Reason, true
	default:
		call.State = one.State
	}
	c.rec.call(s, *call)
}
