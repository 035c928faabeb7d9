package perf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// Bytes are checked before and after the measured runs, never in them. Two of our
// own ends fill their memory with patterns that follow from a seed that they tell
// each other; towards perftest's tools there is what its memory says itself: an
// atomic counter rises by as much as was added, and what is read twice is the same.

// fill fills b with the pattern of a seed (the SplitMix64 sequence).
func fill(b []byte, seed uint64) {
	var word [8]byte
	for len(b) > 0 {
		seed += 0x9E3779B97F4A7C15
		z := seed
		z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		binary.LittleEndian.PutUint64(word[:], z^z>>31)
		b = b[copy(b, word[:]):]
	}
}

// compare says where b differs from the pattern of a seed.
func compare(b []byte, seed uint64) error {
	want := make([]byte, len(b))
	fill(want, seed)
	return compareBytes(b, want)
}

func compareBytes(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is 0x%02x, not 0x%02x", i, len(got), got[i], want[i])
		}
	}
	return fmt.Errorf("%d bytes instead of %d", len(got), len(want))
}

// laneSeed is the seed of a lane's pattern. SENDs all carry the first lane's: in a
// shared receive queue, which the peer may have, nobody knows where they land.
func (e *end) laneSeed(seed uint64, l *lane) uint64 {
	if e.cfg.Test.Verb == Send {
		return seed
	}
	return seed + uint64(l.index)<<32
}

func (e *end) memory(offset, n int) []byte { return e.mem.Bytes()[offset : offset+n] }

// fillMemory fills what will be sent or read.
func (e *end) fillMemory() {
	n := e.cfg.largest()
	for _, l := range e.lanes {
		switch e.cfg.Test.Verb {
		case Send, Write:
			if e.cfg.requester(e.client) {
				fill(e.memory(e.source(l.index), n), e.laneSeed(e.seed, l))
			}
		case Read:
			fill(e.memory(e.target(l.index), n), e.laneSeed(e.seed, l))
		}
	}
}

// lookBefore notes what the peer's memory holds before the first run.
func (e *end) lookBefore() error {
	for _, l := range e.lanes {
		switch e.cfg.Test.Verb {
		case Read:
			if err := e.sampleRead(l); err != nil {
				return err
			}
		case Atomic:
			v, err := e.counter(l)
			if err != nil {
				return err
			}
			l.before = v
		}
	}
	return nil
}

// sampleRead reads what the run is going to read, and forgets it in the memory that
// the run reads to.
func (e *end) sampleRead(l *lane) error {
	n := e.cfg.largest()
	into := e.memory(e.source(l.index), n)
	l.sample = make([]byte, n)
	if e.own {
		fill(l.sample, e.laneSeed(e.peerSeed, l))
		return nil
	}
	wr := qp.SendWR{Op: qp.RDMARead, SGE: []mr.SGE{e.mem.SGE(e.source(l.index), n)}, RemoteAddr: l.remote.vaddr, RKey: l.remote.rkey}
	if err := e.request(l, &wr); err != nil {
		return err
	}
	copy(l.sample, into)
	clear(into)
	return nil
}

// counter reads the peer's counter, by adding 0.
func (e *end) counter(l *lane) (uint64, error) {
	wr := qp.SendWR{Op: qp.FetchAdd, SGE: []mr.SGE{e.mem.SGE(e.source(l.index), 8)}, RemoteAddr: l.remote.vaddr, RKey: l.remote.rkey}
	if err := e.request(l, &wr); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(e.memory(e.source(l.index), 8)), nil
}

// requestID is the ID of a request outside of a run.
const requestID = countMask

// request posts one request and waits for its completion.
func (e *end) request(l *lane, wr *qp.SendWR) error {
	wr.ID, wr.Flags = requestID, qp.Signaled
	if err := l.qp.PostSend(wr); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.Wait)
	defer cancel()
	var wcs [1]cq.WC
	for {
		if _, err := e.cq.Wait(ctx, wcs[:]); err != nil {
			return fmt.Errorf("no completion outside of the measured run: %w", err)
		}
		switch wc := &wcs[0]; {
		case wc.Status != cq.Success:
			return e.explain(wc, 0)
		case wc.ID == requestID:
			return nil
		}
	}
}

// errInvalid is what a failed check says first.
var errInvalid = errors.New("data validation failed")

// lookAfter checks, at the requester, what the runs have read or changed.
func (e *end) lookAfter() error {
	switch e.cfg.Test.Verb {
	case Read:
		for _, l := range e.lanes {
			if err := compareBytes(e.memory(e.source(l.index), e.cfg.largest()), l.sample); err != nil {
				return fmt.Errorf("%w: what queue pair %d read: %w", errInvalid, l.index, err)
			}
		}
		e.checked = append(e.checked, "the bytes read")
	case Atomic:
		for _, l := range e.lanes {
			if err := e.checkCounter(l); err != nil {
				return err
			}
		}
		e.checked = append(e.checked, "the peer's counters")
	}
	return nil
}

