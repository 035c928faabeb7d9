package transport_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/congestion"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// segmentation rows: the opcodes by position (IBA 9.2.1).
var segmented = []struct {
	name                      string
	op                        qp.Op
	first, middle, last, only bth.Opcode
}{
	{"SEND", qp.Send, bth.SendFirst, bth.SendMiddle, bth.SendLast, bth.SendOnly},
	{"SEND with imm", qp.SendImm, bth.SendFirst, bth.SendMiddle, bth.SendLastImm, bth.SendOnlyImm},
	{"WRITE", qp.RDMAWrite, bth.WriteFirst, bth.WriteMiddle, bth.WriteLast, bth.WriteOnly},
	{"WRITE with imm", qp.RDMAWriteImm, bth.WriteFirst, bth.WriteMiddle, bth.WriteLastImm, bth.WriteOnlyImm},
}

// IBA 9.7.2: up to the MTU one ONLY, else FIRST MIDDLE* LAST, the LAST of an
// exact multiple full; RETH once with the whole length; 4.2: AckReq at the end.
func TestRequesterMessageIsSegmented(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, row := range segmented {
			for _, n := range []int{0, 1, 3, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 5 * mtu, 5*mtu + 2} {
				t.Run(fmt.Sprintf("%s/mtu=%d/length=%d", row.name, mtu, n), func(t *testing.T) {
					play(t, setup{mtu: mtu}, func(s *script) {
						s.post(qp.SendWR{ID: 9, Op: row.op, Imm: 0x01020304, SGE: []mr.SGE{s.mem.SGE(100, n)}}, []wrMod{solicited})
						packets := max(1, (n+mtu-1)/mtu)
						for k := range packets {
							o, last := row.middle, k == packets-1
							switch {
							case packets == 1:
								o = row.only
							case k == 0:
								o = row.first
							case last:
								o = row.last
							}
							p := s.want(op(o), at(k), ask(last), payload(s.data(100+k*mtu, min(mtu, n-k*mtu))), se(last && row.op != qp.RDMAWrite))
							if o.Info().Headers&bth.HasRETH != 0 {
								reth(0, n)(s, &p)
							}
							if o.Info().Headers&bth.HasImmDt != 0 && p.Imm != 0x01020304 {
								s.Fatalf("immediate %x", p.Imm)
							}
						}
						s.wantSilence()
						s.wantNoCompletion()
						s.hear(s.ack(packets - 1))
						if wc := s.wantSent(9, cq.Success); wc.Opcode != row.op.WCOpcode() {
							s.Fatalf("completion opcode %v", wc.Opcode)
						}
					})
				})
			}
		}
	}
}

// IBA 9.7.3.1: a READ of L bytes reserves max(1, ceil(L/PMTU)) PSNs; atomics
// and zero-length messages take one.
func TestRequesterReservesPSNsOfResponses(t *testing.T) {
	for _, row := range []struct{ length, psns int }{{0, 1}, {1, 1}, {256, 1}, {257, 2}, {512, 2}, {1000, 4}} {
		t.Run(fmt.Sprintf("length=%d", row.length), func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				s.postRead(1, 0, row.length)
				s.postFetchAdd(2, 8, 1)
				s.postWrite(3, 0, 0)
				s.postSend(4, 0, 1)
				s.want(op(bth.ReadRequest), at(0), reth(0, row.length))
				s.want(op(bth.FetchAdd), at(row.psns))
				s.want(op(bth.WriteOnly), at(row.psns+1), reth(0, 0))
				s.want(op(bth.SendOnly), at(row.psns+2))
				s.hear(s.respond(0, s.data(4096, row.length))...)
				s.hear(s.atomicAck(row.psns, 77), s.ack(row.psns+2))
				if wc := s.wantSent(1, cq.Success); wc.Opcode != cq.OpRDMARead || int(wc.ByteLen) != row.length {
					s.Fatalf("completion %+v", wc)
				}
				for id := range uint64(3) {
					s.wantSent(id+2, cq.Success)
				}
			})
		})
	}
}

