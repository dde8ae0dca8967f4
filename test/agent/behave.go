package agent

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// input takes what one read of the terminal gave.
func (p *program) input(b []byte) {
	tokens := p.parser.feed(b)
	if !p.ready && p.opts.SlowStart > 0 {
		switch p.kind.name {
		case "opencode": // lost
			return
		case "claude": // the Enter is lost, the text is not
			tokens = slices.DeleteFunc(tokens, func(t token) bool { return t.key == "enter" || t.key == "newline" })
		}
	}
	p.handle(tokens)
	if len(p.parser.buf) > 0 && !p.parser.pasting {
		p.after(30*time.Millisecond, func() { p.handle(p.parser.flush()) })
	}
}

func (p *program) handle(tokens []token) {
	for i, t := range tokens {
		if p.exiting {
			return
		}
		switch t.kind {
		case pasteToken:
			p.paste(t.text)
		case textToken:
			p.log.Add(Event{Event: "text", Text: t.text})
			p.typed(t.text)
		case keyToken:
			// In one read with unframed text before it, codex takes Enter for
			// part of a paste (agent-facts §3).
			burst := i > 0 && tokens[i-1].kind == textToken && p.kind.name == "codex"
			p.key(t, burst)
		}
	}
	if len(tokens) > 0 {
		p.redraw()
	}
}

func (p *program) typed(s string) {
	if d := p.dialog(); d != nil {
		if len(s) == 1 && s >= "1" && s <= "9" {
			p.answer(s)
		}
		return
	}
	p.composer.typed(s)
}

// paste vanishes in a dialog, else goes into the composer as the kind changes
// it.
func (p *program) paste(s string) {
	e := Event{Event: "paste", Text: s}
	if p.dialog() != nil {
		e.Dropped = true
		p.log.Add(e)
		return
	}
	if p.composer.paste(p.kind, p.kind.pasted(s)) {
		e.Marker = p.composer.parts[len(p.composer.parts)-1].marker
	}
	p.log.Add(e)
	if p.opts.DialogAfterPaste != "" {
		name := p.opts.DialogAfterPaste
		p.opts.DialogAfterPaste = ""
		p.open(name)
	}
	if p.opts.ExitAfterPaste {
		p.exit(0)
	}
}

func (p *program) dialog() *dialog {
	if len(p.dialogs) == 0 {
		return nil
	}
	return &p.dialogs[len(p.dialogs)-1]
}

func (p *program) key(t token, burst bool) {
	p.log.Add(Event{Event: "key", Key: t.key})
	if t.key != "ctrl+c" {
		p.exitAsked = false
	}
	if p.dialog() != nil {
		switch t.key {
		case "enter":
			p.answer("approved")
		case "esc":
			p.answer("cancelled")
		}
		return
	}
	switch t.key {
	case "enter":
		p.enter(t, burst)
	case "newline":
		p.composer.typed("\n")
	case "tab":
		p.tab()
	case "backspace":
		p.composer.backspace()
	case "ctrl+u":
		p.composer.clear()
	case "ctrl+o":
		if p.kind.name == "claude" {
			p.open("transcript")
		}
	case "esc":
		p.interrupt()
	case "up":
		p.recall()
	case "ctrl+c":
		p.ctrlC()
	}
}

// answer closes the open dialog.
func (p *program) answer(how string) {
	d := *p.dialog()
	if d.view && how != "cancelled" {
		return
	}
	p.dialogs = p.dialogs[:len(p.dialogs)-1]
	p.log.Add(Event{Event: "dialog", Dialog: d.name, Answer: how})
	switch {
	case how == "cancelled" && d.leave:
		p.exit(1)
	case how == "approved" && d.again:
		p.open("again")
	}
}

// enter submits, unless a fault says otherwise.
func (p *program) enter(t token, burst bool) {
	switch {
	case burst:
		p.composer.typed("\n")
	case p.opts.SwallowEnter > 0:
		p.opts.SwallowEnter--
		p.log.Add(Event{Event: "swallowed"})
	case t.joined && p.opts.SwallowJoinedEnter:
		p.log.Add(Event{Event: "swallowed"})
	case p.opts.EnterDelay > 0:
		p.after(p.opts.EnterDelay, func() { p.submit(); p.redraw() })
	default:
		p.submit()
	}
}

