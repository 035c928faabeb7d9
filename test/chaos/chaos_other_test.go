//go:build !linux

package chaos

import "testing"

func TestSurvivorOfKillsAndStops(t *testing.T) {
	_, _ = chaosFor, chaosSeed
	t.Skip("needs Linux: SIGSTOP, /proc and addresses of 127.0.0.0/8 that need no configuration")
}
