package sim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var verb = regexp.MustCompile(`%[+#0-9.]*[a-z]`)

// TestLegendIsComplete: every line that a story can have, every message and
// every call stands in docs/simulator.md.
func TestLegendIsComplete(t *testing.T) {
	text, err := os.ReadFile("../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	legend := string(text)
	wanted := 0
	want := func(what string) {
		wanted++
		if !strings.Contains(legend, "`"+what+"`") {
			t.Errorf("docs/simulator.md has no legend of `%s`", what)
		}
	}
	for _, name := range append(paxosNames[:], opNames[:]...) {
		want(name)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			messages := f.Name.Name == "describePeer" || f.Name.Name == "describeUp" || f.Name.Name == "describeDown"
			ast.Inspect(f, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.CallExpr:
					if s, ok := x.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "tell" && len(x.Args) > 1 {
						want(verb.ReplaceAllString(literal(t, file, x.Args[1]), "…"))
					}
				case *ast.ReturnStmt:
					if len(x.Results) == 0 {
						return true
					}
					if lit, ok := x.Results[0].(*ast.BasicLit); ok && messages && lit.Kind == token.STRING {
						want(literal(t, file, lit))
					}
				}
				return true
			})
		}
	}
	if wanted < 120 {
		t.Errorf("only %d lines, messages and calls were found in the source", wanted)
	}
}

func literal(t *testing.T, file string, e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%s: a line of a story whose format is no literal has no legend", file)
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
