package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// program is a running agent. Its state belongs to the loop in Run.
type program struct {
	kind   *kind
	opts   Options
	out    io.Writer
	log    *EventLog
	events chan func() // everything that happens, in order
	quit   chan struct{}
	wg     sync.WaitGroup

	// below: the loop's
	parser     parser
	composer   composer
	transcript []string
	queue      []string
	dialogs    []dialog
	ready      bool // the composer is drawn
	working    bool
	manual     bool // a turn that only the control ends
	turns      int
	turnTexts  []string
	cancelTurn context.CancelFunc
	turnBegan  time.Time
	spin       int
	exitAsked  bool // Ctrl+C once
	exiting    bool
	code       int
	drawPlan   bool
	painter    painter
}

// Run runs an agent on a terminal until it exits or ctx ends, and returns its
// exit code.
func Run(ctx context.Context, opts Options, in io.Reader, out io.Writer) (int, error) {
	k, ok := kinds[opts.Kind]
	if !ok {
		return 2, fmt.Errorf("unknown kind %q: it is claude, codex or opencode", opts.Kind)
	}
	if opts.Cols == 0 || opts.Rows == 0 {
		opts.Cols, opts.Rows = 80, 24
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	p := &program{kind: k, opts: opts, out: out, log: NewEventLog(opts.Log, opts.Now), events: make(chan func()), quit: make(chan struct{})}
	p.painter = painter{out: out, cols: opts.Cols, rows: opts.Rows, scrolls: !k.alternate}
	p.log.Add(Event{Event: "start", Text: opts.Kind})
	if opts.Control != "" {
		stop, err := p.listen(opts.Control)
		if err != nil {
			return 2, err
		}
		defer stop()
	}
	go p.read(in) // ends with the program: a terminal read cannot be taken back
	p.startUp()
	p.loop(ctx)
	p.tearDown()
	return p.code, p.log.Err()
}

func (p *program) loop(ctx context.Context) {
	spin := time.NewTicker(120 * time.Millisecond)
	defer spin.Stop()
	for !p.exiting {
		select {
		case f := <-p.events:
			f()
		case <-spin.C:
			if p.working {
				p.spin++
				p.redraw()
			}
		case <-ctx.Done():
			p.exit(0)
		}
	}
}

// post gives f to the loop; false: the program has ended.
func (p *program) post(f func()) bool {
	select {
	case p.events <- f:
		return true
	case <-p.quit:
		return false
	}
}

// after runs f in the loop after d.
func (p *program) after(d time.Duration, f func()) {
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			p.post(f)
		case <-p.quit:
		}
	}()
}

func (p *program) read(in io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			b := append([]byte(nil), buf[:n]...)
			if p.opts.Bytes != nil {
				if _, err := p.opts.Bytes.Write(b); err != nil {
					p.post(func() { p.exit(1) })
					return
				}
			}
			if !p.post(func() { p.input(b) }) {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				p.post(func() { p.exit(1) })
			}
			return
		}
	}
}

// startUp draws the program when its slow start is over. Claude's terminal
// echoes until then and its Enter is lost; opencode loses all that came
// before (agent-facts §7).
func (p *program) startUp() {
	begin := func() {
		if p.opts.Raw != nil {
			if err := p.opts.Raw(); err != nil {
				p.log.Add(Event{Event: "exit", Error: err.Error()})
				p.exit(1)
				return
			}
		}
		_, _ = io.WriteString(p.out, p.modes(true))
		p.composer.typed(p.opts.Draft)
		switch {
		case p.opts.Trust:
			p.open("trust")
		case p.opts.Login && p.kind.name == "codex":
			p.open("login")
		}
		p.early(func() {
			p.ready = true
			p.log.Add(Event{Event: "ready"})
			p.redraw()
		})
	}
	if p.opts.SlowStart > 0 {
		p.after(p.opts.SlowStart, begin)
		return
	}
	begin()
}

// early lets input that came before the first picture arrive first.
func (p *program) early(ready func()) {
	if p.opts.SlowStart == 0 || p.kind.name == "codex" {
		ready()
		return
	}
	p.after(50*time.Millisecond, ready)
}

// open shows a dialog over whatever is there; unknown names show the
// permission dialog of the kind.
func (p *program) open(name string) {
	d, ok := findDialog(p.kind.name, name)
	if !ok {
		d, _ = findDialog(p.kind.name, "")
		d.name = name
	}
	p.dialogs = append(p.dialogs, d)
	p.redraw()
}

// exit ends the loop; what the program leaves is a usable terminal.
func (p *program) exit(code int) {
	if !p.exiting {
		p.exiting, p.code = true, code
		p.log.Add(Event{Event: "exit"})
	}
}

func (p *program) tearDown() {
	if p.cancelTurn != nil {
		p.cancelTurn()
	}
	close(p.quit)
	p.wg.Wait()
	_, _ = io.WriteString(p.out, p.modes(false))
}

// modes switches on or off what the kind switches (agent-facts §2).
func (p *program) modes(on bool) string {
	set := func(n string) string {
		if on {
			return "\x1b[?" + n + "h"
		}
		return "\x1b[?" + n + "l"
	}
	out := ""
	if p.kind.alternate {
		out += set("1049") + set("1000") + set("1002") + set("1003") + set("1006")
	}
	if !p.opts.NoBracketedPaste || !on {
		out += set("2004")
	}
	if p.kind.name != "opencode" {
		out += set("1004")
	}
	if on {
		return out + "\x1b[2J\x1b[H\x1b[?25l"
	}
	return out + "\x1b[?25h\r\n"
}
