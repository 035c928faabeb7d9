package rxe_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The second guest is a peer of the first one. It has a namespace of its own, joined to
// the first one's by a veth pair: packets between the guests' eth0 are routed there. The
// exchange of the programs takes eth1 of the first guest, which `lab.sh loss` leaves alone.
const (
	secondIPv4     = "198.18.2.2"
	secondExchange = "198.18.3.2"
	firstExchange  = "198.18.4.2"
	secondRoce     = "/root/roce"
)

// joinNamespaces runs in the first namespace; its argument is the second.
const joinNamespaces = `set -e
sysctl -qw net.ipv4.ip_forward=1
ip link add join0 mtu 4500 type veth peer name join0 mtu 4500 netns %[1]s
ip address add 198.18.2.1/24 dev join0
ip link set join0 up
ip address add 198.18.4.1/24 dev tap1
ip route add 198.18.3.0/24 via 198.18.2.2
ip -n %[1]s link add join1 mtu 4500 type bridge
ip -n %[1]s link set tap0 master join1
ip -n %[1]s link set join0 master join1 up
ip -n %[1]s link set join1 up`

const leaveNamespace = `ip link del join0; ip address del 198.18.4.1/24 dev tap1; sysctl -qw net.ipv4.ip_forward=0; true`

// joinFirst and joinSecond run in the guests.
const (
	joinFirst = `set -e
ip address add 198.18.4.2/24 dev eth1
ip route add 198.18.2.0/24 via 198.18.0.1
ip route add 198.18.3.0/24 via 198.18.4.1 src 198.18.4.2`
	leaveFirst = `ip route del 198.18.3.0/24; ip route del 198.18.2.0/24; ip address del 198.18.4.2/24 dev eth1; true`
	joinSecond = `set -e
ip address del 198.18.0.2/24 dev eth0
ip address add 198.18.2.2/24 dev eth0
ip address add 198.18.3.2/32 dev lo
ip route add 198.18.0.0/24 via 198.18.2.1
ip route add 198.18.4.0/24 via 198.18.2.1 src 198.18.3.2`
)

// withoutRXE and withRXE take the driver out of a guest and put it back: as long as it
// is there, port 4791 is its.
const (
	withoutRXE = `set -e
if [ -e /sys/class/infiniband/rxe0 ]; then rdma link del rxe0; fi
modprobe -r rdma_rxe`
	withRXE = `set -e
modprobe rdma_rxe
[ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev eth0
for i in $(seq 100); do
	grep -qs :ffff:c612:0202 /sys/class/infiniband/rxe0/ports/1/gids/* && exit
	sleep 0.1
done
echo "rxe0 has no GID for 198.18.2.2" >&2
exit 1`
)

// bootSecond boots the second guest for the test and joins it to the first.
func (l *lab) bootSecond(t *testing.T) *lab {
	t.Helper()
	second := &lab{guest: l.guest + "-b", roce: l.roce, artifacts: l.artifacts}
	run(t, l.outside(t, "down", second.guest)) // a run that was killed may have left it
	run(t, l.outside(t, "up", second.guest))
	t.Cleanup(func() { run(t, l.outside(t, "down", second.guest)) })
	inNamespace(t, leaveNamespace)
	run(t, l.inGuest(time.Minute, leaveFirst))
	t.Cleanup(func() {
		inNamespace(t, leaveNamespace)
		run(t, l.inGuest(time.Minute, leaveFirst))
	})
	inNamespace(t, fmt.Sprintf(joinNamespaces, "goroce-"+second.guest))
	run(t, l.inGuest(time.Minute, joinFirst))
	run(t, second.inGuest(time.Minute, joinSecond))
	run(t, second.inGuest(time.Minute, withRXE))
	run(t, l.script("put", "-n", second.guest, l.roce, secondRoce))
	run(t, second.inGuest(time.Minute, "ping -q -c 3 -i 0.2 "+guestIPv4))
	return second
}

// outside is a call of lab.sh among the mounts of the process that started the tests: the
// name of a namespace that is made among our own would be lost when we are killed.
func (l *lab) outside(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	script, err := filepath.Abs("lab.sh") // nsenter changes the directory
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command("nsenter", append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", os.Getppid()), "bash", script}, args...)...)
}

// inNamespace runs a script of the host in the first guest's namespace, where tests run.
func inNamespace(t *testing.T, script string) {
	t.Helper()
	run(t, exec.Command("bash", "-c", script))
}

// gidIndex returns where rxe0 has the GID of an IPv4 address, as in c612:0202.
func (l *lab) gidIndex(t *testing.T, hex string) string {
	t.Helper()
	return strings.TrimSpace(run(t, l.inGuest(time.Minute, "cd /sys/class/infiniband/rxe0/ports/1/gids && grep -ls :ffff:"+hex+" *")))
}
