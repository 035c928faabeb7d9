package mr_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/goroce/goroce/mr"
)

// A range is inside if all of it is; nothing wraps.
func TestRemoteBoundsAreExact(t *testing.T) {
	d := mr.NewTable(10, pcg(1)).NewDomain()
	backing := make([]byte, 300)
	for _, access := range []mr.Access{mr.RemoteRead, mr.RemoteRead | mr.ZeroBased} {
		r, err := d.Register(backing[100:200:200], access)
		if err != nil {
			t.Fatal(err)
		}
		if zero := access&mr.ZeroBased != 0; zero != (r.Addr() == 0) || r.Len() != 100 {
			t.Fatalf("address %x", r.Addr())
		}
		base := r.Addr()
		for _, row := range []struct {
			va, n uint64
			ok    bool
		}{
			{base, 100, true}, {base, 101, false}, {base, 1, true}, {base + 99, 1, true}, {base + 99, 2, false},
			{base + 100, 1, false}, {base - 1, 1, false}, {base - 1, 2, false}, {base - 1, 101, false},
			{base + 50, 50, true}, {base + 50, 51, false}, {base + 50, 1 << 31, false},
			{base + 50, 1<<64 - 50, false}, {base + 50, ^uint64(0), false}, {base, ^uint64(0), false}, {base, 1 << 63, false},
			{base + 1<<63, 1, false}, {base - 1<<32, 1 << 33, false},
			{base, 0, true}, {base + 100, 0, true}, {base + 101, 0, false}, {base - 1, 0, false},
		} {
			b, f := d.Remote(r.Key(), mr.RemoteRead, row.va, row.n)
			if row.ok != (f == 0) || !row.ok && f != mr.FaultRange {
				t.Errorf("[base%+d, %d): %v", int64(row.va-base), row.n, f)
			}
			if !row.ok {
				continue
			}
			if uint64(len(b)) != row.n || cap(b) != len(b) {
				t.Errorf("[base%+d, %d): %d bytes of %d", int64(row.va-base), row.n, len(b), cap(b))
			}
			if row.n > 0 && &b[0] != &r.Bytes()[row.va-base] {
				t.Errorf("[base%+d, %d): wrong bytes", int64(row.va-base), row.n)
			}
		}
	}
}

// An empty region reaches nothing, not even at its own address.
func TestRemoteEmptyRegionReachesNothing(t *testing.T) {
	d := mr.NewTable(10, pcg(1)).NewDomain()
	for _, mem := range [][]byte{nil, {}} {
		r, err := d.Register(mem, mr.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		if _, f := d.Remote(r.Key(), mr.RemoteRead, r.Addr(), 1); f != mr.FaultRange {
			t.Errorf("one byte: %v", f)
		}
		if b, f := d.Remote(r.Key(), mr.RemoteRead, r.Addr(), 0); f != 0 || len(b) != 0 {
			t.Errorf("no byte: %v", f)
		}
	}
}

// An entry without length needs no key; all others are checked.
func TestCheckLooksAtEveryEntry(t *testing.T) {
	table := mr.NewTable(10, pcg(1))
	d := table.NewDomain()
	rw, _ := d.Register(make([]byte, 64), mr.LocalWrite)
	ro, _ := d.Register(make([]byte, 64), 0)
	foreign, _ := table.NewDomain().Register(make([]byte, 64), mr.LocalWrite)
	for _, row := range []struct {
		name string
		l    []mr.SGE
		need mr.Access
		want mr.Fault
	}{
		{"none", nil, mr.LocalWrite, 0},
		{"empty entry", []mr.SGE{{Addr: 5, LKey: 6}}, mr.LocalWrite, 0},
		{"good", []mr.SGE{rw.SGE(0, 64), {}, rw.SGE(10, 1)}, mr.LocalWrite, 0},
		{"read of a read-only region", []mr.SGE{ro.SGE(0, 64)}, 0, 0},
		{"write of a read-only region", []mr.SGE{rw.SGE(0, 1), ro.SGE(0, 64)}, mr.LocalWrite, mr.FaultAccess},
		{"out of range", []mr.SGE{rw.SGE(0, 1), rw.SGE(1, 64)}, 0, mr.FaultRange},
		{"foreign", []mr.SGE{foreign.SGE(0, 1)}, 0, mr.FaultDomain},
		{"unknown", []mr.SGE{rw.SGE(0, 1), {Addr: rw.Addr(), Length: 1, LKey: rw.Key() + 1}}, 0, mr.FaultKey},
	} {
		if f := d.Check(row.l, row.need); f != row.want {
			t.Errorf("%s: %v, want %v", row.name, f, row.want)
		}
	}
}

// Pieces, scattering and gathering against a model that lays all entries end
// to end, byte by byte.
func TestScatterGatherAgainstModel(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 13))
		d := mr.NewTable(10, pcg(seed)).NewDomain()
		var regions []*mr.Region
		for range 3 {
			mem := make([]byte, 1+r.IntN(300))
			for i := range mem {
				mem[i] = byte(r.Uint32())
			}
			access := mr.LocalWrite
			if r.IntN(2) == 0 {
				access |= mr.ZeroBased
			}
			reg, err := d.Register(mem, access)
			if err != nil {
				t.Fatal(err)
			}
			regions = append(regions, reg)
		}
		var l []mr.SGE
		var flat []*byte
		for range r.IntN(6) {
			reg := regions[r.IntN(3)]
			off := r.IntN(reg.Len())
			n := r.IntN(reg.Len() - off + 1)
			l = append(l, reg.SGE(off, n))
			for i := range n {
				flat = append(flat, &reg.Bytes()[off+i])
			}
		}
		if mr.Total(l) != uint64(len(flat)) {
			t.Fatalf("seed %d: total %d, want %d", seed, mr.Total(l), len(flat))
		}
		for range 30 {
			off := r.IntN(len(flat) + 1)
			n := r.IntN(len(flat) - off + 1)
			got := make([]byte, n)
			if f := d.Gather(got, l, uint64(off)); f != 0 {
				t.Fatalf("seed %d: gather: %v", seed, f)
			}
			for i := range got {
				if got[i] != *flat[off+i] {
					t.Fatalf("seed %d: gathered byte %d", seed, i)
				}
			}
			if n > 0 {
				b, f := d.Piece(l, uint64(off), uint64(n), mr.LocalWrite)
				if f != 0 || len(b) == 0 || len(b) > n || &b[0] != flat[off] || &b[len(b)-1] != flat[off+len(b)-1] {
					t.Fatalf("seed %d: piece [%d, %d) of %v: %d bytes, %v", seed, off, off+n, l, len(b), f)
				}
			}
			for i := range got {
				got[i] = byte(r.Uint32())
			}
			// Entries may overlap: the model writes in the same order.
			want := make([][]byte, 3)
			for i, reg := range regions {
				want[i] = bytes.Clone(reg.Bytes())
			}
			for i := range got {
				for j, reg := range regions {
					for k := range reg.Bytes() {
						if &reg.Bytes()[k] == flat[off+i] {
							want[j][k] = got[i]
						}
					}
				}
			}
			if f := d.Scatter(l, uint64(off), got); f != 0 {
				t.Fatalf("seed %d: scatter: %v", seed, f)
			}
			for j, reg := range regions {
				if !bytes.Equal(reg.Bytes(), want[j]) {
					t.Fatalf("seed %d: region %d after scattering", seed, j)
				}
			}
		}
		one := []byte{1}
		if f := d.Scatter(l, uint64(len(flat)), one); f != mr.FaultRange {
			t.Fatalf("seed %d: a byte beyond the end: %v", seed, f)
		}
		if f := d.Gather(one, l, uint64(len(flat))+1<<40); f != mr.FaultRange {
			t.Fatalf("seed %d: a byte far beyond the end: %v", seed, f)
		}
	}
}

