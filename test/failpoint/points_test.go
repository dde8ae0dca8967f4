package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Fails when a name of the table is hit nowhere or twice, or a name that is
// hit is not in the table: a crash test would pass by a step.
func TestTableHoldsWhatTheCodeHits(t *testing.T) {
	code := calls(t, filepath.Join("..", ".."))
	table := map[string]bool{}
	for _, p := range Points {
		if table[p.Name] {
			t.Errorf("%s stands twice in the table", p.Name)
		}
		table[p.Name] = true
		if len(code[p.Name]) != 1 {
			t.Errorf("%s is hit in %d places: %v", p.Name, len(code[p.Name]), code[p.Name])
		}
	}
	for name, places := range code {
		if !table[name] {
			t.Errorf("%s is hit in %v and not in the table", name, places)
		}
	}
}

// calls lists where Hit is called, by name, in what is no test.
func calls(t *testing.T, root string) map[string][]string {
	t.Helper()
	found, files := map[string][]string{}, token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || f.Sel.Name != "Hit" {
				return true
			}
			if pkg, ok := f.X.(*ast.Ident); !ok || pkg.Name != "failpoint" {
				return true
			}
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name of a point is written out", files.Position(call.Pos()))
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				return err == nil
			}
			found[name] = append(found[name], files.Position(call.Pos()).String())
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Fails when an order is not read as it was written, or nonsense passes for one.
func TestOrders(t *testing.T) {
	for _, o := range []Order{{}, {"store.commit.before", 3, Kill}, {"inbox.pull.written", 1, Pause}} {
		if got, err := ParseOrder(o.String()); got != o || err != nil {
			t.Errorf("%q is read as %+v, %v", o, got, err)
		}
	}
	if got, err := ParseOrder("store.commit.before=hang"); err != nil || got.Nth != 1 {
		t.Errorf("without a number: %+v, %v", got, err)
	}
	for _, text := range []string{"", "nothing.of.that.name=kill", "store.commit.before", "store.commit.before=stop", "store.commit.before:0=kill", "store.commit.before:x=kill"} {
		if got, err := ParseOrder(text); err == nil {
			t.Errorf("%q passes as %+v", text, got)
		}
	}
}
