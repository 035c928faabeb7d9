package rxe_test

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/bth"
	"github.com/goroce/goroce/cq"
	"github.com/goroce/goroce/mr"
	"github.com/goroce/goroce/qp"
	"github.com/goroce/goroce/verbs"
)

const (
	peerPort = 18601 // not that of the README, so that both can run in a guest
	peerFile = "/opt/goroce/verbs_peer.py"
	peerLog  = "/tmp/goroce_test_peer.log"
	peerPID  = "/tmp/goroce_test_peer.pid"
)

var startPeerOnce sync.Once

// startPeer starts the guest's verbs_peer.py, of the version that is here.
func startPeer(t *testing.T, l *lab) {
	t.Helper()
	startPeerOnce.Do(func() {
		run(t, l.script("put", "-n", l.guest, "guest/verbs_peer.py", peerFile))
		run(t, l.inGuest(startLimit, fmt.Sprintf(`
			if p=$(cat %[1]s 2>/dev/null); then
				kill $p; while kill -0 $p; do sleep 0.1; done
			fi 2>/dev/null
			python3 %[2]s --port %[3]d >%[4]s 2>&1 &
			echo $! >%[1]s
			until ss -Hltn 'sport = :%[3]d' | grep -q .; do kill -0 $! || exit 1; sleep 0.1; done`,
			peerPID, peerFile, peerPort, peerLog)))
	})
}

// peerSide is rxe, by way of verbs_peer.py, which describes the commands.
type peerSide struct {
	conn    net.Conn
	lines   *bufio.Reader
	log     *os.File // what was said
	gid     int
	regions []region // by the number of the MR
}

// object is one line to or from the peer.
type object map[string]any

// answer is what tests read of the peer's answers.
type answer struct {
	OK    bool
	Error string

	QPN, PSN uint32
	GID      string
	State    string

	MR   int
	Addr uint64
	RKey uint32

	Hex string
	WCs []struct {
		WRID       uint64    `json:"wr_id"`
		StatusCode cq.Status `json:"status_code"`
		Opcode     string
		ByteLen    uint32  `json:"byte_len"`
		Imm        *uint32 `json:"imm"`
		QPNum      uint32  `json:"qp_num"`
	}
}

