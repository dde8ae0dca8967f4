package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/mattn/go-isatty"
)

// narrator prints the tale: prose, what commands print, screens and tables.
type narrator struct {
	w     io.Writer
	step  int
	color bool
}

// newNarrator uses colour where a person sees it and has not declined.
func newNarrator(f *os.File) *narrator {
	n := &narrator{w: f}
	n.color = isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return n
}

func (n *narrator) paint(c text.Color, s string) string {
	if !n.color {
		return s
	}
	return c.EscapeSeq() + s + text.Reset.EscapeSeq()
}

// line writes as it is. A reader who hung up shows as SIGPIPE.
func (n *narrator) line(format string, args ...any) { fmt.Fprintf(n.w, format+"\n", args...) }

// chapter begins a step.
func (n *narrator) chapter(title string) {
	n.step++
	n.line("")
	n.line("%s", n.paint(text.Bold, fmt.Sprintf("%d. %s", n.step, title)))
}

// say is one line of prose.
func (n *narrator) say(format string, args ...any) { n.line("   "+format, args...) }

// command shows a command line of a host and what it printed.
func (n *narrator) command(host, line, printed string) {
	n.line("")
	n.line("     %s %s", n.paint(text.FgCyan, host+"$"), n.paint(text.Bold, line))
	n.quote(printed)
}

// quote shows someone else's words.
func (n *narrator) quote(s string) {
	for l := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		n.line("%s", strings.TrimRight("     "+l, " "))
	}
}

// screen draws a pane in a box.
func (n *narrator) screen(title, s string) {
	t := n.table()
	t.SetTitle(title)
	t.Style().Title.Format = text.FormatDefault
	t.AppendRow(table.Row{strings.Trim(s, "\n")})
	n.line("")
	n.quote(t.Render())
}

// rows draws a table.
func (n *narrator) rows(head []string, rows [][]string) {
	t := n.table()
	t.AppendHeader(row(head))
	for _, r := range rows {
		t.AppendRow(row(r))
	}
	n.line("")
	n.quote(t.Render())
}

func (n *narrator) table() table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	return t
}

func row(in []string) table.Row {
	out := make(table.Row, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

// ok is the last line.
func (n *narrator) ok(format string, args ...any) {
	n.line("")
	n.line("%s", n.paint(text.FgGreen, fmt.Sprintf(format, args...)))
}
