package agent

import (
	"io"
	"time"
)

// Options says how an agent behaves from the start. The control socket changes
// most of it later.
type Options struct {
	Kind       string // claude, codex or opencode
	Cols, Rows int    // of the terminal; zero: 80x24
	Brain      Brain  // gets every prompt; nil: turns end after a moment
	Log        io.Writer
	Bytes      io.Writer // gets every byte that the terminal gave, before it is read; nil: nobody
	Control    string    // path of the control socket; empty: none

	// Raw puts the terminal into raw mode; it is called when the program gets
	// that far. Nil: the terminal is raw already.
	Raw func() error

	SlowStart time.Duration // nothing is drawn this long (agent-facts §7)
	Trust     bool          // trust dialog at the start
	Login     bool          // not logged in: looks idle and loses every prompt (claude); a dialog (codex)
	Draft     string        // what a person has left in the composer

	SwallowEnter       int           // so many Enters have no effect
	SwallowJoinedEnter bool          // Enter that comes in one piece with a paste has none (agent-facts §4)
	EnterDelay         time.Duration // Enter takes effect this much later
	LateDraw           time.Duration // every change is drawn this much later
	DialogAfterPaste   string        // this dialog opens right after the next paste
	ExitAfterPaste     bool          // the program ends right after the next paste
	NoBracketedPaste   bool          // bracketed paste stays off

	Now func() time.Time // nil: time.Now
}
