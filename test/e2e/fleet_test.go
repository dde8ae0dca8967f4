package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleetd/mcp"
	"fleetd/test/fleet"
)

const (
	mains    = 4
	workers  = 8 // each takes a while for a brief
	briefsOf = 200
)

// Two hundred briefs from four mains to eight workers on the other host: each
// is injected once and in order per pair, each is answered, and every answer is
// drained once. Fails when a brief is lost, doubled or overtaken by another of
// its pair, or a reply is lost or shown twice.
func TestTwoHundredBriefs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 6*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	var ws []*fleet.Worker
	for i := range workers {
		ws = append(ws, addWorker(t, ctx, b, fmt.Sprintf("worker-%d", i), "--echo", "--work", "10ms"))
	}
	var ms []*fleet.Main
	for i := range mains {
		ms = append(ms, addMain(t, ctx, a, fmt.Sprintf("main-%d", i)))
	}
	for _, m := range ms {
		for _, w := range ws {
			seen(t, ctx, m, w.Name+"@hostb")
		}
	}

	sent := make([]map[string]string, mains) // of each main: msg id → content
	replies := make([][]mcp.Message, mains)
	traces := make([]string, mains)
	var wg sync.WaitGroup
	errs := make(chan error, mains)
	for i, m := range ms {
		sent[i] = map[string]string{}
		wg.Go(func() {
			errs <- func() error {
				for n := range briefsOf / mains {
					to := ws[n%workers].Name + "@hostb"
					content := fmt.Sprintf("task %03d of %s for %s", n, m.Name, to)
					r, err := m.Send(ctx, map[string]any{"to": to, "content": content})
					if err != nil {
						return fmt.Errorf("send %q: %w", content, err)
					}
					sent[i][r.MsgID], traces[i] = content, r.TraceID
				}
				for len(replies[i]) < briefsOf/mains {
					r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest})
					if err != nil {
						return err
					}
					for _, msg := range r.Messages {
						switch msg.Kind {
						case "REPLY":
							replies[i] = append(replies[i], msg)
						case "INJECTED": // of a brief that had to wait
						default:
							return fmt.Errorf("%s got %+v", m.Name, msg)
						}
					}
				}
				return nil
			}()
		})
	}
	wg.Wait()
	for range ms {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range ms {
		answered := map[string]int{}
		for _, r := range replies[i] {
			answered[r.InReplyTo]++
			if want := sent[i][r.InReplyTo]; want == "" || !strings.Contains(strings.ReplaceAll(r.Content, "＠", "@"), want) || r.Redelivered {
				t.Errorf("%s got %+v for %q", m.Name, r, want)
			}
		}
		for id, content := range sent[i] {
			if answered[id] != 1 {
				t.Errorf("%q of %s was answered %d times", content, m.Name, answered[id])
			}
		}
		rest, err := m.Poll(ctx, map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		for _, msg := range rest.Messages {
			if msg.Kind == "REPLY" {
				t.Errorf("%s got a reply too many: %+v", m.Name, msg)
			}
		}
	}
	for k, w := range ws {
		prompts, err := w.Prompts()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			var got, want []string
			for n := range briefsOf / mains {
				if n%workers == k {
					want = append(want, fmt.Sprintf("task %03d of %s for %s@hostb", n, m.Name, w.Name))
				}
			}
			for _, p := range prompts {
				for line := range strings.SplitSeq(p, "\n") {
					if strings.Contains(line, " of "+m.Name+" for ") {
						got = append(got, strings.ReplaceAll(line, "＠", "@"))
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s was given of %s\n%q\nwant\n%q", w.Name, m.Name, got, want)
			}
		}
	}
	checkTrace(t, ctx, traces[0], a, b)
}

// checkTrace demands every hop of one brief and its answer, on both hosts,
// under one id.
func checkTrace(t *testing.T, ctx context.Context, id string, a, b *fleet.Host) {
	t.Helper()
	for _, side := range []struct {
		host  *fleet.Host
		steps []string
	}{
		{a, []string{"SEND sent", "SEND published", "SEND resolved", "REPLY received", "REPLY drained"}},
		{b, []string{"SEND received", "SEND injecting", "SEND injected", "REPLY sent", "REPLY published"}},
	} {
		eventually(t, ctx, func() error {
			r, err := side.host.API("").Trace(ctx, mcp.TraceArgs{TraceID: id})
			if err != nil {
				return err
			}
			var have []string
			for _, h := range r.Hops {
				if h.Host != side.host.Name {
					return fmt.Errorf("%s shows a step of %s", side.host.Name, h.Host)
				}
				have = append(have, h.Kind+" "+h.Step)
			}
			for _, s := range side.steps {
				if !slices.Contains(have, s) {
					return fmt.Errorf("%s shows %q, not %q", side.host.Name, have, s)
				}
			}
			return nil
		})
	}
}
