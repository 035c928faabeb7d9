package mr_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/goroce/goroce/mr"
)

func pcg(seed uint64) func() uint32 { return rand.New(rand.NewPCG(seed, 11)).Uint32 }

const remote = mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic

// IBA 10.6: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE.
func TestRegisterChecksRights(t *testing.T) {
	for access := range mr.Access(16) {
		d := mr.NewTable(10, pcg(1)).NewDomain()
		r, err := d.Register(make([]byte, 8), access)
		bad := access&(mr.RemoteWrite|mr.RemoteAtomic) != 0 && access&mr.LocalWrite == 0
		switch {
		case bad && (!errors.Is(err, mr.ErrAccess) || d.InUse()):
			t.Errorf("access %b: %v, in use %v", access, err, d.InUse())
		case !bad && (err != nil || r.Access() != access || !d.InUse()):
			t.Errorf("access %b: %v", access, err)
		}
	}
}

// Every right is needed by itself; local read is always there.
func TestRemoteNeedsEachRight(t *testing.T) {
	rights := []mr.Access{mr.LocalWrite, mr.RemoteWrite, mr.RemoteRead, mr.RemoteAtomic}
	d := mr.NewTable(100, pcg(2)).NewDomain()
	for has := range mr.Access(16) {
		r, err := d.Register(make([]byte, 8), has)
		if err != nil {
			continue
		}
		for _, need := range append(rights, 0, mr.RemoteRead|mr.RemoteWrite) {
			_, f := d.Remote(r.Key(), need, r.Addr(), 8)
			if ok := has&need == need; ok != (f == 0) || !ok && f != mr.FaultAccess {
				t.Errorf("has %b, needs %b: %v", has, need, f)
			}
		}
	}
}

// A key works in its own domain only, and as a whole: its low byte counts.
func TestKeyBelongsToItsDomain(t *testing.T) {
	table := mr.NewTable(10, pcg(3))
	a, b := table.NewDomain(), table.NewDomain()
	r, err := a.Register(make([]byte, 8), mr.LocalWrite|remote)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		d    *mr.Domain
		key  uint32
		want mr.Fault
	}{
		{a, r.Key(), 0}, {b, r.Key(), mr.FaultDomain}, {a, r.Key() ^ 1, mr.FaultKey}, {a, r.Key() ^ 0x100, mr.FaultKey},
		{a, r.Key() ^ 0x80000000, mr.FaultKey}, {a, 0, mr.FaultKey}, {a, 0xFFFFFFFF, mr.FaultKey},
	} {
		if _, f := row.d.Remote(row.key, mr.RemoteRead, r.Addr(), 8); f != row.want {
			t.Errorf("key %08x: %v, want %v", row.key, f, row.want)
		}
	}
	if err := b.Deregister(r); !errors.Is(err, mr.ErrClosed) {
		t.Errorf("deregistered by another domain: %v", err)
	}
	if err := a.Deregister(r); err != nil || a.InUse() {
		t.Errorf("deregister: %v, in use %v", err, a.InUse())
	}
	if err := a.Deregister(r); !errors.Is(err, mr.ErrClosed) {
		t.Errorf("deregistered twice: %v", err)
	}
	if _, f := a.Remote(r.Key(), 0, r.Addr(), 8); f != mr.FaultKey {
		t.Errorf("a key that ended: %v", f)
	}
}

