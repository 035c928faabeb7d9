package transport_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/transport"
)

// The offer, as it is on the wire: see ARCHITECTURE.md.
var offer = bth.RETH{VA: 0x676F_726F_6365_5341, RKey: 0xC8A9_5E1F}

func isOffer(_ *script, p *bth.Packet) string {
	if p.Opcode != bth.WriteOnly || p.RETH != offer || !p.AckReq || len(p.Payload) != 0 {
		return "want an offer"
	}
	return ""
}

// sack makes a selective acknowledgement: an ACK or NAK at k, and the packets of
// came that have come, counted from base.
func (s *script) sack(k int, syn bth.Syndrome, base int, came ...int) bth.Packet {
	p := s.nak(k, syn)
	p.Opcode = bth.SelectiveAck
	p.Payload = make([]byte, 40)
	binary.BigEndian.PutUint32(p.Payload[4:], s.psn(base).Value())
	for _, c := range came {
		p.Payload[8+(c-base)/8] |= 1 << ((c - base) % 8)
	}
	return p
}

// tells checks a selective acknowledgement that the engine sends.
func tells(base int, came ...int) checker {
	return func(s *script, p *bth.Packet) string {
		want := s.sack(0, 0, base, came...)
		if p.Opcode != bth.SelectiveAck || string(p.Payload[4:]) != string(want.Payload[4:]) {
			return "want a selective acknowledgement of something else"
		}
		return ""
	}
}

// agreed lets the engine, as the requester, agree with the peer, in PSN 0.
func (s *script) agreed() {
	s.Helper()
	s.peerPort = bth.Port
	s.postWrite(90, 0, 1)
	s.want(at(0))
	s.hear(s.ack(0))
	s.wantSent(90, cq.Success)
	s.want(isOffer, at(0))
	s.hear(s.sack(0, bth.SyndromeACK, 1))
}

// A peer whose packets come from another port is never offered anything.
func TestRequesterOffersNothingToOthers(t *testing.T) {
	for name, c := range map[string]setup{"port": {}, "alone": {recovery: transport.Alone}, "go back": {recovery: transport.GoBackN}} {
		t.Run(name, func(t *testing.T) {
			play(t, c, func(s *script) {
				if name != "port" {
					s.peerPort = bth.Port
				}
				s.postWrite(1, 0, 600)
				for k := range 3 {
					s.want(at(k))
				}
				s.hear(s.nak(1, bth.NAKSequence))
				s.want(at(1))
				s.want(at(2))
				s.hear(s.ack(2))
				s.wantSent(1, cq.Success)
				s.hear(s.sack(0, bth.SyndromeACK, 1), s.sack(2, bth.NAKSequence, 2, 3))
				s.wantCount(transport.DropSelectiveAck, 2)
			})
		})
	}
}

// The offer goes out once; again with a loss, if there was no answer, and not
// without end. A plain ACK is no answer.
func TestRequesterOffersAFewTimes(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.RetryCount = 7 }}, func(s *script) {
		s.peerPort = bth.Port
		offers := 0
		for k := range 20 {
			s.postWrite(uint64(k), 0, 10)
			s.want(at(k))
			s.hear(s.nak(k, bth.NAKSequence))
			s.drain()
			if len(s.sent) > 0 && isOffer(s, &s.sent[0]) == "" {
				s.want(at(k - 1))
				offers++
			}
			s.want(at(k))
			s.hear(s.ack(k))
			s.wantSent(uint64(k), cq.Success)
			s.drain()
			if len(s.sent) > 0 {
				s.want(isOffer, at(k))
				offers++
				s.hear(s.ack(k))
			}
		}
		if offers != 8 {
			s.Fatalf("%d offers, want 8", offers)
		}
	})
}

// Only what the peer lacks is sent again, and it does not stop the rest.
func TestRequesterResendsWhatIsMissing(t *testing.T) {
	play(t, setup{window: 8, attr: func(a *qp.Attr) { a.RetryCount = 0 }}, func(s *script) {
		s.agreed()
		s.postWrite(1, 0, 14*256)
		for k := range 8 {
			s.want(at(1 + k))
		}
		s.wantSilence() // the window is full
		s.hear(s.sack(2, bth.NAKSequence, 2, 3, 4, 6))
		s.want(op(bth.WriteMiddle), at(2), payload(s.data(256, 256)), ask(true))
		s.want(op(bth.WriteMiddle), at(5), ask(true))
		for k := range 4 { // 1 is acknowledged, 3, 4 and 6 are there
			s.want(at(9 + k))
		}
		s.wantSilence()
		s.hear(s.sack(2, bth.NAKSequence, 2, 3, 4, 6, 7, 8))
		s.want(at(13))
		s.want(at(14))
		s.wantSilence() // nothing that was sent after 2 and 5 is there
		s.hear(s.sack(2, bth.NAKSequence, 2, 3, 4, 5, 6, 7, 8, 9))
		s.wantSilence()
		s.hear(s.sack(2, bth.NAKSequence, 2, 3, 4, 5, 6, 7, 8, 9, 10))
		s.want(at(2)) // but 10 was: lost again
		s.wantSilence()
		s.hear(s.ack(14))
		s.wantSent(1, cq.Success)
		s.wantCount(transport.RetransmittedSelective, 3)
		s.wantNoTimer()
	})
}

// What the peer told is not believed after a local ACK timeout.
func TestRequesterDoesNotBelieveForLong(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.agreed()
		s.postWrite(1, 0, 4*256)
		for k := range 4 {
			s.want(at(1 + k))
		}
		s.hear(s.sack(1, bth.NAKSequence, 1, 2, 3, 4))
		s.want(at(1))
		for s.e.Counters[transport.LocalAckTimeout] == 0 {
			s.expire()
			s.want(at(1))
		}
		s.hear(s.ack(1))
		for k := range 3 {
			s.want(at(2 + k))
		}
		s.hear(s.ack(4))
		s.wantSent(1, cq.Success)
	})
}

