package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// snippet is what to write into the configuration of one MCP client. The texts
// are those that were tried with the real programs (agent facts §11).
type snippet struct {
	Client    string `json:"client"`    // claude-code, codex, opencode
	Transport string `json:"transport"` // http, stdio
	File      string `json:"file"`
	Format    string `json:"format"` // json, toml
	Title     string `json:"-"`
	Text      string `json:"text"`
}

// toolTimeout is how long a client may let a call wait, in seconds: more than
// the longest wait_seconds (240), since two of three cut silent calls earlier.
const toolTimeout = 300

// object is a JSON object whose keys stay in order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON writes the members as they stand.
func (o object) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%s", literal(m.key), v)
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

// snippets are the entries for all clients. command starts the stdio bridge.
func snippets(url string, command []string) []snippet {
	return []snippet{
		claudeHTTP(url), claudeStdio(command),
		codexHTTP(url), codexStdio(command),
		opencodeHTTP(url), opencodeStdio(command),
	}
}

func claudeHTTP(url string) snippet {
	return claude("http", "over HTTP", object{
		{"type", "http"}, {"url", url}, {"timeout", toolTimeout * 1000},
		{"headers", object{{"Authorization", "Bearer ${BRIDGED_TOKEN}"}}},
	})
}

func claudeStdio(command []string) snippet {
	return claude("stdio", "or over stdio, which outlives restarts of the daemon", object{
		{"type", "stdio"}, {"command", command[0]}, {"args", command[1:]}, {"timeout", toolTimeout * 1000},
		{"env", object{{"BRIDGED_TOKEN", "${BRIDGED_TOKEN}"}}},
	})
}

func claude(transport, title string, server object) snippet {
	return snippet{
		Client: "claude-code", Transport: transport, File: ".mcp.json", Format: "json",
		Title: "Claude Code, .mcp.json of the project, " + title + ":",
		Text:  indented(object{{"mcpServers", object{{"bridge", server}}}}),
	}
}

func codexHTTP(url string) snippet {
	return codex("http", "over HTTP (start it as: codex --no-daemon)",
		"[mcp_servers.bridge]\n"+
			"url = "+literal(url)+"\n"+
			`bearer_token_env_var = "BRIDGED_TOKEN"`+"\n")
}

func codexStdio(command []string) snippet {
	return codex("stdio", "or over stdio, which outlives restarts of the daemon (start it as: codex --no-daemon)",
		"[mcp_servers.bridge]\n"+
			"command = "+literal(command[0])+"\n"+
			"args = "+literal(command[1:])+"\n"+
			"env_vars = "+literal([]string{"BRIDGED_TOKEN"})+"\n")
}

func codex(transport, title, text string) snippet {
	return snippet{
		Client: "codex", Transport: transport, File: "~/.codex/config.toml", Format: "toml",
		Title: "Codex, ~/.codex/config.toml, " + title + ":",
		Text:  text + fmt.Sprintf("tool_timeout_sec = %d\n", toolTimeout),
	}
}

func opencodeHTTP(url string) snippet {
	return opencode("http", "over HTTP", object{
		{"type", "remote"}, {"url", url}, {"headers", object{{"Authorization", "Bearer {env:BRIDGED_TOKEN}"}}}, {"enabled", true},
	})
}

func opencodeStdio(command []string) snippet {
	return opencode("stdio", "or over stdio, which outlives restarts of the daemon", object{
		{"type", "local"}, {"command", command},
		{"environment", object{{"BRIDGED_TOKEN", "{env:BRIDGED_TOKEN}"}}}, {"enabled", true},
	})
}

// opencode's entry has no timeout: its limit is 60 s without progress, and the
// daemon sends progress every 10 s (agent facts §8).
func opencode(transport, title string, server object) snippet {
	return snippet{
		Client: "opencode", Transport: transport, File: "~/.config/opencode/opencode.json", Format: "json",
		Title: "opencode, ~/.config/opencode/opencode.json, " + title + ":",
		Text:  indented(object{{"mcp", object{{"bridge", server}}}}),
	}
}

// literal writes strings and lists of them as JSON has it, which TOML reads
// too.
func literal(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // strings always encode
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func indented(v object) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		panic(err) // strings, numbers and booleans always encode
	}
	return b.String()
}
