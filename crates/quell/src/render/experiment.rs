//! Renders the result of an experiment. For each load, the best modes come first, followed by a table of changes
//! relative to the reference. Details are absolute figures and counters. The last line is the conclusion.

use quell_experiment::{
    ContrastResult, ContrastVerdict, Criterion, Goal, RatioEstimate, SliceFlag, StopReason, SwitchbackAnalysis,
    WhyUndecided,
};
use quell_host::switching::ReportedSettings;
use quell_linux::visible::{self, agree, counted};
use quell_load::OfferedLoad;
use quell_report::words::{self, TextTable};
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::{HostFacts, PlacementFacts, ProblemFacts};
use quell_result::figures::{self, Work};

use super::number::{self, ABSENT};
use super::terminal::Terminal;
use quell_cli::table::{self, Grid};

const DETAILS: [(&str, &str); 9] = [
    (figures::CPU, "CPU µs"),
    (figures::PROCESS_CPU, "process µs"),
    (figures::POLLS, "polls"),
    (figures::IRQS, "interrupts"),
    (figures::SLEEPS, "sleeps"),
    (figures::CYCLES, "cycles"),
    (figures::INSTRUCTIONS, "instructions"),
    (figures::EMPTY_POLLS, "empty polls"),
    (figures::BUSY, "CPUs busy"),
];
/// Legend of those columns whose headings do not say everything; `{work}` is a request or a packet.
const MEANINGS: [(&str, &str); 10] = [
    ("CPU µs", "time in which the server's CPUs were not idle, per {work}; with NAPI threads, theirs and the server's"),
    ("process µs", "CPU time of the server's own threads, per {work}"),
    ("polls", "NAPI polls of the queues, per {work}"),
    ("interrupts", "interrupts of the queues, per {work}"),
    ("sleeps", "how often a thread of the server went to sleep, per {work}"),
    ("cycles", "cycles of the server's CPUs, per {work}"),
    ("instructions", "instructions of the server's CPUs, per {work}"),
    ("empty polls", "share of the polls that found no packet, 0 to 1"),
    ("CPUs busy", "share of time in which the server's CPUs were not idle, 0 to 1"),
    ("p50 µs", "latency over all slices of a mode, or the median of what --latency printed"),
];
const LATENCIES: [(f64, &str); 4] = [(0.5, "p50 µs"), (0.99, "p99 µs"), (0.999, "p99.9 µs"), (0.9999, "p99.99 µs")];

/// Renders a result. `with_details` adds absolute figures and counters.
#[must_use]
pub(crate) fn render(result: &ExperimentResult, with_details: bool) -> String {
    let mut out = String::new();
    if let Some(why) = &result.not_a_measurement {
        out.push_str(&format!("NOT A MEASUREMENT: {why}\n"));
    }
    out.push_str(&subject(&result.subject, &result.host));
    for experiment in &result.experiments {
        let analysis = experiment.analyse();
        out.push_str(&format!("\n{}\n", heading(experiment, &analysis)));
        out.push_str(&answers(experiment, &analysis));
        out.push_str(&table(experiment, &analysis));
        out.push_str(&notes(experiment, &analysis));
        if let SubjectFacts::Guest(guest) = &result.subject {
            out.push_str(&super::guest::render(guest, experiment));
        }
    }
    out.push_str(&legend(result));
    if with_details {
        out.push_str(&details(result));
    }
    out.extend(words::experiment_advice(result).as_ref().map(super::conclusion::of_advice));
    out
}

/// Renders absolute figures of each mode: medians over its slices, and latency quantiles over all of its requests.
fn details(result: &ExperimentResult) -> String {
    let (mut out, mut shown) = (String::new(), Vec::new());
    for experiment in &result.experiments {
        let analysis = experiment.analyse();
        shown.extend(headings(experiment, &analysis));
        // With one load, the heading above is that of this table, too.
        let of_load = if result.experiments.len() > 1 { load_name(experiment) + ":\n" } else { String::new() };
        let table = absolute(experiment, &analysis);
        if !table.is_empty() {
            out.push_str(&format!("\n{of_load}{table}"));
        }
    }
    out.push_str(&format!("\n{}", legend_of_details(&shown)));
    out + &reported(result.experiments.iter().filter_map(|experiment| experiment.settings.as_ref()))
}

