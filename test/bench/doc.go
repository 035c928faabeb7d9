// Command bench measures goroce beside what else moves data between two processes
// on this machine, and says which of the project's targets are met:
//
//	go run ./test/bench                 everything, about ten minutes
//	go run ./test/bench -quick          what the targets need, about a minute
//	go run ./test/bench -write docs     docs/benchmark.md with charts and JSON as well
//	go run ./test/bench -rxe            inside a guest as well: beside the kernel's rdma_rxe
//
// Beside goroce run one TCP stream of iperf3, UCX over TCP (ucx_perftest), libfabric
// over TCP (fi_pingpong), and the floor of test/bench/floor. A tool that is not
// installed is left out, with the name of its Debian package. As root, the whole is
// repeated across a veth pair whose senders have no offload, so that each packet
// crosses by itself.
//
// The figures are taken in rounds, each of which measures every cell once: a machine
// that gets slower gets slower for all. The report gives medians, least and most;
// ratios are those of one round, then their median.
//
//	plan.go      what is measured            run_linux.go       two processes, their CPU time
//	tools.go     how each tool is called     topology_linux.go  the veth pair
//	parse.go     what it says                idle_linux.go      10,000 idle queue pairs
//	stats.go     medians and ratios          rxe_linux.go       the guest
//	results.go   what is kept                tcp_linux.go       which TCP iperf3 may have
//	targets.go   what should be reached      report.go chart.go the page
package main
