package udp

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/goroce/goroce/bth"
)

// Switch joins links in memory. Packets have real bytes and a real ICRC, and
// are lost when a receiver does not keep up.
type Switch struct {
	mu    sync.Mutex
	ports map[netip.Addr]*memory
}

// NewSwitch returns a switch without links.
func NewSwitch() *Switch { return &Switch{ports: map[netip.Addr]*memory{}} }

// Link attaches a link with the given address.
func (w *Switch) Link(a netip.Addr) (Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ports[a] != nil {
		return nil, &InUseError{Addr: netip.AddrPortFrom(a, bth.Port), Holder: "another link of this switch has the address", Err: fmt.Errorf("duplicate address")}
	}
	m := &memory{inbox: newInbox(a), info: Info{Addr: a, SrcPort: bth.Port, Kind: "memory"}, sw: w}
	w.ports[a] = m
	return m, nil
}

func (w *Switch) port(a netip.Addr) *memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ports[a.WithZone("")]
}

// memory is a link of a Switch.
type memory struct {
	inbox
	info  Info
	sw    *Switch
	stats counters
	out   []byte
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
		if to := m.sw.port(f.Path.Dst); to != nil {
			to.put(m.info.Addr, f.Path.SrcPort, f.Path.TrafficClass, m.out)
		}
	}
}

// Close implements Link.
func (m *memory) Close() error {
	m.sw.mu.Lock()
	defer m.sw.mu.Unlock()
	delete(m.sw.ports, m.info.Addr)
	return nil
}
