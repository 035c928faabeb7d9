package rxe_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"
	"github.com/goroce/goroce/bth"
)

const captureMTU = 1024

// TestCaptureDecodesInTshark has an independent dissector look at what travels
// between goroce and rxe.
func TestCaptureDecodesInTshark(t *testing.T) {
	l := requireLab(t)
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Fatalf("needs tshark, of the Debian package of that name: %v", err)
	}
	r := l.record(t)
	stop := r.capture(t, "all.pcap", true)
	var packets uint64
	for i, d := range []direction{toRXE, fromRXE} {
		t.Run(fmt.Sprintf("traffic %d", i+1), func(t *testing.T) { packets += mixedTraffic(t, d, l, families[i]) })
	}
	stop()

	file := r.file("all.pcap")
	got, want := tsharkLines(t, file), captureLines(t, file)
	if uint64(len(want)) != packets || packets == 0 {
		t.Errorf("%d packets captured, %d sent and received", len(want), packets)
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("packet %d: tshark has\n%q, want\n%q", i+1, append(got, "nothing")[min(i, len(got))], want[i])
		}
	}
	if len(got) > len(want) {
		t.Errorf("tshark has %d packets more than the capture", len(got)-len(want))
	}
}

// mixedTraffic makes traffic of all operations, errors included, and returns how
// many packets it took.
func mixedTraffic(t *testing.T, d direction, l *lab, f family) uint64 {
	x := newExchange(t, d, l, f, captureMTU)
	testTransfers(t, x, 0, 1, captureMTU, 5*captureMTU+3)
	testAtomics(t, x)
	testInFlight(t, x)
	dev := x.host().dev
	sent := dev.Stats()
	return sent["sent_pkts"] + sent["rcvd_pkts"]
}

// The fields that are compared: of tshark, and of this project's own reading of the
// packet. tshark shows the ICRC's bytes in their order on the wire.
var (
	tsharkFields = []string{"infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.invariant.crc", "_ws.malformed"}
	lineFormat   = "%d\t%d\t0x%08x\t"
)

// payloadGuesses are tshark's guesses at what a payload is. Random bytes look like
// something malformed now and then.
var payloadGuesses = []string{
	"eth_over_ib", "fc_infiniband", "iser_infiniband", "lnet_ib", "mellanox_eoib", "nvme_rdma",
	"rpcrdma_infiniband", "sdp_infiniband", "smb_direct_infiniband", "smcr_infiniband",
}

func tsharkLines(t *testing.T, file string) []string {
	t.Helper()
	args := []string{"-n", "-r", file, "-T", "fields"}
	for _, f := range tsharkFields {
		args = append(args, "-e", f)
	}
	for _, name := range payloadGuesses {
		args = append(args, "--disable-heuristic", name)
	}
	out := run(t, exec.Command("tshark", args...))
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n")
}

// captureLines reads the packets of a capture and checks their ICRC, which tshark
// does not.
func captureLines(t *testing.T, file string) (lines []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	packets, err := pcapgo.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, _, err := packets.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		const ethernet, ipv4, ipv6, udp = 14, 20, 40, 8
		ip := frame[ethernet:]
		at := ipv4 + udp
		if ip[0]>>4 == 6 {
			at = ipv6 + udp
		}
		header, _, err := bth.ParseBTH(ip[at:])
		if err != nil {
			t.Fatalf("packet %d: %v", len(lines)+1, err)
		}
		computed, received, ok := bth.CheckDatagram(ip)
		if !ok || computed != received {
			t.Errorf("packet %d: ICRC is %#08x, not %#08x", len(lines)+1, received, computed)
		}
		lines = append(lines, fmt.Sprintf(lineFormat, header.Opcode, header.PSN.Value(), bits.ReverseBytes32(received)))
	}
}
