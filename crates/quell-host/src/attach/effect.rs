//! Judges whether a mode is in effect by who polled the queues. The verdict is "cannot tell" if the load is too low.
//! Correct settings are no evidence here; the transaction has verified them already. Pure.

use quell_linux::NapiId;
use quell_linux::proc::Schedstat;
use quell_linux::visible::{agree, counted, thousands};
use quell_mode::{DeliveryMode, Threaded};
use quell_sampler::QueueSample;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::no_poll::{NoPollCause, SEE_HOW_IT_WAITS};
use super::own_work::{OwnWork, worked_ns};
use crate::findings::Fix;
use crate::findings::text::time_text;

/// Minimum number of packets for a verdict.
pub(crate) const PACKETS_FOR_VERDICT: u64 = 200;
/// Of this many polls by a program that receives events, at least one should find its queue suspended. The other polls
/// belong to calls that return no events.
const POLLS_PER_SUSPENSION: u64 = 10;
/// Minimum number of polls by the program before missing suspensions lead to a verdict.
const POLLS_TO_JUDGE: u64 = 20;
/// Minimum number of packets per interrupt that counts as deferral in effect.
const PACKETS_PER_INTERRUPT: u64 = 10;
/// Packets per poll by the kernel. More frequent polls by the kernel are mentioned in the verdict.
const PACKETS_PER_POLL_BY_KERNEL: u64 = 10;
/// Part of the suspension timeout by which waits exceed it if something re-arms it. Bounds of waits are rounded up by an
/// eighth, and timers are late.
const OVERDUE_PART: u64 = 4;
/// Packets wait for less in any mode. A shorter timeout suspends nothing.
const OVERDUE_MIN_NS: u64 = 1_000_000;
/// Minimum number of long waits without a poll. A virtual machine that does not run for a moment causes one.
pub(crate) const STALLED_POLLS_TO_JUDGE: u64 = 2;
/// Minimum CPU time of a program for each packet that it receives: less than a system call and a copy take.
pub const CPU_NS_PER_PACKET: u64 = 1_000;

/// A program that uses less than one part in this number of a CPU is idle.
const CPU_SHARE_OF_SUSPECT: u64 = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EffectOnQueue {
    pub napi: NapiId,
    pub for_ns: u64,
    pub packets: u64,
    pub polls: u64,
    /// Polls by program threads, without the last poll of each busy poll.
    pub by_program: u64,
    /// Last polls of the busy polls of program threads (`busy_poll_stop`).
    pub by_program_last: u64,
    /// Polls by the program's threads that found the interrupt suspended; absent if the kernel does not support
    /// suspension.
    pub found_suspended: Option<u64>,
    pub by_thread: u64,
    /// Interrupts of the queue; absent if the queue has no interrupt or the interrupts cannot be counted.
    pub interrupts: Option<u64>,
    /// CPU time of the programs that the mode is for, in nanoseconds; absent if it is unknown.
    pub programs_cpu_ns: Option<u64>,
    /// Time for which they wanted to run and waited for a CPU, in nanoseconds; absent if it is unknown.
    pub programs_cpu_wait_ns: Option<u64>,
    /// CPU time of their threads that slept in between, in nanoseconds: the others may spin. Absent if it is unknown.
    #[serde(skip)]
    pub programs_worked_ns: Option<u64>,
    /// 99th percentile of the time that packets can have waited, in nanoseconds; absent if most came by an enabled
    /// interrupt, so that they have no bound.
    pub wait_p99_ns: Option<u64>,
    /// 90th percentile of the same time.
    #[serde(skip)]
    pub wait_p90_ns: Option<u64>,
    /// Number of polls that found packets after a time that is longer than usual suspensions (`WaitBounds`).
    #[serde(skip)]
    pub stalled_polls: u64,
    /// Whether the interrupt is known to have been enabled all the time.
    #[serde(skip)]
    pub is_enabled: bool,
    /// Whether other programs can poll the queue, too. Polls are counted for all of them together.
    #[serde(skip)]
    pub is_shared: bool,
}

