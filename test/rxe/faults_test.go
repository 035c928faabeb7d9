package rxe_test

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
)

// faultCase is a fault at goroce's end of a connection with rxe, and what the
// protocol makes of it when goroce is the requester, and when rxe is.
//
// goroce sends a message in one burst, so that what comes back finds all of it sent:
// all numbers are exact. rxe can get a NAK while it is sending, so that only the
// relation is exact between what it sends again for a NAK and what it had sent.
type faultCase struct {
	name    string
	ops     []qp.Op // a case for each
	then    []qp.Op // posted right behind it
	packets int     // of each message, or of its answer if it is a READ
	// rules are those of the injector, at goroce's end, where REQ stands for the
	// direction of requests and RSP for that of answers. LOSE is "drop" and, in a
	// second case, "corrupt". Each rule happens once.
	rules string
	why   string

	goroce, rxe *tally // by who is the requester; nil: not a case
}

// tally is how often something happens in a case.
type tally struct {
	resent int // request packets sent again

	// Why the requester goes back. A NAK that it gets and ignores counts for
	// goroce, which tells all that it gets.
	nak, implied, timeout int

	// NAKs that acknowledge something, which are all that rxe counts. goroce's ACK
	// ahead of them does it as a rule.
	news int

	gap int // sequence NAKs of the responder
	dup int // requests that the responder had executed before

	// What goroce keeps as the responder, of which rxe sends all again: at most as
	// many as here, as with ahead. Only with Selective.
	kept int

	// What goroce drops: as the requester, answers to what it has no question to any
	// more; as the responder, requests behind a gap after the first one. Those are
	// what rxe sent before the NAK came, at most as many as here, and all of them are
	// among resent.
	stale, ahead int
}

const (
	faultMTU  = 1024
	faultSlot = 8192 // bytes of memory for each message
	faultEnd  = 4 * faultSlot
	lastBytes = 700 // of the last packet

	// The local ACK timeouts, as codes: 0.5 s where a timer has to expire, and 4.3 s
	// where none may, which is far more than a busy machine needs.
	expiresTimeout, idleTimeout = 17, 20
)

var (
	messages = []qp.Op{qp.Send, qp.RDMAWrite, qp.RDMAWriteImm}
	reads    = []qp.Op{qp.RDMARead}
	atomics  = []qp.Op{qp.FetchAdd, qp.CmpSwap}
)

