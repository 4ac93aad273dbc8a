//! What results say, in words. The terminal and the page use the same sentences.

mod advice;
mod command;
mod conclusion;
mod published;
mod published_xdp;
mod published_xdp_counts;
pub(crate) mod recording;
mod rivals;
mod settings;
mod subject;

use quell_cli::number::{self, ABSENT, short};
use quell_experiment::{ContrastVerdict, Criterion, WhyUndecided};
use quell_linux::NapiId;
use quell_linux::visible::{self, counted};
use quell_load::OfferedLoad;
use quell_result::conclusion::{LoadRange, Quantity, QuantityChange, UndecidedCost};
use quell_result::experiment::LoadExperiment;
use quell_result::facts::OtherProgramFacts;
use quell_result::figures::{self, Work};
use quell_sampler::QueuePoller;
use quell_tune::{ArmState, TuneEnd, TuneMetric};

pub use advice::{
    Advice, advice_of, budget, cost_of, decision_of, experiment_advice, placement_options, reservation_of,
    search_advice,
};
pub use command::{repeat_experiment, repeat_search};
pub use conclusion::{NOT_STEERED, conclusion};
pub use published::{PublishedText, published};
pub use published_xdp::published_xdp;
pub use recording::{RecordedChange, RecordingSummary, recording_summary};
pub use rivals::{of_limit, refuted, rivals};
pub use settings::{settings_restored, settings_tables};
pub use subject::{base_is, host, placement, pollers_share_cpus, problems, queues_of_command, short_subject, subject};

/// A table with a heading, for pages and terminals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTable {
    pub heading: String,
    pub head: Vec<&'static str>,
    /// The first cell of a row is its name.
    pub rows: Vec<Vec<String>>,
}

/// Name of a NAPI instance: `eth0 queue 3 (NAPI 8195)`.
#[must_use]
pub fn queue_name(device: &str, rx_queues: &[u32], napi: NapiId) -> String {
    let numbers = rx_queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let number = if numbers.is_empty() { String::new() } else { format!(" queue {numbers}") };
    format!("{}{number} (NAPI {napi})", visible::name(device))
}

/// Name of whoever polls a queue, as in the heading of a column.
#[must_use]
pub(crate) fn poller_name(poller: QueuePoller) -> &'static str {
    match poller {
        QueuePoller::Rescheduled => "other softirq",
        QueuePoller::Thread => "NAPI thread",
        other => other.field(),
    }
}

/// Short name of a criterion, as in the heading of a column.
#[must_use]
pub fn criterion(criterion: &Criterion) -> String {
    match criterion {
        Criterion::Latency { quantile } => format!("p{}", number::plain(quantile * 100.0)),
        Criterion::Metric { name, .. } if *name == Work::Request.name(figures::CPU) => "CPU/request".to_owned(),
        Criterion::Metric { name, .. } if *name == Work::Packet.name(figures::CPU) => "CPU/packet".to_owned(),
        Criterion::Metric { name, .. } if *name == Work::Request.name(figures::IRQS) => "interrupts/request".to_owned(),
        Criterion::Metric { name, .. } if *name == Work::Request.name(figures::TIMER_IRQS) => {
            "timers/request".to_owned()
        }
        Criterion::Metric { name, .. } if *name == figures::REQUESTS => "requests/s".to_owned(),
        Criterion::Metric { name, .. } if *name == figures::BESIDE_P50 => "second server p50".to_owned(),
        Criterion::Metric { name, .. } if *name == figures::BESIDE_P99 => "second server p99".to_owned(),
        Criterion::Metric { name, .. } => visible::name(name).into_owned(),
    }
}

/// Ratio from which a change is a factor.
const FACTOR_FROM: f64 = 2.0;

/// Formats a ratio as a signed change (`−25 %`), or as a factor from 2 on (`×2.40`).
#[must_use]
pub fn change(ratio: f64) -> String {
    if ratio >= FACTOR_FROM { format!("×{}", factor(ratio)) } else { format!("{} %", percent(ratio)) }
}

