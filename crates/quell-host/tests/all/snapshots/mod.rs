//! Snapshots for the tests of the rules: a healthy host as JSON at two times, 2 s apart, and for each rule the edit
//! that causes its finding.

mod host;
mod xdp;

use quell_host::findings::Severity;
use quell_host::snapshot::Snapshot;
use quell_linux::settings_files::IrqBans;
use serde_json::{Value, json};

pub(crate) fn healthy() -> Value {
    serde_json::from_str(include_str!("../../fixtures/healthy.json")).unwrap()
}

/// The same host 2 s earlier.
pub(crate) fn before() -> Value {
    serde_json::from_str(include_str!("../../fixtures/healthy-before.json")).unwrap()
}

pub(crate) fn snapshot(of: &Value) -> Snapshot {
    Snapshot::parse(of.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

/// Replaces the value at a JSON pointer; a trailing `-` appends to a list.
pub(crate) fn set(of: &mut Value, place: &str, value: Value) {
    if let Some(list) = place.strip_suffix("/-") {
        of.pointer_mut(list).and_then(Value::as_array_mut).unwrap_or_else(|| panic!("no list {list}")).push(value);
        return;
    }
    *of.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
}

fn irqbalance(arguments: &[&str]) -> (&'static str, Value) {
    let bans = IrqBans::parse(arguments.iter().copied());
    ("/services", json!([{"name": "irqbalance", "pid": 77, "irq-bans": bans}]))
}

fn not_read() -> Value {
    json!({"unknown": {"reason": "not-asked", "message": "not read"}})
}

fn service(name: &str) -> (&'static str, Value) {
    ("/services", json!([{"name": name, "pid": 77, "irq-bans": not_read()}]))
}

/// Places a file before that of the healthy snapshot.
fn file(owner: &str, conditions: &[&str], settings: &[&str]) -> (&'static str, Value) {
    let mut files = healthy()["configured-files"].clone();
    let content = json!({"conditions": conditions, "settings": settings});
    files.as_array_mut().unwrap().insert(0, json!({"owner": owner, "path": "/etc/file", "content": content}));
    ("/configured-files", files)
}

/// An unconnected UDP socket in place of a connection of the first epoll. NAPI 8193 delivered its first datagram.
pub(crate) fn udp(inode: u64) -> Value {
    let mut socket = healthy()["sockets"][1].clone();
    for (key, value) in [("protocol", json!("udp")), ("remote", json!(null)), ("state", json!("close"))] {
        socket[key] = value;
    }
    socket["inode"] = json!(inode);
    socket["local"] = json!("192.0.2.1:53");
    socket
}

/// The same with one queue per socket, by a filter of Quell.
pub(crate) fn steered_udp(inode: u64, napi: u32) -> Value {
    let mut socket = udp(inode);
    socket["reuseport"] = json!(true);
    socket["steered-queues"] = json!(1);
    socket["napi"] = json!(napi);
    socket
}

/// An edit that causes a finding.
pub(crate) struct Edit {
    pub(crate) rule: &'static str,
    pub(crate) severity: Severity,
    pub(crate) now: Vec<(&'static str, Value)>,
    pub(crate) then: Vec<(&'static str, Value)>,
}

fn edit(rule: &'static str, severity: Severity, now: Vec<(&'static str, Value)>) -> Edit {
    Edit { rule, severity, now, then: Vec::new() }
}

/// The same edit in both snapshots.
fn both(rule: &'static str, severity: Severity, now: Vec<(&'static str, Value)>) -> Edit {
    Edit { rule, severity, then: now.clone(), now }
}

pub(crate) fn edits() -> Vec<Edit> {
    let mut edits = of_suspension();
    edits.extend(of_polling());
    edits.extend(of_sharing_and_placement());
    edits.extend(of_cpus());
    edits.extend(host::of_devices_and_host());
    edits.extend(xdp::of_xdp());
    edits
}

/// A reuseport group whose connections arrive on two devices, by a filter of Quell or without one.
fn mixed_group(steered_queues: Value) -> Vec<(&'static str, Value)> {
    let listener = |inode: u64| {
        let mut listener = healthy()["sockets"][0].clone();
        listener["inode"] = json!(inode);
        listener["reuseport"] = json!(true);
        listener["steered-queues"] = steered_queues.clone();
        listener
    };
    let device = healthy()["devices"][0].clone();
    let mut second = device.clone();
    second["ifindex"] = json!(3);
    second["name"] = json!("eth1");
    second["napis"] = json!([device["napis"][1].clone()]);
    vec![
        ("/sockets/0", listener(100)),
        ("/sockets/-", listener(99)),
        ("/devices/0/napis", json!([device["napis"][0].clone()])),
        ("/devices/-", second),
    ]
}

fn of_suspension() -> Vec<Edit> {
    use Severity::{CannotTell, Note, Serious, Warning};
    let ready = "/processes/0/files/epolls/1/targets/0/file/other/ready";
    let (registered, state) = ("/processes/0/files/epolls/1/targets/1/events", "/sockets/1/state");
    let inner = json!([{"fd": 7, "events": 1, "file": {"other": {"kind": "epoll", "ready": false}}}]);
    vec![
        both("ready-object-holds-suspension", Serious, vec![(ready, json!(true))]),
        edit("ready-object-holds-suspension", Note, vec![(ready, json!(true))]),
        // EPOLLIN and EPOLLOUT; EPOLLIN of a connection whose peer has closed.
        both("ready-object-holds-suspension", Warning, vec![(registered, json!(5))]),
        both("ready-object-holds-suspension", Warning, vec![(registered, json!(1)), (state, json!("close-wait"))]),
        edit("suspension-without-deferral", Serious, vec![("/devices/0/napis/0/defer-hard-irqs", json!(0))]),
        edit("suspend-timeout-too-short", Warning, vec![("/devices/0/napis/0/irq-suspend-timeout-ns", json!(20_000))]),
        edit(
            "suspend-timeout-too-short",
            Warning,
            vec![("/devices/0/napis/0/gro-flush-timeout-ns", json!(40_000_000))],
        ),
        edit(
            "timer-delays-packets",
            Serious,
            vec![
                ("/devices/0/napis/0/gro-flush-timeout-ns", json!(50_000_000)),
                ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(100_000_000)),
            ],
        ),
        edit("no-epoll-prefers", Warning, vec![("/processes/0/files/epolls/1/params/prefer_busy_poll", json!(false))]),
        edit(
            "no-epoll-prefers",
            Warning,
            vec![
                ("/processes/0/files/epolls/1/params/prefer_busy_poll", json!(false)),
                ("/sockets/1/napi", json!(8_194)),
            ],
        ),
        edit("nested-epoll", Warning, vec![("/processes/0/files/epolls/1/targets", inner)]),
        edit(
            "suspension-without-effect",
            Warning,
            vec![
                ("/cpus/each/0/counters/net-rx-softirqs", json!(450_000)),
                ("/cpus/each/0/counters/timer-interrupts", json!(430_000)),
            ],
        ),
        edit(
            "suspension-without-effect",
            CannotTell,
            vec![("/processes/0/threads/1/run-ns", json!(9_100_000_000_u64))],
        ),
        edit("stalled-queue", Serious, vec![("/namespaces/0/ip-rx-packets", json!(1_000_000))]),
        edit("packets-dropped", Serious, vec![("/devices/0/rx-queue-dropped", json!(9))]),
        Edit {
            rule: "napi-replaced",
            severity: Note,
            now: Vec::new(),
            then: vec![("/devices/0/napis/0/id", json!(8_001))],
        },
        Edit {
            rule: "napi-replaced",
            severity: Warning,
            now: vec![("/devices/0/napis/0/defer-hard-irqs", json!(0))],
            then: vec![("/devices/0/napis/0/id", json!(8_001))],
        },
    ]
}

fn of_polling() -> Vec<Edit> {
    use Severity::{Note, Warning};
    let params = json!({"busy_poll_usecs": 64, "busy_poll_budget": 64, "prefer_busy_poll": true});
    vec![
        edit(
            "connections-without-napi",
            Warning,
            vec![("/sockets/1/napi", json!(null)), ("/sockets/2/napi", json!(null))],
        ),
        edit("connections-without-napi", Warning, vec![("/sockets/1/napi", json!(null))]),
        edit(
            "connections-without-napi",
            Warning,
            vec![("/sockets/1/napi", json!(null)), ("/devices/0/kind", json!("veth"))],
        ),
        both(
            "waits-with-timeout-zero",
            Warning,
            vec![
                ("/processes/0/threads/1/epoll-wait", json!(null)),
                ("/devices/0/rx-queues/0/counters/rx-packets", json!(1_000_000)),
                ("/processes/0/threads/1/run-ns", json!(9_000_000_000_u64)),
            ],
        )
        .then_later("/processes/0/threads/1/run-ns", json!(10_990_000_000_u64)),
        both(
            "waits-with-timeout-zero",
            Warning,
            vec![
                ("/processes/0/threads/1/epoll-wait", json!(null)),
                ("/devices/0/rx-queues/0/counters/rx-packets", json!(1_000_000)),
                ("/processes/0/threads/1/run-ns", json!(9_000_000_000_u64)),
                ("/processes/0/threads/1/wait-ns", json!(1_000_000_000_u64)),
            ],
        )
        .then_later("/processes/0/threads/1/run-ns", json!(10_000_000_000_u64))
        .then_later("/processes/0/threads/1/wait-ns", json!(1_950_000_000_u64)),
        edit("small-busy-poll-budget", Note, vec![("/processes/0/files/epolls/1/params/busy_poll_budget", json!(0))]),
        edit("polls-without-suspension", Note, vec![("/processes/0/files/io-urings/-", json!(30))]),
        edit(
            "long-flush-after-sleep",
            Warning,
            vec![
                ("/processes/0/files/epolls/1/params", params),
                ("/devices/0/napis/0/gro-flush-timeout-ns", json!(5_000_000)),
            ],
        ),
        edit("too-many-empty-polls", Warning, vec![("/cpus/each/2/counters/net-rx-softirqs", json!(200_000))]),
        edit("too-many-empty-polls", Warning, vec![("/cpus/each/2/counters/softnet-time-squeeze", json!(250))]),
    ]
}

fn of_sharing_and_placement() -> Vec<Edit> {
    use Severity::{Note, Serious, Warning};
    let mut other_user = healthy()["processes"][0].clone();
    other_user["pid"] = json!(5_000);
    other_user["name"] = json!("other");
    other_user["threads"] = json!([]);
    other_user["files"] =
        json!({"epolls": [], "sockets": [{"fd": 4, "inode": 102}], "xdp-sockets": [], "io-urings": []});
    let mut child = healthy()["processes"][0].clone();
    child["pid"] = json!(5_001);
    for epoll in child["files"]["epolls"].as_array_mut().unwrap() {
        epoll["same-as"] = json!({"pid": 4_242, "fd": epoll["fd"]});
    }
    child["threads"] = json!([child["threads"][1].clone()]);
    child["threads"][0]["tid"] = json!(5_001);
    let poller = json!({
        "tid": 900, "name": "napi/eth0-8193", "state": "running", "affinity": "0",
        "scheduling": {"policy": {"other": {"nice": 0}}, "reset-on-fork": false},
        "last-cpu": 0, "run-ns": 1, "wait-ns": 1, "epoll-wait": null
    });
    vec![
        edit("epoll-mixes-napis", Serious, vec![("/sockets/1/napi", json!(8_194))]),
        edit("udp-socket-on-several-queues", Serious, vec![("/sockets/1", udp(101))]),
        edit(
            "udp-socket-on-several-queues",
            Serious,
            vec![("/sockets/1", udp(101)), ("/sockets/1/reuseport", json!(true))],
        ),
        edit("udp-socket-on-several-queues", Serious, {
            let mut on_two = steered_udp(101, 8_193);
            on_two["steered-queues"] = json!(2);
            vec![("/sockets/1", on_two)]
        }),
        edit(
            "udp-socket-on-several-queues",
            Warning,
            vec![("/sockets/1", udp(101)), ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(0))],
        ),
        edit(
            "udp-socket-on-several-queues",
            Note,
            vec![("/sockets/1", udp(101)), ("/processes/0/files/epolls/1/params/prefer_busy_poll", json!(false))],
        ),
        edit(
            "udp-socket-keeps-first-queue",
            Warning,
            vec![("/sockets/1", udp(101)), ("/sockets/1/napi", json!(7_000))],
        ),
        edit(
            "udp-socket-keeps-first-queue",
            Warning,
            vec![("/sockets/1", steered_udp(101, 8_193)), ("/sockets/3", steered_udp(103, 8_193))],
        ),
        edit(
            "napi-shared-by-workers",
            Warning,
            vec![("/sockets/3/napi", json!(8_193)), ("/sockets/4/napi", json!(8_193))],
        ),
        edit("epoll-shared-by-threads", Warning, vec![("/processes/0/threads/2/epoll-wait/epoll-fd", json!(5))]),
        edit("epoll-shared-by-threads", Warning, vec![("/processes/-", child)]),
        edit("reuseport-group-mixes-devices", Warning, mixed_group(json!(null))),
        edit("batch-delays-others", Note, vec![("/processes/-", other_user)]),
        edit("floating-worker", Warning, vec![("/processes/0/threads/1/affinity", json!("0-3"))]),
        edit(
            "floating-worker",
            Warning,
            vec![("/processes/0/threads/1/affinity", json!("0-3")), ("/irqs/0/effective-affinity", json!("0-1"))],
        ),
        edit(
            "floating-worker",
            Warning,
            vec![("/processes/0/threads/1/affinity", json!("0-3")), ("/sockets/1/napi", json!(8_194))],
        ),
        edit(
            "floating-worker",
            Warning,
            vec![
                ("/processes/0/threads/1/affinity", json!("0-3")),
                ("/processes/0/threads/2/affinity", json!("0-3")),
                ("/sockets/3/napi", json!(8_193)),
                ("/sockets/4/napi", json!(8_193)),
            ],
        ),
        edit("irq-away-from-worker", Note, vec![("/processes/0/threads/1/affinity", json!("1"))]),
        edit(
            "queue-leased-to-container",
            Warning,
            vec![("/devices/0/rx-queues/0/lease", json!({"ifindex": 8, "queue": 1, "netns-id": 0}))],
        ),
        edit("other-numa-node", Warning, vec![("/irqs/0/effective-affinity", json!("3"))]),
        edit("other-numa-node", Warning, vec![("/devices/0/numa-node", json!(7))]),
        edit(
            "busy-napi-thread-without-cpu",
            Serious,
            vec![("/devices/0/napis/0/threading", json!("busy-poll")), ("/devices/0/napis/0/thread", poller)],
        ),
    ]
}

