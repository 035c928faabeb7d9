// Command rules prints the table of protocol rules, what the standard says of
// each, and the tests that hold it, as docs/rules.md:
//
//	go run ./test/rules > docs/rules.md
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write prints the whole page.
func write(w io.Writer) error {
	out := &strings.Builder{}
	out.WriteString(`# Protocol rules and the tests that hold them

Made by ` + "`go run ./test/rules > docs/rules.md`" + `; a test compares the two and checks that every
test named here exists. "Stimulus" is what arrives or is posted, "effect" what follows: the
NAK on the wire, the completion or event, the state. Clauses are those of the InfiniBand
Architecture Specification, Volume 1. "With rxe" names the case that shows the rule against
Linux rdma_rxe, or how rxe differs (see [peer-quirks.md](peer-quirks.md)).
`)
	for _, s := range sections {
		fmt.Fprintf(out, "\n## %s\n\n| stimulus | effect | clause | test | with rxe |\n|---|---|---|---|---|\n", s.title)
		for _, r := range s.rules {
			fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", r.stimulus, r.effect, r.clause, code(r.tests), r.rxe)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func code(names []string) string {
	s := make([]string, len(names))
	for i, n := range names {
		s[i] = "`" + n + "`"
	}
	return strings.Join(s, ", ")
}

// section is one group of rules.
type section struct {
	title string
	rules []rule
}

// rule is one row. A test is PACKAGE.TestName or PACKAGE.TestName/row; of a
// row, the words must occur in a string of the package's tests.
type rule struct {
	stimulus, effect, clause string
	tests                    []string
	rxe                      string
}

// t lists tests.
func t(names ...string) []string { return names }

// refused names a row of the table of refusals.
func refused(row string) string { return "transport.TestResponderRefusesAndFails/" + row }

// status names a row of the table of error statuses seen with rxe.
func status(row string) string { return "`test/rxe.TestErrorStatus/" + row + "`" }
