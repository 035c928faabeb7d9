package transport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// fill returns n bytes that differ from the pattern of the regions.
func fill(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*13+i>>7) ^ 0x5C
	}
	return b
}

// unchanged returns a check that mem holds what it held, but for the given
// ranges.
func (s *script) unchanged() func(except ...[]byte) {
	before := bytes.Clone(s.mem.Bytes())
	return func(except ...[]byte) {
		s.Helper()
		now := s.mem.Bytes()
		for _, x := range except {
			off := int(mrOffset(s.mem, x))
			copy(before[off:], x)
		}
		if !bytes.Equal(now, before) {
			s.Fatal("memory was changed that should not be")
		}
	}
}

func mrOffset(r *mr.Region, b []byte) uint64 {
	for i := range r.Bytes() {
		if &r.Bytes()[i] == &b[0] {
			return uint64(i)
		}
	}
	panic("not in the region")
}

// IBA 9.7.5.1.2: a SEND goes to the next receive, and its ACK counts messages.
func TestResponderSendIsReceived(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 512, 1000} {
		for _, immediate := range []bool{false, true} {
			t.Run(fmt.Sprintf("length=%d/imm=%v", n, immediate), func(t *testing.T) {
				play(t, setup{}, func(s *script) {
					s.postRecv(7, 1000, 1100)
					check := s.unchanged()
					data := fill(n)
					packets := max(1, (n+255)/256)
					var in []bth.Packet
					for k := range packets {
						o, last := bth.SendMiddle, k == packets-1
						switch {
						case packets == 1 && immediate:
							o = bth.SendOnlyImm
						case packets == 1:
							o = bth.SendOnly
						case k == 0:
							o = bth.SendFirst
						case last && immediate:
							o = bth.SendLastImm
						case last:
							o = bth.SendLast
						}
						p := s.pkt(o, k, data[k*256:min(n, (k+1)*256)], carrying(0xC0FFEE))
						p.AckReq = last
						in = append(in, p)
					}
					s.hear(in...)
					s.wantACK(packets-1, 1)
					wc := s.wantRecv(7, cq.Success)
					if wc.Opcode != cq.OpRecv || int(wc.ByteLen) != n || wc.Flags&cq.WithImm != 0 != immediate || immediate && wc.Imm != 0xC0FFEE {
						s.Fatalf("completion %+v", wc)
					}
					if !bytes.Equal(s.data(1000, n), data) {
						s.Fatal("wrong bytes")
					}
					if n > 0 {
						check(s.data(1000, n))
					}
				})
			})
		}
	}
}

// IBA 9.7.2: the entries of a receive need not end where packets do.
func TestResponderSendIsScattered(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRecv(1, 0, 0, s.mem.SGE(5000, 100), s.mem.SGE(10, 300), mr.SGE{}, s.mem.SGE(9000, 300))
		data := fill(600)
		s.hear(s.pkt(bth.SendFirst, 0, data[:256]), s.pkt(bth.SendMiddle, 1, data[256:512]), s.pkt(bth.SendLast, 2, data[512:], asks))
		s.wantACK(2, 1)
		s.wantRecv(1, cq.Success)
		if got := string(s.data(5000, 100)) + string(s.data(10, 300)) + string(s.data(9000, 200)); got != string(data) {
			s.Fatal("wrong bytes")
		}
	})
}

// IBA 9.7.5.1.2: a WRITE lands where its RETH says, byte by byte.
func TestResponderWriteIsPlaced(t *testing.T) {
	for _, n := range []int{0, 1, 3, 256, 257, 512, 700} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				check := s.unchanged()
				data := fill(n)
				packets := max(1, (n+255)/256)
				for k := range packets {
					o := bth.WriteMiddle
					switch {
					case packets == 1:
						o = bth.WriteOnly
					case k == 0:
						o = bth.WriteFirst
					case k == packets-1:
						o = bth.WriteLast
					}
					p := s.pkt(o, k, data[k*256:min(n, (k+1)*256)], s.into(333, n))
					p.AckReq = k == packets-1
					s.hear(p)
				}
				s.wantACK(packets-1, 1)
				if !bytes.Equal(s.data(333, n), data) {
					s.Fatal("wrong bytes")
				}
				if n > 0 {
					check(s.data(333, n))
				}
			})
		})
	}
}

// IBA 11.4.2.1: a WRITE with immediate consumes a receive, leaves its buffer
// alone, and completes it with the length of the WRITE.
func TestResponderWriteWithImmediateTakesReceive(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRecv(1, 8000, 10)
		s.postRecv(2, 8000, 10)
		check := s.unchanged()
		data := fill(600)
		s.hear(s.pkt(bth.WriteOnlyImm, 0, data[:5], s.into(0, 5), carrying(11), asks))
		s.wantACK(0, 1)
		if wc := s.wantRecv(1, cq.Success); wc.Opcode != cq.OpRecvRDMAWithImm || wc.ByteLen != 5 || wc.Flags != cq.WithImm || wc.Imm != 11 {
			s.Fatalf("completion %+v", wc)
		}
		s.hear(s.pkt(bth.WriteFirst, 1, data[:256], s.into(100, 600)), s.pkt(bth.WriteMiddle, 2, data[256:512]))
		s.wantNoCompletion()
		s.hear(s.pkt(bth.WriteLastImm, 3, data[512:], carrying(12), asks))
		s.wantACK(3, 2)
		if wc := s.wantRecv(2, cq.Success); wc.ByteLen != 600 || wc.Imm != 12 {
			s.Fatalf("completion %+v", wc)
		}
		check(s.data(0, 5), s.data(100, 600))
	})
}

