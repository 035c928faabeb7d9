package perf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/goroce/goroce/bth"
)

// What perftest's tools say to each other over TCP. Each record leaves in one
// write, since they read it with one call; the client always writes first.

const (
	// version is what we say we are: the last one before the tools negotiate
	// more than their records.
	version       = "6.06"
	oldestVersion = 5.70
	versionLen    = 16
	recordLen     = 108
	// own follows the version's NUL, where perftest's tools do not look.
	own = "roce/1"

	pageSize  = 4096 // what we announce: the least that the peer's addresses wander through
	cacheLine = 64
	maxCycle  = 1 << 20 // what we believe of a peer
)

func formatVersion() []byte {
	b := make([]byte, versionLen)
	copy(b, version)
	copy(b[len(version)+1:], own)
	return b
}

// parseVersion returns the peer's version and whether it is another roce.
func parseVersion(b []byte) (text string, isOwn bool, err error) {
	head, rest, _ := bytes.Cut(b, []byte{0})
	text = string(head)
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || len(text) > 8 || math.IsNaN(v) || math.IsInf(v, 0):
		return "", false, fmt.Errorf("the peer said %q instead of a perftest version: does it run an ib_* tool or 'roce perf'?", text)
	case v < oldestVersion:
		return "", false, fmt.Errorf("the peer's perftest says version %s; it must be at least %.2f", text, oldestVersion)
	}
	rest, _, _ = bytes.Cut(rest, []byte{0})
	return text, string(rest) == own, nil
}

func formatInt(v int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }

// parseInt takes a power of two up to max.
func parseInt(b []byte, what string, max int) (int, error) {
	v := binary.BigEndian.Uint32(b)
	if v == 0 || v&(v-1) != 0 || v > uint32(max) {
		return 0, fmt.Errorf("the peer says that its %s is %d; that is none", what, v)
	}
	return int(v), nil
}

// formatMTU writes the verbs' number of a path MTU as a digit.
func formatMTU(mtu int) []byte {
	digit := byte('1')
	for n := 256; n < mtu; n *= 2 {
		digit++
	}
	return []byte{digit, 0}
}

func parseMTU(b []byte) (int, error) {
	if b[0] < '1' || b[0] > '5' {
		return 0, fmt.Errorf("the peer names its MTU %q; it must be 1 (256 bytes) to 5 (4096 bytes)", b[0])
	}
	return 256 << (b[0] - '1'), nil
}

// record is what one side tells about a queue pair.
type record struct {
	outReads int // READs and atomics that it accepts at a time
	qpn      bth.QPN
	psn      bth.PSN // of its first request
	rkey     uint32
	vaddr    uint64
	gid      netip.Addr
}

// format writes the 108 bytes of a record: lid, outReads, qpn, psn, rkey, vaddr,
// the 16 bytes of the GID and the number of the SRQ, each followed by a colon.
func (r record) format() []byte {
	b := fmt.Appendf(nil, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, r.outReads, uint32(r.qpn), r.psn.Value(), r.rkey, r.vaddr)
	for _, v := range r.gid.As16() {
		b = fmt.Appendf(b, "%02x:", v)
	}
	return fmt.Appendf(b, "%08x:\x00", 0)
}

// recordFields are the widths of a record's fields, in digits.
var recordFields = []int{4, 4, 6, 6, 8, 16, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8}

func parseRecord(b []byte) (record, error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	var f [23]uint64
	rest := text
	for i, width := range recordFields {
		if len(rest) < width+1 || rest[width] != ':' {
			return record{}, fmt.Errorf("the peer sent %q, which is no perftest record: do both sides run the same test with the same options?", text)
		}
		v, err := strconv.ParseUint(strings.TrimLeft(rest[:width], " "), 16, 64)
		if err != nil {
			return record{}, fmt.Errorf("the peer sent %q, which is no perftest record: %w", text, err)
		}
		f[i], rest = v, rest[width+1:]
	}
	var gid [16]byte
	for i := range gid {
		gid[i] = byte(f[6+i])
	}
	r := record{outReads: int(f[1]), qpn: bth.QPN(f[2]), psn: bth.NewPSN(uint32(f[3])), rkey: uint32(f[4]), vaddr: f[5], gid: netip.AddrFrom16(gid).Unmap()}
	if r.qpn == 0 || r.gid.IsUnspecified() {
		return record{}, errors.New("the peer sent no queue pair or no GID: run it with -x INDEX, where INDEX is a RoCE v2 GID (show_gids or ibv_devinfo -v list them)")
	}
	return r, nil
}

// summary is a bandwidth result as the two sides tell each other.
type summary struct {
	size, iterations    uint64
	peak, average, rate float64 // in the unit of the report, rate in millions per second
}

// fields are the five records of a summary, in their order.
func (s summary) fields() [5][]byte {
	var b [5][]byte
	for i, v := range [5]uint64{s.size, s.iterations, math.Float64bits(s.peak), math.Float64bits(s.average), math.Float64bits(s.rate)} {
		b[i] = binary.BigEndian.AppendUint64(nil, v)
	}
	return b
}

func parseSummary(b [5][]byte) summary {
	var v [5]uint64
	for i := range v {
		v[i] = binary.BigEndian.Uint64(b[i])
	}
	return summary{v[0], v[1], sane(v[2]), sane(v[3]), sane(v[4])}
}

// sane reads a number that a peer may not have set: perftest's passive sides send
// whatever was in memory.
func sane(bits uint64) float64 {
	if v := math.Float64frombits(bits); v >= 0 && v < 1e12 {
		return v
	}
	return 0
}

// terms are the options on which two of our own ends have to agree, and the seed
// of what they fill their memory with.
type terms struct {
	Test          string `json:"test"`
	Connection    string `json:"connection"`
	Size          int    `json:"size"`
	All           bool   `json:"all"`
	Iters         int    `json:"iters"`
	Duration      string `json:"duration"`
	QPs           int    `json:"qps"`
	Bidirectional bool   `json:"bidirectional"`
	Atomic        string `json:"atomic"`
	Seed          uint64 `json:"seed"`
}

// differ says in which options b differs from a, nil if in none.
func (a terms) differ(b terms) error {
	for _, row := range []struct {
		name        string
		here, there any
	}{
		{"the test", a.Test, b.Test}, {"-c", a.Connection, b.Connection}, {"-a", a.All, b.All}, {"-s", a.Size, b.Size},
		{"-D", a.Duration, b.Duration}, {"-n", a.Iters, b.Iters}, {"-q", a.QPs, b.QPs},
		{"-b", a.Bidirectional, b.Bidirectional}, {"-A", a.Atomic, b.Atomic},
	} {
		if row.here != row.there {
			return fmt.Errorf("the two sides differ: %s is %v here and %v at the peer; both need the same", row.name, row.here, row.there)
		}
	}
	return nil
}

// verdict is what a side found when it checked the bytes that it got.
type verdict struct {
	Checked string `json:"checked"` // what it found right, "" if it looked at nothing
	Error   string `json:"error"`
}

// maxNote bounds a JSON record between two of our own ends.
const maxNote = 4096

// formatNote writes a JSON record behind its length.
func formatNote(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings and numbers
	}
	return append(formatInt(len(text)), text...)
}

func noteLen(b []byte) (int, error) {
	n := binary.BigEndian.Uint32(b)
	if n > maxNote {
		return 0, fmt.Errorf("the peer announces %d bytes; at most %d are allowed", n, maxNote)
	}
	return int(n), nil
}

func parseNote(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("the peer sent a record that cannot be read: %w", err)
	}
	return nil
}
