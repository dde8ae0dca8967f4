package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/pflag"
)

// Main is the program: it runs an agent on the terminal of stdin and stdout
// and returns its exit code. Every flag can be given as AGENT_<FLAG> in the
// environment. Called as claude, codex or opencode it is that kind and passes
// over flags it does not know, so that it can stand in for the real program. A
// test binary may call it as its own main.
func Main(args []string) int {
	code, err := run(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "agent:", err)
	}
	return code
}

// flags are the command line.
type flags struct {
	opts    Options
	script  Script
	logPath string
	bytes   string
}

func parse(args []string) (*flags, error) {
	f := &flags{}
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	called := filepath.Base(args[0])
	_, known := kinds[called]
	if !known {
		called = "claude"
	}
	fs.ParseErrorsAllowlist.UnknownFlags = known
	fs.StringVar(&f.opts.Kind, "kind", called, "claude, codex or opencode")
	fs.StringVar(&f.opts.Control, "control", "", "path of the control socket")
	fs.StringVar(&f.logPath, "log", "", "path of the event log (JSON lines, appended)")
	fs.StringVar(&f.bytes, "bytes", "", "path of a file that gets every byte of the terminal's input (appended)")
	fs.DurationVar(&f.opts.SlowStart, "slow-start", 0, "draw nothing this long")
	fs.BoolVar(&f.opts.Trust, "trust", false, "begin with the trust dialog")
	fs.BoolVar(&f.opts.Login, "login", false, "not logged in")
	fs.StringVar(&f.opts.Draft, "draft", "", "begin with this in the composer")
	fs.IntVar(&f.opts.SwallowEnter, "swallow-enter", 0, "so many Enters have no effect")
	fs.BoolVar(&f.opts.SwallowJoinedEnter, "swallow-joined-enter", false, "Enter in one read with a paste has no effect")
	fs.DurationVar(&f.opts.EnterDelay, "enter-delay", 0, "Enter takes effect this much later")
	fs.DurationVar(&f.opts.LateDraw, "late-draw", 0, "every change is drawn this much later")
	fs.StringVar(&f.opts.DialogAfterPaste, "dialog-after-paste", "", "this dialog opens after the first paste")
	fs.BoolVar(&f.opts.ExitAfterPaste, "exit-after-paste", false, "end after the first paste")
	fs.BoolVar(&f.opts.NoBracketedPaste, "no-bracketed-paste", false, "leave bracketed paste off")
	fs.DurationVar(&f.script.Work, "work", 200*time.Millisecond, "work this long on a prompt")
	fs.StringVar(&f.script.ReplyWith, "reply-with", "", "answer with this text")
	fs.BoolVar(&f.script.Echo, "echo", false, "answer with the message's content")
	fs.IntVar(&f.script.Replies, "replies", 1, "answers per message; -1: none")
	fs.DurationVar(&f.script.ReplyGap, "reply-gap", time.Second, "between two answers")
	fs.BoolVar(&f.script.Keyed, "keyed", false, "answer with an idempotency key")
	fs.StringVar(&f.script.Ask, "ask", "", "ask this with bridge_ask before answering; {content} is the message's")
	fs.BoolVar(&f.script.AskSender, "ask-sender", false, "name the sender of the message as the one to ask")
	fs.DurationVar(&f.script.AskFor, "ask-for", 0, "wait this long for what was asked")
	fs.StringArrayVar(&f.script.Extra, "call", nil, `call a tool before answering: 'bridge_send {"to":"x","content":"y"}'`)
	var err error
	fs.VisitAll(func(flag *pflag.Flag) {
		name := "AGENT_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		if value, given := os.LookupEnv(name); given && err == nil {
			if err = fs.Set(flag.Name, value); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return f, fs.Parse(args[1:])
}

func run(args []string) (int, error) {
	f, err := parse(args)
	if err != nil {
		return 2, err
	}
	if err := showKind(f.opts.Kind); err != nil {
		return 1, err
	}
	if f.logPath != "" {
		file, err := os.OpenFile(f.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return 1, fmt.Errorf("open the event log: %w", err)
		}
		defer file.Close()
		f.opts.Log = file
	}
	if f.bytes != "" {
		file, err := os.OpenFile(f.bytes, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return 1, fmt.Errorf("open the file of input bytes: %w", err)
		}
		defer file.Close()
		f.opts.Bytes = file
	}
	if url := os.Getenv("BRIDGED_URL"); url != "" {
		session, err := NewSession(f.opts.Kind, url, os.Getenv("BRIDGED_TOKEN"))
		if err != nil {
			return 1, err
		}
		defer session.Close()
		f.script.Tools = session
	}
	f.opts.Brain = &f.script
	return onTerminal(f.opts)
}

// onTerminal runs the agent in raw mode until it exits or a signal comes.
func onTerminal(opts Options) (int, error) {
	in := os.Stdin.Fd()
	before, err := term.GetState(in)
	if err != nil {
		return 1, fmt.Errorf("stdin is no terminal: %w", err)
	}
	defer func() { _ = term.Restore(in, before) }()
	opts.Raw = func() error {
		_, err := term.MakeRaw(in)
		return err
	}
	if cols, rows, err := term.GetSize(in); err == nil && cols > 0 && rows > 0 {
		opts.Cols, opts.Rows = cols, rows
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	defer stop()
	return Run(ctx, opts, os.Stdin, os.Stdout)
}

// showKind makes the multiplexer see the kind: HERDR_AGENT in the environment
// a process was started with, so it starts itself again if that is missing.
func showKind(kind string) error {
	if os.Getenv("HERDR_AGENT") == kind {
		return nil
	}
	if err := os.Setenv("HERDR_AGENT", kind); err != nil {
		return fmt.Errorf("set HERDR_AGENT: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the own program: %w", err)
	}
	return fmt.Errorf("start again as %s: %w", kind, syscall.Exec(exe, os.Args, os.Environ()))
}
