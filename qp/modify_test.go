package qp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
)

// standard is the transition table of IBA 11.2.5.2 as the verbs core of Linux
// has it (IBA 11.2.5.2): type, from, to, what is required | what is optional
// beside the state. What is not in it is refused.
const standard = `
RC RESET INIT  PKEY_INDEX PORT ACCESS_FLAGS |
RC INIT  INIT  | PKEY_INDEX PORT ACCESS_FLAGS
RC INIT  RTR   AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ALT_PATH ACCESS_FLAGS PKEY_INDEX
RC RTR   RTS   TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RC RTS   RTS   | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
RC RTS   SQD   | EN_SQD_ASYNC_NOTIFY
RC SQD   RTS   | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
RC SQD   SQD   | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
RC SQE   RTS   |

UC RESET INIT  PKEY_INDEX PORT ACCESS_FLAGS |
UC INIT  INIT  | PKEY_INDEX PORT ACCESS_FLAGS
UC INIT  RTR   AV PATH_MTU DEST_QPN RQ_PSN | ALT_PATH ACCESS_FLAGS PKEY_INDEX
UC RTR   RTS   SQ_PSN | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
UC RTS   RTS   | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
UC RTS   SQD   | EN_SQD_ASYNC_NOTIFY
UC SQD   RTS   | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
UC SQD   SQD   | AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
UC SQE   RTS   | CUR_STATE ACCESS_FLAGS

UD RESET INIT  PKEY_INDEX PORT QKEY |
UD INIT  INIT  | PKEY_INDEX PORT QKEY
UD INIT  RTR   | PKEY_INDEX QKEY
UD RTR   RTS   SQ_PSN | CUR_STATE QKEY
UD RTS   RTS   | CUR_STATE QKEY
UD RTS   SQD   | EN_SQD_ASYNC_NOTIFY
UD SQD   RTS   | CUR_STATE QKEY
UD SQD   SQD   | PKEY_INDEX QKEY
UD SQE   RTS   | CUR_STATE QKEY
`

// bits are the attribute bits of verbs (IBA 11.6.2).
var bits = map[string]int{
	"STATE": 0, "CUR_STATE": 1, "EN_SQD_ASYNC_NOTIFY": 2, "ACCESS_FLAGS": 3, "PKEY_INDEX": 4, "PORT": 5, "QKEY": 6, "AV": 7, "PATH_MTU": 8,
	"TIMEOUT": 9, "RETRY_CNT": 10, "RNR_RETRY": 11, "RQ_PSN": 12, "MAX_QP_RD_ATOMIC": 13, "ALT_PATH": 14, "MIN_RNR_TIMER": 15, "SQ_PSN": 16,
	"MAX_DEST_RD_ATOMIC": 17, "PATH_MIG_STATE": 18, "CAP": 19, "DEST_QPN": 20, "RATE_LIMIT": 25,
}

var states = []qp.State{qp.Reset, qp.Init, qp.RTR, qp.RTS, qp.SQD, qp.SQE, qp.Err}

type step struct {
	typ      qp.Type
	from, to qp.State
}

type attrs struct{ required, optional qp.AttrMask }

// legal parses the table and adds the rows that need no attributes.
func legal(t *testing.T) map[step]attrs {
	t.Helper()
	types := map[string]qp.Type{"RC": qp.RC, "UC": qp.UC, "UD": qp.UD}
	byName := map[string]qp.State{}
	for _, s := range states {
		byName[s.String()] = s
	}
	m := map[step]attrs{}
	for line := range strings.Lines(standard) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var a attrs
		into := &a.required
		for _, name := range f[3:] {
			if name == "|" {
				into = &a.optional
				continue
			}
			b, ok := bits[name]
			if !ok {
				t.Fatalf("no attribute %q", name)
			}
			*into |= 1 << b
		}
		from, ok1 := byName[f[1]]
		to, ok2 := byName[f[2]]
		if !ok1 || !ok2 {
			t.Fatalf("states of %q", line)
		}
		m[step{types[f[0]], from, to}] = a
	}
	for _, typ := range types {
		for _, from := range states {
			m[step{typ, from, qp.Reset}] = attrs{}
			if from != qp.Reset {
				m[step{typ, from, qp.Err}] = attrs{}
			}
		}
	}
	return m
}