/// Verdict on a mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", content = "reason", rename_all = "kebab-case")]
pub enum ModeVerdict {
    /// The mode is in effect; the text gives the evidence.
    InEffect(String),
    /// The mode is not in effect; the text gives the evidence.
    NotInEffect(String),
    /// The load or the available counters do not allow a verdict; the text gives the reason.
    CannotTell(String),
}

impl ModeVerdict {
    /// The worse verdict that is certain.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        let rank = |verdict: &Self| match verdict {
            Self::NotInEffect(_) => 0,
            Self::InEffect(_) => 1,
            Self::CannotTell(_) => 2,
        };
        if rank(&other) < rank(&self) { other } else { self }
    }
}

impl EffectOnQueue {
    #[must_use]
    pub fn of(napi: NapiId, for_ns: u64, sample: &QueueSample) -> Self {
        let QueueSample { polls, packets, program_found_suspended: found_suspended, wait, .. } = *sample;
        let bound = |ns: Option<u64>| ns.filter(|_| wait.packets >= wait.interrupt_packets);
        Self {
            napi,
            for_ns,
            packets,
            polls: polls.total(),
            by_program: polls.program,
            by_program_last: polls.program_last,
            found_suspended,
            by_thread: polls.thread,
            interrupts: None,
            programs_cpu_ns: None,
            programs_cpu_wait_ns: None,
            programs_worked_ns: None,
            wait_p99_ns: bound(wait.p99_ns),
            wait_p90_ns: bound(wait.p90_ns),
            stalled_polls: wait.stalled_polls,
            is_enabled: sample.enabled_ns > 0 && sample.masked_ns == 0,
            is_shared: false,
        }
    }

    /// The same with what the threads of its programs used of CPUs in the interval.
    #[must_use]
    pub fn with_cpu(self, used: Option<Schedstat>) -> Self {
        let (programs_cpu_ns, programs_cpu_wait_ns) = used.map(|used| (used.run_ns, used.wait_ns)).unzip();
        Self { programs_cpu_ns, programs_cpu_wait_ns, ..self }
    }

    /// The same for programs for which a request waits, if `has_backlog`.
    #[must_use]
    pub(crate) fn with_backlog(self, has_backlog: bool) -> Self {
        Self { programs_worked_ns: worked_ns(has_backlog, self.programs_cpu_ns, self.programs_worked_ns), ..self }
    }

    /// The same for a program that cannot have polled: polls by programs are those of others.
    #[must_use]
    pub fn without_polls_of_others(self) -> Self {
        let found_suspended = self.found_suspended.map(|_| 0);
        Self { by_program: 0, by_program_last: 0, found_suspended, ..self }
    }

    /// Share of the time in which the programs wanted to run but waited for a CPU, 0 to 1; absent if it is unknown.
    pub(super) fn cpu_wait_share(&self) -> Option<f64> {
        let (ran, waited) = (self.programs_cpu_ns?, self.programs_cpu_wait_ns?);
        let wanted = ran.saturating_add(waited);
        (wanted > 0).then(|| waited as f64 / wanted as f64)
    }

    fn whose(&self) -> &'static str {
        if self.is_shared { "the programs on the queue" } else { "the program" }
    }

    pub(super) fn by_programs(&self) -> u64 {
        self.by_program.saturating_add(self.by_program_last)
    }

    /// Number of polls that the kernel started by itself. A lower bound on kernels without a last poll, where softirqs can
    /// count as last polls.
    pub(super) fn by_kernel(&self) -> u64 {
        self.polls.saturating_sub(self.by_programs())
    }

    /// The verdict if the program's polls are missing. An idle program has none either: before it sleeps, `epoll_wait`
    /// forgets the queue, where packets of others still arrive.
    fn without_program(&self, why: impl FnOnce() -> String) -> ModeVerdict {
        match self.cpu_ns_beside_others() {
            Some(cpu_ns) => ModeVerdict::CannotTell(format!(
                "other traffic on the queue: the program used {:.1} ms of CPU time for {}",
                cpu_ns as f64 / 1e6,
                counted(self.packets, "packet")
            )),
            None => ModeVerdict::NotInEffect(why()),
        }
    }

    /// CPU time of programs that cannot have received most of the packets.
    fn cpu_ns_beside_others(&self) -> Option<u64> {
        self.programs_cpu_ns.filter(|&cpu_ns| cpu_ns < self.packets.saturating_mul(CPU_NS_PER_PACKET))
    }

    /// Whether the programs received too few packets for a verdict.
    pub(super) fn has_few_packets(&self) -> bool {
        self.packets < PACKETS_FOR_VERDICT || self.cpu_ns_beside_others().is_some()
    }
}