fn of_cpus() -> Vec<Edit> {
    use Severity::{Note, Serious, Warning};
    let c6 = "/cpus/each/0/idle-states/1/allowed";
    let threads = ["/processes/0/threads/0/state", "/processes/0/threads/1/state", "/processes/0/threads/2/state"];
    vec![
        edit("program-stopped", Serious, threads.map(|state| (state, json!("stopped"))).to_vec()),
        edit("deep-idle-states", Warning, vec![(c6, json!(true))]),
        edit(
            "deep-idle-states",
            Note,
            vec![(c6, json!(true)), ("/cpus/each/0/idle-states/1/exit-latency-us", json!(90))],
        ),
        edit("slow-cpu-frequency", Note, vec![("/cpus/each/0/governor", json!("powersave"))]),
        edit("slow-cpu-frequency", Note, vec![("/cpus/each/0/governor", json!("schedutil"))]),
        edit(
            "slow-cpu-frequency",
            Warning,
            vec![("/cpus/each/0/governor", json!("powersave")), ("/cpus/each/0/scaling-driver", json!("acpi-cpufreq"))],
        ),
        edit("spinning-beside-worker", Warning, spinning_beside_worker()),
    ]
}

fn spinning_beside_worker() -> Vec<(&'static str, Value)> {
    vec![
        ("/processes/0/files/epolls/1/params/busy_poll_usecs", json!(64)),
        ("/processes/0/threads/2/affinity", json!("1")),
    ]
}