// submit is what Enter does to the composer's text.
func (p *program) submit() {
	text := p.kind.submitted(p.composer.text())
	if strings.TrimSpace(text) == "" || p.dialog() != nil {
		return
	}
	switch p.kind.command(text) {
	case "shell":
		p.log.Add(Event{Event: "shell", Text: strings.TrimPrefix(text, "!")})
		p.say("! " + strings.TrimPrefix(text, "!"))
		p.composer.clear()
		return
	case "unknown":
		p.log.Add(Event{Event: "unknown-command", Text: text})
		if p.kind.name == "codex" { // stays, to be joined with the next one
			p.say("Unrecognized command '" + strings.Fields(text)[0] + "'")
			return
		}
		p.say("❯ "+text, "  ⎿  Unknown command: "+strings.Fields(text)[0])
		p.composer.clear()
		return
	}
	p.composer.clear()
	if p.opts.Login {
		p.log.Add(Event{Event: "lost", Text: text})
		p.repeat(text)
		p.say("  ⎿  Not logged in · Please run /login")
		return
	}
	switch {
	case !p.working:
		p.begin(text)
	case p.kind.steers:
		p.steer(text)
	default:
		p.queue = append(p.queue, text)
		p.log.Add(Event{Event: "queued", Text: text})
	}
}

// tab queues in codex while it works.
func (p *program) tab() {
	if !p.kind.steers || !p.working || p.composer.empty() {
		return
	}
	text := p.kind.submitted(p.composer.text())
	p.composer.clear()
	p.queue = append(p.queue, text)
	p.log.Add(Event{Event: "queued", Text: text})
}

var mention = regexp.MustCompile(`@(\S+)`)

// begin starts a turn with these texts: the model has them now.
func (p *program) begin(texts ...string) {
	p.turns++
	for _, text := range texts {
		p.log.Add(Event{Event: "prompt", Text: text, Turn: p.turns})
		if p.kind.name == "claude" {
			for _, m := range mention.FindAllStringSubmatch(text, -1) {
				if _, err := os.Stat(m[1]); err == nil {
					p.log.Add(Event{Event: "attach", Text: m[1], Turn: p.turns})
				}
			}
		}
		p.repeat(text)
	}
	p.think(texts)
}

// think lets the brain work on texts; the turn ends when it is done.
func (p *program) think(texts []string) {
	ctx, cancel := context.WithCancel(context.Background())
	p.working, p.turnBegan, p.turnTexts, p.cancelTurn = true, p.opts.Now(), texts, cancel
	turn, brain := p.turns, p.opts.Brain
	if brain == nil {
		brain = Pause(50 * time.Millisecond)
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		defer cancel()
		var said []string
		for _, text := range texts {
			if ctx.Err() == nil {
				said = append(said, brain.OnPrompt(ctx, text, p.log))
			}
		}
		p.post(func() { p.end(turn, said) })
	}()
}

// end ends a turn; what was queued becomes the next one.
func (p *program) end(turn int, said []string) {
	if turn != p.turns || !p.working || p.manual {
		return
	}
	for _, s := range said {
		if s != "" {
			p.say("● " + s)
		}
	}
	p.finish()
}

func (p *program) finish() {
	p.working, p.manual, p.cancelTurn = false, false, nil
	p.log.Add(Event{Event: "turn-end", Turn: p.turns})
	if p.kind.name == "claude" {
		p.say("✻ Baked for 1s")
	}
	if queued := p.queue; len(queued) > 0 {
		p.queue = nil
		p.begin(queued...)
	}
	p.redraw()
}

// steer breaks off codex's answer and asks again with old and new text.
func (p *program) steer(text string) {
	if p.cancelTurn != nil {
		p.cancelTurn()
	}
	before := p.turnTexts
	p.turns++
	p.manual = false
	p.log.Add(Event{Event: "steered", Turn: p.turns})
	p.log.Add(Event{Event: "prompt", Text: text, Turn: p.turns})
	p.repeat(text)
	p.think(append(append([]string(nil), before...), text))
}

// interrupt is Esc: the turn ends, and what was queued is submitted at once.
func (p *program) interrupt() {
	if !p.working {
		return
	}
	if p.cancelTurn != nil {
		p.cancelTurn()
	}
	p.log.Add(Event{Event: "interrupted", Turn: p.turns})
	p.finish()
}

// recall takes queued text back into claude's composer.
func (p *program) recall() {
	if p.kind.name != "claude" || len(p.queue) == 0 || !p.composer.empty() {
		return
	}
	p.composer.typed(strings.Join(p.queue, "\n"))
	p.queue = nil
}

// ctrlC clears a draft; with an empty composer it ends opencode at once and
// asks in the others.
func (p *program) ctrlC() {
	switch {
	case !p.composer.empty():
		p.composer.clear()
	case p.kind.name == "opencode", p.exitAsked:
		p.exit(0)
	default:
		p.exitAsked = true
	}
}
