//! Whether a mode pays on the queues of a program, as far as counters show: the one verdict of `quell`, `quell doctor`,
//! `quell status`, `quell top` and `quell attach`.

use std::num::NonZeroU64;

use quell_mode::{DeliveryMode, ModeKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::effect::{EffectOnQueue, ModeVerdict, PACKETS_FOR_VERDICT, is_overdue};
use super::own_work::OwnWork;
use super::plan::polls_epolls;
use crate::findings::{Fix, LackingCpus};

/// Polls per packet above which a mode polls more than interrupts would, which need at most one, and some without packets.
const POLLS_PER_PACKET_MAX: u64 = 2;
/// Relative uncertainty of a packet rate that is at least assumed: no load is steadier.
const UNCERTAINTY_MIN: f64 = 0.1;
/// Timeouts that are recommended, in ns. Longer ones delay packets of an idle program too much.
const TIMEOUTS_NS: [u64; 4] = [50_000, 100_000, 200_000, 500_000];

/// What a mode costs and gives on the queues of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ModePayoff {
    pub mode: DeliveryMode,
    /// Number of its queues that were observed.
    pub queues: usize,
    /// Packets per second from these queues; null if none was observed, and in recordings of older versions.
    #[serde(default)]
    pub packets_per_s: Option<u64>,
    /// Polls of the queues per packet; null without packets.
    pub polls_per_packet: Option<f64>,
    /// Share of the polls by programs, 0 to 1; null without polls.
    pub program_share: Option<f64>,
    /// 99th percentile of the time that packets can have waited in the queue where it is longest, in nanoseconds. Null
    /// if most packets came by an enabled interrupt, so that they have no bound, and if too few came for a percentile.
    pub wait_p99_ns: Option<u64>,
    /// Share of the time in which the program wanted to run but waited for a CPU, 0 to 1. Null if it is unknown.
    pub cpu_wait_share: Option<f64>,
    pub pays: DoesItPay,
}

/// Whether a mode pays, the most serious answer first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum DoesItPay {
    /// No: an epoll polls one queue and has connections of several, so that packets of the others wait.
    LeavesQueuesUnpolled {
        /// How to give each epoll one queue.
        fix: String,
        /// Command for that, if one does it.
        command: Option<String>,
    },
    /// No: another program has changed what was set, so that its figures are those of other settings.
    Drifted,
    /// No: it is not in effect on a queue.
    NotInEffect {
        /// Whether that is because epolls or queues of the program do not have it, such as those of workers that it started
        /// since.
        on_unset_epolls: bool,
    },
    /// No: its polling threads and the workers of the program share CPUs.
    LacksCpus(LackingCpus),
    /// No: the program works so long for each packet that its delivery does not matter.
    NothingToGain(OwnWork),
    /// Only if latency is worth CPU time: the kernel polls more often than interrupts would.
    CostsCpuTime {
        /// Mode that needs fewer polls at this packet rate.
        instead: DeliveryMode,
        /// Packets per second of a queue at which its timer expires twice per packet, and above which it polls less; null
        /// if it polls at any rate.
        break_even_packets_per_s: Option<u64>,
    },
    /// Only if it lowers latency: its polls cost about as much CPU time as interrupts would.
    NearBreakEven,
    /// `base` does not change polls.
    ChangesNothing,
    /// It is in effect, and only a measurement shows whether it pays.
    MeasureToKnow,
    /// The counters do not show whether it is in effect.
    CannotTell,
    /// The programs receive too few packets to judge it, and to gain from it.
    TooFewPackets,
}

impl DoesItPay {
    /// Names of all answers, the most serious first.
    pub const NAMES: [&str; 11] = [
        "leaves-queues-unpolled",
        "drifted",
        "not-in-effect",
        "lacks-cpus",
        "nothing-to-gain",
        "costs-cpu-time",
        "near-break-even",
        "changes-nothing",
        "measure-to-know",
        "cannot-tell",
        "too-few-packets",
    ];