/// Legend of the columns with these headings.
fn legend_of_details(shown: &[&str]) -> String {
    let work = if shown.contains(&REQUEST_RATE.1) { Work::Request } else { Work::Packet };
    let meanings = MEANINGS.iter().filter(|(heading, _)| shown.contains(heading));
    let meanings: Vec<(&str, String)> =
        meanings.map(|(heading, meaning)| (*heading, meaning.replace("{work}", work.word()))).collect();
    let meanings: Vec<(&str, &str)> = meanings.iter().map(|(heading, meaning)| (*heading, meaning.as_str())).collect();
    table::legend(&meanings, Terminal::of_stdout())
}

/// What the kernel reported about the settings of these experiments. Experiments with the same tables share them.
pub(super) fn reported<'a>(settings: impl Iterator<Item = &'a ReportedSettings>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for settings in settings {
        let tables = words::settings_tables(settings).into_iter().map(|table| titled_table(&table));
        let said = words::settings_restored(settings).map(|text| format!("\n{}\n", wrapped(&text)));
        tables.chain(said).for_each(|part| {
            if !parts.contains(&part) {
                parts.push(part)
            }
        });
    }
    parts.concat()
}

/// A table below its heading.
pub(super) fn titled_table(text: &TextTable) -> String {
    let mut table = Grid::new(text.head.iter().copied(), 1);
    text.rows.iter().for_each(|row| table.push(row));
    format!("\n{}\n{}", wrapped(&text.heading), table.render(Terminal::of_stdout()))
}

#[must_use]
pub(super) fn subject(subject: &SubjectFacts, host: &HostFacts) -> String {
    let said = words::subject(subject);
    let lines = match subject {
        SubjectFacts::Model(_) => said.iter().map(|text| Terminal::of_stdout().fill(text, "", "")).collect(),
        SubjectFacts::Guest(_) => {
            let kernel = format!("Linux {}", visible::name(&host.kernel_release));
            said.iter().map(|text| Terminal::of_stdout().fill(text, "", "")).chain([kernel]).collect()
        }
        _ => said.into_iter().chain([words::host(host)]).collect::<Vec<_>>(),
    };
    let placed = match subject {
        SubjectFacts::Programs(programs) => placement(programs.placement.as_ref()),
        _ => String::new(),
    };
    lines.join("\n") + "\n" + &placed + &problems(subject.problems())
}

/// Steered connections and pinned workers, before or after they were placed.
#[must_use]
pub(crate) fn placement(placement: Option<&PlacementFacts>) -> String {
    words::placement(placement).iter().map(|text| wrapped(text) + "\n").collect()
}

/// One paragraph for all objects with the same problem under the same modes.
#[must_use]
pub(crate) fn problems(problems: &[ProblemFacts]) -> String {
    words::problems(problems).iter().map(|text| wrapped(text) + "\n").collect()
}

fn wrapped(text: &str) -> String {
    Terminal::of_stdout().fill(text, "", "  ")
}

fn load_name(experiment: &LoadExperiment) -> String {
    let rate = experiment.offered_per_s.map(|per_s| format!(" ({} requests/s)", number::short(per_s)));
    let load = match experiment.load {
        Some(OfferedLoad::Percent(percent)) => format!("{percent}% of {}'s maximum throughput", reference(experiment)),
        Some(OfferedLoad::Max) => "Closed loop".to_owned(),
        Some(OfferedLoad::Rate(_)) => "Open loop".to_owned(),
        None => "Result".to_owned(),
    };
    load + &rate.unwrap_or_default()
}

fn heading(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let spent_ms: f64 = experiment.record.slices.iter().map(|slice| slice.observation.spent_ms).sum();
    let slices = experiment.record.slices.len();
    format!(
        "{}: {} of {} slices in {} s",
        load_name(experiment),
        counted(analysis.blocks, "block"),
        if analysis.blocks == 0 { 0 } else { experiment.record.design.arms() - experiment.record.dropped.len() },
        number::short(spent_ms / 1e3)
    ) + if slices == 0 { ", none complete" } else { "" }
}

