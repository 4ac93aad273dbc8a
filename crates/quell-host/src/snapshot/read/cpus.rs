//! Reads the CPUs.

use quell_linux::CpuList;
use quell_linux::proc::{Interrupts, ProcRoot, Softirqs, SoftnetStat};
use quell_linux::sysfs::{NumaNode, Sysfs};

use super::super::{Cpu, CpuCounters, CpuidleState, Cpus, Reading, UnknownReason};
use super::outcome::Outcome as _;

/// Data that is read once and used for all CPUs.
struct Common<'a> {
    sysfs: Sysfs,
    nodes: Reading<Vec<NumaNode>>,
    softirqs: Reading<Softirqs>,
    softnet: Reading<SoftnetStat>,
    interrupts: &'a Reading<Interrupts>,
}

pub(super) fn read(proc: &ProcRoot, interrupts: &Reading<Interrupts>) -> Cpus {
    let sysfs = Sysfs::default();
    let online = CpuList::online(sysfs.path()).outcome();
    let isolated = CpuList::isolated(sysfs.path()).outcome();
    let nohz_full = sysfs.cpus_without_tick().outcome();
    let common = Common {
        nodes: sysfs.numa_nodes().outcome(),
        softirqs: proc.softirqs().outcome(),
        softnet: proc.softnet_stat().outcome(),
        interrupts,
        sysfs,
    };
    let each = online.known().map(|cpus| cpus.iter().map(|number| common.cpu(number)).collect());
    Cpus {
        online,
        isolated,
        nohz_full,
        default_irq_affinity: proc.default_irq_affinity().outcome(),
        each: each.unwrap_or_default(),
    }
}

impl Common<'_> {
    fn cpu(&self, number: u32) -> Cpu {
        let idle_states = self.sysfs.cpu_idle_states(number).outcome().map(|states| {
            let state = |state: quell_linux::sysfs::CpuIdleState| CpuidleState {
                name: state.name,
                exit_latency_us: state.exit_latency_us,
                allowed: !state.is_disabled,
            };
            states.into_iter().map(state).collect()
        });
        Cpu {
            number,
            smt_siblings: CpuList::siblings(self.sysfs.path(), number).outcome(),
            numa_node: self.numa_node(number),
            governor: self.sysfs.cpu_governor(number).outcome(),
            scaling_driver: self.sysfs.cpu_scaling_driver(number).outcome(),
            idle_states,
            counters: self.counters(number),
        }
    }

    fn numa_node(&self, number: u32) -> Reading<Option<u32>> {
        match &self.nodes {
            Reading::Known(nodes) => {
                let node = nodes.iter().find(|node| node.cpus.contains(number));
                Reading::Known(node.map(|node| node.number))
            }
            Reading::Unknown(unknown) if unknown.unknown.reason == UnknownReason::Absent => Reading::Known(None),
            Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
        }
    }

    fn counters(&self, number: u32) -> CpuCounters {
        let softnet = |field: fn(&quell_linux::proc::SoftnetCpu) -> u32| {
            let count = |stat: &SoftnetStat| stat.cpu(number).map(|cpu| field(&cpu).into());
            counted(&self.softnet, count, "read /proc/net/softnet_stat", number)
        };
        CpuCounters {
            net_rx_softirqs: counted(&self.softirqs, |all| all.count("NET_RX", number), "read /proc/softirqs", number),
            timer_interrupts: counted(
                self.interrupts,
                |all| all.kind("LOC")?.per_cpu.as_ref()?.get(&number).copied(),
                "read LOC of /proc/interrupts",
                number,
            ),
            softnet_processed: softnet(|cpu| cpu.processed),
            softnet_dropped: softnet(|cpu| cpu.dropped),
            softnet_time_squeeze: softnet(|cpu| cpu.time_squeeze),
        }
    }
}

/// Returns the count of one CPU from a file with a count for each CPU.
fn counted<F>(file: &Reading<F>, count: impl FnOnce(&F) -> Option<u64>, tried: &str, cpu: u32) -> Reading<u64> {
    match file {
        Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
        Reading::Known(file) => match count(file) {
            Some(count) => Reading::Known(count),
            None => {
                Reading::unknown(UnknownReason::UnsupportedByKernel, format!("{tried}: it has no entry for CPU {cpu}"))
            }
        },
    }
}
