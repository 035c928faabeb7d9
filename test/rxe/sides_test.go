package rxe_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

// side is one end of a connection: goroce in this process, or rxe in the guest. It
// has one queue pair at a time, with one completion queue for both directions. Work
// requests and completions are those of goroce for both. All methods end the test
// when something fails that is not a completion.
type side interface {
	// register makes a memory region of zeros.
	register(t *testing.T, size int, access mr.Access) region
	write(t *testing.T, addr uint64, data []byte)
	read(t *testing.T, addr uint64, n int) []byte

	// newQP makes a queue pair in INIT in place of the old one, and empties the
	// completion queue.
	newQP(t *testing.T, o qpOptions) verbs.Endpoint
	connect(t *testing.T, remote verbs.Endpoint) // to RTS
	fail(t *testing.T)                           // to ERR
	state(t *testing.T) qp.State

	postRecv(t *testing.T, wr qp.RecvWR)
	postSend(t *testing.T, wr qp.SendWR) // always signaled
	// poll waits for n completions, and returns fewer when the time is over.
	poll(t *testing.T, n int, limit time.Duration) []cq.WC
}

// region is a memory region of either side.
type region struct {
	addr uint64
	key  uint32
	size int
}

func (r region) sge(offset, n int) mr.SGE {
	return mr.SGE{Addr: r.addr + uint64(offset), Length: uint32(n), LKey: r.key}
}

// qpOptions are the attributes of a queue pair that tests vary.
type qpOptions struct {
	mtu                            int
	psn                            uint32
	access                         mr.Access
	timeout, retry, rnrRetry, rnrT uint8
}

const (
	allAccess    = mr.LocalWrite | remoteAccess
	remoteAccess = mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic
	rdAtomic     = 16

	// completionLimit is far longer than any completion takes here, with loss too.
	completionLimit = 60 * time.Second
)

// defaultOptions have few PSNs before they wrap, on both sides. Their timeout is 268 ms,
// so that all retries together outlast a guest that stands still for a second or two, as
// it does on a busy machine.
func defaultOptions(mtu int) qpOptions {
	return qpOptions{mtu: mtu, psn: 0xFFFFF0, access: remoteAccess, timeout: 16, retry: 7, rnrRetry: 7, rnrT: 12}
}

// family is an address family with what the lab has of it.
type family struct {
	name     string
	host     string
	gidIndex int // in the guest
}

var families = []family{{"ipv4", hostIPv4, 1}, {"ipv6", hostIPv6, 2}}

// pair is the two sides by what they do.
type pair struct {
	requester, responder side
}

// direction says which side makes the requests.
type direction bool

const (
	toRXE   direction = true
	fromRXE direction = false
)

// open makes the two sides. Their queue pairs are for connect. The faults are
// goroce's.
func (d direction) open(t *testing.T, r *record, f family, faults ...udp.FaultRule) *pair {
	t.Helper()
	return d.openWith(t, r, f, transport.Selective, faults...)
}

// openWith is open with a way to repair losses.
func (d direction) openWith(t *testing.T, r *record, f family, how transport.Recovery, faults ...udp.FaultRule) *pair {
	t.Helper()
	host, rxe := newHostSide(t, f, how, faults...), newPeerSide(t, r, f)
	if d == toRXE {
		return &pair{host, rxe}
	}
	return &pair{rxe, host}
}

// connect connects a fresh pair of queue pairs.
func (p *pair) connect(t *testing.T, requester, responder qpOptions) {
	t.Helper()
	a, b := p.requester.newQP(t, requester), p.responder.newQP(t, responder)
	p.requester.connect(t, b)
	p.responder.connect(t, a)
}

// host returns the side that is goroce.
func (p *pair) host() *hostSide {
	if h, ok := p.requester.(*hostSide); ok {
		return h
	}
	return p.responder.(*hostSide)
}

// hostSide is goroce.
type hostSide struct {
	dev     *verbs.Device
	pd      *verbs.PD
	cq      *verbs.CQ
	qp      *verbs.QP
	options qpOptions
	regions []*verbs.MR
}

func newHostSide(t *testing.T, f family, how transport.Recovery, faults ...udp.FaultRule) *hostSide {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(f.host), Faults: faults, Recovery: how})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			counters := dev.Stats()
			maps.DeleteFunc(counters, func(_ string, n uint64) bool { return n == 0 })
			t.Logf("goroce's counters: %v", counters)
		}
		_ = dev.Close()
	})
	return &hostSide{dev: dev, pd: dev.AllocPD()}
}

