package mr

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

// The bounds of a region at any address, also at the very end of the address
// space, against arithmetic that cannot wrap.
func TestSliceAgainstBigIntegers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 14))
	mem := make([]byte, 4096)
	near := func(v uint64) uint64 { return v + uint64(r.IntN(41)) - 20 }
	for range 200_000 {
		reg := &Region{mem: mem[:r.IntN(len(mem))]}
		switch r.IntN(4) {
		case 0:
			reg.base = r.Uint64()
		case 1:
			reg.base = -uint64(len(reg.mem)) // ends where the space ends
		case 2:
			reg.base = -uint64(len(reg.mem)) - uint64(r.IntN(20))
		}
		if reg.base != 0 && reg.base > -uint64(len(reg.mem)) {
			continue // no memory lies across the end
		}
		va, n := r.Uint64(), r.Uint64()
		switch r.IntN(3) {
		case 0:
			va = near(reg.base)
		case 1:
			va = near(reg.base + uint64(len(reg.mem)))
		}
		switch r.IntN(4) {
		case 0:
			n = near(0)
		case 1:
			n = near(uint64(len(reg.mem)))
		case 2:
			n = near(-va) // so that the sum wraps
		}
		u := func(v uint64) *big.Int { return new(big.Int).SetUint64(v) }
		end, regEnd := new(big.Int).Add(u(va), u(n)), new(big.Int).Add(u(reg.base), u(uint64(len(reg.mem))))
		inside := va >= reg.base && end.Cmp(regEnd) <= 0
		if va == 0 && n == 0 {
			continue // no byte, at the end of the space or at its start
		}
		b, f := reg.slice(va, n)
		if inside != (f == 0) {
			t.Fatalf("region [%x, +%d), access [%x, +%x): %v", reg.base, len(reg.mem), va, n, f)
		}
		if inside && uint64(len(b)) != n {
			t.Fatalf("%d bytes, want %d", len(b), n)
		}
	}
}

// Removals leave no trace once the table is rebuilt: it stays as large as what
// lives needs.
func TestTableDoesNotGrowByChange(t *testing.T) {
	table := NewTable(100, rand.New(rand.NewPCG(1, 15)).Uint32)
	d := table.NewDomain()
	for range 100_000 {
		r, err := d.Register(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Deregister(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(table.slots.Load().at); n > 32 || table.live != 0 {
		t.Fatalf("%d slots for %d regions", n, table.live)
	}
}
