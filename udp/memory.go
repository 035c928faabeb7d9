package udp

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/goroce/goroce/bth"
)

// Switch joins links in memory. Packets have real bytes and a real ICRC, and
// are lost when a receiver does not keep up.
type Switch struct {
	mu    sync.Mutex
	ports map[netip.Addr][]*memory // by unicast and group address
}

// NewSwitch returns a switch without links.
func NewSwitch() *Switch { return &Switch{ports: map[netip.Addr][]*memory{}} }

// Link attaches a link with the given address.
func (w *Switch) Link(a netip.Addr) (Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ports[a] != nil {
		return nil, &InUseError{Addr: netip.AddrPortFrom(a, bth.Port), Holder: "another link of this switch has the address", Err: fmt.Errorf("duplicate address")}
	}
	m := &memory{inbox: newInbox(a), info: Info{Addr: a, SrcPorts: onePort, Kind: "memory"}, sw: w, joined: map[netip.Addr]int{}}
	w.ports[a] = []*memory{m}
	return m, nil
}

// receivers returns the links that get what is sent to an address. The slice is
// not changed later: joining and leaving make a new one.
func (w *Switch) receivers(a netip.Addr) []*memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ports[a]
}

// memory is a link of a Switch.
type memory struct {
	inbox
	info   Info
	sw     *Switch
	joined map[netip.Addr]int // groups, guarded by sw.mu
	stats  counters
	out    []byte
}

// Info implements Link.
func (m *memory) Info() Info { return m.info }

// Counters implements Link.
func (m *memory) Counters(f func(string, uint64)) {
	m.stats[rxQueueFull] = m.full.Load()
	m.stats.each(f)
}

// Receive implements Link.
func (m *memory) Receive() []bth.Datagram { return m.take(&m.stats) }

// Send implements Link.
func (m *memory) Send(b *bth.Burst) {
	for i := range b.Frames() {
		f := &b.Frames()[i]
		f.Seal(0)
		m.out = f.AppendTo(m.out[:0])
		m.stats[txPackets]++
		m.stats[txBytes] += uint64(len(m.out))
		dst := f.Path.Dst.WithZone("")
		for _, to := range m.sw.receivers(dst) {
			to.put(m.info.Addr, dst, f.Path.SrcPort, f.Path.TrafficClass, m.out)
		}
	}
}

// Join implements Link.
func (m *memory) Join(group netip.Addr) error {
	m.sw.mu.Lock()
	defer m.sw.mu.Unlock()
	if m.joined[group]++; m.joined[group] == 1 {
		m.sw.ports[group] = append(slices.Clone(m.sw.ports[group]), m)
	}
	return nil
}

// Leave implements Link.
func (m *memory) Leave(group netip.Addr) error {
	m.sw.mu.Lock()
	defer m.sw.mu.Unlock()
	if m.joined[group]--; m.joined[group] == 0 {
		m.leave(group)
	}
	return nil
}

func (m *memory) leave(a netip.Addr) {
	delete(m.joined, a)
	rest := slices.DeleteFunc(slices.Clone(m.sw.ports[a]), func(l *memory) bool { return l == m })
	if m.sw.ports[a] = rest; len(rest) == 0 {
		delete(m.sw.ports, a)
	}
}

// Close implements Link.
func (m *memory) Close() error {
	m.sw.mu.Lock()
	defer m.sw.mu.Unlock()
	for group := range m.joined {
		m.leave(group)
	}
	m.leave(m.info.Addr)
	return nil
}
