package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fleetd/fault"
	"fleetd/mcp"
)

// The daemon's sentences name tools and arguments, for agents. Fails when one
// reaches a person at a shell as it is, or when what people wrote to each other is
// changed.
func TestSentencesNameCommandsAndFlags(t *testing.T) {
	for said, want := range map[string]string{
		"nobody is known as \"x\"; bridge_roster lists everyone":                                           "nobody is known as \"x\"; bridged roster lists everyone",
		`"to" of bridge_send must not be empty`:                                                            `TO of bridged send must not be empty`,
		`"wait_seconds" of bridge_send must be from 0 to 240.`:                                             "--wait of bridged send must be from 0 to 240.",
		"Say queue_if_offline to leave it in its inbox":                                                    "Say --queue-if-offline to leave it in its inbox",
		"choose expires_in_seconds within that":                                                            "choose --expires within that",
		"several briefs are open, so say with in_reply_to which one you answer":                            "several briefs are open, so say with --to-msg which one you answer",
		`Ask again with idempotency_key "k"`:                                                               `Ask again with --key "k"`,
		`Say in "to" who it is; bridge_whoami lists your open briefs`:                                      `Say in --to who it is; bridged whoami lists your open briefs`,
		"The agent is blocked until you answer: call bridge_answer with turn_id 01a2. It waits until noon": "The agent is blocked until you answer: run bridged answer 01a2. It waits until noon",
	} {
		w := newWorld(t)
		w.gw.err = fault.New(fault.BadRequest, "%s", said)
		w.want(result{code: 1, err: "bridged: BAD_REQUEST: " + want + "\n"}, "whoami")
		var got struct{ Error struct{ Message string } }
		if err := json.Unmarshal([]byte(w.run("whoami", "--json").err), &got); err != nil || got.Error.Message != want {
			t.Errorf("in JSON: %v: %s", err, got.Error.Message)
		}
	}
	w := newWorld(t)
	w.gw.poll = mcp.PollResult{Note: "Call bridge_poll again.", Messages: []mcp.Message{
		{Kind: "SEND", From: "ann@hosta", Content: "try bridge_send"},
		{Kind: "FAILED", From: "ann@hosta", Content: "did not arrive. Ask bridge_roster who is there.", Note: "Too long to show here; get it with bridge_read from offset 0."},
	}}
	r := w.run("poll")
	for _, want := range []string{"\ntry bridge_send\n", "Ask bridged roster who is there", "get it with bridged read.\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("nothing says %q: %s", want, r.out)
		}
	}
	if r.err != "Run bridged poll again.\n" {
		t.Errorf("standard error says %s", r.err)
	}
	const note, told = "Call bridge_poll.", "Run bridged poll.\n"
	w.gw.roster.Note, w.gw.trace.Note, w.gw.whoami.Note = note, note, note
	for _, args := range [][]string{{"roster"}, {"trace", "t"}, {"whoami"}} {
		if r := w.run(args...); !strings.HasSuffix(r.err, told) {
			t.Errorf("%q: standard error says %s", args, r.err)
		}
	}
	w.gw.send = mcp.SendResult{State: "pending", Note: "fetch it with bridge_poll."}
	w.want(result{out: "state\tpending\nnote\tfetch it with bridged poll.\n"}, "send", "x", "y")
}

