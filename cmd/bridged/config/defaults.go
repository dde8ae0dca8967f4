package config

import (
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"fleetd/fabric/envelope"
)

// Defaults returns what holds where nothing is said. Three more depend on the
// machine: host is the short hostname made to fit, socket is bridged.sock in
// data_dir, herdr.socket is where herdr itself looks (herdr reference §1.1).
func Defaults() Config {
	return Config{
		Listen:   "127.0.0.1:8765",          // loopback only
		DataDir:  "~/.local/state/bridged",  // made with mode 0700
		TrustDir: "~/.config/bridged/trust", // read at start
		Broker:   Broker{Heartbeat: 5 * time.Second},
		Limits: Limits{
			ContentBytes: 256 << 10,        // bytes of one message
			MaxTTL:       envelope.MaxLife, // life of one message; no queue keeps it longer
			PerPair:      300,              // a minute
		},
		Inject: Inject{PasteBytes: 4 << 10}, // bytes of one paste
		Log:    Log{Level: "info"},
	}
}

// defaultReadyTimeout is how long a spawned agent may take until it accepts
// input, where its profile says nothing (design §11).
const defaultReadyTimeout = 60 * time.Second

// defaultFile is read when no other file is named; it alone may be missing.
const defaultFile = "~/.config/bridged/bridged.yaml"

var notHostID = regexp.MustCompile(`[^a-z0-9]+`)

// hostID makes the short hostname fit design §1; "" if nothing of it is left.
func hostID(hostname string) string {
	short, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	short = strings.Trim(notHostID.ReplaceAllString(short, "-"), "-")
	if len(short) > 63 {
		short = strings.TrimRight(short[:63], "-")
	}
	return short
}

var herdrSession = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// herdrSocket follows herdr's own rules (herdr reference §1.1), so that the
// daemon meets the herdr that a person started in the same environment.
func herdrSocket(env map[string]string) string {
	if path := env["HERDR_SOCKET_PATH"]; path != "" {
		return path
	}
	dir := filepath.Join(tempDir(env), "herdr")
	if xdg, set := env["XDG_CONFIG_HOME"]; set {
		dir = filepath.Join(xdg, "herdr") // set and empty: relative, as herdr does
	} else if home := env["HOME"]; home != "" {
		dir = filepath.Join(home, ".config", "herdr")
	}
	name := env["HERDR_SESSION"]
	if name == "default" || name == "." || name == ".." || !herdrSession.MatchString(name) {
		return filepath.Join(dir, "herdr.sock")
	}
	return filepath.Join(dir, "sessions", name, "herdr.sock")
}

func tempDir(env map[string]string) string {
	if dir := env["TMPDIR"]; dir != "" {
		return dir
	}
	return "/tmp"
}
