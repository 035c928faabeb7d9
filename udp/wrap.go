package udp

import (
	"time"

	"github.com/goroce/goroce/bth"
)

// Tap is shown every packet of a link, as a whole IP datagram. The bytes are
// valid during the call.
type Tap func(at time.Time, sent bool, datagram []byte)

// WithTap returns a link that shows its packets to tap: those sent as they
// leave, and those received with a good ICRC.
func WithTap(l Link, tap Tap) Link { return &tapped{Link: l, tap: tap} }

type tapped struct {
	Link
	tap Tap
	buf []byte
}

// Send implements Link.
func (t *tapped) Send(b *bth.Burst) {
	t.Link.Send(b) // seals
	now := time.Now()
	for i := range b.Frames() {
		f := &b.Frames()[i]
		t.buf = f.Path.AppendDatagram(t.buf[:0], f.ID, f.Header(), f.Payload, f.Trailer())
		t.tap(now, true, t.buf)
	}
}

// Receive implements Link.
func (t *tapped) Receive() []bth.Datagram {
	ds := t.Link.Receive()
	if len(ds) == 0 {
		return nil
	}
	now := time.Now()
	for i := range ds {
		d := &ds[i]
		p := bth.Path{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TrafficClass: d.TrafficClass, HopLimit: d.HopLimit}
		// The link has taken the ICRC off; it was good, so this is it.
		icrc := bth.AppendICRC(nil, p.ICRC(d.ID, d.Data, nil, 0))
		t.buf = p.AppendDatagram(t.buf[:0], d.ID, d.Data, icrc)
		t.tap(now, false, t.buf)
	}
	return ds
}
