package transport

// Counter names one statistic of an engine.
type Counter uint8

// The counters. Where the kernel's rxe or mlx5 has a counterpart it has its
// name; the drop_ ones give the reason for every packet that was not used.
const (
	SentPkts Counter = iota
	RcvdPkts
	SentBytes
	RcvdBytes
	DuplicateRequest
	OutOfSequence
	PacketSeqErr
	ImpliedNAKSeqErr
	RcvdRNR
	SentRNR
	LocalAckTimeout
	RetransmittedPkts
	RetryExceeded
	RNRRetryExceeded
	ReqRemoteInvalidRequest
	ReqRemoteAccess
	ReqRemoteOperation
	RespInvalidRequest
	RespRemoteAccess
	RespRemoteOperation
	RespLocalLength
	SendWQEs
	RecvCompletions
	CNPHandled
	CERcvd
	CQOverflow
	DropTruncated
	DropOpcode
	DropVersion
	DropPad
	DropPayload
	DropQPN
	DropTransport
	DropState
	DropAddress
	DropPKey
	DropStaleResponse
	DropUnexpectedResponse
	DropRNRWait
	DropOutOfSequence
	DropDuplicate
	DropReservedNAK
	DropQKey
	DropNoRecv
	DropUCSequence
	DropUCRefused
	DropUDTooLong
	numCounters
)

var counterNames = [numCounters]string{
	SentPkts: "sent_pkts", RcvdPkts: "rcvd_pkts", SentBytes: "sent_bytes", RcvdBytes: "rcvd_bytes",
	DuplicateRequest: "duplicate_request", OutOfSequence: "out_of_sequence",
	PacketSeqErr: "packet_seq_err", ImpliedNAKSeqErr: "implied_nak_seq_err",
	RcvdRNR: "rcvd_rnr_err", SentRNR: "send_rnr_err", LocalAckTimeout: "local_ack_timeout_err",
	RetransmittedPkts: "retransmitted_pkts", RetryExceeded: "retry_exceeded_err", RNRRetryExceeded: "retry_rnr_exceeded_err",
	ReqRemoteInvalidRequest: "req_remote_invalid_request", ReqRemoteAccess: "req_remote_access_errors", ReqRemoteOperation: "req_remote_op_errors",
	RespInvalidRequest: "resp_invalid_request", RespRemoteAccess: "resp_remote_access_errors", RespRemoteOperation: "resp_remote_op_errors",
	RespLocalLength: "resp_local_length_error", SendWQEs: "rdma_sends", RecvCompletions: "rdma_recvs",
	CNPHandled: "rp_cnp_handled", CERcvd: "np_ecn_marked_roce_packets", CQOverflow: "cq_overflow",
	DropTruncated: "drop_truncated", DropOpcode: "drop_unknown_opcode", DropVersion: "drop_bad_tver", DropPad: "drop_bad_pad", DropPayload: "drop_unexpected_payload",
	DropQPN: "drop_unknown_qpn", DropTransport: "drop_wrong_transport", DropState: "drop_qp_state", DropAddress: "drop_wrong_address", DropPKey: "drop_bad_pkey",
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
