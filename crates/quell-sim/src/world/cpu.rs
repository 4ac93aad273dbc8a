//! State of a CPU: its current activity, its pending work, and the time it spent on each activity.

use std::collections::VecDeque;

use serde::Serialize;

use crate::engine::{NEVER, Ns};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HardIrq {
    Device(usize),
    NapiTimer(usize),
    Timeout {
        thread: usize,
        sleep: u32,
    },
    /// A reschedule interrupt: another CPU made a thread runnable on this CPU.
    Reschedule,
    /// The scheduler tick, which occurs only while threads compete.
    Tick,
}

impl HardIrq {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Device(_) => "NIC interrupt",
            Self::NapiTimer(_) => "NAPI timer interrupt",
            Self::Timeout { .. } => "timeout interrupt",
            Self::Reschedule => "reschedule interrupt",
            Self::Tick => "tick",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    Halted,
    IdleEntry,
    IdleExit,
    /// The CPU handles the first of its pending interrupts.
    HardIrq,
    SoftIrq,
    Thread,
    /// The CPU selects its next activity, which takes no time.
    Deciding,
}

/// CPU time by context, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CpuTime {
    /// Time in threads, in user and kernel mode.
    pub thread_ns: Ns,
    /// Time in softirqs.
    pub softirq_ns: Ns,
    /// Time in hard interrupts of threads and softirqs.
    pub hardirq_ns: Ns,
    /// Time executed while entering and leaving idle states, and in hard interrupts of an idle CPU. It is visible in
    /// cycles, but not in `/proc/stat`, which counts what a tick finds.
    pub unaccounted_ns: Ns,
    /// Total observed time.
    pub total_ns: Ns,
}

impl CpuTime {
    /// Share of time that CPU accounting reports as busy.
    #[must_use]
    pub fn accounted_share(&self) -> f64 {
        (self.thread_ns + self.softirq_ns + self.hardirq_ns) as f64 / self.total_ns.max(1) as f64
    }

    /// Share of time in softirqs and hard interrupts.
    #[must_use]
    pub fn interrupt_share(&self) -> f64 {
        (self.softirq_ns + self.hardirq_ns) as f64 / self.total_ns.max(1) as f64
    }

    /// Executed time in ns. It corresponds to unhalted cycles at a constant clock.
    #[must_use]
    pub fn executed_ns(&self) -> Ns {
        self.thread_ns + self.softirq_ns + self.hardirq_ns + self.unaccounted_ns
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.thread_ns += other.thread_ns;
        self.softirq_ns += other.softirq_ns;
        self.hardirq_ns += other.hardirq_ns;
        self.unaccounted_ns += other.unaccounted_ns;
        self.total_ns += other.total_ns;
    }
}

/// A run of the NET_RX softirq, which may be interrupted (`__do_softirq`, `net_rx_action`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct SoftIrqRun {
    pub(crate) began_ns: Ns,
    pub(crate) round: u32,
    pub(crate) round_deadline_ns: Ns,
    pub(crate) budget: i64,
    /// Number of instances that remain to be polled in this round.
    pub(crate) round_left: usize,
    /// NAPI instance of the current poll, and the number of its packets so far.
    pub(crate) polling: Option<(usize, u32)>,
}

#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) context: Context,
    pub(crate) segment_began_ns: Ns,
    pub(crate) segment_ends_ns: Ns,
    /// Distinguishes the end of this segment from ends of interrupted segments.
    pub(crate) generation: u32,
    /// Interrupts that are pending or being handled.
    pub(crate) irqs: VecDeque<HardIrq>,
    pub(crate) softirq: Option<SoftIrqRun>,
    pub(crate) softirq_left_ns: Ns,
    /// `softnet_data.poll_list`.
    pub(crate) poll_list: VecDeque<usize>,
    /// Whether the rest of the poll list was left to `ksoftirqd`.
    pub(crate) left_to_ksoftirqd: bool,
    pub(crate) current: Option<usize>,
    pub(crate) last: Option<usize>,
    pub(crate) need_resched: bool,
    pub(crate) runnable: Vec<usize>,
    pub(crate) ksoftirqd: usize,
    pub(crate) ticking: bool,
    pub(crate) halted_since_ns: Ns,
    /// Idle time that the idle governor expects, which is the mean of recent idle times.
    pub(crate) expected_idle_ns: Ns,
    pub(crate) time: CpuTime,
}

impl Cpu {
    pub(crate) fn new(ksoftirqd: usize) -> Self {
        Self {
            context: Context::Halted,
            segment_began_ns: 0,
            segment_ends_ns: NEVER,
            generation: 0,
            irqs: VecDeque::with_capacity(16),
            softirq: None,
            softirq_left_ns: 0,
            poll_list: VecDeque::with_capacity(16),
            left_to_ksoftirqd: false,
            current: None,
            last: None,
            need_resched: false,
            runnable: Vec::with_capacity(16),
            ksoftirqd,
            ticking: false,
            halted_since_ns: 0,
            expected_idle_ns: 0,
            time: CpuTime::default(),
        }
    }

    /// Accounts the time since the start of the segment or the end of the warm-up, whichever is later.
    pub(crate) fn account(&mut self, now_ns: Ns) {
        let spent_ns = now_ns.saturating_sub(self.segment_began_ns);
        self.segment_began_ns = now_ns;
        // A tick that comes during an interrupt of an idle CPU counts as idle (`account_process_tick`).
        let idle = self.current.is_none() && self.softirq.is_none();
        let (context, time) = (self.context, &mut self.time);
        // The context is hard to predict, so there is no branch on it.
        let spent_if = |accounted: bool| if accounted { spent_ns } else { 0 };
        time.thread_ns += spent_if(context == Context::Thread);
        time.softirq_ns += spent_if(context == Context::SoftIrq);
        time.hardirq_ns += spent_if(context == Context::HardIrq && !idle);
        time.unaccounted_ns += spent_if(match context {
            Context::HardIrq => idle,
            _ => matches!(context, Context::IdleEntry | Context::IdleExit),
        });
    }

    /// Ends the current segment early, after its time was accounted. Returns its remaining time.
    pub(crate) fn interrupt(&mut self, now_ns: Ns) -> Ns {
        self.generation = self.generation.wrapping_add(1);
        if self.segment_ends_ns == NEVER { NEVER } else { self.segment_ends_ns.saturating_sub(now_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_of_an_idle_cpu_is_executed_but_not_accounted() {
        let interrupted = |current| {
            let mut cpu = Cpu { context: Context::HardIrq, current, ..Cpu::new(0) };
            cpu.account(700);
            (cpu.time.hardirq_ns, cpu.time.executed_ns())
        };
        assert_eq!([interrupted(None), interrupted(Some(1))], [(0, 700), (700, 700)]);
    }
}
