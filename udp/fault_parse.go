package udp

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goroce/goroce/bth"
)

// FaultError says what is wrong with a fault rule.
type FaultError struct {
	Rule    int    // from 1
	Word    int    // of the rule, from 1
	Text    string // the word
	Problem string // what is wrong and what would be right
}

// Error implements error.
func (e *FaultError) Error() string {
	return fmt.Sprintf("fault rule %d, word %d %q: %s", e.Rule, e.Word, e.Text, e.Problem)
}

// ParseFaults reads fault rules. Rules are separated by semicolons or line ends,
// the words of a rule by spaces or commas:
//
//	ACTION [SELECTOR=VALUE …]
//
//	drop p=1%                         lose one packet in a hundred that we send
//	drop dir=rx op=ack n=1            lose the first acknowledgement that comes
//	corrupt op=write_middle n=3 try=1 a wrong ICRC, on its first transmission only
//	set rkey=+1 op=write_first n=2    ask for memory with a wrong key
//
// The actions are drop, dup[=COPIES], delay=TIME, reorder=PACKETS, corrupt, ce
// and set FIELD=VALUE; the selectors dir, op, qp, psn, try, n, every, max, p and
// seed. docs/faults.md has them all. An error is a *FaultError; no rule at all
// is none.
func ParseFaults(spec string) ([]FaultRule, error) {
	var rules []FaultRule
	for text := range strings.FieldsFuncSeq(spec, func(c rune) bool { return c == ';' || c == '\n' }) {
		words := strings.FieldsFunc(strings.ToLower(text), func(c rune) bool { return c == ' ' || c == ',' || c == '\t' || c == '\r' })
		if len(words) == 0 {
			continue
		}
		p := ruleParser{words: words, given: map[string]bool{}}
		if problem := p.parse(); problem != "" {
			return nil, &FaultError{len(rules) + 1, p.at + 1, p.words[p.at], problem}
		}
		rules = append(rules, p.rule)
	}
	return rules, nil
}

// ruleParser reads one rule. Its methods return what is wrong with the word at
// hand, or nothing.
type ruleParser struct {
	words []string
	at    int
	rule  FaultRule
	given map[string]bool
}

func (p *ruleParser) parse() (problem string) {
	if problem = p.action(); problem != "" {
		return problem
	}
	for p.at++; p.at < len(p.words); p.at++ {
		if problem = p.selector(); problem != "" {
			return problem
		}
	}
	p.at = 0
	return ""
}

// faultNames are the actions of the grammar.
var faultNames = [...]string{
	FaultDrop: "drop", FaultDup: "dup", FaultDelay: "delay", FaultReorder: "reorder",
	FaultCorrupt: "corrupt", FaultCE: "ce", FaultSet: "set",
}

// String returns the action's name in the grammar.
func (f Fault) String() string {
	if f == 0 || int(f) >= len(faultNames) {
		return fmt.Sprintf("fault%d", uint8(f))
	}
	return faultNames[f]
}

func (p *ruleParser) action() string {
	r := &p.rule
	name, value, hasValue := strings.Cut(p.words[0], "=")
	for f, n := range faultNames {
		if n == name && n != "" {
			r.Fault = Fault(f)
		}
	}
	switch r.Fault {
	case FaultDrop, FaultCorrupt, FaultCE:
		if hasValue {
			return fmt.Sprintf("%s takes no value; selectors such as p=1%% or n=3 follow it", name)
		}
	case FaultDup:
		r.Copies = 1
		if hasValue {
			return p.number(&r.Copies, value, maxCopies, "the copies are 1 to 8, and 1 if none are given")
		}
	case FaultDelay:
		return p.delay(value)
	case FaultReorder:
		return p.number(&r.Behind, value, maxBehind, "it needs the number of packets that overtake, 1 to 255, such as reorder=3")
	case FaultSet:
		if hasValue || len(p.words) == 1 {
			return "it needs a field and its value as the next word, such as set ackreq=0"
		}
		p.at++
		return p.assignment()
	default:
		return unknownAction(name)
	}
	return ""
}

func unknownAction(name string) string {
	if selector(name) != nil {
		return fmt.Sprintf("a rule starts with its action, and %s is a selector: write \"drop %s=…\", for instance", name, name)
	}
	return fmt.Sprintf("there is no action %q%s", name, meant(name, faultNames[1:], ": use drop, dup, delay, reorder, corrupt, ce or set"))
}