// unsupported attributes are in the table and refused by value: there is no
// path migration.
const unsupported = qp.AttrAltPath | qp.AttrPathMigState

// values returns an Attr with every field set to something legal that a fresh
// pair does not have.
func values(from, to qp.State) qp.Attr {
	return qp.Attr{State: to, CurState: from, EnSQDNotify: true, Access: mr.RemoteRead, PKeyIndex: 0, Port: 1, QKey: 0x11111111,
		AV:      qp.AddressVector{DGID: netip.MustParseAddr("192.0.2.9"), TrafficClass: 4, HopLimit: 3, SrcPort: 5},
		PathMTU: 2048, DestQPN: 0x123456, RQPSN: bth.NewPSN(7), SQPSN: bth.NewPSN(8), MaxRDAtomic: 9, MaxDestRDAtomic: 10,
		MinRNRTimer: 11, Timeout: 12, RetryCount: 3, RNRRetry: 4}
}

// applied is what the attributes must be afterwards, field by field.
func applied(was, a qp.Attr, mask qp.AttrMask) qp.Attr {
	if mask&(1<<0) != 0 {
		if a.State == qp.Reset {
			return qp.Attr{}
		}
		was.State = a.State
	}
	fields := map[int]string{2: "EnSQDNotify", 3: "Access", 4: "PKeyIndex", 5: "Port", 6: "QKey", 7: "AV", 8: "PathMTU", 9: "Timeout", 10: "RetryCount",
		11: "RNRRetry", 12: "RQPSN", 13: "MaxRDAtomic", 15: "MinRNRTimer", 16: "SQPSN", 17: "MaxDestRDAtomic", 20: "DestQPN"}
	for bit, name := range fields {
		if mask&(1<<bit) != 0 {
			reflect.ValueOf(&was).Elem().FieldByName(name).Set(reflect.ValueOf(a).FieldByName(name))
		}
	}
	return was
}

// modify calls Modify on a pair in the state and checks the outcome: accepted
// and applied exactly, or refused and untouched.
func modify(t *testing.T, s step, mask qp.AttrMask, ok bool) {
	t.Helper()
	p := qp.New(17, nil, qp.Config{Type: s.typ})
	p.Attr = qp.Attr{State: s.from, PathMTU: 256, Timeout: 1, Access: mr.RemoteWrite, Port: 77, QKey: 5}
	was, a := p.Attr, values(s.from, s.to)
	err := p.Modify(&a, mask)
	name := fmt.Sprintf("%v %v to %v with %v", s.typ, s.from, s.to, mask)
	if (err == nil) != ok {
		t.Fatalf("%s: %v, want accepted %v", name, err, ok)
	}
	want := was
	if ok {
		want = applied(was, a, mask)
	} else {
		var e *qp.AttrError
		if !errors.Is(err, qp.ErrAttr) || !errors.As(err, &e) || e.Type != s.typ || e.From != s.from || e.To != s.to {
			t.Fatalf("%s: error %#v", name, err)
		}
	}
	if p.Attr != want {
		t.Fatalf("%s: attributes %+v, want %+v", name, p.Attr, want)
	}
}

// Every transition of every type with exactly what it needs, with each single
// attribute missing, with each optional one, and with each other one.
func TestModifyFollowsTheTable(t *testing.T) {
	table := legal(t)
	for _, typ := range []qp.Type{qp.RC, qp.UC, qp.UD} {
		for _, from := range states {
			for _, to := range states {
				s := step{typ, from, to}
				rule, known := table[s]
				modify(t, s, qp.AttrState|rule.required, known)
				modify(t, s, qp.AttrState|rule.required|rule.optional&^unsupported, known)
				for bit := 1; bit < 32; bit++ {
					one := qp.AttrMask(1) << bit
					switch {
					case rule.required&one != 0:
						modify(t, s, qp.AttrState|rule.required&^one, false)
						modify(t, s, qp.AttrState|rule.optional&^unsupported|rule.required&^one, false)
					default:
						modify(t, s, qp.AttrState|rule.required|one, known && rule.optional&^unsupported&one != 0)
					}
				}
				if from == to { // the state need not be named
					modify(t, s, rule.required|rule.optional&^unsupported, known)
				}
			}
		}
	}
}

