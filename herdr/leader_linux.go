package herdr

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// leader names the process that leads a terminal's session, for which herdr
// opened the terminal: its number, when it started, and in which boot and which
// namespace of process numbers, since a number is given out again. "" if no such
// process is there to be seen.
func leader(pid int) string {
	started, err := leaderStart(pid)
	if err != nil {
		return ""
	}
	boot, space := numbering()
	if boot == "" || space == "" {
		return ""
	}
	return strings.Join([]string{strconv.Itoa(pid), started, boot, space}, " ")
}

// numbering says of which boot and namespace the process numbers in /proc are;
// "" if that is not to be seen.
func numbering() (boot, space string) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", ""
	}
	space, err = os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", ""
	}
	return strings.TrimSpace(string(id)), space
}

// leaderKnown reports whether it can be seen here if the process that leader
// named ends.
func leaderKnown(name string) bool {
	f := strings.Fields(name)
	boot, space := numbering()
	return len(f) == 4 && boot != "" && f[2] == boot && f[3] == space
}

// leaderEnded reports whether a process that leader named has ended for sure.
// One that another namespace numbered, or an earlier version named without its
// namespace, is not to be seen here, whether it lives or not.
func leaderEnded(name string) bool {
	f := strings.Fields(name)
	if boot, _ := numbering(); len(f) > 2 && boot != "" && f[2] != boot {
		return true // with the boot all has ended
	}
	if !leaderKnown(name) {
		return false
	}
	pid, err := strconv.Atoi(f[0])
	if err != nil {
		return false
	}
	started, err := leaderStart(pid)
	if err != nil {
		return errors.Is(err, errNoLeader)
	}
	return started != f[1]
}

var errNoLeader = errors.New("no process of that number leads a session on a terminal")

// leaderStart is when the process started, in ticks since the boot. One that
// leads no session on a terminal is not what herdr meant: the two may not see
// the same process numbers.
func leaderStart(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoLeader
	}
	if err != nil {
		return "", err
	}
	// After the name, which may hold anything: state, parent, group, session,
	// terminal, and 14 further on the start (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", errors.New("/proc/" + strconv.Itoa(pid) + "/stat is cut off")
	}
	state, session, terminal, started := fields[0], fields[3], fields[4], fields[19]
	if state == "Z" || state == "X" || session != strconv.Itoa(pid) || terminal == "0" {
		return "", errNoLeader
	}
	return started, nil
}
