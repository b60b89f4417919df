package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// listed is a package as `go list -json` tells it.
type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Module       struct{ Path string }
}

// repository lists the packages of this module.
func repository(t *testing.T) []pack {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Module", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packs []pack
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return packs
		} else if err != nil {
			t.Fatal(err)
		}
		ours := func(all []string) (names []string) {
			for _, i := range all {
				if name, ok := strings.CutPrefix(i, l.Module.Path+"/"); ok {
					names = append(names, name)
				}
			}
			return names
		}
		packs = append(packs, pack{
			name:    strings.TrimPrefix(l.ImportPath, l.Module.Path+"/"),
			imports: ours(l.Imports),
			tests:   append(ours(l.TestImports), ours(l.XTestImports)...),
		})
	}
}

// TestImportsKeepTheLaw: no package of this repository imports what its layer must not
// know.
func TestImportsKeepTheLaw(t *testing.T) {
	packs := repository(t)
	for _, name := range deciding {
		if !slices.ContainsFunc(packs, func(p pack) bool { return p.name == name && len(p.imports) > 0 }) {
			t.Errorf("%s imports nothing of ours or is not there: the list of packages does not say what it should", name)
		}
	}
	for _, breach := range checkImports(packs, layers, exceptions) {
		t.Error(breach)
	}
}

// TestWhatDecidesIsPure: the packages that decide have no clock, no chance, no
// goroutine and no input or output, on any platform.
func TestWhatDecidesIsPure(t *testing.T) {
	for _, name := range deciding {
		files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
		if len(files) == 0 {
			t.Errorf("%s has no files: the list of packages that decide is out of date", name)
		}
		for _, f := range files {
			breaches, err := checkPure(f, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, breach := range breaches {
				t.Errorf("%s decides, and must do nothing else: %s", name, breach)
			}
		}
	}
}
