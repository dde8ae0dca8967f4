package herdrsim

import (
	"bytes"
	"time"
)

const bracketedPaste = 2004

// framed wraps text as a paste if the program has bracketed paste on at this
// instant. Nothing is cleaned: that is the caller's job (reference §5.5).
func (t *terminal) framed(text string) []byte {
	if text == "" {
		return nil
	}
	if !t.modeOn(bracketedPaste) {
		return []byte(text)
	}
	return []byte("\x1b[200~" + text + "\x1b[201~")
}

// put queues one write to a pane and applies the pane's faults to it.
func (c *core) put(p *pane, method string, b []byte) error {
	f := &p.fault
	if f.queueFull > 0 {
		f.queueFull--
		return errQueueFull
	}
	enter := bytes.Equal(b, []byte("\r"))
	if enter && f.swallowEnter > 0 {
		f.swallowEnter--
		return p.term.put(method, b, true)
	}
	if enter && f.lateEnter > 0 {
		term, late := p.term, f.lateEnter
		f.lateEnter = 0
		c.later(late, func() { _ = term.put(method, b, false) })
		return nil
	}
	if err := p.term.put(method, b, false); err != nil {
		return err
	}
	if hook := f.afterText; hook != nil && !enter {
		f.afterText = nil
		c.srv.tasks.Go(hook) // not in the loop: the hook may use the API
	}
	return nil
}

// inputPane is a pane whose terminal can be written to.
func (c *core) inputPane(id string) (*pane, error) {
	p, err := c.paneOrAlias(id)
	if err != nil {
		return nil, err
	}
	if p.term == nil {
		return nil, refuse("pane_not_found", "pane %s has no terminal", id)
	}
	return p, nil
}

type sendTextParams struct {
	PaneID string `json:"pane_id" need:"required"`
	Text   string `json:"text" need:"required"`
}

func (c *core) sendText(q *sendTextParams) (any, error) {
	p, err := c.inputPane(q.PaneID)
	if err != nil {
		return nil, err
	}
	if err := c.put(p, "pane.send_text", []byte(q.Text)); err != nil {
		return nil, refuse("pane_send_failed", "%v", err)
	}
	return typed("ok"), nil
}

type sendKeysParams struct {
	PaneID string   `json:"pane_id" need:"required"`
	Keys   []string `json:"keys" need:"required"`
}

func (c *core) sendKeys(q *sendKeysParams) (any, error) {
	p, err := c.inputPane(q.PaneID)
	if err != nil {
		return nil, err
	}
	keys, err := encodeKeys(q.Keys)
	if err != nil {
		return nil, err
	}
	for _, k := range keys { // one write per key
		if err := c.put(p, "pane.send_keys", k); err != nil {
			return nil, refuse("pane_send_failed", "%v", err)
		}
	}
	return typed("ok"), nil
}

type sendInputParams struct {
	PaneID string   `json:"pane_id" need:"required"`
	Text   string   `json:"text"`
	Keys   []string `json:"keys"`
}

func (c *core) sendInput(q *sendInputParams) (any, error) {
	p, err := c.inputPane(q.PaneID)
	if err != nil {
		return nil, err
	}
	keys, err := encodeKeys(q.Keys)
	if err != nil {
		return nil, err
	}
	all := append(p.term.framed(q.Text), bytes.Join(keys, nil)...)
	if len(all) == 0 {
		return typed("ok"), nil
	}
	if err := c.put(p, "pane.send_input", all); err != nil { // one write for all
		return nil, refuse("pane_send_failed", "%v", err)
	}
	return typed("ok"), nil
}

type agentKeysParams struct {
	Target string   `json:"target" need:"required"`
	Keys   []string `json:"keys" need:"required"`
}

func (c *core) agentSendKeys(q *agentKeysParams) (any, error) {
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	if !c.holdsForeground(p) {
		return nil, refuse("agent_not_ready", "agent %s is not the foreground process", q.Target)
	}
	keys, err := encodeKeys(q.Keys)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return typed("ok"), nil
	}
	if err := c.put(p, "agent.send_keys", bytes.Join(keys, nil)); err != nil {
		return nil, refuse("agent_send_keys_failed", "%v", err)
	}
	return typed("ok"), nil
}

type promptParams struct {
	Target string    `json:"target" need:"required"`
	Text   string    `json:"text" need:"required"`
	Wait   *waitSpec `json:"wait"`
}

// prompt does agent.prompt without its wait: the checks in herdr's order, the
// text, and Enter from a timer whatever happened to the pane by then.
func (c *core) prompt(q *promptParams) (*pane, error) {
	if q.Text == "" {
		return nil, refuse("empty_agent_prompt", "agent prompt text is empty")
	}
	p, err := c.target(q.Target)
	if err != nil {
		return nil, err
	}
	switch {
	case c.opts.Version == V082 && p.agent.raw == blocked:
		return nil, refuse("agent_blocked", "agent %s is blocked", q.Target)
	case !c.opts.Version.knows(p.agent.kind), p.name.pending:
		return nil, refuse("agent_not_ready", "agent %s is not ready for a prompt", q.Target)
	case p.term == nil:
		return nil, refuse("agent_not_found", "agent %s has no terminal", q.Target)
	case !c.holdsForeground(p):
		return nil, refuse("agent_not_ready", "agent %s is not the foreground process", q.Target)
	}
	if c.opts.Version == V082 && p.agent.kind == "copilot" {
		_ = c.put(p, "agent.prompt", []byte("\x1b[I"))
	}
	if err := c.put(p, "agent.prompt", p.term.framed(q.Text)); err != nil {
		return nil, refuse("agent_prompt_failed", "%v", err)
	}
	term := p.term
	c.later(c.opts.Timing.PromptEnter, func() {
		if p.term == term {
			_ = c.put(p, "agent.prompt", []byte("\r"))
		}
	})
	return p, nil
}

// paneFaults are the faults scripted for one pane.
type paneFaults struct {
	swallowEnter int
	lateEnter    time.Duration
	queueFull    int
	afterText    func()
	forced       status
	flap         time.Duration
	flapped      time.Time
	blind        bool
}