// After a timeout goroce sends one packet, and what is missing when that is
// acknowledged; rxe sends everything from the oldest unacknowledged packet on. Both
// ask for acknowledgements at the end of a message only, so that a timeout finds the
// message without any.
var faultCases = []faultCase{
	// Lost requests.
	{
		name: "first lost", ops: messages, packets: 5, rules: "LOSE REQ op=first n=1",
		why:    "the second packet shows the gap; the NAK names the first, and all five have been sent; those behind the second are dropped silently",
		goroce: &tally{nak: 1, resent: 5, gap: 1},
		rxe:    &tally{nak: 1, resent: 5, gap: 1, ahead: 3},
	},
	{
		name: "middle lost", ops: messages, packets: 5, rules: "LOSE REQ op=middle n=2",
		why:    "the NAK names the third packet and acknowledges those before it: three of five are sent again",
		goroce: &tally{nak: 1, resent: 3, gap: 1},
		rxe:    &tally{nak: 1, resent: 3, gap: 1, ahead: 1},
	},
	{
		name: "last lost", ops: messages, packets: 5, rules: "LOSE REQ op=last n=1",
		why:    "nothing shows the gap, so the timer expires. goroce's probe is a duplicate, whose acknowledgement covers four packets: the fifth follows. rxe sends all five, of which four are duplicates",
		goroce: &tally{timeout: 1, resent: 2, dup: 1},
		rxe:    &tally{timeout: 1, resent: 5, dup: 4},
	},
	{
		name: "only lost", ops: messages, packets: 1, rules: "LOSE REQ op=only n=1",
		why:    "the timer expires, and the packet is new to the responder",
		goroce: &tally{timeout: 1, resent: 1},
		rxe:    &tally{timeout: 1, resent: 1},
	},
	{
		name: "READ request lost", ops: reads, packets: 5, rules: "LOSE REQ op=read_request n=1",
		why:    "the timer expires; the request is one packet, however many answer it",
		goroce: &tally{timeout: 1, resent: 1},
		rxe:    &tally{timeout: 1, resent: 1},
	},
	{
		name: "atomic request lost", ops: atomics, rules: "LOSE REQ op=atomic n=1",
		why:    "the timer expires; what was lost was not executed",
		goroce: &tally{timeout: 1, resent: 1},
		rxe:    &tally{timeout: 1, resent: 1},
	},
	{
		name: "first of the next message lost", ops: messages, then: []qp.Op{qp.Send}, packets: 5, rules: "LOSE REQ op=first n=2",
		why:    "the NAK acknowledges the first message, if it has not been yet: the five of the second are sent again",
		goroce: &tally{nak: 1, resent: 5, gap: 1},
		rxe:    &tally{nak: 1, resent: 5, gap: 1, ahead: 3},
	},
	{
		name: "last lost, another message behind it", ops: messages, then: []qp.Op{qp.Send}, packets: 5, rules: "LOSE REQ op=last n=1",
		why:    "the first packet of the second message shows the gap, so that no timer has to; it was sent together with the rest of its message: one and five are sent again",
		goroce: &tally{nak: 1, resent: 6, gap: 1},
		rxe:    &tally{nak: 1, resent: 6, gap: 1, ahead: 4},
	},

	// Lost answers.
	{
		name: "READ response first lost", ops: reads, packets: 5, rules: "LOSE RSP op=first n=1",
		why:    "goroce takes the second response for an implied NAK and asks for everything again; rxe ignores it, and waits for its timer. The rest of the first answer is ignored",
		goroce: &tally{implied: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 1, dup: 1},
	},
	{
		name: "READ response middle lost", ops: reads, packets: 5, rules: "LOSE RSP op=middle n=2",
		why:    "the same, but the request is for the rest: it starts at the third response",
		goroce: &tally{implied: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 1, dup: 1},
	},
	{
		name: "READ response middle lost, no second FIRST", ops: reads, packets: 5, rules: "drop RSP op=middle n=2; set se=0 RSP op=first",
		why:    "rxe's answer to the rest starts with MIDDLE: the second rule, which changes nothing, meets one FIRST in all",
		goroce: &tally{implied: 1, resent: 1, dup: 1},
	},
	{
		name: "READ response last lost", ops: reads, packets: 5, rules: "LOSE RSP op=last n=1",
		why:    "nothing shows the gap, so the timer expires, and the request is for the last response",
		goroce: &tally{timeout: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 1, dup: 1},
	},
	{
		name: "READ response only lost", ops: reads, packets: 1, rules: "LOSE RSP op=only n=1",
		why:    "the timer expires",
		goroce: &tally{timeout: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 1, dup: 1},
	},
	{
		name: "atomic response lost", ops: atomics, rules: "LOSE RSP op=atomic_ack n=1",
		why:    "the timer expires; the responder answers from memory and does not execute it again",
		goroce: &tally{timeout: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 1, dup: 1},
	},
	{
		name: "atomic response lost, a message behind it", ops: atomics, then: []qp.Op{qp.Send}, packets: 1, rules: "LOSE RSP op=atomic_ack n=1",
		why:    "the acknowledgement of the SEND is an implied NAK for the atomic: both are sent again, both are duplicates",
		goroce: &tally{implied: 1, resent: 2, dup: 2},
		rxe:    &tally{implied: 1, resent: 2, dup: 2},
	},
	{
		name: "READ response lost, a message behind it", ops: reads, then: []qp.Op{qp.Send}, packets: 1, rules: "LOSE RSP op=read_resp n=1",
		why:    "the same for a READ",
		goroce: &tally{implied: 1, resent: 2, dup: 2},
		rxe:    &tally{implied: 1, resent: 2, dup: 2},
	},
	{
		name: "ACK lost", ops: messages, packets: 5, rules: "LOSE RSP op=ack n=1",
		why:    "the timer expires. The acknowledgement of goroce's probe, a duplicate, covers the message: nothing else is sent again. rxe sends all five",
		goroce: &tally{timeout: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 5, dup: 5},
	},
	{
		name: "ACK of only lost", ops: messages, packets: 1, rules: "LOSE RSP op=ack n=1",
		why:    "the timer expires, and the duplicate is acknowledged",
		goroce: &tally{timeout: 1, resent: 1, dup: 1},
		rxe:    &tally{timeout: 1, resent: 1, dup: 1},
	},
	{
		name: "ACK lost, another message behind it", ops: messages, then: []qp.Op{qp.Send}, packets: 5, rules: "LOSE RSP op=ack n=1",
		why:    "the second ACK covers both messages. goroce as the responder may send one ACK for both, so that is not a case",
		goroce: &tally{},
	},
	{
		name: "NAK lost", ops: messages, packets: 5, rules: "drop REQ op=middle n=2; LOSE RSP op=ack n=1",
		why:    "the responder has said all it has to, so the timer expires. The acknowledgement of the probe covers two packets: the other three follow. goroce as the responder sends two answers: see below",
		goroce: &tally{timeout: 1, resent: 4, gap: 1, dup: 1},
	},
	{
		name: "NAK lost, ACK before it not", ops: messages, packets: 5, rules: "drop REQ op=middle n=2; LOSE RSP op=ack n=2",
		why: "goroce acknowledges the first two packets before its NAK, so rxe's timer resends the other three",
		rxe: &tally{timeout: 1, resent: 3, gap: 1, ahead: 1},
	},
	{
		name: "NAK lost, and the ACK before it", ops: messages, packets: 5, rules: "drop REQ op=middle n=2; LOSE RSP op=ack n=1; LOSE RSP op=ack n=2",
		why: "rxe's timer resends all five, two of which are duplicates",
		rxe: &tally{timeout: 1, resent: 5, gap: 1, dup: 2, ahead: 1},
	},
	{
		name: "lost again while resent", ops: messages, packets: 5, rules: "drop REQ op=middle n=2; LOSE REQ psn=+3 try=2",
		why: "the fifth packet shows the second gap, and goroce's second NAK names the fourth: three are sent again, then two",
		rxe: &tally{nak: 2, resent: 5, gap: 2, ahead: 1},
	},
	{
		name: "lost again while resent, ACK before the second NAK lost", ops: messages, packets: 5,
		rules: "drop REQ op=middle n=2; drop REQ psn=+3 try=2; LOSE RSP op=ack n=3",
		why:   "rxe is resending, and ignores NAKs until an ACK shows progress. That is why goroce sends one ahead of them; without it the timer resends the two",
		rxe:   &tally{nak: 1, news: 1, timeout: 1, resent: 5, gap: 2, ahead: 1},
	},

	// Duplicates.
	{
		name: "first twice", ops: messages, packets: 5, rules: "dup REQ op=first n=1",
		why:    "the duplicate is acknowledged, which acknowledges the packet early",
		goroce: &tally{dup: 1},
		rxe:    &tally{dup: 1},
	},
	{
		name: "middle twice", ops: messages, packets: 5, rules: "dup REQ op=middle n=2",
		why:    "the same",
		goroce: &tally{dup: 1},
		rxe:    &tally{dup: 1},
	},
	{
		name: "last twice", ops: messages, packets: 5, rules: "dup REQ op=last n=1",
		why:    "the acknowledgement of the duplicate comes when the message is complete",
		goroce: &tally{dup: 1, stale: 1},
		rxe:    &tally{dup: 1},
	},
	{
		name: "only twice", ops: messages, packets: 1, rules: "dup REQ op=only n=1",
		why:    "the same",
		goroce: &tally{dup: 1, stale: 1},
		rxe:    &tally{dup: 1},
	},
	{
		name: "only five times", ops: messages, packets: 1, rules: "dup=4 REQ op=only n=1",
		why:    "rxe acknowledges each; goroce, all that have come together",
		goroce: &tally{dup: 4, stale: 4},
		rxe:    &tally{dup: 4},
	},
	{
		name: "READ request twice", ops: reads, packets: 5, rules: "dup REQ op=read_request n=1",
		why:    "it is answered twice: all of the second answer is stale",
		goroce: &tally{dup: 1, stale: 5},
		rxe:    &tally{dup: 1},
	},
	{
		name: "atomic request twice", ops: atomics, rules: "dup REQ op=atomic n=1",
		why:    "it is executed once and answered twice",
		goroce: &tally{dup: 1, stale: 1},
		rxe:    &tally{dup: 1},
	},
	{
		name: "READ response first twice", ops: reads, packets: 5, rules: "dup RSP op=first n=1",
		why:    "it is older than what is expected, and ignored",
		goroce: &tally{stale: 1},
		rxe:    &tally{},
	},
	{
		name: "READ response middle twice", ops: reads, packets: 5, rules: "dup RSP op=middle n=2",
		why:    "the same",
		goroce: &tally{stale: 1},
		rxe:    &tally{},
	},
	{
		name: "READ response last twice", ops: reads, packets: 5, rules: "dup RSP op=last n=1",
		why:    "the same",
		goroce: &tally{stale: 1},
		rxe:    &tally{},
	},
	{
		name: "READ response only twice", ops: reads, packets: 1, rules: "dup RSP op=only n=1",
		why:    "the same",
		goroce: &tally{stale: 1},
		rxe:    &tally{},
	},
	{
		name: "atomic response twice", ops: atomics, rules: "dup RSP op=atomic_ack n=1",
		why:    "the same",
		goroce: &tally{stale: 1},
		rxe:    &tally{},
	},
	{
		name: "ACK twice", ops: messages, packets: 5, rules: "dup RSP op=ack n=1",
		why:    "the same",
		goroce: &tally{stale: 1},
		rxe:    &tally{},
	},
	{
		name: "NAK twice", ops: messages, packets: 5, rules: "drop REQ op=middle n=2; dup RSP op=ack n=1",
		why:    "the second NAK asks for what is being sent again already: that happens once",
		goroce: &tally{nak: 2, resent: 3, gap: 1},
	},
	{
		name: "NAK twice, behind an ACK", ops: messages, packets: 5, rules: "drop REQ op=middle n=2; dup RSP op=ack n=2",
		why: "the same; goroce sends the ACK",
		rxe: &tally{nak: 1, resent: 3, gap: 1, ahead: 1},
	},
}

