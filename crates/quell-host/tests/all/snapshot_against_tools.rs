//! Compares snapshots with ethtool, ip, /proc and sysfs: all devices of the machine (read-only), those of a veth lab,
//! threads and sysctls. Skips missing tools with the reason. What a tool cannot read must be unknown in the snapshot
//! too.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc;

use quell_host::snapshot::{Device, Reading, Snapshot, SnapshotScope, Thread, take};
use quell_linux::ethtool::CoalesceParameter::{self, RxMaxFrames, RxUsecs, TxMaxFrames, TxUsecs};
use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::sched::{self, Policy, Scheduling};
use quell_linux::{CpuList, Pid};
use quell_test_support::{Lacks, kernel_threads_are_out_of_sight, skip, skip_part};

use quell_test_support::lab::TestLab;

/// Other programs, run in a named namespace or in the caller's.
struct Tools {
    namespace: Option<String>,
}

impl Tools {
    /// Output of a program, or its error message; `None`, with the reason on stderr, when it is not installed.
    fn answer(&self, command: &[&str]) -> Option<Result<String, String>> {
        let entering = self.namespace.iter().flat_map(|name| ["ip", "netns", "exec", name]);
        let words: Vec<&str> = entering.chain(command.iter().copied()).collect();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let is_missing = |output: &Output| output.stderr.starts_with(b"exec of ");
        match Command::new(words[0]).args(&words[1..]).output() {
            Err(error) => {
                skip_part(Lacks::Tool(words[0]), format_args!("{}: {error}", words[0]));
                None
            }
            Ok(output) if is_missing(&output) => {
                skip_part(Lacks::Tool(command[0]), text(output.stderr).trim());
                None
            }
            Ok(output) if output.status.success() => Some(Ok(text(output.stdout))),
            Ok(output) => Some(Err(text(output.stderr))),
        }
    }

    /// Compares with ethtool's output for a device. If ethtool reports nothing, the value must be unknown in the
    /// snapshot too.
    fn ethtool<T>(&self, option: &str, device: &Device, seen: &Reading<T>) -> Option<String> {
        match self.answer(&["ethtool", option, &device.name])? {
            Ok(text) => Some(text),
            Err(refusal) => {
                let is_known = seen.known().is_some();
                assert!(!is_known, "{} is known, but ethtool {option} says: {refusal}", device.name);
                None
            }
        }
    }

    fn said(&self, command: &[&str]) -> Option<String> {
        self.answer(command)?.ok()
    }

    /// Reads a sysfs file. sysfs shows the devices of the namespace in which it was mounted.
    fn file(&self, path: &str) -> Option<String> {
        Some(self.said(&["cat", path])?.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.file(path).map(|text| text.parse().unwrap())
    }

    fn names(&self, directory: &str) -> Option<Vec<String>> {
        Some(self.said(&["ls", directory])?.split_whitespace().map(str::to_owned).collect())
    }
}

/// Parses lines of the form `Name: value`; the key of a line below a heading is `heading/name`. `n/a` means no value.
fn table(text: &str) -> HashMap<String, Option<String>> {
    let mut heading = "";
    let mut table = HashMap::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        if value.is_empty() {
            heading = name.trim();
        } else {
            let known = (value != "n/a").then(|| value.to_owned());
            table.insert(format!("{heading}/{}", name.trim()), known);
        }
    }
    table
}

fn number(table: &HashMap<String, Option<String>>, key: &str) -> Option<u32> {
    table[key].as_ref().map(|value| value.parse().unwrap())
}

const MAXIMUMS: &str = "Pre-set maximums";
const CURRENT: &str = "Current hardware settings";

fn channels_are_those_of_ethtool(tools: &Tools, device: &Device) -> bool {
    let Some(text) = tools.ethtool("-l", device, &device.channels) else { return false };
    let reported = table(&text);
    let seen = device.channels.known().unwrap();
    for (kind, count, max) in [
        ("RX", seen.rx_count, seen.rx_max),
        ("TX", seen.tx_count, seen.tx_max),
        ("Combined", seen.combined_count, seen.combined_max),
    ] {
        let both = (number(&reported, &format!("{CURRENT}/{kind}")), number(&reported, &format!("{MAXIMUMS}/{kind}")));
        assert_eq!((count, max), both, "{} {kind}", device.name);
    }
    true
}

