package qp

import (
	"errors"
	"fmt"
	"strings"
)

// What a post can be refused for. What happens to an accepted work request is
// a status in its completion instead.
var (
	ErrState     = errors.New("qp: the queue pair's state does not allow this: sends are posted in RTS, receives from INIT on; Connect or Modify first")
	ErrQueueFull = errors.New("qp: the work queue is full; poll the completion queue, and signal at least one request per queue length")
	ErrSGE       = errors.New("qp: more scatter/gather entries than the queue pair was created with")
	ErrInline    = errors.New("qp: inline data exceeds the queue pair's MaxInline or its operation")
	ErrOp        = errors.New("qp: the queue pair's type does not have this operation")
	ErrLength    = errors.New("qp: message length not allowed for the operation")
	ErrOperand   = errors.New("qp: BindMW needs Bind with a window, RegMR needs Reg with a fast registration")
	ErrSRQ       = errors.New("qp: the queue pair receives from a shared receive queue; post there")
	ErrLimit     = errors.New("qp: the limit of a shared receive queue must be 0 to its capacity, and the capacity at least what is posted")
	ErrAH        = errors.New("qp: a datagram needs an address handle of the device's address family")
)

// AttrError reports a refused Modify. Nothing of the call was applied.
type AttrError struct {
	Type     Type
	From, To State
	// Missing and Extra are the required attributes that were not given and the
	// ones given that the transition does not take.
	Missing, Extra AttrMask
	// Value says which attribute has a value out of range, and the range.
	Value string
}

// Error implements error.
func (e *AttrError) Error() string {
	var why []string
	if e.Missing != 0 {
		why = append(why, "it needs "+e.Missing.String())
	}
	if e.Extra != 0 {
		why = append(why, "it does not take "+e.Extra.String())
	}
	if e.Value != "" {
		why = append(why, e.Value)
	}
	if why == nil {
		why = []string{"the standard has no such transition"}
	}
	return fmt.Sprintf("qp: modify %v from %v to %v refused: %s", e.Type, e.From, e.To, strings.Join(why, "; "))
}

// Is makes every AttrError match ErrAttr.
func (e *AttrError) Is(target error) bool { return target == ErrAttr }

// ErrAttr matches every refused Modify.
var ErrAttr = errors.New("qp: attribute or transition refused")
