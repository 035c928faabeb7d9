package qp

import "fmt"

// rule lists the attributes of one transition beside STATE itself.
type rule struct{ required, optional AttrMask }

type transition struct{ from, to State }

// The attribute groups of the transition table.
const (
	initAttrs = AttrPKeyIndex | AttrPort | AttrAccess
	udInit    = AttrPKeyIndex | AttrPort | AttrQKey
	path      = AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	rtrOpt    = AttrAltPath | AttrAccess | AttrPKeyIndex
	ucRTS     = AttrCurState | AttrAltPath | AttrAccess | AttrPathMigState
	rcRTS     = ucRTS | AttrMinRNRTimer
	udRTS     = AttrCurState | AttrQKey
	retries   = AttrTimeout | AttrRetryCount | AttrRNRRetry
)

// common are the transitions that every type has in the same form.
var common = map[transition]rule{
	{RTS, SQD}: {0, AttrEnSQDNotify},
}

// tables give the transitions of each type (IBA 11.2.5.2, table 91).
var tables = map[Type]map[transition]rule{
	RC: {
		{Reset, Init}: {initAttrs, 0},
		{Init, Init}:  {0, initAttrs},
		{Init, RTR}:   {path | AttrMaxDestRDAtomic | AttrMinRNRTimer, rtrOpt},
		{RTR, RTS}:    {retries | AttrSQPSN | AttrMaxRDAtomic, rcRTS},
		{RTS, RTS}:    {0, rcRTS},
		{SQD, RTS}:    {0, rcRTS},
		{SQD, SQD}: {0, AttrPort | AttrAV | retries | AttrMaxRDAtomic | AttrMaxDestRDAtomic | AttrAltPath |
			AttrAccess | AttrPKeyIndex | AttrMinRNRTimer | AttrPathMigState},
		{SQE, RTS}: {0, 0}, // legal, but RC never enters SQE
	},
	UC: {
		{Reset, Init}: {initAttrs, 0},
		{Init, Init}:  {0, initAttrs},
		{Init, RTR}:   {path, rtrOpt},
		{RTR, RTS}:    {AttrSQPSN, ucRTS},
		{RTS, RTS}:    {0, ucRTS},
		{SQD, RTS}:    {0, ucRTS},
		{SQD, SQD}:    {0, AttrAV | AttrAltPath | AttrAccess | AttrPKeyIndex | AttrPathMigState},
		{SQE, RTS}:    {0, AttrCurState | AttrAccess},
	},
	UD: {
		{Reset, Init}: {udInit, 0},
		{Init, Init}:  {0, udInit},
		{Init, RTR}:   {0, AttrPKeyIndex | AttrQKey},
		{RTR, RTS}:    {AttrSQPSN, udRTS},
		{RTS, RTS}:    {0, udRTS},
		{SQD, RTS}:    {0, udRTS},
		{SQD, SQD}:    {0, AttrPKeyIndex | AttrQKey},
		{SQE, RTS}:    {0, udRTS},
	},
}

// lookup returns the rule of a transition.
func lookup(t Type, from, to State) (rule, bool) {
	switch {
	case to == Reset:
		return rule{}, true
	case to == Err:
		return rule{}, from != Reset
	}
	if r, ok := common[transition{from, to}]; ok {
		return r, true
	}
	if t == GSI {
		t = UD
	}
	r, ok := tables[t][transition{from, to}]
	return r, ok
}

// Check tests whether Modify(a, mask) is legal now, without applying it.
func (p *Pair) Check(a *Attr, mask AttrMask) error {
	from, to := p.Attr.State, p.Attr.State
	if mask&AttrState != 0 {
		to = a.State
	}
	fail := &AttrError{Type: p.Type, From: from, To: to}
	if mask&AttrCurState != 0 && a.CurState != from {
		fail.Value = fmt.Sprintf("CUR_STATE is %v but the pair is in %v", a.CurState, from)
		return fail
	}
	r, ok := lookup(p.Type, from, to)
	if !ok {
		return fail
	}
	given := mask &^ AttrState
	fail.Missing = r.required &^ given
	fail.Extra = given &^ (r.required | r.optional)
	if fail.Missing|fail.Extra != 0 {
		return fail
	}
	if fail.Value = badValue(a, mask); fail.Value != "" {
		return fail
	}
	return nil
}

