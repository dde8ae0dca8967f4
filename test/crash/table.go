package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"fleetd/test/crash/history"
)

// report prints the table and the last line, and reports whether the promise
// was kept in every case. Cases of one path that are struck in one part of the
// gateway are one row; what was not kept is listed one by one.
func report(out io.Writer, results []result, found []history.Finding) bool {
	slices.SortFunc(results, func(a, b result) int { return a.n - b.n })
	count := map[history.Verdict]int{}
	words := map[int][]string{}
	for _, f := range found {
		count[f.Verdict]++
		if w := string(f.Verdict); !slices.Contains(words[f.Case], w) {
			words[f.Case] = append(words[f.Case], w)
		}
	}
	rows, total := map[string]*row{}, &row{by: map[damage]tally{}}
	var bad []string
	for _, r := range results {
		verdict := words[r.n]
		switch {
		case r.err != nil:
			verdict = append(verdict, "not played")
		case r.hits == 0:
			verdict = append(verdict, "not hit")
		}
		if len(verdict) > 0 {
			bad = append(bad, fmt.Sprintf("case %d, %s at hit %d: %s", r.n, r.kase, r.nth, strings.Join(verdict, ", ")))
		}
		part, _, _ := strings.Cut(r.point.Name, ".")
		key := string(r.path) + "\t" + part
		if rows[key] == nil {
			rows[key] = &row{by: map[damage]tally{}}
		}
		rows[key].add(r, len(verdict) == 0)
		total.add(r, len(verdict) == 0)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(t, "path\tstruck in")
	for _, d := range damages {
		fmt.Fprintf(t, "\t%s", d)
	}
	fmt.Fprintln(t, "\tseconds")
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintln(t, key+"\t"+rows[key].String())
	}
	fmt.Fprintln(t, "all\t\t"+total.String())
	_ = t.Flush() // the table is for people; its reader may have left
	for _, line := range bad {
		fmt.Fprintln(out, line)
	}
	for _, r := range results {
		if r.err != nil {
			fmt.Fprintf(out, "case %d (%s) was not played to its end: %s\n", r.n, r.kase, short(r.err))
		}
	}
	line := fmt.Sprintf("crash: cases=%d", len(results))
	for _, v := range history.Verdicts {
		line += fmt.Sprintf(" %s=%d", v, count[v])
	}
	fmt.Fprintln(out, line)
	return len(found) == 0 && len(bad) == 0
}

// row is some cases taken together.
type row struct {
	by   map[damage]tally
	took time.Duration
}

// tally is how many cases there were, and in how many the promise was kept.
type tally struct{ kept, all int }

func (w *row) add(r result, kept bool) {
	t := w.by[r.damage]
	t.all++
	if kept {
		t.kept++
	}
	w.by[r.damage], w.took = t, w.took+r.took
}

// String has a column for every damage, as kept/cases.
func (w *row) String() string {
	text := ""
	for _, d := range damages {
		cell := "-"
		if t := w.by[d]; t.all > 0 {
			cell = fmt.Sprintf("%d/%d", t.kept, t.all)
		}
		text += cell + "\t"
	}
	return text + fmt.Sprintf("%.0f", w.took.Seconds())
}

// short leaves out the middle of an error that carries a gateway's whole log.
func short(err error) string {
	const most = 3000
	text := err.Error()
	if len(text) <= most {
		return text
	}
	first, _, _ := strings.Cut(text, "\n")
	return first + "\n…" + text[len(text)-most:]
}
