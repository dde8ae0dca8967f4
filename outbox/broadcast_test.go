package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// crew puts aide (here), coder, critic and chief (there) into one group.
func newCrew(t tester) *world {
	w := newWorld(t)
	for _, name := range []string{"aide", "coder", "critic", "chief"} {
		who := w.dir.who[name]
		who.Groups = []string{"crew"}
		w.dir.who[name], w.dir.who[who.GID] = who, who
	}
	return w
}

func (w *world) broadcast(key string) (Spread, error) {
	return w.out.Broadcast(context.Background(), Broadcast{From: boss, Group: "crew", Content: []byte("freeze"), Key: key})
}

// shares lists how a broadcast stands, as "OUTCOME REASON" by name.
func (w *world) shares(s Spread) map[string]string {
	w.t.Helper()
	to, err := w.out.Shares(s)
	must(w.t, err)
	got := map[string]string{}
	for _, one := range to {
		got[one.Name] = string(one.Outcome)
		if one.Reason != "" {
			got[one.Name] += " " + one.Reason
		}
	}
	return got
}

func (w *world) wantShares(s Spread, want map[string]string) {
	w.t.Helper()
	got := w.shares(s)
	for name := range want {
		if got[name] != want[name] || len(got) != len(want) {
			w.t.Fatalf("the shares are %q, want %q", got, want)
		}
	}
}

// of makes the report of one recipient.
func of(gid string, kind envelope.Kind, reason, msgID string) *envelope.Envelope {
	e := report(kind, reason, msgID)
	e.From = gid
	return e
}

func (w *world) hears(gid string, kind envelope.Kind, reason, msgID string) {
	w.t.Helper()
	must(w.t, w.out.Signal(context.Background(), of(gid, kind, reason, msgID)))
}

// Fault: more than one publication, one per member of this host over the
// broker, or a copy for the sender.
func TestABroadcastIsOnePublication(t *testing.T) {
	w := newCrew(t)
	s, err := w.broadcast("")
	must(t, err)
	mail := w.broker.mail()
	if len(mail) != 1 || mail[0].To != "broadcast.crew" || mail[0].Kind != envelope.Broadcast || mail[0].MsgID != s.MsgID {
		t.Fatalf("published: %+v", mail)
	}
	if len(w.local.mail) != 1 || w.local.mail[0].To != aide || w.local.mail[0].MsgID != s.MsgID {
		t.Fatalf("delivered here: %+v", w.local.mail)
	}
	w.local.outcomes[s.MsgID] = "waiting"
	w.wantShares(s, map[string]string{"aide": "", "coder": "", "critic": "", "chief": "queued"})
}

// Fault: the outcome of one recipient taken for that of another, or told to
// nobody.
func TestEachRecipientHasAnOutcomeOfItsOwn(t *testing.T) {
	w := newCrew(t)
	s, err := w.broadcast("")
	must(t, err)
	w.local.outcomes[s.MsgID] = "injected"
	watch := w.out.Watch(s.MsgID)
	w.hears(coder, envelope.Injected, "", s.MsgID)
	watch.Close()
	w.hears(critic, envelope.Deferred, "WORKING", s.MsgID)
	w.wantShares(s, map[string]string{"aide": "injected", "coder": "injected", "critic": "waiting WORKING", "chief": "queued"})
	w.wantNotices(s.MsgID)
	w.hears(critic, envelope.Failed, "PANE_GONE", s.MsgID)
	w.wantShares(s, map[string]string{"aide": "injected", "coder": "injected", "critic": "failed PANE_GONE", "chief": "queued"})
	w.wantNotices(s.MsgID, "FAILED PANE_GONE")
	w.hears(coder, envelope.Abandoned, "PANE_GONE", s.MsgID)
	w.wantNotices(s.MsgID, "FAILED PANE_GONE", "ABANDONED PANE_GONE")
	if host, ok := w.out.RecipientHost(s.MsgID, coder); !ok || host != "hostb" {
		t.Errorf("coder's share went to %q (%v)", host, ok)
	}
}