// IBA 9.2: SE makes the completion a solicited one.
func TestResponderSolicitedBitReachesQueue(t *testing.T) {
	for _, se := range []bool{false, true} {
		notified := 0
		play(t, setup{config: func(c *qp.Config) { c.RecvCQ = cq.New(8, func() { notified++ }) }}, func(s *script) {
			notified = 0
			s.q.RecvCQ.Arm(true)
			s.postRecv(1, 0, 10)
			p := s.pkt(bth.SendOnly, 0, fill(10))
			p.Solicited = se
			s.hear(p)
			s.wantRecv(1, cq.Success)
			if want := map[bool]int{false: 0, true: 1}[se]; notified != want {
				s.Fatalf("notified %d times with SE %v", notified, se)
			}
		})
	}
}

// IBA 9.7.5.1.2: only AckReq asks for an ACK; ACKs of one batch merge.
func TestResponderACKsAreCoalesced(t *testing.T) {
	play(t, setup{}, func(s *script) {
		w := func(k int, mods ...mod) bth.Packet {
			return s.pkt(bth.WriteOnly, k, fill(4), append(mods, s.into(0, 4))...)
		}
		s.hear(w(0), w(1), w(2))
		s.wantSilence()
		s.hear(w(3, asks), w(4), w(5, asks), w(6, asks), w(7))
		s.wantACK(6, 7) // the MSN as of that packet
		s.wantSilence()
		s.hear(w(8, asks))
		s.wantACK(8, 9)
	})
}

// IBA 9.7.5.1.2: an ACK is not sent past the data of an earlier READ, nor do ACKs
// merge around it; ACKs owed before a READ go first (4.4a).
func TestResponderACKDoesNotOvertakeReadData(t *testing.T) {
	play(t, setup{}, func(s *script) {
		w := func(k int) bth.Packet { return s.pkt(bth.WriteOnly, k, fill(4), s.into(0, 4), asks) }
		s.hear(w(0), w(1), s.pkt(bth.ReadRequest, 2, nil, s.into(1000, 600)), w(5), s.atomic(bth.FetchAdd, 6, s.va(2048), s.mem.Key(), 1, 0), w(7), w(8))
		word := binary.NativeEndian.Uint64(s.data(2048, 8)) - 1
		s.wantACK(1, 2)
		s.want(op(bth.ReadRespFirst), at(2), count(3), syndrome(bth.SyndromeACK))
		s.want(op(bth.ReadRespMiddle), at(3))
		s.want(op(bth.ReadRespLast), at(4), count(3))
		s.wantACK(5, 4)
		s.want(op(bth.AtomicAcknowledge), at(6), count(5), old(word))
		s.wantACK(8, 7)
	})
}

// IBA 9.2.1: the opcodes of READ responses by length, the AETH with the MSN
// in all but the MIDDLE ones, PSNs consecutive.
func TestResponderReadIsAnswered(t *testing.T) {
	for _, mtu := range []int{256, 1024, 4096} {
		for _, n := range []int{0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2*mtu + 1, 7 * mtu} {
			t.Run(fmt.Sprintf("mtu=%d/length=%d", mtu, n), func(t *testing.T) {
				play(t, setup{mtu: mtu}, func(s *script) {
					s.hear(s.pkt(bth.ReadRequest, 0, nil, s.into(77, n)))
					packets := max(1, (n+mtu-1)/mtu)
					for k := range packets {
						o := bth.ReadRespMiddle
						switch {
						case packets == 1:
							o = bth.ReadRespOnly
						case k == 0:
							o = bth.ReadRespFirst
						case k == packets-1:
							o = bth.ReadRespLast
						}
						c := []checker{op(o), at(k), payload(s.data(77+k*mtu, min(mtu, n-k*mtu)))}
						if o != bth.ReadRespMiddle {
							c = append(c, syndrome(bth.SyndromeACK), count(1))
						}
						s.want(c...)
					}
					s.wantSilence()
					// The next request follows the PSNs of the responses.
					s.hear(s.pkt(bth.WriteOnly, packets, nil, to(0, 0, 0), asks))
					s.wantACK(packets, 2)
				})
			})
		}
	}
}

// IBA 9.7.4.1.4, C9-88: without data neither key nor address is looked at, but
// the pair's rights are.
func TestResponderZeroLengthNeedsNoKey(t *testing.T) {
	play(t, setup{}, func(s *script) {
		check := s.unchanged()
		s.hear(s.pkt(bth.WriteOnly, 0, nil, to(0xDEAD, 0xBEEF, 0), asks))
		s.wantACK(0, 1)
		s.hear(s.pkt(bth.ReadRequest, 1, nil, to(0xDEAD, 0xBEEF, 0)))
		s.want(op(bth.ReadRespOnly), at(1), payload(nil), count(2))
		check()
	})
}

