package herdrsim

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

// queueSize is the number of writes a pane's queue holds (reference §5.5).
const queueSize = 1024

// Write is one write to a pane's terminal, as the table of reference §5.5
// counts them.
type Write struct {
	At      time.Time
	Method  string // the API method that made it
	Bytes   []byte
	Dropped bool // a fault swallowed it: answered ok, never given to the program
}

// terminal is the pseudo-terminal behind a pane: the program, the emulator
// that draws what it writes, the queue of what it is to read.
type terminal struct {
	id     string
	cmd    *exec.Cmd
	master *os.File
	queue  chan []byte
	quit   chan struct{} // closed by end
	dead   chan struct{} // closed when the program has ended and its output is drawn
	wg     sync.WaitGroup
	once   sync.Once

	mu     sync.Mutex // guards what is below
	emu    *vt.Emulator
	modes  map[int]bool // DEC private modes the program has on
	osc    oscFilter
	writes []Write
}

// openTerminal starts argv in a new pseudo-terminal. onExit runs on a thread of
// the terminal's own once the program has ended and everything it wrote is on
// the screen.
func openTerminal(id string, argv []string, dir string, env []string, cols, rows int, onExit func()) (*terminal, error) {
	path, err := lookPath(argv[0], dir, env)
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{Path: path, Args: argv, Dir: dir, Env: env}
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
	if err != nil {
		return nil, err
	}
	t := &terminal{
		id: id, cmd: cmd, master: master, emu: vt.NewEmulator(cols, rows), modes: map[int]bool{},
		queue: make(chan []byte, queueSize), quit: make(chan struct{}), dead: make(chan struct{}),
	}
	t.emu.SetCallbacks(vt.Callbacks{
		EnableMode:  func(m ansi.Mode) { t.setMode(m, true) },
		DisableMode: func(m ansi.Mode) { t.setMode(m, false) },
	})
	drawn := make(chan struct{})
	t.wg.Add(4)
	go t.draw(drawn)
	go t.reply()
	go t.feed()
	go t.wait(drawn, onExit)
	return t, nil
}

// setMode runs within emu.Write, so mu is held.
func (t *terminal) setMode(m ansi.Mode, on bool) {
	if dec, ok := m.(ansi.DECMode); ok {
		t.modes[int(dec)] = on
	}
}

func (t *terminal) modeOn(mode int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.modes[mode]
}

// draw gives the program's output to the emulator.
func (t *terminal) draw(drawn chan<- struct{}) {
	defer t.wg.Done()
	defer close(drawn)
	buf := make([]byte, 32<<10)
	for {
		n, err := t.master.Read(buf)
		if n > 0 {
			t.mu.Lock()
			_, _ = t.emu.Write(t.osc.filter(buf[:n])) // fails only when closed, which we never do
			t.mu.Unlock()
		}
		if err != nil { // EIO: nobody has the other side open any more
			return
		}
	}
}

// reply sends what the emulator answers to the program's queries. It never
// waits on the program: a full queue loses the answer.
func (t *terminal) reply() {
	defer t.wg.Done()
	buf := make([]byte, 256)
	for {
		n, err := t.emu.Read(buf)
		if err != nil {
			return
		}
		select {
		case t.queue <- append([]byte(nil), buf[:n]...):
		default:
		}
	}
}

// feed writes the queue to the program, one write per entry.
func (t *terminal) feed() {
	defer t.wg.Done()
	for {
		select {
		case b := <-t.queue:
			if _, err := t.master.Write(b); err != nil {
				return
			}
		case <-t.quit:
			return
		}
	}
}

// wait reaps the program. Output of processes it left behind is not waited
// for longer than a moment.
func (t *terminal) wait(drawn <-chan struct{}, onExit func()) {
	defer t.wg.Done()
	_ = t.cmd.Wait() // the exit status is nobody's business: the pane goes either way
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-drawn:
	case <-timer.C:
	case <-t.quit:
	}
	close(t.dead)
	onExit()
}

var errQueueFull = errors.New("the pane's write queue is full or closed")

// put queues one write and notes it. It does not wait.
func (t *terminal) put(method string, b []byte, dropped bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.dead:
		return errQueueFull
	default:
	}
	if !dropped {
		select {
		case t.queue <- b:
		default:
			return errQueueFull
		}
	}
	t.writes = append(t.writes, Write{At: time.Now(), Method: method, Bytes: b, Dropped: dropped})
	return nil
}

// end ends the program's whole session (HUP, TERM, KILL, step apart) and frees
// the terminal. It may be called again; every call waits.
func (t *terminal) end(step time.Duration) {
	t.once.Do(func() {
		endSession(t.cmd.Process.Pid, step)
		close(t.quit)
		_ = t.master.Close()
		t.mu.Lock()
		if pipe, ok := t.emu.InputPipe().(*io.PipeWriter); ok {
			_ = pipe.Close() // not emu.Close: it races with Read
		}
		t.mu.Unlock()
	})
	t.wg.Wait()
}

// row is one line of cells.
type row = uv.Line

// screenRows copies the screen.
func (t *terminal) screenRows() []row {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rowsLocked()
}

func (t *terminal) rowsLocked() []row {
	rows := make([]row, t.emu.Height())
	for y := range rows {
		rows[y] = make(row, t.emu.Width())
		for x := range rows[y] {
			if cell := t.emu.CellAt(x, y); cell != nil {
				rows[y][x] = *cell
			}
		}
	}
	return rows
}

// history copies the scrollback and the screen, oldest first.
func (t *terminal) history() []row {
	t.mu.Lock()
	defer t.mu.Unlock()
	var rows []row
	if !t.emu.IsAltScreen() {
		for _, l := range t.emu.Scrollback().Lines() {
			rows = append(rows, append(row(nil), l...))
		}
	}
	return append(rows, t.rowsLocked()...)
}

func (t *terminal) windowTitle() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.osc.title
}

func (t *terminal) log() []Write {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Write(nil), t.writes...)
}

// rename gives the terminal a new id; only between two server processes.
func (t *terminal) rename(id string) { t.id = id }
