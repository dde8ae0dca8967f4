package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"fleetd/fabric/keys"
	"fleetd/migrations"
	"fleetd/store"
	"fleetd/test/freeport"
)

// daemon is the real binary as a process of its own.
type daemon struct {
	cmd  *exec.Cmd
	done chan struct{}
	addr string
	log  bytes.Buffer
}

// build makes the daemon's binary once.
func (h *host) build(ctx context.Context) (string, error) {
	path := filepath.Join(h.dir, "bridged")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "fleetd/cmd/bridged")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build bridged: %w\n%s", err, out)
	}
	return path, nil
}

// home is the directory of one daemon.
type home struct{ host, dir string }

func (h *host) newHome(name string) (home, error) {
	one := home{host: name, dir: filepath.Join(h.dir, name)}
	return one, os.Mkdir(one.dir, 0o700)
}

func (o home) data() string   { return filepath.Join(o.dir, "data") }
func (o home) socket() string { return filepath.Join(o.data(), "bridged.sock") }

// key makes the daemon's key before it runs.
func (o home) key() (ed25519.PrivateKey, error) {
	if err := os.Mkdir(o.data(), 0o700); err != nil {
		return nil, err
	}
	key, _, err := keys.LoadOrCreate(filepath.Join(o.data(), "gateway.key"), rand.Reader)
	return key, err
}

// trust lets the daemon believe host.
func (o home) trust(host string, key ed25519.PrivateKey) error {
	file := filepath.Join(o.dir, host+".pub")
	line := keys.PublicLine(host, key.Public().(ed25519.PublicKey))
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		return err
	}
	_, _, err := keys.Add(filepath.Join(o.dir, "trust"), o.host, file, false, time.Now())
	return err
}

// store fills the daemon's store while it does not run.
func (o home) store(ctx context.Context, fill func(*store.Store) error) error {
	st, err := store.Open(ctx, store.Options{Dir: o.data(), Steps: migrations.Steps})
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- st.Run(run) }()
	err = fill(st)
	stop()
	for _, e := range []error{<-ended, st.Close()} {
		if err == nil {
			err = e
		}
	}
	return err
}

// start runs the daemon and returns once it says that it is ready, and how
// long that took from the start of the process.
func (o home) start(ctx context.Context, binary string, env ...string) (*daemon, time.Duration, error) {
	addr, err := freeport.Addr()
	if err != nil {
		return nil, 0, err
	}
	d := &daemon{cmd: exec.Command(binary, "serve"), done: make(chan struct{}), addr: addr}
	d.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + o.dir, "BRIDGED_HOST=" + o.host, "BRIDGED_LISTEN=" + addr,
		"BRIDGED_DATA_DIR=" + o.data(), "BRIDGED_TRUST_DIR=" + filepath.Join(o.dir, "trust"),
		"BRIDGED_HERDR_SOCKET=" + filepath.Join(o.dir, "herdr.sock"), // nobody is there
		"BRIDGED_LOG_LEVEL=warn",
	}, env...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	begin := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, 0, err
	}
	go func() {
		_ = d.cmd.Wait() // an early end shows below
		close(d.done)
	}()
	if err := d.ready(ctx); err != nil {
		d.kill()
		return nil, 0, err
	}
	return d, time.Since(begin), nil
}

func (d *daemon) ready(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	for {
		res, err := client.Get("http://" + d.addr + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-d.done:
			return fmt.Errorf("bridged ended: %s", d.log.String())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// stop ends the daemon in good order, and by force if that takes too long.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(20 * time.Second):
		d.kill()
	}
}

// kill ends the daemon as a crash does.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	<-d.done
}

// memory is what of the daemon is in memory, in MiB, and how much of it are
// pages of files, which the system takes back when it wants them.
func (d *daemon) memory() (resident, ofFiles float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	found := map[string]float64{}
	for line := range bytes.Lines(status) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		if name := string(name); name == "VmRSS" || name == "RssFile" {
			kib, err := strconv.ParseFloat(string(bytes.Fields(rest)[0]), 64)
			if err != nil {
				return 0, 0, err
			}
			found[name] = kib / 1024
		}
	}
	if len(found) != 2 {
		return 0, 0, fmt.Errorf("no VmRSS and RssFile of process %d", d.cmd.Process.Pid)
	}
	return found["VmRSS"], found["RssFile"], nil
}
