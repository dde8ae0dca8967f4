// Package audit is the record of who asked this host, or was asked by it, to
// start, stop or tell something: one line of JSON per act, in a file that is
// rotated (design §13).
//
// It knows no bodies, and what it is told comes from verified messages alone.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"fleetd/fault"
)

// The bounds of the log: 6 MiB in all, some 20 000 acts.
const (
	fileBytes = 1 << 20
	keepFiles = 5 // older ones, .1 the youngest
)

// What changed nothing fills the log only so fast for each host, verb and
// outcome, else it could push out what was done. The rest is counted.
const (
	gatheredBurst = 20
	gatheredEvery = time.Minute // one more
	gatheredMost  = 1024        // that are told apart
)

// Refused is the outcome of what was not done.
const Refused = "refused"

// done reports whether an outcome is of something that happened to an agent.
// Each such act is written.
func done(outcome string) bool {
	return outcome == "begun" || outcome == "spawned" || outcome == "stopped"
}

// Act is one step of a control verb. Empty fields are left out.
type Act struct {
	Time    time.Time `json:"time"`
	Verb    string    `json:"verb"`              // spawn, stop, trace or send
	Who     string    `json:"who,omitempty"`     // gid of the asker, or its gateway's address
	From    string    `json:"from,omitempty"`    // host that asks
	Host    string    `json:"host,omitempty"`    // host that is asked
	Profile string    `json:"profile,omitempty"` // of a spawn
	GID     string    `json:"gid,omitempty"`     // of whom it is about
	Outcome string    `json:"outcome"`           // asked, begun, spawned, stopped, told, refused or failed
	Code    string    `json:"code,omitempty"`    // the error code
	TraceID string    `json:"trace,omitempty"`
	Unsaid  int       `json:"unsaid,omitempty"` // acts of this host, verb and outcome before this one that were not written
}

// Log appends acts to a file. All methods may be called from any goroutine.
type Log struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	file *os.File
	size int64
	acts map[[3]string]*gathered // by verb, outcome and host
}

type gathered struct {
	limit  *rate.Limiter
	unsaid int
}

// Open opens the log at path, mode 0600. One that others can read or write is
// refused, and so is what is no file.
func Open(path string, now func() time.Time) (*Log, error) {
	l := &Log{path: path, now: now, acts: map[[3]string]*gathered{}}
	return l, l.open()
}

func (l *Log) open() error {
	info, err := os.Lstat(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return l.fault(err)
	case !info.Mode().IsRegular():
		return fault.New(fault.NotAllowed, "%s is in the way of the audit log and is no file; move it away", l.path)
	case info.Mode().Perm()&0o077 != 0:
		return fault.New(fault.NotAllowed, "other users can read or write the audit log %s (mode %04o); run `chmod 600 %s`", l.path, info.Mode().Perm(), l.path)
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return l.fault(err)
	}
	if info, err = file.Stat(); err != nil {
		return l.fault(errors.Join(err, file.Close()))
	}
	l.file, l.size = file, info.Size()
	return nil
}

func (l *Log) fault(err error) error {
	return fault.Wrap(err, fault.Internal, "cannot write the audit log %s; see the cause", l.path)
}

// Write appends an act and gives it its time. Of what changed nothing it counts
// what comes too fast.
func (l *Log) Write(a Act) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.Time = l.now().UTC()
	if !done(a.Outcome) {
		g := l.gathered(a.Verb, a.Outcome, a.From)
		if !g.limit.AllowN(a.Time, 1) {
			g.unsaid++
			return nil
		}
		a.Unsaid, g.unsaid = g.unsaid, 0
	}
	line, err := json.Marshal(a)
	if err != nil {
		return l.fault(err)
	}
	return l.append(append(line, '\n'))
}

func (l *Log) gathered(verb, outcome, host string) *gathered {
	key := [3]string{verb, outcome, host}
	if len(l.acts) >= gatheredMost && l.acts[key] == nil {
		key = [3]string{} // trusted hosts are not that many
	}
	g := l.acts[key]
	if g == nil {
		g = &gathered{limit: rate.NewLimiter(rate.Every(gatheredEvery), gatheredBurst)}
		l.acts[key] = g
	}
	return g
}

// append writes a line in one piece; l.mu is held. Where the files cannot be
// moved the line is written all the same, and the log outgrows its bound.
func (l *Log) append(line []byte) error {
	if l.file == nil { // it could not be opened again
		if err := l.open(); err != nil {
			return err
		}
	}
	var moved error
	if l.size > 0 && l.size+int64(len(line)) > fileBytes {
		moved = l.rotate()
		if l.file == nil {
			return moved
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil {
		return l.fault(errors.Join(moved, err))
	}
	return moved
}

// rotate moves the file to .1, .1 to .2 and so on; the oldest goes. At the first
// that cannot be moved it stops, so that none is lost. l.file is nil afterwards
// if no file could be opened.
func (l *Log) rotate() error {
	err := l.file.Close()
	l.file = nil
	for i := keepFiles; i >= 1 && err == nil; i-- {
		from := l.path
		if i > 1 {
			from = fmt.Sprintf("%s.%d", l.path, i-1)
		}
		if e := os.Rename(from, fmt.Sprintf("%s.%d", l.path, i)); !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	if err != nil {
		err = fault.Wrap(err, fault.Internal, "cannot rotate the audit log %s, which grows past its bound; see the cause", l.path)
	}
	return errors.Join(err, l.open())
}

// Close ends the log. Later acts open it again.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// Path is where the log of a data_dir is.
func Path(dataDir string) string { return filepath.Join(dataDir, "audit.log") }