    /// Its name, as in JSON and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Drifted => "drifted",
            Self::NotInEffect { .. } => "not-in-effect",
            Self::LeavesQueuesUnpolled { .. } => "leaves-queues-unpolled",
            Self::LacksCpus(_) => "lacks-cpus",
            Self::NothingToGain(_) => "nothing-to-gain",
            Self::CostsCpuTime { .. } => "costs-cpu-time",
            Self::NearBreakEven => "near-break-even",
            Self::ChangesNothing => "changes-nothing",
            Self::MeasureToKnow => "measure-to-know",
            Self::CannotTell => "cannot-tell",
            Self::TooFewPackets => "too-few-packets",
        }
    }

    /// Whether counters do not show that the mode is in effect, nor that it is not.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        matches!(self, Self::CannotTell | Self::TooFewPackets)
    }

    /// Whether counters show that the mode does not pay, or clearly only by latency.
    #[must_use]
    pub fn costs(&self) -> bool {
        self.is_no() || matches!(self, Self::CostsCpuTime { .. })
    }

    /// Whether the mode does not pay, without a measurement.
    #[must_use]
    pub fn is_no(&self) -> bool {
        matches!(
            self,
            Self::Drifted
                | Self::NotInEffect { .. }
                | Self::LeavesQueuesUnpolled { .. }
                | Self::LacksCpus(_)
                | Self::NothingToGain(_)
        )
    }
}

impl ModePayoff {
    /// Judges a mode by its queues. `fix` is that for an epoll that polls and has connections of several queues, `lacking`
    /// the CPUs if they are too few for its polling threads; absent otherwise.
    #[must_use]
    pub fn of(
        mode: DeliveryMode,
        queues: &[(EffectOnQueue, ModeVerdict)],
        fix: Option<&Fix>,
        lacking: Option<LackingCpus>,
    ) -> Self {
        let sum = |of: fn(&EffectOnQueue) -> u64| queues.iter().map(|(seen, _)| of(seen)).sum::<u64>();
        let ratio = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
        let (packets, polls) = (sum(|seen| seen.packets), sum(|seen| seen.polls));
        let is = |wanted: fn(&ModeVerdict) -> bool| queues.iter().any(|(_, verdict)| wanted(verdict));
        // Of several queues, the longest timer suits all, and an uncertain one leaves the answer open.
        let cost = queues.iter().filter_map(|(seen, _)| PollCost::of(&mode, seen)).max_by_key(PollCost::rank);
        let lacking = lacking.filter(|_| mode.poller().is_some());
        // The programs of such a mode spin, in calls that return sooner or later.
        let work = OwnWork::of_queues(queues.iter().map(|(seen, _)| seen)).filter(|_| !spins(&mode));
        let pays = match (cost, fix, lacking, work) {
            _ if fix.is_none() && is(|verdict| matches!(verdict, ModeVerdict::NotInEffect(_))) => {
                DoesItPay::NotInEffect { on_unset_epolls: false }
            }
            (_, None, None, Some(work)) => DoesItPay::NothingToGain(work),
            _ if mode == DeliveryMode::default() => DoesItPay::ChangesNothing,
            (_, Some(fix), ..) => {
                let (fix, command) = fix.parts();
                DoesItPay::LeavesQueuesUnpolled { fix, command }
            }
            (_, None, Some(lacking), _) => DoesItPay::LacksCpus(lacking),
            (Some(PollCost::Above { instead }), None, None, None) => {
                DoesItPay::CostsCpuTime { instead, break_even_packets_per_s: break_even_packets_per_s(&mode) }
            }
            (Some(PollCost::Uncertain), None, None, None) => DoesItPay::NearBreakEven,
            _ if is(|verdict| matches!(verdict, ModeVerdict::InEffect(_))) => DoesItPay::MeasureToKnow,
            _ if queues.iter().all(|(seen, _)| seen.has_few_packets()) => DoesItPay::TooFewPackets,
            _ => DoesItPay::CannotTell,
        };
        let waited = |(seen, _): &(EffectOnQueue, ModeVerdict)| seen.cpu_wait_share();
        let wait_p99_ns =
            |(seen, _): &(EffectOnQueue, ModeVerdict)| seen.wait_p99_ns.filter(|_| seen.packets >= PACKETS_FOR_VERDICT);
        Self {
            mode,
            queues: queues.len(),
            packets_per_s: packets_per_s(queues.iter().map(|(seen, _)| seen)),
            polls_per_packet: ratio(polls, packets),
            program_share: ratio(sum(EffectOnQueue::by_programs), polls),
            wait_p99_ns: queues.iter().filter_map(wait_p99_ns).max(),
            cpu_wait_share: queues.iter().filter_map(waited).max_by(f64::total_cmp),
            pays,
        }
    }

