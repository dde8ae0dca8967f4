package main

import (
	"cmp"
	"slices"
	"strings"

	"fleetd/test/agent"
	"fleetd/test/crash/history"
	"fleetd/test/fleet"
)

// worker is one agent in its pane, and the person who looks after it.
type worker struct {
	*fleet.Worker
	address string // name@host
	keyed   bool   // it answers with idempotency keys
}

// answers is what the model behind a worker did with one brief.
type answers []agent.Event

// answered lists the answers to the brief that holds token.
func (w *worker) answered(token string) answers {
	if w == nil {
		return nil
	}
	events, err := w.Events()
	if err != nil {
		return nil // it has not begun
	}
	return slices.DeleteFunc(events, func(e agent.Event) bool { return e.Event != "reply" || !strings.Contains(e.Text, token) })
}

// refused reports whether the last answer was: then none will come.
func (a answers) refused() bool {
	return len(a) > 0 && a[len(a)-1].Error != "" && !strings.HasPrefix(a[len(a)-1].Error, "IN_DOUBT")
}

// tidy leaves the pane as a person would who has looked at it: no dialog, no
// text that was never submitted.
func (w *worker) tidy() error {
	if _, err := w.Screen(); err != nil {
		return nil // its pane was closed: nothing of it is left
	}
	s, err := w.State()
	if err != nil {
		return err
	}
	if s.Dialog != "" {
		if err := w.Control("close-dialog"); err != nil {
			return err
		}
	}
	if s.Composer != "" {
		return w.Control("clear")
	}
	return nil
}

// pasted lists the texts that were written to the pane.
func (w *worker) pasted() ([]history.Paste, error) {
	writes, err := w.Host.Herdr.Input(w.Pane)
	var all []history.Paste
	for _, one := range writes {
		if !one.Dropped {
			all = append(all, history.Paste{At: one.At, Worker: w.address, Text: string(one.Bytes)})
		}
	}
	return all, err
}

// model lists what the model was given, and its answers.
func (w *worker) model() (prompts []history.Prompt, replies []history.Answer, err error) {
	events, err := w.Events()
	for _, e := range events {
		switch e.Event {
		case "prompt":
			prompts = append(prompts, history.Prompt{At: e.At, Worker: w.address, Text: e.Text})
		case "reply":
			replies = append(replies, history.Answer{At: e.At, Worker: w.address, To: e.ID, Keyed: w.keyed, Error: e.Error})
		}
	}
	slices.SortStableFunc(replies, func(a, b history.Answer) int { return cmp.Compare(a.At.UnixNano(), b.At.UnixNano()) })
	return prompts, replies, err
}

// questions lists what the model asked in the middle of its work.
func (w *worker) questions() (all []history.Question, err error) {
	events, err := w.Events()
	for _, e := range events {
		switch e.Event {
		case "ask":
			all = append(all, history.Question{Began: e.At, Worker: w.address, Brief: e.ID})
		case "asked":
			last := &all[len(all)-1] // a model asks one after the other
			last.Ended, last.Answer, last.Error = e.At, e.Text, e.Error
		}
	}
	return all, err
}