// badValue returns what is wrong with the values of the attributes in mask.
func badValue(a *Attr, mask AttrMask) string {
	has := func(m AttrMask) bool { return mask&m != 0 }
	switch {
	case has(AttrAltPath | AttrPathMigState):
		return "automatic path migration (ALT_PATH, PATH_MIG_STATE) is not supported"
	case has(AttrPort) && a.Port != 1:
		return fmt.Sprintf("PORT is %d; the device has port 1 only", a.Port)
	case has(AttrPKeyIndex) && a.PKeyIndex != 0:
		return fmt.Sprintf("PKEY_INDEX is %d; the table has index 0 only", a.PKeyIndex)
	case has(AttrPathMTU) && !ValidMTU(a.PathMTU):
		return fmt.Sprintf("PATH_MTU is %d; it must be 256, 512, 1024, 2048 or 4096 bytes", a.PathMTU)
	case has(AttrAV) && !a.AV.DGID.IsValid():
		return "AV has no DGID; it must be the peer's IP address"
	case has(AttrDestQPN) && a.DestQPN>>24 != 0:
		return fmt.Sprintf("DEST_QPN is 0x%x; it has 24 bits", uint32(a.DestQPN))
	case has(AttrTimeout) && a.Timeout > 31:
		return fmt.Sprintf("TIMEOUT is %d; it must be 0…31", a.Timeout)
	case has(AttrRetryCount) && a.RetryCount > 7:
		return fmt.Sprintf("RETRY_CNT is %d; it must be 0…7", a.RetryCount)
	case has(AttrRNRRetry) && a.RNRRetry > 7:
		return fmt.Sprintf("RNR_RETRY is %d; it must be 0…7", a.RNRRetry)
	case has(AttrMinRNRTimer) && a.MinRNRTimer > 31:
		return fmt.Sprintf("MIN_RNR_TIMER is %d; it must be 0…31", a.MinRNRTimer)
	case has(AttrMaxRDAtomic) && a.MaxRDAtomic > MaxRDAtomicLimit:
		return fmt.Sprintf("MAX_QP_RD_ATOMIC is %d; the device's limit is %d", a.MaxRDAtomic, MaxRDAtomicLimit)
	case has(AttrMaxDestRDAtomic) && a.MaxDestRDAtomic > MaxRDAtomicLimit:
		return fmt.Sprintf("MAX_DEST_RD_ATOMIC is %d; the device's limit is %d", a.MaxDestRDAtomic, MaxRDAtomicLimit)
	}
	return ""
}

// Modify checks the call against the transition table and applies it whole or
// not at all. It changes attributes only; what a change of state does to the
// queues is the engine's work.
func (p *Pair) Modify(a *Attr, mask AttrMask) error {
	if err := p.Check(a, mask); err != nil {
		return err
	}
	p.apply(a, mask)
	return nil
}

func (p *Pair) apply(a *Attr, mask AttrMask) {
	t := &p.Attr
	set := func(m AttrMask, f func()) {
		if mask&m != 0 {
			f()
		}
	}
	set(AttrState, func() {
		if a.State == Reset {
			*t = Attr{}
		}
		t.State = a.State
	})
	set(AttrEnSQDNotify, func() { t.EnSQDNotify = a.EnSQDNotify })
	set(AttrAccess, func() { t.Access = a.Access })
	set(AttrPKeyIndex, func() { t.PKeyIndex = a.PKeyIndex })
	set(AttrPort, func() { t.Port = a.Port })
	set(AttrQKey, func() { t.QKey = a.QKey })
	set(AttrAV, func() { t.AV = a.AV })
	set(AttrPathMTU, func() { t.PathMTU = a.PathMTU })
	set(AttrDestQPN, func() { t.DestQPN = a.DestQPN })
	set(AttrRQPSN, func() { t.RQPSN = a.RQPSN })
	set(AttrSQPSN, func() { t.SQPSN = a.SQPSN })
	set(AttrMaxRDAtomic, func() { t.MaxRDAtomic = a.MaxRDAtomic })
	set(AttrMaxDestRDAtomic, func() { t.MaxDestRDAtomic = a.MaxDestRDAtomic })
	set(AttrMinRNRTimer, func() { t.MinRNRTimer = a.MinRNRTimer })
	set(AttrTimeout, func() { t.Timeout = a.Timeout })
	set(AttrRetryCount, func() { t.RetryCount = a.RetryCount })
	set(AttrRNRRetry, func() { t.RNRRetry = a.RNRRetry })
}
