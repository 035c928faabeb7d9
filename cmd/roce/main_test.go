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
		{"bad flag value", []string{"decode", "--json=maybe", "x"}, `--json takes true or false, not "maybe"` + "\nSee 'roce decode --help'."},
		{"number that is none", []string{"pingpong", "rc", "--port", "abc"}, `--port takes a number, not "abc"` + "\nSee 'roce pingpong rc --help'."},
		{"short name of a number", []string{"pingpong", "rc", "-n", "1.5"}, `--iters takes a whole number, not "1.5"` + "\nSee 'roce pingpong rc --help'."},
		{"number too large", []string{"pingpong", "rc", "-n", "99999999999999999999"}, `--iters takes a smaller number, not "99999999999999999999"` + "\nSee 'roce pingpong rc --help'."},
		{"negative number", []string{"demo", "--seed", "-1"}, `--seed takes a number that is not negative, not "-1"` + "\nSee 'roce demo --help'."},
		{"time without unit", []string{"pingpong", "rc", "--wait", "5"}, `--wait takes a time such as 5s, not "5"` + "\nSee 'roce pingpong rc --help'."},
		{"percentage that is none", []string{"demo", "--loss", `a"b`}, `--loss takes a number, not "a\"b"` + "\nSee 'roce demo --help'."},
		{"loss that is no number", []string{"demo", "--loss", "NaN"}, "--loss is NaN; it must be 0 to 20 percent\nSee 'roce demo --help'."},
		{"infinite loss", []string{"demo", "--loss", "Inf"}, "--loss is +Inf; it must be 0 to 20 percent\nSee 'roce demo --help'."},
		{"one address", []string{"demo", "--addrs", "127.0.3.1"}, "--addrs names 1 address; it takes two, separated by a comma\nSee 'roce demo --help'."},
		{"three addresses", []string{"demo", "--addrs", "127.0.3.1,127.0.3.2,127.0.3.3"}, "--addrs names 3 addresses; it takes two, separated by a comma\nSee 'roce demo --help'."},
		{"one address twice", []string{"demo", "--addrs", "127.0.3.1,::ffff:127.0.3.1"}, "--addrs names one address twice: two devices on one host need two addresses\nSee 'roce demo --help'."},
		{"help about nothing", []string{"help", "frob"}, `there is no help about "frob"` + "\nSee 'roce --help'."},
		{"help about a misspelling", []string{"help", "dekode"}, `there is no help about "dekode": is it decode?` + "\nSee 'roce --help'."},
		{"unknown test", []string{"pingpong", "xx"}, `there is no test "xx": choose rc, uc, ud or srq` + "\nSee 'roce pingpong --help'."},
		{"empty host", []string{"pingpong", "rc", ""}, "HOST is empty: give the name or address of the server, or leave it out to be the server\nSee 'roce pingpong rc --help'."},
		{"host with a port", []string{"pingpong", "uc", "example.org:80"}, "HOST takes no port; use -p, as in 'roce pingpong uc -p 80 example.org'\nSee 'roce pingpong uc --help'."},
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
		if got.code != 0 || got.err != "" || !strings.Contains(got.out, "Examples:\n  roce ") || !strings.Contains(got.out, "roce decode capture.pcap") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := runRoce(t, nil, "help", "pingpong", "rc"); got.code != 0 || !strings.Contains(got.out, "roce pingpong rc 192.0.2.7") {
		t.Errorf("%+v", got)
	}
	if got := runRoce(t, nil); !strings.Contains(got.out, "Examples:\n  roce demo\n  roce pingpong rc --help\n") {
		t.Errorf("%+v", got)
	}
}

func TestPingpongWithoutATestPrintsHelpAndExits2(t *testing.T) {
	got := runRoce(t, nil, "pingpong")
	if got.code != 2 || got.err != "" || !strings.Contains(got.out, "roce pingpong [command]") {
		t.Errorf("%+v", got)
	}
}

// The value of a flag's other name is that of the flag itself.
func TestOtherNamesOfFlagsAreAcceptedAndHidden(t *testing.T) {
	cmd := newPingpongKindCommand(pingpongKinds[0])
	if err := cmd.ParseFlags([]string{"--ib-dev", "127.0.3.1", "--chk"}); err != nil {
		t.Fatal(err)
	}
	if dev, check := cmd.Flags().Lookup("dev").Value.String(), cmd.Flags().Lookup("check").Value.String(); dev != "127.0.3.1" || check != "true" {
		t.Errorf("--dev is %q, --check is %s", dev, check)
	}
	if u := cmd.UsageString(); strings.Contains(u, "ib-dev") || strings.Contains(u, "--chk") {
		t.Errorf("%s", u)
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
