//! What results say, in words. The terminal and the page use the same sentences.

mod advice;
mod command;
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
use quell_linux::visible::{self, agree, counted};
use quell_load::OfferedLoad;
use quell_result::conclusion::{
    Conclusion, EstimatedGain, LoadRange, LoadSplit, OpenGain, Quantity, QuantityChange, UndecidedCost, WhyKeep,
    WhyLonger, WorseMode,
};
use quell_result::experiment::LoadExperiment;
use quell_result::facts::OtherProgramFacts;
use quell_result::figures::{self, Work};
use quell_sampler::QueuePoller;
use quell_tune::{ArmState, TuneEnd, TuneMetric};

pub use advice::{Advice, advice_of, budget, cost_of, experiment_advice, placement_options, search_advice};
pub use command::{repeat_experiment, repeat_search};
pub use published::{PublishedText, published};
pub use published_xdp::published_xdp;
pub use recording::{RecordedChange, RecordingSummary, recording_summary};
pub use rivals::{of_limit, refuted, rivals};
pub use settings::{settings_restored, settings_tables};
pub use subject::{base_is, command_line, host, placement, pollers_share_cpus, problems, short_subject, subject};

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

/// The conclusion as a sentence without a full stop. `left_alone` are settings that a search did not restore.
#[must_use]
pub fn conclusion(conclusion: &Conclusion, left_alone: &[String]) -> String {
    match conclusion {
        Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients } => {
            let is_of_search = saves.iter().any(|change| matches!(change.quantity, Quantity::Metric(_)));
            let unmeasured = match (*without_clients, is_of_search) {
                (false, _) => "",
                (true, true) => LATENCY_NOT_IN_GOAL,
                (true, false) => LATENCY_UNMEASURED,
            };
            let listed = |what: &str, list: String| if list.is_empty() { list } else { format!("{what}{list}") };
            let everywhere = if split.is_some() { "" } else { ALL_LOADS };
            let worse = listed("; worse: ", changes(costs, everywhere));
            let open = listed("; undecided: ", undecided_costs(undecided));
            if let Some(LoadSplit { pays, costs, there }) = split {
                let (saved, there) = (changes(saves, everywhere), changes(there, everywhere));
                return format!(
                    "use {mode} {}: {saved}{worse}{open}; {} keep {instead_of} ({there}){unmeasured}",
                    range(pays),
                    range(costs)
                );
            }
            let better = listed(": ", changes(saves, everywhere));
            let no_cost = match costs.is_empty() && undecided.is_empty() {
                true if !without_clients => "; no cost was measured",
                _ => unmeasured,
            };
            let limits =
                if *holds_limits { format!("; holds the limits, {instead_of} does not") } else { String::new() };
            format!("use {mode} instead of {instead_of}{better}{worse}{open}{no_cost}{limits}")
        }
        Conclusion::Keep { mode, because, open, budget_ms, without_clients } => {
            let unmeasured = if *without_clients { LATENCY_UNMEASURED } else { "" };
            let condition = match because {
                WhyKeep::NotBeaten { .. } => "",
                _ if open.iter().all(|gain| is_latency(&gain.quantity)) => "if latency is what you lack, ",
                _ => "if that is what you lack, ",
            };
            let longer = match budget_ms {
                Some(_) => format!(": {condition}measure longer"),
                None if matches!(because, WhyKeep::NotBeaten { .. }) => " and takes too long to decide".to_owned(),
                None => " after a long measurement".to_owned(),
            };
            let why = why_keep(because, open.is_empty());
            let open = open_gains(open).map(|open| format!("; {open}{longer}"));
            format!("keep {mode}{why}{unmeasured}{}", open.unwrap_or_default())
        }
        Conclusion::MeasureLonger { because, worse, open, .. } => why_longer(because, left_alone) + &known(worse, open),
        Conclusion::NotDecidable { mode, within_ms, because, worse, open } => {
            let (within, why) = (advice::budget(*within_ms), why_not_decidable(because, left_alone));
            format!("keep {mode}: not decidable here within {within}, because {why}{}", known(worse, open))
        }
    }
}

