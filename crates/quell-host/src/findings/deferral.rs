//! Rules about interrupt deferral and queue settings: incomplete settings, timers that are too short, and events that
//! overwrite or reset settings.

use quell_linux::ethtool::{CoalesceParameter, Coalescing};
use quell_linux::visible::counted;
use quell_mode::NapiAttribute;

use super::fix::Fix;
use super::setting::{Setting, SettingObject};
use super::text::time_text;
use super::{Node, Observation, Rule, Severity};
use crate::attach::stall::UNPOLLED_MIN;
use crate::snapshot::query::{EpollContext, PACKETS_TO_JUDGE, SnapshotQuery};
use crate::snapshot::{Device, Reading, SnapshotNapi};

pub(super) const RULES: &[&Rule] =
    &[&TIMER_TOO_LONG, &HALF, &WITHOUT_EFFECT, &FLUSH_TOO_SHORT, &SYSFS, &FORGETFUL, &MODERATION];

static TIMER_TOO_LONG: Rule = Rule {
    id: "timer-delays-packets",
    severity: Severity::Serious,
    title: "the timer of a queue is so long that packets stall",
    impact: "While its interrupt is deferred, packets of the queue wait for this timer unless a program polls.",
    source: "net/core/dev.c, napi_complete_done and napi_watchdog; measured: 36 of 200 requests/s with defer300000",
    explanation: "Detected if a queue defers interrupts, and its gro-flush-timeout is at least 50 ms, the time without \
                  a poll that counts as a stall. Under suspension this timer runs after each suspension. Programs that \
                  never stop polling are not excepted. Fix: a shorter gro-flush-timeout.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: timer_too_long,
};

fn timer_too_long(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let long_ns = UNPOLLED_MIN.as_nanos();
    let of = |(device, napi): (&Device, &SnapshotNapi)| {
        let (_, timeout_ns) = napi.deferral().filter(|_| napi.defers())?;
        (u128::from(timeout_ns) >= long_ns).then(|| Observation {
            severity: Severity::Serious,
            nodes: vec![query.napi_node(napi.id)],
            observed: format!("gro-flush-timeout is {}", time_text(timeout_ns)),
            fix: vec![
                Fix::advice("choose a shorter gro-flush-timeout, such as 200 µs"),
                Fix::napi_set(query, device, napi, &[(NapiAttribute::GroFlushTimeout, 200_000)]),
            ],
        })
    };
    query.napis().filter_map(of).collect()
}

static HALF: Rule = Rule {
    id: "deferral-incomplete",
    severity: Severity::Warning,
    title: "only one of the two deferral settings is set",
    impact: "defer-hard-irqs without gro-flush-timeout defers nothing; gro-flush-timeout alone only delays merged \
          packets.",
    source: "net/core/dev.c, napi_complete_done; Documentation/networking/napi.rst",
    explanation: "Detected if exactly one of defer-hard-irqs and gro-flush-timeout is 0 on a queue without suspension. \
                  Fix: clear both, or set the other if deferral is wanted.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: half,
};

fn half(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |(device, napi): (&Device, &SnapshotNapi)| {
        let (count, timeout_ns) = napi.deferral()?;
        let missing = match (count, timeout_ns) {
            (0, 1..) => (NapiAttribute::DeferHardIrqs, 100),
            (1.., 0) => (NapiAttribute::GroFlushTimeout, 20_000),
            _ => return None,
        };
        // A rule in `suspension` reports queues that suspend.
        (napi.irq_suspend_timeout_ns.known().is_some() && !napi.suspends()).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![query.napi_node(napi.id)],
            observed: format!("defer-hard-irqs {count}, gro-flush-timeout {timeout_ns} ns"),
            fix: vec![
                // Whether complete deferral is wanted, only a measurement shows.
                Fix::napi_set(
                    query,
                    device,
                    napi,
                    &[(NapiAttribute::DeferHardIrqs, 0), (NapiAttribute::GroFlushTimeout, 0)],
                ),
                Fix::napi_set(query, device, napi, &[missing]).instead("if deferral is wanted"),
            ],
        })
    };
    query.napis().filter_map(of).collect()
}

static WITHOUT_EFFECT: Rule = Rule {
    id: "deferral-without-effect",
    severity: Severity::Warning,
    title: "a queue defers interrupts, but still raises one for every few packets",
    impact: "Working deferral leads to hundreds of packets per interrupt.",
    source: "published, 200,000 requests per second: 2.6 packets per interrupt in base, 2,502 with defer20",
    explanation: "Detected below 10 packets per interrupt of a queue, unless packets are so rare that deferral ends \
                  between them by design (defer-hard-irqs times gro-flush-timeout): then there is no verdict. If an \
                  interrupt also serves transmit completions, the count includes them. Fix: see the other findings \
                  about the queue, or increase defer-hard-irqs.",
    needs_two: true,
    judges_settings: true,
    stalls: false,
    examine: without_effect,
};