fn reference(experiment: &LoadExperiment) -> String {
    visible::name(&experiment.record.design.reference.name).into_owned()
}

/// Treatments that are better than the reference by a criterion, the best one first.
fn better<'a>(analysis: &'a SwitchbackAnalysis, criterion: &Criterion) -> Vec<(&'a ContrastResult, RatioEstimate)> {
    let of_criterion = analysis.contrasts.iter().filter(|contrast| contrast.criterion == *criterion);
    let better = of_criterion.filter(|contrast| contrast.verdict == ContrastVerdict::Better);
    let mut better: Vec<_> = better.filter_map(|contrast| Some((contrast, contrast.estimate?))).collect();
    better.sort_by(|(_, one), (_, other)| one.ratio.total_cmp(&other.ratio));
    if criterion.goal() == Goal::Highest {
        better.reverse();
    }
    better
}

/// For each criterion, lists the treatments that are better than the reference, the best one first.
fn answers(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let mut out = String::new();
    for criterion in &experiment.record.design.criteria {
        let contrasts: Vec<&ContrastResult> =
            analysis.contrasts.iter().filter(|contrast| contrast.criterion == *criterion).collect();
        let better = better(analysis, criterion);
        let name = words::criterion(criterion);
        let best = better.first().map(|(_, estimate)| *estimate);
        let overlaps = |estimate: &RatioEstimate| {
            best.is_some_and(|best| {
                estimate.low <= best.high.unwrap_or(f64::INFINITY) && best.low <= estimate.high.unwrap_or(f64::INFINITY)
            })
        };
        let line = match better.split_first() {
            None if contrasts.iter().all(|contrast| matches!(contrast.verdict, ContrastVerdict::Undecided { .. })) => {
                "undecided".to_owned()
            }
            None => format!("no mode is significantly better than {}", reference(experiment)),
            Some(((first, estimate), rest)) => {
                let alike: Vec<_> = rest.iter().filter(|(_, estimate)| overlaps(estimate)).collect();
                let alike: Vec<_> = alike.iter().map(|(contrast, _)| visible::name(&contrast.treatment)).collect();
                let alike = if alike.is_empty() {
                    String::new()
                } else {
                    format!("; no significant difference from {}", alike.join(", "))
                };
                format!("{} {}{alike}", visible::name(&first.treatment), words::change(estimate.ratio))
            }
        };
        out.push_str(&format!("  best {name}: {line}\n"));
    }
    out
}

fn table(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let design = &experiment.record.design;
    let headings = design.criteria.iter().map(words::criterion);
    let mut table = Grid::new(std::iter::once(String::new()).chain(headings), 1).with_numbers(0..0);
    let absolute = design.criteria.iter().map(|criterion| {
        let withheld =
            analysis.contrasts.iter().find(|contrast| contrast.criterion == *criterion && is_withheld(contrast));
        withheld.map_or_else(|| absolute_of_reference(experiment, analysis, criterion), cell)
    });
    table.push(std::iter::once(reference(experiment)).chain(absolute));
    for treatment in &design.treatments {
        let of = |criterion: &Criterion| {
            let contrast = analysis
                .contrasts
                .iter()
                .find(|contrast| contrast.criterion == *criterion && contrast.treatment == treatment.name);
            contrast.map_or_else(|| ABSENT.to_owned(), cell)
        };
        let row = std::iter::once(visible::name(&treatment.name).into_owned()).chain(design.criteria.iter().map(of));
        table.push(row);
    }
    table.render(Terminal::of_stdout())
}

/// Whether its verdict is withheld because other programs used the CPUs.
fn is_withheld(contrast: &ContrastResult) -> bool {
    matches!(contrast.verdict, ContrastVerdict::Undecided { reason: WhyUndecided::ForeignCpu })
}