// IBA 9.3: atomics change the word in the host's order and answer with what
// it was.
func TestResponderAtomicIsExecuted(t *testing.T) {
	play(t, setup{}, func(s *script) {
		word := s.data(64, 8)
		binary.NativeEndian.PutUint64(word, 1<<63+5)
		s.hear(s.atomic(bth.FetchAdd, 0, s.va(64), s.mem.Key(), 1<<63+2, 0))
		s.want(op(bth.AtomicAcknowledge), at(0), syndrome(bth.SyndromeACK), count(1), old(1<<63+5))
		if v := binary.NativeEndian.Uint64(word); v != 7 { // modulo 2^64
			s.Fatalf("word %d", v)
		}
		s.hear(s.atomic(bth.CmpSwap, 1, s.va(64), s.mem.Key(), 100, 8))
		s.want(op(bth.AtomicAcknowledge), at(1), count(2), old(7))
		if v := binary.NativeEndian.Uint64(word); v != 7 {
			s.Fatalf("word %d after a compare that failed", v)
		}
		s.hear(s.atomic(bth.CmpSwap, 2, s.va(64), s.mem.Key(), 100, 7))
		s.want(op(bth.AtomicAcknowledge), at(2), count(3), old(7))
		if v := binary.NativeEndian.Uint64(word); v != 100 {
			s.Fatalf("word %d", v)
		}
	})
}

// refusal is one row of IBA 9.9.3 that ends the pair. The packets of hear
// are given one after the other; the last one is refused.
type refusal struct {
	name   string
	access mr.Access // of the pair; 0 is all
	depth  int       // MaxDestRDAtomic; 0 is 4, -1 is 0
	recvs  int       // receives of 300 bytes posted, IDs from 1
	recv   func(s *script) mr.SGE
	hear   func(s *script) []bth.Packet
	nak    bth.Syndrome
	status cq.Status // of receive 1; with Success the event below is raised
	event  transport.EventType
	placed func(s *script) [][]byte // ranges of mem written before the refusal
}