// IBA 9.7.5.1.2 and 8.1 item 1: inside a message AckReq comes at least every 64
// packets, or every quarter of a smaller window.
func TestRequesterLongMessageAsksForAckBetween(t *testing.T) {
	for _, row := range []struct{ window, every int }{{512, 64}, {256, 64}, {128, 32}, {64, 16}, {16, 4}, {4, 1}, {1, 1}} {
		t.Run(fmt.Sprintf("window=%d", row.window), func(t *testing.T) {
			play(t, setup{window: row.window}, func(s *script) {
				const packets = 100
				s.postWrite(1, 0, 256) // before the first answer it comes more often
				s.want(at(0), ask(true))
				s.hear(s.ack(0))
				s.wantSent(1, cq.Success)
				s.postWrite(2, 0, packets*256)
				for k := range packets {
					if p := s.want(at(k+1), ask(k == packets-1 || (k+1)%row.every == 0)); p.AckReq {
						s.hear(s.ack(k + 1))
					}
				}
				s.wantSent(2, cq.Success)
			})
		})
	}
}

// A peer that acknowledges only what asks for it (as rxe does) must
// never leave a window full of packets that did not ask, whatever the window
// becomes on the way.
func TestRequesterShrinkingWindowNeverStalls(t *testing.T) {
	for every := 1; every < 40; every++ {
		play(t, setup{control: func() congestion.Controller { return congestion.NewAIMD(256) }}, func(s *script) {
			s.postWrite(1, 0, 240*256)
			s.postSend(2, 0, 3000)
			next := 0
			for heard := 0; next < 240+12; {
				s.drain()
				if len(s.sent) == 0 {
					s.Fatalf("every=%d: stalled at packet %d", every, next)
				}
				for len(s.sent) > 0 {
					p := s.want(at(next))
					next++
					if heard++; heard%every == 0 {
						s.hear(s.pkt(bth.CNP, 0, nil)) // halves the window
					}
					if p.AckReq {
						s.hear(s.ack(next - 1))
					}
				}
			}
			s.wantSent(1, cq.Success)
			s.wantSent(2, cq.Success)
			s.wantCount(transport.LocalAckTimeout, 0)
		})
	}
}

// A window that falls below packets in flight of which none asks lets one more
// go, which asks: else only a timeout would help.
func TestRequesterWindowBelowUnaskedPacketsAsksOnce(t *testing.T) {
	window := &dial{packets: 64}
	play(t, setup{control: func() congestion.Controller { window.packets = 64; return window }}, func(s *script) {
		s.postWrite(1, 0, 100*256)
		for k := range 64 {
			s.want(at(k), ask(k%16 == 15))
		}
		s.hear(s.ack(9)) // unasked, but legal
		for k := range 10 {
			s.want(at(64+k), ask(false))
		}
		window.packets = 4
		s.hear(s.ack(63))
		s.want(at(74), ask(true))
		s.wantSilence()
		s.hear(s.ack(74))
		for k := 75; k < 100; k++ {
			s.want(at(k), ask(true))
			s.hear(s.ack(k))
		}
		s.wantSent(1, cq.Success)
	})
}

// dial is a congestion window that the test turns.
type dial struct {
	congestion.Fixed
	packets int
}

func (d *dial) Window() int { return d.packets }

// IBA 9.7.2: no more packets without acknowledgement than the window allows.
func TestRequesterStopsAtWindow(t *testing.T) {
	play(t, setup{window: 8}, func(s *script) {
		for id := range uint64(20) {
			s.postWrite(id, 0, 10)
		}
		for k := range 8 {
			s.want(op(bth.WriteOnly), at(k))
		}
		s.wantSilence()
		s.hear(s.ack(0))
		s.want(at(8))
		s.wantSilence()
		s.hear(s.ack(8))
		for k := range 8 {
			s.want(at(9 + k))
		}
		s.wantSilence()
		s.hear(s.ack(16))
		for k := range 3 {
			s.want(at(17 + k))
		}
		s.hear(s.ack(19))
		for id := range uint64(20) {
			s.wantSent(id, cq.Success)
		}
	})
}

