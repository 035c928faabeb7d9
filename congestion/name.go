package congestion

import (
	"fmt"
	"strings"
)

// Options are what the controllers need to know of the host.
type Options struct {
	// Buffer is the size in bytes of the peer's socket buffer, as the kernel
	// accounts it: windows are at most what it holds. 0 if it is not known to
	// be a limit. Our own is a good guess.
	Buffer int
	// Window, if not 0, takes the place of what follows from Buffer: the largest
	// window in packets.
	Window int
	// LineRate is the rate of the local port, where a paced pair starts; 0
	// means DefaultLineRate.
	LineRate BitRate
}

// DefaultLineRate is assumed of a port whose rate is not known.
const DefaultLineRate = 25 * Gbps

// MinWindow and MaxWindow bound the windows that follow from a buffer, in
// packets.
const (
	MinWindow = 16
	MaxWindow = 256
)

// window returns how many packets with mtu bytes of payload may be in flight. A
// kernel accounts for about twice the payload of a datagram and 1 KiB more.
func (o Options) window(mtu int) int {
	switch {
	case o.Window > 0:
		return o.Window
	case o.Buffer == 0:
		return MaxWindow
	}
	return min(MaxWindow, max(MinWindow, o.Buffer/(2*mtu+1024)))
}

// DefaultName is the controller that is used if none is named.
const DefaultName = "delay"

// named are the controllers in the order of Names.
var named = []struct {
	name, what string
	make       func(o Options) (Factory, error)
}{
	{"none", "a fixed window, as large as the peer's buffer", func(o Options) (Factory, error) {
		return func(mtu int) Controller { return Fixed(o.window(mtu)) }, nil
	}},
	{"aimd", "a window that loss and CNPs halve", func(o Options) (Factory, error) {
		return func(mtu int) Controller { return NewAIMD(o.window(mtu)) }, nil
	}},
	{"delay", "a window that loss, CNPs and rising round trip times shrink", func(o Options) (Factory, error) {
		return func(mtu int) Controller { return NewDelay(DelayParams{Limit: o.window(mtu)}) }, nil
	}},
	{"dcqcn", "DCQCN with the parameters of mlx5 adapters: a rate that CNPs cut", func(o Options) (Factory, error) {
		return Mlx5DCQCN().Factory(o)
	}},
	{"dcqcn-paper", "DCQCN with the published parameters", func(o Options) (Factory, error) {
		return PaperDCQCN().Factory(o)
	}},
}

// Names returns the names that ByName takes, and what each stands for.
func Names() (names, what []string) {
	for _, n := range named {
		names, what = append(names, n.name), append(what, n.what)
	}
	return names, what
}

// ByName returns the controller with a name; "" is the default.
func ByName(name string, o Options) (Factory, error) {
	if name == "" {
		name = DefaultName
	}
	for _, n := range named {
		if n.name == name {
			return n.make(o)
		}
	}
	names, _ := Names()
	return nil, fmt.Errorf("congestion: no controller is called %q; use one of %s", name, strings.Join(names, ", "))
}

// NotificationFor returns the notification point that goes with the controller of
// that name at the other end: DCQCN as adapters do it counts on CNPs that come
// often, each of which cuts little.
func NotificationFor(name string) NotificationPoint {
	if name == "dcqcn" {
		return Mlx5NP
	}
	return NotificationPoint{}
}