fn rings_are_those_of_ethtool(tools: &Tools, device: &Device) -> bool {
    let Some(text) = tools.ethtool("-g", device, &device.rings) else { return false };
    let reported = table(&text);
    let seen = device.rings.known().unwrap();
    for (kind, size, max) in [("RX", seen.rx, seen.rx_max), ("TX", seen.tx, seen.tx_max)] {
        let both = (number(&reported, &format!("{CURRENT}/{kind}")), number(&reported, &format!("{MAXIMUMS}/{kind}")));
        assert_eq!((size, max), both, "{} {kind}", device.name);
    }
    true
}

fn coalescing_is_that_of_ethtool(tools: &Tools, device: &Device) -> bool {
    const NAMES: [(CoalesceParameter, &str); 4] =
        [(RxUsecs, "rx-usecs"), (RxMaxFrames, "rx-frames"), (TxUsecs, "tx-usecs"), (TxMaxFrames, "tx-frames")];
    let Some(text) = tools.ethtool("-c", device, &device.coalescing) else { return false };
    let reported = table(&text.replacen(&format!("Coalesce parameters for {}:", device.name), "", 1));
    let seen = device.coalescing.known().unwrap();
    for (parameter, name) in NAMES {
        assert_eq!(seen.get(parameter), number(&reported, &format!("/{name}")), "{} {name}", device.name);
    }
    true
}

/// Returns the number of compared features.
fn features_are_those_of_ethtool(tools: &Tools, device: &Device) -> usize {
    /// ethtool's names of individual features.
    const OTHER_NAMES: [(&str, &str); 5] = [
        ("rx-gro", "generic-receive-offload"),
        ("rx-lro", "large-receive-offload"),
        ("rx-checksum", "rx-checksumming"),
        ("tx-generic-segmentation", "generic-segmentation-offload"),
        ("rx-ntuple-filter", "ntuple-filters"),
    ];
    let Some(text) = tools.ethtool("-k", device, &device.features) else { return 0 };
    let reported = table(&text.replacen(&format!("Features for {}:", device.name), "", 1));
    let features = device.features.known().unwrap();
    let of_ethtool = |name: &str| {
        let other = OTHER_NAMES.iter().find(|(kernels, _)| *kernels == name).map_or(name, |(_, other)| other);
        reported.get(&format!("/{other}"))?.as_deref()
    };
    let both = features.iter().filter_map(|(name, feature)| Some((name, feature, of_ethtool(name)?)));
    let compared = both.map(|(name, feature, said)| {
        assert_eq!(feature.active, said.starts_with("on"), "{} {name}: {said}", device.name);
        assert_eq!(!feature.changeable, said.ends_with("[fixed]"), "{} {name}: {said}", device.name);
    });
    compared.count()
}

fn driver_is_that_of_ethtool(tools: &Tools, device: &Device) -> bool {
    let Some(text) = tools.ethtool("-i", device, &device.driver) else { return false };
    // ethtool does not distinguish absent and empty.
    let reported = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    let seen = device.driver.known().unwrap();
    assert_eq!((&seen.driver, &seen.version), (&reported("driver"), &reported("version")));
    assert_eq!(seen.bus_info, reported("bus-info"));
    true
}

fn link_matches_ip(tools: &Tools, device: &Device) -> bool {
    let Some(text) = tools.said(&["ip", "-details", "-json", "link", "show", "dev", &device.name]) else {
        return false;
    };
    let reported: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reported = &reported[0];
    assert_eq!(reported["ifindex"], serde_json::json!(device.ifindex));
    assert_eq!(reported["mtu"].as_u64(), device.mtu.map(u64::from));
    let is_up = reported["flags"].as_array().unwrap().contains(&"UP".into());
    assert_eq!(is_up, device.is_up, "{reported}");
    assert_eq!(reported["linkinfo"]["info_kind"].as_str(), device.kind.as_deref());
    if let Some(mac) = device.mac {
        assert_eq!(reported["address"], mac.to_string());
    }
    if let Some(lower) = device.lower {
        let index = reported["link_index"].as_u64().or_else(|| tools.number(&format!("{}/iflink", class(device))));
        assert_eq!(index, Some(u64::from(lower.ifindex.get())));
    }
    true
}