// IBA 9.7.5.1: one ACK acknowledges everything before it; completions come in
// post order.
func TestRequesterCoalescedACKCompletesAllInOrder(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postSend(1, 0, 10)
		s.postWrite(2, 0, 600) // PSN 1, 2, 3
		s.postSend(3, 0, 10, withImm(7))
		s.postWrite(4, 0, 10)
		s.postWrite(5, 0, 10)
		for k := range 7 {
			s.want(at(k))
		}
		s.hear(s.ack(2)) // in the middle of 2
		s.wantSent(1, cq.Success)
		s.wantNoCompletion()
		s.hear(s.ack(5))
		s.wantSent(2, cq.Success)
		s.wantSent(3, cq.Success)
		s.wantSent(4, cq.Success)
		s.wantNoCompletion()
		s.hear(s.ack(6))
		s.wantSent(5, cq.Success)
	})
}

// IBA 9.7.7.2: credits, also zero, hold nothing back.
func TestRequesterCreditsAreIgnored(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postSend(1, 0, 10)
		s.want(at(0))
		s.hear(s.nak(0, bth.SyndromeCredits(0)))
		s.wantSent(1, cq.Success)
		s.postSend(2, 0, 10)
		s.want(at(1))
		s.hear(s.nak(1, bth.SyndromeCredits(3)))
		s.wantSent(2, cq.Success)
	})
}

// IBA 11.4.2.1: unsignaled requests complete silently, in their turn.
func TestRequesterUnsignaledCompletesSilently(t *testing.T) {
	play(t, setup{config: func(c *qp.Config) { c.MaxSendWR = 3 }}, func(s *script) {
		s.postWrite(1, 0, 10, unsignaled)
		s.postWrite(2, 0, 10, unsignaled)
		s.postWrite(3, 0, 10)
		if err := s.e.PostSend(s.q, &qp.SendWR{Op: qp.Send}); err != qp.ErrQueueFull {
			s.Fatalf("fourth request: %v", err)
		}
		for k := range 3 {
			s.want(at(k), ask(true))
		}
		s.hear(s.ack(1))
		s.wantNoCompletion()
		s.postWrite(4, 0, 10, unsignaled) // their slots are free
		s.want(at(3))
		s.hear(s.ack(3))
		s.wantSent(3, cq.Success)
	})
}

// IBA 10.8.2: sq_sig_all makes every request signaled.
func TestRequesterSignalAllSignalsEverything(t *testing.T) {
	play(t, setup{config: func(c *qp.Config) { c.SignalAll = true }}, func(s *script) {
		s.postWrite(1, 0, 10, unsignaled)
		s.want(at(0))
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
	})
}

// IBA 9.7.2: a fenced request starts only after all earlier READs and
// atomics; others do not wait for them.
func TestRequesterFenceWaitsForReadsAndAtomics(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 600) // PSN 0, 1, 2
		s.postFetchAdd(2, 1000, 1)
		s.postWrite(3, 0, 10)
		s.postSend(4, 0, 10, fenced)
		s.postSend(5, 0, 10)
		s.want(op(bth.ReadRequest), at(0))
		s.want(op(bth.FetchAdd), at(3))
		s.want(op(bth.WriteOnly), at(4))
		s.wantSilence()
		s.hear(s.respond(0, s.data(2000, 600))...)
		s.wantSilence()
		s.hear(s.atomicAck(3, 1)) // the WRITE is not acknowledged: no matter
		s.want(op(bth.SendOnly), at(5))
		s.want(op(bth.SendOnly), at(6))
		s.hear(s.ack(6))
		for id := range uint64(5) {
			s.wantSent(id+1, cq.Success)
		}
		s.postWrite(6, 0, 10)
		s.postWrite(7, 0, 10, fenced) // nothing to wait for
		s.want(at(7))
		s.want(at(8))
		s.hear(s.ack(8))
		s.wantSent(6, cq.Success)
		s.wantSent(7, cq.Success)
	})
}