    /// Whether the kernel polls more than twice per packet, so that it costs CPU time also where the better mode is uncertain.
    #[must_use]
    pub fn polls_more(&self) -> bool {
        let counted = if spins(&self.mode) { 1.0 } else { 1.0 - self.program_share.unwrap_or(0.0) };
        self.polls_per_packet.is_some_and(|polls| polls * counted > POLLS_PER_PACKET_MAX as f64)
    }

    /// Whether packets waited longer than a suspension lasts, although the mode is not known to have no effect.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        use DoesItPay::{CannotTell, CostsCpuTime, MeasureToKnow, NearBreakEven};
        let timeout_ns = self.mode.napi().irq_suspend_timeout_ns;
        let waited = self.wait_p99_ns.is_some_and(|wait_ns| is_overdue(wait_ns, timeout_ns));
        timeout_ns > 0
            && waited
            && matches!(self.pays, CostsCpuTime { .. } | NearBreakEven | MeasureToKnow | CannotTell)
    }

    /// Whether it saves no CPU time, and no lower latency repays that, because its timer delays packets: nobody polls, or
    /// not until the next packet comes.
    #[must_use]
    pub fn only_delays(&self) -> bool {
        matches!(self.pays, DoesItPay::CostsCpuTime { .. } | DoesItPay::NearBreakEven)
            && (self.is_deferred() || self.waits_for_timer())
    }

    /// Whether counters show that the mode does not pay, clearly only by latency, or that it delays packets.
    #[must_use]
    pub fn costs(&self) -> bool {
        self.pays.costs() || self.waits_for_timer()
    }

    /// Whether packets waited for the timer of the mode, because nobody polls earlier, or not until the next packet comes.
    #[must_use]
    pub fn waits_for_timer(&self) -> bool {
        let (napi, epoll) = (self.mode.napi(), self.mode.epoll().unwrap_or_default());
        let timer_ns = napi.gro_flush_timeout_ns;
        (self.is_deferred() || epoll.ends_before(timer_ns))
            && napi.irq_suspend_timeout_ns == 0
            && self.wait_p99_ns.is_some_and(|ns| ns >= timer_ns / 2)
    }

    fn is_deferred(&self) -> bool {
        matches!(self.mode.kind(), ModeKind::Defer { .. })
    }

    /// Whether packets waited for about as long as a suspension lasts: its timer ended it, and not a poll of the program.
    #[must_use]
    pub fn waits_for_suspension(&self) -> bool {
        let timeout_ns = self.mode.napi().irq_suspend_timeout_ns;
        timeout_ns > 0 && self.wait_p99_ns.is_some_and(|ns| ns >= timeout_ns)
    }

    /// The same, if another program has changed settings of the mode since it was attached. To set it again is refused, or
    /// does not help, while an epoll has connections of several queues.
    #[must_use]
    pub fn drifted(self, is_so: bool) -> Self {
        let pays = match self.pays {
            unpolled @ DoesItPay::LeavesQueuesUnpolled { .. } => unpolled,
            _ if is_so => DoesItPay::Drifted,
            pays => pays,
        };
        Self { pays, ..self }
    }

    /// The same, if the mode is not in effect because epolls or queues do not have it.
    #[must_use]
    pub fn on_unset_epolls(mut self, is_so: bool) -> Self {
        if let DoesItPay::NotInEffect { on_unset_epolls } = &mut self.pays {
            *on_unset_epolls = is_so;
        }
        self
    }
}

/// Whether programs spin under a mode, in their waits or in receives.
fn spins(mode: &DeliveryMode) -> bool {
    mode.polls_at_any_load() || mode.socket_busy_poll().is_some()
}