// Fault: what nobody reports is not asked for at each recipient, or the last
// word is missing after a restart.
func TestASilentRecipientIsAskedAndGetsALastWord(t *testing.T) {
	w := newCrew(t)
	s, err := w.broadcast("")
	must(t, err)
	watch := w.out.Watch(s.MsgID)
	w.hears(coder, envelope.Injected, "", s.MsgID)
	watch.Close()
	w.after(6 * time.Second)
	asked := w.broker.sent(envelope.LaneSignal, envelope.Query)
	if len(asked) != 1 || asked[0].To != critic || asked[0].InReplyTo != s.MsgID {
		t.Fatalf("asked: %+v", asked)
	}
	w.crash()
	w.after(envelope.BriefLife + 2*time.Minute)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
	w.wantShares(s, map[string]string{"aide": "not_sent EXPIRED", "coder": "injected", "critic": "failed IN_DOUBT", "chief": "queued"})
}

// Fault: a link that is down hides that members of this host got it, or the
// same call again goes to them too, or not to those that were missing.
func TestABroadcastWithoutALinkIsCompletedUnderItsKey(t *testing.T) {
	w := newCrew(t)
	w.broker.down = "cut"
	s, err := w.broadcast("k")
	must(t, err)
	wantCode(t, s.Away, fault.BrokerDown)
	w.local.outcomes[s.MsgID] = "injected"
	down := "not_sent BROKER_DOWN"
	w.wantShares(s, map[string]string{"aide": "injected", "coder": down, "critic": down, "chief": down})
	w.reconnect()
	again, err := w.broadcast("k")
	must(t, err)
	if again.MsgID != s.MsgID || again.Away != nil || len(w.broker.mail()) != 1 || len(w.local.mail) != 1 {
		t.Fatalf("the same call again: %+v, %d publications, %d deliveries", again, len(w.broker.mail()), len(w.local.mail))
	}
	w.wantShares(again, map[string]string{"aide": "injected", "coder": "", "critic": "", "chief": "queued"})
	w.crash()
	third, err := w.broadcast("k")
	must(t, err)
	if third.MsgID != s.MsgID || len(w.broker.mail()) != 1 {
		t.Fatalf("a third time: %+v, %d publications", third, len(w.broker.mail()))
	}
	_, err = w.out.Broadcast(context.Background(), Broadcast{From: boss, Group: "crew", Content: []byte("thaw"), Key: "k"})
	wantCode(t, err, fault.Conflict)
}

// Fault: a broadcast whose life is over seems to wait for the same call again,
// which can reach nobody any more.
func TestAnExpiredBroadcastSaysSo(t *testing.T) {
	w := newCrew(t)
	w.broker.down = "cut"
	w.local.err = fault.New(fault.InboxFull, "full")
	_, err := w.broadcast("k")
	must(t, err)
	w.reconnect()
	w.local.err = nil
	w.after(envelope.BriefLife + time.Second)
	again, err := w.broadcast("k")
	must(t, err)
	if len(w.broker.mail())+len(w.local.mail) != 0 {
		t.Fatal("an expired broadcast was sent")
	}
	over := "not_sent EXPIRED"
	w.wantShares(again, map[string]string{"aide": over, "coder": over, "critic": over, "chief": over})
}

// Fault: a member of this host that cannot take it is not told of, or keeps the
// others from getting it.
func TestOneMemberThatFailsIsToldAlone(t *testing.T) {
	w := newCrew(t)
	w.local.err = fault.New(fault.InboxFull, "full")
	s, err := w.broadcast("")
	must(t, err)
	for _, one := range s.To {
		want := ""
		if one.GID == aide {
			want = "in_doubt INBOX_FULL" // the published copy comes here too
		} else if one.GID == chief {
			want = "queued"
		}
		if got := string(one.Outcome); got != want && got+" "+one.Reason != want {
			t.Errorf("%s is %s %s, want %s", one.Name, got, one.Reason, want)
		}
	}
}