// The fence holds through a resend of the READ it waits for.
func TestRequesterFenceWaitsForRepeatedRead(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 600)
		s.postWrite(2, 0, 10, fenced)
		s.want(op(bth.ReadRequest), at(0))
		s.expire()
		s.want(op(bth.ReadRequest), at(0))
		s.wantSilence()
		data := s.data(2000, 600)
		s.hear(s.respond(0, data)[:2]...)
		s.wantSilence()
		s.hear(s.respond(0, data)[2])
		s.want(op(bth.WriteOnly), at(3))
		s.hear(s.ack(3))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
}

// IBA 9.7.2: at most MaxRDAtomic READs and atomics are outstanding; other
// requests behind a waiting one wait too, as the order of PSNs demands.
func TestRequesterStopsAtMaxRDAtomic(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.MaxRDAtomic = 2 }}, func(s *script) {
		s.postRead(1, 0, 10)
		s.postFetchAdd(2, 64, 5)
		s.postRead(3, 0, 10)
		s.postWrite(4, 0, 10)
		s.want(op(bth.ReadRequest), at(0))
		s.want(op(bth.FetchAdd), at(1))
		s.wantSilence()
		s.hear(s.respond(0, s.data(100, 10))...)
		s.want(op(bth.ReadRequest), at(2))
		s.want(op(bth.WriteOnly), at(3))
		s.hear(s.atomicAck(1, 0))
		s.hear(s.respond(2, s.data(100, 10))...)
		s.hear(s.ack(3))
		for id := range uint64(4) {
			s.wantSent(id+1, cq.Success)
		}
	})
}

// With MaxRDAtomic 0 a READ could never start: it fails at once, after what
// was posted before it.
func TestRequesterReadWithoutDepthFails(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.MaxRDAtomic = 0 }}, func(s *script) {
		s.postWrite(1, 0, 10)
		s.postRead(2, 0, 10)
		s.want(op(bth.WriteOnly), at(0))
		s.wantSilence()
		s.wantNoCompletion()
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.LocQPOpErr)
		s.wantState(qp.Err)
	})
}

// A long READ is asked for in aligned pieces of half a window, each a request
// of its own at the PSN of its first response.
func TestRequesterLongReadIsAskedInPieces(t *testing.T) {
	play(t, setup{window: 8}, func(s *script) {
		data := s.data(8192, 10*256-6)
		s.postRead(1, 0, len(data))
		s.want(op(bth.ReadRequest), at(0), reth(0, 1024))
		s.want(op(bth.ReadRequest), at(4), reth(1024, 1024))
		s.wantSilence()
		s.hear(s.respond(0, data[:1024])...)
		s.want(op(bth.ReadRequest), at(8), reth(2048, 506))
		s.hear(s.respond(4, data[1024:2048])...)
		s.hear(s.respond(8, data[2048:])...)
		if wc := s.wantSent(1, cq.Success); int(wc.ByteLen) != len(data) {
			s.Fatalf("byte length %d", wc.ByteLen)
		}
		if string(s.data(0, len(data))) != string(data) {
			s.Fatal("wrong bytes")
		}
	})
}

// windowed is a controller whose window the test sets.
type windowed struct {
	congestion.Fixed
	window *int
}

func (w windowed) Window() int { return *w.window }

