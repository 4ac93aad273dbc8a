#!/bin/bash
# usage: unshare --mount boot.sh QUELL DIST SCRIPTS OUT
#
# Boots systemd on an overlay of this host's root, in namespaces and a cgroup of its own, with `quell` and the units of
# `dist` installed. It runs probe.sh as a unit and ends. OUT has what the probe prints. The host is not changed.
set -eu
if [ "${1:-}" != --in-namespaces ]; then
    cgroups=$(mktemp -d)
    mount -t cgroup2 cgroup2 "$cgroups"
    cgroup=$cgroups/quell-test-$$
    mkdir "$cgroup"
    (
        echo "$BASHPID" >"$cgroup/cgroup.procs"
        exec timeout --kill-after=5 300 unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --net \
            bash "$0" --in-namespaces "$@"
    ) || status=$?
    find "$cgroup" -depth -type d -exec rmdir {} +
    umount "$cgroups"
    rmdir "$cgroups"
    exit "${status:-0}"
fi
shift
quell=$1 dist=$2 scripts=$3 out=$4

work=$(mktemp -d)
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
root=$work/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$root"
for tmpfs in run tmp var/lib; do mount -t tmpfs tmpfs "$root/$tmpfs"; done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mkdir "$root/run/out"
mount --bind "$out" "$root/run/out"

install -m 755 "$quell" "$root/usr/bin/quell"
install -m 755 "$scripts/probe.sh" "$root/usr/bin/probe.sh"
rm -rf "$root/etc/quell" "$root"/etc/systemd/system/*
install -m 644 "$dist"/*.service "$scripts"/*.service "$root/etc/systemd/system/"
exec env -i container=other PATH="$PATH" chroot "$root" /lib/systemd/systemd --unit=probe.service
