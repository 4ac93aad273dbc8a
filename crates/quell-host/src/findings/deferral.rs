//! Rules about interrupt deferral and queue settings: incomplete settings, timers that are too short, and events that
//! overwrite or reset settings.

use super::mend::Mend;
use super::view::{EpollView, PACKETS_TO_JUDGE, View, deferral, defers, irq_of, suspends, time_text};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Device, Napi};

pub(super) const RULES: &[&Rule] = &[&HALF, &WITHOUT_EFFECT, &FLUSH_TOO_SHORT, &SYSFS, &FORGETFUL];

static HALF: Rule = Rule {
    id: "deferral-incomplete",
    severity: Severity::Warning,
    title: "a queue has one half of deferral",
    why: "defer-hard-irqs without gro-flush-timeout defers nothing, and gro-flush-timeout alone only keeps merged packets \
          back for as long.",
    source: "net/core/dev.c, napi_complete_done; Documentation/networking/napi.rst",
    explanation: "Seen: one of defer-hard-irqs and gro-flush-timeout is 0 and the other is not, on a queue without \
                  suspension. Mended by setting the other, or clearing both.",
    needs_two: false,
    examine: half,
};

fn half(view: &View<'_>) -> Vec<Observation> {
    let of = |(device, napi): (&Device, &Napi)| {
        let (count, timeout_ns) = deferral(napi)?;
        let missing = match (count, timeout_ns) {
            (0, 1..) => ("defer-hard-irqs", 100),
            (1.., 0) => ("gro-flush-timeout", 20_000),
            _ => return None,
        };
        // If the queue suspends, a rule of `suspension` reports it.
        (napi.irq_suspend_timeout_ns.known().is_some() && !suspends(napi)).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![view.napi_node(napi.id)],
            seen: format!("defer-hard-irqs {count}, gro-flush-timeout {timeout_ns} ns"),
            mend: vec![
                Mend::napi_set(view, device, napi.id, &[missing]),
                Mend::napi_set(view, device, napi.id, &[("defer-hard-irqs", 0), ("gro-flush-timeout", 0)]),
            ],
        })
    };
    view.napis().filter_map(of).collect()
}

static WITHOUT_EFFECT: Rule = Rule {
    id: "deferral-without-effect",
    severity: Severity::Warning,
    title: "a queue defers interrupts, and has one for every few packets",
    why: "Deferral that works has hundreds of packets for each interrupt; a few mean that something undoes it.",
    source: "published, 200,000 requests a second: 2.6 packets for each interrupt in base, 2,502 with defer20",
    explanation: "Compared over two pictures: packets of a queue for each of its interrupts. Below 10 it is a finding, unless \
                  packets come so rarely that deferral runs out between them (defer-hard-irqs times gro-flush-timeout), \
                  which is its design: then it cannot be told at this load. An interrupt that also serves transmit \
                  completions counts those. Mended by what other rules say of the queue, or by more defer-hard-irqs.",
    needs_two: true,
    examine: without_effect,
};

const PACKETS_PER_INTERRUPT: u64 = 10;

fn without_effect(view: &View<'_>) -> Vec<Observation> {
    let deferring = view.napis().filter(|(_, napi)| defers(napi));
    deferring.filter_map(|(device, napi)| judge_deferral(view, device, napi)).collect()
}

fn judge_deferral(view: &View<'_>, device: &Device, napi: &Napi) -> Option<Observation> {
    let irq = irq_of(napi)?;
    let interrupts = view.interrupts(irq)?;
    let packets = view.queue_packets(device, napi.id)?;
    let interval_ns = view.interval_ns()?;
    let (count, timeout_ns) = deferral(napi)?;
    let nodes = vec![view.napi_node(napi.id), Node::Irq { number: irq }];
    let runs_out_ns = u64::from(count).saturating_mul(timeout_ns);
    let gap_ns = interval_ns / packets.max(1);
    if packets < PACKETS_TO_JUDGE || gap_ns.saturating_mul(PACKETS_PER_INTERRUPT) > runs_out_ns {
        let seen = format!(
            "cannot tell at this load: {packets} packets in {}, and deferral runs out after {} without one",
            time_text(interval_ns),
            time_text(runs_out_ns)
        );
        return Some(Observation { severity: Severity::CannotTell, nodes, seen, mend: Vec::new() });
    }
    (packets / PACKETS_PER_INTERRUPT < interrupts).then(|| Observation {
        severity: Severity::Warning,
        nodes,
        seen: format!("{packets} packets and {interrupts} interrupts in {}", time_text(interval_ns)),
        mend: vec![Mend::napi_set(view, device, napi.id, &[("defer-hard-irqs", u64::from(count.max(50)) * 2)])],
    })
}