// IBA 9.3: atomics work on the host's integer, aligned or not.
func TestAtomics(t *testing.T) {
	mem := make([]byte, 32)
	for off := range 9 {
		word := mem[off : off+8]
		get := func() uint64 { return binary.NativeEndian.Uint64(word) }
		binary.NativeEndian.PutUint64(word, 10)
		if old := mr.FetchAdd(word, 5); old != 10 || get() != 15 {
			t.Errorf("offset %d: fetch and add: old %d, now %d", off, old, get())
		}
		if old := mr.FetchAdd(word, ^uint64(0)-14); old != 15 || get() != 0 {
			t.Errorf("offset %d: modulo 2^64: old %d, now %d", off, old, get())
		}
		if old := mr.CompareSwap(word, 1, 77); old != 0 || get() != 0 {
			t.Errorf("offset %d: compare that fails: old %d, now %d", off, old, get())
		}
		if old := mr.CompareSwap(word, 0, 77); old != 0 || get() != 77 {
			t.Errorf("offset %d: compare that holds: old %d, now %d", off, old, get())
		}
		for i, b := range mem {
			if (i < off || i >= off+8) && b != 0 {
				t.Fatalf("offset %d: byte %d was changed", off, i)
			}
		}
		clear(mem)
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	d := mr.NewTable(10, pcg(1)).NewDomain()
	r, _ := d.Register(make([]byte, 100), mr.LocalWrite|remote)
	l := []mr.SGE{r.SGE(0, 40), r.SGE(50, 40)}
	buf := make([]byte, 80)
	for name, f := range map[string]func(){
		"Remote":         func() { _, _ = d.Remote(r.Key(), mr.RemoteRead, r.Addr(), 10) },
		"Remote refused": func() { _, _ = d.Remote(r.Key()+1, mr.RemoteRead, r.Addr(), 10) },
		"Piece":          func() { _, _ = d.Piece(l, 39, 10, mr.LocalWrite) },
		"Check":          func() { d.Check(l, mr.LocalWrite) },
		"Scatter":        func() { d.Scatter(l, 0, buf) },
		"Gather":         func() { d.Gather(buf, l, 0) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestFaultsExplainThemselves(t *testing.T) {
	seen := map[string]bool{}
	for f := range mr.Fault(5) {
		if s := f.Error(); s == "" || seen[s] {
			t.Errorf("fault %d: %q", f, s)
		} else {
			seen[s] = true
		}
	}
}
