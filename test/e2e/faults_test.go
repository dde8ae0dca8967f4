package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"fleetd/fault"
	"fleetd/test/faultproxy"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// troubled is two hosts on a broker of their own; hosta's way to it goes
// through a proxy and has a login of its own.
type troubled struct {
	node  *rabbit.Node
	proxy *faultproxy.Proxy
	f     *fleet.Fleet
	a, b  *fleet.Host
	lead  *fleet.Main // on hosta, with near beside it and far on hostb
}

const password = "hunter2-sesame"

func newTroubled(t *testing.T, ctx context.Context) *troubled {
	t.Helper()
	s := &troubled{node: rabbit.Private(t)}
	address := strings.TrimSuffix(strings.TrimPrefix(s.node.URI, "amqp://guest:guest@"), "/")
	var err error
	if s.proxy, err = faultproxy.Start(address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.proxy.Close() })
	s.login(t, ctx)
	f := newFleet(t, s.node.URI)
	s.f = f
	s.a = addHost(t, ctx, f, "hosta", "BRIDGED_BROKER_URI=amqp://hosta:"+password+"@"+s.proxy.Addr()+"/")
	s.b = addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	addWorker(t, ctx, s.a, "near", "--reply-with", "near answer")
	addWorker(t, ctx, s.b, "far", "--reply-with", "far answer")
	s.lead = addMain(t, ctx, s.a, "lead")
	return s
}

func (s *troubled) ctl(t *testing.T, ctx context.Context, args ...string) {
	t.Helper()
	if out, err := s.node.Ctl(ctx, args...); err != nil {
		t.Fatal(out, err)
	}
}

// login makes hosta's, which a broker that forgot everything lacks too.
func (s *troubled) login(t *testing.T, ctx context.Context) {
	t.Helper()
	s.ctl(t, ctx, "add_user", "hosta", password)
	s.ctl(t, ctx, "set_permissions", "hosta", ".*", ".*", ".*")
}

// readyz is what hosta says of itself.
func readyz(h *fleet.Host) (status int, text string, err error) {
	res, err := http.Get("http://" + h.Addr + "/readyz")
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// visible waits until hosta says everywhere that it has no broker, and why.
func (s *troubled) visible(t *testing.T, ctx context.Context, state, why string) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := s.lead.Roster(ctx)
		if err == nil && (r.Broker != state || !strings.Contains(r.Reason, why)) {
			err = fmt.Errorf("the roster says the broker is %s because of %q", r.Broker, r.Reason)
		}
		if err == nil && state == "connecting" {
			for _, h := range r.Hosts {
				if h.Host == "hostb" && h.State != "unknown" {
					err = fmt.Errorf("hostb is %s", h.State)
				}
			}
		}
		return err
	})
	if status, text, err := readyz(s.a); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(text, "broker "+state) {
		t.Errorf("readyz: %d %s %v", status, text, err)
	}
	res, err := http.Get("http://" + s.a.Addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", res.Status) // a supervisor would restart it for nothing
	}
	if n := metric(t, s.a, "bridged_connected", ""); n != 0 {
		t.Errorf("bridged_connected is %v", n)
	}
	eventually(t, ctx, func() error {
		if !strings.Contains(s.a.Log(), "state="+state) {
			return errors.New("no line of the log says so")
		}
		return nil
	})
}

// local demands that mail between agents of hosta does not notice.
func (s *troubled) local(t *testing.T, ctx context.Context) {
	t.Helper()
	r, err := s.lead.Send(ctx, map[string]any{"to": "near@hosta", "content": "still there?", "wait_seconds": longest})
	if err != nil || r.State != "replied" || r.Reply.Content != "near answer" {
		t.Fatalf("the local brief came to %+v, %v", r, err)
	}
}

