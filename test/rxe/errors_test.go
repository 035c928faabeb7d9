package rxe_test

import (
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// errorCase is a request that has to fail. What is not set is as it should be.
type errorCase struct {
	name   string
	op     qp.Op
	length int // 8 if not set
	at     int // where in the remote region

	lacks     rights                 // what is not allowed
	noRecv    bool                   // no receives are posted
	spoil     func(*qp.SendWR)       // makes the request wrong
	spoilRecv func(*qp.RecvWR)       // makes the receives wrong
	before    func(*testing.T, side) // what happens to the responder before the request

	want    outcome  // by the standard, as goroce has it
	toRXE   *outcome // where rxe deviates as the responder
	fromRXE *outcome // and as the requester; the empty outcome: rxe cannot post it
}

// rights are those of the regions and of the responder's queue pair.
type rights struct {
	remote, qp, local, inbox mr.Access
}

// outcome is how a case ends. The requester's queue pair is in ERR in all of them.
type outcome struct {
	send cq.Status   // of the request
	recv []cq.Status // of the two receives, at the responder
	end  qp.State    // of the responder's queue pair
}

// refused is the outcome of a request that gets a NAK before it takes a receive.
func refused(s cq.Status) outcome {
	return outcome{s, []cq.Status{cq.WRFlushErr, cq.WRFlushErr}, qp.Err}
}

// refusedRecv is that of a request that gets a NAK when it has taken a receive.
func refusedRecv(send, recv cq.Status) outcome {
	return outcome{send, []cq.Status{recv, cq.WRFlushErr}, qp.Err}
}

// unnoticed is that of a request that changes nothing at the responder.
func unnoticed(s cq.Status) outcome { return outcome{send: s, end: qp.RTS} }

const (
	regionEnd  = 8192 // bytes of each region
	recvBuffer = 1024 // bytes of each receive
	errorMTU   = 1024
)

// The regions' keys differ in more than this.
const wrongKey = 0x55

func wrongRKey(wr *qp.SendWR)     { wr.RKey ^= wrongKey }
func wrongLKey(wr *qp.SendWR)     { wr.SGE[0].LKey ^= wrongKey }
func wrongRecvLKey(wr *qp.RecvWR) { wr.SGE[0].LKey ^= wrongKey }

func gone(t *testing.T, responder side)  { responder.newQP(t, errorOptions()) }
func inErr(t *testing.T, responder side) { responder.fail(t) }

// errorOptions give up soon. rxe takes 7 retries to be without end.
func errorOptions() qpOptions {
	o := defaultOptions(errorMTU)
	o.timeout, o.retry, o.rnrRetry, o.rnrT = 12, 3, 2, 1
	return o
}

var (
	remAccess = refused(cq.RemAccessErr)
	remInvReq = refused(cq.RemInvReqErr)
	locProt   = unnoticed(cq.LocProtErr)
	rnrRetry  = unnoticed(cq.RNRRetryExcErr)
)

var errorCases = []errorCase{
	{name: "WRITE, wrong R_Key", op: qp.RDMAWrite, spoil: wrongRKey, want: remAccess},
	{
		name: "WRITE with immediate, wrong R_Key", op: qp.RDMAWriteImm, spoil: wrongRKey,
		want: refusedRecv(cq.RemAccessErr, cq.LocAccessErr),
		// rxe completes the receive with the status that is the requester's.
		toRXE: new(refusedRecv(cq.RemAccessErr, cq.RemAccessErr)),
	},
	{name: "READ, wrong R_Key", op: qp.RDMARead, spoil: wrongRKey, want: remAccess},
	{name: "CAS, wrong R_Key", op: qp.CmpSwap, spoil: wrongRKey, want: remAccess},
	{name: "FAA, wrong R_Key", op: qp.FetchAdd, spoil: wrongRKey, want: remAccess},

	{name: "WRITE past the end", op: qp.RDMAWrite, length: 100, at: regionEnd - 99, want: remAccess},
	{name: "WRITE in packets past the end", op: qp.RDMAWrite, length: 4000, at: regionEnd - 3999, want: remAccess},
	{name: "READ past the end", op: qp.RDMARead, length: 4000, at: regionEnd - 3999, want: remAccess},
	{name: "CAS past the end", op: qp.CmpSwap, at: regionEnd, want: remAccess},
	{name: "FAA past the end", op: qp.FetchAdd, at: regionEnd, want: remAccess},
	{name: "WRITE before the start", op: qp.RDMAWrite, at: -1, want: remAccess},
	{name: "READ before the start", op: qp.RDMARead, at: -1, want: remAccess},
	{name: "CAS before the start", op: qp.CmpSwap, at: -8, want: remAccess},
	{name: "FAA before the start", op: qp.FetchAdd, at: -8, want: remAccess},

	{name: "WRITE, no right on MR", op: qp.RDMAWrite, lacks: rights{remote: mr.RemoteWrite}, want: remAccess},
	{name: "READ, no right on MR", op: qp.RDMARead, lacks: rights{remote: mr.RemoteRead}, want: remAccess},
	{name: "CAS, no right on MR", op: qp.CmpSwap, lacks: rights{remote: mr.RemoteAtomic}, want: remAccess},
	{name: "FAA, no right on MR", op: qp.FetchAdd, lacks: rights{remote: mr.RemoteAtomic}, want: remAccess},

	{name: "WRITE, no right on QP", op: qp.RDMAWrite, lacks: rights{qp: mr.RemoteWrite}, want: remInvReq},
	{name: "WRITE with immediate, no right on QP", op: qp.RDMAWriteImm, lacks: rights{qp: mr.RemoteWrite}, want: remInvReq},
	{name: "READ, no right on QP", op: qp.RDMARead, lacks: rights{qp: mr.RemoteRead}, want: remInvReq},
	{name: "CAS, no right on QP", op: qp.CmpSwap, lacks: rights{qp: mr.RemoteAtomic}, want: remInvReq},
	{name: "FAA, no right on QP", op: qp.FetchAdd, lacks: rights{qp: mr.RemoteAtomic}, want: remInvReq},

	// rxe refuses these at the post already.
	{name: "CAS, unaligned", op: qp.CmpSwap, at: 4, want: remInvReq, fromRXE: new(outcome)},
	{name: "FAA, unaligned", op: qp.FetchAdd, at: 1, want: remInvReq, fromRXE: new(outcome)},

	{
		name: "SEND too long", op: qp.Send, length: recvBuffer + 1,
		want: refusedRecv(cq.RemInvReqErr, cq.LocLenErr),
		// rxe sends the NAK for a failed operation.
		toRXE: new(refusedRecv(cq.RemOpErr, cq.LocQPOpErr)),
	},
	{
		name: "receive, wrong L_Key", op: qp.Send, spoilRecv: wrongRecvLKey,
		want: refusedRecv(cq.RemOpErr, cq.LocProtErr),
		// rxe has one status for all that goes wrong with a receive.
		toRXE: new(refusedRecv(cq.RemOpErr, cq.LocQPOpErr)),
	},
	{
		name: "receive to read-only MR", op: qp.Send, lacks: rights{inbox: allAccess},
		want:  refusedRecv(cq.RemOpErr, cq.LocProtErr),
		toRXE: new(refusedRecv(cq.RemOpErr, cq.LocQPOpErr)),
	},
	{name: "SEND, no receive", op: qp.Send, noRecv: true, want: rnrRetry},
	{name: "WRITE with immediate, no receive", op: qp.RDMAWriteImm, noRecv: true, want: rnrRetry},

	// rxe has another status for data that it cannot fetch.
	{name: "SEND, wrong L_Key", op: qp.Send, spoil: wrongLKey, want: locProt, fromRXE: new(unnoticed(cq.LocQPOpErr))},
	{name: "WRITE, wrong L_Key", op: qp.RDMAWrite, spoil: wrongLKey, want: locProt, fromRXE: new(unnoticed(cq.LocQPOpErr))},
	{name: "READ, wrong L_Key", op: qp.RDMARead, spoil: wrongLKey, want: locProt},
	{name: "READ to read-only MR", op: qp.RDMARead, lacks: rights{local: allAccess}, want: locProt},
	{name: "CAS to read-only MR", op: qp.CmpSwap, lacks: rights{local: allAccess}, want: locProt},

	{name: "responder gone", op: qp.Send, before: gone, want: outcome{send: cq.RetryExcErr, end: qp.Init}},
	{name: "responder in ERR", op: qp.RDMAWrite, before: inErr, want: refused(cq.RetryExcErr)},
}

func TestErrorStatus(t *testing.T) {
	l := requireLab(t)
	for _, c := range errorCases {
		want := c.want
		if c.toRXE != nil {
			want = *c.toRXE
		}
		t.Run("to rxe/"+c.name, func(t *testing.T) { c.run(t, l, toRXE, want) })
	}
	for _, c := range errorCases {
		want := c.want
		if c.fromRXE != nil {
			want = *c.fromRXE
		}
		if want.send == cq.Success {
			continue
		}
		t.Run("from rxe/"+c.name, func(t *testing.T) { c.run(t, l, fromRXE, want) })
	}
}

func (c errorCase) run(t *testing.T, l *lab, d direction, want outcome) {
	r := l.record(t)
	r.captureHeaders(t)
	p := d.open(t, r, families[0])
	local := p.requester.register(t, regionEnd, allAccess&^c.lacks.local)
	remote := p.responder.register(t, regionEnd, allAccess&^c.lacks.remote)
	inbox := p.responder.register(t, regionEnd, allAccess&^c.lacks.inbox)
	o := errorOptions()
	o.access &^= c.lacks.qp
	p.connect(t, errorOptions(), o)

	localData, remoteData := randomBytes(regionEnd), randomBytes(regionEnd)
	p.requester.write(t, local.addr, localData)
	p.responder.write(t, remote.addr, remoteData)

	if !c.noRecv {
		for i := range 2 {
			recv := qp.RecvWR{ID: 100 + uint64(i), SGE: []mr.SGE{inbox.sge(2*recvBuffer*i, recvBuffer)}}
			if c.spoilRecv != nil {
				c.spoilRecv(&recv)
			}
			p.responder.postRecv(t, recv)
		}
	}
	if c.before != nil {
		c.before(t, p.responder)
	}
	n := max(8, c.length)
	wr := qp.SendWR{
		ID: 1, Op: c.op, SGE: []mr.SGE{local.sge(16, n)}, RemoteAddr: remote.addr + uint64(c.at), RKey: remote.key,
		CompareAdd: 1, Swap: 2,
	}
	if c.spoil != nil {
		c.spoil(&wr)
	}
	p.requester.postSend(t, wr)
	// By the fence, the next one does not start before the first has failed.
	p.requester.postSend(t, qp.SendWR{ID: 2, Op: qp.Send, Flags: qp.Fence, SGE: []mr.SGE{local.sge(0, 8)}})

	expectStatuses(t, "requester", p.requester, 1, want.send, cq.WRFlushErr)
	expectStatuses(t, "responder", p.responder, 100, want.recv...)
	expectState(t, "requester", p.requester, qp.Err)
	expectState(t, "responder", p.responder, want.end)

	expectMemory(t, "the requester's memory", p.requester, local.addr, localData)
	expectMemory(t, "the responder's memory", p.responder, remote.addr, remoteData)
	expectMemory(t, "behind the receive buffer", p.responder, inbox.addr+recvBuffer, make([]byte, regionEnd-recvBuffer))

	expectFlush(t, "requester", p.requester, local)
	if want.end == qp.Err {
		expectFlush(t, "responder", p.responder, inbox)
	}
}

// expectFlush posts to a queue pair in ERR.
func expectFlush(t *testing.T, who string, s side, m region) {
	t.Helper()
	// rxe does not notice a receive that is posted in ERR: user space puts it into the
	// queue without a system call, and nothing looks there any more.
	if _, rxe := s.(*peerSide); !rxe {
		s.postRecv(t, qp.RecvWR{ID: 7, SGE: []mr.SGE{m.sge(0, 8)}})
		expectStatuses(t, who, s, 7, cq.WRFlushErr)
	}
	s.postSend(t, qp.SendWR{ID: 8, Op: qp.Send, SGE: []mr.SGE{m.sge(0, 8)}})
	expectStatuses(t, who, s, 8, cq.WRFlushErr)
}

// expectStatuses waits for completions, of work requests with IDs from first on, and
// sees to it that no other comes.
func expectStatuses(t *testing.T, who string, s side, first uint64, want ...cq.Status) {
	t.Helper()
	wcs := s.poll(t, len(want), completionLimit)
	wcs = append(wcs, s.poll(t, 1, 20*time.Millisecond)...)
	var got []cq.Status
	for i, wc := range wcs {
		if wc.ID != first+uint64(i) {
			t.Errorf("%s: completion of work request %d, not %d", who, wc.ID, first+uint64(i))
		}
		got = append(got, wc.Status)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: completed with %v, want %v", who, got, want)
	}
}

func expectState(t *testing.T, who string, s side, want qp.State) {
	t.Helper()
	if got := s.state(t); got != want {
		t.Errorf("%s: queue pair in %v, want %v", who, got, want)
	}
}
