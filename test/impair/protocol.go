package main

import "time"

// command is a line of JSON to the switch's process; it answers each with a line.
type command struct {
	// Reset, if set, starts anew under these conditions.
	Reset *reset
	// Mark starts counts and the summary of queues anew, but not the rows.
	Mark bool
}

// reset is what core.reset takes.
type reset struct {
	Seed  uint64
	Ports []Conditions
}

// answer is what the switch has seen since the last reset.
type answer struct {
	// Start, where the rows begin, Mark, where the counts begin, and Now are on
	// CLOCK_MONOTONIC.
	Start, Mark, Now time.Duration
	Ports            []PortAnswer
	// What makes figures worthless: frames dropped since the process came too late
	// or had no room, and frames longer than the MTU, which are several packets.
	Overrun, NoFrame, SendErrors, TooLong uint64
	// Late is by how much frames left later than they should have, Rounds how often
	// the switch looked.
	LateMean, LateMax time.Duration
	Rounds            uint64
	// RealTime: nothing but the kernel goes before the process.
	RealTime bool
	// CPU is the time that the process has used in all.
	CPU time.Duration
}

// PortAnswer is what a port has done.
type PortAnswer struct {
	Counts
	Queue Queue
	Rows  []Row
}
