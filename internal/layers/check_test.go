package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// pack is a package as its imports show it. Names are those below the module; imports
// from elsewhere are left out.
type pack struct {
	name    string
	imports []string
	tests   []string // imports of its tests
}

// below reports whether name is the folder or stands below it.
func below(name, folder string) bool {
	return folder == "" || name == folder || strings.HasPrefix(name, folder+"/")
}

// layerOf returns the layer of a package: the longest folder that holds it, and among
// equal ones that which is for it alone.
func layerOf(name string, all []layer) (found layer, ok bool) {
	for _, l := range all {
		if !below(name, l.folder) || l.exact && name != l.folder {
			continue
		}
		if !ok || len(l.folder) > len(found.folder) || len(l.folder) == len(found.folder) && l.exact {
			found, ok = l, true
		}
	}
	return found, ok
}

// checkImports returns the breaches of the law, and the exceptions that nothing needs.
func checkImports(packs []pack, all []layer, allowed []exception) (breaches []string) {
	used := make([]bool, len(allowed))
	except := func(from, to string) bool {
		i := slices.IndexFunc(allowed, func(e exception) bool { return e.from == from && e.to == to })
		if i >= 0 {
			used[i] = true
		}
		return i >= 0
	}
	for _, p := range packs {
		l, ok := layerOf(p.name, all)
		if !ok {
			breaches = append(breaches, fmt.Sprintf("%s is in no layer: give it one in law_test.go", p.name))
			continue
		}
		for _, to := range p.imports {
			switch {
			case below(to, top) && !below(p.name, top):
				breaches = append(breaches, fmt.Sprintf("%s imports %s, which nothing imports", p.name, to))
			case !slices.ContainsFunc(l.may, func(folder string) bool { return below(to, folder) }) && !except(p.name, to):
				breaches = append(breaches, fmt.Sprintf("%s imports %s: it may import %s", p.name, to, list(l.may)))
			}
		}
		for _, to := range p.tests {
			if below(to, top) && !below(p.name, top) {
				breaches = append(breaches, fmt.Sprintf("a test of %s imports %s, which nothing imports", p.name, to))
			}
		}
	}
	for i, e := range allowed {
		if !used[i] {
			breaches = append(breaches, fmt.Sprintf("%s does not import %s any more: take the exception off the list", e.from, e.to))
		}
	}
	return breaches
}

func list(folders []string) string {
	if len(folders) == 0 {
		return "nothing of this module"
	}
	return strings.Join(folders, ", ")
}

// checkPure returns what must not stand in a file of a package that decides.
func checkPure(name string, src any) (breaches []string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	found := func(at ast.Node, format string, args ...any) {
		breaches = append(breaches, fmt.Sprintf("%s: %s", fset.Position(at.Pos()), fmt.Sprintf(format, args...)))
	}
	imported := map[string]string{} // path by the name in the file
	for _, i := range file.Imports {
		what, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		if isImpure(what) {
			found(i, "imports %s", what)
		}
		as := packageName(what)
		if i.Name != nil {
			as = i.Name.Name
		}
		if as == "." && (what == "time" || narrow[what] != nil) {
			found(i, "imports %s without its name", what)
		}
		imported[as] = what
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found(n, "starts a goroutine")
		case *ast.SelectStmt:
			found(n, "has a select statement")
		case *ast.ChanType:
			found(n, "has a channel")
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			from := imported[of.Name]
			if may := narrow[from]; from == "time" && slices.Contains(clock, n.Sel.Name) || may != nil && !slices.Contains(may, n.Sel.Name) {
				found(n, "uses %s.%s", from, n.Sel.Name)
			}
		}
		return true
	})
	return breaches, nil
}

func isImpure(what string) bool {
	if narrow[what] != nil {
		return false
	}
	return slices.ContainsFunc(impure, func(i string) bool {
		return what == i || strings.HasSuffix(i, "/") && strings.HasPrefix(what, i)
	})
}

// packageName returns the name by which a file knows an import that it gives no other:
// the last part of the path that is no version.
func packageName(what string) string {
	base := path.Base(what)
	if version, ok := strings.CutPrefix(base, "v"); ok {
		if _, err := strconv.Atoi(version); err == nil {
			return path.Base(path.Dir(what))
		}
	}
	return base
}
