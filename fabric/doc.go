// Package fabric simulates Ethernet fabrics under the real protocol engines, in
// virtual time: hosts, links with a rate and a delay, switches with a shared
// buffer, ECN marking and priority flow control. It shows what congestion
// control does where no testbed is at hand.
//
//	host: transport.Engine ─ port ══ link ══ switch: port ─ port … ══ host
//	                          queue                  queue, buffer, ECN, PFC
//
// A [Sim] is built by hand or by one of the topologies, flows are added, and Run
// lets time pass. [Scenarios] are experiments with known results. Everything
// follows from the seed: the same seed gives the same run, packet by packet.
//
// Packets carry their bytes from engine to engine, but no ICRC; nothing corrupts
// them. Lengths are those of IP packets, for links, queues and rates alike.
package fabric
