package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Event is one line of the event log.
type Event struct {
	At time.Time `json:"at"`
	// Event is one of: start, ready, paste, key, text, queued, prompt (the
	// model has it), shell (a ! line would have been run), unknown-command,
	// attach (a @path was read), lost (not logged in), swallowed (an Enter),
	// dialog (answered), interrupted, steered, turn-end, read, call, ask (a
	// question is put), asked (what it came to), reply, exit.
	Event   string `json:"event"`
	Text    string `json:"text,omitempty"`    // full text of a prompt, paste, draft or answer
	Key     string `json:"key,omitempty"`     // of a key
	Turn    int    `json:"turn,omitempty"`    // prompts of one model request share it
	Dropped bool   `json:"dropped,omitempty"` // a paste that vanished in a dialog
	Marker  string `json:"marker,omitempty"`  // how a long paste is shown
	Dialog  string `json:"dialog,omitempty"`
	Answer  string `json:"answer,omitempty"` // of a dialog: approved, cancelled, or a digit
	Tool    string `json:"tool,omitempty"`
	ID      string `json:"id,omitempty"` // message id
	Error   string `json:"error,omitempty"`
}

// EventLog writes events as JSON lines. The zero value and nil write nothing.
type EventLog struct {
	mu  sync.Mutex
	w   io.Writer
	now func() time.Time
	err error
}

// NewEventLog writes to w.
func NewEventLog(w io.Writer, now func() time.Time) *EventLog {
	if now == nil {
		now = time.Now
	}
	return &EventLog{w: w, now: now}
}

// Add writes one event with the present time. An error stays and is told by
// Err: a test whose log has a hole must not believe it.
func (l *EventLog) Add(e Event) {
	if l == nil || l.w == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.At = l.now()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.w.Write(append(line, '\n'))
	}
	if err != nil && l.err == nil {
		l.err = fmt.Errorf("write the event log: %w", err)
	}
}

// Err is the first error of writing.
func (l *EventLog) Err() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// ReadEvents reads a log; a last line that is still being written is left out.
func ReadEvents(r io.Reader) ([]Event, error) {
	var out []Event
	dec := json.NewDecoder(r)
	for {
		var e Event
		switch err := dec.Decode(&e); {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return out, nil
		case err != nil:
			return out, fmt.Errorf("read the event log: %w", err)
		}
		out = append(out, e)
	}
}
