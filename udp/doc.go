// Package udp moves frames in and out: it holds the links of the stack and
// knows nothing of the protocol above them.
//
// A [Link] sends bursts of frames from one local address and receives datagrams
// for it. It seals and checks the ICRC, because only it knows the IP header
// that the CRC covers.
//
//	Open       a UDP socket on port 4791: for an ordinary user, on every system
//	NewSwitch  links in memory, for tests
//	WithTap    a link that shows all its packets to a capture
//	WithFaults a link that damages packets on purpose, by rules
//
// On Linux the socket is unconnected and sets DF (IP_MTU_DISCOVER = PROBE), so
// that every packet leaves with IPv4 identification 0; a connected socket would
// use an unknowable one and every ICRC would be wrong. What a peer wrote into
// the field is not visible on a socket: the ICRC check solves for it. Sends and
// receives are batched system calls on a file descriptor of our own; waiting is
// ppoll with an eventfd as doorbell.
//
// Runs of packets of one length and path are one message to the kernel
// (UDP_SEGMENT), which cuts them and numbers their identifications 0, 1, 2, …;
// received runs are cut here (UDP_GRO). Config and the environment variables
// GOROCE_GSO and GOROCE_GRO, set to 0, switch that off.
//
// Elsewhere, and with [Config.Portable], net.UDPConn does the work, without ECN
// and with whatever identification the system chooses. Over IPv6, which has
// none, such a link works with every peer; over IPv4 with peers that do not
// check it strictly, as this stack does not.
package udp
