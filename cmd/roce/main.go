// Command roce speaks RoCEv2 from user space and explains what it sees. Run
// roce --help for its subcommands.
//
// Exit status: 0 when all went well, 1 when something failed, 2 when the
// command line was wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks the subcommand to finish; the next one ends it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, toolArgs(os.Args), os.Stdin, os.Stdout, os.Stderr))
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "roce",
		Short: "RDMA over Converged Ethernet in user space",
		Long: `roce speaks RoCEv2, RDMA over UDP port 4791, from user space: no kernel module,
no RDMA adapter. It also explains RoCE traffic that others captured.

Exit status: 0 all went well, 1 something failed, 2 wrong usage.`,
		Example: "  roce demo\n  roce pingpong rc --help\n  roce decode capture.pcap",
		Version: version(),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usageError(cmd, "there is no subcommand %q%s", args[0], suggestion(cmd, args[0]))
		},
	}
	root.SetHelpCommand(newHelpCommand())
	root.AddCommand(newDemoCommand(), newInfoCommand(), newPingpongCommand(), newPerfCommand(), newDecodeCommand(), newSimCommand(), newFaultsTopic())
	return root
}

// newHelpCommand is cobra's own, except that it knows when it has nothing to
// show.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				what := strings.Join(args, " ")
				return usageError(cmd.Root(), "there is no help about %q%s", what, suggestion(cmd.Root(), what))
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// badValue matches what the flag package says about a value that it cannot
// parse: value, name and reason.
var badValue = regexp.MustCompile(`(?s)^invalid argument ("(?:[^"\\]|\\.)*") for "(?:-\w, )?--([\w-]+)" flag: (.*)$`)

// plainFlagError says what a flag takes instead of how it was parsed.
func plainFlagError(cmd *cobra.Command, err error) error {
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	value, name, reason := m[1], m[2], m[3]
	flag := cmd.Flags().Lookup(name)
	if flag == nil {
		return err
	}
	takes := ""
	switch flag.Value.Type() {
	case "int", "uint64":
		takes = "a number"
		text, _ := strconv.Unquote(value)
		_, err := strconv.ParseFloat(text, 64)
		switch {
		case err == nil && strings.ContainsAny(text, ".eE"):
			takes = "a whole number"
		case err == nil && strings.HasPrefix(text, "-"):
			takes = "a number that is not negative"
		case err == nil:
			takes = "a smaller number"
		}
	case "float64":
		takes = "a number"
	case "duration":
		takes = "a time such as 5s"
	case "bool":
		takes = "true or false"
	default:
		return fmt.Errorf("--%s: %s", name, reason)
	}
	return fmt.Errorf("--%s takes %s, not %s", name, takes, value)
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRootCommand()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(cmd, "%w", plainFlagError(cmd, err))
	})
	return execute(ctx, root, args, errOut)
}

// execute runs the command that args name. An error from before it began, such
// as cobra's about a missing flag, is one about the command line.
func execute(ctx context.Context, root *cobra.Command, args []string, errOut io.Writer) int {
	started := false
	noteStart(root, &started)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !started && exitCode(err) != exitUsage {
		err = usageError(cmd, "%w", err)
	}
	report(errOut, err)
	return exitCode(err)
}

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// exitError is an error with an exit status of its own. Without err nothing is
// printed: the command has said what there was to say.
type exitError struct {
	code int
	err  error
	hint string // a line of its own after the error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError says what is wrong with the command line, in one sentence, and
// where to look it up. The program exits with status 2.
func usageError(cmd *cobra.Command, format string, args ...any) error {
	return &exitError{
		code: exitUsage,
		err:  fmt.Errorf(format, args...),
		hint: fmt.Sprintf("See '%s --help'.", cmd.CommandPath()),
	}
}

// failedSilently ends the program with status 1 and no further message.
func failedSilently() error { return &exitError{code: exitFailed} }

// exactArgs checks that there is one argument for each name, for
// cobra.Command.Args.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			missing := names[len(args):]
			return usageError(cmd, "%s %s missing", strings.Join(missing, " and "), choose(len(missing) == 1, "is", "are"))
		case len(args) > len(names) && len(names) == 0:
			return usageError(cmd, "%q is one argument too many: %s takes none", args[0], cmd.Name())
		case len(args) > len(names):
			return usageError(cmd, "%q is one argument too many: %s takes %s", args[len(names)], cmd.Name(), strings.Join(names, " and "))
		}
		return nil
	}
}

// noteStart makes every command set started when it begins to run.
func noteStart(cmd *cobra.Command, started *bool) {
	if runE := cmd.RunE; runE != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return runE(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		noteStart(sub, started)
	}
}

func report(w io.Writer, err error) {
	var e *exitError
	is := errors.As(err, &e)
	if err == nil || is && e.err == nil {
		return
	}
	fmt.Fprintf(w, "roce: %v\n", err)
	if is && e.hint != "" {
		fmt.Fprintln(w, e.hint)
	}
}

func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	}
	return exitFailed
}

// suggestion returns a question that names the subcommands which arg resembles.
func suggestion(cmd *cobra.Command, arg string) string {
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(arg); len(s) > 0 {
		return fmt.Sprintf(": is it %s?", strings.Join(s, " or "))
	}
	return ""
}

// version is that of the module, as the Go toolchain recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
