//! Selects the CPU of each queue in a group by a profile's policy.

use quell_linux::CpuList;
use quell_mode::profile::CpuPolicy;

use crate::snapshot::{Cpu, Device, Snapshot, UnknownReason};

/// Reason why a policy yields no CPU.
pub(super) type NoCpu = (UnknownReason, String);

/// CPUs for the queue at `position` (from 0) of its group.
pub(super) fn choose(
    policy: &CpuPolicy,
    position: usize,
    device: &Device,
    snapshot: &Snapshot,
) -> Result<CpuList, NoCpu> {
    let turn = |cpus: Vec<u32>| match cpus.len() {
        0 => Err((UnknownReason::Absent, "this policy leaves no CPU".to_owned())),
        count => Ok(CpuList::from_iter([cpus[position % count]])),
    };
    match policy {
        CpuPolicy::These(cpus) => turn(cpus.clone()).and_then(|cpu| online(cpu, snapshot)),
        CpuPolicy::NumaLocal => turn(numa_local(device, snapshot)),
        CpuPolicy::OnePerCore => turn(one_per_core(device, snapshot)),
        CpuPolicy::Default => default(snapshot),
        _ => Err((UnknownReason::Failed, "this version does not know the policy".to_owned())),
    }
}

/// CPUs that the kernel uses by default.
pub(super) fn default(snapshot: &Snapshot) -> Result<CpuList, NoCpu> {
    let known = snapshot.cpus.default_irq_affinity.known().or(snapshot.cpus.online.known());
    known.cloned().ok_or_else(|| (UnknownReason::Absent, "the kernel does not report its default".to_owned()))
}

fn online(cpus: CpuList, snapshot: &Snapshot) -> Result<CpuList, NoCpu> {
    let offline = snapshot.cpus.online.known().map(|online| cpus.without(online)).filter(|offline| !offline.is_empty());
    match offline {
        Some(offline) => Err((UnknownReason::Absent, format!("CPU {offline} is not online"))),
        None => Ok(cpus),
    }
}

/// Usable CPUs in ascending order. Excludes isolated CPUs, which a profile must name explicitly.
fn usable(snapshot: &Snapshot) -> impl Iterator<Item = &Cpu> {
    let housekeeping = snapshot.cpus.housekeeping();
    let may_be_used = move |cpu: &&Cpu| housekeeping.as_ref().is_none_or(|cpus| cpus.contains(cpu.number));
    snapshot.cpus.each.iter().filter(may_be_used)
}

fn is_local(cpu: &Cpu, device: &Device) -> bool {
    match (device.numa_node.known(), cpu.numa_node.known()) {
        (Some(Some(device)), Some(Some(cpu))) => device == cpu,
        _ => true,
    }
}

fn numa_local(device: &Device, snapshot: &Snapshot) -> Vec<u32> {
    usable(snapshot).filter(|cpu| is_local(cpu, device)).map(|cpu| cpu.number).collect()
}

fn one_per_core(device: &Device, snapshot: &Snapshot) -> Vec<u32> {
    let is_first = |cpu: &&Cpu| match cpu.smt_siblings.known() {
        Some(siblings) => siblings.iter().next().is_none_or(|first| first == cpu.number),
        None => true,
    };
    let mut cores: Vec<&Cpu> = usable(snapshot).filter(is_first).collect();
    cores.sort_by_key(|cpu| (!is_local(cpu, device), cpu.number));
    cores.into_iter().map(|cpu| cpu.number).collect()
}