var refusals = []refusal{
	// MIDDLE/LAST without FIRST; new request in mid-message; LAST of another kind.
	{name: "SEND MIDDLE without FIRST", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendMiddle, 0, fill(256))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "SEND LAST without FIRST", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendLast, 0, fill(9))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "SEND LAST with imm without FIRST", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendLastImm, 0, fill(9))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE MIDDLE without FIRST", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteMiddle, 0, fill(256))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE LAST without FIRST", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteLast, 0, fill(9))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE LAST with imm without FIRST", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteLastImm, 0, fill(9))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "SEND LAST after its end", recvs: 2, hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.SendOnly, 0, nil), s.pkt(bth.SendLast, 1, fill(9)))
	}, nak: 0x61, status: cq.Success, event: transport.EventQPReqErr},
	{name: "SEND ONLY in a SEND", recvs: 1, hear: inSend(bth.SendOnly, 9), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "SEND FIRST in a SEND", recvs: 1, hear: inSend(bth.SendFirst, 256), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "WRITE ONLY in a SEND", recvs: 1, hear: inSend(bth.WriteOnly, 9), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "WRITE LAST in a SEND", recvs: 1, hear: inSend(bth.WriteLast, 9), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "WRITE LAST with imm in a SEND", recvs: 1, hear: inSend(bth.WriteLastImm, 9), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "READ in a SEND", recvs: 1, hear: inSend(bth.ReadRequest, 0), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "atomic in a SEND", recvs: 1, hear: inSend(bth.CmpSwap, 0), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "SEND LAST in a WRITE", recvs: 1, hear: inWrite(bth.SendLast, 9), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "SEND ONLY in a WRITE", recvs: 1, hear: inWrite(bth.SendOnly, 9), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "WRITE FIRST in a WRITE", hear: inWrite(bth.WriteFirst, 256), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "READ in a WRITE", hear: inWrite(bth.ReadRequest, 0), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "atomic in a WRITE", hear: inWrite(bth.FetchAdd, 0), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},

	// Operations that the pair does not offer.
	{name: "WRITE not enabled", access: mr.RemoteRead | mr.RemoteAtomic, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteOnly, 0, fill(4), s.into(0, 4))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "empty WRITE not enabled", access: mr.RemoteRead, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteOnly, 0, nil, s.into(0, 0))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "READ not enabled", access: mr.RemoteWrite | mr.RemoteAtomic, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 4))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "CmpSwap not enabled", access: mr.RemoteWrite | mr.RemoteRead, hear: func(s *script) []bth.Packet {
		return l(s.atomic(bth.CmpSwap, 0, s.va(0), s.mem.Key(), 0, 0))
	}, nak: 0x61, event: transport.EventQPReqErr},
	{name: "FetchAdd not enabled", access: mr.RemoteWrite | mr.RemoteRead, hear: func(s *script) []bth.Packet {
		return l(s.atomic(bth.FetchAdd, 0, s.va(0), s.mem.Key(), 1, 0))
	}, nak: 0x61, event: transport.EventQPReqErr},
	{name: "FLUSH not enabled", hear: func(s *script) []bth.Packet {
		p := s.pkt(bth.Flush, 0, nil, s.into(0, 4))
		p.FETH.Placement = 1
		return l(p)
	}, nak: 0x61, event: transport.EventQPReqErr},
	{name: "ATOMIC WRITE not enabled", access: mr.RemoteRead | mr.RemoteAtomic, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.AtomicWrite, 0, fill(8), s.into(0, 8))) }, nak: 0x61, event: transport.EventQPReqErr},

	// Length rules.
	{name: "SEND FIRST short", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendFirst, 0, fill(255))) }, nak: 0x61, status: cq.RemInvReqErr},
	{name: "SEND FIRST empty", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendFirst, 0, nil)) }, nak: 0x61, status: cq.RemInvReqErr},
	{name: "SEND FIRST long", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendFirst, 0, fill(257))) }, nak: 0x61, status: cq.RemInvReqErr},
	{name: "SEND MIDDLE short", recvs: 1, hear: inSend(bth.SendMiddle, 40), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "SEND LAST empty", recvs: 1, hear: inSend(bth.SendLast, 0), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "SEND LAST long", recvs: 1, hear: inSend(bth.SendLast, 257), nak: 0x61, status: cq.RemInvReqErr, placed: firstRecv},
	{name: "SEND ONLY long", recvs: 1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendOnly, 0, fill(257))) }, nak: 0x61, status: cq.RemInvReqErr},
	{name: "WRITE FIRST short", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteFirst, 0, fill(255), s.into(0, 600))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE MIDDLE long", hear: inWrite(bth.WriteMiddle, 257), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "WRITE LAST empty", hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.WriteFirst, 0, fill(256), s.into(0, 256)), s.pkt(bth.WriteLast, 1, nil))
	}, nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "WRITE ONLY long", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteOnly, 0, fill(257), s.into(0, 257))) }, nak: 0x61, event: transport.EventQPReqErr},

	// The sum of the payload is not the RETH's length.
	{name: "WRITE ONLY less than announced", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteOnly, 0, fill(4), s.into(0, 5))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE ONLY more than announced", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteOnly, 0, fill(5), s.into(0, 4))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE ONLY with data, none announced", hear: func(s *script) []bth.Packet { return l(s.pkt(bth.WriteOnly, 0, fill(5), s.into(0, 0))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "WRITE LAST less than announced", hear: inWrite(bth.WriteLast, 255), nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "WRITE MIDDLE more than announced", hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.WriteFirst, 0, fill(256), s.into(0, 300)), s.pkt(bth.WriteMiddle, 1, fill(256)))
	}, nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "WRITE LAST more than announced", hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.WriteFirst, 0, fill(256), s.into(0, 300)), s.pkt(bth.WriteLast, 1, fill(45)))
	}, nak: 0x61, event: transport.EventQPReqErr, placed: firstWrite},
	{name: "WRITE LAST with imm less than announced", recvs: 1, hear: inWrite(bth.WriteLastImm, 1), nak: 0x61, status: cq.RemInvReqErr, placed: firstWrite},
	{name: "WRITE of more than 2^31 bytes", hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.WriteFirst, 0, fill(256), func(p *bth.Packet) { p.RETH = bth.RETH{VA: s.va(0), RKey: s.mem.Key(), Length: 1<<31 + 1} }))
	}, nak: 0x61, event: transport.EventQPReqErr},
	{name: "READ of more than 2^31 bytes", hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.ReadRequest, 0, nil, func(p *bth.Packet) { p.RETH = bth.RETH{VA: s.va(0), RKey: s.mem.Key(), Length: 1<<31 + 1} }))
	}, nak: 0x61, event: transport.EventQPReqErr},

	// SEND against its receive.
	{name: "SEND ONLY longer than the receive", recvs: 1, recv: func(s *script) mr.SGE { return s.mem.SGE(20000, 8) },
		hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendOnly, 0, fill(9))) }, nak: 0x61, status: cq.LocLenErr},
	{name: "SEND LAST longer than the receive", recvs: 1, hear: inSend(bth.SendLast, 45), nak: 0x61, status: cq.LocLenErr, placed: firstRecv},
	{name: "SEND MIDDLE longer than the receive", recvs: 1, hear: inSend(bth.SendMiddle, 256), nak: 0x61, status: cq.LocLenErr, placed: firstRecv},
	{name: "receive without local write", recvs: 1, recv: func(s *script) mr.SGE { return s.register(64, mr.RemoteRead).SGE(0, 64) },
		hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendOnly, 0, fill(9))) }, nak: 0x63, status: cq.LocProtErr},
	{name: "receive with an unknown key", recvs: 1, recv: func(s *script) mr.SGE { return mr.SGE{Addr: s.va(0), Length: 64, LKey: s.mem.Key() ^ 1} },
		hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendOnly, 0, fill(9))) }, nak: 0x63, status: cq.LocProtErr},
	{name: "receive out of range", recvs: 1, recv: func(s *script) mr.SGE {
		return mr.SGE{Addr: s.va(memLen - 63), Length: 64, LKey: s.mem.Key()}
	}, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendOnly, 0, fill(9))) }, nak: 0x63, status: cq.LocProtErr},
	{name: "receive of another domain", recvs: 1, recv: func(s *script) mr.SGE { return s.registerIn(s.table.NewDomain(), 64, mr.LocalWrite).SGE(0, 64) },
		hear: func(s *script) []bth.Packet { return l(s.pkt(bth.SendOnly, 0, fill(9))) }, nak: 0x63, status: cq.LocProtErr},

	// R_Key and range, for each operation. WRITE with immediate has its receive
	// at hand and fails it.
	{name: "WRITE with imm, bad key", recvs: 1, hear: func(s *script) []bth.Packet {
		return l(s.pkt(bth.WriteOnlyImm, 0, fill(4), to(s.va(0), s.mem.Key()+1, 4)))
	}, nak: 0x62, status: cq.LocAccessErr},

	// Atomics.
	{name: "atomic unaligned", hear: func(s *script) []bth.Packet { return l(s.atomic(bth.FetchAdd, 0, s.va(4), s.mem.Key(), 1, 0)) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "atomic unaligned with a bad key", hear: func(s *script) []bth.Packet { return l(s.atomic(bth.CmpSwap, 0, s.va(1), 1, 1, 0)) }, nak: 0x61, event: transport.EventQPReqErr},

	// More READs and atomics than agreed.
	{name: "one READ too many", hear: func(s *script) (l []bth.Packet) {
		for k := range 5 {
			l = append(l, s.pkt(bth.ReadRequest, k, nil, s.into(0, 1)))
		}
		return l
	}, nak: 0x61, event: transport.EventQPReqErr},
	{name: "one atomic too many", depth: 1, hear: func(s *script) (l []bth.Packet) {
		return append(l, s.pkt(bth.ReadRequest, 0, nil, s.into(0, 1)), s.atomic(bth.FetchAdd, 1, s.va(8), s.mem.Key(), 1, 0))
	}, nak: 0x61, event: transport.EventQPReqErr},
	{name: "READ at depth 0", depth: -1, hear: func(s *script) []bth.Packet { return l(s.pkt(bth.ReadRequest, 0, nil, s.into(0, 1))) }, nak: 0x61, event: transport.EventQPReqErr},
	{name: "atomic at depth 0", depth: -1, hear: func(s *script) []bth.Packet {
		return l(s.atomic(bth.FetchAdd, 0, s.va(8), s.mem.Key(), 1, 0))
	}, nak: 0x61, event: transport.EventQPReqErr},
}