/// Packets per second of all these queues; absent without one.
pub fn packets_per_s<'a>(queues: impl Iterator<Item = &'a EffectOnQueue>) -> Option<u64> {
    let rates = queues.filter(|seen| seen.for_ns > 0).map(|seen| seen.packets as f64 * 1e9 / seen.for_ns as f64);
    rates.reduce(|one, other| one + other).map(|rate| rate.round() as u64)
}

/// Polls by the kernel under a mode, where they are not clearly fewer than interrupts would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PollCost {
    /// They are more, and this mode needs fewer.
    Above { instead: DeliveryMode },
    /// The packet rate is too uncertain to tell whether `base` or this mode needs fewer.
    Uncertain,
}

impl PollCost {
    fn of(mode: &DeliveryMode, seen: &EffectOnQueue) -> Option<Self> {
        let polls = match spins(mode) && mode.poller().is_none() {
            true => seen.polls,
            // Polls of epoll_wait without spinning come with the wait, which the program makes in any mode.
            false => seen.by_kernel(),
        };
        let base = DeliveryMode::default();
        if seen.has_few_packets() || *mode == base {
            return None;
        }
        let uncertainty = uncertainty_of_rate(seen.packets);
        let of_break_even = polls as f64 / seen.packets.saturating_mul(POLLS_PER_PACKET_MAX) as f64;
        if of_break_even <= 1.0 - uncertainty {
            return None;
        }
        let gap_ns = seen.for_ns as f64 / seen.packets as f64;
        let [rarer, denser] = [1.0 + uncertainty, 1.0 - uncertainty].map(|part| with_fewer_polls(mode, gap_ns * part));
        let is_near = of_break_even <= 1.0 + uncertainty;
        Some(match is_near || denser != base && rarer == base {
            true => Self::Uncertain,
            false => Self::Above { instead: rarer },
        })
    }

    fn rank(&self) -> (bool, bool, u64) {
        match self {
            Self::Above { instead } => {
                (false, *instead == DeliveryMode::default(), instead.napi().gro_flush_timeout_ns)
            }
            Self::Uncertain => (true, false, 0),
        }
    }
}

/// Four standard deviations of a rate from this number of packets, relative to it. They arrive in pairs at best: a
/// request comes with an acknowledgement.
fn uncertainty_of_rate(packets: u64) -> f64 {
    (4.0 * (2.0 / packets as f64).sqrt()).max(UNCERTAINTY_MIN)
}

/// Rate at which [`POLLS_PER_PACKET_MAX`] periods of the timer pass between two packets.
fn break_even_packets_per_s(mode: &DeliveryMode) -> Option<u64> {
    let period_ns = mode.napi().gro_flush_timeout_ns.checked_mul(POLLS_PER_PACKET_MAX)?;
    (!mode.polls_at_any_load()).then(|| 1_000_000_000_u64.checked_div(period_ns))?
}