fn class(device: &Device) -> String {
    format!("/sys/class/net/{}", device.name)
}

/// CPUs of a mask as sysfs prints it: hexadecimal words of 32 bits, the highest first.
fn cpus_of_mask(mask: &str) -> CpuList {
    let words = mask.split(',').rev().map(|word| u32::from_str_radix(word, 16).unwrap());
    let cpus = words
        .zip(0..)
        .flat_map(|(word, index)| (0..32).filter(move |bit| word & (1 << bit) != 0).map(move |bit| index * 32 + bit));
    cpus.collect()
}

fn queues_and_defaults_match_sysfs(tools: &Tools, device: &Device) {
    let directory = class(device);
    let queues = tools.names(&format!("{directory}/queues")).unwrap();
    let rx = device.rx_queues.known_elements();
    let tx = device.tx_queues.known_elements();
    if device.is_up {
        let of_kind = |kind: &str| queues.iter().filter(|name| name.starts_with(kind)).count();
        assert_eq!((rx.len(), tx.len()), (of_kind("rx-"), of_kind("tx-")), "{}", device.name);
    }
    for queue in rx {
        let directory = format!("{directory}/queues/rx-{}", queue.id);
        let mask = tools.file(&format!("{directory}/rps_cpus"));
        assert_eq!(queue.rps_cpus.known().cloned(), mask.as_deref().map(cpus_of_mask));
        let entries = tools.number(&format!("{directory}/rps_flow_cnt"));
        assert_eq!(queue.rps_flow_cnt.known().copied().map(u64::from), entries);
    }
    for queue in tx {
        let Some(seen) = queue.xps_cpus.known().cloned().flatten() else { continue };
        let mask = tools.file(&format!("{directory}/queues/tx-{}/xps_cpus", queue.id)).unwrap();
        assert_eq!(seen, cpus_of_mask(&mask), "{} tx {}", device.name, queue.id);
    }
    let defaults = &device.defaults;
    let defer = tools.number(&format!("{directory}/napi_defer_hard_irqs"));
    assert_eq!(defaults.defer_hard_irqs.known().copied().map(u64::from), defer);
    assert_eq!(defaults.gro_flush_timeout_ns.known().copied(), tools.number(&format!("{directory}/gro_flush_timeout")));
}

/// Returns the number of values from ethtool and ip that were compared.
fn device_is_as_others_see_it(tools: &Tools, device: &Device) -> usize {
    queues_and_defaults_match_sysfs(tools, device);
    let features = features_are_those_of_ethtool(tools, device);
    assert!(features == 0 || features > 20, "only {features} features of {} were compared", device.name);
    let compared = [
        features > 0,
        channels_are_those_of_ethtool(tools, device),
        rings_are_those_of_ethtool(tools, device),
        coalescing_is_that_of_ethtool(tools, device),
        driver_is_that_of_ethtool(tools, device),
        link_matches_ip(tools, device),
    ];
    compared.iter().filter(|compared| **compared).count()
}

/// Received and sent packets of every device, from sysfs.
fn packets(tools: &Tools, device: &str) -> Option<[u64; 2]> {
    let counter = |name| tools.number(&format!("/sys/class/net/{device}/statistics/{name}_packets"));
    Some([counter("rx")?, counter("tx")?])
}

#[test]
fn the_machines_own_devices_are_as_ethtool_ip_and_sysfs_see_them() {
    let tools = Tools { namespace: None };
    let names = tools.names("/sys/class/net").unwrap();
    let names: Vec<String> = names.into_iter().filter(|name| name != "bonding_masters").collect();
    let here = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    if names.iter().any(|name| !here.contains(&format!("{name}:"))) {
        return skip(Lacks::Machine, "/sys shows another network namespace");
    }
    let before: HashMap<&str, _> = names.iter().map(|name| (name.as_str(), packets(&tools, name))).collect();
    let snapshot = take(&SnapshotScope::default()).unwrap().0;
    let mut seen: Vec<&str> = snapshot.devices.iter().map(|device| device.name.as_str()).collect();
    seen.sort_unstable();
    assert_eq!(seen, names);
    for device in &snapshot.devices {
        let compared = device_is_as_others_see_it(&tools, device);
        eprintln!("{}: compared with {compared} of 6 readings of ethtool and ip", device.name);
        let (Some(before), Some(after)) = (before[device.name.as_str()], packets(&tools, &device.name)) else {
            continue;
        };
        let counters = device.counters.known().unwrap();
        for (now, between) in [counters.rx_packets, counters.tx_packets].into_iter().zip(before.into_iter().zip(after))
        {
            assert!((between.0..=between.1).contains(&now), "{}: {now} is not in {between:?}", device.name);
        }
    }
}

