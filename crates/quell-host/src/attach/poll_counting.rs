//! Counts who polls queues, and what their programs use of CPUs. [`effect`](super::effect) judges it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use quell_linux::proc::{ProcRoot, Schedstat};
use quell_linux::{NapiId, Pid, kernel};
use quell_sampler::{PollCounters, Sampler, SamplerError};

use super::effect::{EffectOnQueue, PACKETS_FOR_VERDICT};
use super::own_work::{WorkReading, has_backlog, worked_by};
use super::plan::QueueStep;
use crate::snapshot::Snapshot;

/// Counts polls of the queues for the duration of `wait`. The mode is for `programs`, of which `now` is a snapshot.
pub fn watch(
    queues: &[QueueStep],
    programs: &BTreeSet<Pid>,
    now: &Snapshot,
    wait: &mut dyn FnMut(),
) -> Result<Vec<EffectOnQueue>, SamplerError> {
    let sampler = Sampler::of(kernel::sysfs(), queues.iter().map(|step| step.napi))?;
    let mut counting = PollCounting::begin(queues.to_vec(), programs, sampler.read()?);
    wait();
    let has_backlog = has_backlog(now, programs);
    Ok(counting.next(programs, sampler.read()?).into_iter().map(|seen| seen.with_backlog(has_backlog)).collect())
}

/// Observes queues in consecutive intervals.
#[derive(Debug)]
pub(super) struct PollCounting {
    pub(super) queues: Vec<QueueStep>,
    pub(super) began: Instant,
    polls: BTreeMap<NapiId, PollCounters>,
    irqs: BTreeMap<IrqOfNapi, u64>,
    cpu: BTreeMap<Pid, Schedstat>,
    work: WorkReading,
}

/// A NAPI instance, and the number of its interrupt.
type IrqOfNapi = (NapiId, u32);

impl PollCounting {
    pub(super) fn begin(
        queues: Vec<QueueStep>,
        programs: &BTreeSet<Pid>,
        polls: BTreeMap<NapiId, PollCounters>,
    ) -> Self {
        let (began, irqs, cpu) = (Instant::now(), interrupts(&queues), cpu_of(programs));
        Self { queues, began, polls, irqs, cpu, work: WorkReading::of(programs) }
    }

    /// Whether one of the queues has enough packets for a verdict with these counters.
    pub(super) fn suffices(&self, polls: &BTreeMap<NapiId, PollCounters>) -> bool {
        let packets = |(napi, now): (&NapiId, &PollCounters)| now.since(self.polls.get(napi)).packets;
        polls.iter().map(packets).any(|packets| packets >= PACKETS_FOR_VERDICT)
    }

    /// Ends the interval with these counters, and begins the next one.
    pub(super) fn next(
        &mut self,
        programs: &BTreeSet<Pid>,
        polls: BTreeMap<NapiId, PollCounters>,
    ) -> Vec<EffectOnQueue> {
        let (now, irqs, cpu) = (Instant::now(), interrupts(&self.queues), cpu_of(programs));
        let for_ns = u64::try_from((now - self.began).as_nanos()).unwrap_or(u64::MAX);
        let used = cpu_between(&self.cpu, &cpu);
        let work = WorkReading::of(programs);
        let programs_worked_ns = worked_by(programs, &work.since(&self.work));
        let seen = |step: &QueueStep| {
            let sample = polls.get(&step.napi)?.since(self.polls.get(&step.napi));
            let interrupts = step.irq.and_then(|irq| interrupts_between(&self.irqs, &irqs, (step.napi, irq)));
            let seen = EffectOnQueue::of(step.napi, for_ns, &sample);
            Some(EffectOnQueue { interrupts, programs_worked_ns, ..seen.with_cpu(used) })
        };
        let seen = self.queues.iter().filter_map(seen).collect();
        (self.began, self.irqs, self.cpu, self.work, self.polls) = (now, irqs, cpu, work, polls);
        seen
    }
}

fn interrupts(queues: &[QueueStep]) -> BTreeMap<IrqOfNapi, u64> {
    let Ok(interrupts) = ProcRoot::default().interrupts() else { return BTreeMap::new() };
    let count = |step: &QueueStep| Some(((step.napi, step.irq?), interrupts.irq(step.irq?)?.total));
    queues.iter().filter_map(count).collect()
}

/// Absent if the interrupt was counted only once, or its counter went backwards: a driver requested it again.
fn interrupts_between(
    before: &BTreeMap<IrqOfNapi, u64>,
    after: &BTreeMap<IrqOfNapi, u64>,
    irq: IrqOfNapi,
) -> Option<u64> {
    after.get(&irq)?.checked_sub(*before.get(&irq)?)
}

/// CPU time of each program since it started, without threads that exited. Programs that exited are missing.
fn cpu_of(programs: &BTreeSet<Pid>) -> BTreeMap<Pid, Schedstat> {
    let proc = ProcRoot::default();
    let of = |pid: &Pid| Some((*pid, proc.process(*pid).schedstat_of_all_threads().ok()?));
    programs.iter().filter_map(of).collect()
}

/// CPU time of the programs between two readings. Absent without programs, if one of them was read only once, and if
/// threads exited with more CPU time than the others used.
fn cpu_between(before: &BTreeMap<Pid, Schedstat>, after: &BTreeMap<Pid, Schedstat>) -> Option<Schedstat> {
    if after.is_empty() || !before.keys().eq(after.keys()) {
        return None;
    }
    let mut used = before.values().zip(after.values()).map(|(before, after)| after.since(*before));
    used.try_fold(Schedstat::default(), |sum, one| Some(sum.plus(one?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_programs_is_absent_if_one_of_them_is_not_known_twice() {
        let times = |times: &[(i32, u64)]| {
            let of = |run_ns| Schedstat { run_ns, wait_ns: run_ns / 5, timeslices: 1 };
            times.iter().map(|&(pid, ns)| (Pid::new(pid).unwrap(), of(ns))).collect::<BTreeMap<_, _>>()
        };
        let used = cpu_between(&times(&[(7, 10), (8, 5)]), &times(&[(7, 30), (8, 5)]));
        assert_eq!(used, Some(Schedstat { run_ns: 20, wait_ns: 4, timeslices: 0 }));
        assert_eq!(cpu_between(&times(&[(7, 10)]), &times(&[(7, 9)])), None);
        assert_eq!(cpu_between(&times(&[(7, 10)]), &times(&[(7, 30), (8, 5)])), None);
        assert_eq!(cpu_between(&times(&[(7, 10), (8, 5)]), &times(&[(7, 30)])), None);
        assert_eq!(cpu_between(&times(&[]), &times(&[])), None);
    }

    #[test]
    fn interrupts_are_unknown_if_their_counter_went_backwards_or_the_queue_got_another_one() {
        let napi = NapiId::from_kernel(9000).unwrap();
        let counted = |irq, total| BTreeMap::from([((napi, irq), total)]);
        assert_eq!(interrupts_between(&counted(40, 7), &counted(40, 9), (napi, 40)), Some(2));
        assert_eq!(interrupts_between(&counted(40, 7), &counted(40, 3), (napi, 40)), None);
        assert_eq!(interrupts_between(&counted(40, 7), &counted(41, 9), (napi, 41)), None);
    }
}
