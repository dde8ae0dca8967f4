package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/mcp"
)

// Fault: a host that does not work ends with the code of one that does, an
// error is printed beside the lines, or a look makes something.
func TestDoctorsExitCode(t *testing.T) {
	w := newWorld(t).env("BRIDGED_HOTS=x")
	w.want(result{code: 1, out: "fail  config: the configuration cannot be used: $BRIDGED_HOTS: there is no such variable; the nearest is BRIDGED_HOST — correct it, then run this again: nothing else was looked at\n"}, "doctor")

	w = newWorld(t)
	w.gw.health = mcp.Diagnosis{Version: "1.2.3", Host: "hosta", URL: "http://127.0.0.1:1/mcp", Broker: "none"}
	r := w.run("doctor", "--json")
	var got examined
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != 1 || r.err != "" || got.Healthy || len(got.Checks) < 6 {
		t.Errorf("%v: %+v", err, r)
	}
	r = w.run("doctor")
	if r.code != 1 || r.err != "" || !strings.Contains(r.out, "\nfail  mcp: MCP clients get no answer at http://127.0.0.1:1/mcp (") {
		t.Errorf("%+v", r)
	}
	for line := range strings.Lines(r.out) {
		if level, _, ok := strings.Cut(line, " "); !ok || level != "ok" && level != "warn" && level != "fail" {
			t.Errorf("a line begins otherwise: %q", line)
		}
	}
	if _, err := os.Stat(filepath.Join(w.home, ".local")); !os.IsNotExist(err) {
		t.Errorf("the look made the data_dir: %v", err)
	}
}
