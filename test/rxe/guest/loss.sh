#!/bin/sh
# loss.sh PERCENT: drop PERCENT of the packets of eth0 in each direction; 0 drops none.
# Arriving packets have no queue that netem could hold, so they pass through ifb0.
set -e

percent=$1

remove() {
	tc qdisc del dev eth0 root 2>/dev/null || true
	tc qdisc del dev eth0 ingress 2>/dev/null || true
	ip link del ifb0 2>/dev/null || true
}

add() {
	modprobe -a ifb act_mirred cls_matchall sch_netem sch_ingress
	ip link show ifb0 >/dev/null 2>&1 || ip link add ifb0 type ifb
	ip link set ifb0 mtu 4500 up
	# Deep queues: the only packets to drop are those that chance picks.
	tc qdisc add dev ifb0 root netem limit 100000 loss "$percent%"
	tc qdisc add dev eth0 root netem limit 100000 loss "$percent%"
	tc qdisc add dev eth0 ingress
	tc filter add dev eth0 ingress matchall action mirred egress redirect dev ifb0
}

remove
case $percent in
0 | 0.0) ;;
*) add ;;
esac
