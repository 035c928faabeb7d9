package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/udp"
	"github.com/goroce/goroce/verbs"
)

type counts map[string]uint64

// Exact faults at either end, of what it sends and of what it receives, and what
// the protocol makes of them. Each message has five packets, which A sends all at
// once. One goroutine drives both devices, so nothing depends on scheduling. What
// is sent again of a READ is a request: one packet.
func TestFaultsExactRulesGiveExactRetransmissions(t *testing.T) {
	const requester, responder = 0, 1
	for _, row := range []struct {
		op     qp.Op
		by     int
		spec   string
		again  uint64 // packets that A sends again
		a, b   counts
		status cq.Status
	}{
		// A gap: one NAK that names it, and all is sent again from there.
		{qp.RDMAWrite, requester, "drop op=write_middle n=2", 3, counts{"fault_dropped": 1, "packet_seq_err": 1}, counts{"out_of_sequence": 1}, 0},
		{qp.RDMAWrite, requester, "drop op=write_middle psn=+2 try=1", 3, counts{"fault_dropped": 1, "packet_seq_err": 1}, counts{"out_of_sequence": 1}, 0},
		{qp.RDMAWrite, requester, "drop op=write_first n=1", 5, counts{"fault_dropped": 1, "packet_seq_err": 1}, counts{"out_of_sequence": 1}, 0},
		{qp.Send, responder, "drop dir=rx op=send_middle n=2", 3, counts{"packet_seq_err": 1}, counts{"fault_dropped": 1, "out_of_sequence": 1}, 0},
		{qp.RDMAWrite, requester, "corrupt op=write_middle n=2", 3, counts{"fault_corrupted": 1, "packet_seq_err": 1}, counts{"drop_icrc_error": 1}, 0},
		{qp.Send, responder, "corrupt dir=rx op=send_middle n=2", 3, counts{"packet_seq_err": 1}, counts{"fault_corrupted": 1, "drop_icrc_error": 0}, 0},
		{qp.Send, requester, "delay=1ms op=send_middle n=2", 3, counts{"fault_delayed": 1, "packet_seq_err": 1}, counts{"out_of_sequence": 1}, 0},
		{qp.RDMAWrite, responder, "delay=1ms dir=rx op=write_middle n=2", 3, counts{"packet_seq_err": 1}, counts{"fault_delayed": 1, "out_of_sequence": 1}, 0},
		// 0 1 3 2 4: 3 is refused and 2 taken, so 3 and 4 are sent again.
		{qp.RDMAWrite, requester, "reorder=1 op=write_middle n=2", 2, counts{"fault_reordered": 1, "packet_seq_err": 1}, counts{"out_of_sequence": 2}, 0},
		{qp.Send, responder, "reorder=1 dir=rx op=send_middle n=2", 2, counts{"packet_seq_err": 1}, counts{"fault_reordered": 1, "out_of_sequence": 2}, 0},
		// Nothing behind the lost packet tells of it: the timer does.
		{qp.Send, requester, "drop op=send_last n=1", 1, counts{"fault_dropped": 1, "local_ack_timeout_err": 1}, counts{"duplicate_request": 0}, 0},
		{qp.RDMAWrite, requester, "drop dir=rx op=ack n=1", 1, counts{"fault_dropped": 1, "local_ack_timeout_err": 1}, counts{"duplicate_request": 1}, 0},
		{qp.Send, responder, "drop op=ack n=1", 1, counts{"local_ack_timeout_err": 1}, counts{"fault_dropped": 1, "duplicate_request": 1}, 0},
		{qp.RDMAWrite, requester, "set ackreq=0 op=write_last n=1", 1, counts{"fault_rewritten": 1, "local_ack_timeout_err": 1}, counts{"duplicate_request": 1}, 0},
		{qp.Send, responder, "set psn=+1 op=ack n=1", 1, counts{"drop_stale_response": 1, "local_ack_timeout_err": 1}, counts{"fault_rewritten": 1}, 0},
		// Once more does no harm.
		{qp.RDMAWrite, requester, "dup op=write_middle n=2", 0, counts{"fault_duplicated": 1}, counts{"duplicate_request": 1}, 0},
		{qp.Send, responder, "dup=2 dir=rx op=send_middle n=2", 0, nil, counts{"fault_duplicated": 1, "duplicate_request": 2}, 0},
		{qp.RDMAWrite, responder, "dup=8 op=ack", 0, counts{"drop_stale_response": 8}, counts{"fault_duplicated": 1}, 0},
		{qp.RDMARead, requester, "dup op=read_request", 0, counts{"fault_duplicated": 1}, counts{"duplicate_request": 1}, 0},
		// A READ is asked for again from the first byte that is missing.
		{qp.RDMARead, responder, "drop op=read_resp_middle n=2", 1, counts{"implied_nak_seq_err": 1}, counts{"fault_dropped": 1, "duplicate_request": 1}, 0},
		{qp.RDMARead, requester, "drop dir=rx op=read_resp_first n=1", 1, counts{"fault_dropped": 1, "implied_nak_seq_err": 1}, counts{"duplicate_request": 1}, 0},
		{qp.RDMARead, responder, "drop op=read_resp_last n=1", 1, counts{"local_ack_timeout_err": 1}, counts{"fault_dropped": 1, "duplicate_request": 1}, 0},
		{qp.RDMARead, requester, "drop op=read_request n=1", 1, counts{"fault_dropped": 1, "local_ack_timeout_err": 1}, counts{"duplicate_request": 0}, 0},
		{qp.RDMARead, requester, "corrupt dir=rx op=read_resp_middle n=1", 1, counts{"fault_corrupted": 1, "implied_nak_seq_err": 1}, counts{"duplicate_request": 1}, 0},
		{qp.RDMARead, responder, "set psn=+1 op=read_resp_middle n=2", 1, counts{"implied_nak_seq_err": 1}, counts{"fault_rewritten": 1, "duplicate_request": 1}, 0},
		// Congestion marks.
		{qp.RDMAWrite, requester, "ce op=write", 0, counts{"fault_marked": 5}, counts{"np_ecn_marked_roce_packets": 5}, 0},
		{qp.Send, responder, "ce dir=rx op=send max=3", 0, nil, counts{"fault_marked": 3, "np_ecn_marked_roce_packets": 3}, 0},
		// Packets that a responder drops before it looks at their PSN.
		{qp.RDMAWrite, requester, "set pkey=0x1234 op=write n=1", 5, counts{"fault_rewritten": 1, "packet_seq_err": 1}, counts{"drop_bad_pkey": 1}, 0},
		{qp.Send, requester, "set tver=1 op=send n=2", 4, counts{"fault_rewritten": 1, "packet_seq_err": 1}, counts{"drop_bad_tver": 1}, 0},
		{qp.RDMAWrite, responder, "set opcode=0x15 dir=rx op=write n=3", 3, counts{"packet_seq_err": 1}, counts{"fault_rewritten": 1, "drop_unknown_opcode": 1}, 0},
		{qp.Send, requester, "set destqp=+1 op=send n=2", 4, counts{"fault_rewritten": 1, "packet_seq_err": 1}, counts{"drop_unknown_qpn": 1}, 0},
		{qp.RDMAWrite, requester, "set migreq=0", 0, counts{"fault_rewritten": 5}, nil, 0},
		// Errors that end the connection.
		{qp.RDMAWrite, requester, "set rkey=+1 op=write_first", 0, counts{"req_remote_access_errors": 1}, counts{"resp_remote_access_errors": 1}, cq.RemAccessErr},
		{qp.RDMARead, responder, "set rkey=+1 dir=rx", 0, counts{"req_remote_access_errors": 1}, counts{"resp_remote_access_errors": 1}, cq.RemAccessErr},
		{qp.RDMAWrite, requester, "set length=1", 0, counts{"req_remote_invalid_request": 1}, counts{"resp_invalid_request": 1}, cq.RemInvReqErr},
		{qp.Send, requester, "set pad=1 op=send_middle n=1", 0, counts{"req_remote_invalid_request": 1}, counts{"resp_invalid_request": 1}, cq.RemInvReqErr},
		{qp.Send, responder, "set syndrome=0x63 op=ack n=1", 0, counts{"req_remote_op_errors": 1}, counts{"fault_rewritten": 1}, cq.RemOpErr},
		{qp.RDMARead, responder, "set opcode=0x10 op=read_resp_middle n=2", 0, counts{"drop_unexpected_response": 1}, nil, cq.BadRespErr},
		// Answers that a requester has to take back.
		{qp.RDMAWrite, requester, "set syndrome=0x60 dir=rx op=ack n=1", 1, counts{"packet_seq_err": 1}, counts{"duplicate_request": 1}, 0},
		{qp.RDMAWrite, responder, "set syndrome=0x21 op=ack n=1", 1, counts{"rcvd_rnr_err": 1}, counts{"duplicate_request": 1}, 0},
	} {
		t.Run(fmt.Sprintf("%v, %c: %s", row.op, 'A'+row.by, row.spec), func(t *testing.T) {
			cfg := inMemory(t, verbs.Config{Polled: true, Recovery: transport.GoBackN})
			cfg[row.by].Faults = parseFaults(t, row.spec)
			a, b := openPair(t, cfg, 2*faultMessage, verbs.ConnectConfig{PathMTU: 1024, Timeout: 14})
			want := row.status
			if want == 0 {
				want = cq.Success
			}
			checkFaulted(t, a, b, row.op, want)
			expect(t, "A", a.dev.Stats(), counts{"retransmitted_pkts": row.again, "local_ack_timeout_err": row.a["local_ack_timeout_err"]})
			expect(t, "A", a.dev.Stats(), row.a)
			expect(t, "B", b.dev.Stats(), row.b)
		})
	}
}