// Keys follow from the source of randomness, have distinct upper parts, and
// avoid the values that faulty requests are filled with.
func TestKeysAreRandomAndUnique(t *testing.T) {
	keys := func(seed uint64) (l []uint32) {
		d := mr.NewTable(5000, pcg(seed)).NewDomain()
		for range 5000 {
			r, err := d.Register(nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			l = append(l, r.Key())
		}
		return l
	}
	a, b, c := keys(1), keys(1), keys(2)
	index, low := map[uint32]bool{}, map[uint32]bool{}
	same := 0
	for i, k := range a {
		if k != b[i] {
			t.Fatal("the same source gave other keys")
		}
		if k == c[i] {
			same++
		}
		if index[k>>8] || k>>8 == 0 || k>>8 == 0xFFFFFF {
			t.Fatalf("key %08x: its upper part is in use or reserved", k)
		}
		index[k>>8], low[k&0xFF] = true, true
	}
	if same > 1 || len(low) < 250 {
		t.Fatalf("%d equal keys of two sources, %d low bytes", same, len(low))
	}
	fixed := []uint32{0x000000AA, 0xFFFFFF01, 0x00000100, 0x00000180, 0xFFFFFEFF}
	d := mr.NewTable(10, func() uint32 { k := fixed[0]; fixed = fixed[1:]; return k }).NewDomain()
	r, _ := d.Register(nil, 0)
	s, _ := d.Register(nil, 0)
	if r.Key() != 0x100 || s.Key() != 0xFFFFFEFF {
		t.Fatalf("keys %08x %08x", r.Key(), s.Key())
	}
}

func TestTableTakesItsMaximum(t *testing.T) {
	d := mr.NewTable(3, pcg(4)).NewDomain()
	var last *mr.Region
	for range 3 {
		var err error
		if last, err = d.Register(nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Register(nil, 0); !errors.Is(err, mr.ErrFull) {
		t.Fatalf("one too many: %v", err)
	}
	if err := d.Deregister(last); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Register(nil, 0); err != nil {
		t.Fatalf("after one has gone: %v", err)
	}
}

// Through any series of registrations and deregistrations the table is what a
// map is. The narrow keys collide all the time.
func TestTableAgainstMap(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 12))
		width := uint32(1)<<(10+r.IntN(12)) - 1
		table := mr.NewTable(1<<20, func() uint32 { return r.Uint32() & width })
		domains := []*mr.Domain{table.NewDomain(), table.NewDomain()}
		type entry struct {
			r *mr.Region
			d *mr.Domain
		}
		model := map[uint32]entry{}
		index := map[uint32]bool{}
		var keys []uint32 // all that ever were
		most := int(width>>8) / 2
		for range 3000 {
			d := domains[r.IntN(2)]
			switch {
			case len(model) < most && r.IntN(5) < 3:
				mem := make([]byte, r.IntN(3))
				reg, err := d.Register(mem, 0)
				if err != nil {
					t.Fatal(err)
				}
				if index[reg.Key()>>8] {
					t.Fatalf("seed %d: another key has the upper part of %x", seed, reg.Key())
				}
				index[reg.Key()>>8] = true
				model[reg.Key()] = entry{reg, d}
				keys = append(keys, reg.Key())
			case len(keys) > 0:
				k := keys[r.IntN(len(keys))]
				e, live := model[k]
				if !live {
					continue
				}
				if err := e.d.Deregister(e.r); err != nil {
					t.Fatal(err)
				}
				delete(model, k)
				delete(index, k>>8)
			}
			for range 5 {
				k := r.Uint32() & width
				if len(keys) > 0 && r.IntN(2) == 0 {
					k = keys[r.IntN(len(keys))]
				}
				want := mr.FaultKey
				if e, live := model[k]; live && e.d == d {
					want = 0
				} else if live {
					want = mr.FaultDomain
				}
				var at uint64
				if want == 0 {
					at = model[k].r.Addr()
				}
				if _, f := d.Remote(k, 0, at, 0); f != want {
					t.Fatalf("seed %d: key %x: %v, want %v", seed, k, f, want)
				}
			}
		}
	}
}

// Registration runs beside look-ups; a reader sees a region whole or not.
func TestTableConcurrentLookups(t *testing.T) {
	table := mr.NewTable(1<<16, func() func() uint32 {
		var mu sync.Mutex
		f := pcg(5)
		return func() uint32 { mu.Lock(); defer mu.Unlock(); return f() }
	}())
	d := table.NewDomain()
	stable, err := d.Register([]byte("stable!!"), 0)
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan *mr.Region, 64)
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				if b, f := d.Remote(stable.Key(), 0, stable.Addr(), 8); f != 0 || string(b) != "stable!!" {
					t.Errorf("the stable region: %q %v", b, f)
					return
				}
				select {
				case r := <-published: // may be deregistered meanwhile
					if b, f := d.Remote(r.Key(), 0, r.Addr(), 4); f == 0 && string(b) != "four" || f != 0 && f != mr.FaultKey {
						t.Errorf("region %v: %q %v", r, b, f)
						return
					}
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			var mine []*mr.Region
			for i := range 3000 {
				r, err := d.Register([]byte("four"), 0)
				if err != nil {
					t.Error(err)
					return
				}
				mine = append(mine, r)
				select {
				case published <- r:
				default:
				}
				if i%3 != 0 {
					continue
				}
				if err := d.Deregister(mine[len(mine)/2]); err != nil {
					t.Error(err)
					return
				}
				mine = append(mine[:len(mine)/2], mine[len(mine)/2+1:]...)
			}
			for _, r := range mine {
				if err := d.Deregister(r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if err := d.Deregister(stable); err != nil || d.InUse() {
		t.Fatalf("%v, in use %v", err, d.InUse())
	}
}
