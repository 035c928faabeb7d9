package qp

// queue is a ring of work queue elements, addressed by counters that never wrap
// in practice (64 bits). It grows by doubling up to its capacity.
type queue[T any] struct {
	slots      []T
	head, tail uint64
	capacity   int
}

const firstSlots = 8

// Head returns the counter of the oldest element, Tail that of the next post.
func (q *queue[T]) Head() uint64 { return q.head }

// Tail returns the counter that the next post will have.
func (q *queue[T]) Tail() uint64 { return q.tail }

// Len returns how many elements wait.
func (q *queue[T]) Len() int { return int(q.tail - q.head) }

// Full reports whether no element can be added.
func (q *queue[T]) Full() bool { return q.Len() >= q.capacity }

// Capacity returns how many elements the queue takes.
func (q *queue[T]) Capacity() int { return q.capacity }

// At returns the element with counter i, Head() ≤ i < Tail().
func (q *queue[T]) At(i uint64) *T { return &q.slots[i&uint64(len(q.slots)-1)] }

// Retire removes the oldest element.
func (q *queue[T]) Retire() { q.head++ }

// push adds a slot, whose old contents are kept for reuse of their memory.
func (q *queue[T]) push() *T {
	if q.Len() == len(q.slots) {
		q.grow()
	}
	s := q.At(q.tail)
	q.tail++
	return s
}

func (q *queue[T]) grow() {
	bigger := make([]T, max(firstSlots, 2*len(q.slots)))
	for i := q.head; i != q.tail; i++ {
		bigger[i&uint64(len(bigger)-1)] = *q.At(i)
	}
	q.slots = bigger
}

// clear drops all elements.
func (q *queue[T]) clear() { q.head = q.tail }

// SendQueue holds send work requests, oldest first.
type SendQueue struct{ queue[SendWQE] }

// RecvQueue holds receive work requests, oldest first.
type RecvQueue struct{ queue[RecvWQE] }
