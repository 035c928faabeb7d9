package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// switchEnv makes a process the switch; its value says how many ports there are and
// how long their packets may be.
const switchEnv = "GOROCE_IMPAIR_SWITCH"

// portName is the interface of a port, in the switch's namespace.
func portName(i int) string { return fmt.Sprintf("port%d", i) }

// round is how often the switch looks while there is something to do.
const round = 100 * time.Microsecond

const (
	batch     = 64
	socketBuf = 16 << 20
)

// maybeSwitch turns a process that was started as the switch into it, and does not
// return then.
func maybeSwitch() {
	v := os.Getenv(switchEnv)
	if v == "" {
		return
	}
	var ports, mtu int
	if _, err := fmt.Sscan(v, &ports, &mtu); err != nil {
		fmt.Fprintf(os.Stderr, "impair: %s=%q: %v\n", switchEnv, v, err)
		os.Exit(2)
	}
	if err := runSwitch(ports, mtu); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// switcher is the process: the core with a socket for each port.
type switcher struct {
	core     *core
	mtu      int
	rx, tx   []*burst // by port
	fds      []unix.PollFd
	line     []byte // of what was read from the standard input
	realTime bool
	stat     answer
	late     time.Duration // in all
	sent     uint64
}

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// burst is what one recvmmsg or sendmmsg moves.
type burst struct {
	fd     int
	msgs   [batch]mmsghdr
	iovs   [batch]unix.Iovec
	frames [batch]*frame
}

func runSwitch(ports, mtu int) error {
	runtime.LockOSThread()
	debug.SetGCPercent(400)
	s := &switcher{core: newCore(ports, mtu+ethLen+64), mtu: mtu}
	if err := s.open(ports); err != nil {
		return err
	}
	s.realTime = realTime() == nil
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	if err := unix.SetNonblock(0, true); err != nil {
		return fmt.Errorf("impair: standard input: %w", err)
	}
	s.reset(&reset{})
	for {
		more, err := s.commands()
		if err != nil || !more {
			return err
		}
		now := clock()
		s.receive(now)
		s.core.advance(now)
		s.transmit(now)
		s.stat.Rounds++
		s.rest(now)
	}
}

// open opens a packet socket on each port.
func (s *switcher) open(ports int) error {
	s.fds = append(s.fds, unix.PollFd{Fd: 0, Events: unix.POLLIN})
	for i := range ports {
		fd, err := openPort(portName(i))
		if err != nil {
			return fmt.Errorf("impair: cannot open %s of the switch: %w", portName(i), err)
		}
		rx, tx := &burst{fd: fd}, &burst{fd: fd}
		rx.init()
		tx.init()
		s.rx, s.tx = append(s.rx, rx), append(s.tx, tx)
		s.fds = append(s.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return nil
}

func openPort(name string) (int, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	all := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuf},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuf},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		{unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return -1, os.NewSyscallError(fmt.Sprintf("setsockopt %d", o.name), err)
		}
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: ifi.Index})
}

func (b *burst) init() {
	for i := range b.msgs {
		h := &b.msgs[i].hdr
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
	}
}

// realTime lets nothing but the kernel go before this thread: a switch made of
// hardware does not wait for a processor either. It uses little time.
func realTime() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 10}, 0)
}

// clock reads CLOCK_MONOTONIC, which all processes share.
func clock() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// receive takes what has come to the ports.
func (s *switcher) receive(now time.Duration) {
	for i, b := range s.rx {
		if s.fds[1+i].Revents == 0 {
			continue
		}
		for {
			n := s.receiveFrom(b)
			for k, f := range b.frames[:n] {
				b.frames[k] = nil
				if len(f.data) > s.mtu+ethLen {
					s.stat.TooLong++
					s.core.give(f)
					continue
				}
				s.core.arrive(now, i, f)
			}
			if n < batch {
				break
			}
		}
	}
}

func (s *switcher) receiveFrom(b *burst) int {
	slots := 0
	for ; slots < batch; slots++ {
		f := b.frames[slots]
		if f == nil {
			if f = s.core.take(); f == nil {
				break
			}
			b.frames[slots] = f
			b.iovs[slots].Base = &f.buf[0]
			b.iovs[slots].SetLen(len(f.buf))
		}
		b.msgs[slots].hdr.Flags = 0
	}
	if slots == 0 {
		return 0
	}
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(b.fd), uintptr(unsafe.Pointer(&b.msgs)), uintptr(slots), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	if e != 0 {
		return 0
	}
	for k, f := range b.frames[:n] {
		f.data = f.buf[:min(len(f.buf), int(b.msgs[k].n))]
	}
	return int(n)
}

