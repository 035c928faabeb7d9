// Command cisummary reads the output of go test -json and prints what a reader
// of a CI log needs: a line per package, the whole output of each failed test,
// a line "SKIP …" per skipped test with its reason, and a closing count.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

type key struct{ pkg, test string }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: cisummary FILE")
		os.Exit(2)
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer f.Close()
	s := summary{output: map[key][]string{}}
	in := bufio.NewScanner(f)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			fmt.Println(in.Text()) // a build error, say
			continue
		}
		s.add(e)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
}

type summary struct {
	output                  map[key][]string
	passed, failed, skipped int
}

func (s *summary) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		s.output[k] = append(s.output[k], e.Output)
	case "pass":
		s.count(e, &s.passed)
		delete(s.output, k)
	case "fail":
		s.count(e, &s.failed)
		fmt.Print(strings.Join(s.output[k], ""))
	case "skip":
		s.count(e, &s.skipped)
		if e.Test != "" {
			fmt.Printf("SKIP %s %s: %s\n", e.Package, e.Test, reason(s.output[k]))
		}
	}
}

func (s *summary) count(e event, n *int) {
	if e.Test != "" {
		*n++
		return
	}
	if e.Action != "skip" { // a package without tests
		fmt.Printf("%-4s %s %.1f s\n", e.Action, e.Package, e.Elapsed)
	}
}

// reason finds what a test said when it skipped.
func reason(output []string) string {
	for _, line := range output {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "===") && !strings.HasPrefix(t, "---") {
			return t
		}
	}
	return "no reason given"
}