/// Judges whether suspension for up to `timeout_ns` is in effect on a queue that a program with `prefer_busy_poll` serves.
/// `cause` finds out why the programs did not poll. Also returns what to do then.
#[must_use]
pub(crate) fn suspension_of(
    seen: &EffectOnQueue,
    timeout_ns: u64,
    cause: impl FnOnce() -> NoPollCause,
) -> (ModeVerdict, Option<Fix>) {
    let Some(overdue) = Overdue::of(seen, timeout_ns) else { return judge_polls(seen, cause) };
    let cause = cause();
    match overdue.is_usual || cause.explains_stall() {
        true => overdue.verdict(cause),
        false => judge_polls(seen, || cause),
    }
}

fn judge_polls(seen: &EffectOnQueue, cause: impl FnOnce() -> NoPollCause) -> (ModeVerdict, Option<Fix>) {
    match (too_few_packets(seen), seen.by_programs()) {
        (Some(too_few), _) => (too_few, None),
        (None, 0) => never_polled(seen, cause),
        (None, _) => (suspension(seen), None),
    }
}

/// Packets that wait for longer than a suspension lasts: something re-arms it without a poll. A program that works for
/// longer than the timeout does not cause this, because the timer then polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Overdue {
    wait_p99_ns: u64,
    timeout_ns: u64,
    /// Whether it cannot be a virtual machine that did not run for a moment.
    is_usual: bool,
    /// Whether the programs could have polled: they got a CPU for most of the time in which they wanted one. Absent if
    /// this is unknown.
    could_poll: Option<bool>,
}

/// Whether a wait is longer than suspensions for up to `timeout_ns` last.
pub(super) fn is_overdue(wait_ns: u64, timeout_ns: u64) -> bool {
    wait_ns > timeout_ns.saturating_add(timeout_ns / OVERDUE_PART).max(OVERDUE_MIN_NS)
}

impl Overdue {
    fn of(seen: &EffectOnQueue, timeout_ns: u64) -> Option<Self> {
        let wait_p99_ns = seen.wait_p99_ns.filter(|&ns| is_overdue(ns, timeout_ns))?;
        let is_long = seen.wait_p90_ns.is_some_and(|ns| is_overdue(ns, timeout_ns));
        let are_many = seen.packets >= PACKETS_FOR_VERDICT && is_long;
        let is_usual = are_many || seen.stalled_polls >= STALLED_POLLS_TO_JUDGE;
        let could_poll = seen.cpu_wait_share().map(|share| share <= 0.5);
        Some(Self { wait_p99_ns, timeout_ns, is_usual, could_poll })
    }

    fn verdict(self, cause: NoPollCause) -> (ModeVerdict, Option<Fix>) {
        let Self { wait_p99_ns, timeout_ns, could_poll, .. } = self;
        let text = format!(
            "packets waited up to {} (p99), longer than irq-suspend-timeout ({})",
            time_text(wait_p99_ns),
            time_text(timeout_ns)
        );
        match could_poll {
            None => (ModeVerdict::CannotTell(format!("{text}; the CPU time of the programs is unknown")), None),
            Some(false) => (
                ModeVerdict::CannotTell(format!("{text}: the programs waited for a CPU for longer than they ran")),
                None,
            ),
            Some(true) if cause.explains_stall() => (ModeVerdict::NotInEffect(format!("{text}: {cause}")), cause.fix()),
            Some(true) => (
                ModeVerdict::NotInEffect(format!("{text}: nobody polls while the program handles other events")),
                Some(Fix::advice(SEE_HOW_IT_WAITS)),
            ),
        }
    }
}

