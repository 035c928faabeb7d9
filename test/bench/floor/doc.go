// Command floor measures what UDP alone can do on this machine, as a measure
// for goroce: the same packets with the same checks, and no protocol.
//
//	floor stream    packets of a RoCE WRITE, segmentation offload on both sides, CRC-32 on
//	                both sides, one copy at the receiver, a window that loses nothing
//	floor pingpong  a packet to and fro between two processes that both spin
//	floor udpconn   the same through net.UDPConn, which sleeps
//
// Without an address it is the server; with the server's address, the client:
//
//	floor stream -d 127.0.10.1 -p 18515
//	floor stream -d 127.0.10.2 -p 18515 -s 1048576 -D 2 --json 127.0.10.1
//
// A server serves one client and ends with it. The two agree over a TCP
// connection to the port; the packets travel over UDP between the same ports.
package main
