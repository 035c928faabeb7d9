package main

import (
	"fmt"
	"strings"

	"github.com/goroce/goroce/udp"
	"github.com/spf13/cobra"
)

// faultFlags is the flag --fault: what to do to the packets on purpose.
type faultFlags struct {
	faults faultRules
}

func (f *faultFlags) register(cmd *cobra.Command) {
	cmd.Flags().Var(&f.faults, "fault", "damage packets on purpose: a `RULE` such as 'drop p=1%'; may be repeated, see 'roce help faults'")
}

// faultRules is a pflag.Value that collects rules.
type faultRules []udp.FaultRule

// Set implements pflag.Value.
func (r *faultRules) Set(spec string) error {
	rules, err := udp.ParseFaults(spec)
	*r = append(*r, rules...)
	return err
}

// Type implements pflag.Value.
func (r *faultRules) Type() string { return "RULE" }

// String implements pflag.Value.
func (r *faultRules) String() string {
	var s []string
	for _, rule := range *r {
		s = append(s, rule.String())
	}
	return strings.Join(s, "; ")
}

// faultWords say what the fault counters count.
var faultWords = []struct{ counter, word string }{
	{"fault_dropped", "dropped"}, {"fault_duplicated", "duplicated"}, {"fault_delayed", "delayed"}, {"fault_reordered", "reordered"},
	{"fault_corrupted", "corrupted"}, {"fault_marked", "marked"}, {"fault_rewritten", "rewritten"},
}

// report says in one line what the rules did, from a device's counters. It also
// names the rules that found no packet: most often they are not what was meant.
func (r faultRules) report(stats map[string]uint64) string {
	var did, idle []string
	for _, w := range faultWords {
		if n := stats[w.counter]; n > 0 {
			did = append(did, fmt.Sprintf("%d %s", n, w.word))
		}
	}
	for i, rule := range r {
		if stats[fmt.Sprintf("fault_rule_%d", i+1)] == 0 {
			idle = append(idle, fmt.Sprintf("%q", rule))
		}
	}
	line := "Faults injected: none"
	if len(did) > 0 {
		line = "Faults injected: " + strings.Join(did, ", ")
	}
	if len(idle) > 0 {
		line += "; no packet was hit by " + strings.Join(idle, ", ")
	}
	return line
}

// newFaultsTopic is no command but a page of help.
func newFaultsTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "faults",
		Short: "How to damage packets on purpose with --fault",
		Long: `--fault RULE damages packets that this side sends or receives, to see how the peer
takes it. It needs no privilege and works towards any peer. The flag may be repeated,
and one flag may hold several rules with ; between them. A rule is an action and
selectors, separated by spaces or commas:

  ACTION [SELECTOR=VALUE …]

Actions
  drop               lose the packet
  dup[=COPIES]       send more copies of it, 1 to 8
  delay=TIME         hold it back, up to 1m
  reorder=PACKETS    let later packets of its queue pair overtake it, at most for 10ms
  corrupt            give it a wrong ICRC; a received one is lost
  ce                 mark it "congestion experienced" (ECN), as a switch does
  set FIELD=VALUE    change a header field; the ICRC is right for the new value.
                     +N and -N add to the field. Fields:
                     opcode se migreq pad tver pkey fecn becn resv6 destqp ackreq resv7 psn,
                     va rkey length (RETH, AtomicETH), swap compare, syndrome msn (AETH),
                     orig imm invkey qkey srcqp srq sel plt

Selectors by what the packet is; without any, a rule hits every packet sent
  dir=tx|rx|both     sent (default), received, or both
  op=NAME[|NAME …]   by opcode: send_last, write_only_imm, read_request, read_resp_middle,
                     ack, cmp_swap, …; uc_send_only for one transport; 0x11; or by class:
                     request response send write read_resp atomic first middle last only
                     imm inv rc uc ud xrc
  qp=N               by destination queue pair
  psn=+K  psn=+K-M   by PSN, +0 being the first one seen of the flow; psn=N for N itself
  try=K              the K-th packet with its PSN: 1 the original, 2 the first repetition

Selectors by count and chance, among the packets that the others choose
  n=K  n=K-M  n=K-   the K-th, the K-th to M-th, from the K-th on
  every=K            each K-th
  max=K              no more than K times
  p=P                with a probability of 0 to 1, or 0% to 100%
  seed=N             for the chance; the same seed and packets give the same faults

Examples
  --fault 'drop p=1%'                         lose 1 % of what we send
  --fault 'drop dir=rx op=ack n=1'            lose the first acknowledgement that comes
  --fault 'corrupt op=write_middle psn=+3 try=1'
                                              spoil one packet, and not its repetition
  --fault 'dup op=send_only every=10; delay=5ms p=0.1'
  --fault 'set rkey=+1 op=write_first n=2'    use a wrong key once
  --fault 'set syndrome=0x62 op=ack n=3'      refuse a request that was executed

What happened is counted: fault_dropped and so on, and fault_rule_1 for each rule.
docs/faults.md says what a correct peer does in answer.`,
	}
}
