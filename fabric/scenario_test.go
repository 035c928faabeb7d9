package fabric_test

import (
	"flag"
	"testing"

	"github.com/goroce/goroce/fabric"
)

var seed = flag.Uint64("seed", 1, "seed of the scenarios")

// Every scenario gives what is known of it.
func TestScenarios(t *testing.T) {
	quick := map[string]bool{"S1": true, "S5": true, "S16": true}
	for _, sc := range fabric.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			if testing.Short() && !quick[sc.Name] {
				t.Skip("left out by -short: takes up to half a minute")
			}
			t.Parallel()
			r, err := sc.Run(t.Context(), fabric.Options{Seed: *seed})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.Checks() {
				t.Logf("%-40s %10.4g %-5s expected %s", c.What, c.Got, c.Unit, c.Expected)
				if !c.OK() {
					t.Errorf("%s is %.5g %s, expected %s", c.What, c.Got, c.Unit, c.Expected)
				}
			}
		})
	}
}