/// What is decided nevertheless, and what may be gained, each after a semicolon.
fn known(worse: &[WorseMode], open: &[OpenGain]) -> String {
    let open: Vec<OpenGain> = open.iter().filter(|gain| gain.best.is_some()).cloned().collect();
    let known = worse.iter().take(NAMED).map(worse_mode).chain(open_gains(&open));
    known.map(|known| format!("; {known}")).collect()
}

fn why_not_decidable(because: &WhyLonger, left_alone: &[String]) -> String {
    match because {
        WhyLonger::Unsteady => "something else changed between the slices".to_owned(),
        WhyLonger::TooFewBlocks { disturbed } => format!("too few blocks are left: {disturbed} were disturbed"),
        WhyLonger::TooFewRequests { .. } => "too few requests were measured".to_owned(),
        WhyLonger::TooWide => "the slices vary more than the modes differ".to_owned(),
        WhyLonger::Search(TuneEnd::BudgetSpent) => {
            "that is too short to compare a mode with the present setting on fresh slices".to_owned()
        }
        WhyLonger::Incomplete | WhyLonger::OtherPrograms { .. } | WhyLonger::NotSteered | WhyLonger::Search(_) => {
            why_longer(because, left_alone)
        }
    }
}

fn why_longer(because: &WhyLonger, left_alone: &[String]) -> String {
    match because {
        WhyLonger::Incomplete => "no answer: the measurement is incomplete".to_owned(),
        WhyLonger::Unsteady => {
            "measure longer, or under a steadier load, because something else changed between the slices".to_owned()
        }
        WhyLonger::TooFewBlocks { disturbed: 0 } => "measure longer, because too few blocks were measured".to_owned(),
        WhyLonger::TooFewBlocks { disturbed } => {
            format!("measure longer, because too few blocks were measured: {disturbed} more were disturbed")
        }
        WhyLonger::TooFewRequests { closed_loop: false } => {
            "measure longer, or under more load, because too little was measured".to_owned()
        }
        WhyLonger::TooFewRequests { closed_loop: true } => {
            "measure longer, because too few requests were measured, although the clients sent all they could"
                .to_owned()
        }
        WhyLonger::OtherPrograms { latency_helps } => {
            let latency = if *latency_helps { ", or compare latencies (--latency)" } else { "" };
            format!(
                "not decidable while other programs use most of the server's CPUs: run clients, --load and --latency on \
                 another machine, end the others, or give the server CPUs of its own; then measure again{latency}"
            )
        }
        WhyLonger::NotSteered => format!("no answer for steered connections, because {NOT_STEERED}"),
        WhyLonger::TooWide => "measure longer, because the slices vary more than the modes differ".to_owned(),
        WhyLonger::Search(end) => format!("no answer: {}", search_end(end, left_alone)),
    }
}

/// Why connections that were to be steered were not.
pub const NOT_STEERED: &str =
    "the measured ones are from before the filter, and stay with their workers until their clients reconnect";

/// Number of modes, and of quantities, that a sentence names.
const NAMED: usize = 3;

/// `suspend20 costs CPU/packet ×6.04`.
pub(crate) fn worse_mode(WorseMode { mode, costs }: &WorseMode) -> String {
    format!("{} costs {}", visible::name(mode), changes(costs, ALL_LOADS))
}

/// `p99-us (suspend20 −40 %) and p50-us are undecided`. `None` without any.
fn open_gains(open: &[OpenGain]) -> Option<String> {
    let one = |OpenGain { quantity: of, best }: &OpenGain| {
        let estimate = |EstimatedGain { mode, ratio, load }: &EstimatedGain| {
            let load = load.map_or_else(String::new, |load| format!(" {}", range(&LoadRange::At(vec![load]))));
            format!(" ({} {}{load})", visible::name(mode), change(*ratio))
        };
        quantity(of) + &best.as_ref().map(estimate).unwrap_or_default()
    };
    let mut named: Vec<String> = open.iter().take(NAMED).map(one).collect();
    if open.len() > NAMED {
        named.push(counted(open.len() - NAMED, "other quantity"));
    }
    let (last, others) = named.split_last()?;
    Some(match others {
        [] => format!("{last} is undecided"),
        others => format!("{} and {last} are undecided", others.join(", ")),
    })
}