const PACKETS_PER_INTERRUPT: u64 = 10;

fn without_effect(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let deferring = query.napis().filter(|(_, napi)| napi.defers());
    deferring.filter_map(|(device, napi)| judge_deferral(query, device, napi)).collect()
}

fn judge_deferral(query: &SnapshotQuery<'_>, device: &Device, napi: &SnapshotNapi) -> Option<Observation> {
    let irq = napi.irq_number()?;
    let interrupts = query.interrupts(irq)?;
    let packets = query.queue_packets(device, napi.id)?;
    let interval_ns = query.interval_ns()?;
    let (count, timeout_ns) = napi.deferral()?;
    let nodes = vec![query.napi_node(napi.id), Node::Irq { number: irq }];
    let runs_out_ns = u64::from(count).saturating_mul(timeout_ns);
    let gap_ns = interval_ns / packets.max(1);
    if packets < PACKETS_TO_JUDGE || gap_ns.saturating_mul(PACKETS_PER_INTERRUPT) > runs_out_ns {
        let observed = format!(
            "no verdict at this load: {} in {}; deferral ends after {} without a packet",
            counted(packets, "packet"),
            time_text(interval_ns),
            time_text(runs_out_ns)
        );
        return Some(Observation { severity: Severity::CannotTell, nodes, observed, fix: Vec::new() });
    }
    (packets / PACKETS_PER_INTERRUPT < interrupts).then(|| Observation {
        severity: Severity::Warning,
        nodes,
        observed: format!(
            "{} and {} in {}",
            counted(packets, "packet"),
            counted(interrupts, "interrupt"),
            time_text(interval_ns)
        ),
        fix: vec![Fix::napi_set(query, device, napi, &[(NapiAttribute::DeferHardIrqs, u64::from(count.max(50)) * 2)])],
    })
}

static FLUSH_TOO_SHORT: Rule = Rule {
    id: "gro-flush-below-request-time",
    severity: Severity::Warning,
    title: "gro-flush-timeout is shorter than the program's work per packet",
    impact: "The timer then interrupts the program within every request. At high load, this costs more than interrupts.",
    source: "the published runs of defer10: at least 70,000 timer polls per second and queue, slower than base above \
             800,000 requests per second",
    explanation: "Detected if a single thread serves the only epoll of a queue, and its run time per packet exceeds \
                  gro-flush-timeout. Not applied to queues that allow suspension, whose timer is not armed with \
                  gro-flush-timeout. Fix: a longer gro-flush-timeout.",
    needs_two: true,
    judges_settings: false,
    stalls: false,
    examine: flush_too_short,
};

fn flush_too_short(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |epoll: &EpollContext<'_>| {
        let work_ns = query.work_per_packet_ns(epoll)?;
        let (device, napi) = epoll.by_napi.keys().find_map(|&id| query.napi(id))?;
        let (_, timeout_ns) = napi.deferral().filter(|_| napi.defers())?;
        let held = napi.suspends() && epoll.params.is_none_or(|params| params.prefer_busy_poll);
        if held || query.epolls_on(napi.id).count() > 1 || timeout_ns as f64 >= work_ns {
            return None;
        }
        let mut nodes = epoll.nodes();
        nodes.push(query.napi_node(napi.id));
        let longer = (work_ns as u64).saturating_mul(10).max(20_000);
        Some(Observation {
            severity: Severity::Warning,
            nodes,
            observed: format!(
                "gro-flush-timeout {}, CPU time per packet {}",
                time_text(timeout_ns),
                time_text(work_ns as u64)
            ),
            fix: vec![Fix::napi_set(query, device, napi, &[(NapiAttribute::GroFlushTimeout, longer)])],
        })
    };
    query.epolls().filter_map(of).collect()
}

static SYSFS: Rule = Rule {
    id: "sysfs-differs",
    severity: Severity::Note,
    title: "the device's sysfs settings differ from those of its queues",
    impact: "Writing these files overwrites the settings of every queue of the device.",
    source: "net/core/dev.c, netdev_set_defer_hard_irqs; measured: sysfs reads 0 while queues have their own values",
    explanation: "Detected if defer-hard-irqs or gro-flush-timeout of a queue differs from the device's file in sysfs. \
                  This is normal for queues that are set individually. Fix: only scripts and TuneD profiles that write \
                  these files need one.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: sysfs,
};

