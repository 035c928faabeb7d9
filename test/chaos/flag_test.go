package chaos

import "flag"

var (
	chaosFor  = flag.Duration("chaos", 0, "how long TestSurvivorOfKillsAndStops runs; 0 means 10 s, or 2 s with -short")
	chaosSeed = flag.Uint64("chaos-seed", 0, "seed of its choices; 0 takes a new one")
)
