package udp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
)

func opSet(t testing.TB, names string) (s OpSet) {
	t.Helper()
	for name := range strings.SplitSeq(names, "|") {
		ops, ok := opsNamed(name)
		if !ok {
			t.Fatalf("no opcodes are called %q", name)
		}
		s = s.union(ops)
	}
	return s
}

func TestParseFaults(t *testing.T) {
	for _, row := range []struct {
		spec string
		want FaultRule
		text string // as String writes it, if different
	}{
		{"drop", FaultRule{Fault: FaultDrop}, ""},
		{"drop p=1%", FaultRule{Fault: FaultDrop, P: 0.01}, "drop p=0.01"},
		{"drop p=7%", FaultRule{Fault: FaultDrop, P: 0.07}, "drop p=0.07"},
		{"drop p=.5", FaultRule{Fault: FaultDrop, P: 0.5}, "drop p=0.5"},
		{"drop p=0%", FaultRule{Fault: FaultDrop, P: -1}, "drop p=0"},
		{"drop p=100%", FaultRule{Fault: FaultDrop}, "drop"},
		{"drop dir=tx n=3", FaultRule{Fault: FaultDrop, Nth: Range{3, 3}}, "drop n=3"},
		{"drop dir=rx n=3-7", FaultRule{Fault: FaultDrop, Dir: DirRX, Nth: Range{3, 7}}, ""},
		{"drop dir=both n=3-", FaultRule{Fault: FaultDrop, Dir: DirBoth, Nth: Range{3, 0}}, ""},
		{"dup", FaultRule{Fault: FaultDup, Copies: 1}, ""},
		{"dup=8 every=10 max=4", FaultRule{Fault: FaultDup, Copies: 8, Every: 10, Max: 4}, ""},
		{"delay=5ms p=0.1 seed=9", FaultRule{Fault: FaultDelay, Delay: 5 * time.Millisecond, P: 0.1, Seed: 9}, ""},
		{"delay=0.5s", FaultRule{Fault: FaultDelay, Delay: time.Second / 2}, "delay=500ms"},
		{"reorder=3 try=2", FaultRule{Fault: FaultReorder, Behind: 3, Try: 2}, ""},
		{"corrupt psn=+3", FaultRule{Fault: FaultCorrupt, PSN: PSNRange{3, 1, true}}, ""},
		{"corrupt psn=+0-9", FaultRule{Fault: FaultCorrupt, PSN: PSNRange{0, 10, true}}, ""},
		{"corrupt psn=0x10", FaultRule{Fault: FaultCorrupt, PSN: PSNRange{16, 1, false}}, "corrupt psn=16"},
		{"corrupt psn=5-0xffffff", FaultRule{Fault: FaultCorrupt, PSN: PSNRange{5, 0xFFFFFF - 4, false}}, "corrupt psn=5-16777215"},
		{"ce qp=0x11", FaultRule{Fault: FaultCE, QP: 17}, ""},
		{"set ackreq=0 op=send_last", FaultRule{Fault: FaultSet, Set: Assignment{"ackreq", 0, false}, Ops: Opcodes(bth.SendLast, bth.SendLast.On(bth.UC), bth.SendLast.On(bth.XRC))}, ""},
		{"set psn=+1 psn=+4", FaultRule{Fault: FaultSet, Set: Assignment{"psn", 1, true}, PSN: PSNRange{4, 1, true}}, ""},
		{"set psn=-1", FaultRule{Fault: FaultSet, Set: Assignment{"psn", 1<<64 - 1, true}}, ""},
		{"set va=0xffffffffffffffff", FaultRule{Fault: FaultSet, Set: Assignment{"va", 1<<64 - 1, false}}, ""},
		{"set pkey=0x7fff", FaultRule{Fault: FaultSet, Set: Assignment{"pkey", 0x7FFF, false}}, ""},
		{"drop op=rc_ack", FaultRule{Fault: FaultDrop, Ops: Opcodes(bth.Acknowledge)}, ""},
		{"drop op=0x11", FaultRule{Fault: FaultDrop, Ops: Opcodes(bth.Acknowledge)}, "drop op=rc_ack"},
		{"drop op=0x15|255", FaultRule{Fault: FaultDrop, Ops: Opcodes(0x15, 0xFF)}, "drop op=0x15|0xff"},
		{"drop op=cnp|rc_send_only", FaultRule{Fault: FaultDrop, Ops: Opcodes(bth.CNP, bth.SendOnly)}, ""},
		{"drop op=rc_atomic", FaultRule{Fault: FaultDrop, Ops: Opcodes(bth.CmpSwap, bth.FetchAdd)}, ""},
		{"  DROP,dir=RX ,\t op=ACK\r ", FaultRule{Fault: FaultDrop, Dir: DirRX, Ops: opSet(t, "ack")}, "drop dir=rx op=ack"},
	} {
		got, err := ParseFaults(row.spec)
		if err != nil || len(got) != 1 {
			t.Errorf("%q: %v, %v", row.spec, got, err)
			continue
		}
		if got[0] != row.want {
			t.Errorf("%q:\n got %#v\nwant %#v", row.spec, got[0], row.want)
		}
		text := row.text
		if text == "" {
			text = row.spec
		}
		if s := got[0].String(); s != text {
			t.Errorf("%q is written %q, want %q", row.spec, s, text)
		}
	}
}