fn sysfs(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let (defaults, napis) = (&device.defaults, device.napis.known()?);
        let file = (*defaults.defer_hard_irqs.known()?, *defaults.gro_flush_timeout_ns.known()?);
        let differing: Vec<&SnapshotNapi> =
            napis.iter().filter(|napi| napi.deferral().is_some_and(|values| values != file)).collect();
        let (_, first) = differing.first().map(|napi| (napi, napi.deferral()))?;
        let (count, timeout_ns) = first?;
        let mut nodes = vec![Node::from(device)];
        nodes.extend(differing.iter().map(|napi| query.napi_node(napi.id)));
        Some(Observation {
            severity: Severity::Note,
            nodes,
            observed: format!("sysfs has {} and {} ns, queues have {count} and {timeout_ns} ns", file.0, file.1),
            fix: vec![Fix::advice("do not write the files in sysfs; set queues by netlink")],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}

static FORGETFUL: Rule = Rule {
    id: "settings-not-kept",
    severity: Severity::Note,
    title: "the driver loses queue settings when the link goes down",
    impact: "Without persistent NAPI settings, a link that goes down and up gets new NAPI IDs with default values.",
    source: "Documentation/networking/napi.rst, persistent NAPI config; users of netif_napi_add_config: bnxt, ice, \
             mlx4, mlx5 from Linux 6.13, ena and virtio_net 6.15, igb 6.16; drivers/net/veth.c, \
             veth_napi_enable_range, does not use it; measured on veth",
    explanation: "Detected if a queue defers or suspends. A note if the driver is known to lose settings (veth). If it \
                  is not in the list, or this kernel is older than the entry, there is no verdict: distributions \
                  backport drivers. napi-replaced proves a loss that has happened. Fix: set the queues again whenever \
                  the link comes up.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: forgetful,
};

/// Drivers that keep the settings of queues, with the first Linux version that does.
const KEEPING: [(&str, (u32, u32)); 7] = [
    ("bnxt_en", (6, 13)),
    ("mlx5_core", (6, 13)),
    ("mlx4_en", (6, 13)),
    ("ice", (6, 13)),
    ("virtio_net", (6, 15)),
    ("ena", (6, 15)),
    ("igb", (6, 16)),
];
/// Drivers that lose the settings of queues.
const LOSING: [&str; 1] = ["veth"];

fn forgetful(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let running = version(&query.now.kernel.release);
    let of = |device: &Device| {
        let driver = device.driver.known()?.driver.as_deref()?;
        let set = device.napis.known()?.iter().any(|napi| napi.suspends() || napi.defers());
        let since = KEEPING.iter().find(|(keeping, _)| *keeping == driver).map(|(_, since)| *since);
        let (severity, observed) = match since {
            Some(since) if running.is_some_and(|running| running >= since) => return None,
            Some((major, minor)) => {
                (Severity::CannotTell, format!("driver {driver} keeps them from Linux {major}.{minor}"))
            }
            None if LOSING.contains(&driver) => (Severity::Note, format!("driver {driver}")),
            None => (Severity::CannotTell, format!("driver {driver} is not in the list of known drivers")),
        };
        set.then(|| Observation {
            severity,
            nodes: vec![device.into()],
            observed,
            fix: vec![Fix::advice("set the queues again whenever the link comes up")],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

static MODERATION: Rule = Rule {
    id: "adaptive-moderation",
    severity: Severity::Note,
    title: "the driver adapts its interrupt delay beside deferral or busy polling",
    impact: "While interrupts are masked, the driver has too few to choose the delay, so the first packets after a pause \
          wait.",
    source: "lib/dim/net_dim.c, net_dim, and include/linux/dim.h, DIM_NEVENTS (derived from the code); \
             Documentation/networking/net_dim.rst",
    explanation: "Detected if use-adaptive-rx of a device or queue is on, and the queue defers, suspends, or is \
                  busy-polled. Only a note: measure both with `quell bench`. Fix: a fixed delay.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: moderation,
};

fn moderation(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let adapts = |coalescing: &Reading<Coalescing>| -> Option<bool> {
        Some(coalescing.known()?.get(CoalesceParameter::UseAdaptiveRx)? != 0)
    };
    let of = |device: &Device| {
        let has_mode = |napi: &&SnapshotNapi| napi.defers() || query.is_polled(napi);
        let own = |id| {
            let queue = device.rx_queues.known_elements().find(|queue| queue.napi_id() == Some(id));
            queue.and_then(|queue| adapts(&queue.coalescing))
        };
        let adaptive = device
            .napis
            .known_elements()
            .filter(has_mode)
            .filter(|napi| own(napi.id).or_else(|| adapts(&device.coalescing)).unwrap_or(false));
        let napis: Vec<Node> = adaptive.map(|napi| query.napi_node(napi.id)).collect();
        if napis.is_empty() {
            return None;
        }
        let mut nodes = vec![Node::from(device)];
        nodes.extend(napis);
        let words = ["ethtool", "-C", &device.name, "adaptive-rx", "off"];
        let adaptive = |value| format!("{} {value}", CoalesceParameter::UseAdaptiveRx);
        let setting = Setting::host(SettingObject::device(device), "coalescing", adaptive(1), adaptive(0));
        Some(Observation {
            severity: Severity::Note,
            nodes,
            observed: "adaptive-rx is on".to_owned(),
            fix: vec![Fix::in_namespace(query, device.namespace, &words).setting_of(setting)],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}