// A state that does not exist is no transition.
func TestModifyToUnknownStateIsRefused(t *testing.T) {
	for _, to := range []qp.State{7, 8, 255} {
		modify(t, step{qp.RC, qp.RTS, to}, qp.AttrState, false)
	}
}

// The error says what is missing, too much, or wrong, in the standard's words.
func TestModifyErrorNamesAttributes(t *testing.T) {
	p := qp.New(17, nil, qp.Config{Type: qp.RC})
	p.Attr.State = qp.RTR
	a := values(qp.RTR, qp.RTS)
	err := p.Modify(&a, qp.AttrState|qp.AttrTimeout|qp.AttrQKey|qp.AttrDestQPN|qp.AttrSQPSN)
	for _, want := range []string{"RC", "RTR", "RTS", "RETRY_CNT", "RNR_RETRY", "MAX_QP_RD_ATOMIC", "QKEY", "DEST_QPN"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %s", err, want)
		}
	}
	for _, no := range []string{"TIMEOUT", "SQ_PSN"} {
		if strings.Contains(err.Error(), no) {
			t.Errorf("error %q names %s", err, no)
		}
	}
	for name, bit := range bits {
		if got := qp.AttrMask(1 << bit).String(); got != name && !strings.HasPrefix(got, "bit 0x") {
			t.Errorf("bit %d is called %s, want %s", bit, got, name)
		}
	}
}

// Values out of range are refused whole; the limits themselves are fine.
func TestModifyChecksValues(t *testing.T) {
	type set = func(*qp.Attr)
	for _, row := range []struct {
		name     string
		from, to qp.State
		good     []set
		bad      []set
	}{
		{"PORT", qp.Reset, qp.Init, []set{func(a *qp.Attr) { a.Port = 1 }}, []set{func(a *qp.Attr) { a.Port = 0 }, func(a *qp.Attr) { a.Port = 2 }}},
		{"PKEY_INDEX", qp.Reset, qp.Init, nil, []set{func(a *qp.Attr) { a.PKeyIndex = 1 }, func(a *qp.Attr) { a.PKeyIndex = 0xFFFF }}},
		{"PATH_MTU", qp.Init, qp.RTR,
			[]set{func(a *qp.Attr) { a.PathMTU = 256 }, func(a *qp.Attr) { a.PathMTU = 512 }, func(a *qp.Attr) { a.PathMTU = 1024 }, func(a *qp.Attr) { a.PathMTU = 4096 }},
			[]set{func(a *qp.Attr) { a.PathMTU = 0 }, func(a *qp.Attr) { a.PathMTU = 5 }, func(a *qp.Attr) { a.PathMTU = 255 }, func(a *qp.Attr) { a.PathMTU = 1500 },
				func(a *qp.Attr) { a.PathMTU = 8192 }, func(a *qp.Attr) { a.PathMTU = -256 }}},
		{"AV", qp.Init, qp.RTR, []set{func(a *qp.Attr) { a.AV.DGID = netip.MustParseAddr("2001:db8::1") }}, []set{func(a *qp.Attr) { a.AV.DGID = netip.Addr{} }}},
		{"DEST_QPN", qp.Init, qp.RTR, []set{func(a *qp.Attr) { a.DestQPN = 0xFFFFFE }}, []set{func(a *qp.Attr) { a.DestQPN = 1 << 24 }}},
		{"MIN_RNR_TIMER", qp.Init, qp.RTR, []set{func(a *qp.Attr) { a.MinRNRTimer = 0 }, func(a *qp.Attr) { a.MinRNRTimer = 31 }}, []set{func(a *qp.Attr) { a.MinRNRTimer = 32 }}},
		{"MAX_DEST_RD_ATOMIC", qp.Init, qp.RTR, []set{func(a *qp.Attr) { a.MaxDestRDAtomic = 0 }, func(a *qp.Attr) { a.MaxDestRDAtomic = 128 }},
			[]set{func(a *qp.Attr) { a.MaxDestRDAtomic = 129 }}},
		{"MAX_QP_RD_ATOMIC", qp.RTR, qp.RTS, []set{func(a *qp.Attr) { a.MaxRDAtomic = 0 }, func(a *qp.Attr) { a.MaxRDAtomic = 128 }}, []set{func(a *qp.Attr) { a.MaxRDAtomic = 255 }}},
		{"TIMEOUT", qp.RTR, qp.RTS, []set{func(a *qp.Attr) { a.Timeout = 0 }, func(a *qp.Attr) { a.Timeout = 31 }}, []set{func(a *qp.Attr) { a.Timeout = 32 }}},
		{"RETRY_CNT", qp.RTR, qp.RTS, []set{func(a *qp.Attr) { a.RetryCount = 0 }, func(a *qp.Attr) { a.RetryCount = 7 }}, []set{func(a *qp.Attr) { a.RetryCount = 8 }}},
		{"RNR_RETRY", qp.RTR, qp.RTS, []set{func(a *qp.Attr) { a.RNRRetry = 0 }, func(a *qp.Attr) { a.RNRRetry = 7 }}, []set{func(a *qp.Attr) { a.RNRRetry = 8 }}},
		{"CUR_STATE", qp.RTR, qp.RTS, []set{func(a *qp.Attr) { a.CurState = qp.RTR }}, []set{func(a *qp.Attr) { a.CurState = qp.RTS }}},
	} {
		t.Run(row.name, func(t *testing.T) {
			mask := qp.AttrState | legal(t)[step{qp.RC, row.from, row.to}].required
			if row.name == "CUR_STATE" {
				mask |= qp.AttrCurState
			}
			try := func(f set) error {
				p := qp.New(17, nil, qp.Config{Type: qp.RC})
				p.Attr.State = row.from
				was, a := p.Attr, values(row.from, row.to)
				f(&a)
				err := p.Modify(&a, mask)
				if err != nil && p.Attr != was {
					t.Fatalf("half applied: %+v", p.Attr)
				}
				return err
			}
			for i, f := range row.good {
				if err := try(f); err != nil {
					t.Errorf("good value %d: %v", i, err)
				}
			}
			for i, f := range row.bad {
				err := try(f)
				if !errors.Is(err, qp.ErrAttr) || !strings.Contains(err.Error(), row.name) {
					t.Errorf("bad value %d: %v", i, err)
				}
			}
		})
	}
}