// inSend is a packet behind the FIRST of a SEND, inWrite behind that of a WRITE
// of 512 bytes.
func inSend(o bth.Opcode, n int) func(s *script) []bth.Packet {
	return func(s *script) []bth.Packet {
		return l(s.pkt(bth.SendFirst, 0, fill(256)), s.pkt(o, 1, fill(n), s.into(0, n)))
	}
}

func inWrite(o bth.Opcode, n int) func(s *script) []bth.Packet {
	return func(s *script) []bth.Packet {
		p := s.pkt(bth.WriteFirst, 0, fill(256), s.into(0, 512))
		return l(p, s.pkt(o, 1, fill(n), s.into(0, n)))
	}
}

func firstRecv(s *script) [][]byte  { return [][]byte{s.data(20000, 256)} }
func firstWrite(s *script) [][]byte { return [][]byte{s.data(0, 256)} }

// badKeys are the ways in which [va, va+n) of a key can be refused.
var badKeys = []struct {
	name string
	at   func(s *script, n int) (va uint64, key uint32)
}{
	{"unknown key", func(s *script, _ int) (uint64, uint32) { return s.va(0), s.mem.Key() ^ 0x100 }},
	{"old low byte", func(s *script, _ int) (uint64, uint32) { return s.va(0), s.mem.Key() ^ 1 }},
	{"other domain", func(s *script, _ int) (uint64, uint32) {
		r := s.registerIn(s.table.NewDomain(), 1024, mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic)
		return (r.Addr() + 7) &^ 7, r.Key()
	}},
	{"no right", func(s *script, _ int) (uint64, uint32) {
		r := s.register(1024, mr.LocalWrite)
		return (r.Addr() + 7) &^ 7, r.Key()
	}},
	{"below", func(s *script, _ int) (uint64, uint32) { return s.va(-8), s.mem.Key() }},
	{"above", func(s *script, _ int) (uint64, uint32) { return s.va(memLen), s.mem.Key() }},
	{"across the end", func(s *script, n int) (uint64, uint32) { return s.va(memLen - n + 8), s.mem.Key() }},
	{"wraps around", func(s *script, n int) (uint64, uint32) { return -uint64(n), s.mem.Key() }},
	{"deregistered", func(s *script, _ int) (uint64, uint32) {
		r := s.register(1024, mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic)
		if err := s.pd.Deregister(r); err != nil {
			s.Fatal(err)
		}
		return (r.Addr() + 7) &^ 7, r.Key()
	}},
}

// IBA 9.9.3: the rows that end the pair. The NAK has the PSN of the refused
// packet, is sent once, and is the last word; a receive in use fails, without
// one an event is raised; nothing else is written.
func TestResponderRefusesAndFails(t *testing.T) {
	rows := refusals
	for _, bad := range badKeys {
		for _, n := range []int{8, 256, 600} {
			name := func(op string) string { return fmt.Sprintf("%s of %d bytes, %s", op, n, bad.name) }
			write := bth.WriteOnly
			if n > 256 {
				write = bth.WriteFirst
			}
			rows = append(rows, refusal{name: name("WRITE"), nak: 0x62, event: transport.EventQPAccessErr, hear: func(s *script) []bth.Packet {
				va, key := bad.at(s, n)
				return l(s.pkt(write, 0, fill(min(n, 256)), to(va, key, n)))
			}})
			rows = append(rows, refusal{name: name("READ"), nak: 0x62, event: transport.EventQPAccessErr, hear: func(s *script) []bth.Packet {
				va, key := bad.at(s, n)
				return l(s.pkt(bth.ReadRequest, 0, nil, to(va, key, n)))
			}})
		}
		for _, o := range []bth.Opcode{bth.CmpSwap, bth.FetchAdd} {
			rows = append(rows, refusal{name: fmt.Sprintf("%v, %s", o, bad.name), nak: 0x62, event: transport.EventQPAccessErr, hear: func(s *script) []bth.Packet {
				va, key := bad.at(s, 8)
				return l(s.atomic(o, 0, va&^7, key, 1, 0))
			}})
		}
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			c := setup{attr: func(a *qp.Attr) {
				if row.access != 0 {
					a.Access = row.access
				}
				if row.depth != 0 {
					a.MaxDestRDAtomic = uint8(max(0, row.depth))
				}
			}}
			play(t, c, func(s *script) { row.run(s) })
		})
	}
}