/// Formats a ratio with its interval in one unit: `−25 % (−28 to −21)`, or as factors if the upper end is one:
/// `×4.78 (1.88 to 7.37)`.
#[must_use]
pub fn change_with_interval(ratio: f64, low: f64, high: f64) -> String {
    match high >= FACTOR_FROM {
        true => format!("×{} ({} to {})", factor(ratio), factor(low), factor(high)),
        false => format!("{} % ({} to {})", percent(ratio), percent(low), percent(high)),
    }
}

/// The ends of a range of ratios in one unit: `+5.0 %` and `+12 %`, or factors if the upper end is one.
#[must_use]
pub fn change_range(low: f64, high: f64) -> [String; 2] {
    let is_factor = low.max(high) >= FACTOR_FROM;
    [low, high].map(|ratio| if is_factor { format!("×{}", factor(ratio)) } else { change(ratio) })
}

fn factor(ratio: f64) -> String {
    if ratio.is_finite() { short(ratio) } else { "∞".to_owned() }
}

/// The change as a signed number of percent without its unit.
fn percent(ratio: f64) -> String {
    if !ratio.is_finite() {
        return "∞".to_owned();
    }
    let percent = (ratio - 1.0) * 100.0;
    let digits = if percent.abs() < 9.95 { format!("{:.1}", percent.abs()) } else { format!("{:.0}", percent.abs()) };
    if digits.trim_matches(['0', '.']).is_empty() {
        return "0".to_owned();
    }
    format!("{}{digits}", if percent < 0.0 { "−" } else { "+" })
}

/// A verdict in two or three words.
#[must_use]
pub fn verdict(verdict: &ContrastVerdict) -> String {
    match *verdict {
        ContrastVerdict::Better => "better".to_owned(),
        ContrastVerdict::Worse => "WORSE".to_owned(),
        ContrastVerdict::NoDifferenceLargerThan { margin } => {
            format!("same within {} %", number::plain(margin * 100.0))
        }
        ContrastVerdict::Undecided { reason: WhyUndecided::TreatmentDropped } => "not measured".to_owned(),
        ContrastVerdict::Undecided { reason: WhyUndecided::TooFewBlocks { .. } } => "too few blocks".to_owned(),
        ContrastVerdict::Undecided { reason: WhyUndecided::TooFewRequests { .. } } => "too few requests".to_owned(),
        ContrastVerdict::Undecided { reason: WhyUndecided::ControlDiffers } => "withheld".to_owned(),
        ContrastVerdict::Undecided { reason: WhyUndecided::RequestsFail } => "withheld: requests fail".to_owned(),
        ContrastVerdict::Undecided { reason: WhyUndecided::Saturated } => "withheld: saturated".to_owned(),
        ContrastVerdict::Undecided { reason: WhyUndecided::ForeignCpu } => "withheld: other programs".to_owned(),
        ContrastVerdict::Undecided { .. } => "undecided".to_owned(),
    }
}

/// Why verdicts are withheld, with the busiest programs as far as they are known.
#[must_use]
pub fn most_by_others(programs: Option<&[OtherProgramFacts]>) -> String {
    let named = programs.filter(|programs| !programs.is_empty());
    let named = named.map(|programs| format!(" ({})", OtherProgramFacts::which(programs)));
    format!("other programs used most of the busy time of the server's CPUs{}", named.unwrap_or_default())
}

/// Verdicts of an experiment that are withheld because of other programs, with the reason. `None` without any.
#[must_use]
pub fn other_programs(experiment: &LoadExperiment) -> Option<String> {
    let most_by_others = || most_by_others(experiment.other_programs.as_deref());
    match (experiment.has_foreign_cpu(), experiment.has_no_idle_cpu()) {
        (_, true) => {
            let waited = most_by_others() + ", and these were hardly ever idle: the server waited for a CPU";
            let is_seen = experiment.record.design.criteria.iter().any(figures::is_of_clients);
            let latencies = ", so latencies show these programs. Measure later, or on CPUs of its own";
            Some(if is_seen { waited + latencies } else { waited })
        }
        (true, false) => Some(format!("CPU time: {}", most_by_others())),
        (false, false) => None,
    }
}

/// Name of a quantity by which modes are compared.
#[must_use]
pub fn quantity(quantity: &Quantity) -> String {
    match quantity {
        Quantity::Criterion(criterion) => self::criterion(criterion),
        Quantity::Metric(metric) => visible::name(&metric.to_string()).into_owned(),
    }
}