// IBA 11.6.2: the numbers of verbs.
func TestNumbersAreThoseOfVerbs(t *testing.T) {
	for _, row := range []struct {
		name      string
		got, want int
	}{
		{"RESET", int(qp.Reset), 0}, {"INIT", int(qp.Init), 1}, {"RTR", int(qp.RTR), 2}, {"RTS", int(qp.RTS), 3}, {"SQD", int(qp.SQD), 4},
		{"SQE", int(qp.SQE), 5}, {"ERR", int(qp.Err), 6}, {"RC", int(qp.RC), 2}, {"UC", int(qp.UC), 3}, {"UD", int(qp.UD), 4},
		{"WRITE", int(qp.RDMAWrite), 0}, {"WRITE_IMM", int(qp.RDMAWriteImm), 1}, {"SEND", int(qp.Send), 2}, {"SEND_IMM", int(qp.SendImm), 3},
		{"READ", int(qp.RDMARead), 4}, {"CMP_SWP", int(qp.CmpSwap), 5}, {"FETCH_ADD", int(qp.FetchAdd), 6},
		{"FENCE", int(qp.Fence), 1}, {"SIGNALED", int(qp.Signaled), 2}, {"SOLICITED", int(qp.Solicited), 4},
	} {
		if row.got != row.want {
			t.Errorf("%s is %d, want %d", row.name, row.got, row.want)
		}
	}
	for code, want := range map[uint8]string{0: "0s", 1: "8.192µs", 8: "1.048576ms", 14: "67.108864ms", 19: "2.147483648s", 31: "2h26m36.093022208s"} {
		if got := qp.AckTimeout(code).String(); got != want {
			t.Errorf("ACK timeout %d is %s, want %s", code, got, want)
		}
	}
}