// transmit sends what has reached the ends of the wires.
func (s *switcher) transmit(now time.Duration) {
	for i, p := range s.core.ports {
		b := s.tx[i]
		for {
			n := 0
			for ; n < batch; n++ {
				f := p.wire.first()
				if f == nil || f.at > now {
					break
				}
				p.wire.pop()
				s.late += now - f.at
				s.stat.LateMax = max(s.stat.LateMax, now-f.at)
				s.sent++
				b.frames[n] = f
				b.iovs[n].Base = &f.data[0]
				b.iovs[n].SetLen(len(f.data))
			}
			if n == 0 {
				break
			}
			s.send(b, n)
			for k := range n {
				s.core.give(b.frames[k])
			}
		}
	}
}

// send sends n frames. One that the kernel refuses is counted and lost.
func (s *switcher) send(b *burst, n int) {
	for done := 0; done < n; {
		k, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(b.fd), uintptr(unsafe.Pointer(&b.msgs[done])), uintptr(n-done), unix.MSG_DONTWAIT, 0, 0)
		if e != 0 || k == 0 {
			s.stat.SendErrors++
			k = 1
		}
		done += int(k)
	}
}

// rest sleeps until the next round, or while there is nothing to do for longer, and
// learns which sockets have something.
func (s *switcher) rest(now time.Duration) {
	if next := s.core.next(); next > now+round {
		timeout := unix.NsecToTimespec(int64(min(time.Second, next-now)))
		_, _ = unix.Ppoll(s.fds, &timeout, nil)
	}
	// What comes first has company by the end of the round.
	until := unix.NsecToTimespec(int64(round))
	_ = unix.Nanosleep(&until, nil)
	_, _ = unix.Ppoll(s.fds, &unix.Timespec{}, nil)
}

// commands obeys what the parent says; false at its end.
func (s *switcher) commands() (more bool, err error) {
	if s.fds[0].Revents == 0 {
		return true, nil
	}
	s.fds[0].Revents = 0
	var buf [4096]byte
	n, err := unix.Read(0, buf[:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return true, nil
	}
	if err != nil || n == 0 {
		return false, nil
	}
	s.line = append(s.line, buf[:n]...)
	if s.line[len(s.line)-1] != '\n' {
		return true, nil
	}
	var c command
	err = json.Unmarshal(s.line, &c)
	s.line = s.line[:0]
	if err != nil {
		return false, fmt.Errorf("impair: bad command: %w", err)
	}
	switch {
	case c.Reset != nil:
		s.reset(c.Reset)
	case c.Mark:
		s.mark()
	}
	return true, json.NewEncoder(os.Stdout).Encode(s.answer())
}

func (s *switcher) reset(r *reset) {
	now := clock()
	s.core.advance(now)
	s.core.reset(now, r.Seed, r.Ports)
	_ = s.overrun() // reading clears
	s.stat, s.late, s.sent = answer{Start: now, Mark: now}, 0, 0
}

func (s *switcher) mark() {
	s.stat.Mark = clock()
	s.core.advance(s.stat.Mark)
	s.core.mark()
}

// answer sums up.
func (s *switcher) answer() *answer {
	now := clock()
	s.core.advance(now)
	a := &s.stat
	a.Now, a.NoFrame, a.RealTime = now, s.core.NoFrame, s.realTime
	a.Overrun += s.overrun()
	if s.sent > 0 {
		a.LateMean = s.late / time.Duration(s.sent)
	}
	a.CPU = cpuTime()
	a.Ports = a.Ports[:0]
	for _, p := range s.core.ports {
		a.Ports = append(a.Ports, PortAnswer{p.Counts, p.record.queue(), p.record.rows})
	}
	return a
}

// overrun returns how many frames the sockets had no room for since the last call.
func (s *switcher) overrun() (n uint64) {
	for _, b := range s.rx {
		if st, err := unix.GetsockoptTpacketStats(b.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n += uint64(st.Drops)
		}
	}
	return n
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