func (p *ruleParser) delay(value string) string {
	d, err := time.ParseDuration(value)
	if _, number := strconv.ParseFloat(value, 64); err != nil && number == nil && value != "0" {
		return fmt.Sprintf("the time has no unit: is delay=%sms meant?", value)
	}
	if err != nil || d <= 0 || d > maxDelay {
		return fmt.Sprintf("it needs a time above 0 and up to %v, such as delay=5ms, not %q", maxDelay, value)
	}
	p.rule.Delay = d
	return ""
}

// assignment reads FIELD=VALUE.
func (p *ruleParser) assignment() string {
	name, value, ok := strings.Cut(p.words[p.at], "=")
	fs := fieldsNamed(name)
	if len(fs) == 0 {
		return fmt.Sprintf("there is no field %q%s", name, meant(name, fieldNames(), ": use "+strings.Join(fieldNames(), ", ")))
	}
	f := &fs[0]
	a := Assignment{Field: name}
	digits := strings.TrimPrefix(value, "+")
	negative := strings.HasPrefix(value, "-")
	if negative {
		digits = value[1:]
	}
	a.Add = digits != value
	v, err := strconv.ParseUint(digits, 0, 64)
	if !ok || err != nil || v > f.max() {
		return fmt.Sprintf("%s has %s: give it a value of 0 to %s, or +N or -N to add to it", name, plural(f.bits, "bit"), limit(f.max()))
	}
	if a.Value = v; negative {
		a.Value = -v
	}
	p.rule.Set = a
	return ""
}

