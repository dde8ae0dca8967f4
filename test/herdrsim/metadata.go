package herdrsim

import (
	"regexp"
	"strings"
	"time"
	"unicode"
)

// metadata is the presentation that reports set; it is lost on a restart.
type metadata struct {
	title        string
	displayAgent string
	labels       map[string]string
	tokens       map[string]string
	seqs         map[string]uint64 // per source
}

const (
	tokensPerReport = 16
	tokensPerPane   = 32
	tokenLength     = 80
	maxTTL          = 86_400_000
)

var (
	metadataSource = regexp.MustCompile(`^[A-Za-z0-9:._-]{1,80}$`)
	tokenName      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
)

type paneMetadataParams struct {
	PaneID            string             `json:"pane_id" need:"required"`
	Source            string             `json:"source" need:"required"`
	Title             *string            `json:"title"`
	DisplayAgent      *string            `json:"display_agent"`
	StateLabels       map[string]string  `json:"state_labels"`
	Tokens            map[string]*string `json:"tokens"`
	ClearTitle        bool               `json:"clear_title"`
	ClearDisplayAgent bool               `json:"clear_display_agent"`
	ClearStateLabels  bool               `json:"clear_state_labels"`
	Agent             *string            `json:"agent"`
	AppliesTo         *string            `json:"applies_to_source"`
	Seq               *uint64            `json:"seq"`
	TTL               *int64             `json:"ttl_ms"`
}

func (c *core) reportMetadata(q *paneMetadataParams) (any, error) {
	p, err := c.paneOrAlias(q.PaneID)
	if err != nil {
		return nil, err
	}
	if err := checkReport(q.Source, q.Tokens, q.TTL); err != nil {
		return nil, err
	}
	if p.meta.seqs == nil {
		p.meta.seqs, p.meta.tokens = map[string]uint64{}, map[string]string{}
	}
	if stale(p.meta.seqs, q.Source, q.Seq) || q.Agent != nil && *q.Agent != p.agent.kind {
		return typed("ok"), nil
	}
	before := len(p.meta.tokens)
	if !setTokens(p.meta.tokens, q.Tokens) {
		return nil, refuse("metadata_token_limit", "a pane holds at most %d tokens, has %d", tokensPerPane, before)
	}
	setText(&p.meta.title, q.Title, q.ClearTitle)
	setText(&p.meta.displayAgent, q.DisplayAgent, q.ClearDisplayAgent)
	if q.ClearStateLabels {
		p.meta.labels = nil
	}
	for k, v := range q.StateLabels {
		if p.meta.labels == nil {
			p.meta.labels = map[string]string{}
		}
		p.meta.labels[k] = v
	}
	p.revision++
	c.emit("pane_updated", p.id, members{"pane": c.paneInfo(p)})
	c.expire(q.TTL, p.meta.tokens, q.Tokens)
	return typed("ok"), nil
}

type workspaceMetadataParams struct {
	WorkspaceID string             `json:"workspace_id" need:"required"`
	Source      string             `json:"source" need:"required"`
	Tokens      map[string]*string `json:"tokens"`
	Seq         *uint64            `json:"seq"`
	TTL         *int64             `json:"ttl_ms"`
}

func (c *core) workspaceMetadata(q *workspaceMetadataParams) (any, error) {
	w, err := c.workspace(q.WorkspaceID)
	if err != nil {
		return nil, err
	}
	if err := checkReport(q.Source, q.Tokens, q.TTL); err != nil {
		return nil, err
	}
	if w.seqs == nil {
		w.seqs = map[string]uint64{}
	}
	if stale(w.seqs, q.Source, q.Seq) {
		return typed("ok"), nil
	}
	if !setTokens(w.tokens, q.Tokens) {
		return nil, refuse("metadata_token_limit", "a workspace holds at most %d tokens", tokensPerPane)
	}
	c.emit("workspace_metadata_updated", "", members{"workspace": c.workspaceInfo(w)})
	c.expire(q.TTL, w.tokens, q.Tokens)
	return typed("ok"), nil
}

func checkReport(source string, tokens map[string]*string, ttl *int64) error {
	switch {
	case !metadataSource.MatchString(source):
		return refuse("invalid_metadata_source", "metadata source %q is not valid", source)
	case ttl != nil && (*ttl < 1 || *ttl > maxTTL):
		return refuse("invalid_metadata_ttl", "ttl_ms must be between 1 and %d", maxTTL)
	case len(tokens) > tokensPerReport:
		return refuse("metadata_token_limit", "a report holds at most %d tokens", tokensPerReport)
	}
	for name := range tokens {
		if !tokenName.MatchString(name) {
			return refuse("invalid_metadata_token", "token name %q is not valid", name)
		}
	}
	return nil
}

// stale tells whether a report is to be ignored: a lower or equal seq, or none
// after the source once used one.
func stale(seqs map[string]uint64, source string, seq *uint64) bool {
	last, used := seqs[source]
	if seq == nil {
		return used
	}
	if used && *seq <= last {
		return true
	}
	seqs[source] = *seq
	return false
}

// setTokens applies changes; null and blank delete. False: too many, nothing
// is changed.
func setTokens(tokens map[string]string, changes map[string]*string) bool {
	after := map[string]string{}
	for k, v := range tokens {
		after[k] = v
	}
	for k, v := range changes {
		delete(after, k)
		if v != nil {
			if clean := cleanToken(*v); clean != "" {
				after[k] = clean
			}
		}
	}
	if len(after) > tokensPerPane {
		return false
	}
	clear(tokens)
	for k, v := range after {
		tokens[k] = v
	}
	return true
}

func cleanToken(v string) string {
	runes := []rune(strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, v)))
	return string(runes[:min(len(runes), tokenLength)])
}

func setText(dst *string, v *string, clear bool) {
	if clear {
		*dst = ""
	}
	if v != nil {
		*dst = *v
	}
}

// expire deletes the reported tokens after their time.
func (c *core) expire(ttl *int64, tokens map[string]string, reported map[string]*string) {
	if ttl == nil {
		return
	}
	c.later(time.Duration(*ttl)*time.Millisecond, func() {
		for k := range reported {
			delete(tokens, k)
		}
	})
}
