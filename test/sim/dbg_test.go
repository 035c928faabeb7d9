package sim
import ("testing";"fmt";"github.com/goroce/goroce/transport";"github.com/goroce/goroce/qp"; "time";"github.com/goroce/goroce/bth")
func TestDbgC(t *testing.T) {
	var last time.Duration
	var hist []string
	cnt := 0; stall := 0
	dbg = func(n *Net) { n.Trace = func(at time.Duration, from *Host, p *bth.Packet, lost bool) {
		s := fmt.Sprintf("%v %v %v psn %x ack %v %v lost %v pay %d", at, from.Addr, p.Opcode, p.PSN.Value(), p.AckReq, p.AETH, lost, len(p.Payload))
		hist = append(hist, s); if len(hist) > 400 { hist = hist[1:] }
		if at-last > 300*time.Microsecond { stall++; fmt.Println("STALL", at-last, at);  if cnt < 1 && stall > 2 { cnt++; for _, x := range hist { fmt.Println(x) } }}
		last = at
	}}
	_, n := goodput(t, transport.Alone, qp.RDMAWrite, Faults{Loss: 0.01}, 32<<20)
	for _,h := range n.order { h.Counters.Each(func(s string, v uint64){ if v>0 {fmt.Print(s,"=",v," ")}}); fmt.Println() }
	fmt.Println(n.Now())
}
