// Package cq tells the application what finished.
//
// A [Queue] (completion queue, CQ) is a ring of work completions ([WC]). One
// producer, the owner of the shard, pushes; consumers poll, one at a time. The
// two sides meet only in two atomic counters, so that polling never blocks the
// engine and what a completion publishes (received bytes) is visible to whoever
// polled it.
//
//	engine ─ Push ─► [ WC WC WC … ] ─ Poll ─► application
//	                     └─ armed? ─► notify, once
//
// A queue can be armed: the next completion, or the next solicited one, calls
// the notify function once (IBA 11.4.2.2). A completion that finds the ring
// full is lost; the queue is then in error for good, as verbs have it.
package cq
