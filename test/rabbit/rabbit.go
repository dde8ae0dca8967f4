// Package rabbit runs private RabbitMQ nodes for tests: on loopback, on free
// ports, in a directory of their own, gone when the test binary is gone. The
// packaged service is neither used nor touched (broker facts §1).
//
// Only what starts, breaks and ends a node lives here; what is declared on it
// belongs to the tests.
package rabbit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleetd/test/freeport"
)

// startTimeout bounds one start: 5 s are usual, a busy machine takes more.
const startTimeout = 3 * time.Minute

// Node is one private broker. Its methods are for one goroutine at a time.
type Node struct {
	URI        string // amqp://guest:guest@127.0.0.1:<port>/
	TLSAddr    string // host:port of the TLS listener, with TLS
	Management string // base URL of the management API, with Plugins that hold it
	Dir        string

	port int
	opts options
	epmd *process
	beam *process
}

type options struct {
	config  []string
	plugins []string
	ca      string
	cert    string
	key     string
	insist  bool
}

// Option changes what Start makes.
type Option func(*options)

// Config adds lines to rabbitmq.conf.
func Config(lines ...string) Option {
	return func(o *options) { o.config = append(o.config, lines...) }
}

// Plugins enables plugins; rabbitmq_management gets a port of its own. The
// start takes some seconds more.
func Plugins(names ...string) Option {
	return func(o *options) { o.plugins = append(o.plugins, names...) }
}

// TLS opens a TLS listener with the given PEM files; clients need no
// certificate but one that they show must come from ca.
func TLS(ca, cert, key string) Option {
	return func(o *options) { o.ca, o.cert, o.key = ca, cert, key }
}

// ClientCertificates has the TLS listener refuse clients that show none.
func ClientCertificates() Option {
	return func(o *options) { o.insist = true }
}

// Start runs a new node and returns when it accepts connections.
func Start(ctx context.Context, opts ...Option) (*Node, error) {
	scripts, err := findScripts()
	if err != nil {
		return nil, err
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	var last error
	for range 4 { // another process may take the ports between choice and use
		n, err := startOnce(ctx, scripts, o)
		if err == nil {
			return n, nil
		}
		last = err
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return nil, last
}

func startOnce(ctx context.Context, scripts string, o options) (*Node, error) {
	port, err := freeport.Block(portBlock)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rabbit-")
	if err != nil {
		return nil, fmt.Errorf("make the node's directory: %w", err)
	}
	n := &Node{URI: fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port), Dir: dir, port: port, opts: o}
	if o.cert != "" {
		n.TLSAddr = fmt.Sprintf("127.0.0.1:%d", port+3)
	}
	for _, p := range o.plugins {
		if p == "rabbitmq_management" {
			n.Management = fmt.Sprintf("http://127.0.0.1:%d", port+4)
		}
	}
	if err := n.write(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := n.startEpmd(); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	if err := n.boot(ctx, scripts); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

func (n *Node) write() error {
	conf := []string{
		fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d", n.port),
		"log.file.level = warning",
	}
	if n.Management != "" {
		conf = append(conf, "management.tcp.ip = 127.0.0.1", fmt.Sprintf("management.tcp.port = %d", n.port+4))
	}
	if n.opts.cert != "" {
		conf = append(conf, "listeners.ssl.1 = "+n.TLSAddr,
			"ssl_options.cacertfile = "+n.opts.ca, "ssl_options.certfile = "+n.opts.cert,
			"ssl_options.keyfile = "+n.opts.key, "ssl_options.verify = verify_peer",
			fmt.Sprintf("ssl_options.fail_if_no_peer_cert = %t", n.opts.insist))
	}
	conf = append(conf, n.opts.config...)
	files := map[string]string{
		"rabbitmq.conf":   strings.Join(conf, "\n") + "\n",
		"enabled_plugins": "[" + strings.Join(n.opts.plugins, ",") + "].\n",
		".erlang.cookie":  fmt.Sprintf("secret-%d", n.port),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.Dir, name), []byte(text), 0o400); err != nil {
			return fmt.Errorf("write the node's files: %w", err)
		}
	}
	return nil
}

// env is the whole environment of the node and its tools.
func (n *Node) env() []string {
	d := n.Dir
	return []string{
		"PATH=" + toolPath(), "LANG=C.UTF-8", "HOME=" + d, "detached=1",
		"RABBITMQ_CONF_ENV_FILE=/dev/null", fmt.Sprintf("RABBITMQ_NODENAME=n%d@localhost", n.port),
		"RABBITMQ_MNESIA_BASE=" + d + "/mnesia", "RABBITMQ_LOG_BASE=" + d + "/log",
		"RABBITMQ_CONFIG_FILE=" + d + "/rabbitmq.conf", "RABBITMQ_ENABLED_PLUGINS_FILE=" + d + "/enabled_plugins",
		"RABBITMQ_PID_FILE=" + d + "/pid", fmt.Sprintf("RABBITMQ_DIST_PORT=%d", n.port+1),
		"ERL_EPMD_ADDRESS=127.0.0.1", fmt.Sprintf("ERL_EPMD_PORT=%d", n.port+2),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	}
}

// startEpmd runs the port mapper as our own child. The node would start one
// that outlives it; finding this one, it does not.
func (n *Node) startEpmd() error {
	path, err := findEpmd()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, "-address", "127.0.0.1", "-port", fmt.Sprint(n.port+2))
	cmd.Env, cmd.Dir = n.env(), n.Dir
	if n.epmd, err = start(cmd); err != nil {
		return fmt.Errorf("start epmd: %w", err)
	}
	return n.await(context.Background(), n.epmd, n.port+2, startTimeout)
}

