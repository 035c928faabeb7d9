package sim
import ("testing";"fmt";"github.com/goroce/goroce/transport";"github.com/goroce/goroce/qp")
func TestDbgR(t *testing.T) {
	for _, op := range []qp.Op{qp.RDMAWrite, qp.RDMARead} {
	for how := range transport.GoBackN + 1 {
			base, _ := goodput(t, how, op, Faults{}, 16<<20)
		s := ""
		for _, p := range []float64{0.001, 0.01,0.1,0.3} { for _, by := range []int{3,16} {
	g, n := goodput(t, how, op, Faults{Displace: p, DisplaceBy: by}, 64<<20)
	_ = n
	s += fmt.Sprintf("  %g/%d: %.3f (%d)", p, by, g/base, n.order[0].Counters[transport.RetransmittedPkts])
	}}
	fmt.Println(op, how, s)
	}}
}
