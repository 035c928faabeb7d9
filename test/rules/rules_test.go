package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

func TestPageIsUpToDate(t *testing.T) {
	got, err := os.ReadFile(root + "/docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	if err := write(&want); err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Fatal("docs/rules.md is not what `go run ./test/rules` prints")
	}
}

// TestEveryRuleHasItsTests: the tests named in the table exist, and so do the
// rows of theirs that it names.
func TestEveryRuleHasItsTests(t *testing.T) {
	pkgs := map[string]*testFiles{}
	for _, s := range sections {
		for _, r := range s.rules {
			names := append([]string(nil), r.tests...)
			for i, part := range strings.Split(r.rxe, "`") {
				if i%2 == 1 && strings.Contains(part, ".Test") {
					names = append(names, part)
				}
			}
			if len(r.tests) == 0 {
				t.Errorf("%s: no test", r.stimulus)
			}
			for _, n := range names {
				checkTest(t, pkgs, n)
			}
		}
	}
}

func checkTest(t *testing.T, pkgs map[string]*testFiles, name string) {
	t.Helper()
	pkg, rest, ok := strings.Cut(name, ".Test")
	if !ok {
		t.Errorf("%q names no test", name)
		return
	}
	if pkgs[pkg] == nil {
		pkgs[pkg] = readTests(t, pkg)
	}
	fn, row, _ := strings.Cut("Test"+rest, "/")
	if !pkgs[pkg].funcs[fn] {
		t.Errorf("%s: there is no %s in %s", name, fn, pkg)
	}
	if row != "" && !pkgs[pkg].words[row] {
		t.Errorf("%s: no test of %s has a row %q", name, pkg, row)
	}
}

// testFiles is what the tests of a package contain.
type testFiles struct {
	funcs map[string]bool // tests
	words map[string]bool // string literals
}

func readTests(t *testing.T, pkg string) *testFiles {
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", pkg, err)
	}
	found := &testFiles{map[string]bool{}, map[string]bool{}}
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				found.funcs[n.Name.Name] = n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test")
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil {
					found.words[s] = true
				}
			}
			return true
		})
	}
	return found
}
