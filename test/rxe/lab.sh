#!/usr/bin/env bash
# A Linux rdma_rxe peer on a machine without RDMA: a stock kernel under QEMU, in a
# network namespace of its own. See README.md, or run: lab.sh help
set -euo pipefail

SELF=$(readlink -f "${BASH_SOURCE[0]}")
GUEST_FILES=$(dirname "$SELF")/guest
# Absolute, because QEMU changes its directory when it goes to the background.
CACHE=$(realpath -m "${GOROCE_RXE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/goroce/rxe}")
RUN_BASE=$(realpath -m "${GOROCE_RXE_RUN:-/tmp/goroce-rxe}")

SUITE=bookworm
HOST_PACKAGES=(qemu-system-x86 busybox-static cpio debootstrap debian-archive-keyring
	e2fsprogs iproute2 iputils-ping procps tcpdump kmod gzip)
GUEST_PACKAGES=(ibverbs-utils rdmacm-utils rdma-core perftest iproute2 ibverbs-providers
	nvme-cli tcpdump ethtool kmod iputils-ping qperf infiniband-diags python3-pyverbs
	busybox procps)
# In the order of dependence.
BOOT_MODULES=(virtio_ring virtio virtio_blk virtio_pci_modern_dev virtio_pci_legacy_dev
	virtio_pci crc32c-intel crc32c_generic jbd2 mbcache crc16 ext4)

# tap0 carries what is under test. Commands to the guest travel over tap1, so that
# they neither show up in captures nor suffer from the loss. guest/boot.sh holds the
# guest's addresses.
HOST_IPV4=198.18.0.1/24
HOST_IPV6=fd00:18::1/64
COMMAND_HOST_IPV4=198.18.1.1/30
COMMAND_GUEST=198.18.1.2
COMMAND_PORT=2222
MTU=4500

UP_SECONDS=180
EXEC_SECONDS=60
FILE_SECONDS=300
STATUS_DOWN=1
STATUS_USAGE=2
STATUS_NO_GUEST=125

usage() {
	cat <<-END
		Usage: lab.sh COMMAND [ARGUMENT...]      (as root)

		  install                        install what the host needs (Debian packages)
		  build                          build kernel, initrd and disk into the cache
		  up [NAME]                      make namespace goroce-NAME and boot the guest in it
		  down [NAME]                    stop the guest, remove the namespace
		  status [NAME]                  show the state; exits 1 when the guest is not usable
		  log [NAME]                     print the guest's serial log
		  exec [-n NAME] [-t SECONDS] COMMAND...
		                                 run a command in the guest, at most SECONDS (60)
		  put [-n NAME] FILE GUESTPATH   copy a file into the guest, with its mode
		  get [-n NAME] GUESTPATH FILE   copy a file out of the guest, with its mode
		  host [-n NAME] COMMAND...      run a command of the host inside the namespace
		  loss [-n NAME] PERCENT         drop PERCENT of the packets in each direction; 0 ends it
		  help                           print this

		NAME is "lab" unless given. Guests of different names have the same addresses and
		do not see each other: host side 198.18.0.1 and fd00:18::1, guest 198.18.0.2 and
		fd00:18::2. COMMAND is one argument for a shell, or several that are passed on
		as they are.

		exec exits with the status of the command; 124: it ran too long and was killed;
		125: the guest did not answer. Wrong usage exits 2, any other failure 1.

		Environment: GOROCE_RXE_CACHE (default ~/.cache/goroce/rxe) holds the images,
		GOROCE_RXE_RUN (default /tmp/goroce-rxe) with -NAME appended the state of a guest,
		GOROCE_RXE_CPUS (default 1) is how many processors 'up' gives it.

		Example:
		  lab.sh install && lab.sh build && lab.sh up
		  lab.sh exec 'ibv_rc_pingpong -d rxe0 -g 1 >/tmp/server.log 2>&1 &'
		  lab.sh host tcpdump -n -c 10 -i tap0 udp port 4791
		  lab.sh loss 1
		  lab.sh down
	END
}

