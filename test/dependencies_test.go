package test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	requirement   = regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v\S+$`) // what is indirect ends in a comment
	dependencyRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (product|tests) \\| (.*) \\|$")
)

// Fails when docs/dependencies.md leaves out a module that go.mod names, names
// one that it does not, gives no reason, or says wrongly whether the daemon is
// built of it.
func TestEveryDependencyHasItsReason(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	direct := map[string]string{} // module → where it is used
	for _, m := range requirement.FindAllStringSubmatch(read("../go.mod"), -1) {
		direct[m[1]] = "tests"
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "../test/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			for module := range direct {
				if name == module || strings.HasPrefix(name, module+"/") {
					direct[module] = "product"
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range dependencyRow.FindAllStringSubmatch(read("../docs/dependencies.md"), -1) {
		named[m[1]] = true
		switch where, ok := direct[m[1]]; {
		case !ok:
			t.Errorf("docs/dependencies.md names %s, which go.mod does not", m[1])
		case where != m[2]:
			t.Errorf("%s is used in %s, docs/dependencies.md says %s", m[1], where, m[2])
		case len(m[3]) < 10:
			t.Errorf("docs/dependencies.md gives no reason for %s", m[1])
		}
	}
	for module := range direct {
		if !named[module] {
			t.Errorf("docs/dependencies.md does not say what %s is for", module)
		}
	}
	if len(direct) == 0 {
		t.Error("go.mod names nothing: it is read wrongly")
	}
}