const ALL_LOADS: &str = " at all loads";

/// Lists changes with their loads. `everywhere` is said of those that were decided at each of several loads.
fn changes(changes: &[QuantityChange], everywhere: &str) -> String {
    let one = |change: &QuantityChange| {
        let name = quantity(&change.quantity);
        let [low, high] = change_range(change.low, change.high);
        let range = if low == high { low } else { format!("{low} to {high}") };
        format!("{name} {range}{}", loads_of(change, everywhere))
    };
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The loads of a change, after a space. Empty if the result has one load.
#[must_use]
pub(crate) fn loads_of_change(change: &QuantityChange) -> String {
    loads_of(change, ALL_LOADS)
}

fn loads_of(change: &QuantityChange, everywhere: &str) -> String {
    match (change.is_everywhere, change.loads.len()) {
        (true, 0 | 1) => String::new(),
        (true, _) => everywhere.to_owned(),
        (false, _) => format!(" {}", range(&LoadRange::At(change.loads.clone()))),
    }
}

/// Lists what may cost something, each quantity once. Empty without any.
#[must_use]
pub(crate) fn undecided_costs(costs: &[UndecidedCost]) -> String {
    let one = |cost: &UndecidedCost| {
        let ratio = cost.ratio.map_or_else(String::new, |ratio| format!(" {}", change(ratio)));
        ratio + &cost.load.map_or_else(String::new, |load| format!(" {}", range(&LoadRange::At(vec![load]))))
    };
    let of_quantity = costs.chunk_by(|one, other| one.quantity == other.quantity).map(|costs| {
        let at_loads = costs.iter().map(one).collect::<Vec<_>>().join(" and");
        format!("{}{at_loads}", quantity(&costs[0].quantity))
    });
    of_quantity.collect::<Vec<_>>().join(", ")
}

fn range(range: &LoadRange) -> String {
    match range {
        LoadRange::From(OfferedLoad::Max) | LoadRange::UpTo(OfferedLoad::Max) => "at max".to_owned(),
        LoadRange::From(load) => format!("from {} on", load_name(*load)),
        LoadRange::UpTo(load) => format!("up to {}", load_name(*load)),
        LoadRange::At(loads) => {
            let names: Vec<String> = loads.iter().copied().map(load_name).collect();
            match names.split_last() {
                Some((last, [])) => format!("at {last}"),
                Some((last, others)) => format!("at {} and {last}", others.join(", ")),
                None => String::new(),
            }
        }
    }
}

/// A load as in `at 20,000 requests/s`.
#[must_use]
pub fn load_name(load: OfferedLoad) -> String {
    match load {
        OfferedLoad::Rate(per_s) => format!("{} requests/s", number::short(per_s)),
        load => load.to_string(),
    }
}

/// What became of an arm of a search.
#[must_use]
pub fn arm_state(state: &ArmState) -> String {
    match state {
        ArmState::Alive => "not excluded".to_owned(),
        ArmState::Worse { .. } => "worse".to_owned(),
        ArmState::MissesLimit { limit } => format!("misses {}", visible::name(limit)),
        ArmState::ViolatedGuard { guard } => format!("abandoned: {}", visible::name(guard)),
        ArmState::NotSettable { reason } => format!("failed: {}", visible::name(reason)),
    }
}

/// Why a search ended, as a sentence without a full stop. `left_alone` are the settings that another program changed.
#[must_use]
pub fn search_end(end: &TuneEnd, left_alone: &[String]) -> String {
    let restored = match left_alone {
        [] => "all settings were restored".to_owned(),
        changed => {
            format!("all other settings were restored (left alone: {})", visible::name(&changed.join("; ")))
        }
    };
    match end {
        TuneEnd::Answered => "the search is complete".to_owned(),
        TuneEnd::Interrupted => "interrupted".to_owned(),
        TuneEnd::GuardUnreadable { guard, requests, requests_needed } => {
            let why = match (requests, requests_needed) {
                (Some(requests), Some(needed)) if requests < needed => format!(
                    "a slice had {requests} answered requests, and this quantile needs {needed}: send at a higher rate, or \
                     guard a lower quantile"
                ),
                (Some(0), _) => {
                    "no request was answered in a slice: send at a higher rate, or measure for longer".to_owned()
                }
                _ => {
                    "a slice had no value of it: use another guard; a figure of --latency must be printed in every run"
                        .to_owned()
                }
            };
            format!(
                "the guard {} cannot be read, so nothing protects the server: {why}; {restored}",
                visible::name(guard)
            )
        }
        TuneEnd::MetricUnreadable { metric } => format!("{} cannot be read here; {restored}", visible::name(metric)),
        TuneEnd::LoadChanged { from_per_s, to_per_s } if *to_per_s == 0.0 => match from_per_s {
            Some(from_per_s) => format!("the load of {} per second has vanished; {restored}", short(*from_per_s)),
            None => format!("there is no load: no request and no packet has arrived; {restored}"),
        },
        TuneEnd::LoadChanged { from_per_s, to_per_s } => format!(
            "the load has changed from {} to {} requests or packets per second under the present setting, so modes cannot \
             be compared: send a steady load, or search again when it is steady; {restored}",
            from_per_s.map_or_else(|| ABSENT.to_owned(), short),
            short(*to_per_s)
        ),
        TuneEnd::BudgetSpent => format!(
            "the budget was spent before a mode could be compared with the present setting on fresh slices: use a longer \
             --budget, or shorter runs of the commands that load and measure; {restored}"
        ),
        TuneEnd::NoModeLeft => format!(
            "every mode violated a guard or could not be set, so none was compared with the present setting; {restored}"
        ),
        TuneEnd::PresentViolatesGuard { guard, metric, present, modes } => {
            let us = if matches!(metric, TuneMetric::Latency { .. }) { " µs" } else { "" };
            let metric = metric.to_string();
            let metric = visible::name(&metric);
            format!(
                "{} violated {}, as the present setting does, under which {metric} is {}{us} in a typical slice: choose a \
                 guard relative to it, such as --never '{metric}>1.1x'; {restored}",
                counted(*modes, "mode"),
                visible::name(guard),
                short(*present),
            )
        }
        TuneEnd::PresentNotSettable { reason } => {
            format!("the present setting cannot be set: {}", visible::name(reason))
        }
        TuneEnd::SubjectFailed { reason } => format!("{}; {restored}", visible::name(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_signed_changes_below_two_and_factors_from_two_on_in_intervals_too() {
        assert_eq!([change(0.75), change(1.0), change(1.049), change(2.4)], ["−25 %", "0 %", "+4.9 %", "×2.40"]);
        assert_eq!(change_with_interval(0.75, 0.72, 0.79), "−25 % (−28 to −21)");
        assert_eq!(change_with_interval(4.78, 1.88, 7.37), "×4.78 (1.88 to 7.37)");
        assert_eq!(change_with_interval(1.95, 1.1, 75.5), "×1.95 (1.10 to 75.5)");
        assert_eq!(change_range(1.05, 1.12), ["+5.0 %", "+12 %"]);
        assert_eq!(change_range(1.5, 3.0), ["×1.50", "×3.00"]);
        assert_eq!(percent(f64::INFINITY), "∞");
    }

    #[test]
    fn a_guard_that_cannot_be_read_has_the_reason_and_what_to_do() {
        let said = |requests, requests_needed| {
            search_end(&TuneEnd::GuardUnreadable { guard: "p99>1ms".to_owned(), requests, requests_needed }, &[])
        };
        let few = said(Some(300), Some(500));
        assert!(few.contains("300 answered requests, and this quantile needs 500: send at a higher rate"), "{few}");
        assert!(said(Some(0), None).contains("no request was answered in a slice: send at a higher rate"));
        let silent = said(Some(900), None);
        assert!(silent.contains("a slice had no value of it"), "{silent}");
    }

    #[test]
    fn an_end_does_not_claim_that_a_setting_of_another_program_was_restored() {
        let failed = TuneEnd::SubjectFailed { reason: "another program has changed NAPI 1".to_owned() };
        assert!(search_end(&failed, &[]).ends_with("; all settings were restored"));
        let text = search_end(&failed, &["NAPI 1: gro-flush-timeout is 7".to_owned()]);
        let said = "all other settings were restored (left alone: NAPI 1: gro-flush-timeout is 7)";
        assert!(text.ends_with(said), "{text}");
    }
}