// limit writes large bounds in hexadecimal.
func limit(v uint64) string {
	if v > 255 {
		return fmt.Sprintf("%#x", v)
	}
	return fmt.Sprint(v)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// selectors of the grammar, each with what reads its value.
var selectors = []struct {
	name  string
	parse func(p *ruleParser, value string) string
}{
	{"dir", (*ruleParser).dir},
	{"op", (*ruleParser).ops},
	{"qp", func(p *ruleParser, v string) string {
		n := 0
		problem := p.number(&n, v, 1<<24-1, "it is the number of the destination queue pair, 1 to 0xffffff")
		p.rule.QP = bth.QPN(n)
		return problem
	}},
	{"psn", (*ruleParser).psn},
	{"try", func(p *ruleParser, v string) string {
		return p.number(&p.rule.Try, v, math.MaxInt32, "it counts the transmissions of a PSN from 1, such as try=2 for the first repetition")
	}},
	{"n", (*ruleParser).nth},
	{"every", func(p *ruleParser, v string) string {
		return p.number(&p.rule.Every, v, math.MaxInt32, "it is a number of packets from 1, such as every=10 for each tenth")
	}},
	{"max", func(p *ruleParser, v string) string {
		return p.number(&p.rule.Max, v, math.MaxInt32, "it is a number of times from 1")
	}},
	{"p", (*ruleParser).probability},
	{"seed", func(p *ruleParser, v string) (problem string) {
		var err error
		if p.rule.Seed, err = strconv.ParseUint(v, 0, 64); err != nil {
			problem = fmt.Sprintf("it is a number of up to 64 bits, not %q", v)
		}
		return problem
	}},
}

// selector returns the parser of a selector's value, nil if there is none.
func selector(name string) func(*ruleParser, string) string {
	for i := range selectors {
		if selectors[i].name == name {
			return selectors[i].parse
		}
	}
	return nil
}

func (p *ruleParser) selector() string {
	word := p.words[p.at]
	name, value, ok := strings.Cut(word, "=")
	if !ok {
		return "a selector has the form NAME=VALUE" + bareWord(word)
	}
	parse := selector(name)
	if parse == nil {
		return p.unknownSelector(name, word)
	}
	if p.given[name] {
		return fmt.Sprintf("%s is given twice; a rule has each selector once", name)
	}
	p.given[name] = true
	return parse(p, value)
}

// bareWord guesses which selector a word without one belongs to.
func bareWord(word string) string {
	if _, ok := opsNamed(word); ok {
		return fmt.Sprintf(": is op=%s meant? Several are joined by |, as in op=send_last|ack", word)
	}
	for i, n := range faultNames {
		if i > 0 && n == word {
			return fmt.Sprintf("; %s is an action: it needs a rule of its own, after a ;", word)
		}
	}
	switch {
	case word == "tx" || word == "rx" || word == "both":
		return fmt.Sprintf(": is dir=%s meant?", word)
	case strings.HasSuffix(word, "%"):
		return fmt.Sprintf(": is p=%s meant?", word)
	}
	if _, err := strconv.ParseUint(word, 10, 31); err == nil {
		return fmt.Sprintf(": is n=%s meant?", word)
	}
	return ", such as op=ack"
}

func (p *ruleParser) unknownSelector(name, word string) string {
	switch {
	case name == "opcode":
		return "opcode is a field of set; the selector is op, such as op=ack"
	case name == "destqp":
		return "destqp is a field of set; the selector is qp"
	case len(fieldsNamed(name)) > 0 && p.rule.Fault == FaultSet:
		return fmt.Sprintf("a rule sets one field: write \"set %s\" as a rule of its own, after a ;", word)
	case len(fieldsNamed(name)) > 0:
		return fmt.Sprintf("%s is a field, not a selector: it is changed by a rule of its own, \"set %s\"", name, word)
	}
	var names []string
	for i := range selectors {
		names = append(names, selectors[i].name)
	}
	for i, n := range faultNames {
		if i > 0 && n == name {
			return fmt.Sprintf("%s is an action: it needs a rule of its own, after a ;", name)
		}
	}
	return fmt.Sprintf("there is no selector %q%s", name, meant(name, names, ": use "+strings.Join(names, ", ")))
}

func (p *ruleParser) dir(value string) string {
	for d, n := range dirNames {
		if n == value {
			p.rule.Dir = Direction(d)
			return ""
		}
	}
	return fmt.Sprintf("it must be tx (sent, the default), rx (received) or both, not %q", value)
}

var dirNames = [...]string{DirTX: "tx", DirRX: "rx", DirBoth: "both"}

func (p *ruleParser) ops(value string) string {
	for _, name := range strings.Split(value, "|") {
		ops, ok := opsNamed(name)
		if o, err := strconv.ParseUint(name, 0, 8); !ok && err == nil {
			ops, ok = Opcodes(bth.Opcode(o)), true
		}
		if !ok {
			var names []string
			for i := range opNames {
				names = append(names, opNames[i].name)
			}
			return fmt.Sprintf("there is no opcode or class %q%s", name, meant(name, names, ": use names such as send_last, write, read_resp_middle, ack, request, or a number such as 0x11"))
		}
		p.rule.Ops = p.rule.Ops.union(ops)
	}
	return ""
}

func (p *ruleParser) psn(value string) string {
	r := PSNRange{Relative: strings.HasPrefix(value, "+")}
	first, last, isRange := strings.Cut(strings.TrimPrefix(value, "+"), "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 0, 24)
	b, err2 := strconv.ParseUint(strings.TrimPrefix(last, "+"), 0, 24)
	if err1 != nil || err2 != nil || b < a {
		return fmt.Sprintf("it must be +K, counted from the first PSN seen as +0, or a PSN of 24 bits, or a range of either such as +3-7, not %q", value)
	}
	r.First, r.Count = uint32(a), uint32(b-a+1)
	p.rule.PSN = r
	return ""
}

func (p *ruleParser) nth(value string) string {
	first, last, isRange := strings.Cut(value, "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 0, 31)
	b, err2 := strconv.ParseUint(last, 0, 31)
	if isRange && last == "" {
		b, err2 = math.MaxInt32, nil
	}
	if err1 != nil || err2 != nil || a == 0 || b < a {
		return fmt.Sprintf("it counts the chosen packets from 1: n=3, n=3-7 or n=3- (from the third on), not %q", value)
	}
	p.rule.Nth = Range{int(a), int(b)}
	if isRange && last == "" {
		p.rule.Nth.Last = 0
	}
	return ""
}

func (p *ruleParser) probability(value string) string {
	digits, percent := strings.CutSuffix(value, "%")
	if percent {
		digits += "e-2" // exact, as division by 100 is not
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(v >= 0 && v <= 1) {
		hint := ""
		if !percent && v > 1 && v <= 100 {
			hint = fmt.Sprintf("; is p=%s%% meant?", value)
		}
		return fmt.Sprintf("it must be 0 to 1, or 0%% to 100%%, not %q%s", value, hint)
	}
	switch v {
	case 0:
		v = -1 // never
	case 1:
		v = 0 // always
	}
	p.rule.P = v
	return ""
}

// number reads a number from 1 to limit.
func (p *ruleParser) number(to *int, value string, limit int, rule string) string {
	v, err := strconv.ParseUint(value, 0, 31)
	if err != nil || v < 1 || int(v) > limit {
		return fmt.Sprintf("%s, not %q", rule, value)
	}
	*to = int(v)
	return ""
}

// meant asks for the names that a wrong one resembles, or says otherwise: those
// one slip away, else those it is the start of, else those two slips away.
func meant(wrong string, names []string, otherwise string) string {
	if len(wrong) > 32 {
		return otherwise // no name is that long
	}
	var like [3][]string
	for _, n := range names {
		starts := len(wrong) > 1 && strings.HasPrefix(n, wrong)
		switch d := distance(wrong, n); {
		case d >= len(wrong) && !starts: // nothing of it is right
		case d == 1:
			like[0] = append(like[0], n)
		case starts:
			like[1] = append(like[1], n)
		case d == 2:
			like[2] = append(like[2], n)
		}
	}
	for _, l := range like {
		if len(l) > 0 {
			return ": is it " + strings.Join(l[:min(3, len(l))], " or ") + "?"
		}
	}
	return otherwise
}

// distance is the number of letters to insert, remove, replace or swap to turn
// a into b.
func distance(a, b string) int {
	var before, row []int
	next := make([]int, len(b)+1)
	for j := range next {
		next[j] = j
	}
	for i := range a {
		before, row, next = row, next, make([]int, len(b)+1)
		next[0] = i + 1
		for j := range b {
			d := min(row[j+1], next[j]) + 1
			if a[i] == b[j] {
				d = min(d, row[j])
			} else {
				d = min(d, row[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			next[j+1] = d
		}
	}
	return next[len(b)]
}

// String returns the rule in the grammar.
func (r FaultRule) String() string {
	var s strings.Builder
	s.WriteString(r.Fault.String())
	switch r.Fault {
	case FaultDup:
		if r.Copies > 1 || r.Copies < 0 {
			fmt.Fprintf(&s, "=%d", r.Copies)
		}
	case FaultDelay:
		fmt.Fprintf(&s, "=%v", r.Delay)
	case FaultReorder:
		fmt.Fprintf(&s, "=%d", r.Behind)
	case FaultSet:
		s.WriteString(" " + r.Set.String())
	}
	put := func(given bool, name, format string, v ...any) {
		if given {
			fmt.Fprintf(&s, " "+name+"="+format, v...)
		}
	}
	put(r.Dir != DirTX, "dir", "%v", r.Dir)
	put(r.Ops != OpSet{}, "op", "%v", r.Ops)
	put(r.QP != 0, "qp", "%#x", uint32(r.QP))
	put(r.PSN.Count != 0, "psn", "%v", r.PSN)
	put(r.Try != 0, "try", "%d", r.Try)
	put(r.Nth != Range{}, "n", "%v", r.Nth)
	put(r.Every != 0, "every", "%d", r.Every)
	put(r.Max != 0, "max", "%d", r.Max)
	put(r.P != 0, "p", "%s", strconv.FormatFloat(max(0, r.P), 'f', -1, 64))
	put(r.Seed != 0, "seed", "%d", r.Seed)
	return s.String()
}

// String returns tx, rx or both.
func (d Direction) String() string {
	if int(d) >= len(dirNames) {
		return fmt.Sprintf("dir%d", uint8(d))
	}
	return dirNames[d]
}

// String returns the range as in n=3-7.
func (r Range) String() string {
	switch r.Last {
	case 0:
		return fmt.Sprintf("%d-", r.First)
	case r.First:
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// String returns the range as in psn=+3-7.
func (r PSNRange) String() string {
	s := fmt.Sprint(r.First)
	if r.Relative {
		s = "+" + s
	}
	if r.Count > 1 {
		s += fmt.Sprintf("-%d", r.First+r.Count-1)
	}
	return s
}

// String returns FIELD=VALUE.
func (a Assignment) String() string {
	switch v := int64(a.Value); {
	case a.Add && v < 0:
		return fmt.Sprintf("%s=%d", a.Field, v)
	case a.Add:
		return fmt.Sprintf("%s=+%d", a.Field, v)
	}
	return a.Field + "=" + limit(a.Value)
}

// String names the set with as few names as it takes.
func (s OpSet) String() string {
	var parts []string
	var done OpSet
	for i := range opNames {
		if n := &opNames[i]; n.ops.within(s) && !n.ops.within(done) {
			parts = append(parts, n.name)
			done = done.union(n.ops)
		}
	}
	for o := range 256 {
		if op := bth.Opcode(o); s.Has(op) && !done.Has(op) {
			parts = append(parts, fmt.Sprintf("%#02x", o))
		}
	}
	return strings.Join(parts, "|")
}