// The window has shrunk below two pieces of a READ that has begun: the next piece is
// asked for once fewer answers than the window are missing, not when all are here.
func TestRequesterShrunkWindowStillOverlapsPieces(t *testing.T) {
	window := 16
	play(t, setup{control: func() congestion.Controller { window = 16; return windowed{window: &window} }}, func(s *script) {
		data := s.data(8192, 24*256)
		s.postRead(1, 0, len(data))
		s.want(op(bth.ReadRequest), at(0), reth(0, 2048))
		s.want(op(bth.ReadRequest), at(8), reth(2048, 2048))
		s.wantSilence()
		window = 4
		s.hear(s.respond(0, data[:2048])...)
		rest := s.respond(8, data[2048:4096])
		s.hear(rest[:4]...)
		s.wantSilence() // four are missing
		s.hear(rest[4])
		s.want(op(bth.ReadRequest), at(16), reth(4096, 2048))
		s.hear(rest[5:]...)
		s.hear(s.respond(16, data[4096:])...)
		s.wantSent(1, cq.Success)
		if string(s.data(0, len(data))) != string(data) {
			s.Fatal("wrong bytes")
		}
	})
}

// With one READ at a time the pieces are a whole window.
func TestRequesterLongReadWithDepthOneUsesTheWindow(t *testing.T) {
	play(t, setup{window: 8, attr: func(a *qp.Attr) { a.MaxRDAtomic = 1 }}, func(s *script) {
		data := s.data(8192, 10*256)
		s.postRead(1, 0, len(data))
		s.want(op(bth.ReadRequest), at(0), reth(0, 2048))
		s.wantSilence()
		s.hear(s.respond(0, data[:2048])...)
		s.want(op(bth.ReadRequest), at(8), reth(2048, 512))
		s.hear(s.respond(8, data[2048:])...)
		s.wantSent(1, cq.Success)
	})
}

// IBA 9.7.6: a READ is restarted where its answers stopped: PSN, VA and
// length move on, and a tail ends where its piece ended.
func TestRequesterReadTailIsRepeatedExactly(t *testing.T) {
	play(t, setup{window: 8}, func(s *script) {
		data := s.data(8192, 8*256)
		s.postRead(1, 0, len(data))
		s.want(at(0), reth(0, 1024))
		s.want(at(4), reth(1024, 1024))
		s.hear(s.respond(0, data[:1024])[:1]...)
		s.expire()
		s.want(op(bth.ReadRequest), at(1), reth(256, 256))
		s.wantSilence() // one packet first: the peer may be slow
		s.hear(s.respond(1, data[256:512])...)
		s.want(op(bth.ReadRequest), at(2), reth(512, 512))
		s.hear(s.respond(2, data[512:1024])...)
		s.want(op(bth.ReadRequest), at(4), reth(1024, 1024))
		s.hear(s.respond(4, data[1024:])...)
		s.wantSent(1, cq.Success)
		if string(s.data(0, len(data))) != string(data) {
			s.Fatal("wrong bytes")
		}
	})
}

// With rxe the answer to a restarted READ starts with FIRST
// or ONLY by the standard, with MIDDLE or LAST from rxe.
func TestRequesterRestartedReadTakesFirstOrMiddle(t *testing.T) {
	for _, row := range []struct {
		name string
		got  int // responses before the loss, of 4
		ops  []bth.Opcode
	}{
		{"FIRST", 1, []bth.Opcode{bth.ReadRespOnly, bth.ReadRespFirst, bth.ReadRespLast}},
		{"MIDDLE", 1, []bth.Opcode{bth.ReadRespLast, bth.ReadRespMiddle, bth.ReadRespLast}},
		{"ONLY", 3, []bth.Opcode{bth.ReadRespOnly}},
		{"LAST", 3, []bth.Opcode{bth.ReadRespLast}},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				data := s.data(8192, 4*256)
				s.postRead(1, 0, len(data))
				s.want(at(0))
				s.hear(s.respond(0, data)[:row.got]...)
				s.expire()
				s.want(op(bth.ReadRequest), at(row.got), reth(row.got*256, 256)) // alone, as a probe
				for i, o := range row.ops {
					k := row.got + i
					if i == 1 {
						s.want(op(bth.ReadRequest), at(k), reth(k*256, len(data)-k*256))
					}
					s.hear(s.resp(o, k, data[k*256:(k+1)*256]))
				}
				s.wantSent(1, cq.Success)
				if string(s.data(0, len(data))) != string(data) {
					s.Fatal("wrong bytes")
				}
			})
		})
	}
}