func newPeerSide(t *testing.T, r *record, f family) *peerSide {
	t.Helper()
	startPeer(t, r.lab)
	t.Cleanup(func() {
		if t.Failed() {
			r.keepOutput("verbs_peer.log", r.inGuest(startLimit, "cat "+peerLog))
		}
	})
	log, err := os.Create(r.file("peer.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", guestCommands, peerPort), startLimit)
	if err != nil {
		t.Fatalf("the guest's verbs_peer.py does not answer: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	s := &peerSide{conn: conn, lines: bufio.NewReader(conn), log: log, gid: f.gidIndex}
	a := s.call(t, "open", object{"gid_index": s.gid, "buf_size": 4096})
	s.regions = []region{{a.Addr, a.RKey, 4096}}
	return s
}

// call has the peer do a command, which has to succeed.
func (s *peerSide) call(t *testing.T, command string, arguments object) (a answer) {
	t.Helper()
	request := object{"cmd": command}
	for k, v := range arguments {
		request[k] = v
	}
	line, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	s.note("> ", line)
	_ = s.conn.SetDeadline(time.Now().Add(completionLimit + 30*time.Second))
	if _, err := s.conn.Write(append(line, '\n')); err != nil {
		t.Fatalf("peer: %s: %v", command, err)
	}
	reply, err := s.lines.ReadBytes('\n')
	if err != nil {
		t.Fatalf("peer: %s: %v", command, err)
	}
	s.note("< ", reply)
	if err := json.Unmarshal(reply, &a); err != nil {
		t.Fatalf("peer: %s: %v", command, err)
	}
	if !a.OK {
		t.Fatalf("peer: %s: %s", line[:min(len(line), noteLength)], a.Error)
	}
	return a
}

// noteLength is as much of a line as is kept: some carry a lot of memory.
const noteLength = 400

func (s *peerSide) note(mark string, line []byte) {
	if len(line) > noteLength {
		line = append(line[:noteLength:noteLength], "…"...)
	}
	fmt.Fprintf(s.log, "%s %s%s\n", time.Now().Format("15:04:05.000"), mark, line)
}

func accessNames(a mr.Access) []string {
	names := []string{}
	for _, right := range []struct {
		bit  mr.Access
		name string
	}{
		{mr.LocalWrite, "local_write"}, {mr.RemoteWrite, "remote_write"},
		{mr.RemoteRead, "remote_read"}, {mr.RemoteAtomic, "remote_atomic"},
	} {
		if a&right.bit != 0 {
			names = append(names, right.name)
		}
	}
	return names
}

func (s *peerSide) register(t *testing.T, size int, access mr.Access) region {
	t.Helper()
	a := s.call(t, "second_mr", object{"length": size, "access": accessNames(access)})
	if a.MR != len(s.regions) {
		t.Fatalf("the peer calls its new MR number %d, not %d", a.MR, len(s.regions))
	}
	s.regions = append(s.regions, region{a.Addr, a.RKey, size})
	return s.regions[a.MR]
}

// at says in the peer's terms what lies at an address.
func (s *peerSide) at(t *testing.T, addr uint64) object {
	t.Helper()
	for i, r := range s.regions {
		if addr >= r.addr && addr <= r.addr+uint64(r.size) {
			return object{"mr": i, "offset": addr - r.addr}
		}
	}
	t.Fatalf("the peer has no memory at %#x", addr)
	return nil
}

func (s *peerSide) write(t *testing.T, addr uint64, data []byte) {
	t.Helper()
	o := s.at(t, addr)
	o["hex"] = hex.EncodeToString(data)
	s.call(t, "write_mem", o)
}

func (s *peerSide) read(t *testing.T, addr uint64, n int) []byte {
	t.Helper()
	o := s.at(t, addr)
	o["length"] = n
	data, err := hex.DecodeString(s.call(t, "read_mem", o).Hex)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (s *peerSide) newQP(t *testing.T, o qpOptions) verbs.Endpoint {
	t.Helper()
	a := s.call(t, "new_qp", object{
		"gid_index": s.gid, "mtu": o.mtu, "psn": o.psn, "qp_access": accessNames(o.access),
		"max_rd_atomic": rdAtomic, "timeout": o.timeout, "retry_cnt": o.retry,
		"rnr_retry": o.rnrRetry, "min_rnr_timer": o.rnrT,
	})
	gid, err := netip.ParseAddr(a.GID)
	if err != nil {
		t.Fatal(err)
	}
	return verbs.Endpoint{GID: gid.Unmap(), QPN: bth.QPN(a.QPN), PSN: bth.NewPSN(a.PSN)}
}

func (s *peerSide) connect(t *testing.T, remote verbs.Endpoint) {
	t.Helper()
	gid := netip.AddrFrom16(remote.GID.As16())
	s.call(t, "connect", object{"qpn": remote.QPN, "psn": remote.PSN.Value(), "gid": gid.String()})
}

func (s *peerSide) fail(t *testing.T) {
	t.Helper()
	s.call(t, "to_err", nil)
}

func (s *peerSide) state(t *testing.T) qp.State {
	t.Helper()
	name := s.call(t, "query_qp", nil).State
	for state := qp.Reset; state <= qp.Err; state++ {
		if state.String() == name {
			return state
		}
	}
	t.Fatalf("the peer reports the state %q", name)
	return 0
}

// element adds the one SGE of a work request; the peer takes no more.
func (s *peerSide) element(t *testing.T, o object, sges []mr.SGE) {
	t.Helper()
	switch len(sges) {
	case 0:
		o["length"] = 0
	case 1:
		for k, v := range s.at(t, sges[0].Addr) {
			o[k] = v
		}
		o["length"], o["lkey"] = sges[0].Length, sges[0].LKey
	default:
		t.Fatal("the peer takes one SGE")
	}
}

func (s *peerSide) postRecv(t *testing.T, wr qp.RecvWR) {
	t.Helper()
	o := object{"wr_id": wr.ID}
	s.element(t, o, wr.SGE)
	s.call(t, "post_recv", o)
}

var peerOps = map[qp.Op]string{
	qp.Send: "send", qp.SendImm: "send_imm", qp.RDMAWrite: "write", qp.RDMAWriteImm: "write_imm",
	qp.RDMARead: "read", qp.CmpSwap: "cas", qp.FetchAdd: "faa",
}

func (s *peerSide) postSend(t *testing.T, wr qp.SendWR) {
	t.Helper()
	o := object{
		"op": peerOps[wr.Op], "wr_id": wr.ID, "imm": wr.Imm, "remote_addr": wr.RemoteAddr, "rkey": wr.RKey,
		"compare_add": wr.CompareAdd, "swap": wr.Swap,
		"fence": wr.Flags&qp.Fence != 0,
	}
	if wr.Inline != nil {
		// The first MR is for this only.
		s.write(t, s.regions[0].addr, wr.Inline)
		wr.SGE = []mr.SGE{s.regions[0].sge(0, len(wr.Inline))}
		o["inline"] = true
	}
	s.element(t, o, wr.SGE)
	s.call(t, "post_send", o)
}

var peerOpcodes = map[string]cq.Opcode{
	"SEND": cq.OpSend, "RDMA_WRITE": cq.OpRDMAWrite, "RDMA_READ": cq.OpRDMARead, "COMP_SWAP": cq.OpCompSwap,
	"FETCH_ADD": cq.OpFetchAdd, "RECV": cq.OpRecv, "RECV_RDMA_WITH_IMM": cq.OpRecvRDMAWithImm,
}

func (s *peerSide) poll(t *testing.T, n int, limit time.Duration) (wcs []cq.WC) {
	t.Helper()
	a := s.call(t, "poll", object{"count": n, "timeout_ms": limit.Milliseconds()})
	for _, p := range a.WCs {
		wc := cq.WC{ID: p.WRID, Status: p.StatusCode, ByteLen: p.ByteLen, QPN: bth.QPN(p.QPNum)}
		if wc.Status == cq.Success {
			opcode, ok := peerOpcodes[p.Opcode]
			if !ok {
				t.Fatalf("the peer reports the opcode %q", p.Opcode)
			}
			wc.Opcode = opcode
		}
		if p.Imm != nil {
			wc.Flags, wc.Imm = cq.WithImm, *p.Imm
		}
		wcs = append(wcs, wc)
	}
	return wcs
}
