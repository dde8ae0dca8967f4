package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faults are the rows of design §14.
var faults = []string{
	"broker down or unreachable", "broker blocks publishers", "gateway killed at any instruction", "broker killed", "herdr down",
	"worker's pane gone", "main's client gone", "disk full", "second gateway with the same host id or entity", "poison message",
	"clock jumps", "store restored from an old copy",
}

var (
	testName  = regexp.MustCompile(`Test[A-Z]\w*`)
	testFunc  = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(t \*testing\.T\) \{`)
	faultNote = regexp.MustCompile(`(?m)^// §14: ((?:.+\n// )*?[^.]*)\.`)
)

// Fails when docs/failures.md leaves out a fault of design §14, or names a test
// that does not exist; or when no test says in its comment ("// §14: fault.")
// that it is about that fault.
func TestEveryFaultHasItsTests(t *testing.T) {
	tests, noted := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || d.Name() == "failures_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		for _, m := range faultNote.FindAllStringSubmatch(string(text), -1) {
			for fault := range strings.SplitSeq(strings.ReplaceAll(m[1], "\n// ", " "), "; ") {
				noted[fault] = true
				if !slices.Contains(faults, fault) {
					t.Errorf("%s: there is no fault %q", path, fault)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(doc)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			rows[strings.TrimSpace(cells[1])] = cells[3]
		}
	}
	for _, fault := range faults {
		if !noted[fault] {
			t.Errorf("no test says that it is about %q", fault)
		}
		if !testName.MatchString(rows[fault]) {
			t.Errorf("docs/failures.md names no test of %q", fault)
		}
	}
	for _, name := range testName.FindAllString(string(doc), -1) {
		if !tests[name] {
			t.Errorf("docs/failures.md names %s, which does not exist", name)
		}
	}
}