func (row *refusal) run(s *script) {
	s.Helper()
	for i := range row.recvs {
		e := s.mem.SGE(20000, 300)
		if row.recv != nil && i == 0 {
			e = row.recv(s)
		}
		s.postRecv(uint64(i+1), 0, 0, e)
	}
	check := s.unchanged()
	regions := s.arenas[1:]
	var before [][]byte
	for _, a := range regions {
		before = append(before, bytes.Clone(a))
	}
	in := row.hear(s)
	fine := in[:len(in)-1]
	s.hear(fine...)
	msns := 0
	for i := range fine {
		if fine[i].Opcode.Info().Pos.Ends() {
			msns++
		}
	}
	refused := in[len(in)-1]
	s.hear(refused)
	k := refused.PSN.Sub(s.psn(0))
	for range msns { // answers to READs and atomics before it
		if info := fine[0].Opcode.Info(); info.Op == bth.OpRead {
			s.want(op(bth.ReadRespOnly))
		}
	}
	s.wantNAK(k, row.nak, uint32(msns))
	s.wantSilence()
	s.wantState(qp.Err)
	next := uint64(1)
	for i := range fine {
		if o := fine[i].Opcode.Info(); o.Op == bth.OpSend && o.Pos.Ends() {
			s.wantRecv(next, cq.Success)
			next++
		}
	}
	if row.status != cq.Success {
		s.wantRecv(next, row.status)
		next++
	} else {
		s.wantEvent(row.event)
	}
	for ; next <= uint64(row.recvs); next++ {
		s.wantRecv(next, cq.WRFlushErr)
	}
	// IBA 9.9.3: once in ERR everything is ignored.
	s.hear(refused, s.pkt(bth.SendOnly, k, nil, asks), s.pkt(bth.WriteOnly, k-1, nil, asks), s.ack(0))
	s.wantSilence()
	s.wantCount(transport.DropState, 4)
	var placed [][]byte
	if row.placed != nil {
		placed = row.placed(s)
		for _, b := range placed {
			if !bytes.Equal(b, fill(len(b))) {
				s.Fatal("what came before the refusal is not in place")
			}
		}
	}
	check(placed...)
	for i, a := range regions {
		if !bytes.Equal(a, before[i]) {
			s.Fatal("another region was changed")
		}
	}
}

// IBA 9.9.3: rights in READ and WRITE do not stand for each other.
func TestResponderRegionRightsAreSeparate(t *testing.T) {
	for _, row := range []struct {
		right mr.Access
		ok    func(s *script, r *mr.Region) bth.Packet
	}{
		{mr.RemoteWrite, func(s *script, r *mr.Region) bth.Packet {
			return s.pkt(bth.WriteOnly, 0, fill(8), to(r.Addr(), r.Key(), 8), asks)
		}},
		{mr.RemoteRead, func(s *script, r *mr.Region) bth.Packet {
			return s.pkt(bth.ReadRequest, 0, nil, to(r.Addr(), r.Key(), 8))
		}},
		{mr.RemoteAtomic, func(s *script, r *mr.Region) bth.Packet {
			return s.atomic(bth.FetchAdd, 0, r.Addr(), r.Key(), 1, 0)
		}},
	} {
		for _, has := range []mr.Access{mr.RemoteWrite, mr.RemoteRead, mr.RemoteAtomic} {
			play(t, setup{}, func(s *script) {
				r := s.register(64, mr.LocalWrite|has)
				s.hear(row.ok(s, r))
				if has == row.right {
					s.want(syndrome(bth.SyndromeACK))
					s.wantState(qp.RTS)
					return
				}
				s.wantNAK(0, bth.NAKRemoteAccess, 0)
				s.wantEvent(transport.EventQPAccessErr)
				s.wantState(qp.Err)
			})
		}
	}
}

// IBA 9.9.3, 5.4: without a receive the packet that needs it gets an RNR NAK
// with our timer; the expected PSN stays; what follows is dropped silently.
func TestResponderWithoutReceiveSendsRNR(t *testing.T) {
	data := fill(600)
	for _, row := range []struct {
		name   string
		before func(s *script) []bth.Packet
		needs  func(s *script) bth.Packet
		after  func(s *script) []bth.Packet // completes the message, asks for an ACK
		msg    []byte
	}{
		{"SEND ONLY", nil, func(s *script) bth.Packet { return s.pkt(bth.SendOnly, 0, data[:9], asks) }, nil, data[:9]},
		{"SEND ONLY with imm", nil, func(s *script) bth.Packet { return s.pkt(bth.SendOnlyImm, 0, data[:9], asks) }, nil, data[:9]},
		{"SEND FIRST", nil, func(s *script) bth.Packet { return s.pkt(bth.SendFirst, 0, data[:256]) },
			func(s *script) []bth.Packet {
				return l(s.pkt(bth.SendMiddle, 1, data[256:512]), s.pkt(bth.SendLast, 2, data[512:], asks))
			}, data},
		{"WRITE ONLY with imm", nil, func(s *script) bth.Packet { return s.pkt(bth.WriteOnlyImm, 0, data[:9], s.into(0, 9), asks) }, nil, nil},
		{"WRITE LAST with imm", func(s *script) []bth.Packet { return l(s.pkt(bth.WriteFirst, 0, data[:256], s.into(0, 300))) },
			func(s *script) bth.Packet { return s.pkt(bth.WriteLastImm, 1, data[256:300], asks) }, nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				var before, after []bth.Packet
				if row.before != nil {
					before = row.before(s)
				}
				needs := row.needs(s)
				if row.after != nil {
					after = row.after(s)
				}
				k := len(before)
				s.hear(before...)
				s.wantSilence()
				s.hear(needs)
				s.wantNAK(k, bth.SyndromeRNR(12), 0)
				for range 3 {
					s.hear(s.pkt(bth.WriteOnly, k+1, nil, asks), s.pkt(bth.WriteOnly, k+5, nil, asks))
				}
				s.wantSilence()
				s.wantCount(transport.DropOutOfSequence, 6)
				s.hear(needs) // still nothing
				s.wantNAK(k, bth.SyndromeRNR(12), 0)
				s.wantCount(transport.SentRNR, 2)
				s.postRecv(4, 30000, 600)
				s.hear(needs)
				s.hear(after...)
				s.wantACK(k+len(after), 1)
				if wc := s.wantRecv(4, cq.Success); row.msg != nil && !bytes.Equal(s.data(30000, int(wc.ByteLen)), row.msg) {
					s.Fatal("wrong bytes")
				}
				s.wantState(qp.RTS)
			})
		})
	}
}