const faultMessage = 4*1024 + 512

// checkFaulted runs one operation and checks its status and its bytes.
func checkFaulted(t *testing.T, a, b *end, op qp.Op, status cq.Status) {
	t.Helper()
	from, to := a, b
	if op == qp.RDMARead {
		from, to = b, a
	}
	fill(from.mem.Bytes()[:faultMessage], 1)
	wr := qp.SendWR{Op: op, Flags: qp.Signaled, SGE: []mr.SGE{a.mem.SGE(0, faultMessage)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()}
	if op == qp.Send {
		if err := b.qp.PostRecv(&qp.RecvWR{SGE: []mr.SGE{b.mem.SGE(0, faultMessage)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	wc := together(t, a, b)
	if wc.Status != status {
		t.Fatalf("%v, want %v; A %v; B %v", wc.Status, status, a.dev.Stats(), b.dev.Stats())
	}
	if status == cq.Success && !bytes.Equal(from.mem.Bytes()[:faultMessage], to.mem.Bytes()[:faultMessage]) {
		t.Error("wrong bytes")
	}
}

// together drives two polled devices in turn until A has a completion, and then
// until nothing moves any more.
func together(t *testing.T, a, b *end) cq.WC {
	t.Helper()
	var wc [1]cq.WC
	for end := time.Now().Add(20 * time.Second); a.cq.Poll(wc[:]) == 0; b.dev.Poll() {
		if time.Now().After(end) {
			t.Fatalf("no completion; A %v; B %v", a.dev.Stats(), b.dev.Stats())
		}
	}
	for a.dev.Poll() || b.dev.Poll() {
	}
	return wc[0]
}

func expect(t *testing.T, who string, got map[string]uint64, want counts) {
	t.Helper()
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: %s is %d, want %d", who, name, got[name], n)
		}
	}
}

func parseFaults(t testing.TB, spec string) []udp.FaultRule {
	t.Helper()
	rules, err := udp.ParseFaults(spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// The same with everything that this package does beyond the standard: only what
// is missing is sent again, and no timer of the connection is waited for. One
// packet more is the offer of selective acknowledgements, a duplicate.
func TestFaultsRecovery(t *testing.T) {
	const requester, responder = 0, 1
	for _, row := range []struct {
		op    qp.Op
		by    int
		spec  string
		again uint64
		a, b  counts
	}{
		{qp.RDMAWrite, requester, "drop op=write_middle n=2", 1, counts{"retransmitted_selective": 1, "rcvd_selective_acks": 2}, counts{"reordered_pkts": 2}},
		{qp.Send, responder, "drop dir=rx op=send_middle n=2", 1, counts{"retransmitted_selective": 1}, counts{"sent_selective_acks": 2}},
		{qp.RDMAWrite, requester, "drop op=write_middle max=3", 3, counts{"retransmitted_selective": 3}, counts{"reordered_pkts": 1}},
		{qp.RDMAWrite, requester, "drop op=write_last n=1", 1, counts{"retransmitted_probe": 1}, counts{"duplicate_request": 1}},
		{qp.RDMAWrite, requester, "drop dir=rx op=ack n=2", 1, counts{"retransmitted_probe": 1}, counts{"duplicate_request": 2}},
		{qp.RDMARead, responder, "drop op=read_resp_middle n=2", 1, counts{"implied_nak_seq_err": 1, "retransmitted_selective": 1}, counts{"duplicate_request": 2}},
		// The answer to the offer comes after the READ's data and tells that it is
		// lost, unless a silence of the peer has told it before.
		{qp.RDMARead, responder, "drop op=read_resp_last n=1", 1, nil, counts{"duplicate_request": 2}},
	} {
		t.Run(fmt.Sprintf("%v, %c: %s", row.op, 'A'+row.by, row.spec), func(t *testing.T) {
			cfg := inMemory(t, verbs.Config{Polled: true})
			cfg[row.by].Faults = parseFaults(t, row.spec)
			a, b := openPair(t, cfg, 2*faultMessage, verbs.ConnectConfig{PathMTU: 1024, Timeout: 20})
			if row.op != qp.RDMARead { // agree first, and measure a round trip
				if err := a.qp.PostSend(&qp.SendWR{Op: qp.RDMAWrite, Flags: qp.Signaled}); err != nil {
					t.Fatal(err)
				}
				together(t, a, b)
			}
			checkFaulted(t, a, b, row.op, cq.Success)
			expect(t, "A", a.dev.Stats(), counts{"retransmitted_pkts": row.again, "local_ack_timeout_err": 0})
			expect(t, "A", a.dev.Stats(), row.a)
			expect(t, "B", b.dev.Stats(), row.b)
		})
	}
}

// The event loop wakes up in time for what is held back, whoever sent it: the
// operation would otherwise take as long as the retransmission timer.
func TestFaultDelayEndsTheSleepOfTheLoop(t *testing.T) {
	const delay = 3 * time.Millisecond
	for name, cfg := range map[string][2]verbs.Config{
		"memory":   inMemory(t, verbs.Config{Recovery: transport.GoBackN}),
		"socket":   loopback(verbs.Config{Recovery: transport.GoBackN}),
		"portable": loopback(verbs.Config{Recovery: transport.GoBackN, Portable: true}),
	} {
		t.Run(name, func(t *testing.T) {
			cfg[0].Faults = parseFaults(t, "delay=3ms op=write_only n=2; delay=3ms dir=rx op=ack n=3; reorder=9 op=write_only n=4")
			a, b := openPair(t, cfg, 4096, verbs.ConnectConfig{Timeout: 20}) // 4.3 s
			for i, least := range []time.Duration{0, delay, delay, udp.ReorderWait} {
				start := time.Now()
				a.must(t, &qp.SendWR{Op: qp.RDMAWrite, SGE: []mr.SGE{a.mem.SGE(0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.Key()})
				if took := time.Since(start); took < least || took > 2*time.Second {
					t.Errorf("write %d took %v; it was held back for %v", i+1, took, least)
				}
			}
			expect(t, "A", a.dev.Stats(), counts{"retransmitted_pkts": 0, "fault_delayed": 2, "fault_reordered": 1})
		})
	}
}

// All kinds of faults at once, both ways: every operation still does its work.
func TestPairAllOperationsUnderMixedFaults(t *testing.T) {
	const mix = "drop dir=both p=1%; dup dir=both p=2%; delay=300us dir=both p=1%; reorder=3 dir=both p=1%; corrupt dir=both p=1%; ce dir=both p=5%; set migreq=0 dir=both p=10%"
	for _, polled := range []bool{false, true} {
		c := verbs.Config{Polled: polled, Faults: parseFaults(t, mix), FaultSeed: 7}
		a, b := openPair(t, inMemory(t, c), 1<<20, verbs.ConnectConfig{Timeout: 10})
		if polled {
			drive(t, b.dev)
		}
		checkAllOperations(t, a, b)
		for _, e := range []*end{a, b} {
			for name, n := range e.dev.Stats() {
				if strings.HasPrefix(name, "fault_rule_") && n == 0 {
					t.Errorf("%s is 0", name)
				}
			}
		}
	}
}

func TestOpenWithAWrongFaultRule(t *testing.T) {
	c := inMemory(t, verbs.Config{Faults: []udp.FaultRule{{Fault: udp.FaultReorder}}})[0]
	_, err := verbs.Open(c)
	var fe *udp.FaultError
	if !errors.As(err, &fe) {
		t.Fatalf("%v, want a FaultError", err)
	}
	c.Faults = nil
	d, err := verbs.Open(c) // the link is still the caller's
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Close()
}
