package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The guest of test/rxe in which rxe and goroce are measured.
const (
	guestName   = "bench"
	guestRoce   = "/root/roce"
	guestAddr   = "198.18.0.2"
	guestSpace  = "goroce"
	guestOwn    = "127.0.10.1"
	guestOther  = "127.0.10.2"
	guestLimit  = 60 // seconds that a command may take
	guestTime   = 2  // seconds that data flow
	guestRounds = 3
)

// measureGuest boots a guest, unless it is up, and lets rxe and goroce take turns.
func (b *bench) measureGuest(ctx context.Context) error {
	lab := &lab{script: filepath.Join(b.root, "test", "rxe", "lab.sh")}
	wasUp := lab.run(ctx, "status", guestName) == nil
	if !wasUp {
		for _, step := range [][]string{{"install"}, {"build"}, {"up", guestName}} {
			progress("lab.sh %s", strings.Join(step, " "))
			if err := lab.run(ctx, step...); err != nil {
				return err
			}
		}
		defer func() { _ = lab.run(context.Background(), "down", guestName) }()
	}
	if err := lab.run(ctx, "put", "-n", guestName, b.o.roce, guestRoce); err != nil {
		return err
	}
	b.results.Conditions.Tools["guest"] = "Linux " + strings.TrimSpace(lab.output(ctx, "uname -r"))
	space := fmt.Sprintf("ip netns add %[1]s 2>/dev/null; ip -n %[1]s link set lo up", guestSpace)
	if _, err := lab.exec(ctx, space); err != nil {
		return err
	}
	rounds := min(guestRounds, b.e.rounds)
	for round := range rounds {
		for _, kind := range []string{rxeBandwidth, rxeRate} {
			g, err := measureBeside(ctx, lab, kind, 22000+10*round)
			if err != nil {
				if ctx.Err() != nil {
					return errors.New("interrupted")
				}
				b.skip("%s in the guest, round %d: %v", kind, round+1, err)
				continue
			}
			progress("round %d of %d: %s: goroce %s Gb/s, %s M/s; rxe %s Gb/s, %s M/s", round+1, rounds, kind,
				number(g.Own.Gbps), number(g.Own.Mpps), number(g.RXE.Gbps), number(g.RXE.Mpps))
			b.results.Guest = append(b.results.Guest, g)
		}
	}
	return nil
}

// measureBeside measures one after the other.
func measureBeside(ctx context.Context, l *lab, kind string, port int) (g guestReading, err error) {
	size := map[string]string{rxeBandwidth: "65536", rxeRate: "8"}[kind]
	g.Kind = kind
	rxe := fmt.Sprintf("ib_write_bw -d rxe0 -x 1 -F -m 4096 -s %s -D %d --report_gbits -p %d", size, guestTime, port)
	out, err := l.exec(ctx, background(rxe, "sleep 1; "+rxe+" "+guestAddr))
	if err != nil {
		return g, fmt.Errorf("rxe: %w", err)
	}
	if g.RXE, err = parsePerftest(out); err != nil {
		return g, fmt.Errorf("rxe: %w", err)
	}
	own := fmt.Sprintf("ip netns exec %s %s perf write_bw -m 4096 -s %s -D %d --json -p %d", guestSpace, guestRoce, size, guestTime, port+1)
	out, err = l.exec(ctx, background(own+" -d "+guestOwn, "sleep 1; "+own+" -d "+guestOther+" "+guestOwn))
	if err != nil {
		return g, fmt.Errorf("goroce: %w", err)
	}
	if g.Own, err = parseRows(out); err != nil {
		return g, fmt.Errorf("goroce: %w", err)
	}
	return g, nil
}

// background runs a server beside a client and ends with the client's status; a
// server that goes on by itself is ended.
func background(server, client string) string {
	return fmt.Sprintf("timeout %d %s >/tmp/server.log 2>&1 & s=$!; %s; e=$?; kill $s 2>/dev/null; exit $e", guestLimit, server, client)
}

// lab is test/rxe/lab.sh.
type lab struct{ script string }

func (l *lab) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", join([]string{l.script}, args...)...)
	c.Stderr = os.Stderr
	if args[0] == "status" {
		c.Stderr = nil
	}
	if err := c.Run(); err != nil {
		return fmt.Errorf("lab.sh %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (l *lab) exec(ctx context.Context, line string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, (guestLimit+20)*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash", l.script, "exec", "-n", guestName, "-t", fmt.Sprint(guestLimit), line).Output()
	if err != nil {
		var exit *exec.ExitError
		said := ""
		if errors.As(err, &exit) {
			said = firstLine(string(exit.Stderr) + string(out))
		}
		return nil, fmt.Errorf("%w: %s", err, said)
	}
	return out, nil
}

func (l *lab) output(ctx context.Context, line string) string {
	out, _ := l.exec(ctx, line)
	return string(out)
}

// firstLine returns the first line that says something, cut if it is long.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > maxWords {
		s = s[:maxWords] + "…"
	}
	return s
}
