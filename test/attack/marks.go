package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// threat is one line of the threat model.
type threat struct{ id, text string }

var threatRow = regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \| ([^|]+) \|`)

// threats reads the lines of docs/security.md, in their order.
func threats(root string) ([]threat, error) {
	doc, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		return nil, err
	}
	var out []threat
	for _, m := range threatRow.FindAllStringSubmatch(string(doc), -1) {
		out = append(out, threat{m[1], strings.TrimSpace(m[2])})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("docs/security.md has no line of a threat model")
	}
	return out, nil
}

// mark is where a test says which lines it attacks.
type mark struct {
	dir, test string   // of the package below root; the top-level function
	ids       []string // as they stand there
	at        token.Position
}

// marks finds them in the test files below root: Attr("threat", "B1 B3"), or a
// field `threat: "B1"` of a table whose rows are marked with it.
func marks(root string) ([]mark, error) {
	var out []mark
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if ids, ok := markOf(n); ok {
					out = append(out, mark{filepath.ToSlash(dir), fn.Name.Name, ids, files.Position(n.Pos())})
				}
				return true
			})
		}
		return nil
	})
	return out, err
}

func markOf(n ast.Node) (ids []string, ok bool) {
	var value ast.Expr
	switch n := n.(type) {
	case *ast.CallExpr:
		sel, is := n.Fun.(*ast.SelectorExpr)
		if !is || sel.Sel.Name != "Attr" || len(n.Args) != 2 || text(n.Args[0]) != "threat" {
			return nil, false
		}
		value = n.Args[1]
	case *ast.KeyValueExpr:
		if key, is := n.Key.(*ast.Ident); !is || key.Name != "threat" {
			return nil, false
		}
		value = n.Value
	default:
		return nil, false
	}
	return strings.Fields(text(value)), true
}

// text is the value of a string literal; "" for what is none.
func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		s, err := strconv.Unquote(lit.Value)
		if err == nil {
			return s
		}
	}
	return ""
}