#[test]
fn devices_of_a_lab_are_as_ethtool_ip_and_sysfs_see_them() {
    let Some(lab) = TestLab::raise("tools", 4) else { return };
    let namespace = lab.server_name.clone();
    let snapshot = take(&SnapshotScope { netns: Some(namespace.clone()), ..SnapshotScope::default() }).unwrap().0;
    let tools = Tools { namespace: Some(namespace) };
    for device in snapshot.devices.iter().filter(|device| device.name != "lo") {
        let compared = device_is_as_others_see_it(&tools, device);
        eprintln!("{}: compared with {compared} of 6 readings of ethtool and ip", device.name);
    }
}

/// Interrupts of a device in sysfs: from its own directory, or from that of its bus device (virtio).
fn irqs_of_sysfs(device: &str) -> Vec<u32> {
    let Ok(directory) = Path::new("/sys/class/net").join(device).join("device").canonicalize() else {
        return Vec::new();
    };
    let around = [directory.join("msi_irqs"), directory.parent().unwrap().join("msi_irqs")];
    let Some(entries) = around.iter().find_map(|directory| directory.read_dir().ok()) else { return Vec::new() };
    let mut irqs: Vec<u32> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    irqs.sort_unstable();
    irqs
}

/// Number of interrupts per IRQ and CPU.
fn interrupt_counts() -> HashMap<u32, Vec<u64>> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    let cpus = text.lines().next().unwrap().split_whitespace().count();
    let line = |line: &str| {
        let (irq, rest) = line.split_once(':')?;
        let counts = rest.split_whitespace().take(cpus).map(|count| count.parse().unwrap());
        Some((irq.trim().parse().ok()?, counts.collect()))
    };
    text.lines().skip(1).filter_map(line).collect()
}

#[test]
fn interrupts_their_affinity_and_their_counts_match_proc() {
    let before = interrupt_counts();
    let snapshot = take(&SnapshotScope::default()).unwrap().0;
    let after = interrupt_counts();
    let of_proc = |irq: u32, file: &str| {
        let text = std::fs::read_to_string(format!("/proc/irq/{irq}/{file}")).ok()?;
        Some(text.trim().parse::<CpuList>().unwrap())
    };
    for device in &snapshot.devices {
        assert_eq!(*device.irqs.known().unwrap(), irqs_of_sysfs(&device.name), "{}", device.name);
    }
    for irq in snapshot.irqs.known().unwrap() {
        assert_eq!(irq.affinity.known().cloned(), of_proc(irq.number, "smp_affinity_list"));
        assert_eq!(irq.effective_affinity.known().cloned(), of_proc(irq.number, "effective_affinity_list"));
        let counts: HashMap<u32, u64> = irq.counts.known().unwrap().iter().copied().collect();
        for (cpu, (before, after)) in (0..).zip(before[&irq.number].iter().zip(&after[&irq.number])) {
            let seen = counts.get(&cpu).copied().unwrap_or(0);
            assert!((*before..=*after).contains(&seen), "irq {} on CPU {cpu}: {seen}", irq.number);
        }
    }
}

#[test]
fn sysctls_match_proc() {
    let sysctls = take(&SnapshotScope::default()).unwrap().0.sysctls;
    for (name, seen) in [
        ("busy_poll", &sysctls.busy_poll_us),
        ("busy_read", &sysctls.busy_read_us),
        ("netdev_budget", &sysctls.netdev_budget),
        ("netdev_budget_usecs", &sysctls.netdev_budget_us),
        ("dev_weight", &sysctls.dev_weight),
        ("netdev_max_backlog", &sysctls.netdev_max_backlog),
        ("rps_sock_flow_entries", &sysctls.rps_sock_flow_entries),
    ] {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok();
        let reported = text.map(|text| text.trim().parse::<u32>().unwrap());
        assert_eq!(seen.known().copied(), reported, "{name}");
    }
}

