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
	guestLimit  = 60 // seconds that a command may take
	guestTime   = 5  // seconds that data flow
	guestRounds = 5
	guestCPUs   = "2" // one for each of the two processes
)

// guestSetup joins two rxe devices by a veth pair, and two network namespaces for
// goroce by another: rxe exists in the initial namespace only and has port 4791
// there. Both ends of rxe's pair are this host, hence accept_local.
const guestSetup = `set -e
pair() { ip link add $1 mtu 4500 type veth peer name $2 mtu 4500; }
pair rxe-a rxe-b
for n in all rxe-a rxe-b; do sysctl -qw net.ipv4.conf.$n.accept_local=1 net.ipv4.conf.$n.rp_filter=0; done
ip address add 198.18.5.1/24 dev rxe-a
ip address add 198.18.5.2/24 dev rxe-b
ip link set rxe-a up
ip link set rxe-b up
rdma link add rxe-a type rxe netdev rxe-a
rdma link add rxe-b type rxe netdev rxe-b
pair own-a own-b
for e in a b; do
	ip netns add $e
	ip link set own-$e netns $e
	ip -n $e link set lo up
	ip -n $e link set own-$e up
done
ip -n a address add 198.18.6.1/24 dev own-a
ip -n b address add 198.18.6.2/24 dev own-b
for i in $(seq 50); do
	grep -qs :ffff:c612:0501 /sys/class/infiniband/rxe-a/ports/1/gids/1 && grep -qs :ffff:c612:0502 /sys/class/infiniband/rxe-b/ports/1/gids/1 && exit
	sleep 0.1
done
echo "the rxe devices have no GID 1 for their addresses"
exit 1`

// measureGuest boots a guest and lets rxe and goroce take turns.
func (b *bench) measureGuest(ctx context.Context) error {
	lab := &lab{script: filepath.Join(b.root, "test", "rxe", "lab.sh")}
	if lab.run(ctx, "status", guestName) == nil {
		return fmt.Errorf("the guest %q is up already: test/rxe/lab.sh down %[1]s", guestName)
	}
	for _, step := range [][]string{{"install"}, {"build"}, {"up", guestName}} {
		progress("lab.sh %s", strings.Join(step, " "))
		if err := lab.run(ctx, step...); err != nil {
			return err
		}
	}
	defer func() { _ = lab.run(context.Background(), "down", guestName) }()
	if err := lab.run(ctx, "put", "-n", guestName, b.o.roce, guestRoce); err != nil {
		return err
	}
	b.results.Conditions.Tools["guest"] = "Linux " + strings.TrimSpace(lab.output(ctx, "uname -r"))
	if _, err := lab.exec(ctx, guestSetup); err != nil {
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
	rxe := fmt.Sprintf("-F -x 1 -m 4096 -s %s -D %d --report_gbits -p %d", size, guestTime, port)
	out, err := l.exec(ctx, background("ib_write_bw -d rxe-a "+rxe, "sleep 1; ib_write_bw -d rxe-b "+rxe+" 198.18.5.1"))
	if err != nil {
		return g, fmt.Errorf("rxe: %w", err)
	}
	if g.RXE, err = parsePerftest(out); err != nil {
		return g, fmt.Errorf("rxe: %w", err)
	}
	own := fmt.Sprintf("%s perf write_bw -m 4096 -s %s -D %d --json -p %d", guestRoce, size, guestTime, port+1)
	out, err = l.exec(ctx, background("ip netns exec a "+own+" -d 198.18.6.1", "sleep 1; ip netns exec b "+own+" -d 198.18.6.2 198.18.6.1"))
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
	c.Env = append(os.Environ(), "GOROCE_RXE_CPUS="+guestCPUs)
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
