// Command impair measures goroce across a damaged path: hosts in network namespaces
// of their own, and between them a switch in user space that loses, reorders, delays
// and marks what really crosses it. Sockets, ECN bits and CNPs are real.
//
//	go test ./test/impair -v            what must hold, about a minute
//	go run ./test/impair                the table
//	go run ./test/impair -write docs    docs/impaired.md with charts as well
//
// Both need root and Linux. Nothing but the hosts' own namespaces is touched.
//
//	 host 1   host 2  …           each a namespace with a device
//	  │veth    │veth
//	┌─┴────────┴───────────┐      a process in a namespace of its own:
//	│ in:   the host's link│      a line that sends at the link's rate
//	│ MAC table, loss      │
//	│ out:  queue, RED,    │      a line with a bounded queue that marks or drops
//	│       reorder, delay │
//	└──────────────────────┘
//
// The switch has a clock of its own: each frame gets the time at which an ideal
// switch would have sent it, whenever the process comes to do so, and queues are what
// that switch would have. The process looks every 100 µs.
//
//	frame.go  what a frame is, and the mark     network_linux.go  namespaces, hosts
//	port.go   lines, queues, RED, reordering    flow_linux.go     traffic, verified
//	core.go   forwarding in virtual time        scenario_linux.go what is measured
//	record.go queues and rates over time        report_linux.go   the page
//	switch_linux.go the process of the switch
package main
