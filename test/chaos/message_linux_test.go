package chaos

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/goroce/goroce/qp"
)

// The attributes of every connection, and what follows from them.
const (
	ackTimeout = 13 // code: 33.6 ms
	retryCount = 7
)

// retryBudget is how long a peer may be silent and the connection lives: the
// timer waits for one, two, and then four times its nominal value each (see
// startAckTimer in package transport). One retry may be gone already, to a NAK.
func retryBudget() time.Duration { return (1 + 2 + 4*(retryCount-2)) * qp.AckTimeout(ackTimeout) }

// failWithin is when the last work request has to be complete after the peer
// has fallen silent: four times the nominal time for each try (IBA 9.7.6.1.3).
func failWithin() time.Duration { return 4 * (retryCount + 1) * qp.AckTimeout(ackTimeout) }

// command is what the director asks of a worker; each has one reply.
type command struct {
	Do     string
	Addr   string  `json:",omitempty"` // open
	File   string  `json:",omitempty"` // open
	Nonce  uint64  `json:",omitempty"` // open
	Peer   *offer  `json:",omitempty"` // connect
	Target *region `json:",omitempty"` // intrude
}

type reply struct {
	Err     string            `json:",omitempty"`
	Offer   *offer            `json:",omitempty"`
	Done    []uint64          `json:",omitempty"` // completed per RC pair, sent and received in turn
	Outcome *outcome          `json:",omitempty"`
	Usage   *usage            `json:",omitempty"`
	Stats   map[string]uint64 `json:",omitempty"`
}

// outcome is what became of the work requests towards a silent peer.
type outcome struct {
	Statuses map[string]int
	Last     time.Duration // when the last one completed
	UC, UD   uint64        // messages received and checked
}

// offer is what one side tells the other to connect.
type offer struct {
	Nonce         uint64 // of this process and device; all its data derive from it
	Addr, File    string
	RC            []pairOffer
	Probe, UC, UD endpoint
	UCWrite       region
}

type pairOffer struct {
	endpoint
	Write, Read region
	RecvOff     int64
}

type endpoint struct{ QPN, PSN uint32 }

// region is remote memory; Off is its place in the file.
type region struct {
	Addr uint64
	Key  uint32
	Off  int64
}

// The kinds of data: each is its own sequence of messages.
const (
	kindSend = iota
	kindWrite
	kindStatic
	kindUCSend
	kindUCWrite
	kindUD
)

// stream identifies a sequence of messages; same stream, same bytes.
type stream uint64

func streamOf(nonce uint64, index, kind int) stream {
	return stream(mix(nonce ^ mix(uint64(index)<<8|uint64(kind))))
}

// mix spreads the bits of v (the finalizer of splitmix64).
func mix(v uint64) uint64 {
	v += 0x9E3779B97F4A7C15
	v = (v ^ v>>30) * 0xBF58476D1CE4E5B9
	v = (v ^ v>>27) * 0x94D049BB133111EB
	return v ^ v>>31
}

// minMessage leaves room for the sequence number in front.
const minMessage = 16

// length returns how long message seq is, at most limit.
func (s stream) length(seq uint64, limit int) int {
	return minMessage + int(mix(uint64(s)+seq)%uint64(limit-minMessage+1))
}

// fill makes b message seq. It starts with seq+1, so that untouched memory is
// no message.
func (s stream) fill(b []byte, seq uint64) {
	binary.LittleEndian.PutUint64(b, seq+1)
	state := mix(uint64(s) ^ mix(seq))
	b = b[8:]
	for len(b) > 0 {
		var w [8]byte
		state = state*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(w[:], state^state>>29)
		b = b[copy(b, w[:]):]
	}
}

// check compares b with message seq.
func (s stream) check(b []byte, seq uint64, what string) error {
	want := make([]byte, len(b))
	s.fill(want, seq)
	if bytes.Equal(b, want) {
		return nil
	}
	i := 0
	for b[i] == want[i] {
		i++
	}
	return fmt.Errorf("%s, message %d: byte %d of %d is %#x, want %#x", what, seq, i, len(b), b[i], want[i])
}

// sequence returns the number in front of a message; ok is false for memory
// that no message was written to.
func sequence(b []byte) (seq uint64, ok bool) {
	v := binary.LittleEndian.Uint64(b)
	return v - 1, v != 0
}

// serve answers commands until the input ends.
func serve(in io.Reader, out io.Writer, do func(*command) reply) error {
	d, e := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var c command
		if err := d.Decode(&c); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := e.Encode(do(&c)); err != nil {
			return err
		}
	}
}
