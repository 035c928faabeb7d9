// Package chaos has a test only: two processes exchange traffic while one of
// them is killed, stopped, continued or closed at random, and restarted.
//
//	        director (chaos_test.go): seed, signals, checks
//	          │ JSON lines              JSON lines │
//	worker 127.0.5.1:4791 ◄── RC, UC, UD ──► worker 127.0.5.2:4791
//
// A worker's exposed memory is a mapped file, so that what a killed process had
// received can be compared with what the survivor was told.
//
//	go test ./test/chaos -chaos 10m -timeout 15m
package chaos