/// The verdict if epolls are to poll the queue, and none did, and what to do.
fn never_polled(seen: &EffectOnQueue, cause: impl FnOnce() -> NoPollCause) -> (ModeVerdict, Option<Fix>) {
    let EffectOnQueue { polls, packets, .. } = *seen;
    let text = format!("none of {} was by the program ({})", counted(polls, "poll"), counted(packets, "packet"));
    match seen.without_program(|| text.clone()) {
        ModeVerdict::NotInEffect(_) => {
            let cause = cause();
            let text = format!("{text}: {cause}");
            // Its next events are there at each call, so that it never polls: no evidence about a lower load.
            let work = OwnWork::of_queues([seen]).filter(|_| matches!(cause, NoPollCause::NobodySleeps { .. }));
            match (cause.is_none_of_the_programs(), work) {
                (_, Some(OwnWork { cpu_ns_per_packet })) => {
                    let work = time_text(cpu_ns_per_packet);
                    (ModeVerdict::CannotTell(format!("{text}; it works for {work} of CPU time per packet")), None)
                }
                (true, None) => (ModeVerdict::CannotTell(text), None),
                (false, None) => (ModeVerdict::NotInEffect(text), cause.fix()),
            }
        }
        other => (other, None),
    }
}

/// Why a suspended queue may be stalled, if it may: nobody polled it although its programs ran. An observer cannot know
/// whether packets wait, because only a poll shows it.
pub(crate) fn suspect(seen: &EffectOnQueue) -> Option<String> {
    let EffectOnQueue { for_ns, polls, is_enabled, .. } = *seen;
    let ran_ns = seen.programs_cpu_ns.filter(|&ran_ns| ran_ns >= for_ns / CPU_SHARE_OF_SUSPECT)?;
    (polls == 0 && !is_enabled).then(|| {
        format!(
            "suspect: nobody polled the suspended queue in {} although the program ran for {}: packets may wait in it",
            time_text(for_ns),
            time_text(ran_ns)
        )
    })
}

fn too_few_packets(seen: &EffectOnQueue) -> Option<ModeVerdict> {
    let EffectOnQueue { packets, for_ns, .. } = *seen;
    (packets < PACKETS_FOR_VERDICT).then(|| {
        ModeVerdict::CannotTell(match packets {
            0 => format!("no packet in {}; earlier, sockets of the program received from it", time_text(for_ns)),
            _ => format!("only {} in {}", counted(packets, "packet"), time_text(for_ns)),
        })
    })
}

/// Judges whether `mode` is in effect on a queue with these observations. `cause` finds out why the programs never
/// polled; it is called only if they did not, and not because of what they are.
#[must_use]
pub fn judge(mode: &DeliveryMode, seen: &EffectOnQueue, cause: impl FnOnce() -> NoPollCause) -> ModeVerdict {
    let EffectOnQueue { packets, polls, by_thread, .. } = *seen;
    let (by_program, whose) = (seen.by_programs(), seen.whose());
    let (napi, epoll) = (mode.napi(), mode.epoll().unwrap_or_default());
    let polls_by_epoll = epoll.prefer_busy_poll || epoll.busy_poll_usecs > 0;
    if napi.irq_suspend_timeout_ns > 0 && polls_by_epoll && mode.poller().is_none() {
        if let Some(why) = suspect(seen) {
            return ModeVerdict::CannotTell(format!("{why}; `quell doctor` looks for the cause"));
        }
        return with_fix(suspension_of(seen, napi.irq_suspend_timeout_ns, cause));
    }
    if let Some(too_few) = too_few_packets(seen) {
        return too_few;
    }
    let polls_by_program = polls_by_epoll || mode.socket_busy_poll().is_some();
    if polls_by_epoll && by_program == 0 {
        return with_fix(never_polled(seen, cause));
    }
    if polls_by_program && by_program == 0 {
        return seen.without_program(|| {
            let (polls, packets) = (counted(polls, "poll"), counted(packets, "packet"));
            format!("none of {polls} was by the program ({packets}): {}", no_receive_polled(&cause()))
        });
    }
    if mode.poller().is_some() {
        let text = share(by_program, polls, "by the poller");
        return match (by_program >= polls / 2, by_program) {
            (true, _) => ModeVerdict::InEffect(text),
            (false, 0) => ModeVerdict::NotInEffect(text),
            (false, _) => ModeVerdict::CannotTell(text),
        };
    }
    if polls_by_program {
        return match by_program >= polls / 2 {
            true => ModeVerdict::InEffect(share(by_program, polls, &format!("by {whose}"))),
            false => ModeVerdict::CannotTell(format!(
                "{}: not all the time",
                share(by_program, polls, &format!("by {whose}"))
            )),
        };
    }
    if napi.threaded != Threaded::Off {
        return match (by_thread >= polls / 2, by_thread) {
            (true, _) => ModeVerdict::InEffect(share(by_thread, polls, "by the NAPI thread")),
            (false, 0) => ModeVerdict::NotInEffect(share(0, polls, "by the NAPI thread")),
            (false, _) => ModeVerdict::CannotTell(share(by_thread, polls, "by the NAPI thread")),
        };
    }
    if napi.defers() { deferral(seen) } else { undisturbed(seen) }
}

