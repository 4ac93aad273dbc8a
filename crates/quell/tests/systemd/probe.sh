#!/bin/bash
# Runs in the container of boot.sh: a device with a NAPI instance, memcached as a unit, and the units of Quell.
set -eu
cd /run/out

ip link set lo up
ip netns add client
ip link add q0 type veth peer name q1 netns client
ethtool -K q0 gro on
ip netns exec client ethtool -K q1 tso off
ip addr add 10.99.0.1/24 dev q0
ip link set q0 up
ip -n client addr add 10.99.0.2/24 dev q1
ip -n client link set q1 up

# settings FILE: those of the NAPI instance, and the journals of Quell
settings() {
    quell show -j --device q0 >"$1.show"
    quell status -j >"$1.status" || true
    systemctl show --value -p MainPID quell-attach@memcached >"$1.runs"
}

load() { ip netns exec client quell load 10.99.0.1:11211 --rate 2K --warm-up 0 --seconds "$1"; }

systemctl start memcached
until load 0.1; do sleep 0.1; done

settings before
load 280 &
# wait_for NS: until the NAPI instance has this gro-flush-timeout. The default of the device comes before the instances.
wait_for() {
    until quell show -j --device q0 | sed -n '/"napis"/,$p' | grep -q "\"gro-flush-timeout-ns\": $1,"; do sleep 0.1; done
}

systemctl start quell-attach@memcached
wait_for 200000
settings attached
systemctl stop quell-attach@memcached
settings left
quell detach --all
settings detached

# The keeper restores the settings, and systemd starts the unit again.
systemctl start quell-attach@memcached
wait_for 200000
systemctl kill --kill-whom=main --signal=KILL quell-attach@memcached
wait_for 0
wait_for 200000
settings restarted
mkdir /etc/quell
printf '[device.q]\nname = "q0"\nqueues.all.mode = "defer30"\n' >/etc/quell/test.toml
systemctl stop quell-attach@memcached
quell detach --all
systemctl start quell
settings applied
systemctl start quell-attach@memcached
wait_for 200000
settings both
# What an upgrade does: the program is replaced, and the units restarted. No queue changes, and no journal ends.
ip netns exec client quell load 10.99.0.1:11211 --rate 2K --warm-up 0 --seconds 10 -j >upgrade.load &
during=$!
(set +x; while sleep 0.2; do quell show -j --device q0 | sed -n '/"napis"/,$p' | grep '"gro-flush-timeout-ns"'; done) >every-look &
looks=$!
cp /usr/bin/quell /usr/bin/quell.new
mv /usr/bin/quell.new /usr/bin/quell
systemctl restart quell
settings upgraded
systemctl stop quell
settings stopped
systemctl start quell
settings started
systemctl restart quell-attach@memcached
settings handed_over
systemctl stop quell-attach@memcached
settings kept
systemctl start quell-attach@memcached
settings continued
wait $during
kill $looks
# A newer version has begun a journal of another format. The older program leaves it, and undoes its own.
begin=$(sed -n '1s,^[^ ]* \(.*quell-journal/\)[0-9]*,\199,p' /var/lib/quell/journal/attach-*.journal)
crc=$(printf %s "$begin" | gzip | tail -c 8 | od -An -tx4 -N4 | tr -d ' ')
echo "$crc $begin" >/var/lib/quell/journal/newer.journal
if quell status >newer.log 2>&1; then touch newer-understood; fi
if quell revert >>newer.log 2>&1; then touch newer-understood; fi
rm /var/lib/quell/journal/newer.journal
systemctl restart quell
systemctl start quell-attach@memcached
wait_for 200000
systemctl stop quell-attach@memcached
quell detach --all
wait_for 30000
printf '[device.q]\nname = "q0"\nqueues.all.mode = "defer40"\n' >/etc/quell/test.toml
if systemctl restart quell; then touch changed; fi
settings refused
quell revert
systemctl restart quell
settings changed_profile
# What removal of the package does.
systemctl start quell-attach@memcached
wait_for 200000
systemctl stop 'quell-attach@*.service' quell.service
settings stopped_for_removal
quell revert
settings reverted
kill %1

# nginx: the mode and options of a drop-in, as `systemctl edit` and the Ansible role write it.
mkdir /var/lib/nginx /run/systemd/system/quell-attach@nginx.service.d
cat >/run/nginx.conf <<'END'
error_log stderr;
pid /run/nginx.pid;
events {}
http { access_log off; server { listen 80 reuseport; return 200 hello; } }
END
cat >/run/systemd/system/quell-attach@nginx.service.d/mode.conf <<'END'
[Service]
Environment=QUELL_MODE=suspend50 "QUELL_OPTIONS=--steer --pin"
END
systemctl daemon-reload
systemctl start nginx
systemctl start quell-attach@nginx
ip netns exec client quell load 10.99.0.1:80 --rate 2K --warm-up 0 --seconds 60 &
wait_for 50000
settings steered
tr '\0' ' ' <"/proc/$(systemctl show --value -p MainPID quell-attach@nginx)/cmdline" >steered.command
quell detach --all
settings unsteered
kill %1

systemctl start quell-export
scrape() {
    exec 3<>/dev/tcp/127.0.0.1/9955
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    cat <&3 >metrics
}
until scrape 2>/dev/null && grep -q '^quell_queue_polls_total.* [1-9]' metrics; do load 0.5; done
systemctl stop quell-export
touch complete
