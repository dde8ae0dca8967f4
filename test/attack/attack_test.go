package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Fails when a line of the threat model has no case, or a case attacks a line
// that is not there.
func TestThreatModelAndCasesAgree(t *testing.T) {
	lines, err := threats("../..")
	if err != nil {
		t.Fatal(err)
	}
	all, err := marks("../..")
	if err != nil {
		t.Fatal(err)
	}
	attacked := map[string]bool{}
	for _, m := range all {
		for _, id := range m.ids {
			attacked[id] = true
			if !slices.ContainsFunc(lines, func(l threat) bool { return l.id == id }) {
				t.Errorf("%s: docs/security.md has no line %s", m.at, id)
			}
		}
	}
	seen := map[string]bool{}
	for _, l := range lines {
		if !attacked[l.id] {
			t.Errorf("no test attacks %s: %s", l.id, l.text)
		}
		if seen[l.id] {
			t.Errorf("docs/security.md has two lines %s", l.id)
		}
		seen[l.id] = true
	}
}

// Fails when a case that failed or was skipped counts as held, or one counts
// that is no case.
func TestOnlyWhatPassedIsHeld(t *testing.T) {
	var out bytes.Buffer
	c := tally{attacked: map[string]int{}, tests: map[string]*result{}, out: &out}
	err := c.read(strings.NewReader(`
{"Action":"attr","Package":"fleetd/p","Test":"TestA","Key":"threat","Value":"B1 B2"}
{"Action":"attr","Package":"fleetd/p","Test":"TestA/sub","Key":"threat","Value":"B3"}
{"Action":"attr","Package":"fleetd/q","Test":"TestA","Key":"threat","Value":"B4"}
{"Action":"attr","Package":"fleetd/q","Test":"TestB","Key":"owner","Value":"me"}
{"Action":"output","Package":"fleetd/p","Test":"TestA/sub","Output":"why it failed\n"}
{"Action":"fail","Package":"fleetd/p","Test":"TestA/sub"}
{"Action":"pass","Package":"fleetd/p","Test":"TestA"}
{"Action":"skip","Package":"fleetd/q","Test":"TestA"}
{"Action":"pass","Package":"fleetd/q","Test":"TestB"}
{"Action":"pass","Package":"fleetd/p"}
`))
	if err != nil || c.cases != 3 || c.held != 1 || c.attacked["B2"] != 1 || c.attacked["B3"]+c.attacked["B4"] != 0 {
		t.Errorf("%d of %d held, %v, %v", c.held, c.cases, c.attacked, err)
	}
	if !strings.Contains(out.String(), "why it failed") {
		t.Errorf("it does not say why: %s", &out)
	}
}