// IBA 9.3: an atomic carries numbers big-endian; the result is delivered
// in the host's order.
func TestRequesterAtomicResultIsDelivered(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postFetchAdd(1, 3, 0x1111) // the local buffer needs no alignment
		s.postCmpSwap(2, 64, 0x22, 0x33)
		p := s.want(op(bth.FetchAdd), at(0))
		if want := (bth.AtomicETH{VA: remoteVA, RKey: remoteKey, SwapAdd: 0x1111}); p.Atomic != want {
			s.Fatalf("got %+v, want %+v", p.Atomic, want)
		}
		p = s.want(op(bth.CmpSwap), at(1))
		if want := (bth.AtomicETH{VA: remoteVA, RKey: remoteKey, SwapAdd: 0x33, Compare: 0x22}); p.Atomic != want {
			s.Fatalf("got %+v, want %+v", p.Atomic, want)
		}
		s.hear(s.atomicAck(0, 0x0102030405060708), s.atomicAck(1, 0xFFFFFFFFFFFFFFFE))
		if wc := s.wantSent(1, cq.Success); wc.Opcode != cq.OpFetchAdd || wc.ByteLen != 8 {
			s.Fatalf("completion %+v", wc)
		}
		if wc := s.wantSent(2, cq.Success); wc.Opcode != cq.OpCompSwap {
			s.Fatalf("completion %+v", wc)
		}
		if a, b := binary.NativeEndian.Uint64(s.data(3, 8)), binary.NativeEndian.Uint64(s.data(64, 8)); a != 0x0102030405060708 || b != 0xFFFFFFFFFFFFFFFE {
			s.Fatalf("results %x %x", a, b)
		}
	})
}

// IBA 9.7.2: inline data is copied at the post and needs no key.
func TestRequesterInlineDataIsCopied(t *testing.T) {
	play(t, setup{config: func(c *qp.Config) { c.MaxInline = 700 }}, func(s *script) {
		b := make([]byte, 700)
		for i := range b {
			b[i] = byte(i * 7)
		}
		keep := string(b)
		s.postWrite(1, 0, 0, inline(b))
		s.postSend(2, 0, 0, inline([]byte{}))
		clear(b)
		s.want(op(bth.WriteFirst), reth(0, 700), payload([]byte(keep)[:256]))
		s.want(op(bth.WriteMiddle), payload([]byte(keep)[256:512]))
		s.want(op(bth.WriteLast), payload([]byte(keep)[512:]))
		s.want(op(bth.SendOnly), at(3), payload(nil))
		s.expire() // a resend has the same bytes
		s.want(at(0), payload([]byte(keep)[:256]))
		s.hear(s.ack(3))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
	})
}

// Scatter/gather entries need not end where packets do.
func TestRequesterEntriesCrossPackets(t *testing.T) {
	play(t, setup{}, func(s *script) {
		l := []mr.SGE{s.mem.SGE(1000, 100), {}, s.mem.SGE(5000, 300), s.mem.SGE(9, 113)} // 513 bytes
		all := append(append(append([]byte(nil), s.data(1000, 100)...), s.data(5000, 300)...), s.data(9, 113)...)
		s.postSend(1, 0, 0, sges(l...))
		s.want(op(bth.SendFirst), payload(all[:256]))
		s.want(op(bth.SendMiddle), payload(all[256:512]))
		s.want(op(bth.SendLast), payload(all[512:]))
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)

		in := make([]byte, 513) // and for the sink of a READ
		for i := range in {
			in[i] = byte(200 - i)
		}
		s.postRead(2, 0, 0, sges(l...))
		s.want(op(bth.ReadRequest), at(3), reth(0, 513))
		s.hear(s.respond(3, in)...)
		s.wantSent(2, cq.Success)
		if got := string(s.data(1000, 100)) + string(s.data(5000, 300)) + string(s.data(9, 113)); got != string(in) {
			s.Fatal("wrong bytes")
		}
	})
}

