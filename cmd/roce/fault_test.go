package main

import (
	"encoding/json"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goroce/goroce/udp"
)

func TestFaultRuleThatIsWrongIsWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"demo"}, {"pingpong", "rc"}, {"pingpong", "ud"}} {
		got := runRoce(t, nil, append(args, "--fault", "drop p=1%", "--fault", "drop op=akc")...)
		want := `roce: --fault: fault rule 1, word 2 "op=akc": there is no opcode or class "akc": is it ack?` +
			"\nSee 'roce " + strings.Join(args, " ") + " --help'.\n"
		if got != (result{2, "", want}) {
			t.Errorf("%v:\n got %+v\nwant %s", args, got, want)
		}
	}
}

func TestHelpFaults(t *testing.T) {
	got := runRoce(t, nil, "help", "faults")
	if got.code != 0 || got.err != "" || !strings.Contains(got.out, "ACTION [SELECTOR=VALUE …]") {
		t.Errorf("%+v", got)
	}
	if got := runRoce(t, nil); !strings.Contains(got.out, "roce faults") {
		t.Errorf("the topic is not listed: %s", got.out)
	}
	for line := range strings.Lines(got.out) {
		if n := len([]rune(line)); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Every rule that help or documentation shows must be one.
func TestFaultExamplesParse(t *testing.T) {
	doc, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	_, examples, _ := strings.Cut(string(doc), "## Examples")
	for _, row := range []struct {
		where, text, pattern string
		least                int
	}{
		{"docs/faults.md, examples", examples, "(?m)^\\| `([^`]+)`", 20},
		{"docs/faults.md", string(doc), `--fault '([^']+)'`, 3},
		{"help", newFaultsTopic().Long, `--fault '([^']+)'`, 6},
		{"help of demo", newDemoCommand().Example, `--fault '([^']+)'`, 1},
	} {
		found := regexp.MustCompile(row.pattern).FindAllStringSubmatch(row.text, -1)
		for _, m := range found {
			spec := strings.ReplaceAll(m[1], `\|`, "|") // as a table of Markdown needs it
			if rules, err := udp.ParseFaults(spec); err != nil || len(rules) == 0 {
				t.Errorf("%s: %q: %v", row.where, spec, err)
			}
		}
		if len(found) < row.least {
			t.Errorf("%s: %d rules found, want at least %d", row.where, len(found), row.least)
		}
	}
}

func TestFaultsReport(t *testing.T) {
	var r faultRules
	for _, spec := range []string{"drop p=1%; dup n=3", "ce op=ack"} {
		if err := r.Set(spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		stats map[string]uint64
		want  string
	}{
		{map[string]uint64{"fault_dropped": 3, "fault_duplicated": 1, "fault_rule_1": 3, "fault_rule_2": 1, "fault_marked": 2, "fault_rule_3": 2}, "Faults injected: 3 dropped, 1 duplicated, 2 marked"},
		{map[string]uint64{"fault_dropped": 3, "fault_rule_1": 3}, `Faults injected: 3 dropped; no packet was hit by "dup n=3", "ce op=ack"`},
		{nil, `Faults injected: none; no packet was hit by "drop p=0.01", "dup n=3", "ce op=ack"`},
	} {
		if got := r.report(row.stats); got != row.want {
			t.Errorf("\n got %s\nwant %s", got, row.want)
		}
	}
}

func TestDemoWithFaults(t *testing.T) {
	args := []string{"demo", "--addrs", "127.0.22.1,127.0.22.2", "--size", "10000", "--fault", "corrupt op=write_middle n=3", "--fault", "drop dir=rx op=ack n=2;ce n=999999"}
	got := runRoce(t, nil, args...)
	skipWithoutPort(t, got)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if strings.Contains(got.out, "Faults injected: none") {
		t.Errorf("the clean pass reports faults:\n%s", got.out)
	}
	for _, want := range []string{
		"wait only 8 ms for an acknowledgement",
		"— the same with faults at A: corrupt op=write_middle n=3; drop dir=rx op=ack n=2; ce n=999999 —",
		"A: Faults injected: 1 dropped, 1 corrupted; no packet was hit by \"ce n=999999\"\n",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is missing in\n%s", want, got.out)
		}
	}
}

func TestPingpongWithFaults(t *testing.T) {
	port := freePort(t)
	server := make(chan result, 1)
	go func() {
		server <- runRoce(t, nil, "pingpong", "rc", "--dev", "127.0.22.4", "--port", port, "--iters", "50", "--fault", "dup dir=rx op=send_last every=10;set migreq=0 n=7")
	}()
	client := runRoce(t, nil, "pingpong", "rc", "--dev", "127.0.22.3", "--port", port, "--iters", "50", "--check", "127.0.22.4", "--json", "--fault", "dup op=send_last n=3", "--fault", "set se=1 op=send_last n=5-7")
	text := <-server
	skipWithoutPort(t, client)
	skipWithoutPort(t, text)
	if client.code != 0 || text.code != 0 {
		t.Fatalf("client %+v\nserver %+v", client, text)
	}
	if !strings.HasSuffix(text.out, "\nFaults injected: 5 duplicated, 1 rewritten\n") {
		t.Errorf("%s", text.out)
	}
	var out pingpongResult
	if err := json.Unmarshal([]byte(client.out), &out); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{"fault_duplicated": 1, "fault_rewritten": 3, "fault_dropped": 0, "fault_rule_1": 1, "fault_rule_2": 3} {
		if got, ok := out.Counters[name]; !ok || got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// skipWithoutPort skips a test where UDP port 4791 cannot be had.
func skipWithoutPort(t *testing.T, r result) {
	t.Helper()
	if strings.Contains(r.err, "port 4791") || strings.Contains(r.err, "no interface of this host") {
		t.Skipf("needs UDP port 4791 on loopback: %s", r.err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
