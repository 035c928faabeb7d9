package transport

// Counter names one statistic of an engine.
type Counter uint8

// The counters. Where the kernel's rxe or mlx5 has a counterpart it has its
// name; the drop_ ones give the reason for every packet that was not used.
const (
	SentPkts                Counter = iota // packets handed to the link
	RcvdPkts                               // packets that passed all checks before protocol state
	SentBytes                              // UDP payload of sent_pkts
	RcvdBytes                              // UDP payload of rcvd_pkts
	ReorderedPkts                          // request packets that came early and were kept
	DuplicateRequest                       // request PSNs behind the expected one
	OutOfSequence                          // gaps seen: sequence NAKs sent, and UC messages begun after a loss
	PacketSeqErr                           // sequence NAKs received
	ImpliedNAKSeqErr                       // READ or atomic answers found missing
	RcvdRNR                                // RNR NAKs received
	SentRNR                                // RNR NAKs sent
	LocalAckTimeout                        // local ACK timeouts
	RetransmittedPkts                      // request packets sent again, for one of the next four reasons
	RetransmittedNAK                       // after a NAK, an implied one, or an RNR NAK
	RetransmittedTimeout                   // after a local ACK timeout
	RetransmittedProbe                     // after a silence of a few round trips
	RetransmittedSelective                 // found missing by a selective acknowledgement or in a READ's data
	SpuriousRetransmits                    // times that an answer came too soon to be to what was resent
	EarlyTimeout                           // silences of a few round trips, before the local ACK timeout
	NAKRepeated                            // sequence NAKs sent again, since the packet was still missing
	RetryExceeded                          // pairs that failed with RETRY_EXC_ERR
	RNRRetryExceeded                       // pairs that failed with RNR_RETRY_EXC_ERR
	ReqRemoteInvalidRequest                // NAKs 0x61 received
	ReqRemoteAccess                        // NAKs 0x62 received
	ReqRemoteOperation                     // NAKs 0x63 received
	RespInvalidRequest                     // requests refused as invalid
	RespRemoteAccess                       // requests refused for key, range or right
	RespRemoteOperation                    // requests refused for the receive's own memory
	RespLocalLength                        // messages longer than their receive
	SendWQEs                               // SEND work requests completed
	RecvCompletions                        // messages received
	CNPHandled                             // congestion notifications received
	CNPSent                                // congestion notifications sent
	CERcvd                                 // packets received with the congestion mark
	CQOverflow                             // completions lost to a full queue
	DropTruncated                          // shorter than the headers of the opcode
	DropOpcode                             // reserved opcode
	DropVersion                            // transport version not 0
	DropPad                                // more padding than bytes
	DropPayload                            // payload on an opcode that has none
	DropQPN                                // no queue pair has the number
	DropTransport                          // the pair is of another type
	DropState                              // the pair's state does not take it
	DropAddress                            // not from the peer's address to ours
	DropPKey                               // other partition
	SentSelectiveAcks                      // selective acknowledgements sent
	RcvdSelectiveAcks                      // and received
	DropSelectiveAck                       // one that is malformed, or from a peer that was offered none
	DropStaleResponse                      // answer to nothing outstanding
	DropUnexpectedResponse                 // answer of the wrong kind; the pair fails
	DropRNRWait                            // sequence NAK while waiting after an RNR NAK
	DropOutOfSequence                      // behind a gap that was reported
	DropDuplicate                          // duplicate that cannot be answered
	DropReservedNAK                        // reserved syndrome
	DropQKey                               // datagram with another Q_Key
	DropNoRecv                             // UC or UD without a posted receive
	DropUCSequence                         // UC packet of a message whose start was lost
	DropUCRefused                          // UC packet with a wrong key, range, right or length
	DropUDTooLong                          // datagram longer than its receive
	numCounters
)

var counterNames = [numCounters]string{
	SentPkts: "sent_pkts", RcvdPkts: "rcvd_pkts", SentBytes: "sent_bytes", RcvdBytes: "rcvd_bytes",
	ReorderedPkts: "reordered_pkts", DuplicateRequest: "duplicate_request", OutOfSequence: "out_of_sequence",
	PacketSeqErr: "packet_seq_err", ImpliedNAKSeqErr: "implied_nak_seq_err",
	RcvdRNR: "rcvd_rnr_err", SentRNR: "send_rnr_err", LocalAckTimeout: "local_ack_timeout_err",
	RetransmittedNAK: "retransmitted_nak", RetransmittedTimeout: "retransmitted_timeout", RetransmittedProbe: "retransmitted_probe",
	RetransmittedSelective: "retransmitted_selective", SpuriousRetransmits: "spurious_retransmissions", EarlyTimeout: "early_timeout", NAKRepeated: "nak_repeated",
	RetransmittedPkts: "retransmitted_pkts", RetryExceeded: "retry_exceeded_err", RNRRetryExceeded: "retry_rnr_exceeded_err",
	ReqRemoteInvalidRequest: "req_remote_invalid_request", ReqRemoteAccess: "req_remote_access_errors", ReqRemoteOperation: "req_remote_op_errors",
	RespInvalidRequest: "resp_invalid_request", RespRemoteAccess: "resp_remote_access_errors", RespRemoteOperation: "resp_remote_op_errors",
	RespLocalLength: "resp_local_length_error", SendWQEs: "rdma_sends", RecvCompletions: "rdma_recvs",
	CNPHandled: "rp_cnp_handled", CNPSent: "np_cnp_sent", CERcvd: "np_ecn_marked_roce_packets", CQOverflow: "cq_overflow",
	DropTruncated: "drop_truncated", DropOpcode: "drop_unknown_opcode", DropVersion: "drop_bad_tver", DropPad: "drop_bad_pad", DropPayload: "drop_unexpected_payload",
	DropQPN: "drop_unknown_qpn", DropTransport: "drop_wrong_transport", DropState: "drop_qp_state", DropAddress: "drop_wrong_address", DropPKey: "drop_bad_pkey",
	SentSelectiveAcks: "sent_selective_acks", RcvdSelectiveAcks: "rcvd_selective_acks", DropSelectiveAck: "drop_selective_ack",
	DropStaleResponse: "drop_stale_response", DropUnexpectedResponse: "drop_unexpected_response", DropRNRWait: "drop_after_rnr",
	DropOutOfSequence: "drop_out_of_sequence", DropDuplicate: "drop_duplicate", DropReservedNAK: "drop_reserved_syndrome",
	DropQKey: "drop_bad_qkey", DropNoRecv: "drop_no_receive", DropUCSequence: "drop_uc_out_of_sequence", DropUCRefused: "drop_uc_refused",
	DropUDTooLong: "drop_ud_too_long",
}

// String returns the counter's name.
func (c Counter) String() string { return counterNames[c] }

// Counters holds the value of every counter.
type Counters [numCounters]uint64

// Each calls f for every counter in the order of their declaration.
func (c *Counters) Each(f func(name string, value uint64)) {
	for i, v := range c {
		f(counterNames[i], v)
	}
}