/// The verdict with what to do.
fn with_fix(judged: (ModeVerdict, Option<Fix>)) -> ModeVerdict {
    match judged {
        (ModeVerdict::NotInEffect(why), Some(fix)) => ModeVerdict::NotInEffect(format!("{why}; {fix}")),
        (verdict, _) => verdict,
    }
}

/// Why no receive of a socket polled the queue, and what to do.
fn no_receive_polled(cause: &NoPollCause) -> String {
    match (cause, cause.fix()) {
        (NoPollCause::OfFirstDatagram { .. }, Some(fix)) => format!("{cause}; {fix}"),
        _ => "its sockets poll in blocking receives, not while a thread waits in epoll_wait, poll or select".to_owned(),
    }
}

/// The program's own polls are the evidence. After it receives events, the kernel suspends the interrupt, and the next
/// `epoll_wait` finds it suspended. Polls by the kernel only show how often the queue ran empty, which ends a
/// suspension by design.
fn suspension(seen: &EffectOnQueue) -> ModeVerdict {
    let EffectOnQueue { packets, by_program, .. } = *seen;
    let Some(found) = seen.found_suspended else {
        return ModeVerdict::CannotTell("this kernel does not expose suspended queues".to_owned());
    };
    let by_kernel = seen.by_kernel();
    let runs_dry = match by_kernel.saturating_mul(PACKETS_PER_POLL_BY_KERNEL) > packets {
        true => "the queue runs empty at this load: ",
        false => "",
    };
    let text = format!(
        "{} of {} by {} found the interrupt suspended; {runs_dry}the kernel itself polled at least {} ({} in \
         total)",
        thousands(&found.to_string()),
        counted(by_program, "poll"),
        seen.whose(),
        counted(by_kernel, "time"),
        counted(packets, "packet")
    );
    match found {
        0 if by_program >= POLLS_TO_JUDGE => seen.without_program(|| text),
        1.. if found.saturating_mul(POLLS_PER_SUSPENSION) >= by_program => ModeVerdict::InEffect(text),
        _ => ModeVerdict::CannotTell(text),
    }
}

fn deferral(seen: &EffectOnQueue) -> ModeVerdict {
    let Some(interrupts) = seen.interrupts else {
        return ModeVerdict::CannotTell("the queue has no interrupt to count".to_owned());
    };
    let text = format!("{} for {}", counted(interrupts, "interrupt"), counted(seen.packets, "packet"));
    match interrupts.saturating_mul(PACKETS_PER_INTERRUPT) <= seen.packets {
        true => ModeVerdict::InEffect(text),
        false => ModeVerdict::CannotTell(format!("{text}: the packet rate may be too low for deferral")),
    }
}

fn undisturbed(seen: &EffectOnQueue) -> ModeVerdict {
    match seen.by_programs() {
        0 => ModeVerdict::InEffect(format!("{} by the kernel, none by a program", counted(seen.polls, "poll"))),
        some => ModeVerdict::NotInEffect(share(some, seen.polls, "by a program")),
    }
}

/// `1 of 9 polls was by the program`.
fn share(of: u64, polls: u64, by: &str) -> String {
    let polls = counted(polls, "poll");
    match of {
        0 => format!("none of {polls} was {by}"),
        _ => format!("{} of {polls} {} {by}", thousands(&of.to_string()), agree(&of, "was", "were")),
    }
}

#[cfg(test)]
mod tests;
