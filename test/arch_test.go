package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/goroce/goroce"

// layers says what each package may import beside the standard library: other
// packages of the module by their folder, third parties by the start of their
// path. "*" is anything. A package that is not listed fails the test: decide
// where it belongs first.
var layers = map[string][]string{
	"bth":           {},
	"bth/layers":    {"bth", "github.com/google/gopacket"},
	"mr":            {"golang.org/x/sys"},
	"cq":            {"bth"},
	"qp":            {"bth", "mr", "cq"},
	"congestion":    {},
	"transport":     {"bth", "mr", "cq", "qp", "congestion"},
	"udp":           {"bth", "golang.org/x/sys"},
	"verbs":         {"bth", "mr", "cq", "qp", "congestion", "transport", "udp", "golang.org/x/sys", "github.com/vishvananda/netlink"},
	"cm":            {"bth", "mr", "cq", "qp", "verbs"},
	"fabric":        {"bth", "mr", "cq", "qp", "congestion", "transport"},
	"fabric/plot":   {"fabric", "gonum.org/v1/plot"},
	"cmd/roce/perf": {"bth", "mr", "cq", "qp", "verbs"},
	"cmd/roce": {"bth", "bth/layers", "mr", "cq", "qp", "congestion", "transport", "udp", "verbs", "cm", "fabric", "fabric/plot", "cmd/roce/perf",
		"github.com/google/gopacket", "github.com/jedib0t/go-pretty", "github.com/schollz/progressbar", "github.com/spf13/cobra", "golang.org/x/sys"},
	"test/*": {"*"},
}

// core are the packages without I/O, clock and concurrency of their own: values
// that are fed and drained.
var core = []string{"bth", "mr", "cq", "qp", "transport", "congestion"}

// coreBans are imports that no core package has, with the reason.
var coreBans = map[string]string{
	"net": "the core does no I/O (net/netip is fine)", "os": "the core knows no operating system", "log": "the core logs nothing",
	"math/rand": "randomness is given at construction", "crypto": "randomness is given at construction", "C": "there is no cgo",
}

// lockFree are the core packages that belong to one owner: no locks.
var lockFree = []string{"qp", "transport", "congestion"}

// coreTime are the names of package time that the core may use: durations. The
// time itself is an argument.
var coreTime = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

// TestImportsFollowTheLayers checks the imports of all non-test files, whatever
// system they are for.
func TestImportsFollowTheLayers(t *testing.T) {
	seen := map[string]bool{}
	eachFile(t, func(dir, file string, f *ast.File, _ *token.FileSet) {
		rule, ok := ruleFor(dir)
		if !ok {
			if !seen[dir] {
				t.Errorf("package %s is not in the table of layers", dir)
			}
			seen[dir] = true
			return
		}
		seen[dir] = true
		for _, s := range f.Imports {
			p, _ := strconv.Unquote(s.Path.Value)
			if !allowed(rule, p) {
				t.Errorf("%s imports %q; %s may import the standard library and %v only", file, p, dir, rule)
			}
		}
	})
	for dir := range layers {
		if !strings.HasSuffix(dir, "/*") && dir != "cm" && !seen[dir] {
			t.Errorf("package %s of the table does not exist", dir)
		}
	}
}

// TestCoreIsPure checks that the core is fed and drained: no I/O, clock,
// goroutine, channel, and no lock where one owner is assumed.
func TestCoreIsPure(t *testing.T) {
	eachFile(t, func(dir, file string, f *ast.File, fset *token.FileSet) {
		if !slices.Contains(core, dir) {
			return
		}
		for _, s := range f.Imports {
			p, _ := strconv.Unquote(s.Path.Value)
			for ban, why := range coreBans {
				if within(p, ban) && p != "net/netip" {
					t.Errorf("%s imports %q: %s", file, p, why)
				}
			}
			if within(p, "sync") && slices.Contains(lockFree, dir) {
				t.Errorf("%s imports %q: a shard has one owner, nothing in %s takes a lock", file, p, dir)
			}
		}
		timeName := importedAs(f, "time")
		ast.Inspect(f, func(n ast.Node) bool {
			bad := ""
			switch n := n.(type) {
			case *ast.GoStmt:
				bad = "starts a goroutine"
			case *ast.ChanType:
				bad = "has a channel"
			case *ast.SelectStmt:
				bad = "has a select statement"
			case *ast.SendStmt:
				bad = "sends on a channel"
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && timeName != "" && x.Name == timeName && !slices.Contains(coreTime, n.Sel.Name) {
					bad = fmt.Sprintf("uses time.%s; the time is an argument", n.Sel.Name)
				}
			}
			if bad != "" {
				t.Errorf("%v %s: the core may not", fset.Position(n.Pos()), bad)
			}
			return true
		})
	})
}

// eachFile parses every non-test Go file of the module.
func eachFile(t *testing.T, f func(dir, file string, parsed *ast.File, fset *token.FileSet)) {
	t.Helper()
	root := ".."
	fset := token.NewFileSet()
	files := 0
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		name := ""
		if err == nil {
			name = e.Name()
		}
		switch {
		case err != nil:
			return err
		case e.IsDir() && p != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		parsed, err := parser.ParseFile(fset, p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		f(path.Dir(rel), rel, parsed, fset)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 30 {
		t.Fatalf("%d files found: the module is not where it should be", files)
	}
}

func ruleFor(dir string) (rule []string, ok bool) {
	if rule, ok = layers[dir]; ok {
		return rule, true
	}
	for pattern, rule := range layers {
		if parent, all := strings.CutSuffix(pattern, "/*"); all && within(dir, parent) {
			return rule, true
		}
	}
	return nil, false
}

// allowed reports whether a rule allows the import.
func allowed(rule []string, p string) bool {
	first, _, _ := strings.Cut(p, "/")
	if !strings.Contains(first, ".") {
		return p != "C" // the standard library
	}
	inside, own := strings.CutPrefix(p, module+"/")
	for _, r := range rule {
		if r == "*" || own && inside == r || !own && strings.Contains(r, ".") && within(p, r) {
			return true
		}
	}
	return false
}

// within reports whether p is the path parent or lies under it.
func within(p, parent string) bool { return p == parent || strings.HasPrefix(p, parent+"/") }

// importedAs returns the name that a file uses for a package, "" if none.
func importedAs(f *ast.File, p string) string {
	for _, s := range f.Imports {
		if got, _ := strconv.Unquote(s.Path.Value); got == p {
			if s.Name != nil {
				return s.Name.Name
			}
			return path.Base(p)
		}
	}
	return ""
}