func TestParseFaultsSeparatesRules(t *testing.T) {
	got, err := ParseFaults(" ; drop n=1 ;\n\n;ce p=5%\nset se=1,n=2;")
	if err != nil || len(got) != 3 || got[0].Fault != FaultDrop || got[1].Fault != FaultCE || got[2].Fault != FaultSet {
		t.Errorf("%v, %v", got, err)
	}
	for _, spec := range []string{"", " ", ";", "\n"} {
		if got, err := ParseFaults(spec); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", spec, got, err)
		}
	}
}

func TestParseFaultsErrorsSayWhereAndWhatIsRight(t *testing.T) {
	for _, row := range []struct{ spec, want string }{
		{"dorp n=1", `rule 1, word 1 "dorp": there is no action "dorp": is it drop?`},
		{"corr", `rule 1, word 1 "corr": there is no action "corr": is it corrupt?`},
		{"drop; lose n=1", `rule 2, word 1 "lose": there is no action "lose": use drop, dup, delay, reorder, corrupt, ce or set`},
		{"p=1% drop", `rule 1, word 1 "p=1%": a rule starts with its action, and p is a selector: write "drop p=…", for instance`},
		{"drop=3", `rule 1, word 1 "drop=3": drop takes no value; selectors such as p=1% or n=3 follow it`},
		{"dup=9", `rule 1, word 1 "dup=9": the copies are 1 to 8, and 1 if none are given, not "9"`},
		{"delay", `rule 1, word 1 "delay": it needs a time above 0 and up to 1m0s, such as delay=5ms, not ""`},
		{"delay=5", `rule 1, word 1 "delay=5": the time has no unit: is delay=5ms meant?`},
		{"delay=2m", `rule 1, word 1 "delay=2m": it needs a time above 0 and up to 1m0s, such as delay=5ms, not "2m"`},
		{"reorder n=1", `rule 1, word 1 "reorder": it needs the number of packets that overtake, 1 to 255, such as reorder=3, not ""`},
		{"reorder=256", `rule 1, word 1 "reorder=256": it needs the number of packets that overtake, 1 to 255, such as reorder=3, not "256"`},
		{"set", `rule 1, word 1 "set": it needs a field and its value as the next word, such as set ackreq=0`},
		{"set=ackreq", `rule 1, word 1 "set=ackreq": it needs a field and its value as the next word, such as set ackreq=0`},
		{"set migrq=0", `rule 1, word 2 "migrq=0": there is no field "migrq": is it migreq?`},
		{"set migreq=2", `rule 1, word 2 "migreq=2": migreq has 1 bit: give it a value of 0 to 1, or +N or -N to add to it`},
		{"set destqp=0x1000000", `rule 1, word 2 "destqp=0x1000000": destqp has 24 bits: give it a value of 0 to 0xffffff, or +N or -N to add to it`},
		{"set rkey", `rule 1, word 2 "rkey": rkey has 32 bits: give it a value of 0 to 0xffffffff, or +N or -N to add to it`},
		{"set rkey=+-1", `rule 1, word 2 "rkey=+-1": rkey has 32 bits: give it a value of 0 to 0xffffffff, or +N or -N to add to it`},
		{"set rkey=1 va=0", `rule 1, word 3 "va=0": a rule sets one field: write "set va=0" as a rule of its own, after a ;`},
		{"drop rkey=1", `rule 1, word 2 "rkey=1": rkey is a field, not a selector: it is changed by a rule of its own, "set rkey=1"`},
		{"drop opcode=ack", `rule 1, word 2 "opcode=ack": opcode is a field of set; the selector is op, such as op=ack`},
		{"drop destqp=1", `rule 1, word 2 "destqp=1": destqp is a field of set; the selector is qp`},
		{"drop delay=5ms", `rule 1, word 2 "delay=5ms": delay is an action: it needs a rule of its own, after a ;`},
		{"drop corrupt", `rule 1, word 2 "corrupt": a selector has the form NAME=VALUE; corrupt is an action: it needs a rule of its own, after a ;`},
		{"drop evry=2", `rule 1, word 2 "evry=2": there is no selector "evry": is it every?`},
		{"drop size=2", `rule 1, word 2 "size=2": there is no selector "size": use dir, op, qp, psn, try, n, every, max, p, seed`},
		{"drop n=1 n=2", `rule 1, word 3 "n=2": n is given twice; a rule has each selector once`},
		{"drop rx", `rule 1, word 2 "rx": a selector has the form NAME=VALUE: is dir=rx meant?`},
		{"drop 1%", `rule 1, word 2 "1%": a selector has the form NAME=VALUE: is p=1% meant?`},
		{"drop 3", `rule 1, word 2 "3": a selector has the form NAME=VALUE: is n=3 meant?`},
		{"drop op=ack,send_last", `rule 1, word 3 "send_last": a selector has the form NAME=VALUE: is op=send_last meant? Several are joined by |, as in op=send_last|ack`},
		{"drop foo", `rule 1, word 2 "foo": a selector has the form NAME=VALUE, such as op=ack`},
		{"drop dir=in", `rule 1, word 2 "dir=in": it must be tx (sent, the default), rx (received) or both, not "in"`},
		{"drop op=wrte_middle", `rule 1, word 2 "op=wrte_middle": there is no opcode or class "wrte_middle": is it write_middle?`},
		{"drop op=read", `rule 1, word 2 "op=read": there is no opcode or class "read": is it read_resp or read_request or read_resp_first?`},
		{"drop op=", `rule 1, word 2 "op=": there is no opcode or class "": use names such as send_last, write, read_resp_middle, ack, request, or a number such as 0x11`},
		{"drop op=ack|", `rule 1, word 2 "op=ack|": there is no opcode or class "": use names such as send_last, write, read_resp_middle, ack, request, or a number such as 0x11`},
		{"drop op=256", `rule 1, word 2 "op=256": there is no opcode or class "256": use names such as send_last, write, read_resp_middle, ack, request, or a number such as 0x11`},
		{"drop qp=0", `rule 1, word 2 "qp=0": it is the number of the destination queue pair, 1 to 0xffffff, not "0"`},
		{"drop psn=1000000000", `rule 1, word 2 "psn=1000000000": it must be +K, counted from the first PSN seen as +0, or a PSN of 24 bits, or a range of either such as +3-7, not "1000000000"`},
		{"drop psn=+7-3", `rule 1, word 2 "psn=+7-3": it must be +K, counted from the first PSN seen as +0, or a PSN of 24 bits, or a range of either such as +3-7, not "+7-3"`},
		{"drop try=0", `rule 1, word 2 "try=0": it counts the transmissions of a PSN from 1, such as try=2 for the first repetition, not "0"`},
		{"drop n=0", `rule 1, word 2 "n=0": it counts the chosen packets from 1: n=3, n=3-7 or n=3- (from the third on), not "0"`},
		{"drop n=7-3", `rule 1, word 2 "n=7-3": it counts the chosen packets from 1: n=3, n=3-7 or n=3- (from the third on), not "7-3"`},
		{"drop every=0", `rule 1, word 2 "every=0": it is a number of packets from 1, such as every=10 for each tenth, not "0"`},
		{"drop max=0", `rule 1, word 2 "max=0": it is a number of times from 1, not "0"`},
		{"drop p=5", `rule 1, word 2 "p=5": it must be 0 to 1, or 0% to 100%, not "5"; is p=5% meant?`},
		{"drop p=101%", `rule 1, word 2 "p=101%": it must be 0 to 1, or 0% to 100%, not "101%"`},
		{"drop p=nan", `rule 1, word 2 "p=nan": it must be 0 to 1, or 0% to 100%, not "nan"`},
		{"drop p=", `rule 1, word 2 "p=": it must be 0 to 1, or 0% to 100%, not ""`},
		{"drop seed=x", `rule 1, word 2 "seed=x": it is a number of up to 64 bits, not "x"`},
	} {
		rules, err := ParseFaults(row.spec)
		var fe *FaultError
		if !errors.As(err, &fe) || rules != nil {
			t.Errorf("%q: %v, %v; want an error", row.spec, rules, err)
			continue
		}
		if want := "fault " + row.want; err.Error() != want {
			t.Errorf("%q:\n got %s\nwant %s", row.spec, err, want)
		}
	}
}

