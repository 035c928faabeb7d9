#!/bin/busybox sh
# shellcheck shell=dash
# First program of the guest, run from the initrd: finds the disk, puts the lab's
# own scripts on it and hands over to boot.sh. The disk is a snapshot, so nothing
# of this outlives the guest.

bb=/bin/busybox

$bb mount -t devtmpfs dev /dev
# The names carry a number, so that the glob yields the order of dependence.
# One that does not fit this CPU (crc32c-intel) may fail: a generic one follows.
for module in /modules/*.ko; do
	$bb insmod "$module" 2>/dev/null
done

tries=0
while [ ! -b /dev/vda ]; do
	tries=$((tries + 1))
	if [ $tries -gt 100 ]; then
		echo "init: no disk /dev/vda after 10 s"
		$bb poweroff -f
	fi
	$bb sleep 0.1
done

$bb mount -t ext4 /dev/vda /root
$bb mkdir -p /root/opt/goroce
$bb cp /goroce/* /root/opt/goroce/
exec $bb switch_root /root /opt/goroce/boot.sh