func (n *Node) boot(ctx context.Context, scripts string) error {
	cmd := exec.Command(filepath.Join(scripts, "rabbitmq-server"))
	cmd.Env, cmd.Dir = n.env(), n.Dir
	out, err := os.OpenFile(filepath.Join(n.Dir, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if n.beam, err = start(cmd); err != nil {
		return fmt.Errorf("start rabbitmq-server: %w", err)
	}
	if err := n.await(ctx, n.beam, n.port, startTimeout); err != nil {
		text, _ := os.ReadFile(filepath.Join(n.Dir, "output"))
		return fmt.Errorf("%w; its output ends with: %s", err, tail(string(text), 600))
	}
	return nil
}

// await returns when port accepts a connection, p ends, or the time is up.
func (n *Node) await(ctx context.Context, p *process, port int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return c.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while starting: %v", filepath.Base(p.cmd.Path), p.err)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", filepath.Base(p.cmd.Path), ctx.Err())
		case <-tick.C:
		}
	}
}

// Stop ends the node gracefully and removes everything it left.
func (n *Node) Stop() error {
	n.signal(syscall.SIGCONT)
	n.halt()
	if n.epmd != nil {
		n.epmd.kill()
		n.epmd = nil
	}
	return os.RemoveAll(n.Dir)
}

// halt ends the broker process gracefully, and by force after 20 s.
func (n *Node) halt() {
	if n.beam == nil {
		return
	}
	n.signal(syscall.SIGTERM)
	select {
	case <-n.beam.done:
	case <-time.After(20 * time.Second):
		n.beam.kill()
	}
	n.beam = nil
}

// Kill ends the broker with SIGKILL: a real crash. Restart brings it back.
func (n *Node) Kill() {
	if n.beam != nil {
		n.beam.kill()
		n.beam = nil
	}
}

// Down ends the broker gracefully and keeps its data for Restart.
func (n *Node) Down() { n.halt() }

// Freeze stops the broker in its tracks (SIGSTOP); peers see silence. The signal
// stops its threads one after the other, and on Linux Freeze returns after the
// last: until then the broker confirms what it gets.
func (n *Node) Freeze() {
	n.signal(syscall.SIGSTOP)
	for range 1000 {
		if n.beam == nil || stopped(n.beam.cmd.Process.Pid) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stopped reports whether no thread of a process runs, where that can be told.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	for _, t := range threads {
		text, err := os.ReadFile(t)
		if i := bytes.LastIndexByte(text, ')'); err == nil && i >= 0 && i+2 < len(text) && text[i+2] != 'T' {
			return false
		}
	}
	return true
}

// Thaw lets a frozen broker go on (SIGCONT).
func (n *Node) Thaw() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(s syscall.Signal) {
	if n.beam != nil {
		_ = n.beam.cmd.Process.Signal(s) // it may just have ended
	}
}

// Restart starts the node again on its old data and ports, ending it
// gracefully first if it still runs.
func (n *Node) Restart(ctx context.Context) error {
	n.halt()
	scripts, err := findScripts()
	if err != nil {
		return err
	}
	return n.boot(ctx, scripts)
}

// RestartEmpty ends the broker and starts another on the same ports that has
// nothing of what the first one knew.
func (n *Node) RestartEmpty(ctx context.Context) error {
	n.halt()
	if err := os.RemoveAll(filepath.Join(n.Dir, "mnesia")); err != nil {
		return err
	}
	return n.Restart(ctx)
}

// Sync has the broker write its metadata to disk. Without it a queue or binding
// declared a moment before Kill may be gone after Restart, durable or not.
func (n *Node) Sync(ctx context.Context) error {
	_, err := n.Ctl(ctx, "eval", "mnesia:sync_log().")
	return err
}

// Ctl runs rabbitmqctl on the node and returns what it printed.
func (n *Node) Ctl(ctx context.Context, args ...string) (string, error) {
	scripts, err := findScripts()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(scripts, "rabbitmqctl"), append([]string{"--quiet"}, args...)...)
	cmd.Env, cmd.Dir = n.env(), n.Dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rabbitmqctl %s: %w: %s", args[0], err, tail(string(out), 300))
	}
	return string(out), nil
}

// Tool writes a script rabbitmqctl into dir, which works on the node as the
// operator's own does on his.
func (n *Node) Tool(dir string) error {
	scripts, err := findScripts()
	if err != nil {
		return err
	}
	line := "exec env -i"
	for _, pair := range n.env() {
		line += " '" + pair + "'"
	}
	line += " '" + filepath.Join(scripts, "rabbitmqctl") + "' --quiet \"$@\"\n"
	return os.WriteFile(filepath.Join(dir, "rabbitmqctl"), []byte("#!/bin/sh\n"+line), 0o700)
}

// process is a child that dies with us and that is always waited for.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	once sync.Once
}

// start runs cmd from a thread that lives as long as the child does: the
// kernel sends the parent-death signal when the forking *thread* ends.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer close(p.done)
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

func (p *process) kill() {
	p.once.Do(func() { _ = p.cmd.Process.Kill() }) // it may just have ended
	<-p.done
}

// Pids are the processes of the node: the broker and its port mapper.
func (n *Node) Pids() []int {
	var pids []int
	for _, p := range []*process{n.beam, n.epmd} {
		if p != nil {
			pids = append(pids, p.cmd.Process.Pid)
		}
	}
	return pids
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
