package herdrsim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is what /proc says about one process.
type process struct {
	pid, pgrp, session int
	name               string
	argv               []string
	cwd                string
}

// readProcess fails when the process is gone.
func readProcess(pid int) (process, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return process{}, false
	}
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open {
		return process{}, false
	}
	p := process{pid: pid, name: string(stat[open+1 : end])}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 4 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, false
	}
	p.pgrp, _ = strconv.Atoi(fields[2])
	p.session, _ = strconv.Atoi(fields[3])
	if cmdline, err := os.ReadFile(dir + "/cmdline"); err == nil && len(cmdline) > 0 {
		p.argv = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	}
	p.cwd, _ = os.Readlink(dir + "/cwd")
	return p, true
}

// processes returns all processes that match.
func processes(match func(process) bool) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok && match(p) {
			out = append(out, p)
		}
	}
	return out
}

// foreground returns the process group that holds the terminal, 0 if none.
func (t *terminal) foreground() int {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return 0
	}
	group := 0
	_ = conn.Control(func(fd uintptr) { group, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	return group
}

// foregroundProcesses lists the group that holds the terminal; the leader
// alone if it lives and all is false, which spares a walk through /proc.
func (t *terminal) foregroundProcesses(all bool) (group int, list []process) {
	group = t.foreground()
	if group <= 0 {
		return 0, nil
	}
	if leader, ok := readProcess(group); ok && !all {
		return group, []process{leader}
	}
	return group, processes(func(p process) bool { return p.pgrp == group })
}

// kinds are the agents herdr knows by process name (reference §4).
var kinds = strings.Fields("pi claude codex gemini cursor devin agy cline omp mastracode opencode copilot kimi kiro droid amp grok hermes kilo qodercli maki")

func (v Version) knows(kind string) bool {
	return slices.Contains(kinds, kind) || v == V082 && kind == "qwen"
}

// executable is the program herdr starts for a kind.
func executable(kind string) string {
	switch kind {
	case "cursor":
		return "cursor-agent"
	case "kiro":
		return "kiro-cli"
	}
	return kind
}

// kindOf says which agent a process is: HERDR_AGENT of its environment, its
// name, or its argv (a script run by an interpreter included).
func (v Version) kindOf(p process) string {
	if env, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/environ"); err == nil {
		if kind := lookEnv(strings.Split(string(env), "\x00"), "HERDR_AGENT"); v.knows(kind) {
			return kind
		}
	}
	words := []string{p.name}
	for i, w := range p.argv {
		if i < 2 {
			words = append(words, strings.TrimSuffix(filepath.Base(w), ".js"))
		}
	}
	for _, w := range words {
		for _, kind := range append([]string{"qwen"}, kinds...) {
			if (w == kind || w == executable(kind)) && v.knows(kind) {
				return kind
			}
		}
	}
	return ""
}

// endSession ends every process of the session that leader began: HUP, TERM,
// KILL, step apart, and waits until they are gone.
func endSession(leader int, step time.Duration) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGKILL} {
		members := processes(func(p process) bool { return p.session == leader })
		if len(members) == 0 {
			return
		}
		for _, p := range members {
			_ = syscall.Kill(p.pid, sig)
			_ = syscall.Kill(p.pid, syscall.SIGCONT) // a stopped one would not hear it
		}
		for end := time.Now().Add(step); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			if !slices.ContainsFunc(members, func(p process) bool { _, lives := readProcess(p.pid); return lives }) {
				break
			}
		}
	}
}

// lookEnv returns the last value of name in env.
func lookEnv(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// lookPath finds the program of an argv in the PATH of the new process; a name
// with a slash is relative to its directory (reference §5.3).
func lookPath(name, dir string, env []string) (string, error) {
	usable := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if usable(name) {
			return name, nil
		}
		return "", fmt.Errorf("%s cannot be executed", name)
	}
	for _, d := range filepath.SplitList(lookEnv(env, "PATH")) {
		if path := filepath.Join(d, name); usable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH", name)
}