// IBA 10.3.1 and 7.3: a local error fails the request with LOC_PROT, after
// everything before it has completed, and flushes what follows.
func TestRequesterLocalProtectionError(t *testing.T) {
	for _, row := range []struct {
		name string
		sge  func(s *script) mr.SGE
	}{
		{"unknown key", func(s *script) mr.SGE { return mr.SGE{Addr: s.va(0), Length: 8, LKey: s.mem.Key() + 1} }},
		{"out of range", func(s *script) mr.SGE { return mr.SGE{Addr: s.va(memLen - 7), Length: 8, LKey: s.mem.Key()} }},
		{"other domain", func(s *script) mr.SGE { return s.registerIn(s.table.NewDomain(), 64, mr.LocalWrite).SGE(0, 8) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			play(t, setup{}, func(s *script) {
				s.postWrite(1, 0, 600)
				s.postWrite(2, 0, 0, sges(s.mem.SGE(0, 8), row.sge(s)))
				s.postWrite(3, 0, 8)
				for k := range 3 {
					s.want(at(k))
				}
				s.wantSilence()
				s.wantNoCompletion()
				s.hear(s.ack(2))
				s.wantSent(1, cq.Success)
				s.wantSent(2, cq.LocProtErr)
				s.wantSent(3, cq.WRFlushErr)
				s.wantState(qp.Err)
			})
		})
	}
}

// The requests before a local error are resent like any others.
func TestRequesterLocalErrorWaitsForResend(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postWrite(1, 0, 600)
		s.postWrite(2, 0, 0, sges(mr.SGE{Length: 1}))
		for k := range 3 {
			s.want(at(k))
		}
		s.expire()
		s.want(op(bth.WriteFirst), at(0))
		s.hear(s.nak(1, bth.NAKSequence))
		s.want(op(bth.WriteMiddle), at(1))
		s.want(op(bth.WriteLast), at(2))
		s.wantSilence()
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.LocProtErr)
	})
}

// A region that goes away in the middle of a message fails the message; what
// the peer has of it stays.
func TestRequesterDeregistrationInMessageFails(t *testing.T) {
	play(t, setup{window: 2}, func(s *script) {
		r := s.register(1000, mr.LocalWrite)
		s.postWrite(1, 0, 10)
		s.postWrite(2, 0, 0, sges(r.SGE(0, 1000)))
		s.want(at(0))
		s.want(op(bth.WriteFirst), at(1))
		if err := s.pd.Deregister(r); err != nil {
			s.Fatal(err)
		}
		s.hear(s.ack(0))
		s.wantSent(1, cq.Success)
		s.wantSilence()
		s.wantSent(2, cq.LocProtErr)
		s.wantState(qp.Err)
	})
}

// Failed gathering gives its scratch memory back: a burst cannot run out of it.
func TestRequesterFailedGatherLeavesRoomInBurst(t *testing.T) {
	play(t, setup{mtu: 4096}, func(s *script) {
		r := s.register(2000, mr.LocalWrite)
		s.burst = bth.NewBurst(1, 4096)
		s.postWrite(1, 0, 0, sges(s.mem.SGE(0, 4096), s.mem.SGE(0, 3000), r.SGE(0, 2000)))
		s.e.Transmit(s.now, s.burst) // the first packet fills the burst
		if err := s.pd.Deregister(r); err != nil {
			s.Fatal(err)
		}
		q, err := s.e.Create(s.pd, qp.Config{Type: qp.RC, SendCQ: cq.New(8, nil), RecvCQ: cq.New(8, nil)})
		if err != nil {
			s.Fatal(err)
		}
		first := s.q
		s.q = q
		s.connect(qp.RTS)
		s.postWrite(2, 0, 0, sges(s.mem.SGE(0, 96), s.mem.SGE(0, 4000)))
		s.q = first
		s.drain() // 1 fails, 2 takes its place
		if len(s.sent) != 1 || len(s.sent[0].Payload) != 4096 {
			s.Fatalf("sent %v", s.sent)
		}
		s.sent = nil
		s.wantSent(1, cq.LocProtErr)
	})
}

