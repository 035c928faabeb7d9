package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// result is what a command line did.
type result struct {
	code     int
	out, err string
}

func runRoce(t *testing.T, stdin []byte, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, bytes.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

func TestWrongUsageExits2WithOneSentenceAndAHint(t *testing.T) {
	for _, row := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown subcommand", []string{"dekode"}, `there is no subcommand "dekode": is it decode?` + "\nSee 'roce --help'."},
		{"unlike any subcommand", []string{"xyzzy"}, `there is no subcommand "xyzzy"` + "\nSee 'roce --help'."},
		{"unknown flag", []string{"decode", "--foo", "x"}, "unknown flag: --foo\nSee 'roce decode --help'."},
		{"bad flag value", []string{"decode", "--json=maybe", "x"}, `invalid argument "maybe" for "--json" flag: strconv.ParseBool: parsing "maybe": invalid syntax` + "\nSee 'roce decode --help'."},
		{"missing argument", []string{"decode"}, "FILE is missing\nSee 'roce decode --help'."},
		{"extra argument", []string{"decode", "a", "b"}, `"b" is one argument too many: decode takes FILE` + "\nSee 'roce decode --help'."},
		{"flags that exclude each other", []string{"decode", "-v", "--json", "a"}, "--json and --verbose exclude each other: --json has every field already\nSee 'roce decode --help'."},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := runRoce(t, nil, row.args...)
			if want := (result{2, "", "roce: " + row.want + "\n"}); got != want {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

// Errors that cobra itself raises before a command runs are wrong usage too.
func TestRequiredFlagMissingExits2(t *testing.T) {
	ran := false
	root := &cobra.Command{Use: "roce", SilenceErrors: true, SilenceUsage: true}
	sub := &cobra.Command{Use: "sub", RunE: func(*cobra.Command, []string) error { ran = true; return nil }}
	sub.Flags().String("peer", "", "")
	if err := sub.MarkFlagRequired("peer"); err != nil {
		t.Fatal(err)
	}
	root.AddCommand(sub)
	var errOut bytes.Buffer
	code := execute(context.Background(), root, []string{"sub"}, &errOut)
	if code != exitUsage || ran || !strings.Contains(errOut.String(), "peer") || !strings.Contains(errOut.String(), "See 'roce sub --help'.") {
		t.Errorf("exit status %d, ran %v, %q", code, ran, errOut.String())
	}
}

func TestExactArgsNamesWhatIsMissingOrTooMany(t *testing.T) {
	cmd := &cobra.Command{Use: "sub"}
	for _, row := range []struct {
		names, args []string
		want        string
	}{
		{nil, nil, ""},
		{nil, []string{"x"}, `"x" is one argument too many: sub takes none`},
		{[]string{"HOST", "PORT"}, []string{"h", "p"}, ""},
		{[]string{"HOST", "PORT"}, []string{"h"}, "PORT is missing"},
		{[]string{"HOST", "PORT"}, nil, "HOST and PORT are missing"},
		{[]string{"HOST", "PORT"}, []string{"h", "p", "q"}, `"q" is one argument too many: sub takes HOST and PORT`},
	} {
		got := ""
		if err := exactArgs(row.names...)(cmd, row.args); err != nil {
			got = err.Error()
			if exitCode(err) != exitUsage {
				t.Errorf("%v: exit status %d", row.args, exitCode(err))
			}
		}
		if got != row.want {
			t.Errorf("%v for %v: %q, want %q", row.args, row.names, got, row.want)
		}
	}
}

func TestErrorExitStatusAndReport(t *testing.T) {
	for _, row := range []struct {
		name   string
		err    error
		code   int
		report string
	}{
		{"none", nil, 0, ""},
		{"plain", context.Canceled, 1, "roce: context canceled\n"},
		{"already reported", failedSilently(), 1, ""},
		{"usage", usageError(&cobra.Command{Use: "x"}, "bad %d", 7), 2, "roce: bad 7\nSee 'x --help'.\n"},
	} {
		var b bytes.Buffer
		report(&b, row.err)
		if got := exitCode(row.err); got != row.code || b.String() != row.report {
			t.Errorf("%s: exit status %d, %q; want %d, %q", row.name, got, b.String(), row.code, row.report)
		}
	}
}

func TestHelpGoesToStandardOutputAndExits0(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"decode", "--help"}, {"help", "decode"}} {
		got := runRoce(t, nil, args...)
		if got.code != 0 || got.err != "" || !strings.Contains(got.out, "Examples:\n  roce decode") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// Every example in a help text that needs nothing but a capture must work.
func TestHelpExamplesOfDecodeWork(t *testing.T) {
	ran := 0
	for line := range strings.Lines(newDecodeCommand().Example) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " |")
		args := strings.Fields(line)
		if args[0] != "roce" {
			continue
		}
		args[len(args)-1] = capture("rping")
		if got := runRoce(t, nil, args[1:]...); got.code != 0 || got.out == "" {
			t.Errorf("%s: %+v", line, got)
		}
		ran++
	}
	if ran < 4 {
		t.Errorf("%d examples ran", ran)
	}
}