// A READ whose request is kept by the peer is not lost; one that is missing is
// asked for again as a whole.
func TestRequesterRepeatsAMissingReadRequest(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.agreed()
		s.postWrite(1, 0, 1)
		s.postRead(2, 1024, 600)
		s.postRead(3, 2048, 600)
		s.postWrite(4, 0, 1)
		for _, k := range []int{1, 2, 5, 8} {
			s.want(at(k))
		}
		s.hear(s.sack(1, bth.NAKSequence, 1, 5, 8))
		s.want(op(bth.WriteOnly), at(1))
		s.want(op(bth.ReadRequest), at(2), reth(0, 600))
		s.wantSilence()
		s.hear(s.respond(2, s.data(8192, 600))...)
		s.hear(s.respond(5, s.data(8192, 600))...)
		s.hear(s.ack(8))
		for id := range uint64(4) {
			s.wantSent(id+1, cq.Success)
		}
	})
}

// A packet that had come early met an RNR NAK in its turn: it is sent again.
func TestRequesterRNRForAnEarlyPacket(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.agreed()
		s.postWrite(1, 0, 1)
		s.postSend(2, 0, 1)
		s.want(at(1))
		s.want(at(2))
		s.hear(s.sack(1, bth.NAKSequence, 1, 2))
		s.want(at(1))
		s.hear(s.nak(2, bth.SyndromeRNR(1)))
		s.wantSent(1, cq.Success)
		s.expire()
		s.want(op(bth.SendOnly), at(2))
		s.hear(s.ack(2))
		s.wantSent(2, cq.Success)
	})
}

// What the peer tells during the wait after an RNR NAK starts no timer, and does
// not end the wait.
func TestRequesterSelectiveACKInRNRWait(t *testing.T) {
	play(t, setup{attr: func(a *qp.Attr) { a.Timeout, a.RetryCount = 8, 0 }}, func(s *script) {
		s.agreed()
		s.postSend(1, 0, 1)
		s.postWrite(2, 0, 1)
		s.want(at(1))
		s.want(at(2))
		s.hear(s.nak(1, bth.SyndromeRNR(20))) // 10.24 ms; the local ACK timeout is 1 ms
		s.hear(s.sack(1, bth.NAKSequence, 1, 2))
		s.pass(10 * time.Millisecond)
		s.wantSilence()
		s.pass(time.Millisecond)
		s.want(op(bth.SendOnly), at(1))
		s.wantCount(transport.LocalAckTimeout, 0)
		s.hear(s.ack(2))
		s.wantSent(1, cq.Success)
		s.wantSent(2, cq.Success)
		s.sent = nil
	})
}

// Nonsense changes nothing.
func TestRequesterIgnoresWrongSelectiveACKs(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.agreed()
		s.postWrite(1, 0, 3*256)
		for k := range 3 {
			s.want(at(1 + k))
		}
		short, version := s.sack(1, bth.NAKSequence, 1, 2), s.sack(1, bth.NAKSequence, 1, 2)
		short.Payload = short.Payload[:36]
		version.Payload[0] = 1
		s.hear(short, version)
		s.wantCount(transport.DropSelectiveAck, 2)
		s.hear(s.sack(1, bth.NAKInvalid, 1, 2), s.sack(1, bth.SyndromeRNR(1), 1, 2)) // not for these
		s.hear(s.sack(4, bth.SyndromeACK, 1, 2))                                     // never sent
		s.hear(s.sack(1, bth.NAKSequence, 1, 2, 3, 4, 200))                          // nor were these
		s.wantSilence()
		s.wantNoCompletion()
		s.hear(s.ack(3))
		s.wantSent(1, cq.Success)
	})
}

// The responder tells nothing to a peer that has not offered; the offer itself is
// a duplicate, and is not executed.
func TestResponderTellsWhoOffered(t *testing.T) {
	play(t, setup{}, func(s *script) {
		check := s.unchanged()
		theirs := s.pkt(bth.WriteOnly, 0, nil, asks)
		theirs.RETH = offer
		s.hear(s.write(0, asks))
		s.wantACK(0, 1)
		s.hear(theirs) // not from our port
		s.wantACK(0, 1)
		s.hear(s.write(2))
		s.wantACK(0, 1)
		s.wantNAK(1, bth.NAKSequence, 1)
		s.peerPort = bth.Port
		s.hear(theirs)
		s.want(tells(1, 2), at(0), syndrome(bth.SyndromeACK), count(1))
		s.hear(s.write(4))
		s.want(tells(1, 2, 4), at(1), syndrome(bth.NAKSequence))
		s.hear(s.write(5))
		s.wantSilence()
		s.hear(s.write(6, asks))
		s.want(tells(1, 2, 4, 5, 6), at(1))
		s.hear(s.write(1))
		s.want(tells(3, 4, 5, 6), at(3), syndrome(bth.NAKSequence), count(3))
		s.hear(s.write(3))
		s.wantACK(6, 7) // nothing is missing: a plain ACK
		check(s.data(0, 28))
	})
}

// An offer with a PSN that is not acknowledged is what it looks like: a WRITE of
// nothing.
func TestResponderExecutesAnOfferInSequence(t *testing.T) {
	play(t, setup{}, func(s *script) {
		s.peerPort = bth.Port
		p := s.pkt(bth.WriteOnly, 0, nil, asks)
		p.RETH = offer
		s.hear(p)
		s.wantACK(0, 1)
	})
}
