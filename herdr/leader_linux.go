package herdr

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// leader names the process that leads a terminal's session, for which herdr
// opened the terminal: its number, when it started and in which boot, since a
// number is given out again. "" if no such process is there to be seen.
func leader(pid int) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	started, err := leaderStart(pid)
	if err != nil {
		return ""
	}
	return strconv.Itoa(pid) + " " + started + " " + strings.TrimSpace(string(boot))
}

// leaderEnded reports whether a process that leader named has ended for sure.
func leaderEnded(name string) bool {
	number, _, _ := strings.Cut(name, " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return false
	}
	if _, err := leaderStart(pid); err != nil {
		return errors.Is(err, errNoLeader)
	}
	now := leader(pid)
	return now != "" && now != name
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