// recoveryCases are those in which goroce does better than to go back. Nothing has
// measured a round trip before the fault, so no timer but the connection's runs.
var recoveryCases = []faultCase{
	{
		name: "first lost", ops: messages, packets: 5, rules: "LOSE REQ op=first n=1",
		why: "goroce keeps the four packets behind the gap; rxe sends them again all the same",
		rxe: &tally{nak: 1, resent: 5, gap: 1, kept: 4, dup: 4},
	},
	{
		name: "middle lost", ops: messages, packets: 5, rules: "LOSE REQ op=middle n=2",
		why: "the same with two packets",
		rxe: &tally{nak: 1, resent: 3, gap: 1, kept: 2, dup: 2},
	},
	{
		name: "two lost", ops: messages, packets: 5, rules: "LOSE REQ op=middle n=1; LOSE REQ op=middle n=2",
		why: "the gap of two is one gap",
		rxe: &tally{nak: 1, resent: 4, gap: 1, kept: 2, dup: 2},
	},
	{
		name: "READ response first lost", ops: reads, packets: 5, rules: "LOSE RSP op=first n=1",
		why:    "goroce keeps the other four and asks for the first: the answer is one packet",
		goroce: &tally{implied: 1, resent: 1, dup: 1, kept: 4},
	},
	{
		name: "READ response middle lost", ops: reads, packets: 5, rules: "LOSE RSP op=middle n=2",
		why:    "the same in the middle",
		goroce: &tally{implied: 1, resent: 1, dup: 1, kept: 2},
	},
	{
		name: "READ responses lost", ops: reads, packets: 5, rules: "LOSE RSP op=middle n=1; LOSE RSP op=middle n=2",
		why:    "one request for both",
		goroce: &tally{implied: 1, resent: 1, dup: 1, kept: 2},
	},
	{
		name: "READ response lost, a message behind it", ops: reads, then: []qp.Op{qp.Send}, packets: 1, rules: "LOSE RSP op=read_resp n=1",
		why:    "the acknowledgement of the SEND is an implied NAK for the READ, and only for that",
		goroce: &tally{implied: 1, resent: 1, dup: 1},
	},
	{
		name: "atomic response lost, a message behind it", ops: atomics, then: []qp.Op{qp.Send}, packets: 1, rules: "LOSE RSP op=atomic_ack n=1",
		why:    "the same for an atomic",
		goroce: &tally{implied: 1, resent: 1, dup: 1},
	},
}