fn is_latency(quantity: &Quantity) -> bool {
    match quantity {
        Quantity::Criterion(Criterion::Latency { .. }) | Quantity::Metric(TuneMetric::Latency { .. }) => true,
        Quantity::Criterion(Criterion::Metric { name, .. }) => figures::is_latency(name),
        Quantity::Metric(_) => false,
    }
}

const LATENCY_UNMEASURED: &str = "; latency was not measured (--latency)";
const LATENCY_NOT_IN_GOAL: &str =
    "; latency is not in the goal and can be worse (a limit: p99<=1.1x; programs and commands need --latency for it)";

/// Follows the name of the mode that is kept. `is_decided`: no other one may be better.
fn why_keep(because: &WhyKeep, is_decided: bool) -> String {
    match because {
        WhyKeep::NothingToGain { margin, busy } => {
            let busy =
                busy.filter(|busy| busy.is_finite()).map(|busy| format!("; its CPUs are {:.0} % busy", busy * 100.0));
            format!(
                ", because there is nothing to gain at this load: no mode is better by more than {} %{}",
                number::plain(margin * 100.0),
                busy.unwrap_or_default()
            )
        }
        WhyKeep::OthersAreWorse { modes, latency_withheld } => {
            let withheld = match latency_withheld {
                true => {
                    "; latency was not compared, because other programs used most of the server's CPUs: measure latency \
                     when the CPUs are free"
                }
                false => "",
            };
            every_other_is_worse(modes) + withheld
        }
        WhyKeep::SeriousFinding { mode, saves, finding } => format!(
            ", because {}, which saves {}, causes a serious finding: {finding} (`quell doctor --explain {finding}`)",
            visible::name(mode),
            changes(saves, ALL_LOADS)
        ),
        WhyKeep::TradeOff { mode, saves, costs } => {
            let (saved, cost) = (changes(saves, ALL_LOADS), changes(costs, ALL_LOADS));
            format!(", unless {saved} under {} is worth {cost}", visible::name(mode))
        }
        WhyKeep::NotBeaten { failed: 0, left: 0 } if is_decided => ", because no other mode is better".to_owned(),
        WhyKeep::NotBeaten { failed: 0, left } if is_decided => format!(
            ", because the search found no better mode; {} that it did not exclude {} not tried, or not compared on fresh \
             slices",
            counted(*left, "mode"),
            agree(left, "was", "were")
        ),
        WhyKeep::NotBeaten { failed: 0, .. } => ", because the search found no better mode".to_owned(),
        WhyKeep::NotBeaten { failed, .. } => format!(
            ", because the search found no better mode among those that it could measure; {} failed, as shown above",
            counted(*failed, "mode")
        ),
    }
}

fn every_other_is_worse(modes: &[WorseMode]) -> String {
    if let [one] = modes {
        return format!(": {}", worse_mode(one));
    }
    let mut by: Vec<String> = Vec::new();
    for name in modes.iter().flat_map(|one| &one.costs).map(|change| quantity(&change.quantity)) {
        if !by.contains(&name) {
            by.push(name);
        }
    }
    format!(", because every other mode is worse by {}", by.join(" or "))
}

