package fabric

import "time"

// Switch forwards packets from any port to any other at once; they wait at the
// port they leave by, in a buffer that all ports share.
type Switch struct {
	// Buffer is the size of the shared buffer in bytes; 0 has no end.
	Buffer int
	// Alpha bounds each queue to this multiple of what is free of the buffer, a
	// dynamic threshold; 0 is no bound but the buffer.
	Alpha float64
	// PFC, if set, stops the sender of a link instead of dropping.
	PFC *PFC

	Ports []*Port
	// Used is the number of bytes in the buffer, Drops the number of packets
	// that did not fit, Pauses how often a sender was stopped.
	Used          int
	Drops, Pauses uint64

	sim    *Sim
	routes map[*Host]*Port
}

// PFC is priority flow control of the data class: when more than Pause bytes
// that came over one link are in the buffer, the sender of the link is stopped;
// when they are down to Resume, it goes on.
type PFC struct{ Pause, Resume int }

// AddSwitch adds a switch with an endless buffer.
func (s *Sim) AddSwitch() *Switch {
	sw := &Switch{sim: s, routes: map[*Host]*Port{}}
	s.Switches = append(s.Switches, sw)
	return sw
}

// Port returns the port by which packets to h leave.
func (sw *Switch) Port(h *Host) *Port { return sw.routes[h] }

func (sw *Switch) attach(p *Port) { sw.Ports = append(sw.Ports, p) }

func (sw *Switch) receive(k *packet) {
	out := sw.routes[k.to]
	if !sw.fits(out, k) {
		sw.Drops++
		sw.sim.release(k)
		return
	}
	sw.Used += k.length
	k.from.held += k.length
	if from := k.from; sw.PFC != nil && !from.pausing && from.held > sw.PFC.Pause {
		from.pausing = true
		sw.Pauses++
		sw.tell(from, pause)
	}
	out.enqueue(k)
}

func (sw *Switch) fits(out *Port, k *packet) bool {
	if sw.Buffer == 0 {
		return true
	}
	free := sw.Buffer - sw.Used
	return k.length <= free && (sw.Alpha == 0 || k.control || float64(out.Queue+k.length) <= sw.Alpha*float64(free))
}

func (sw *Switch) left(_ *Port, k *packet) {
	sw.Used -= k.length
	from := k.from
	from.held -= k.length
	if sw.PFC != nil && from.pausing && from.held <= sw.PFC.Resume {
		from.pausing = false
		sw.tell(from, resume)
	}
}

// tell lets a pause frame, 64 bytes, reach the sender of a link.
func (sw *Switch) tell(from *Port, k kind) {
	sw.sim.at(sw.sim.now+from.Delay+time.Duration(from.Rate.Time(64)), from, k, nil)
}