// guardSize is how many bytes around a region are checked not to change.
const guardSize = 4096

func (s *hostSide) register(t *testing.T, size int, access mr.Access) region {
	t.Helper()
	guard := bytes.Repeat([]byte{0xA5}, guardSize)
	all := append(append(bytes.Clone(guard), make([]byte, size)...), guard...)
	m, err := s.pd.RegisterMR(all[guardSize:guardSize+size], access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.dev.Sync()
		if !bytes.Equal(all[:guardSize], guard) || !bytes.Equal(all[guardSize+size:], guard) {
			t.Error("memory outside of the region was changed")
		}
	})
	s.regions = append(s.regions, m)
	return region{m.Addr(), m.Key(), size}
}

// memory is the registered memory at an address.
func (s *hostSide) memory(t *testing.T, addr uint64, n int) []byte {
	t.Helper()
	s.dev.Sync()
	for _, m := range s.regions {
		if off := addr - m.Addr(); addr >= m.Addr() && off+uint64(n) <= uint64(m.Len()) {
			return m.Bytes()[off : off+uint64(n)]
		}
	}
	t.Fatalf("no region has %d bytes at %#x", n, addr)
	return nil
}

func (s *hostSide) write(t *testing.T, addr uint64, data []byte) {
	t.Helper()
	copy(s.memory(t, addr, len(data)), data)
}

func (s *hostSide) read(t *testing.T, addr uint64, n int) []byte {
	t.Helper()
	return bytes.Clone(s.memory(t, addr, n))
}

func (s *hostSide) newQP(t *testing.T, o qpOptions) verbs.Endpoint {
	t.Helper()
	if s.qp != nil {
		if err := s.qp.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.cq, err = s.dev.CreateCQ(256); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq}); err != nil {
		t.Fatal(err)
	}
	s.options = o
	s.modify(t, &qp.Attr{State: qp.Init, Port: 1, Access: o.access}, qp.AttrState|qp.AttrPKeyIndex|qp.AttrPort|qp.AttrAccess)
	return verbs.Endpoint{GID: s.dev.GID(), QPN: s.qp.QPN(), PSN: bth.NewPSN(o.psn)}
}

func (s *hostSide) connect(t *testing.T, remote verbs.Endpoint) {
	t.Helper()
	o := s.options
	a := qp.Attr{
		State: qp.RTR, AV: qp.AddressVector{DGID: remote.GID}, PathMTU: o.mtu, DestQPN: remote.QPN,
		RQPSN: remote.PSN, SQPSN: bth.NewPSN(o.psn), MaxRDAtomic: rdAtomic, MaxDestRDAtomic: rdAtomic,
		Timeout: o.timeout, RetryCount: o.retry, RNRRetry: o.rnrRetry, MinRNRTimer: o.rnrT,
	}
	s.modify(t, &a, qp.AttrState|qp.AttrAV|qp.AttrPathMTU|qp.AttrDestQPN|qp.AttrRQPSN|qp.AttrMaxDestRDAtomic|qp.AttrMinRNRTimer)
	a.State = qp.RTS
	s.modify(t, &a, qp.AttrState|qp.AttrSQPSN|qp.AttrTimeout|qp.AttrRetryCount|qp.AttrRNRRetry|qp.AttrMaxRDAtomic)
}

func (s *hostSide) fail(t *testing.T) {
	t.Helper()
	s.modify(t, &qp.Attr{State: qp.Err}, qp.AttrState)
}

func (s *hostSide) modify(t *testing.T, a *qp.Attr, mask qp.AttrMask) {
	t.Helper()
	if err := s.qp.Modify(a, mask); err != nil {
		t.Fatal(err)
	}
}

func (s *hostSide) state(*testing.T) qp.State { return s.qp.State() }

func (s *hostSide) postRecv(t *testing.T, wr qp.RecvWR) {
	t.Helper()
	if err := s.qp.PostRecv(&wr); err != nil {
		t.Fatal(err)
	}
}

func (s *hostSide) postSend(t *testing.T, wr qp.SendWR) {
	t.Helper()
	wr.Flags |= qp.Signaled
	if err := s.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
}

func (s *hostSide) poll(t *testing.T, n int, limit time.Duration) []cq.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	wcs := make([]cq.WC, n)
	for got := 0; got < n; {
		k, err := s.cq.Wait(ctx, wcs[got:])
		if got += k; errors.Is(err, context.DeadlineExceeded) {
			return wcs[:got]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return wcs
}

// randomBytes returns bytes that no other call returns.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

var random = rand.New(rand.NewPCG(4791, 1))
