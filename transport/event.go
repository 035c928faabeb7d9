package transport

import (
	"fmt"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/qp"
)

// EventType is the kind of an asynchronous event; values as in the verbs API.
type EventType uint8

// The events.
const (
	EventCQErr       EventType = 0
	EventQPFatal     EventType = 1
	EventQPReqErr    EventType = 2
	EventQPAccessErr EventType = 3
	EventCommEst     EventType = 4
	EventSQDrained   EventType = 5

	EventPortActive EventType = 9
	EventPortErr    EventType = 10

	EventSRQLimitReached EventType = 15
	EventLastWQEReached  EventType = 16

	EventGIDChange EventType = 18
)

var eventNames = map[EventType]string{
	EventCQErr: "CQ_ERR", EventQPFatal: "QP_FATAL", EventQPReqErr: "QP_REQ_ERR", EventQPAccessErr: "QP_ACCESS_ERR",
	EventCommEst: "COMM_EST", EventSQDrained: "SQ_DRAINED",
	EventPortActive: "PORT_ACTIVE", EventPortErr: "PORT_ERR",
	EventSRQLimitReached: "SRQ_LIMIT_REACHED", EventLastWQEReached: "LAST_WQE_REACHED", EventGIDChange: "GID_CHANGE",
}

// String returns the verbs name of the event.
func (t EventType) String() string {
	if n, ok := eventNames[t]; ok {
		return n
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// Event is an asynchronous event (IBA 11.6.3).
type Event struct {
	Type EventType
	QPN  bth.QPN        // of the queue pair concerned
	CQ   *cq.Queue      // with EventCQErr: compare with CQ.Queue of package verbs
	SRQ  *qp.SharedRecv // with EventSRQLimitReached: compare with SRQ.Queue
	// Reason says in words what happened to the port or the address, with their
	// events and with the EventQPFatal that follows from them.
	Reason string
}
