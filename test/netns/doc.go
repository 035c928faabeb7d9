// Package netns makes network namespaces and the links between them, for tests and
// benchmarks whose packets have to cross something. Linux only; it needs root.
package netns