// TestExactFaults runs every case with what the standard describes, TestExactRecovery
// those in which goroce does more; with -short only the first operation of each, and
// losses but not corruptions.
func TestExactFaults(t *testing.T) { exactFaults(t, faultCases, transport.GoBackN) }

func TestExactRecovery(t *testing.T) { exactFaults(t, recoveryCases, transport.Selective) }

func exactFaults(t *testing.T, cases []faultCase, how transport.Recovery) {
	l := requireLab(t)
	var before rxeCounters
	for _, d := range []direction{toRXE, fromRXE} {
		for _, c := range cases {
			want := c.goroce
			if d == fromRXE {
				want = c.rxe
			}
			if want == nil {
				continue
			}
			for _, lose := range []string{"drop", "corrupt"} {
				rules := strings.NewReplacer("LOSE", lose, "REQ", d.requests(), "RSP", d.answers()).Replace(c.rules)
				if lose == "corrupt" && (testing.Short() || !strings.Contains(c.rules, "LOSE")) {
					continue
				}
				ops := c.ops
				if testing.Short() {
					ops = ops[:1]
				}
				for _, op := range ops {
					name := fmt.Sprintf("%s/%s/%v/%s", map[direction]string{toRXE: "to rxe", fromRXE: "from rxe"}[d], c.name, op, rules)
					t.Run(name, func(t *testing.T) { before = c.run(t, l, d, op, how, rules, *want, before) })
				}
			}
		}
	}
}

