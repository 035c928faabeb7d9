package qp

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/mr"
)

// Type is the service of a queue pair; the values are those of the verbs API.
type Type uint8

// The types. A GSI pair is QP1: a UD pair with the Q_Key of the connection
// manager.
const (
	RC  Type = 2
	UC  Type = 3
	UD  Type = 4
	GSI Type = 1
)

// String returns the type's short name.
func (t Type) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case GSI:
		return "GSI"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Transport returns the opcode space of the type.
func (t Type) Transport() bth.Transport {
	switch t {
	case RC:
		return bth.RC
	case UC:
		return bth.UC
	}
	return bth.UD
}

// Connected reports whether the type has exactly one peer.
func (t Type) Connected() bool { return t == RC || t == UC }

// State is the state of a queue pair (IBA 10.3.1); values as in verbs.
type State uint8

// The states.
const (
	Reset State = iota
	Init
	RTR // ready to receive
	RTS // ready to send
	SQD // send queue drained
	SQE // send queue error, UC and UD only
	Err
)

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// CanReceive reports whether requests are accepted in the state.
func (s State) CanReceive() bool { return s >= RTR && s <= SQE }

// CanSend reports whether answers are accepted and started requests continue.
func (s State) CanSend() bool { return s == RTS || s == SQD }

// AttrMask names attributes of a Modify call; the bits are those of verbs.
type AttrMask uint32

// The attributes.
const (
	AttrState           AttrMask = 1 << 0
	AttrCurState        AttrMask = 1 << 1
	AttrEnSQDNotify     AttrMask = 1 << 2
	AttrAccess          AttrMask = 1 << 3
	AttrPKeyIndex       AttrMask = 1 << 4
	AttrPort            AttrMask = 1 << 5
	AttrQKey            AttrMask = 1 << 6
	AttrAV              AttrMask = 1 << 7
	AttrPathMTU         AttrMask = 1 << 8
	AttrTimeout         AttrMask = 1 << 9
	AttrRetryCount      AttrMask = 1 << 10
	AttrRNRRetry        AttrMask = 1 << 11
	AttrRQPSN           AttrMask = 1 << 12
	AttrMaxRDAtomic     AttrMask = 1 << 13
	AttrAltPath         AttrMask = 1 << 14
	AttrMinRNRTimer     AttrMask = 1 << 15
	AttrSQPSN           AttrMask = 1 << 16
	AttrMaxDestRDAtomic AttrMask = 1 << 17
	AttrPathMigState    AttrMask = 1 << 18
	AttrDestQPN         AttrMask = 1 << 20
)

var attrNames = map[AttrMask]string{
	AttrState: "STATE", AttrCurState: "CUR_STATE", AttrEnSQDNotify: "EN_SQD_ASYNC_NOTIFY", AttrAccess: "ACCESS_FLAGS",
	AttrPKeyIndex: "PKEY_INDEX", AttrPort: "PORT", AttrQKey: "QKEY", AttrAV: "AV", AttrPathMTU: "PATH_MTU",
	AttrTimeout: "TIMEOUT", AttrRetryCount: "RETRY_CNT", AttrRNRRetry: "RNR_RETRY", AttrRQPSN: "RQ_PSN",
	AttrMaxRDAtomic: "MAX_QP_RD_ATOMIC", AttrAltPath: "ALT_PATH", AttrMinRNRTimer: "MIN_RNR_TIMER", AttrSQPSN: "SQ_PSN",
	AttrMaxDestRDAtomic: "MAX_DEST_RD_ATOMIC", AttrPathMigState: "PATH_MIG_STATE", AttrDestQPN: "DEST_QPN",
}

// String lists the attributes by their verbs names.
func (m AttrMask) String() string {
	var s []string
	for b := AttrMask(1); b != 0 && b <= m; b <<= 1 {
		if m&b == 0 {
			continue
		}
		if n, ok := attrNames[b]; ok {
			s = append(s, n)
		} else {
			s = append(s, fmt.Sprintf("bit 0x%x", uint32(b)))
		}
	}
	return strings.Join(s, ", ")
}

// AddressVector says how to reach a peer: by an RC or UC pair as an attribute,
// by a datagram as its address handle (AH).
type AddressVector struct {
	DGID         netip.Addr // the peer's GID, which in RoCEv2 is its IP address
	TrafficClass uint8      // DSCP in the upper 6 bits, ECN in the lower 2
	HopLimit     uint8      // TTL; 0 means 64
	SrcPort      uint16     // UDP source port where the link can choose it; 0 lets the device choose
}

// Attr holds the attributes of a queue pair. Modify reads those in its mask.
type Attr struct {
	State       State
	CurState    State
	EnSQDNotify bool
	Access      mr.Access // what the peer may do: RemoteWrite, RemoteRead, RemoteAtomic
	PKeyIndex   uint16    // 0: the default partition is the only one
	Port        uint8     // 1
	QKey        bth.QKey
	AV          AddressVector
	PathMTU     int // payload bytes per packet: 256, 512, 1024, 2048 or 4096
	DestQPN     bth.QPN
	RQPSN       bth.PSN // first PSN expected from the peer
	SQPSN       bth.PSN // first PSN sent
	// MaxRDAtomic is how many READs and atomics may be outstanding as
	// requester, MaxDestRDAtomic as responder; 0…MaxRDAtomicLimit.
	MaxRDAtomic     uint8
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8 // code 0…31 asked for in our RNR NAKs, see bth.RNRTimer
	Timeout         uint8 // local ACK timeout: 4.096 µs · 2^Timeout, 0…31, 0 never
	RetryCount      uint8 // 0…7 retries
	RNRRetry        uint8 // 0…6 retries, 7 without end
}

// MaxRDAtomicLimit bounds outstanding READs and atomics per direction.
const MaxRDAtomicLimit = 128

// AckTimeout returns the duration of a local ACK timeout code; 0 is never.
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << (code & 31)
}

// ValidMTU reports whether n is a path MTU of the standard.
func ValidMTU(n int) bool {
	return n == 256 || n == 512 || n == 1024 || n == 2048 || n == 4096
}
