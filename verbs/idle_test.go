package verbs_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/verbs"
)

// An idle connection is cheap: ten thousand of them open in no time.
func TestIdleQueuePairsAreSmall(t *testing.T) {
	const pairs = 10000
	const most = 8 << 10
	cfg := inMemory(t, verbs.Config{})
	a, _ := openPair(t, cfg, 64, verbs.ConnectConfig{})
	pd := a.dev.AllocPD()
	before, start := heap(), time.Now()
	qs := make([]*verbs.QP, pairs)
	for i := range qs {
		q, err := pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, RecvCQ: a.cq})
		if err != nil {
			t.Fatal(err)
		}
		peer := verbs.Endpoint{GID: a.dev.GID(), QPN: bth.QPN(i + 100), PSN: bth.NewPSN(uint32(i))}
		if err := q.Connect(peer, verbs.ConnectConfig{Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic}); err != nil {
			t.Fatal(err)
		}
		qs[i] = q
	}
	took, each := time.Since(start), (heap()-before)/pairs
	t.Logf("%d connected queue pairs in %v, %d bytes each", pairs, took, each)
	if each > most {
		t.Errorf("an idle queue pair takes %d bytes, more than %d", each, most)
	}
	if took > 2*time.Second && !testing.Short() {
		t.Errorf("they took %v to open, more than 2 s", took)
	}
	runtime.KeepAlive(qs)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