main() {
	local command=${1:-}
	[[ $# -eq 0 ]] || shift
	case $command in
	help | -h | --help) usage ;;
	install | build | up | down | status | log | exec | put | get | host | loss)
		[[ $EUID -eq 0 ]] ||
			fail "namespaces and taps need root: run it with sudo, or in a root shell"
		"cmd_$command" "$@"
		;;
	_client) client "$@" ;;
	'') wrong_usage "no command given" ;;
	*) wrong_usage "unknown command '$command'" ;;
	esac
}

fail() {
	echo "lab.sh: $*" >&2
	exit 1
}

wrong_usage() {
	echo "lab.sh: $*; 'lab.sh help' shows the usage" >&2
	exit "$STATUS_USAGE"
}

say() { echo "lab.sh: $*"; }

# Sets NAME and all that follows from it.
select_lab() {
	NAME=$1
	[[ $NAME =~ ^[a-z0-9][a-z0-9-]{0,30}$ ]] ||
		wrong_usage "bad name '$NAME' (small letters, digits and '-')"
	NETNS=goroce-$NAME
	RUN=$RUN_BASE-$NAME
}

# For the commands that take nothing but a name.
select_only_argument() {
	[[ $# -le 1 ]] || wrong_usage "one NAME at most, not '$*'"
	select_lab "${1:-lab}"
}

# Reads -n and -t; sets SECONDS_LIMIT, and OPTIONS to the number of arguments used.
select_by_options() {
	local option name=lab OPTIND=1 OPTARG
	SECONDS_LIMIT=$EXEC_SECONDS
	while getopts ':n:t:' option; do
		case $option in
		n) name=$OPTARG ;;
		t) SECONDS_LIMIT=$OPTARG ;;
		:) wrong_usage "option -$OPTARG needs a value" ;;
		*) wrong_usage "unknown option -$OPTARG" ;;
		esac
	done
	[[ $SECONDS_LIMIT =~ ^[1-9][0-9]{0,5}$ ]] ||
		wrong_usage "bad number of seconds '$SECONDS_LIMIT'"
	OPTIONS=$((OPTIND - 1))
	select_lab "$name"
}

# ---- install ----