// checkCounter checks that the peer's counter has risen by all that was added, or
// has stayed where it was compared with 0 and 0 stored.
func (e *end) checkCounter(l *lane) error {
	after, err := e.counter(l)
	if err != nil {
		return err
	}
	want := l.before
	if e.cfg.AtomicOp == qp.FetchAdd {
		want += uint64(l.requests)
	}
	if after != want {
		return fmt.Errorf("%w: the peer's counter of queue pair %d is %d, not %d", errInvalid, l.index, after, want)
	}
	return nil
}

// checkAdded checks, at a passive server, that a foreign client's additions have all
// been made: it spreads them over its queue pair's memory.
func (e *end) checkAdded(iterations uint64) error {
	if e.cfg.Test.Verb != Atomic || e.cfg.AtomicOp != qp.FetchAdd || e.cfg.Duration > 0 || e.own {
		return nil
	}
	e.dev.Sync()
	sum := uint64(0)
	for _, l := range e.lanes {
		area := e.memory(e.target(l.index), e.area)
		for i := 0; i+8 <= len(area); i += 8 {
			sum += binary.NativeEndian.Uint64(area[i:])
		}
	}
	if sum != iterations {
		return fmt.Errorf("%w: the counters add up to %d after %d additions", errInvalid, sum, iterations)
	}
	e.checked = append(e.checked, "the sum of the counters")
	return nil
}

// verify checks the bytes that the peer has sent or written and tells it; both sides
// fail if either does. Only two of our own ends can.
func (e *end) verify() error {
	if !e.own {
		return nil
	}
	if err := e.barrier(); err != nil {
		return err
	}
	e.dev.Sync()
	what, err := e.checkTargets()
	if what != "" && err == nil {
		e.checked = append(e.checked, what)
	}
	mine, theirs := verdict{Checked: strings.Join(e.checked, ", ")}, verdict{}
	if err != nil {
		mine.Error = err.Error()
	}
	if err := e.conn.exchangeNote(e.client, mine, &theirs); err != nil {
		return err
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errInvalid, err)
	case theirs.Error != "":
		return fmt.Errorf("%w at the peer: %q", errInvalid, theirs.Error)
	}
	if theirs.Checked != "" {
		e.checked = append(e.checked, "by the peer: "+theirs.Checked)
	}
	return nil
}

// checkTargets checks what came into this side's memory with the last message.
func (e *end) checkTargets() (what string, err error) {
	c := &e.cfg
	passive := c.Test.Verb == Write && (!e.client || c.Bidirectional || c.Test.Latency)
	if !passive && !c.receives(e.client) {
		return "", nil
	}
	n := c.largest()
	if c.Test.Verb == Write && c.Test.Latency {
		n-- // the last byte is the message's number
	}
	for _, l := range e.lanes {
		if c.receives(e.client) && l.got == 0 {
			continue // all of it was lost, or went to another's receive
		}
		got := e.memory(e.target(l.index)+c.grh(), n)
		seed := e.laneSeed(e.peerSeed, l)
		if c.Connection == qp.UC && passive {
			if complete, err := e.compareLate(got, seed); err != nil || !complete {
				return "", err
			}
			continue
		}
		if err := compare(got, seed); err != nil {
			return "", fmt.Errorf("what queue pair %d got: %w", l.index, err)
		}
	}
	return "the bytes received", nil
}

// lateTime is how long a WRITE of an unreliable connection, which is complete when it
// has left, may take to arrive.
const lateTime = 300 * time.Millisecond

// compareLate compares what a peer writes over an unreliable connection, where the
// last messages may be under way or lost: then there still are zeros.
func (e *end) compareLate(got []byte, seed uint64) (complete bool, err error) {
	now := make([]byte, len(got))
	for deadline := time.Now().Add(lateTime); ; time.Sleep(time.Millisecond) {
		look(now, got)
		if compare(now, seed) == nil {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, compareOrZero(now, seed)
		}
	}
}

// look copies what the peer may still be writing.
func look(into, from []byte) {
	for i := range from {
		into[i] = load(&from[i])
	}
}

// compareOrZero says where b is neither the pattern of a seed nor zero.
func compareOrZero(b []byte, seed uint64) error {
	want := make([]byte, len(b))
	fill(want, seed)
	for i, v := range b {
		if v == 0 {
			want[i] = 0
		}
	}
	return compareBytes(b, want)
}