/// Renders a ratio with its interval and verdict: `−25 % (−28 to −21) better`.
fn cell(contrast: &ContrastResult) -> String {
    let interval = contrast
        .estimate
        .and_then(|RatioEstimate { ratio, low, high, .. }| Some(words::change_with_interval(ratio, low, high?)));
    if is_withheld(contrast) {
        return words::verdict(&contrast.verdict);
    }
    let verdict = words::verdict(&contrast.verdict);
    match interval {
        Some(interval) => format!("{interval} {verdict}"),
        None => verdict,
    }
}

fn absolute_of_reference(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis, criterion: &Criterion) -> String {
    match criterion {
        Criterion::Latency { quantile } => {
            latency(experiment, analysis, &experiment.record.design.reference.name, *quantile)
                .map_or(ABSENT.to_owned(), |us| format!("{us} µs"))
        }
        Criterion::Metric { name, .. } => {
            let value = experiment.median(&experiment.record.design.reference.name, name);
            let is_us = name.starts_with(figures::CPU) || [figures::BESIDE_P50, figures::BESIDE_P99].contains(&&**name);
            let unit = if is_us { " µs" } else { "" };
            value.map_or(ABSENT.to_owned(), |value| format!("{}{unit}", number::short(value)))
        }
    }
}

fn latency(
    experiment: &LoadExperiment,
    analysis: &SwitchbackAnalysis,
    treatment: &str,
    quantile: f64,
) -> Option<String> {
    experiment.latency_us(analysis, treatment, quantile).map(number::short)
}

fn notes(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let mut out = String::new();
    let mut note = |text: String| out.push_str(&(Terminal::of_stdout().fill(&text, "  ", "    ") + "\n"));
    for (arm, why) in &experiment.record.dropped {
        let name = experiment.record.design.treatment(*arm).map_or("", |treatment| &treatment.name);
        note(format!("{} is left out: {}", visible::name(name), visible::name(why)));
    }
    match &experiment.end {
        EndOfExperiment::Stopped(StopReason::AllDecided) => {
            note(match analysis.contrasts.iter().any(is_withheld) {
                true => "ended early: more blocks would change no verdict".to_owned(),
                false => "ended early: all comparisons are decided".to_owned(),
            });
        }
        EndOfExperiment::Stopped(_) => {}
        EndOfExperiment::Interrupted => note("interrupted: the table contains the slices measured so far".to_owned()),
        EndOfExperiment::Failed(why) => note(format!("ENDED EARLY: {}", visible::name(why))),
    }
    let has_figures = |slice: &quell_experiment::SliceRecord| {
        slice.observation.metrics.keys().any(|name| name.starts_with(figures::CPU) || name.starts_with(figures::IRQS))
    };
    if !experiment.record.slices.is_empty() && !experiment.record.slices.iter().any(has_figures) {
        note("nothing can be compared: the queues received no packets, or the packets could not be counted".to_owned());
    }
    for control in analysis.controls.iter().filter(|control| !control.holds) {
        note(format!(
            "{}: the two measurements of {} differ, so the verdicts are withheld",
            words::criterion(&control.criterion),
            reference(experiment)
        ));
    }
    words::other_programs(experiment).into_iter().for_each(&mut note);
    if experiment.has_foreign_cpu() {
        let own = experiment.treatment_names().filter_map(|mode| {
            let metrics = [Work::Request, Work::Packet].map(|work| work.name(figures::PROCESS_CPU));
            let us = metrics.iter().find_map(|metric| experiment.median(mode, metric))?;
            Some(format!("{} {}", visible::name(mode), number::short(us)))
        });
        let own = own.collect::<Vec<_>>().join(", ");
        note(format!("the server's own processes used, in µs, without softirqs: {own}"));
    }
    if analysis.blocks_dropped > 0 {
        note(format!(
            "{} disturbed by other programs {} omitted",
            counted(analysis.blocks_dropped, "block"),
            agree(&analysis.blocks_dropped, "was", "were")
        ));
    }
    for (flag, what) in [
        (SliceFlag::RequestsFailed, "requests failed"),
        (SliceFlag::Saturated, "the server fell behind the offered rate"),
        (SliceFlag::LoadWasLate, "the generator sent requests late"),
    ] {
        let flagged = |treatment: &&str| {
            let arms = experiment.arms_of(treatment);
            let slices = experiment.record.slices.iter().filter(|slice| arms.contains(&slice.arm));
            let (all, flagged) = slices.fold((0_u32, 0_u32), |(all, flagged), slice| {
                (all + 1, flagged + u32::from(slice.observation.flags.contains(&flag)))
            });
            // On a busy machine, a few slices of each mode have these flags, so they are not worth a note.
            (flagged * 4 > all).then(|| visible::name(treatment).into_owned())
        };
        let modes: Vec<String> = experiment.treatment_names().filter_map(|treatment| flagged(&treatment)).collect();
        if !modes.is_empty() {
            note(format!("{what} in more than a quarter of the slices of {}", modes.join(", ")));
        }
    }
    out
}

