#!/bin/sh
# Process 1 of the guest: brings up the network and rxe0, then runs the command
# server for ever. The addresses are those of lab.sh.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb

say() { echo "boot: $*" >/dev/console; }

mount_filesystems() {
	mount -t proc proc /proc
	mount -t sysfs sys /sys
	mount -t devtmpfs dev /dev
	mkdir -p /dev/pts /dev/shm
	ln -s /proc/self/fd /dev/fd
	ln -s /proc/self/fd/0 /dev/stdin
	ln -s /proc/self/fd/1 /dev/stdout
	ln -s /proc/self/fd/2 /dev/stderr
	mount -t devpts devpts /dev/pts
	mount -t tmpfs shm /dev/shm
	mount -t tmpfs run /run
	modprobe configfs
	mount -t configfs configfs /sys/kernel/config
}

start_network() {
	hostname rxe
	modprobe virtio_net
	# No duplicate address detection and no router solicitation: addresses are
	# usable at once, and captures hold only what a test sends.
	sysctl -q -w net.ipv6.conf.default.accept_dad=0 \
		net.ipv6.conf.default.accept_ra=0 \
		net.ipv6.conf.default.router_solicitations=0 \
		net.ipv6.conf.eth0.accept_dad=0 \
		net.ipv6.conf.eth0.accept_ra=0 \
		net.ipv6.conf.eth0.router_solicitations=0 \
		net.ipv6.conf.eth1.disable_ipv6=1
	ip link set lo up
	ip link set eth0 mtu 4500 up
	ip address add 198.18.0.2/24 dev eth0
	ip address add fd00:18::2/64 dev eth0 nodad
	ip link set eth1 up
	ip address add 198.18.1.2/30 dev eth1
}

start_rxe() {
	modprobe -a ib_uverbs rdma_ucm ib_umad rdma_rxe
	rdma link add rxe0 type rxe netdev eth0
	say "$(rdma link show rxe0/1)"
}

mount_filesystems
start_network
start_rxe
# As a child, not by exec: a shell as process 1 also reaps orphans, and a server
# that died is started again.
while true; do
	python3 /opt/goroce/command_server.py
	say "command server ended with status $?, starting it again"
	sleep 1
done