cmd_install() {
	[[ $# -eq 0 ]] || wrong_usage "install takes no argument"
	command -v apt-get >/dev/null || fail "no apt-get here: the lab needs a Debian 12 host"
	local missing
	mapfile -t missing < <(missing_packages)
	if [[ ${#missing[@]} -eq 0 ]]; then
		say "nothing to install"
		return
	fi
	say "installing ${missing[*]}"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		"${missing[@]}" >/dev/null
}

missing_packages() {
	local package
	for package in "${HOST_PACKAGES[@]}"; do
		# shellcheck disable=SC2016 # dpkg-query's own variable
		dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null |
			grep -qx installed || echo "$package"
	done
}

# ---- build ----

cmd_build() {
	[[ $# -eq 0 ]] || wrong_usage "build takes no argument"
	mkdir -p "$CACHE"
	exec 8>"$CACHE/lock"
	flock 8
	if cache_valid; then
		say "up to date in $CACHE"
		return
	fi
	[[ -z $(missing_packages) ]] || fail "packages are missing: run 'lab.sh install' first"
	local started=$SECONDS
	rm -rf --one-file-system "$CACHE"/build.* # of builds that were killed
	WORK=$(mktemp -d "$CACHE/build.XXXXXX")
	trap 'rm -rf --one-file-system "$WORK"' EXIT
	build_kernel
	build_root
	build_initrd
	build_disk
	publish
	say "built in $((SECONDS - started)) s, in $CACHE"
}

cache_valid() { [[ $(cat "$CACHE/stamp" 2>/dev/null) == "$(recipe_hash)" ]]; }

# The recipe is what decides on the content of the cache: the functions below and
# their lists. The files in guest/ are no part of it: `up` adds them to the initrd.
recipe_hash() {
	{
		declare -p SUITE GUEST_PACKAGES BOOT_MODULES
		declare -f build_kernel kernel_package build_root mirror apt_proxy build_initrd build_disk
	} | sha256sum | cut -d ' ' -f 1
}

# The kernel is only unpacked: installing it would touch the host's boot loader.
build_kernel() {
	local package
	package=$(kernel_package)
	[[ -n $package ]] ||
		fail "apt knows no linux-image-amd64 package: the build needs Debian 12 (run apt-get update?)"
	say "kernel: $package"
	mkdir "$WORK/kernel"
	# The download's own user may not enter a directory that belongs to root.
	(cd "$WORK" && apt-get download -qq -o APT::Sandbox::User=root "$package")
	dpkg-deb -x "$WORK/$package"_*.deb "$WORK/kernel"
	cp "$WORK"/kernel/boot/vmlinuz-* "$WORK/vmlinuz"
	KERNEL_VERSION=$(basename "$WORK"/kernel/lib/modules/*)
}

# Unsigned will do: nothing here checks a signature. The cloud kernel lacks rdma_rxe.
kernel_package() {
	apt-cache depends linux-image-amd64 2>/dev/null |
		sed -n 's/^ *Depends: \(linux-image-[0-9].*-amd64\)$/\1-unsigned/p'
}

build_root() {
	local url proxy packages
	url=$(mirror)
	[[ -n $url ]] || fail "apt has no source with $SUITE main: add one to its sources"
	proxy=$(apt_proxy)
	packages=$(IFS=, && echo "${GUEST_PACKAGES[*]}")
	say "root file system: debootstrap $SUITE, about 90 s"
	http_proxy=${proxy:-${http_proxy:-}} debootstrap --variant=minbase --include="$packages" \
		"$SUITE" "$WORK/root" "$url" >"$WORK/debootstrap.log" 2>&1 ||
		fail "debootstrap failed: $(tail -n 5 "$WORK/debootstrap.log")"
	rm -rf "$WORK"/root/var/cache/apt/* "$WORK"/root/var/lib/apt/lists/*
	# Drivers of hardware that QEMU does not show only fill the disk.
	rm -rf "$WORK"/kernel/lib/modules/*/kernel/{sound,drivers/{gpu,media,net/wireless}}
	cp -a "$WORK/kernel/lib/modules" "$WORK/root/usr/lib/"
	depmod -b "$WORK/root" "$KERNEL_VERSION"
}

# The mirror is the one that this machine's apt uses.
mirror() {
	# shellcheck disable=SC2016 # apt's own variable
	apt-get indextargets --format '$(REPO_URI)' \
		'Created-By: Packages' "Release: $SUITE" 'Component: main' 'Origin: Debian' | sed -n 1p
}

apt_proxy() {
	local PROXY=
	eval "$(apt-config shell PROXY Acquire::http::Proxy)"
	echo "$PROXY"
}

build_initrd() {
	local tree=$WORK/initrd index=0 module file
	mkdir -p "$tree"/{bin,dev,proc,root,modules}
	cp "$(command -v busybox)" "$tree/bin/busybox"
	for module in "${BOOT_MODULES[@]}"; do
		file=$(find "$WORK/kernel/lib/modules" -name "$module.ko")
		[[ -n $file ]] || fail "the kernel has no module $module: BOOT_MODULES in lab.sh needs a change"
		cp "$file" "$tree/modules/$(printf %02d "$index")-$module.ko"
		index=$((index + 1))
	done
	pack_initrd "$tree" >"$WORK/initrd.gz"
}

pack_initrd() { (cd "$1" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1); }

# mke2fs fills the file system itself, so nothing has to be mounted.
build_disk() {
	mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$WORK/root" "$WORK/disk.img" 2G >/dev/null
}

# The stamp goes first and comes last: an interrupted move leaves an invalid cache. A
# running guest keeps its own, now unnamed, files.
publish() {
	rm -f "$CACHE/stamp"
	mv "$WORK/vmlinuz" "$WORK/initrd.gz" "$WORK/disk.img" "$CACHE/"
	recipe_hash >"$CACHE/stamp"
}

# ---- up ----

cmd_up() {
	select_only_argument "$@"
	cache_valid || fail "no valid images in $CACHE: run 'lab.sh build' first"
	claim_run_dir
	if guest_healthy; then
		say "'$NAME' is already up"
		return
	fi
	stop_guest
	remove_netns
	local started=$SECONDS
	make_netns
	boot_guest
	wait_for_guest
	say "'$NAME' is up after $((SECONDS - started)) s: rxe0 at 198.18.0.2 (GID index 1)" \
		"and fd00:18::2 (2), namespace $NETNS"
}

# Files in a directory that somebody else owns could be swapped under us. The lock
# keeps two `up` or `down` of one name apart.
claim_run_dir() {
	mkdir -p "$(dirname "$RUN")"
	mkdir -m 700 "$RUN" 2>/dev/null || true # it may be there already
	[[ -d $RUN && -O $RUN && ! -L $RUN ]] ||
		fail "$RUN is not a directory of ours: remove it, or set GOROCE_RXE_RUN to another place"
	exec 9>"$RUN/lock"
	flock 9
	# Another `down` may have removed the directory in the meantime.
	[[ $RUN/lock -ef /dev/fd/9 ]] || claim_run_dir
}

make_netns() {
	ip netns add "$NETNS"
	ip -n "$NETNS" link set lo up
	make_tap tap0 "$MTU"
	make_tap tap1 1500
	in_netns sysctl -q -w net.ipv6.conf.tap1.disable_ipv6=1 \
		net.ipv6.conf.tap0.accept_dad=0 net.ipv6.conf.tap0.router_solicitations=0
	# A guest that hangs should be noticed in seconds, not in two minutes.
	in_netns sysctl -q -w net.ipv4.tcp_syn_retries=2
	ip -n "$NETNS" address add "$HOST_IPV4" dev tap0
	ip -n "$NETNS" address add "$HOST_IPV6" dev tap0 nodad
	ip -n "$NETNS" address add "$COMMAND_HOST_IPV4" dev tap1
}

make_tap() {
	ip -n "$NETNS" tuntap add dev "$1" mode tap ||
		fail "cannot make a tap: this needs /dev/net/tun (load the module tun, or give the container the device)"
	ip -n "$NETNS" link set "$1" mtu "$2" up
}

in_netns() { ip netns exec "$NETNS" "$@"; }

boot_guest() {
	pack_boot_files
	rm -f "$RUN/serial.log"
	local accelerators=(-accel 'tcg,thread=multi')
	! kvm_usable || accelerators=(-accel kvm "${accelerators[@]}")
	# QEMU outlives this script and must hold neither lock nor output.
	in_netns qemu-system-x86_64 -name "$NETNS" -M q35 "${accelerators[@]}" -cpu max \
		-smp "${GOROCE_RXE_CPUS:-1}" -m 1024 -no-reboot -nodefaults -display none -monitor none -serial "file:$RUN/serial.log" \
		-kernel "$CACHE/vmlinuz" -initrd "$RUN/initrd.gz" \
		-append "console=ttyS0 quiet mitigations=off nokaslr tsc=reliable panic=-1 net.ifnames=0" \
		-drive "file=$CACHE/disk.img,if=virtio,format=raw,snapshot=on" \
		-netdev tap,id=n0,ifname=tap0,script=no,downscript=no \
		-device "virtio-net-pci,netdev=n0,mac=52:54:00:12:00:02,mrg_rxbuf=on,host_mtu=$MTU,romfile=" \
		-netdev tap,id=n1,ifname=tap1,script=no,downscript=no \
		-device "virtio-net-pci,netdev=n1,mac=52:54:00:12:01:02,romfile=" \
		-daemonize -pidfile "$RUN/qemu.pid" >"$RUN/qemu.log" 2>&1 8>&- 9>&- ||
		fail "QEMU does not start: $(tail -n 3 "$RUN/qemu.log")"
}

# The guest's scripts travel in a second archive behind the initrd, so that a change
# to them needs no build.
pack_boot_files() {
	local tree=$RUN/initrd
	rm -rf "$tree"
	mkdir -p "$tree/goroce"
	cp "$GUEST_FILES/init.sh" "$tree/init"
	cp "$GUEST_FILES"/*.sh "$GUEST_FILES"/*.py "$tree/goroce/"
	chmod 755 "$tree/init" "$tree"/goroce/*
	{ cat "$CACHE/initrd.gz" && pack_initrd "$tree"; } >"$RUN/initrd.gz"
	rm -rf "$tree"
}

# A /dev/kvm alone proves nothing: without the CPU's extension a guest may start under
# it and yet never run.
kvm_usable() { [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; }

wait_for_guest() {
	local deadline=$((SECONDS + UP_SECONDS))
	until guest_healthy; do
		[[ -n $(qemu_pid) ]] || give_up "the guest ended while it booted"
		((SECONDS < deadline)) || give_up "the guest was not ready within $UP_SECONDS s"
		sleep 0.5
	done
}

give_up() {
	tail -n 30 "$RUN/serial.log" >&2 || true
	tail -n 3 "$RUN/qemu.log" >&2 || true
	stop_guest
	remove_netns
	fail "$1; above is the end of $RUN/serial.log"
}

# The GID of the IPv4 address has to be there too: it is the one that tests use.
guest_healthy() {
	[[ -n $(qemu_pid) ]] || return 1
	timeout 15 ip netns exec "$NETNS" bash "$SELF" _client 10 '
		grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state &&
		grep -q :ffff:c612:0002 /sys/class/infiniband/rxe0/ports/1/gids/1' >/dev/null 2>&1
}

# Prints the pid of our QEMU, nothing when it does not run. A pid alone proves
# nothing: it may have been given to another process since.
qemu_pid() {
	local pid arguments
	pid=$(cat "$RUN/qemu.pid" 2>/dev/null) || return 0
	arguments=$(tr '\0' ' ' <"/proc/$pid/cmdline") 2>/dev/null || return 0
	[[ $arguments != *"-pidfile $RUN/qemu.pid "* ]] || echo "$pid"
}

# ---- down, status, log ----

cmd_down() {
	select_only_argument "$@"
	if [[ ! -e $RUN && ! -e /run/netns/$NETNS ]]; then
		say "'$NAME' is not up"
		return
	fi
	claim_run_dir
	stop_guest
	remove_netns
	rm -rf "$RUN"
	say "'$NAME' is down"
}

stop_guest() {
	local pid tries
	pid=$(qemu_pid)
	[[ -z $pid ]] || kill "$pid"
	for ((tries = 0; tries < 50; tries++)); do
		[[ -n $(qemu_pid) ]] || break
		sleep 0.1
	done
	pid=$(qemu_pid)
	[[ -z $pid ]] || kill -KILL "$pid"
	rm -f "$RUN/qemu.pid"
}

remove_netns() {
	[[ -e /run/netns/$NETNS ]] || return 0
	local pids
	pids=$(ip netns pids "$NETNS" | xargs)
	[[ -z $pids ]] || say "warning: still running in $NETNS, which stays as long as they do: $pids" >&2
	ip netns del "$NETNS"
}

cmd_status() {
	select_only_argument "$@"
	local pid
	pid=$(qemu_pid)
	if [[ -z $pid ]]; then
		say "'$NAME' is down"
		return "$STATUS_DOWN"
	fi
	say "'$NAME' runs: namespace $NETNS, QEMU pid $pid for $(ps -o etime= -p "$pid" | xargs), files in $RUN"
	if ! guest_healthy; then
		say "the guest does not answer: see 'lab.sh log $NAME', then 'lab.sh down $NAME'"
		return "$STATUS_DOWN"
	fi
	in_guest 20 'rdma link show rxe0/1; tc qdisc show dev eth0 root; tc qdisc show dev ifb0 2>/dev/null || true'
}

cmd_log() {
	select_only_argument "$@"
	[[ -e $RUN/serial.log ]] || fail "no log of '$NAME': it has not been started (lab.sh up $NAME)"
	cat "$RUN/serial.log"
}

# ---- exec, put, get, host, loss ----

cmd_exec() {
	select_by_options "$@"
	shift "$OPTIONS"
	[[ $# -gt 0 ]] || wrong_usage "exec needs a command"
	require_up
	# By exec: whoever kills this process kills the client, and so ends the command.
	exec ip netns exec "$NETNS" bash "$SELF" _client "$SECONDS_LIMIT" "$(shell_command "$@")"
}

# One argument is a command line already; several become one that yields them again.
shell_command() {
	if [[ $# -eq 1 ]]; then
		printf '%s' "$1"
	else
		printf '%q ' "$@"
	fi
}

require_up() {
	[[ -n $(qemu_pid) ]] || fail "'$NAME' is not up: run 'lab.sh up $NAME' first"
}

in_guest() { in_netns bash "$SELF" _client "$@"; }

cmd_put() {
	select_by_options "$@"
	shift "$OPTIONS"
	[[ $# -eq 2 ]] || wrong_usage "put needs FILE and GUESTPATH"
	[[ -f $1 ]] || fail "'$1' is not a file that can be copied"
	require_up
	local path
	path=$(printf %q "$2")
	# By way of a second name: a program that runs cannot be overwritten.
	in_guest "$FILE_SECONDS" \
		"cat >$path.part && chmod $(stat -L -c %a "$1") $path.part && mv -T $path.part $path" "$1"
}

cmd_get() {
	select_by_options "$@"
	shift "$OPTIONS"
	[[ $# -eq 2 ]] || wrong_usage "get needs GUESTPATH and FILE"
	[[ ! -d $2 ]] || fail "'$2' is a directory: name the file to write"
	require_up
	local path mode
	path=$(printf %q "$1")
	mode=$(in_guest "$EXEC_SECONDS" "stat -L -c %a $path")
	in_guest "$FILE_SECONDS" "cat $path" >"$2.part" || {
		rm -f "$2.part"
		fail "'$1' did not arrive whole"
	}
	chmod "$mode" "$2.part"
	mv -T "$2.part" "$2"
}

cmd_host() {
	select_by_options "$@"
	shift "$OPTIONS"
	[[ $# -gt 0 ]] || wrong_usage "host needs a command"
	[[ -e /run/netns/$NETNS ]] || fail "'$NAME' is not up: run 'lab.sh up $NAME' first"
	[[ $# -gt 1 ]] || set -- bash -c "$1"
	exec ip netns exec "$NETNS" "$@"
}

cmd_loss() {
	select_by_options "$@"
	shift "$OPTIONS"
	[[ $# -eq 1 && $1 =~ ^(100|[0-9]{1,2}(\.[0-9]+)?)$ ]] ||
		wrong_usage "loss needs a PERCENT from 0 to 100"
	require_up
	in_guest "$EXEC_SECONDS" "/opt/goroce/loss.sh $1"
}

# ---- the client of guest/command_server.py, which describes the protocol ----

# client SECONDS COMMAND [STDIN_FILE], in the namespace. The server keeps the time;
# the client only notices when nothing comes from it any more.
client() {
	local seconds=$1 command=$2 stdin_file=${3:-} kind value
	local LC_ALL=C stdin_size=0
	[[ -z $stdin_file ]] || stdin_size=$(stat -L -c %s "$stdin_file")
	{ exec 3<>"/dev/tcp/$COMMAND_GUEST/$COMMAND_PORT"; } 2>/dev/null ||
		no_guest "the guest's command server cannot be reached"
	printf 'run %d %d %d\n%s' "$seconds" "${#command}" "$stdin_size" "$command" >&3
	[[ -z $stdin_file ]] || cat "$stdin_file" >&3
	while read -r -t $((seconds + 10)) -u 3 kind value; do
		case $kind in
		out) copy_bytes "$value" ;;
		err) copy_bytes "$value" >&2 ;;
		exit) exit "$value" ;;
		*) no_guest "the guest's command server sent '$kind $value'" ;;
		esac
	done
	no_guest "the guest did not answer to the end"
}

# Neither `read` nor `head -c` takes more from a socket than asked for.
copy_bytes() { timeout --foreground 30 head -c "$1" <&3; }

no_guest() {
	echo "lab.sh: $*: see 'lab.sh log', then 'lab.sh down' and 'lab.sh up'" >&2
	exit "$STATUS_NO_GUEST"
}

main "$@"