/// Why verdicts are withheld, with the busiest programs as far as they are known.
#[must_use]
pub fn most_by_others(programs: Option<&[OtherProgramFacts]>) -> String {
    let named = programs.filter(|programs| !programs.is_empty());
    let named = named.map(|programs| format!(" ({})", OtherProgramFacts::which(programs)));
    format!("other programs used most of the time of the server's CPUs{}", named.unwrap_or_default())
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
        ArmState::Alive => "in the race".to_owned(),
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
    use quell_mode::DeliveryMode;

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

    fn cpu(ratio: f64, load: OfferedLoad) -> QuantityChange {
        let quantity = Quantity::Metric(quell_tune::TuneMetric::Cpu);
        QuantityChange { quantity, low: ratio, high: ratio, loads: vec![load], is_everywhere: true }
    }

    fn used(saves: QuantityChange, costs: Option<QuantityChange>, split: Option<LoadSplit>) -> String {
        let (mode, instead_of) = ("suspend20".parse().unwrap(), "base".parse().unwrap());
        let (saves, costs, undecided) = (vec![saves], costs.into_iter().collect(), Vec::new());
        let (holds_limits, without_clients) = (false, false);
        conclusion(
            &Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients },
            &[],
        )
    }

    #[test]
    fn a_search_that_decided_to_keep_the_present_mode_differs_from_one_that_decided_nothing() {
        let said_with = |left, open: &[f64], budget_ms| {
            let gain = |ratio: &f64| OpenGain {
                quantity: Quantity::Metric(quell_tune::TuneMetric::Cpu),
                best: Some(EstimatedGain { mode: "suspend40".to_owned(), ratio: *ratio, load: None }),
            };
            let open = open.iter().map(gain).collect();
            let (mode, because) = (quell_mode::DeliveryMode::default(), WhyKeep::NotBeaten { failed: 0, left });
            conclusion(&Conclusion::Keep { mode, because, open, budget_ms, without_clients: false }, &[])
        };
        let said = |open: &[f64], budget_ms| said_with(0, open, budget_ms);
        let untried = "keep base, because the search found no better mode; 2 modes that it did not exclude were not \
                       tried, or not compared on fresh slices";
        assert_eq!(said_with(2, &[], None), untried);
        assert_eq!(said(&[], None), "keep base, because no other mode is better");
        let undecided = "keep base, because the search found no better mode; cpu (suspend40 −12 %) is undecided";
        assert_eq!(said(&[0.88], Some(100_000)), format!("{undecided}: measure longer"));
        assert_eq!(said(&[0.88], None), format!("{undecided} and takes too long to decide"));
    }

    #[test]
    fn a_conclusion_without_latency_says_so_and_names_what_was_compared() {
        let mode: quell_mode::DeliveryMode = "base".parse().unwrap();
        let kept = |because, without_clients| {
            conclusion(&Conclusion::Keep { mode, because, open: Vec::new(), budget_ms: None, without_clients }, &[])
        };
        let modes = ["suspend20", "fullbusy"].map(worse_by_cpu).to_vec();
        assert_eq!(
            kept(WhyKeep::OthersAreWorse { modes, latency_withheld: false }, true),
            "keep base, because every other mode is worse by cpu; latency was not measured (--latency)"
        );
        let equal = WhyKeep::NothingToGain { margin: 0.05, busy: None };
        assert!(kept(equal.clone(), true).ends_with("5 %; latency was not measured (--latency)"));
        assert!(kept(equal, false).ends_with("5 %"));
        let (saves, costs, undecided) = (vec![cpu(0.7, OfferedLoad::Max)], Vec::new(), Vec::new());
        let (instead_of, holds_limits, split, without_clients) = (mode, false, None, true);
        let used = Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients };
        assert!(conclusion(&used, &[]).ends_with(&format!("cpu −30 %{LATENCY_NOT_IN_GOAL}")));
    }

    fn worse_by_cpu(mode: &str) -> WorseMode {
        WorseMode { mode: mode.to_owned(), costs: vec![cpu(6.04, OfferedLoad::Max)] }
    }

    fn open(quantile: f64, best: Option<(&str, f64)>) -> OpenGain {
        let best = best.map(|(mode, ratio)| EstimatedGain { mode: mode.to_owned(), ratio, load: None });
        OpenGain { quantity: Quantity::Criterion(Criterion::Latency { quantile }), best }
    }

    #[test]
    fn a_mode_that_is_kept_has_what_others_cost_and_what_they_may_save_nevertheless() {
        let kept = |open, is_short: bool| {
            let (modes, budget_ms) = (vec![worse_by_cpu("suspend20")], is_short.then_some(1));
            let because = WhyKeep::OthersAreWorse { modes, latency_withheld: false };
            let mode = DeliveryMode::default();
            let kept = Conclusion::Keep { mode, because, open, budget_ms, without_clients: false };
            conclusion(&kept, &[])
        };
        assert_eq!(
            kept(vec![open(0.99, Some(("suspend20", 0.6))), open(0.5, None)], true),
            "keep base: suspend20 costs cpu ×6.04; p99 (suspend20 −40 %) and p50 are undecided: if latency is what you \
             lack, measure longer"
        );
        assert_eq!(
            kept(vec![open(0.5, None)], false),
            "keep base: suspend20 costs cpu ×6.04; p50 is undecided after a long measurement"
        );
        assert_eq!(kept(Vec::new(), true), "keep base: suspend20 costs cpu ×6.04");
        let modes = ["suspend20", "fullbusy"].map(worse_by_cpu).to_vec();
        assert_eq!(
            why_keep(&WhyKeep::OthersAreWorse { modes, latency_withheld: true }, true),
            ", because every other mode is worse by cpu; latency was not compared, because other programs used most of \
             the server's CPUs: measure latency when the CPUs are free"
        );
    }

    #[test]
    fn a_result_that_has_to_be_measured_longer_has_what_is_decided_and_the_estimates_of_gains() {
        let (because, worse) = (WhyLonger::TooWide, vec![worse_by_cpu("suspend20")]);
        let open = vec![open(0.99, Some(("suspend200", 0.6))), open(0.5, None)];
        let (mode, within_ms) = (DeliveryMode::default(), 480_000);
        let (of, with) = (worse.clone(), open.clone());
        let ended = Conclusion::NotDecidable { mode, within_ms, because: because.clone(), worse: of, open: with };
        assert_eq!(
            conclusion(&ended, &[]),
            "keep base: not decidable here within 8m, because the slices vary more than the modes differ; suspend20 \
             costs cpu ×6.04; p99 (suspend200 −40 %) is undecided"
        );
        let longer = Conclusion::MeasureLonger { because, worse, open, budget_ms: Some(1) };
        assert_eq!(
            conclusion(&longer, &[]),
            "measure longer, because the slices vary more than the modes differ; suspend20 costs cpu ×6.04; p99 \
             (suspend200 −40 %) is undecided"
        );
    }

    #[test]
    fn a_mode_that_pays_at_some_loads_is_named_with_them() {
        let [low, high] = [20e3, 200e3].map(OfferedLoad::Rate);
        let of = |pays, costs| LoadSplit { pays, costs, there: vec![cpu(1.15, low)] };
        assert_eq!(
            used(cpu(0.7, high), None, Some(of(LoadRange::From(high), LoadRange::UpTo(low)))),
            "use suspend20 from 200,000 requests/s on: cpu −30 %; up to 20,000 requests/s keep base (cpu +15 %)"
        );
        let named = of(LoadRange::At(vec![OfferedLoad::Percent(50.0), OfferedLoad::Max]), LoadRange::At(vec![low]));
        assert_eq!(
            used(cpu(0.7, high), None, Some(named)),
            "use suspend20 at 50% and max: cpu −30 %; at 20,000 requests/s keep base (cpu +15 %)"
        );
    }

    #[test]
    fn figures_have_their_loads_where_there_are_several_and_what_may_cost_is_listed() {
        let [low, high] = [20e3, 200e3].map(OfferedLoad::Rate);
        let at_one = |ratio, load| QuantityChange { is_everywhere: false, ..cpu(ratio, load) };
        let p50 = Quantity::Criterion(Criterion::Latency { quantile: 0.5 });
        let loads = vec![OfferedLoad::Percent(50.0), OfferedLoad::Max];
        let everywhere =
            QuantityChange { quantity: p50, low: 0.58, high: 0.7, loads: loads.clone(), is_everywhere: true };
        let open = |quantity: &Quantity, ratio, load| UndecidedCost { quantity: quantity.clone(), ratio, load };
        let (cpu_at_max, p99) = (at_one(0.77, OfferedLoad::Max), Criterion::Latency { quantile: 0.99 });
        let undecided = vec![
            open(&cpu_at_max.quantity, Some(1.025), Some(loads[0])),
            open(&Quantity::Criterion(p99), None, Some(loads[1])),
        ];
        let (saves, costs, holds_limits, split, without_clients) =
            (vec![everywhere, cpu_at_max], Vec::new(), false, None, false);
        let (mode, instead_of) = ("suspend50".parse().unwrap(), "base".parse().unwrap());
        assert_eq!(
            conclusion(
                &Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients },
                &[]
            ),
            "use suspend50 instead of base: p50 −42 % to −30 % at all loads, cpu −23 % at max; undecided: cpu \
             +2.5 % at 50%, p99 at max"
        );
        assert_eq!(
            used(at_one(0.7, high), Some(at_one(1.05, low)), None),
            "use suspend20 instead of base: cpu −30 % at 200,000 requests/s; worse: cpu +5.0 % at 20,000 \
             requests/s"
        );
    }
}