// requests and answers are the directions of a link as goroce sees them.
func (d direction) requests() string {
	if d == toRXE {
		return "dir=tx"
	}
	return "dir=rx"
}

func (d direction) answers() string { return (!d).requests() }

// TestRNRNAKInBurst sends five packets of which the first finds no receive: rxe
// sends an RNR NAK for it, and then a sequence NAK for the others, which must not
// start anything while goroce waits.
func TestRNRNAKInBurst(t *testing.T) {
	l := requireLab(t)
	r := l.record(t)
	r.captureHeaders(t)
	p := toRXE.open(t, r, families[0])
	local, remote := p.requester.register(t, faultEnd, allAccess), p.responder.register(t, faultEnd, allAccess)
	o := defaultOptions(faultMTU)
	o.timeout = idleTimeout
	o.rnrT = 0 // 655 ms
	p.connect(t, o, o)

	const packets = 5
	n := packets * faultMTU
	data := randomBytes(n)
	p.requester.write(t, local.addr, data)
	wr := qp.SendWR{ID: 1, Op: qp.Send, SGE: []mr.SGE{local.sge(0, n)}}
	p.requester.postSend(t, wr)
	stats := p.host().dev.Stats
	for end := time.Now().Add(completionLimit); stats()["rcvd_rnr_err"] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no RNR NAK")
		}
	}
	p.responder.postRecv(t, qp.RecvWR{ID: 1 + recvID, SGE: []mr.SGE{remote.sge(0, n)}})
	expect(t, "requester", p.requester, sendDone(wr, n))
	expect(t, "responder", p.responder, recvDone(wr, n))
	expectMemory(t, "what was sent", p.responder, remote.addr, data)

	got := stats()
	rnr := int(got["rcvd_rnr_err"]) // 1, unless the receive came late
	expectCounters(t, "goroce", got, counters{"rcvd_rnr_err": rnr, "packet_seq_err": rnr, "retransmitted_pkts": rnr * packets})
}

