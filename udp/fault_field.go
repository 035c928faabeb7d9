package udp

import (
	"slices"
	"strings"

	"github.com/goroce/goroce/bth"
)

// field is a header field that a rule can change: bits wide, its lowest bit
// shift above the end of a big-endian number that starts at byte at.
type field struct {
	name            string
	header          bth.Header // that has it; 0 is the BTH
	at, shift, bits int
}

// fields are those of all headers, in wire order. RETH and AtomicETH share two
// names, of which a packet has at most one.
var fields = [...]field{
	{"opcode", 0, 0, 0, 8},
	{"se", 0, 1, 7, 1},
	{"migreq", 0, 1, 6, 1},
	{"pad", 0, 1, 4, 2},
	{"tver", 0, 1, 0, 4},
	{"pkey", 0, 2, 0, 16},
	{"fecn", 0, 4, 7, 1},
	{"becn", 0, 4, 6, 1},
	{"resv6", 0, 4, 0, 6},
	{"destqp", 0, 5, 0, 24},
	{"ackreq", 0, 8, 7, 1},
	{"resv7", 0, 8, 0, 7},
	{"psn", 0, 9, 0, 24},
	{"qkey", bth.HasDETH, 0, 0, 32},
	{"srcqp", bth.HasDETH, 5, 0, 24},
	{"srq", bth.HasXRCETH, 1, 0, 24},
	{"sel", bth.HasFETH, 3, 4, 2},
	{"plt", bth.HasFETH, 3, 0, 4},
	{"va", bth.HasRETH, 0, 0, 64},
	{"rkey", bth.HasRETH, 8, 0, 32},
	{"length", bth.HasRETH, 12, 0, 32},
	{"va", bth.HasAtomicETH, 0, 0, 64},
	{"rkey", bth.HasAtomicETH, 8, 0, 32},
	{"swap", bth.HasAtomicETH, 12, 0, 64},
	{"compare", bth.HasAtomicETH, 20, 0, 64},
	{"syndrome", bth.HasAETH, 0, 0, 8},
	{"msn", bth.HasAETH, 1, 0, 24},
	{"orig", bth.HasAtomicAckETH, 0, 0, 64},
	{"imm", bth.HasImmDt, 0, 0, 32},
	{"invkey", bth.HasIETH, 0, 0, 32},
}

// fieldNames returns the names in wire order, each once.
func fieldNames() (names []string) {
	for _, f := range fields {
		if !slices.Contains(names, f.name) {
			names = append(names, f.name)
		}
	}
	return names
}

// fieldsNamed returns all fields of that name, which have the same width.
func fieldsNamed(name string) (fs []field) {
	for _, f := range fields {
		if f.name == name {
			fs = append(fs, f)
		}
	}
	return fs
}

// max returns the largest value.
func (f *field) max() uint64 { return 1<<f.bits - 1 } // 64 bits: 1<<64 is 0

// end is how many bytes of the header the field needs.
func (f *field) end() int { return f.at + (f.shift+f.bits+7)/8 }

// change assigns to the field of the header that starts hdr.
func (f *field) change(hdr []byte, a Assignment) {
	b := hdr[f.at:f.end()]
	var all uint64
	for _, c := range b {
		all = all<<8 | uint64(c)
	}
	v := a.Value
	if a.Add {
		v += all >> f.shift
	}
	mask := f.max() << f.shift
	all = all&^mask | v<<f.shift&mask
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte(all)
		all >>= 8
	}
}

// OpSet is a set of opcodes. The zero value stands for all of them.
type OpSet [4]uint64

// Opcodes returns the set of the given opcodes.
func Opcodes(ops ...bth.Opcode) (s OpSet) {
	for _, o := range ops {
		s[o>>6] |= 1 << (o & 63)
	}
	return s
}

// Has reports whether the opcode is in the set, which must not be empty.
func (s OpSet) Has(o bth.Opcode) bool { return s[o>>6]>>(o&63)&1 != 0 }

func (s OpSet) union(t OpSet) OpSet {
	for i := range s {
		s[i] |= t[i]
	}
	return s
}

// within reports whether every opcode of s is in t.
func (s OpSet) within(t OpSet) bool { return s.union(t) == t }