// 9.7.4: resources are looked at before length and key: without a receive a
// faulty request is not yet found faulty.
func TestResponderRNRComesBeforeLengthAndKey(t *testing.T) {
	play(t, setup{}, func(s *script) {
		p := s.pkt(bth.WriteOnlyImm, 0, fill(4), to(s.va(0), 1, 4))
		s.hear(p)
		s.wantNAK(0, bth.SyndromeRNR(12), 0)
		s.hear(s.pkt(bth.SendFirst, 0, fill(3)))
		s.wantNAK(0, bth.SyndromeRNR(12), 0)
		s.postRecv(1, 0, 10)
		s.hear(p)
		s.wantNAK(0, bth.NAKRemoteAccess, 0)
		s.wantRecv(1, cq.LocAccessErr)
	})
}

// IBA 9.7.4: a gap gets one NAK with the expected PSN; further packets are
// dropped silently until it comes.
func TestResponderGapGetsOneNAK(t *testing.T) {
	play(t, setup{recovery: transport.GoBackN}, func(s *script) {
		w := func(k int) bth.Packet { return s.pkt(bth.WriteOnly, k, fill(4), s.into(4*k, 4), asks) }
		check := s.unchanged()
		s.hear(w(1))
		s.wantNAK(0, bth.NAKSequence, 0)
		s.hear(w(2), w(3), w(1), s.pkt(bth.ReadRequest, 4, nil, s.into(0, 4)), s.pkt(bth.WriteOnly, 1<<23-1, nil, asks))
		s.wantSilence()
		s.wantCount(transport.OutOfSequence, 1)
		s.wantCount(transport.DropOutOfSequence, 5)
		check()
		s.hear(w(0), w(1))
		s.wantACK(1, 2)
		s.hear(w(4))
		s.wantACK(1, 2) // there was progress: an ACK goes ahead
		s.wantNAK(2, bth.NAKSequence, 2)
		s.hear(w(2), w(5))
		s.wantACK(2, 3)
		s.wantNAK(3, bth.NAKSequence, 3)
		s.hear(w(3))
		s.wantACK(3, 4)
		check(s.data(0, 16))
	})
}

// The ACK ahead of a NAK is not repeated without progress, and never stands for
// a READ or an atomic, whose own answer may be lost.
func TestResponderACKAheadOfNAKNeedsProgress(t *testing.T) {
	play(t, setup{recovery: transport.GoBackN}, func(s *script) {
		w := func(k int) bth.Packet { return s.pkt(bth.WriteOnly, k, nil) }
		s.hear(w(0), w(2))
		s.wantACK(0, 1)
		s.wantNAK(1, bth.NAKSequence, 1)
		s.hear(w(0)) // a duplicate: the peer may hear of the gap again
		s.wantACK(0, 1)
		s.hear(w(2))
		s.wantNAK(1, bth.NAKSequence, 1)
		s.hear(s.pkt(bth.ReadRequest, 1, nil, s.into(0, 4)), w(3))
		// Not with the PSN of a READ or atomic: rxe takes such an ACK for the answer,
		// and completes the request without its data if the answer was lost.
		s.want(op(bth.ReadRespOnly), at(1))
		s.wantNAK(2, bth.NAKSequence, 2)
		s.hear(s.atomic(bth.FetchAdd, 2, s.va(0)&^7, s.mem.Key(), 1, 0), w(4))
		s.want(op(bth.AtomicAcknowledge), at(2))
		s.wantNAK(3, bth.NAKSequence, 3)
	})
}

// IBA 9.7.5.1.2: MSN counts messages, not packets, and READs when accepted.
func TestResponderMSNCountsMessages(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRecv(1, 0, 600)
		s.hear(s.pkt(bth.SendFirst, 0, fill(256), asks))
		s.wantACK(0, 0) // in the middle of the first message
		s.hear(s.pkt(bth.SendLast, 1, fill(9), asks))
		s.wantACK(1, 1)
		s.wantRecv(1, cq.Success)
		s.hear(s.pkt(bth.WriteFirst, 2, fill(256), s.into(0, 512), asks))
		s.wantACK(2, 1)
		s.hear(s.pkt(bth.WriteLast, 3, fill(256), asks))
		s.wantACK(3, 2)
		s.hear(s.pkt(bth.ReadRequest, 4, nil, s.into(0, 600)))
		s.want(op(bth.ReadRespFirst), count(3))
		s.want(op(bth.ReadRespMiddle))
		s.want(op(bth.ReadRespLast), count(3))
		s.hear(s.atomic(bth.FetchAdd, 7, s.va(0), s.mem.Key(), 1, 0))
		s.want(op(bth.AtomicAcknowledge), count(4))
	})
}

