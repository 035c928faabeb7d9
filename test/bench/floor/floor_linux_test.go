package main

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func testSettings(test string, size int) settings {
	s := settings{
		Test: test, Size: size, MTU: 4096, Count: 200, Time: 50 * time.Millisecond,
		Local: netip.MustParseAddrPort("127.0.10.6:18599"), Remote: netip.MustParseAddrPort("127.0.10.5:18599"),
	}
	if err := s.complete(); err != nil {
		panic(err)
	}
	return s
}

// Both sides in one process: what they move is checked by the receiver.
func TestBothSidesOfEveryTest(t *testing.T) {
	for _, c := range []settings{
		testSettings("stream", 8), testSettings("stream", 4096), testSettings("stream", 65536), testSettings("stream", 1<<20),
		testSettings("pingpong", 8), testSettings("pingpong", 4096), testSettings("udpconn", 8),
	} {
		for _, events := range []bool{false, true} {
			c.Events = events
			served := make(chan error, 1)
			go func() { served <- serveOne(c.Remote) }()
			r, err := runClient(c)
			if err != nil {
				t.Errorf("%s of %d bytes: %v", c.Test, c.Size, err)
			}
			if err := <-served; err != nil {
				t.Errorf("%s of %d bytes, server: %v", c.Test, c.Size, err)
			}
			if c.Test == "stream" && r.Gbps <= 0 || c.Test != "stream" && (r.Typical <= 0 || r.P99 < r.Typical) || r.Iterations < 1 {
				t.Errorf("%s of %d bytes: %+v", c.Test, c.Size, r)
			}
		}
	}
}

// By number, exactly as many messages.
func TestStreamByNumber(t *testing.T) {
	c := testSettings("stream", 65536)
	c.Time, c.Count = 0, 77
	served := make(chan error, 1)
	go func() { served <- serveOne(c.Remote) }()
	r, err := runClient(c)
	if err != nil || r.Iterations != 77 {
		t.Errorf("%+v, %v; want 77 messages", r, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func goodPacket(number uint64, payload []byte) []byte {
	p := binary.LittleEndian.AppendUint64(nil, number)
	p = append(append(p, 0, 0, 0, 0), payload...)
	return binary.LittleEndian.AppendUint32(p, crc32.ChecksumIEEE(p))
}

func TestReceiverRefusesWrongPackets(t *testing.T) {
	payload := make([]byte, 64)
	for i := range payload {
		payload[i] = byte(i)
	}
	flipped := goodPacket(0, payload)
	flipped[20] ^= 1
	for _, c := range []struct {
		name, want string
		packet     []byte
	}{
		{"one bit", "wrong CRC", flipped},
		{"the next packet", "came instead of 0", goodPacket(1, payload)},
		{"too short", "bytes, not", goodPacket(0, payload[:60])},
	} {
		r := newReceiver(&socket{}, testSettings("stream", 64))
		if err := r.packet(c.packet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	r := newReceiver(&socket{}, testSettings("stream", 64))
	if err := r.packet(goodPacket(0, payload)); err != nil || r.next != 1 || string(r.target) != string(payload) {
		t.Errorf("a good packet: %v, next %d, %x", err, r.next, r.target)
	}
}

func TestLatencyIsHalfARoundTrip(t *testing.T) {
	var times []time.Duration
	for i := 100; i > 0; i-- {
		times = append(times, time.Duration(i)*2*time.Microsecond)
	}
	r := latencyRow(8, times, 10100*time.Microsecond)
	if r.Typical != 51 || r.P99 != 100 || r.Average != 50.5 || r.Iterations != 100 {
		t.Errorf("%+v, want median 51, 99 %% 100, average 50.5 µs", r)
	}
}

func TestResultIsJSON(t *testing.T) {
	var out strings.Builder
	if err := print(&out, settings{Test: "stream", ForJSON: true}, row{Size: 8, Gbps: 2}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Test string
		Rows []map[string]float64
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got.Test != "floor_stream" || got.Rows[0]["bw_average_gbps"] != 2 {
		t.Errorf("%s: %v", out.String(), err)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for _, args := range []string{"", "fast", "stream -s -1", "pingpong -s 4097", "stream -m 5000", "stream -p 70000", "stream -d host", "stream -d ::1", "stream -n 0", "stream -w 3", "stream -d 127.0.0.1 x"} {
		if _, _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