/// Name, CPUs, class and nice value or priority of a thread, from `/proc/TID`.
fn thread_of_proc(tid: Pid) -> (String, CpuList, u32, i64) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{tid}/{file}")).unwrap();
    let status = read("status");
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let stat = read("stat");
    // `proc_pid_stat(5)`: the fields from the third on follow the name in brackets.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let field = |number: usize| fields[number - 3].parse::<i64>().unwrap();
    let class = u32::try_from(field(41)).unwrap();
    let value = if matches!(class, FIFO | ROUND_ROBIN) { field(40) } else { field(19) };
    (read("comm").trim_end().to_owned(), cpus.trim().parse().unwrap(), class, value)
}

/// Constant of `include/uapi/linux/sched.h`.
const FIFO: u32 = 1;
const ROUND_ROBIN: u32 = 2;

fn thread_as_seen(thread: &Thread) -> (String, CpuList, u32, i64) {
    let (class, value) = match thread.scheduling.known().unwrap().policy {
        Policy::Other { nice } => (0, i64::from(nice)),
        Policy::Fifo { priority } => (FIFO, i64::from(priority)),
        Policy::RoundRobin { priority } => (ROUND_ROBIN, i64::from(priority)),
        Policy::Batch { nice } => (3, i64::from(nice)),
        Policy::Idle { nice } => (5, i64::from(nice)),
        other => panic!("{other:?}"),
    };
    (thread.name.clone(), thread.affinity.known().unwrap().clone(), class, value)
}

fn process_of_this_test() -> Snapshot {
    take(&SnapshotScope { pids: vec![Pid::of_this_process()], ..SnapshotScope::default() }).unwrap().0
}

#[test]
fn names_cpus_and_classes_of_threads_match_proc() {
    let (started, starts) = mpsc::channel();
    let (done, until_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let placed = std::thread::Builder::new().name("placed".to_owned()).spawn_scoped(scope, move || {
            let this = Pid::of_this_thread();
            let first = sched::affinity(this).unwrap().iter().next().unwrap();
            sched::set_affinity(this, &CpuList::from_iter([first])).unwrap();
            sched::set_scheduling(this, Scheduling { policy: Policy::Batch { nice: 3 }, reset_on_fork: false })
                .unwrap();
            started.send(this).unwrap();
            let _ = until_done.recv();
        });
        placed.unwrap();
        let tid = starts.recv().unwrap();
        let snapshot = process_of_this_test();
        let reported = thread_of_proc(tid);
        drop(done);
        let seen = snapshot.processes[0].threads.known_elements().find(|thread| thread.tid == tid).unwrap();
        assert_eq!(thread_as_seen(seen), reported);
        assert_eq!((reported.0.as_str(), reported.1.len(), reported.2, reported.3), ("placed", 1, 3, 3));
    });
}

#[test]
fn cpus_and_class_of_a_queues_kthread_match_proc() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(lab) = TestLab::raise("kthread", 2) else { return };
    lab.set_napi(&PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() });
    let tid = Netdev::open_in(&lab.server).unwrap().napi(lab.napis[0]).unwrap().pid.unwrap();
    sched::set_affinity(tid, &CpuList::from_iter([0])).unwrap();
    sched::set_scheduling(tid, Scheduling { policy: Policy::Fifo { priority: 7 }, reset_on_fork: false }).unwrap();
    let namespace = lab.server_name.clone();
    let snapshot = take(&SnapshotScope { netns: Some(namespace), ..SnapshotScope::default() }).unwrap().0;
    let index = snapshot.index();
    let (_, napi) = index.napi(lab.napis[0]).unwrap();
    let Reading::Known(Some(thread)) = &napi.thread else { panic!("{napi:?}") };
    assert_eq!(thread.tid, tid);
    assert_eq!(thread_as_seen(thread), thread_of_proc(tid));
    assert_eq!(thread_of_proc(tid).2, FIFO);
    let (_, other) = index.napi(lab.napis[1]).unwrap();
    assert_eq!(other.thread, Reading::Known(None), "only the first instance is threaded");
}