// healed waits until all is as before: both hosts ready, a brief to far is
// answered, and there is not one connection more than two a gateway.
func (s *troubled) healed(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, h := range []*fleet.Host{s.a, s.b} {
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	seen(t, ctx, s.lead, "far@hostb")
	eventually(t, ctx, func() error { // hostb may be about to notice that its link broke too
		r, err := s.lead.Send(ctx, map[string]any{"to": "far@hostb", "content": "back?", "wait_seconds": longest})
		if err == nil && (r.State != "replied" || r.Reply.Content != "far answer") {
			t.Fatalf("the remote brief came to %+v", r)
		}
		return err
	})
	eventually(t, ctx, func() error {
		out, err := s.node.Ctl(ctx, "list_connections", "name", "client_properties")
		if n := strings.Count(out, `"bridged host`); err == nil && n != 4 {
			err = fmt.Errorf("%d connections:\n%s", n, out)
		}
		return err
	})
	if n := metric(t, s.a, "bridged_connected", ""); n != 1 {
		t.Errorf("bridged_connected is %v", n)
	}
}

// §14: broker down or unreachable; broker blocks publishers; broker killed.
// Whatever happens to the link, the daemon says so, serves its own host, fails
// what needs the broker at once and without a word about the other side, and is
// as before when it is over. Fails when a fault is not shown, is felt by local
// mail, needs a restart, or leaves connections behind.
func TestLinkFaultsAreShownAndOutlived(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*bound)
	defer cancel()
	s := newTroubled(t, ctx)
	t.Cleanup(s.node.Thaw)
	s.healed(t, ctx)
	for _, c := range []struct {
		name, state, why string
		strike, heal     func(ctx context.Context)
	}{
		{"cut", "connecting", "connect to", func(context.Context) { s.proxy.Set(faultproxy.Down); s.proxy.Cut() }, func(context.Context) { s.proxy.Set(faultproxy.Pass) }},
		{"silent", "connecting", "", func(context.Context) { s.proxy.Set(faultproxy.Stall) }, func(context.Context) { s.proxy.Reset(); s.proxy.Set(faultproxy.Pass) }},
		{"frozen", "connecting", "", func(context.Context) { s.node.Freeze() }, func(context.Context) { s.node.Thaw() }},
		{"memory", "blocked", "memory", func(ctx context.Context) { s.ctl(t, ctx, "set_vm_memory_high_watermark", "0.00001") }, func(ctx context.Context) { s.ctl(t, ctx, "set_vm_memory_high_watermark", "0.4") }},
		{"disk", "blocked", "disk", func(ctx context.Context) { s.ctl(t, ctx, "set_disk_free_limit", "900GB") }, func(ctx context.Context) { s.ctl(t, ctx, "set_disk_free_limit", "1MB") }},
		{"credentials", "connecting", "username or password", func(ctx context.Context) {
			s.ctl(t, ctx, "change_password", "hosta", "another")
			s.ctl(t, ctx, "close_all_user_connections", "hosta", "the password was changed")
		}, func(ctx context.Context) { s.ctl(t, ctx, "change_password", "hosta", password) }},
		{"killed", "connecting", "connect to", func(ctx context.Context) {
			if err := s.node.Sync(ctx); err != nil {
				t.Error(err)
			}
			s.node.Kill()
		}, func(ctx context.Context) {
			if err := s.node.Restart(ctx); err != nil {
				t.Error(err)
			}
		}},
		{"forgetful", "connecting", "connect to", func(context.Context) { s.node.Down() }, func(ctx context.Context) {
			if err := s.node.RestartEmpty(ctx); err != nil {
				t.Error(err)
				return
			}
			s.login(t, ctx)
		}},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, 2*bound) // a broker starts anew in some
			defer cancel()
			c.strike(ctx)
			s.visible(t, ctx, c.state, c.why)
			s.local(t, ctx)
			_, err := s.lead.Send(ctx, map[string]any{"to": "far@hostb", "content": "and you?", "wait_seconds": longest})
			said(t, err, fault.BrokerDown, "nothing was sent")
			c.heal(ctx)
			s.healed(t, ctx)
		}) {
			return
		}
	}
	t.Run("the password stays hidden", func(t *testing.T) {
		t.Attr("threat", "B7")
		s.hidden(t, ctx)
	})
}

// processes are the arguments of process pid, and those of all that it started.
func processes(t *testing.T, pid int) (args string, children []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		status, err2 := os.ReadFile(filepath.Join(dir, "status"))
		switch {
		case errors.Join(err, err2) != nil: // it has ended
		case filepath.Base(dir) == strconv.Itoa(pid):
			args = string(line)
		case strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", pid)):
			children = append(children, string(line))
		}
	}
	return args, children
}

// hidden fails the test if hosta's password is to be seen after all that: in its
// log, on its pages, in what its commands print, or in a file of its own; or in
// the arguments of the daemon or in a process that the daemon started.
func (s *troubled) hidden(t *testing.T, ctx context.Context) {
	t.Helper()
	shown := map[string]string{"the log": s.a.Log()}
	for _, page := range []string{"/readyz", "/healthz", "/metrics"} {
		res, err := http.Get("http://" + s.a.Addr + page)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		shown[page] = string(text)
	}
	for _, args := range [][]string{{"doctor"}, {"roster"}, {"migrate"}, {"serve", "--broker-uri", "amqp://u:" + password + "@h/"}} {
		out, errs, _ := bridged(ctx, s.a, args...) // some have to fail
		shown["bridged "+args[0]] = out + errs
	}
	home := filepath.Join(s.f.Dir, s.a.Name)
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		shown[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var holder struct{ PID int }
	if err := json.Unmarshal([]byte(shown[filepath.Join(home, "data", "bridged.db.holder")]), &holder); err != nil || holder.PID == 0 {
		t.Fatalf("the daemon's id: %v", err)
	}
	if runtime.GOOS == "linux" { // as ps reads it
		args, children := processes(t, holder.PID)
		if shown["the arguments"] = args; len(children) > 0 {
			t.Errorf("the daemon, whose environment has the password, started %q", children)
		}
	}
	for where, text := range shown {
		if text == "" && !strings.HasPrefix(where, home) {
			t.Errorf("%s is empty", where)
		}
		if strings.Contains(text, password) {
			t.Errorf("the password is in %s: %.300q", where, text)
		}
	}
}
