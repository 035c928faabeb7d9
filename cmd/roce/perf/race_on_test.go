//go:build race

package perf

// raceDetector: the test runs several times slower, and allocates more.
const raceDetector = true
