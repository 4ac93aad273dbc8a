//! Edits that cause findings about devices and the host.

use super::*;

/// Links that are down, and are no problem.
pub(super) fn harmless_links() -> Vec<HarmlessEdit> {
    let down = |reason, more: Vec<(&'static str, Value)>| {
        harmless("missing-queue", reason, [("/devices/0/is-up", json!(false))].into_iter().chain(more).collect())
    };
    vec![
        down("another device receives", vec![("/devices/-", second_device())]),
        down("the device was never used", vec![("/devices/0/counters/rx-packets", json!(0))]),
        down("nobody else can send to the program", vec![("/sockets/0/local", json!("127.0.0.1:11211"))]),
        down("the program is bound to another device", vec![("/sockets/0/bound-to", json!(3))]),
        harmless(
            "packets-dropped",
            "its queues were created again, so its link was down",
            vec![("/devices/0/rx-queue-dropped", json!(9)), ("/devices/0/napis/0/id", json!(9_999))],
        ),
    ]
}

/// A device that receives, without queues.
fn second_device() -> Value {
    let mut second = healthy()["devices"][0].clone();
    (second["ifindex"], second["name"], second["napis"]) = (json!(3), json!("eth1"), json!([]));
    second
}

pub(super) fn of_devices_and_host() -> Vec<Edit> {
    use Severity::{CannotTell, Note, Serious, Warning};
    let unknown = |why: Value| json!({"unknown": {"reason": why, "message": "read it: no"}});
    let mut peer = healthy()["devices"][0].clone();
    peer["ifindex"] = json!(3);
    peer["name"] = json!("peer0");
    peer["napis"] = json!([]);
    let many: Value = (0..200_u64)
        .map(|inode| json!({"fd": 100 + inode, "events": 1, "file": {"socket": {"inode": 1_000 + inode}}}))
        .collect();
    let sockets: Value = (0..200_u64)
        .map(|inode| {
            let mut socket = healthy()["sockets"][1].clone();
            socket["inode"] = json!(1_000 + inode);
            socket
        })
        .collect();
    vec![
        edit(
            "deferral-incomplete",
            Warning,
            vec![
                ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(0)),
                ("/devices/0/napis/0/gro-flush-timeout-ns", json!(0)),
            ],
        ),
        edit("deferral-without-effect", Warning, vec![("/irqs/0/counts", json!([[0, 104_000]]))]),
        edit(
            "deferral-without-effect",
            CannotTell,
            vec![("/devices/0/rx-queues/0/counters/rx-packets", json!(1_000_100))],
        ),
        edit(
            "gro-flush-below-request-time",
            Warning,
            vec![
                ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(0)),
                ("/devices/0/napis/0/gro-flush-timeout-ns", json!(5_000)),
            ],
        ),
        edit("sysfs-differs", Note, vec![("/devices/0/defaults/defer-hard-irqs", json!(0))]),
        edit("settings-not-kept", Note, vec![("/devices/0/driver/driver", json!("veth"))]),
        edit("settings-not-kept", CannotTell, vec![("/devices/0/driver/driver", json!("idpf"))]),
        edit("settings-not-kept", CannotTell, vec![("/kernel/release", json!("6.12.9"))]),
        edit("adaptive-moderation", Note, vec![("/devices/0/coalescing", json!({"use-adaptive-rx": 1}))]),
        edit("adaptive-moderation", Note, vec![("/devices/0/rx-queues/0/coalescing", json!({"use-adaptive-rx": 1}))]),
        edit("missing-queue", Serious, vec![("/devices/0/is-up", json!(false))]),
        edit(
            "missing-queue",
            Serious,
            vec![
                ("/devices/0/is-up", json!(false)),
                ("/sockets/0/bound-to", json!(2)),
                ("/devices/-", second_device()),
            ],
        ),
        edit("gro-off", Warning, vec![("/devices/0/features/rx-gro/active", json!(false))]),
        edit(
            "tso-bypasses-napi",
            Warning,
            vec![
                ("/devices/0/kind", json!("veth")),
                ("/devices/0/lower", json!({"ifindex": 3, "is-in-other-namespace": false})),
                ("/devices/-", peer),
            ],
        ),
        edit("rps-on-polled-queue", Warning, vec![("/devices/0/rx-queues/0/rps-cpus", json!("2"))]),
        edit(
            "small-ring-many-connections",
            Warning,
            vec![
                ("/devices/0/kind", json!("veth")),
                ("/processes/0/files/epolls/1/targets", many),
                ("/sockets", sockets),
            ],
        ),
        edit("ssh-session-on-delayed-queue", Warning, vec![("/management-sockets", json!([101]))]),
        edit(
            "ssh-session-on-delayed-queue",
            Serious,
            vec![
                ("/management-sockets", json!([101])),
                ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(30_000_000_000_u64)),
            ],
        ),
        edit(
            "ssh-session-on-delayed-queue",
            Warning,
            vec![
                ("/management-sockets", json!([101])),
                ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(0)),
                ("/devices/0/napis/0/gro-flush-timeout-ns", json!(5_000_000)),
            ],
        ),
        edit("system-wide-busy-poll", Warning, vec![("/sysctls/busy-read-us", json!(50))]),
        edit("system-wide-busy-poll", Warning, vec![("/sysctls/busy-poll-us", json!(50))]),
        edit(
            "service-undoes-settings",
            Warning,
            vec![("/services", json!([{"name": "irqbalance", "pid": 77, "irq-bans": not_read()}]))],
        ),
        edit("service-undoes-settings", Warning, vec![irqbalance(&["--banirq=120"])]),
        edit("service-undoes-settings", CannotTell, vec![irqbalance(&["--policyscript=/etc/policy"])]),
        edit("service-undoes-settings", Warning, vec![service("tuned")]),
        edit(
            "service-undoes-settings",
            Warning,
            vec![service("tuned"), file("tuned", &[], &["net.core.busy_read=50"])],
        ),
        edit("service-undoes-settings", Warning, vec![service("numad")]),
        edit("overwriting-configuration", Note, vec![file("link", &["Driver=i40e ic*"], &["CombinedChannels=4"])]),
        edit("overwriting-configuration", Note, vec![file("link", &["Path=pci-*"], &["RxBufferSize=max"])]),
        edit("overwriting-configuration", Note, vec![file("hook", &[], &["ethtool -G"])]),
        edit("overwriting-configuration", Warning, vec![file("hook", &[], &["gro_flush_timeout"])]),
        edit(
            "overwriting-configuration",
            Note,
            vec![service("google_guest_ag"), file("guest-agent", &[], &["smp_affinity"])],
        ),
        edit(
            "kernel-lacks",
            Note,
            vec![("/devices/0/napis/0/irq-suspend-timeout-ns", unknown(json!("unsupported-by-kernel")))],
        ),
        edit("driver-lacks", Note, vec![("/devices/0/flow-rules", unknown(json!("unsupported-by-driver")))]),
        edit(
            "privilege-lacks",
            Note,
            vec![("/processes/0/files", unknown(json!({"denied": {"needs": "CAP_SYS_PTRACE"}})))],
        ),
        edit("privilege-lacks", Note, vec![("/processes/0/files", unknown(json!({"denied": {"needs": null}})))]),
        edit("packets-dropped", Note, vec![("/devices/0/counters/rx-dropped", json!(1))]),
        edit(
            "packets-dropped",
            Warning,
            vec![
                ("/devices/0/counters/rx-dropped", json!(1)),
                ("/devices/0/rx-queue-dropped", unknown(json!("unsupported-by-driver"))),
                ("/devices/0/rings/rx", json!(8_160)),
            ],
        ),
    ]
}