static FLUSH_TOO_SHORT: Rule = Rule {
    id: "gro-flush-below-request-time",
    severity: Severity::Warning,
    title: "gro-flush-timeout is shorter than the program's work for one packet",
    why: "The timer then interrupts the program within every request: above some load such polls take more than the \
          interrupts that they replace.",
    source: "the published runs of defer10: 70,000 and more timer polls a second and queue, slower than base above 800,000 \
             requests a second",
    explanation: "Compared over two pictures: the run time of the only thread that serves the only epoll of a queue, for each \
                  packet of the queue, against gro-flush-timeout. Not where the queue suspends, for then the timer waits. \
                  Mended by a longer gro-flush-timeout.",
    needs_two: true,
    examine: flush_too_short,
};

fn flush_too_short(view: &View<'_>) -> Vec<Observation> {
    let of = |epoll: &EpollView<'_>| {
        let work_ns = view.work_per_packet_ns(epoll)?;
        let (device, napi) = epoll.by_napi.keys().find_map(|&id| view.napi(id))?;
        let (_, timeout_ns) = deferral(napi).filter(|_| defers(napi))?;
        let held = suspends(napi) && epoll.params.is_none_or(|params| params.prefer_busy_poll);
        if held || view.epolls_on(napi.id).count() > 1 || timeout_ns as f64 >= work_ns {
            return None;
        }
        let mut nodes = epoll.nodes();
        nodes.push(view.napi_node(napi.id));
        let longer = (work_ns as u64).saturating_mul(10).max(20_000);
        Some(Observation {
            severity: Severity::Warning,
            nodes,
            seen: format!("gro-flush-timeout {}, work {} a packet", time_text(timeout_ns), time_text(work_ns as u64)),
            mend: vec![Mend::napi_set(view, device, napi.id, &[("gro-flush-timeout", longer)])],
        })
    };
    view.epolls.iter().filter_map(of).collect()
}

static SYSFS: Rule = Rule {
    id: "sysfs-differs",
    severity: Severity::Note,
    title: "the device's sysfs settings are not those of its queues",
    why: "Whoever writes napi_defer_hard_irqs or gro_flush_timeout in sysfs overwrites what every queue of the device was \
          set to.",
    source: "net/core/dev.c, netdev_set_defer_hard_irqs; measured: sysfs reads 0 while queues have values of their own",
    explanation: "Seen: a queue's defer-hard-irqs or gro-flush-timeout differs from the device's file in sysfs. That is right \
                  for queues that are set one by one; the note is for scripts and tuned profiles that write the files. \
                  Nothing to mend where there are none.",
    needs_two: false,
    examine: sysfs,
};

fn sysfs(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let (defaults, napis) = (&device.defaults, device.napis.known()?);
        let file = (*defaults.defer_hard_irqs.known()?, *defaults.gro_flush_timeout_ns.known()?);
        let differing: Vec<&Napi> =
            napis.iter().filter(|napi| deferral(napi).is_some_and(|values| values != file)).collect();
        let (_, first) = differing.first().map(|napi| (napi, deferral(napi)))?;
        let (count, timeout_ns) = first?;
        let mut nodes = vec![Node::from(device)];
        nodes.extend(differing.iter().map(|napi| view.napi_node(napi.id)));
        Some(Observation {
            severity: Severity::Note,
            nodes,
            seen: format!("sysfs has {} and {} ns, queues have {count} and {timeout_ns} ns", file.0, file.1),
            mend: vec![Mend::advice("leave the files in sysfs alone; set queues by netlink")],
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}

static FORGETFUL: Rule = Rule {
    id: "settings-not-kept",
    severity: Severity::Note,
    title: "the driver forgets the settings of queues when the link goes down",
    why: "On drivers that do not ask for persistent NAPI settings a link that goes down and up has new NAPI ids with default \
          values.",
    source: "net/core/dev.h, netif_napi_add_config: bnxt, ice, mlx4, mlx5 from Linux 6.13, ena and virtio_net 6.15, igb \
             6.16; measured on veth",
    explanation: "Seen: a queue of a driver that is not known to keep settings defers or suspends. A driver that learnt it \
                  since is reported needlessly. Mended by setting the queues again whenever the link comes up.",
    needs_two: false,
    examine: forgetful,
};

const KEEPING: [&str; 8] = ["bnxt_en", "mlx5_core", "mlx4_en", "ice", "virtio_net", "ena", "igb", "i40e"];

fn forgetful(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let driver = device.driver.known()?.driver.as_deref()?;
        let set = device.napis.known()?.iter().any(|napi| suspends(napi) || defers(napi));
        (set && !KEEPING.contains(&driver)).then(|| Observation {
            severity: Severity::Note,
            nodes: vec![device.into()],
            seen: format!("driver {driver}"),
            mend: vec![Mend::advice("set the queues again whenever the link has come up")],
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}