// Each opcode of the table has a name of its own, which is the standard's.
func TestFaultOpcodeNames(t *testing.T) {
	for name, ops := range map[string][]bth.Opcode{
		"rc_send_first": {0x00}, "uc_send_last_imm": {0x23}, "rc_write_last_imm": {0x09}, "write_only_imm": {0x0B, 0x2B, 0xAB},
		"read_request": {0x0C, 0xAC}, "rc_read_resp_middle": {0x0E}, "ack": {0x11, 0xB1}, "rc_atomic_ack": {0x12},
		"rc_cmp_swap": {0x13}, "rc_fetch_add": {0x14}, "rc_send_only_inv": {0x17}, "rc_flush": {0x1C}, "rc_atomic_write": {0x1D},
		"ud_send_only": {0x64}, "ud": {0x64, 0x65}, "cnp": {0x81}, "rc_response": {0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12, 0xC8}, "goroce_selective_ack": {0xC8},
		"rc_first": {0x00, 0x06, 0x0D}, "rc_only": {0x04, 0x05, 0x0A, 0x0B, 0x10, 0x17}, "uc_last": {0x22, 0x23, 0x28, 0x29}, "inv": {0x16, 0x17, 0xB6, 0xB7},
		"send_only": {0x04, 0x24, 0x64, 0xA4}, "rc_imm": {0x03, 0x05, 0x09, 0x0B},
	} {
		if got := opSet(t, name); got != Opcodes(ops...) {
			t.Errorf("%s is %v, want %v", name, got, ops)
		}
	}
	for o := range 256 {
		s := Opcodes(bth.Opcode(o)).String()
		named := !strings.HasPrefix(s, "0x") && !strings.Contains(s, "|")
		if named != bth.Opcode(o).Valid() {
			t.Errorf("opcode %#02x is called %q", o, s)
		}
	}
	seen := map[string]bool{}
	for _, n := range opNames {
		if seen[n.name] || n.ops == (OpSet{}) {
			t.Errorf("%q twice or empty", n.name)
		}
		seen[n.name] = true
	}
}