// TestRXERetriesWithoutEnd loses a packet more often than seven retries send it.
func TestRXERetriesWithoutEnd(t *testing.T) {
	l := requireLab(t)
	r := l.record(t)
	r.captureHeaders(t)
	const losses = 20
	rules, err := udp.ParseFaults(fmt.Sprintf("drop dir=rx op=only n=1-%d", losses))
	if err != nil {
		t.Fatal(err)
	}
	p := fromRXE.open(t, r, families[0], rules...)
	local, remote := p.requester.register(t, faultEnd, allAccess), p.responder.register(t, faultEnd, allAccess)
	o := defaultOptions(faultMTU)
	o.timeout, o.retry = 8, 7
	p.connect(t, o, o)
	data := randomBytes(faultMTU)
	p.requester.write(t, local.addr, data)
	wr := qp.SendWR{ID: 1, Op: qp.RDMAWrite, SGE: []mr.SGE{local.sge(0, faultMTU)}, RemoteAddr: remote.addr, RKey: remote.key}
	p.requester.postSend(t, wr)
	expect(t, "requester", p.requester, sendDone(wr, faultMTU))
	expectMemory(t, "what was written", p.responder, remote.addr, data)
	if n := p.host().dev.Stats()["fault_dropped"]; n != losses {
		t.Errorf("%d packets were lost, not %d", n, losses)
	}
}

// TestRXETakesACKForAtomicAnswer shows why goroce never sends an ACK with the PSN of
// an atomic: rxe completes it, although the answer was lost, and does not know the
// word. Here the ACK of the SEND behind the atomic gets that PSN.
func TestRXETakesACKForAtomicAnswer(t *testing.T) {
	l := requireLab(t)
	r := l.record(t)
	r.captureHeaders(t)
	rules, err := udp.ParseFaults("drop op=atomic_ack n=1; set psn=-1 op=ack n=1")
	if err != nil {
		t.Fatal(err)
	}
	p := fromRXE.open(t, r, families[0], rules...)
	local, remote := p.requester.register(t, faultEnd, allAccess), p.responder.register(t, faultEnd, allAccess)
	o := defaultOptions(faultMTU)
	o.timeout = expiresTimeout // for the SEND, which lacks its ACK now
	p.connect(t, o, o)
	result := randomBytes(8)
	p.requester.write(t, local.addr, result)
	p.responder.write(t, remote.addr, word(5))
	p.responder.postRecv(t, qp.RecvWR{ID: 2 + recvID, SGE: []mr.SGE{remote.sge(8, 8)}})
	add := qp.SendWR{ID: 1, Op: qp.FetchAdd, SGE: []mr.SGE{local.sge(0, 8)}, RemoteAddr: remote.addr, RKey: remote.key, CompareAdd: 3}
	send := qp.SendWR{ID: 2, Op: qp.Send, SGE: []mr.SGE{local.sge(8, 8)}}
	p.requester.postSend(t, add)
	p.requester.postSend(t, send)
	expect(t, "requester", p.requester, sendDone(add, 8), sendDone(send, 8))
	expect(t, "responder", p.responder, recvDone(send, 8))
	expectMemory(t, "the word", p.responder, remote.addr, word(8))
	expectMemory(t, "the place of the result", p.requester, local.addr, result)
}

