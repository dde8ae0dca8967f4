package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inputs are what is read from somebody else (issue 6), and the fuzz targets
// that feed it: package and function.
var inputs = map[string][]string{
	"envelope":        {"fabric/envelope FuzzDecode", "fabric/envelope FuzzVerify"},
	"frames of AMQP":  {"fabric FuzzLegible"},
	"presence bodies": {"fabric/roster FuzzHandle"},
	"control bodies":  {"fabric/control FuzzBodies"},
	"configuration":   {"cmd/bridged/config FuzzFile"},
	"REST input":      {"mcp FuzzREST"},
	"MCP input":       {"mcp FuzzMCP"},
	"herdr's answers": {"herdr FuzzAnswers", "herdr FuzzScreen"},
	"message texts":   {"herdr FuzzContent"},
	"store records":   {"store FuzzRecords"},
}

// Fails when `make fuzz` leaves a fuzz target of the repository out or runs one
// twice, when an input of strangers has none, or when one keeps no corpus, which
// every run of the tests tries again.
func TestMakeFuzzRunsEveryTarget(t *testing.T) {
	var all []string
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				all = append(all, path.Clean(filepath.ToSlash(filepath.Dir(file)))[len("../"):]+" "+fn.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	if ran := fuzzed(t); !slices.Equal(ran, all) {
		t.Errorf("make fuzz runs\n%s\nand the repository has\n%s", strings.Join(ran, "\n"), strings.Join(all, "\n"))
	}
	for input, targets := range inputs {
		for _, target := range targets {
			if !slices.Contains(all, target) {
				t.Errorf("%s: there is no %s", input, target)
			}
		}
	}
	for _, target := range all {
		dir, name, _ := strings.Cut(target, " ")
		if kept, err := os.ReadDir(filepath.Join("..", dir, "testdata", "fuzz", name)); err != nil || len(kept) == 0 {
			t.Errorf("%s keeps no corpus: %v", target, err)
		}
	}
}

// fuzzed are the targets that `make fuzz` hands to the go command.
func fuzzed(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	tool, record := filepath.Join(dir, "go"), filepath.Join(dir, "record")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho \"$*\" >>'"+record+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", "fuzz", "GO="+tool, "FUZZTIME=7s")
	cmd.Dir = ".."
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make fuzz: %v\n%s", err, out)
	}
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var ran []string
	for line := range strings.Lines(string(text)) {
		// test -run ^$ -fuzz ^FuzzX$ -fuzztime 7s ./x
		w := strings.Fields(line)
		if len(w) != 8 || w[0] != "test" || w[2] != "^$" || w[3] != "-fuzz" || w[6] != "7s" {
			t.Fatalf("make fuzz runs go %s", line)
		}
		ran = append(ran, path.Clean(w[7])+" "+strings.Trim(w[4], "^$"))
	}
	slices.Sort(ran)
	return ran
}