// Fault: what the broker says of the one copy is told wrongly of the shares.
func TestTheBrokersWordOnABroadcast(t *testing.T) {
	all := func(o string) map[string]string {
		return map[string]string{"aide": "injected", "coder": o, "critic": o, "chief": o}
	}
	for _, c := range []struct {
		name  string
		reply reply
		full  bool
		want  map[string]string
		away  fault.Code
	}{
		{"refused", reply{out: fabric.Refused}, false, all("not_sent BROKER_REFUSED"), fault.BrokerRefused},
		{"not sent", reply{out: fabric.NotSent, err: errNoLink}, false, all("not_sent BROKER_DOWN"), fault.BrokerDown},
		{"in doubt", reply{late: true}, false, all("in_doubt"), ""},
		{"one of many is full", reply{out: fabric.Nacked}, true, all("failed INBOX_FULL"), ""},
		{"one of many was full", reply{out: fabric.Nacked}, false, map[string]string{"aide": "injected", "coder": "", "critic": "", "chief": "queued"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCrew(t)
			w.broker.full = c.full
			w.broker.script(c.reply)
			s, err := w.broadcast("")
			must(t, err)
			w.local.outcomes[s.MsgID] = "injected"
			if fault.CodeOf(s.Away) != c.away {
				t.Errorf("away: %v, want %s", s.Away, c.away)
			}
			w.wantShares(s, c.want)
			if c.reply.late { // the confirm comes after all
				w.broker.settle(s.MsgID, fabric.Confirmed)
				w.wantShares(s, map[string]string{"aide": "injected", "coder": "", "critic": "", "chief": "queued"})
			}
		})
	}
}

// Fault: a broadcast to nobody, or a wrong one, seems to work.
func TestABroadcastToNobody(t *testing.T) {
	w := newWorld(t)
	_, err := w.broadcast("")
	wantCode(t, err, fault.UnknownRecipient)
	w.dir.stale = true
	_, err = w.broadcast("")
	wantCode(t, err, fault.BrokerDown)
	_, err = w.out.Broadcast(context.Background(), Broadcast{From: boss, Group: "Crew", Content: []byte("x")})
	wantCode(t, err, fault.BadRequest)
	w = newCrew(t)
	w.broker.down = "cut"
	delete(w.dir.who, "aide")
	delete(w.dir.who, aide)
	_, err = w.broadcast("")
	wantCode(t, err, fault.BrokerDown) // nobody got it, so it is an error
	if len(w.broker.mail())+len(w.local.mail) != 0 {
		t.Error("something was sent")
	}
}

// Fault: a broadcast that a crash cut off is published by itself afterwards.
func TestABroadcastIsNotPublishedAgain(t *testing.T) {
	w := newCrew(t)
	w.broker.script(reply{late: true})
	s, err := w.broadcast("")
	must(t, err)
	must(t, w.store.Write(context.Background(), func(tx *store.Tx) error { // as if the crash came before its end was stored
		in, found, err := tx.Intent(s.MsgID)
		if err != nil || !found {
			return errors.Join(err, errors.New("no intent"))
		}
		in.State, in.Outcome, in.EndedAt = store.IntentIntended, "", 0
		return tx.PutIntent(in)
	}))
	w.crash()
	w.reconnect()
	w.after(time.Minute)
	if n := len(w.broker.mail()); n != 1 {
		t.Errorf("%d publications", n)
	}
	if in, _ := w.stored(s.MsgID); in.State != store.IntentEnded {
		t.Errorf("the broadcast is %s", in.State)
	}
	for _, e := range w.broker.sent(envelope.LaneSignal, envelope.Query) {
		if e.To != coder && e.To != critic && e.To != chief {
			t.Errorf("%s was asked, who got nothing", e.To)
		}
	}
}

// Fault: a copy that an earlier run may never have published is said to lie in
// a main's inbox.
func TestACopyThatMayNeverHaveLeftIsInDoubt(t *testing.T) {
	w := newCrew(t)
	s, err := w.broadcast("key")
	must(t, err)
	must(t, w.store.Flush(context.Background()))
	elsewhere := 0
	must(t, w.store.Write(context.Background(), func(tx *store.Tx) error { // as if the crash came before it left
		for _, one := range s.To {
			in, found, err := tx.Intent(shareID(s.MsgID, one.GID))
			if err != nil {
				return err
			}
			if !found {
				continue // it is here
			}
			elsewhere++
			in.State, in.Outcome, in.EndedAt = store.IntentIntended, "", 0
			if err := tx.PutIntent(in); err != nil {
				return err
			}
		}
		return nil
	}))
	w.crash()
	again, err := w.broadcast("key")
	must(t, err)
	doubted := 0
	for _, one := range again.To {
		if one.Outcome == "in_doubt" {
			doubted++
		} else if !one.Local {
			t.Errorf("it is %q at %s", one.Outcome, one.Address())
		}
	}
	if doubted != elsewhere || elsewhere < 3 {
		t.Errorf("%d of %d copies are in doubt", doubted, elsewhere)
	}
}