// run runs a case. It takes the counters of rxe, if they are known, and returns the
// new ones.
func (c faultCase) run(t *testing.T, l *lab, d direction, op qp.Op, how transport.Recovery, text string, want tally, before rxeCounters) rxeCounters {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("expected %+v, because: %s", want, c.why)
		}
	})
	rules, err := udp.ParseFaults(text)
	if err != nil {
		t.Fatal(err)
	}
	r := l.record(t)
	r.captureHeaders(t)
	if before == nil {
		before = l.rxeCounters(t)
	}
	p := d.openWith(t, r, families[0], how, rules...)
	o := defaultOptions(faultMTU)
	o.psn = 0xFFFFFE // wraps within the message
	o.timeout = idleTimeout
	if want.timeout > 0 {
		o.timeout = expiresTimeout
	}
	p.connect(t, o, o)

	requests := c.transfer(t, p, append([]qp.Op{op}, c.then...), want.timeout)

	ours, after := p.host().dev.Stats(), l.rxeCounters(t)
	if d == toRXE {
		expectCounters(t, "goroce", ours, faultCounters(rules, counters{
			"sent_pkts": requests + want.resent, "retransmitted_pkts": want.resent, "packet_seq_err": want.nak,
			"implied_nak_seq_err": want.implied, "local_ack_timeout_err": want.timeout, "drop_stale_response": want.stale,
			"reordered_pkts": want.kept,
		}))
		expectCounters(t, "rxe", after.since(before), counters{
			"rcvd_pkts": requests + want.resent + added(rules), "duplicate_request": want.dup, "out_of_seq_request": want.gap,
		})
	} else {
		if unsent := want.ahead - int(ours["drop_out_of_sequence"]); want.nak > 0 && unsent > 0 {
			want.ahead -= unsent
			want.resent -= unsent
		}
		if unsent := want.kept - int(ours["reordered_pkts"]); want.nak > 0 && unsent > 0 && unsent < want.kept {
			want.kept -= unsent
			want.dup -= unsent
			want.resent -= unsent
		}
		expectCounters(t, "goroce", ours, faultCounters(rules, counters{
			"duplicate_request": want.dup, "out_of_sequence": want.gap, "drop_out_of_sequence": want.ahead, "reordered_pkts": want.kept,
		}))
		expectCounters(t, "rxe", after.since(before), counters{
			"sent_pkts": requests + want.resent, "completer_retry_err": want.nak + want.implied + want.timeout, "rcvd_seq_err": want.news,
		})
	}
	if t.Failed() {
		return nil
	}
	return after
}

// transfer posts one message for each operation, and one SEND when they are done,
// and looks at all completions and all memory. It returns how many request packets
// that takes without faults.
func (c faultCase) transfer(t *testing.T, p *pair, ops []qp.Op, timeouts int) (requests int) {
	t.Helper()
	local, remote := p.requester.register(t, faultEnd, allAccess), p.responder.register(t, faultEnd, allAccess)
	here, there := randomBytes(faultEnd), randomBytes(faultEnd)
	p.requester.write(t, local.addr, here)
	p.responder.write(t, remote.addr, there)

	var wrs []qp.SendWR
	var sent, received []cq.WC
	for i, op := range append(ops, qp.Send) {
		at, n := i*faultSlot, (c.packets-1)*faultMTU+lastBytes
		if i == len(ops) || op.Atomic() {
			n = 8
		}
		mine, theirs := here[at:at+n], there[at:at+n]
		wr := qp.SendWR{
			ID: uint64(i + 1), Op: op, SGE: []mr.SGE{local.sge(at, n)}, RemoteAddr: remote.addr + uint64(at), RKey: remote.key,
			Imm: 0x80FF0000 + uint32(i), CompareAdd: 3, Swap: 0x0102030405060708,
		}
		// From here on here and there are as they have to be in the end. An atomic that
		// was executed twice returns another word, or leaves one.
		requests++
		switch old := binary.LittleEndian.Uint64(theirs); op {
		case qp.RDMARead:
			copy(mine, theirs)
		case qp.FetchAdd:
			copy(mine, theirs)
			copy(theirs, word(old+wr.CompareAdd))
		case qp.CmpSwap:
			wr.CompareAdd = old
			copy(mine, theirs)
			copy(theirs, word(wr.Swap))
		default:
			requests += (n - 1) / faultMTU
			copy(theirs, mine)
		}
		if takesRecv(op) {
			recv := qp.RecvWR{ID: wr.ID + recvID}
			if op != qp.RDMAWriteImm {
				recv.SGE = []mr.SGE{remote.sge(at, n)}
			}
			p.responder.postRecv(t, recv)
			received = append(received, recvDone(wr, n))
		}
		wrs, sent = append(wrs, wr), append(sent, sendDone(wr, n))
	}

	// The last SEND goes when all others are done: what rxe had to say of them comes
	// before its acknowledgement. It finds the receive that is left for it.
	last := len(ops)
	start := time.Now()
	for _, wr := range wrs[:last] {
		p.requester.postSend(t, wr)
	}
	expect(t, "requester", p.requester, sent[:last]...)
	expectElapsed(t, time.Since(start), timeouts)
	p.requester.postSend(t, wrs[last])
	expect(t, "requester, last SEND", p.requester, sent[last])
	expect(t, "responder", p.responder, received...)
	for _, s := range []side{p.requester, p.responder} {
		if more := s.poll(t, 1, 20*time.Millisecond); len(more) > 0 {
			t.Errorf("one completion too many: %+v", more)
		}
	}
	expectMemory(t, "the requester's memory", p.requester, local.addr, here)
	expectMemory(t, "the responder's memory", p.responder, remote.addr, there)
	return requests
}

