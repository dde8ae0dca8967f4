package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"fleetd/fault"
)

// emit prints v in JSON where --json asks for it, else as human has it. Mail in
// it counts as lost unless all of it went out.
func (a *app) emit(v any, human func(w *printer)) error {
	unseen := a.receipt.Pending() && a.nowhere(a.Out)
	err := a.print(v, human)
	switch {
	case err != nil:
		a.settle(false)
	case unseen:
		a.settle(false)
		return fault.New(fault.Internal, "standard output is closed; mail that could not be shown is kept, fetch it with bridged poll")
	}
	return err
}

func (a *app) print(v any, human func(w *printer)) error {
	w := &printer{tty: a.OutTTY}
	if a.json {
		enc := json.NewEncoder(inertJSON{&w.buf})
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return fault.Wrap(err, fault.Internal, "the result does not fit into JSON; report this")
		}
	} else {
		human(w)
	}
	if _, err := io.WriteString(a.Out, w.buf.String()); err != nil {
		return fault.Wrap(err, fault.Internal, "the result could not be written to standard output")
	}
	if file, ok := a.Out.(io.Closer); ok && a.receipt != nil {
		// Some file systems tell only now that they did not take it.
		if err := file.Close(); err != nil {
			return fault.Wrap(err, fault.Internal, "the result could not be written to standard output")
		}
	}
	return nil
}

// note tells the user something that is no part of the result.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.Err, visible(fmt.Sprintf(format, args...)))
}

// printer collects what a person reads.
type printer struct {
	buf strings.Builder
	tty bool
}

func (w *printer) line(format string, args ...any) { w.text(fmt.Sprintf(format, args...) + "\n") }

// text prints s as it is, but keeps a terminal from obeying it: content comes
// from other programs.
func (w *printer) text(s string) {
	if w.tty {
		s = visible(s)
	}
	w.buf.WriteString(s)
}

// content prints a message's content and ends its line.
func (w *printer) content(s string) {
	w.text(s)
	if !strings.HasSuffix(s, "\n") {
		w.buf.WriteByte('\n')
	}
}

// table prints rows aligned in a terminal, else with tabs between them.
func (w *printer) table(head []string, rows [][]string) {
	t := table.NewWriter()
	if head != nil {
		t.AppendHeader(cells(head))
	}
	for _, r := range rows {
		t.AppendRow(cells(r))
	}
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	if w.tty {
		t.SuppressTrailingSpaces()
		w.buf.WriteString(t.Render() + "\n")
	} else {
		w.buf.WriteString(t.RenderTSV() + "\n")
	}
}

// record prints pairs of name and value, those without a value left out.
func (w *printer) record(pairs ...string) {
	var rows [][]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, pairs[i:i+2])
		}
	}
	w.table(nil, rows)
}

func cells(in []string) table.Row {
	row := make(table.Row, len(in))
	for i, s := range in {
		row[i] = oneLined(s)
	}
	return row
}

// oneLined is s on one line, without what a terminal would obey.
func oneLined(s string) string { return strings.Map(oneLine, visible(s)) }

func oneLine(r rune) rune {
	if r == '\n' || r == '\t' {
		return ' '
	}
	return r
}

// visible writes out what acts, newline and tab excepted, and bytes that are no
// text.
func visible(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r == unicode.ReplacementChar && s[i] != 0xEF: // not the character itself
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case acts(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case acts(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
