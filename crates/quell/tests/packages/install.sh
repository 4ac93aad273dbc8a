#!/bin/bash
# usage: unshare --mount --net --pid --fork install.sh ROOT_TAR PACKAGE OUT
#
# Unpacks a root, installs PACKAGE in it, uses what it has, upgrades, removes and purges it. OUT has what each step
# printed, and the files of the root before and after.
set -eux
tar=$1 package=$2 out=$3
root=$(mktemp -d)
mount -t tmpfs tmpfs "$root"
tar -C "$root" -xf "$tar"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --bind /dev "$root/dev"
ip link set lo up

inside() { chroot "$root" env -i PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root LC_ALL=C.UTF-8 "$@"; }
# Package managers keep databases, logs and caches.
files() {
    (cd "$root" && find . -xdev \
        \( -path ./tmp -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log -o -path ./var/cache \) \
        -prune -o -print | sort) >"$out/$1"
}
case $package in
    *.deb)
        cp "$package" "$root/tmp/quell.deb"
        install() { inside dpkg -i /tmp/quell.deb; }
        upgrade() { inside dpkg -i /tmp/quell.deb; }
        remove() { inside dpkg -r quell; }
        purge() { inside dpkg -P quell; }
        ;;
    *.rpm)
        # Directories that the package `filesystem`, or the shell, has in a distribution with rpm.
        mkdir -p "$root"/usr/share/{fish/vendor_completions.d,zsh/site-functions,licenses}
        # The root has no database of rpm that would list its C library.
        rpm() { command rpm --root "$root" --dbpath /var/lib/rpm "$@"; }
        install() { rpm -i --nodeps "$package"; }
        upgrade() { rpm -U --nodeps --replacepkgs "$package"; }
        remove() { rpm -e quell; }
        # An rpm leaves results.
        purge() { rm -r "$root/var/lib/quell/results" && rmdir "$root/var/lib/quell"; }
        ;;
esac
limit() { cat /proc/sys/net/core/somaxconn; }
limit >"$out/limit.before"

files before
install
files installed
inside quell --version >"$out/version"
inside quell doctor -j >"$out/doctor" || true
inside quell show -j >"$out/show"
inside quell bench --on sim --quick >"$out/bench" 2>&1 || true
inside man -P cat quell-attach >"$out/man"
inside man -P cat 7 quell >"$out/man7"
inside bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader quell
    COMP_WORDS=(quell att) COMP_CWORD=1 COMP_TYPE=9; _clap_complete_quell quell att quell; echo "${COMPREPLY[@]}"' >"$out/completion"

printf '[sysctl]\n"net.core.somaxconn" = 77\n' >"$root/tmp/host.toml"
inside quell apply /tmp/host.toml
limit >"$out/limit.applied"
upgrade
limit >"$out/limit.upgraded"
remove
limit >"$out/limit.removed"
purge
files purged
touch "$out/complete"