// Fails when an argument of a tool is told to a person at a shell as a flag or a
// place that the command of that name does not have, or as the argument that it
// is to agents.
func TestArgumentsAreToldAsTheCommandsTakeThem(t *testing.T) {
	root := (&app{deps: newWorld(t).deps}).root()
	for verb, args := range map[string]any{
		"send": mcp.SendArgs{}, "poll": mcp.PollArgs{}, "read": mcp.ReadArgs{}, "reply": mcp.ReplyArgs{}, "ask": mcp.AskArgs{},
		"answer": mcp.AnswerArgs{}, "broadcast": mcp.BroadcastArgs{}, "spawn": mcp.SpawnArgs{}, "stop": mcp.StopArgs{},
		"roster": mcp.RosterArgs{}, "trace": mcp.TraceArgs{}, "whoami": struct{}{},
	} {
		cmd, _, err := root.Find([]string{verb})
		if err != nil || cmd.Name() != verb {
			t.Errorf("there is no command %s: %v", verb, err)
			continue
		}
		if got := forShell("Look with bridge_" + verb + "."); got != "Look with bridged "+verb+"." {
			t.Errorf("the tool is told as %q", got)
		}
		for i := range reflect.TypeOf(args).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(args).Field(i).Tag.Get("json"), ",")
			if name == "offset" {
				continue // bridged read gives the whole
			}
			for _, said := range []string{`"` + name + `" of bridge_` + verb + " must not be empty", "bridge_" + verb + ` needs the argument "` + name + `"`} {
				got := forShell(said)
				word := regexp.MustCompile(`^(\S+) of bridged |needs (\S+)$`).FindStringSubmatch(got)
				if word == nil {
					t.Errorf("%s: %s", said, got)
					continue
				}
				flag, isFlag := strings.CutPrefix(word[1]+word[2], "--")
				if isFlag && cmd.Flags().Lookup(flag) == nil || !isFlag && !slices.Contains(strings.FieldsFunc(cmd.Use, notCapital), flag) {
					t.Errorf("%s: %s, which the command does not have: %s", said, got, cmd.Use)
				}
			}
		}
	}
	for said, want := range map[string]string{ // of no tool in particular
		"wait_seconds": "wait", "timeout_seconds": "timeout", "expires_in_seconds": "expires", "idempotency_key": "key",
		"queue_if_offline": "queue-if-offline", "in_reply_to": "to-msg",
	} {
		got := forShell("say " + said)
		has := slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Flags().Lookup(want) != nil })
		if got != "say --"+want || !has {
			t.Errorf("%s: %s, a flag of some command: %v", said, got, has)
		}
	}
}

func notCapital(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') }

// What bridged says itself holds paths and names, which are to be copied. Fails
// when one of them is changed, or when a path in a sentence of the daemon is.
func TestPathsAreToldAsTheyAre(t *testing.T) {
	w := newWorld(t)
	file := w.write("my bridge_send/in_reply_to.yaml", "host: hosta\n")
	if err := os.Chmod(file, 0o602); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--config", file, "roster"}, {"--config", file, "roster", "--json"}, {"--config", file, "keys", "show"}} {
		if r := w.run(args...); r.code == 0 || !strings.Contains(r.err, "chmod go-w HOME/my bridge_send/in_reply_to.yaml") {
			t.Errorf("%q: %s", args, r.err)
		}
	}
	if r := w.run("keys", "show", "--data-dir", w.home+"/bridge_send wait_seconds"); !strings.Contains(r.err, "HOME/bridge_send wait_seconds") {
		t.Errorf("a new key: %s", r.err)
	}
	for _, said := range []string{
		"/srv/bridge_send/b.yaml cannot be read", "see /srv/a.bridge_poll", "bridge_data and bridge_sender are names", "in ./wait_seconds",
		`"to" is a group, "host" another`,
	} {
		if got := forShell(said); got != said {
			t.Errorf("%s became %s", said, got)
		}
	}
}

// Fails when a sentence, help text or page of the documentation names a flag
// that no command has.
func TestFlagsThatAreNamedExist(t *testing.T) {
	known := map[string]bool{"no-daemon": true, "if-empty": true, "only": true, "steps": true, "help": true, "flag": true} // of codex, rabbitmqctl, `make bench`, cobra and an example
	var learn func(c *cobra.Command)
	learn = func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		}
		for _, sub := range c.Commands() {
			learn(sub)
		}
	}
	learn((&app{deps: newWorld(t).deps}).root())
	named := regexp.MustCompile(`(?:^|[\s(\x60"])--([a-z][\w-]*)`)
	seen := 0
	look := func(where, text string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if seen++; !known[m[1]] {
				t.Errorf("%s names --%s", where, m[1])
			}
		}
	}
	top := os.DirFS("../..")
	err := fs.WalkDir(top, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "test" || path == "vendor" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || path != "README.md" && !strings.HasPrefix(path, "docs/") && (!strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go")):
			return nil
		}
		text, err := fs.ReadFile(top, path)
		if err != nil || strings.HasSuffix(path, ".md") {
			look(path, string(text))
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if said, err := strconv.Unquote(lit.Value); err == nil {
					look(path, said)
				}
			}
			return true
		})
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d flags were found: %v", seen, err)
	}
}