const REQUEST_RATE: (&str, &str) = (figures::REQUESTS, "requests/s");
const PACKET_RATE: (&str, &str) = (figures::PACKETS, "packets/s");

/// Metrics of the slices with their headings.
fn metrics(experiment: &LoadExperiment) -> Vec<(String, &'static str)> {
    let slices = &experiment.record.slices;
    let has = |name: &str| slices.iter().any(|slice| slice.observation.metric(name).is_some());
    let work = if has(&Work::Request.name(figures::CPU)) { Work::Request } else { Work::Packet };
    let metric = |name: &str| if name.ends_with("-per") { work.name(name) } else { name.to_owned() };
    let rate = if work == Work::Request { REQUEST_RATE } else { PACKET_RATE };
    let all = std::iter::once(rate).chain(DETAILS).map(|(name, heading)| (metric(name), heading));
    all.filter(|(name, _)| has(name)).collect()
}

/// Latency quantiles that are known, with their headings.
fn latencies(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> Vec<(f64, &'static str)> {
    let is_known = |quantile: f64| {
        experiment.treatment_names().any(|treatment| latency(experiment, analysis, treatment, quantile).is_some())
    };
    LATENCIES.into_iter().filter(|(quantile, _)| is_known(*quantile)).collect()
}

/// Headings of the absolute figures.
fn headings(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> Vec<&'static str> {
    let metrics = metrics(experiment).into_iter().map(|(_, heading)| heading);
    metrics.chain(latencies(experiment, analysis).into_iter().map(|(_, heading)| heading)).collect()
}

/// Table of absolute figures. Empty without figures.
fn absolute(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let (metrics, latencies) = (metrics(experiment), latencies(experiment, analysis));
    let headings = headings(experiment, analysis);
    if headings.is_empty() {
        return String::new();
    }
    let mut table = Grid::new(std::iter::once("").chain(headings), 1);
    for treatment in experiment.treatment_names() {
        let of_metric = |name: &String| experiment.median(treatment, name).map_or(ABSENT.to_owned(), number::short);
        let of_latency =
            |quantile: f64| latency(experiment, analysis, treatment, quantile).unwrap_or_else(|| ABSENT.to_owned());
        let values = metrics.iter().map(|(name, _)| of_metric(name));
        let values = values.chain(latencies.iter().map(|(quantile, _)| of_latency(*quantile)));
        table.push(std::iter::once(visible::name(treatment).into_owned()).chain(values));
    }
    table.render(Terminal::of_stdout())
}

fn legend(result: &ExperimentResult) -> String {
    let Some(experiment) = result.experiments.first() else { return String::new() };
    let error_rate: f64 = result.experiments.iter().map(|experiment| experiment.record.design.error_rate).sum();
    let text = format!(
        "Changes relative to {}, with simultaneous {} % confidence intervals. Each block contains every mode once and {} \
         twice, in random order. docs/statistics.md explains the verdicts.",
        reference(experiment),
        number::plain((1.0 - error_rate) * 100.0),
        reference(experiment),
    );
    format!("\n{}\n", Terminal::of_stdout().fill(&text, "", ""))
}