// expectElapsed tells by the clock whether a timer had to expire.
func expectElapsed(t *testing.T, elapsed time.Duration, timeouts int) {
	t.Helper()
	shortest, longest := time.Duration(timeouts)*qp.AckTimeout(expiresTimeout)*9/10, completionLimit
	if timeouts == 0 {
		longest = qp.AckTimeout(idleTimeout)
	}
	if elapsed < shortest || elapsed >= longest {
		t.Errorf("it took %v, which is not %v to %v as with %d timeouts", elapsed, shortest, longest, timeouts)
	}
}

// counters are values by name.
type counters map[string]int

// uncounted are counters of traffic and of the interface.
var uncounted = regexp.MustCompile("^(sent|rcvd)_(pkts|bytes)$|^rdma_|^link_|^port_|^lifespan$|^ack_deferred$|" + reasons)

// reasons are the parts of retransmitted_pkts, and what depends on the clock.
const reasons = "^retransmitted_(nak|timeout|probe|selective)$|^spurious_retransmissions$"

// added is by how many packets the rules change the number of those sent.
func added(rules []udp.FaultRule) (n int) {
	for _, r := range rules {
		switch {
		case r.Dir == udp.DirRX:
		case r.Fault == udp.FaultDup:
			n += r.Copies
		default:
			n--
		}
	}
	return n
}

// faultCounters adds the counters of rules that happen once each.
func faultCounters(rules []udp.FaultRule, c counters) counters {
	for i, r := range rules {
		c[fmt.Sprintf("fault_rule_%d", i+1)] = 1
		c[map[udp.Fault]string{
			udp.FaultDrop: "fault_dropped", udp.FaultCorrupt: "fault_corrupted", udp.FaultDup: "fault_duplicated", udp.FaultSet: "fault_rewritten",
		}[r.Fault]]++
	}
	return c
}

// expectCounters compares all counters but those that count what goes well.
func expectCounters(t *testing.T, who string, got map[string]uint64, want counters) {
	t.Helper()
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s has no counter %s", who, name)
		}
	}
	for name, n := range got {
		if _, ok := want[name]; ok || !uncounted.MatchString(name) {
			if n != uint64(want[name]) {
				t.Errorf("%s: %s is %d, want %d", who, name, n, want[name])
			}
		}
	}
}

// rxeCounters are the hardware counters of rxe0.
type rxeCounters map[string]uint64

func (l *lab) rxeCounters(t *testing.T) rxeCounters {
	t.Helper()
	out := run(t, l.inGuest(time.Minute, "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *"))
	c := rxeCounters{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("counter of rxe: %q", line)
		}
		c[name] = n
	}
	return c
}

func (c rxeCounters) since(before rxeCounters) map[string]uint64 {
	delta := map[string]uint64{}
	for name, n := range c {
		delta[name] = n - before[name]
	}
	return delta
}