// Any text gives rules or an error that names a word of it; rules survive being
// written and read, and a link takes them.
func FuzzParseFaults(f *testing.F) {
	for _, s := range []string{
		"drop p=1%", "drop dir=tx op=write_middle n=3", "dup op=send_only every=10; delay=5ms p=0.1", "reorder=3 op=read_resp_middle",
		"ce p=10%,dir=both", "set psn=-1 psn=+3-7 try=2 max=9 seed=3", "set va=0xffffffffffffffff n=2-\ncorrupt qp=7", "drop p=1e-300", "op=", "set",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		rules, err := ParseFaults(spec)
		if err != nil {
			var fe *FaultError
			if rules != nil || !errors.As(err, &fe) || fe.Problem == "" || fe.Rule < 1 || fe.Word < 1 || !strings.Contains(strings.ToLower(spec), fe.Text) {
				t.Fatalf("%q: %v, %#v", spec, rules, err)
			}
			return
		}
		var text []string
		for _, r := range rules {
			text = append(text, r.String())
		}
		again, err := ParseFaults(strings.Join(text, "; "))
		if err != nil || len(again) != len(rules) {
			t.Fatalf("%q is written %q, which is read as %v, %v", spec, text, again, err)
		}
		for i := range rules {
			if rules[i] != again[i] {
				t.Fatalf("%q is written %q, which means %v", spec, text[i], again[i])
			}
		}
		if _, err := WithFaults(&wire{}, FaultConfig{Rules: rules}); err != nil {
			t.Fatalf("%q: %v", spec, err)
		}
	})
}