// The key is looked up for each packet: a region that goes away in the middle
// of a WRITE ends it.
func TestResponderDeregistrationInWriteIsRefused(t *testing.T) {
	play(t, setup{}, func(s *script) {
		r := s.register(600, mr.LocalWrite|mr.RemoteWrite)
		s.hear(s.pkt(bth.WriteFirst, 0, fill(256), to(r.Addr(), r.Key(), 600)))
		before := bytes.Clone(r.Bytes())
		if err := s.pd.Deregister(r); err != nil {
			s.Fatal(err)
		}
		s.hear(s.pkt(bth.WriteMiddle, 1, fill(256)))
		s.wantNAK(1, bth.NAKRemoteAccess, 0)
		s.wantEvent(transport.EventQPAccessErr)
		s.wantState(qp.Err)
		if !bytes.Equal(r.Bytes(), before) {
			s.Fatal("memory was written after its deregistration")
		}
	})
}

// The same for a READ: the NAK takes the place of the response (IBA 9.7.5.1).
func TestResponderDeregistrationInReadIsRefused(t *testing.T) {
	play(t, setup{}, func(s *script) {
		r := s.register(600, mr.LocalWrite|mr.RemoteRead)
		s.burst = bth.NewBurst(1, 4096)
		s.hear(s.pkt(bth.ReadRequest, 0, nil, to(r.Addr(), r.Key(), 600)), s.pkt(bth.WriteOnly, 3, nil, asks))
		s.burst.Reset()
		s.e.Transmit(s.now, s.burst)
		s.sent = append(s.sent, s.check(&s.burst.Frames()[0]))
		s.want(op(bth.ReadRespFirst), at(0), payload(r.Bytes()[:256]))
		if err := s.pd.Deregister(r); err != nil {
			s.Fatal(err)
		}
		s.wantNAK(1, bth.NAKRemoteAccess, 1)
		s.wantEvent(transport.EventQPAccessErr)
		s.wantState(qp.Err)
	})
}

// IBA 11.6.2: COMM_EST is raised once, by the first request in RTR.
func TestResponderCommEstIsRaisedOnce(t *testing.T) {
	play(t, setup{state: qp.RTR}, func(s *script) {
		s.hear(s.ack(0)) // not a request: dropped in RTR
		s.wantCount(transport.DropState, 1)
		s.postRecv(1, 0, 10)
		s.hear(s.pkt(bth.SendOnly, 0, fill(3), asks), s.pkt(bth.WriteOnly, 1, nil, asks))
		s.wantACK(1, 2)
		s.wantRecv(1, cq.Success)
		s.wantEvent(transport.EventCommEst)
		if len(s.events) > 0 {
			s.Fatalf("more events: %v", s.events)
		}
	})
	play(t, setup{}, func(s *script) {
		s.hear(s.pkt(bth.WriteOnly, 0, nil))
		if len(s.events) > 0 {
			s.Fatalf("events in RTS: %v", s.events)
		}
	})
}

// 9.7.4: a receive that was taken for a packet stays with the message while the
// packet is repeated, and the order of receives is kept.
func TestResponderReceivesAreTakenInOrder(t *testing.T) {
	play(t, setup{}, func(s *script) {
		for id := range uint64(3) {
			s.postRecv(id, int(id)*1000, 600)
		}
		s.hear(s.pkt(bth.SendFirst, 0, fill(256)), s.pkt(bth.SendFirst, 0, fill(256))) // doubled
		s.wantACK(0, 0)
		s.hear(s.pkt(bth.SendLast, 1, fill(1)), s.pkt(bth.WriteOnlyImm, 2, nil, s.into(0, 0)), s.pkt(bth.SendOnly, 3, nil))
		for id := range uint64(3) {
			s.wantRecv(id, cq.Success)
		}
	})
}

// A burst of packets that alternate between ahead and expected asks for an ACK
// and a NAK each; the answers that wait stay few, and READs find their place.
func TestResponderAlternatingGapsStayBounded(t *testing.T) {
	play(t, setup{recovery: transport.GoBackN, attr: func(a *qp.Attr) { a.MaxDestRDAtomic = 2 }}, func(s *script) {
		k := 0
		gaps := func() {
			for range 100 {
				s.hear(s.pkt(bth.WriteOnly, k+1, nil, asks), s.pkt(bth.WriteOnly, k, nil, asks))
				k++
			}
		}
		gaps()
		s.hear(s.pkt(bth.ReadRequest, k, nil, s.into(0, 600)))
		k += 3
		gaps()
		s.hear(s.pkt(bth.ReadRequest, k, nil, s.into(0, 600)))
		k += 3
		gaps()
		for read := range 2 {
			base := 100 + read*103
			s.wantNAK(base-1, bth.NAKSequence, uint32(base-1-2*read))
			s.wantACK(base-1, uint32(base-2*read))
			s.want(op(bth.ReadRespFirst), at(base))
			s.want(op(bth.ReadRespMiddle), at(base+1))
			s.want(op(bth.ReadRespLast), at(base+2))
		}
		s.wantNAK(k-1, bth.NAKSequence, 301)
		s.wantACK(k-1, 302)
	})
}
