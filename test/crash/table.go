package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"fleetd/test/crash/history"
)

// report prints the table and the last line, and reports whether the promise
// was kept in every case.
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
	ok := len(found) == 0
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "case\tpoint\tpath\tfault\thits\tverdict\tseconds")
	for _, r := range results {
		verdict := strings.Join(words[r.n], " ")
		switch {
		case r.err != nil:
			verdict = strings.TrimSpace(verdict + " not played")
		case r.hits == 0:
			verdict = strings.TrimSpace(verdict + " not hit")
		case verdict == "":
			verdict = "kept"
		}
		ok = ok && r.err == nil && r.hits > 0
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%d\t%s\t%.1f\n", r.n, name(r.kase), r.path, r.damage, r.hits, verdict, r.took.Seconds())
	}
	_ = t.Flush() // the table is for people; its reader may have left
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
	return ok
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

func name(k kase) string {
	if k.nth == 1 {
		return k.point.Name
	}
	return fmt.Sprintf("%s:%d", k.point.Name, k.nth)
}
