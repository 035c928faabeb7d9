package fabric_test

import (
	"testing"

	"github.com/goroce/goroce/fabric"
)

// Every scenario gives what is known of it.
func TestScenarios(t *testing.T) {
	quick := map[string]bool{"S1": true, "S5": true, "S16": true}
	for _, sc := range fabric.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			if testing.Short() && !quick[sc.Name] {
				t.Skip("long")
			}
			t.Parallel()
			r, err := sc.Run(fabric.Options{Seed: 1})
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
