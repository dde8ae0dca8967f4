package doctor

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"fleetd/fabric/keys"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/mcp/api"
	"fleetd/store"
)

const (
	// daemonWait bounds the daemon's look at itself.
	daemonWait = (mcp.DiagnoseSeconds + 10) * time.Second
	// portWait bounds one request to the port, and one to herdr or the broker.
	portWait = 10 * time.Second
)

// daemon asks the daemon how it stands; false if none can tell.
func (p Patient) daemon(ctx context.Context, r *report) (mcp.Diagnosis, bool) {
	ctx, cancel := context.WithTimeout(ctx, daemonWait)
	defer cancel()
	d, err := p.Daemon.Diagnose(ctx)
	switch {
	case errors.Is(err, api.ErrNotRunning):
		if held := store.InUse(p.Config.DataDir); held != nil {
			r.fault("daemon", held)
			r.add(Fail, "daemon", "no daemon answers at "+p.Config.Socket, "it runs with another socket, or is just starting or ending: give this command its --config")
			return d, false
		}
		r.add(Fail, "daemon", "no daemon runs: nobody answers at "+p.Config.Socket, "start it: bridged (if it ends at once, its last line says why); if it runs, give this command its --config")
		return d, false
	case fault.Is(err, fault.BadRequest):
		r.add(Fail, "daemon", "a daemon runs that cannot be asked how it stands: it is older than this program, "+p.Version, "restart it")
		return d, false
	case err != nil:
		f := fault.From(err)
		r.add(Fail, "daemon", f.Sentence, "see its log; if it hangs, restart it")
		return d, false
	}
	p.same(r, d)
	if d.Store != "" {
		what, next, _ := strings.Cut(d.Store, "; ")
		r.add(Fail, "daemon", what, next)
	}
	return d, true
}

// same compares what the daemon runs with to what this command was given.
func (p Patient) same(r *report, d mcp.Diagnosis) {
	r.add(OK, "daemon", fmt.Sprintf("the daemon runs, version %s, as host %s", d.Version, d.Host), "")
	if d.Version != p.Version {
		r.add(Warn, "daemon", fmt.Sprintf("the daemon is of version %s, this program of %s", d.Version, p.Version), "restart the daemon")
	}
	if d.Host != p.Config.Host {
		r.add(Warn, "daemon", fmt.Sprintf("the daemon serves host %s, to which its data_dir belongs, and the configuration comes to %s", d.Host, p.Config.Host), "set host: "+d.Host+"; until then `bridged keys show` names a host of which the others hear nothing")
	}
	if key, err := keys.Load(p.Config.KeyPath()); err == nil && d.Key != "" { // what else may be wrong with the file was said
		if file := keys.Fingerprint(key.Public().(ed25519.PublicKey)); file != d.Key {
			r.add(Warn, "daemon", fmt.Sprintf("the daemon signs with the key %s, and %s holds %s (after `bridged keys rotate --apply`)", d.Key, p.Config.KeyPath(), file),
				"once the other hosts trust the new one beside the old one, restart the daemon")
		}
	}
	if d.Config != p.Config.File {
		file := func(name string) string {
			if name == "" {
				return "no file"
			}
			return name
		}
		r.add(Warn, "daemon", fmt.Sprintf("the daemon read its configuration from %s, this command from %s", file(d.Config), file(p.Config.File)), "give both the same --config, or restart the daemon")
	}
}

// port says who has the daemon's port while the daemon does not run.
func (p Patient) port(ctx context.Context, r *report) {
	alive, err := healthz(ctx, "http://"+p.Config.Listen)
	switch {
	case alive:
		r.add(Fail, "port", fmt.Sprintf("a bridged with another socket has %s", p.Config.Listen), "stop that one, or set another listen (the MCP lines change too)")
	case errors.Is(err, syscall.ECONNREFUSED):
		r.add(OK, "port", p.Config.Listen+" is free for it", "")
	default:
		_, port, _ := net.SplitHostPort(p.Config.Listen) // was checked when it was read
		r.add(Fail, "port", fmt.Sprintf("another program, or the old daemon, has %s", p.Config.Listen),
			fmt.Sprintf("find it (ss -ltnp 'sport = :%s') and stop it, or set another listen (the MCP lines change too)", port))
	}
}

// direct is for this machine's own port: no proxy has to do with it.
var direct = &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}, Timeout: portWait}

// healthz reports whether a bridged answers at base.
func healthz(ctx context.Context, base string) (bool, error) {
	var said struct{ Status string }
	status, err := ask(ctx, http.MethodGet, base+"/healthz", "", &said)
	return err == nil && status == http.StatusOK && said.Status == "alive", err
}

func ask(ctx context.Context, method, url, body string, out any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Authorization", "Bearer "+nobody)
	}
	res, err := direct.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return res.StatusCode, json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(out)
}

// nobody is a token that no entity has. Without any a client may be taken for
// the default main, and would need a session to get an answer.
const nobody = "doctor"

// endpoint asks the MCP endpoint as a client does whose token is not known: it
// is told so.
func (p Patient) endpoint(ctx context.Context, r *report, url string) {
	var said struct {
		JSONRPC string `json:"jsonrpc"`
	}
	status, err := ask(ctx, http.MethodPost, url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, &said)
	if err != nil || said.JSONRPC != "2.0" {
		why := fmt.Sprintf("status %d", status)
		if err != nil {
			why = err.Error()
		}
		r.add(Fail, "mcp", fmt.Sprintf("MCP clients get no answer at %s (%s)", url, why), "restart the daemon; see its log")
		return
	}
	r.add(OK, "mcp", "MCP clients are answered at "+url, "`bridged register NAME --kind main` prints the lines that add one")
}

// token asks who the token of this environment is.
func (p Patient) token(ctx context.Context, r *report) {
	if p.Bearer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, portWait)
	defer cancel()
	switch who, err := p.Bearer(ctx); {
	case fault.Is(err, fault.NotAuthenticated):
		r.add(Fail, "mcp", "BRIDGED_TOKEN of this environment is not known to the daemon", "`bridged register NAME --kind KIND --new-token` gives a new one")
	case err != nil:
		r.fault("mcp", err)
	default:
		r.add(OK, "mcp", fmt.Sprintf("BRIDGED_TOKEN of this environment is that of %s@%s", who.Name, who.Host), "")
	}
}
