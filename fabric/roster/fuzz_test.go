package roster

import (
	"math"
	"strings"
	"testing"

	"fleetd/fabric/envelope"
)

// Fails when a body makes Handle panic, hold more than its bounds, or leave a
// view that no longer adds up.
func FuzzHandle(f *testing.F) {
	f.Attr("threat", "G6")
	for _, body := range []any{
		gatewayBody{stamp: stamp{1, 1}, IntervalMS: 5000, Digest: "x", Serving: true},
		gatewayBody{stamp: stamp{1, 2}, Part: 1, Parts: 1, Entities: []entityBody{bodyOf(1, "a"), bodyOf(1, "b"), {}, bodyOf(2, "B A\x1bD")}},
		gatewayBody{stamp: stamp{2, 1}, IntervalMS: -1, Progress: map[string]int64{gid(1): -5}, Leaving: true},
		announceBody{stamp{1, 3}, entityBody{GID: gid(1), Name: "a", Kind: "worker", Gone: true, Since: -1}},
		solicitBody{stamp{1, 4}, []string{"hosta"}},
	} {
		for _, subject := range []string{envelope.RosterGateway, envelope.RosterSolicit, gid(1)} {
			f.Add(subject, raw("hostb", subject, body).Body)
		}
	}
	f.Add(gid(1), []byte(`{"boot":18446744073709551615,"seq":1e3,"entity":null}`))
	own := bodyOf(7, "mine") // of our own host
	many := make([]entityBody, 300)
	for i := range many {
		many[i] = bodyOf(i%5, strings.Repeat("n", i))
	}
	for _, body := range []gatewayBody{
		{stamp: stamp{1, 1}, Part: 2, Parts: 1}, {stamp: stamp{1, 1}, Part: 1, Parts: 1 << 40}, {stamp: stamp{1, 1}, Part: 1, Parts: 1, Count: -1, Entities: many},
		{stamp: stamp{1, 1}, Part: 1, Parts: 1, Entities: []entityBody{own}}, {stamp: stamp{1, 1}, IntervalMS: math.MaxInt64, Progress: map[string]int64{"": math.MinInt64}},
	} {
		f.Add(envelope.RosterGateway, raw("hostb", envelope.RosterGateway, body).Body)
	}
	f.Add(own.GID, raw("hostb", own.GID, announceBody{stamp{1, 1}, own}).Body)
	f.Add(envelope.RosterSolicit, raw("hostb", envelope.RosterSolicit, solicitBody{stamp{1, 1}, make([]string, maxTargets+1)}).Body)
	f.Add(envelope.RosterGateway, []byte(`{"boot":1,"boot":2,"BOOT":3,"seq":1,"entities":`+strings.Repeat("[", 2000)))
	f.Fuzz(func(t *testing.T, subject string, body []byte) {
		r, err := New(Config{Host: "hosta", Boot: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SetLocal(worker(7, "mine")); err != nil {
			t.Fatal(err)
		}
		e := raw("hostb", subject, nil)
		e.Body = body
		refused := r.Handle(e) != nil
		if state := r.HostState("hostb"); refused && state != Never {
			t.Errorf("a refused message made its host %s", state)
		}
		if again := r.Stats(); r.Handle(e) == nil && !refused && r.Stats().Handled != again.Handled {
			t.Error("the same message was news twice")
		}
		for _, v := range r.Entities(Filter{Gone: true}) {
			if err := v.check(); err != nil || !envelope.ValidName(v.Name) || !envelope.ValidGID(v.GID) {
				t.Errorf("%+v: %v", v, err)
			}
			if home, _ := r.Home(v.GID); home != v.Host {
				t.Errorf("%s is listed on %s and at home on %s", v.GID, v.Host, home)
			}
		}
		if h := r.hosts["hostb"]; h != nil {
			for gid := range h.records {
				if !envelope.ValidGID(gid) {
					t.Errorf("kept under %q", gid)
				}
			}
		}
		if home, _ := r.Home(gid(7)); home != "hosta" {
			t.Errorf("our own moved to %q", home)
		}
	})
}