/// Edits that must not cause the finding of a rule.
pub(crate) struct HarmlessEdit {
    pub(crate) rule: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) now: Vec<(&'static str, Value)>,
}

fn harmless(rule: &'static str, reason: &'static str, now: Vec<(&'static str, Value)>) -> HarmlessEdit {
    HarmlessEdit { rule, reason, now }
}

pub(crate) fn harmless_edits() -> Vec<HarmlessEdit> {
    let no_mode = |queue: usize| {
        let places = [
            ["/devices/0/napis/0/defer-hard-irqs", "/devices/0/napis/1/defer-hard-irqs"],
            ["/devices/0/napis/0/irq-suspend-timeout-ns", "/devices/0/napis/1/irq-suspend-timeout-ns"],
            [
                "/processes/0/files/epolls/1/params/prefer_busy_poll",
                "/processes/0/files/epolls/2/params/prefer_busy_poll",
            ],
        ];
        places.map(|places| (places[queue], if places[queue].ends_with("poll") { json!(false) } else { json!(0) }))
    };
    let without_mode = || no_mode(0).into_iter().chain(no_mode(1));
    let with = |more: Vec<(&'static str, Value)>| without_mode().chain(more).collect::<Vec<_>>();
    let mut whole_core = spinning_beside_worker();
    whole_core.push(("/processes/0/threads/2/affinity", json!("0-1")));
    let one_queue = |key: &str| json!([healthy()["devices"][0][key][0].clone()]);
    let (napis, queues) = (one_queue("napis"), one_queue("rx-queues"));
    let with_remote = |mut socket: Value| {
        socket["remote"] = json!("192.0.2.9:40001");
        socket["state"] = json!("established");
        socket
    };
    let mut edits = vec![
        harmless("udp-socket-on-several-queues", "it is connected", vec![("/sockets/1", with_remote(udp(101)))]),
        harmless(
            "udp-socket-on-several-queues",
            "the device has one queue",
            vec![("/sockets/1", udp(101)), ("/devices/0/napis", napis), ("/devices/0/rx-queues", queues)],
        ),
        harmless(
            "udp-socket-on-several-queues",
            "a filter selects one queue",
            vec![("/sockets/1", steered_udp(101, 8_193)), ("/sockets/3", steered_udp(103, 8_194))],
        ),
        harmless(
            "udp-socket-on-several-queues",
            "it has received nothing",
            vec![("/sockets/1", udp(101)), ("/sockets/1/napi", json!(null))],
        ),
        harmless("reuseport-group-mixes-devices", "a filter of Quell tells the devices apart", mixed_group(json!(1))),
        harmless("udp-socket-keeps-first-queue", "the queue exists", vec![("/sockets/1", udp(101))]),
        harmless(
            "udp-socket-keeps-first-queue",
            "the kernel records the next packet of a connection",
            vec![("/sockets/1/napi", json!(7_000))],
        ),
        harmless(
            "udp-socket-keeps-first-queue",
            "each socket has another queue",
            vec![("/sockets/1", steered_udp(101, 8_193)), ("/sockets/3", steered_udp(103, 8_194))],
        ),
        harmless(
            "irq-away-from-worker",
            "no CPU is right for a worker of two queues",
            vec![("/processes/0/threads/1/affinity", json!("1")), ("/sockets/1/napi", json!(8_194))],
        ),
        harmless("epoll-mixes-napis", "a finding of its own is about UDP sockets", vec![("/sockets/1", udp(101))]),
        harmless(
            "napi-shared-by-workers",
            "a filter gives each worker one queue",
            vec![
                ("/sockets/1", steered_udp(101, 8_193)),
                ("/sockets/2", steered_udp(102, 8_193)),
                ("/sockets/3", steered_udp(103, 8_194)),
                ("/sockets/4", steered_udp(104, 8_194)),
            ],
        ),
        harmless(
            "polls-without-suspension",
            "the io_uring has no requests for sockets",
            vec![("/processes/0/files", {
                let mut files = healthy()["processes"][0]["files"].clone();
                files["io-urings"] = json!([30]);
                files["rings-without-sockets"] = json!([30]);
                files
            })],
        ),
        harmless(
            "deep-idle-states",
            "no queue has a mode",
            with(vec![("/cpus/each/0/idle-states/1/allowed", json!(true))]),
        ),
        harmless(
            "deep-idle-states",
            "the exit latency is below the timeout",
            vec![
                ("/cpus/each/0/idle-states/1/allowed", json!(true)),
                ("/cpus/each/0/idle-states/1/exit-latency-us", json!(20)),
            ],
        ),
        harmless(
            "deep-idle-states",
            "the CPU serves no queue",
            vec![("/cpus/each/3/idle-states/1/allowed", json!(true))],
        ),
        harmless(
            "slow-cpu-frequency",
            "no queue has a mode",
            with(vec![("/cpus/each/0/governor", json!("powersave"))]),
        ),
        harmless("slow-cpu-frequency", "the CPU serves no queue", vec![("/cpus/each/3/governor", json!("powersave"))]),
        harmless(
            "slow-cpu-frequency",
            "the user sets the frequency",
            vec![("/cpus/each/0/governor", json!("userspace"))],
        ),
        harmless(
            "spinning-beside-worker",
            "the worker does not spin",
            vec![("/processes/0/threads/2/affinity", json!("1"))],
        ),
        harmless("spinning-beside-worker", "the other worker is not pinned to the sibling", whole_core),
        harmless(
            "timer-delays-packets",
            "the timer of fullbusy",
            vec![("/devices/0/napis/0/gro-flush-timeout-ns", json!(5_000_000))],
        ),
        harmless(
            "timer-delays-packets",
            "the interrupt is not deferred",
            vec![
                ("/devices/0/napis/0/gro-flush-timeout-ns", json!(5_000_000_000_u64)),
                ("/devices/0/napis/0/defer-hard-irqs", json!(0)),
            ],
        ),
        harmless(
            "adaptive-moderation",
            "no queue has a mode",
            with(vec![("/devices/0/coalescing", json!({"use-adaptive-rx": 1}))]),
        ),
        harmless(
            "adaptive-moderation",
            "the delay is fixed",
            vec![("/devices/0/coalescing", json!({"use-adaptive-rx": 0, "rx-usecs": 8}))],
        ),
        harmless(
            "queue-leased-to-container",
            "the queue has no mode",
            with(vec![("/devices/0/rx-queues/0/lease", json!({"ifindex": 8, "queue": 1, "netns-id": null}))]),
        ),
        harmless(
            "ssh-session-on-delayed-queue",
            "no queue has a mode",
            with(vec![("/management-sockets", json!([101]))]),
        ),
        harmless(
            "ssh-session-on-delayed-queue",
            "the deferral is short",
            vec![("/management-sockets", json!([101])), ("/devices/0/napis/0/irq-suspend-timeout-ns", json!(0))],
        ),
        harmless(
            "ssh-session-on-delayed-queue",
            "the session receives without NAPI",
            vec![("/management-sockets", json!([101])), ("/sockets/1/napi", json!(null))],
        ),
        harmless(
            "service-undoes-settings",
            "irqbalance excludes the interrupts",
            vec![irqbalance(&["--banirq=120", "--banirq=121"])],
        ),
        harmless("service-undoes-settings", "irqbalance excludes the driver", vec![irqbalance(&["--banmod=eth0"])]),
        harmless("service-undoes-settings", "no device has interrupts", vec![irqbalance(&[]), ("/irqs", json!([]))]),
        harmless(
            "service-undoes-settings",
            "the profile sets nothing of queues",
            vec![service("tuned"), file("tuned", &[], &[])],
        ),
        harmless(
            "overwriting-configuration",
            "no queue has a mode",
            with(vec![file("hook", &[], &["gro_flush_timeout"])]),
        ),
        harmless(
            "overwriting-configuration",
            "the file is for another driver",
            vec![file("link", &["Driver=ena"], &["CombinedChannels=4"])],
        ),
        harmless(
            "overwriting-configuration",
            "the file is for another address",
            vec![file("link", &["MACAddress=02:00:00:00:00:99"], &["CombinedChannels=4"])],
        ),
        harmless(
            "overwriting-configuration",
            "systemd ignores a file without conditions",
            vec![file("link", &[], &["CombinedChannels=4"])],
        ),
        harmless(
            "overwriting-configuration",
            "the guest agent does not run",
            vec![file("guest-agent", &[], &["smp_affinity"])],
        ),
        harmless("settings-not-kept", "no queue has a mode", with(vec![("/devices/0/driver/driver", json!("veth"))])),
    ];
    edits.extend(host::harmless_links());
    edits.extend(xdp::harmless_of_xdp());
    edits
}

impl Edit {
    /// Adds an edit of the later snapshot.
    fn then_later(mut self, place: &'static str, value: Value) -> Self {
        self.now.push((place, value));
        self
    }
}
