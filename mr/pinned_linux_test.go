package mr_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goroce/goroce/mr"
)

func TestAllocPinnedIsZeroedAlignedAndUsable(t *testing.T) {
	p, err := mr.AllocPinned(5000)
	var limit *mr.MemlockError
	if errors.As(err, &limit) {
		t.Skipf("needs 5000 bytes of locked memory: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := p.Bytes()
	if len(b) != 5000 || uintptr(unsafe.Pointer(&b[0]))%4096 != 0 {
		t.Fatalf("%d bytes at %p", len(b), &b[0])
	}
	for i := range b {
		if b[i] != 0 {
			t.Fatal("not zeroed")
		}
		b[i] = byte(i)
	}
	d := mr.NewTable(1, pcg(1)).NewDomain()
	r, err := d.Register(b, mr.LocalWrite)
	if err != nil || r.Addr() != uint64(uintptr(unsafe.Pointer(&b[0]))) {
		t.Fatalf("region %v: %v", r, err)
	}
	if err := d.Deregister(r); err != nil {
		t.Fatal(err)
	}
	if err := p.Free(); err != nil || p.Bytes() != nil {
		t.Fatalf("free: %v", err)
	}
	if err := p.Free(); err != nil {
		t.Fatalf("freed twice: %v", err)
	}
}

func TestAllocPinnedRefusesNoSize(t *testing.T) {
	for _, n := range []int{0, -1} {
		if p, err := mr.AllocPinned(n); err == nil || p != nil {
			t.Errorf("%d bytes: %v, %v", n, p, err)
		}
	}
}

// smallLimit is the RLIMIT_MEMLOCK of the child process below.
const smallLimit = 64 << 10

// The error of a limit that is too small says which, how much, and the cure. A
// child process runs under such a limit, without the right to ignore it.
func TestAllocPinnedReportsTheLimit(t *testing.T) {
	if os.Getenv("MR_TEST_SMALL_LIMIT") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAllocPinnedReportsTheLimit$", "-test.v")
		cmd.Env = append(os.Environ(), "MR_TEST_SMALL_LIMIT=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if i := strings.Index(string(out), "--- SKIP"); i >= 0 {
			t.Skipf("in the child: %s", out[i:])
		}
		return
	}
	runtime.LockOSThread() // capabilities belong to a thread
	dropIPCLock(t)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: smallLimit, Max: smallLimit}); err != nil {
		t.Skipf("cannot lower RLIMIT_MEMLOCK: %v", err)
	}
	if n, ok := mr.MemlockLimit(); !ok || n != smallLimit {
		t.Fatalf("limit %d, %v", n, ok)
	}
	p, err := mr.AllocPinned(1 << 20)
	if err == nil {
		_ = p.Free()
		t.Skip("this kernel does not hold processes to RLIMIT_MEMLOCK")
	}
	var limit *mr.MemlockError
	if !errors.As(err, &limit) || limit.Need != 1<<20 || limit.Limit != smallLimit {
		t.Fatalf("error %#v", err)
	}
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("kernel's error %v", limit.Err)
	}
	for _, want := range []string{"1048576", "65536", "RLIMIT_MEMLOCK", "ulimit -l", "IPC_LOCK"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if p, err = mr.AllocPinned(4096); err != nil {
		t.Fatalf("within the limit: %v", err)
	}
	_ = p.Free()
}

// dropIPCLock takes CAP_IPC_LOCK, which lifts the limit, from this thread.
func dropIPCLock(t *testing.T) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&h, &data[0]); err != nil {
		t.Skipf("cannot read capabilities: %v", err)
	}
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	data[0].Permitted &^= 1 << unix.CAP_IPC_LOCK
	data[0].Inheritable &^= 1 << unix.CAP_IPC_LOCK
	if err := unix.Capset(&h, &data[0]); err != nil {
		t.Skipf("cannot drop CAP_IPC_LOCK: %v", err)
	}
}