/// The suspending mode whose timer is longer than this mean time between packets, if the program polls; otherwise `base`,
/// because a longer deferral delays more.
fn with_fewer_polls(mode: &DeliveryMode, gap_ns: f64) -> DeliveryMode {
    let present_ns = mode.napi().gro_flush_timeout_ns;
    let suspends = mode.napi().irq_suspend_timeout_ns > 0;
    if !polls_epolls(mode) {
        return DeliveryMode::default();
    }
    let longer = TIMEOUTS_NS.into_iter().find(|&ns| ns as f64 >= gap_ns && (ns > present_ns || !suspends));
    let kind = longer.and_then(NonZeroU64::new).map(|gro_flush_timeout_ns| ModeKind::Suspend { gro_flush_timeout_ns });
    kind.map_or_else(DeliveryMode::default, DeliveryMode::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use quell_linux::NapiId;
    use quell_sampler::QueueSample;

    fn seen(packets: u64, polls: u64, by_program: u64) -> EffectOnQueue {
        let napi = NapiId::from_kernel(9000).unwrap();
        let found_suspended = Some(by_program);
        let none = EffectOnQueue::of(napi, 1_000_000_000, &QueueSample::default());
        EffectOnQueue { packets, polls, by_program, found_suspended, wait_p99_ns: Some(packets), ..none }
    }

    fn in_effect() -> ModeVerdict {
        ModeVerdict::InEffect("all polls".to_owned())
    }

    fn payoff(mode: &str, queues: &[(EffectOnQueue, ModeVerdict)], fix: Option<&str>) -> ModePayoff {
        ModePayoff::of(mode.parse().unwrap(), queues, fix.map(Fix::advice).as_ref(), None)
    }

    #[test]
    fn names_of_answers_are_those_of_json() {
        let answers = [
            DoesItPay::LeavesQueuesUnpolled { fix: "steer".to_owned(), command: None },
            DoesItPay::Drifted,
            DoesItPay::NotInEffect { on_unset_epolls: false },
            DoesItPay::LacksCpus(LackingCpus { cpus: 2, queues: 2, workers: 2 }),
            DoesItPay::NothingToGain(OwnWork { cpu_ns_per_packet: 2_000_000 }),
            DoesItPay::CostsCpuTime { instead: DeliveryMode::default(), break_even_packets_per_s: None },
            DoesItPay::NearBreakEven,
            DoesItPay::ChangesNothing,
            DoesItPay::MeasureToKnow,
            DoesItPay::CannotTell,
            DoesItPay::TooFewPackets,
        ];
        assert_eq!(answers.each_ref().map(DoesItPay::name), DoesItPay::NAMES);
        for answer in &answers {
            let json = serde_json::to_value(answer).unwrap();
            let name = json.as_str().or_else(|| json.as_object()?.keys().next().map(String::as_str));
            assert_eq!(name, Some(answer.name()));
        }
    }

    #[test]
    fn a_mode_with_many_polls_per_packet_costs_cpu_time_and_a_longer_timer_costs_less() {
        // 12 polls by the kernel per packet, 300 µs apart.
        let seen = |packets: u64| seen(packets, packets * 13, packets);
        let instead = |mode: &str, seen| match payoff(mode, &[(seen, in_effect())], None).pays {
            DoesItPay::CostsCpuTime { instead, .. } => Some(instead.to_string()),
            _ => None,
        };
        assert_eq!(instead("suspend20", seen(3_300)).as_deref(), Some("suspend500"));
        assert_eq!(instead("suspend20", seen(15_000)).as_deref(), Some("suspend100"));
        assert_eq!(instead("defer20", seen(3_300)).as_deref(), Some("base"), "a longer deferral delays more");
        assert_eq!(instead("fullbusy", seen(3_300)).as_deref(), Some("suspend500"));
        assert_eq!(instead("suspend20", seen(300)).as_deref(), Some("base"), "packets are milliseconds apart");
        assert_eq!(instead("base", seen(3_300)), None);
        let spinning = EffectOnQueue { by_program: 132_000, polls: 132_000, ..seen(3_300) };
        assert_eq!(instead("sockpoll50", spinning).as_deref(), Some("base"), "40 polls per packet in its receives");
        let few = EffectOnQueue { polls: 5_000, ..seen(3_300) };
        assert_eq!(instead("suspend20", few), None);
        let above = EffectOnQueue { polls: 3_300 * 7 / 2, ..seen(3_300) };
        assert!(instead("suspend20", above).is_some(), "2.5 polls by the kernel per packet");
        assert_eq!(instead("suspend20", seen(PACKETS_FOR_VERDICT - 1)), None);
    }

    #[test]
    fn a_poll_that_ends_before_the_next_packet_only_delays_it_by_a_long_timer() {
        let only_delays = |mode: &str, wait_us: u64| {
            let seen = EffectOnQueue { wait_p99_ns: Some(wait_us * 1_000), ..seen(3_300, 3_300_000, 3_300_000) };
            payoff(mode, &[(seen, in_effect())], None).only_delays()
        };
        assert!(only_delays("fullbusy", 5_000) && only_delays("napibusy", 190));
        assert!(!only_delays("fullbusy", 900), "packets come more often than its polls end");
        assert!(!only_delays("suspend200", 5_000), "interrupts while the program sleeps");
    }

    /// Answers over many intervals at a steady rate of packets, under a mode whose timer expires as often as it can.
    fn answers_at(mode: &str, packets_per_s: f64, interval_ns: u64) -> BTreeSet<String> {
        let mode: DeliveryMode = mode.parse().unwrap();
        let mut random = 7_u64;
        let mut uniform = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let mut interval = || {
            // Pairs of packets arrive by themselves: a sum of uniform numbers has the variance of their count.
            let pairs = packets_per_s * interval_ns as f64 / 2e9;
            let normal = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            let packets = 2 * (pairs + normal * pairs.sqrt()).round() as u64;
            let polls = interval_ns / mode.napi().gro_flush_timeout_ns;
            let seen = EffectOnQueue { for_ns: interval_ns, ..seen(packets, polls, 0) };
            match ModePayoff::of(mode, &[(seen, in_effect())], None, None).pays {
                DoesItPay::CostsCpuTime { instead, .. } => instead.to_string(),
                other => other.name().to_owned(),
            }
        };
        (0..500).map(|_| interval()).collect()
    }

    #[test]
    fn at_break_even_a_steady_load_has_one_answer() {
        for interval_ns in [200_000_000, 1_000_000_000, 5_000_000_000] {
            let near = BTreeSet::from(["near-break-even".to_owned()]);
            assert_eq!(answers_at("suspend200", 2_500.0, interval_ns), near, "{interval_ns}");
            assert_eq!(answers_at("suspend50", 2_000.0, interval_ns), near, "base or suspend500: {interval_ns}");
        }
        assert_eq!(answers_at("suspend50", 3_500.0, 1_000_000_000), BTreeSet::from(["suspend500".to_owned()]));
        assert_eq!(answers_at("suspend50", 1_200.0, 1_000_000_000), BTreeSet::from(["base".to_owned()]));
    }

    #[test]
    fn no_steady_load_is_told_two_modes_of_which_one_is_base_nor_that_it_costs_and_pays() {
        for mode in ["suspend50", "suspend200", "defer100"] {
            for packets_per_s in (1_200..12_000).step_by(100) {
                for interval_ns in [400_000_000, 1_000_000_000] {
                    let answers = answers_at(mode, f64::from(packets_per_s), interval_ns);
                    let is_told = |word: &str| answers.contains(word);
                    let costs = answers.iter().any(|word| word.parse::<DeliveryMode>().is_ok());
                    let others =
                        answers.iter().filter(|word| word.starts_with(mode.trim_end_matches(char::is_numeric)));
                    assert!(!(is_told("base") && others.count() > 0), "{mode} at {packets_per_s}: {answers:?}");
                    assert!(!(costs && is_told("measure-to-know")), "{mode} at {packets_per_s}: {answers:?}");
                }
            }
        }
    }

    #[test]
    fn a_timer_polls_twice_per_packet_at_the_break_even_rate_and_a_loop_has_none() {
        let break_even = |mode: &str| break_even_packets_per_s(&mode.parse().unwrap());
        assert_eq!(break_even("suspend20"), Some(25_000));
        assert_eq!(break_even("defer200"), Some(2_500));
        assert_eq!((break_even("fullbusy"), break_even("base")), (None, None));
    }

    #[test]
    fn too_few_cpus_for_polling_threads_are_a_no_however_well_they_poll() {
        let lacking = LackingCpus::of(2, 2, 2);
        let payoff = |mode: &str, queues: &[_]| ModePayoff::of(mode.parse().unwrap(), queues, None, lacking).pays;
        let polled = [(seen(3_300, 40_000, 40_000), in_effect())];
        assert_eq!(Some(payoff("userbusy", &polled)), lacking.map(DoesItPay::LacksCpus));
        assert_eq!(payoff("suspend200", &polled), DoesItPay::MeasureToKnow, "it has no polling threads");
        assert!(payoff("userbusy", &polled).is_no() && !DoesItPay::MeasureToKnow.is_no());
    }

    #[test]
    fn nothing_is_to_gain_by_a_program_that_works_for_milliseconds_per_packet_under_any_mode() {
        let pays = |mode: &str, packets, fix| {
            let seen = EffectOnQueue { programs_worked_ns: Some(900_000_000), ..seen(packets, packets, packets / 2) };
            payoff(mode, &[(seen, ModeVerdict::CannotTell(String::new()))], fix).pays
        };
        let work = DoesItPay::NothingToGain(OwnWork { cpu_ns_per_packet: 22_500_000 });
        for mode in ["base", "suspend200", "defer20", "threaded"] {
            assert_eq!(pays(mode, 40, None), work, "{mode}");
        }
        assert!(work.is_no() && !work.is_unclear());
        assert_eq!(pays("fullbusy", 40, None), DoesItPay::TooFewPackets, "its CPU time is not work");
        assert_eq!(pays("suspend200", 1_000, None), DoesItPay::CannotTell, "less than a millisecond per packet");
        assert!(matches!(pays("suspend200", 40, Some("steer")), DoesItPay::LeavesQueuesUnpolled { .. }));
    }

    #[test]
    fn a_program_that_waits_for_a_cpu_does_so_for_a_share_of_the_time_in_which_it_wants_one() {
        let seen = |ran, waited| {
            let times = EffectOnQueue { programs_cpu_ns: ran, programs_cpu_wait_ns: waited, ..seen(500, 500, 400) };
            payoff("suspend20", &[(times, in_effect())], None).cpu_wait_share
        };
        assert_eq!(seen(Some(300), Some(100)), Some(0.25));
        assert_eq!((seen(Some(300), None), seen(None, Some(100)), seen(Some(0), Some(0))), (None, None, None));
    }

    #[test]
    fn queues_that_nobody_polls_are_more_serious_than_polls_that_cost() {
        let costly = [(seen(3_300, 40_000, 3_300), in_effect())];
        let pays = |mode, fix| payoff(mode, &costly, fix).pays;
        assert_eq!(
            pays("suspend20", Some("steer")),
            DoesItPay::LeavesQueuesUnpolled { fix: "steer".to_owned(), command: None }
        );
        assert!(matches!(pays("suspend20", None), DoesItPay::CostsCpuTime { .. }));
        assert_eq!(pays("base", None), DoesItPay::ChangesNothing);
        let not = [(costly[0].0, ModeVerdict::NotInEffect("none".to_owned()))];
        let mixing = payoff("suspend20", &not, Some("steer")).drifted(true).on_unset_epolls(true);
        assert_eq!(mixing.pays, pays("suspend20", Some("steer")), "to set it again does not help");
        let not = payoff("suspend20", &not, None);
        assert_eq!(not.pays, DoesItPay::NotInEffect { on_unset_epolls: false });
        assert_eq!(not.clone().on_unset_epolls(true).pays, DoesItPay::NotInEffect { on_unset_epolls: true });
        assert_eq!(not.clone().drifted(true).pays, DoesItPay::Drifted);
        assert_eq!(not.clone().drifted(false), not);
    }

    #[test]
    fn figures_are_those_of_all_queues_and_the_longest_wait() {
        let queues = [(seen(1_000, 900, 850), in_effect()), (seen(3_000, 1_100, 950), in_effect())];
        let ModePayoff { queues, polls_per_packet, program_share, wait_p99_ns, pays, .. } =
            payoff("suspend20", &queues, None);
        assert_eq!((queues, polls_per_packet, program_share), (2, Some(0.5), Some(0.9)));
        assert_eq!((wait_p99_ns, pays), (Some(3_000), DoesItPay::MeasureToKnow));
        let few = payoff("suspend20", &[(seen(PACKETS_FOR_VERDICT - 1, 100, 50), in_effect())], None);
        assert_eq!(few.wait_p99_ns, None, "too few for a percentile");
        let idle = payoff("suspend20", &[(seen(0, 0, 0), ModeVerdict::CannotTell("idle".to_owned()))], None);
        assert_eq!((idle.polls_per_packet, idle.program_share, idle.pays), (None, None, DoesItPay::TooFewPackets));
        let cannot_tell = |seen| payoff("suspend20", &[(seen, ModeVerdict::CannotTell(String::new()))], None).pays;
        assert_eq!(cannot_tell(seen(3_000, 900, 400)), DoesItPay::CannotTell, "the load does not make it unclear");
        let of_others = EffectOnQueue { programs_cpu_ns: Some(90_000), ..seen(3_000, 900, 0) };
        assert_eq!(cannot_tell(of_others), DoesItPay::TooFewPackets);
    }
}