// IBA 11.6.2: of a READ the remote error comes first; the sink is checked
// when the data arrives, after older requests have completed.
func TestRequesterReadSinkIsCheckedLast(t *testing.T) {
	bad := mr.SGE{Addr: 1, Length: 100, LKey: 0x55}
	t.Run("remote error wins", func(t *testing.T) {
		play(t, setup{}, func(s *script) {
			s.postRead(1, 0, 0, sges(bad))
			s.want(op(bth.ReadRequest), reth(0, 100))
			s.hear(s.nak(0, bth.NAKRemoteAccess))
			s.wantSent(1, cq.RemAccessErr)
		})
	})
	t.Run("bad key", func(t *testing.T) {
		play(t, setup{}, func(s *script) {
			s.postWrite(1, 0, 10)
			s.postRead(2, 0, 0, sges(bad))
			s.want(at(0))
			s.want(op(bth.ReadRequest))
			s.hear(s.respond(1, s.data(0, 100))...)
			s.wantSent(1, cq.Success)
			s.wantSent(2, cq.LocProtErr)
			s.wantState(qp.Err)
		})
	})
	t.Run("no local write", func(t *testing.T) {
		play(t, setup{}, func(s *script) {
			r := s.register(100, 0)
			before := string(r.Bytes())
			s.postRead(1, 0, 0, sges(r.SGE(0, 100)))
			s.want(op(bth.ReadRequest))
			s.hear(s.respond(0, s.data(0, 100))...)
			s.wantSent(1, cq.LocProtErr)
			if string(r.Bytes()) != before {
				s.Fatal("the region was written")
			}
		})
	})
	t.Run("atomic", func(t *testing.T) {
		play(t, setup{}, func(s *script) {
			s.postFetchAdd(1, 0, 1, sges(s.register(8, 0).SGE(0, 8)))
			s.want(op(bth.FetchAdd))
			s.hear(s.atomicAck(0, 1))
			s.wantSent(1, cq.LocProtErr)
		})
	})
}

// A zero-length READ needs neither sink nor key.
func TestRequesterZeroLengthOperations(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 0, sges())
		s.postRead(2, 0, 0, sges(mr.SGE{Addr: 99, LKey: 77}))
		s.postWrite(3, 0, 0, sges())
		s.postSend(4, 0, 0, sges(mr.SGE{}, mr.SGE{}), withImm(3))
		s.want(op(bth.ReadRequest), at(0), reth(0, 0))
		s.want(op(bth.ReadRequest), at(1), reth(0, 0))
		s.want(op(bth.WriteOnly), at(2), reth(0, 0), payload(nil), ask(true))
		s.want(op(bth.SendOnlyImm), at(3), payload(nil), imm(3))
		s.hear(s.respond(0, nil)...)
		s.hear(s.respond(1, nil)...)
		s.hear(s.ack(3))
		for id := range uint64(4) {
			s.wantSent(id+1, cq.Success)
		}
	})
}

// IBA 9.7.2: at a path MTU of 256 bytes a message of 2^31 bytes takes 2^23
// PSNs, half of the space. Only its first and last packets are looked at.
func TestRequesterMessageOfMaximumLength(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.postRead(1, 0, 0, sges(mr.SGE{Addr: 0, Length: 1 << 31, LKey: 1}))
		s.want(op(bth.ReadRequest), at(0), reth(0, 32*256)) // half the window
		s.want(op(bth.ReadRequest), at(32), reth(32*256, 32*256))
		s.wantSilence()
		s.hear(s.nak(0, bth.NAKInvalid))
		s.wantSent(1, cq.RemInvReqErr)
		if err := s.e.PostSend(s.q, &qp.SendWR{Op: qp.RDMARead, SGE: []mr.SGE{{Length: 1 << 31}, {Length: 1}}}); err != qp.ErrLength {
			s.Fatalf("2^31+1 bytes: %v", err)
		}
	})
}
