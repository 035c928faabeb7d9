package transport

// Recovery says how losses are repaired. Nothing that it changes needs the
// peer's consent, except where Selective says so.
type Recovery uint8

const (
	// Selective does everything: requests that arrive early are kept until the
	// gap before them is filled, READ data as well, so that only what is missing
	// is asked for; silences are taken for losses; and two pairs of this package
	// that face each other agree to acknowledge selectively: see offer.
	Selective Recovery = iota
	// Alone is the same without the agreement.
	Alone
	// GoBackN does what the standard describes and no more: everything from a
	// loss on is sent again.
	GoBackN
)

var recoveryNames = [...]string{Selective: "selective", Alone: "alone", GoBackN: "go-back-n"}

// String returns the name in lower case.
func (r Recovery) String() string {
	if int(r) < len(recoveryNames) {
		return recoveryNames[r]
	}
	return "unknown"
}