// opName is a name of one or more opcodes.
type opName struct {
	name string
	ops  OpSet
}

// opNames are all names, wide ones first. Those of single operations follow from
// the opcode table: "write_last_imm" is that packet on every transport,
// "rc_write_last_imm" on one.
var opNames = makeOpNames()

// opClasses are the names of more than one packet.
var opClasses = []struct {
	name string
	has  func(*bth.Info) bool
}{
	{"request", func(i *bth.Info) bool { return i.Request }},
	{"response", func(i *bth.Info) bool { return !i.Request && i.Op != bth.OpCNP }},
	{"send", func(i *bth.Info) bool { return i.Op == bth.OpSend }},
	{"write", func(i *bth.Info) bool { return i.Op == bth.OpWrite }},
	{"read_resp", func(i *bth.Info) bool { return i.Op == bth.OpReadResponse }},
	{"atomic", func(i *bth.Info) bool { return i.Op == bth.OpCmpSwap || i.Op == bth.OpFetchAdd }},
	{"first", func(i *bth.Info) bool { return i.Pos == bth.First }},
	{"middle", func(i *bth.Info) bool { return i.Pos == bth.Middle }},
	{"last", func(i *bth.Info) bool { return i.Pos == bth.Last }},
	{"only", func(i *bth.Info) bool {
		return i.Pos == bth.Only && (i.Op == bth.OpSend || i.Op == bth.OpWrite || i.Op == bth.OpReadResponse)
	}},
	{"imm", func(i *bth.Info) bool { return i.Headers&bth.HasImmDt != 0 }},
	{"inv", func(i *bth.Info) bool { return i.Headers&bth.HasIETH != 0 }},
	{"rc", func(i *bth.Info) bool { return i.Transport == bth.RC }},
	{"uc", func(i *bth.Info) bool { return i.Transport == bth.UC }},
	{"ud", func(i *bth.Info) bool { return i.Transport == bth.UD }},
	{"xrc", func(i *bth.Info) bool { return i.Transport == bth.XRC }},
}

func makeOpNames() (names []opName) {
	at := map[string]int{}
	add := func(name string, o bth.Opcode) {
		i, ok := at[name]
		if !ok {
			i = len(names)
			at[name] = i
			names = append(names, opName{name: name})
		}
		names[i].ops = names[i].ops.union(Opcodes(o))
	}
	each := func(f func(o bth.Opcode, info *bth.Info, prefix string)) {
		for o := range 256 {
			if info := bth.Opcode(o).Info(); info.Transport != bth.NoService {
				f(bth.Opcode(o), info, strings.ToLower(info.Transport.String())+"_")
			}
		}
	}
	for _, c := range opClasses {
		each(func(o bth.Opcode, info *bth.Info, _ string) {
			if c.has(info) {
				add(c.name, o)
			}
		})
	}
	each(func(o bth.Opcode, info *bth.Info, _ string) { add(snake(info), o) })
	for _, c := range opClasses {
		each(func(o bth.Opcode, info *bth.Info, prefix string) {
			if c.has(info) && prefix != c.name+"_" {
				add(prefix+c.name, o)
			}
		})
	}
	each(func(o bth.Opcode, info *bth.Info, prefix string) {
		if info.Transport != bth.CNPClass {
			add(prefix+snake(info), o)
		}
	})
	return names
}

var snakeReplacer = strings.NewReplacer("rdma ", "", "response", "resp", "with immediate", "imm", "with invalidate", "inv",
	"acknowledge", "ack", "cmpswap", "cmp_swap", "fetchadd", "fetch_add", " ", "_")

// snake returns the opcode's name without transport, e.g. "read_resp_first".
func snake(info *bth.Info) string {
	name := strings.ToLower(info.Name)
	name = strings.TrimPrefix(name, strings.ToLower(info.Transport.String())+" ")
	return snakeReplacer.Replace(name)
}

// opsNamed returns the opcodes of a name.
func opsNamed(name string) (OpSet, bool) {
	for i := range opNames {
		if opNames[i].name == name {
			return opNames[i].ops, true
		}
	}
	return OpSet{}, false
}
