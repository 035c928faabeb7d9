//go:build race

package main

// raceDetector: the test runs several times slower, and allocates more.
const raceDetector = true