// Fault: any:GROUP means a busy one before an idle one, one that takes nothing,
// the sender, or the same one again and again.
func TestAnyPicksWhoIsFree(t *testing.T) {
	w := newCrew(t)
	w.dir.doing = map[string]roster.State{aide: "working", coder: "idle", critic: "idle"}
	picks := func() string {
		t.Helper()
		got, err := w.out.pick(boss, "crew")
		must(t, err)
		return got.Name
	}
	if a, b, c := picks(), picks(), picks(); a == b || a == "aide" || b == "aide" || c != a {
		t.Errorf("of two idle ones %s, %s, %s were picked", a, b, c)
	}
	w.dir.doing[critic] = "working"
	w.local.backlog = map[string]int{aide: 2}
	if got := picks(); got != "coder" {
		t.Errorf("%s was picked before an idle one", got)
	}
	w.sent(Request{To: "coder"}) // on its way: as good as working
	w.sent(Request{To: "coder"})
	if got := picks(); got != "critic" {
		t.Errorf("%s was picked before the one with the shortest queue", got)
	}
	w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
	if got := picks(); got != "aide" {
		t.Errorf("%s was picked, whose host is away", got)
	}
	for _, state := range []roster.State{roster.NoPane, roster.PaneChanged, roster.HerdrDown, roster.Contested, roster.Mismatched} {
		w.dir.doing[aide] = state
		_, err := w.out.pick(boss, "crew")
		wantCode(t, err, fault.UnknownRecipient)
	}
	_, err := w.out.pick(aide, "nosuch")
	wantCode(t, err, fault.UnknownRecipient)
}

// Fault: a repeated call under its key means another member than the first.
func TestAnyUnderAKeyMeansTheSameMember(t *testing.T) {
	w := newCrew(t)
	w.dir.doing = map[string]roster.State{coder: "idle", critic: "idle"}
	delete(w.dir.who, "aide")
	delete(w.dir.who, aide)
	first := w.sent(Request{To: "any:crew", Key: "k"})
	again := w.sent(Request{To: "any:crew", Key: "k"})
	if again.MsgID != first.MsgID || again.To.GID != first.To.GID || !again.Repeated {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if got, err := w.out.pick(boss, "crew"); err != nil || got.GID == first.To.GID {
		t.Errorf("the repeated call counts as a turn of the other one: %s is next (%v)", got.Name, err)
	}
	_, err := w.send(Request{To: "coder", Key: "k"})
	wantCode(t, err, fault.Conflict)
}

// Fault: mail for a main whose host is away dies there, and who broadcast it,
// and was told that it is queued, never hears of it; or he is bothered although
// it was fetched, or lies where its host will tell.
func TestABroadcastToAMainThatIsAwayHasALastWord(t *testing.T) {
	back := func(w *world) {
		w.dir.host(func(h *roster.HostView) { h.State = roster.Online })
		w.turn()
	}
	answer := func(w *world, kind envelope.Kind, reason, id string) {
		e := of(chief, kind, reason, id)
		e.To = envelope.GatewayAddress("hosta")
		must(t, w.out.Signal(t.Context(), e))
	}
	for name, c := range map[string]struct {
		happens func(*world, string)
		want    []string
	}{
		"never back":      {func(*world, string) {}, []string{"FAILED IN_DOUBT"}},
		"back and has it": {func(w *world, id string) { back(w); answer(w, envelope.Deferred, "QUEUED", id) }, nil},
		"has it until it expires": {func(w *world, id string) {
			back(w)
			answer(w, envelope.Deferred, "QUEUED", id)
			w.after(20 * time.Minute)
			must(t, w.out.Outcome(t.Context(), of(chief, envelope.Failed, "EXPIRED", id)))
		}, []string{"FAILED EXPIRED"}},
		"fetched": {func(w *world, id string) { back(w); answer(w, envelope.Injected, "", id) }, nil},
		"back too late": {func(w *world, id string) {
			w.after(15*time.Minute + lastGrace - 2*time.Second)
			back(w)
			w.after(2 * time.Second)
			answer(w, envelope.Deferred, "UNSEEN", id)
		}, []string{"FAILED EXPIRED"}},
		"back after the last word": {func(w *world, id string) {
			w.after(time.Hour)
			back(w)
			answer(w, envelope.Deferred, "UNSEEN", id)
		}, []string{"FAILED IN_DOUBT", "FAILED EXPIRED"}},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, crash %v", name, crash), func(t *testing.T) {
				w := newCrew(t)
				for _, gone := range []string{"aide", "coder", "critic"} {
					delete(w.dir.who, w.dir.who[gone].GID)
				}
				w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
				w.turn()
				s, err := w.broadcast("")
				must(t, err)
				w.wantShares(s, map[string]string{"chief": "queued"})
				if crash {
					w.crash()
					w.reconnect()
					w.wantShares(s, map[string]string{"chief": "queued"})
				}
				w.after(10 * time.Second)
				c.happens(w, s.MsgID)
				w.after(time.Hour)
				w.wantNotices(s.MsgID, c.want...)
			})
		}
	}
}

