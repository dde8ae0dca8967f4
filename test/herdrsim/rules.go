package herdrsim

import (
	"regexp"
	"strings"
)

// rule is one screen rule of a kind; the matching one with the highest
// priority decides (reference §8.3).
type rule struct {
	ID       string `json:"id"`
	Priority int    `json:"priority"`
	Region   string `json:"region"`
	State    status `json:"state"`
	freeze   bool   // freezes the state: a viewer or picker is open
	match    func(screen) (evidence string, ok bool)
}

// verdict is what the rules say about a screen.
type verdict struct {
	state          status
	rule           *rule
	visibleIdle    bool
	visibleBlocker bool
	visibleWorking bool
	skip           bool
	evaluated      []map[string]any
}

// screen is the text that rules look at: the bottom screenful.
type screen []string

func (s screen) has(words ...string) (string, bool) {
	for _, line := range s {
		for _, w := range words {
			if strings.Contains(strings.ToLower(line), strings.ToLower(w)) {
				return strings.TrimSpace(line), true
			}
		}
	}
	return "", false
}

// tail is the last n rows.
func (s screen) tail(n int) screen { return s[max(0, len(s)-n):] }

// box returns the rows between the last two full-width rules, and those below.
func (s screen) box() (inside, below screen) {
	last, first := -1, -1
	for i := len(s) - 1; i >= 0 && first < 0; i-- {
		if len(s[i]) >= 3*10 && strings.Trim(s[i], "─") == "" {
			if last < 0 {
				last = i
			} else {
				first = i
			}
		}
	}
	if first < 0 {
		return nil, nil
	}
	return s[first+1 : last], s[last+1:]
}

var spinner = regexp.MustCompile(`^[·✢*✶✻✽] \S.*…`)

// claudeRules follow agent-facts §2 and §6: the composer is the row ❯ between
// the last two rules; the hint row under it tells that a turn runs.
var claudeRules = []rule{
	{ID: "transcript_viewer", Priority: 1100, Region: "screen", State: unknown, freeze: true,
		match: func(s screen) (string, bool) { return s.has("showing detailed transcript") }},
	{ID: "dialog", Priority: 1000, Region: "screen_tail", State: blocked, match: func(s screen) (string, bool) {
		if inside, _ := s.box(); composer(inside) {
			return "", false
		}
		return s.tail(20).has("do you want to proceed?", "esc to cancel", "enter to confirm", "enter to select")
	}},
	{ID: "interrupt_hint", Priority: 980, Region: "below_prompt_box", State: working, match: func(s screen) (string, bool) {
		_, below := s.box()
		return below.has("esc to interrupt")
	}},
	{ID: "spinner", Priority: 970, Region: "above_prompt_box", State: working, match: func(s screen) (string, bool) {
		for _, line := range s.tail(12) {
			if spinner.MatchString(line) {
				return line, true
			}
		}
		return "", false
	}},
	{ID: "prompt_box", Priority: 950, Region: "prompt_box_body", State: idle, match: func(s screen) (string, bool) {
		inside, _ := s.box()
		return strings.Join(inside.tail(1), ""), composer(inside)
	}},
}

func composer(inside screen) bool {
	return len(inside) > 0 && (strings.HasPrefix(inside[0], "❯") || strings.HasPrefix(inside[0], "!"))
}

var codexRules = []rule{
	{ID: "approval", Priority: 1000, Region: "screen_tail", State: blocked,
		match: func(s screen) (string, bool) {
			return s.tail(20).has("enter to submit | esc to cancel", "press enter to continue", "press enter to confirm")
		}},
	{ID: "working", Priority: 980, Region: "screen_tail", State: working, match: func(s screen) (string, bool) {
		for _, line := range s.tail(12) {
			if strings.HasPrefix(line, "• ") && strings.Contains(line, "esc to interrupt") {
				return line, true
			}
		}
		return "", false
	}},
	{ID: "composer", Priority: 950, Region: "screen_tail", State: idle, match: func(s screen) (string, bool) {
		for _, line := range s.tail(8) {
			if strings.HasPrefix(line, "›") {
				return line, true
			}
		}
		return "", false
	}},
}

var opencodeRules = []rule{
	{ID: "permission", Priority: 1000, Region: "screen", State: blocked,
		match: func(s screen) (string, bool) { return s.has("△ permission required", "enter confirm") }},
	{ID: "interrupt", Priority: 980, Region: "screen_tail", State: working,
		match: func(s screen) (string, bool) { return s.tail(6).has("esc interrupt", "esc again to interrupt") }},
	{ID: "box", Priority: 950, Region: "screen_tail", State: idle,
		match: func(s screen) (string, bool) { return s.tail(8).has("╹▀▀▀") }},
}

var rulesOf = map[string][]rule{"claude": claudeRules, "codex": codexRules, "opencode": opencodeRules}

// verdict evaluates the rules of p's agent on its present screen. No rule
// matched: idle is assumed.
func (c *core) verdict(p *pane) verdict {
	lines := screen(c.texts(p.term.screenRows(), false))
	v := verdict{state: idle, evaluated: []map[string]any{}}
	for i := range rulesOf[p.agent.kind] {
		r := &rulesOf[p.agent.kind][i]
		evidence, ok := r.match(lines)
		ok = ok && !p.fault.blind
		v.evaluated = append(v.evaluated, map[string]any{
			"id": r.ID, "priority": r.Priority, "region": r.Region, "state": r.State, "matched": ok, "evidence": evidence,
		})
		if ok && v.rule == nil { // sorted by priority
			v.rule, v.state, v.skip = r, r.State, r.freeze
		}
	}
	if v.rule == nil {
		return v
	}
	v.visibleIdle = v.state == idle
	v.visibleBlocker = v.state == blocked
	v.visibleWorking = v.state == working
	if v.skip {
		v.state = p.agent.raw
	}
	return v
}
