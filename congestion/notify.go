package congestion

import "time"

// NotificationPoint says how a receiver answers the congestion mark (CE): with
// a CNP to the sender's queue pair, but not more often than the gap allows. The
// zero value is the published DCQCN: 50 µs per queue pair.
type NotificationPoint struct {
	// MinTimeBetweenCNPs is the gap between two CNPs of one scope, mlx5's
	// np_min_time_between_cnps. 0 means 50 µs, a negative value no gap: one
	// CNP for each marked packet.
	MinTimeBetweenCNPs time.Duration
	// Scope is what the gap is kept for.
	Scope Scope
	// CNPDSCP is the DSCP of CNPs, mlx5's np_cnp_dscp, 0 to 63; 0 means 48.
	// CNPs leave as ECT(0), like data.
	CNPDSCP uint8
}

// Scope is what shares one gap between CNPs; adapters differ.
type Scope uint8

// The scopes.
const (
	PerQP          Scope = iota // each queue pair has its own
	PerDestination              // all queue pairs that face one address share it
	PerPort                     // all queue pairs of the device share it
)

// Mlx5NP is a notification point with the short gap of recent adapters, 4 µs.
var Mlx5NP = NotificationPoint{MinTimeBetweenCNPs: 4 * time.Microsecond}

// Gap returns the effective gap.
func (n *NotificationPoint) Gap() time.Duration {
	if n.MinTimeBetweenCNPs == 0 {
		return 50 * time.Microsecond
	}
	return max(0, n.MinTimeBetweenCNPs)
}

// TrafficClass returns DSCP and ECN bits of CNPs.
func (n *NotificationPoint) TrafficClass() uint8 {
	dscp := n.CNPDSCP & 63
	if dscp == 0 {
		dscp = 48
	}
	return dscp<<2 | ECT0
}

// The ECN bits of a traffic class.
const (
	ECNMask = 3
	ECT0    = 2 // may be marked
	CE      = 3 // congestion experienced: the mark
)