// Fault: a member of this host whose copy the store refused called not sent,
// although the one for the others was published, comes back to it too, and goes
// in beside the one that its sender sent again.
func TestAMemberHereMayGetThePublishedCopy(t *testing.T) {
	full := fault.New(fault.StoreUnavailable, "disk full")
	for name, c := range map[string]struct {
		word reply
		err  error
		want string
	}{
		"published":                  {reply{out: fabric.Confirmed}, full, "in_doubt STORE_UNAVAILABLE"},
		"published, perhaps":         {reply{out: fabric.InDoubt}, full, "in_doubt STORE_UNAVAILABLE"},
		"published, one inbox full":  {reply{out: fabric.Nacked}, full, "in_doubt STORE_UNAVAILABLE"},
		"not published":              {reply{err: errNoLink}, full, "not_sent STORE_UNAVAILABLE"},
		"published, but it is gone":  {reply{out: fabric.Confirmed}, fault.New(fault.PaneGone, "gone"), "not_sent PANE_GONE"},
		"published, with a full box": {reply{out: fabric.Confirmed}, fault.New(fault.InboxFull, "full"), "in_doubt INBOX_FULL"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCrew(t)
			w.broker.script(c.word)
			w.local.err = c.err
			s, err := w.broadcast("key")
			must(t, err)
			for range 2 { // what is asked later is answered alike
				if got := w.shares(s)["aide"]; got != c.want {
					t.Errorf("aide is %q, want %q", got, c.want)
				}
			}
			if c.word.err != nil {
				return
			}
			if s, err = w.broadcast("key"); err != nil || w.shares(s)["aide"] != c.want {
				t.Errorf("under its key again: %q (%v), want %q", w.shares(s)["aide"], err, c.want)
			}
			w.local.outcomes[s.MsgID] = "injected" // the broker's copy
			if got := w.shares(s)["aide"]; got != "injected" {
				t.Errorf("then aide is %q", got)
			}
		})
	}
}

// Fault: a share read while the report that ends it is committed.
func TestALeaseAndAReportOfOneShareMeet(t *testing.T) {
	w := newCrew(t)
	w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
	var reports sync.WaitGroup
	w.broker.answer = func(p publication) reply {
		if p.lane == envelope.LaneMail {
			for _, who := range []string{coder, critic, chief} {
				reports.Go(func() { w.hears(who, envelope.Failed, "NOT_ALLOWED", p.env.MsgID) })
			}
		}
		return reply{out: fabric.Confirmed}
	}
	w.running()
	for range 20 {
		if _, err := w.broadcast(""); err != nil {
			t.Fatal(err)
		}
		reports.Wait()
	}
}
