//! Renders the result of an experiment. For each load, the best modes come first, followed by a table of changes
//! relative to the reference. Details are absolute figures and counters. The last line is the conclusion.

use std::collections::BTreeMap;

use quell_experiment::{
    ContrastResult, ContrastVerdict, Criterion, Goal, RatioEstimate, SliceFlag, StopReason, SwitchbackAnalysis,
    WhyUndecided,
};
use quell_linux::visible::{self, agree, counted};
use quell_load::OfferedLoad;
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::RemoteClientsFacts;
use quell_result::facts::{CommandFacts, ProgramsFacts};
use quell_result::facts::{HostFacts, ModelFacts};
use quell_result::facts::{PlacementFacts, ProblemFacts, SteeredFacts};
use quell_result::figures::{self, Work};

use super::number::{self, ABSENT};
use super::terminal::Terminal;
use quell_cli::table::{align_numbers, lines, new_table};

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
    out.push_str(&super::conclusion::of_experiment(result));
    out
}

/// Renders absolute figures of each mode: medians over its slices, and latency quantiles over all of its requests.
fn details(result: &ExperimentResult) -> String {
    let mut out = String::new();
    for experiment in &result.experiments {
        let analysis = experiment.analyse();
        out.push_str(&format!("\n{}\n{}", heading(experiment, &analysis), absolute(experiment, &analysis)));
    }
    out.push_str(
        "\nCosts are per request, or per packet if the number of requests is unknown.\nLatencies cover all slices of a mode, or are medians of what the command of --latency printed.\n",
    );
    out
}

#[must_use]
pub(super) fn subject(subject: &SubjectFacts, host: &HostFacts) -> String {
    let kernel = visible::name(&host.kernel_release);
    let cpu = host.cpu_model.as_deref().unwrap_or("unknown processor");
    let host = format!("Linux {kernel} on {}", visible::name(cpu));
    match subject {
        SubjectFacts::Programs(programs) => format!(
            "{}\n{host}\n{}{}",
            of_programs(programs),
            placement(programs.placement.as_ref()),
            problems(&programs.problems)
        ),
        SubjectFacts::Command(facts) => format!("{}\n{host}\n", of_command(facts)),
        SubjectFacts::Veth { lab, server, load, beside } => {
            let name = server.version.as_ref().or(server.command.first());
            let name = name.map_or_else(|| "unknown".into(), |name| visible::name(name));
            let stand_in =
                if lab.interrupt_stand_in { "NAPI threads replace interrupts" } else { "softirqs on the sending CPU" };
            let beside =
                beside.as_ref().map(|words| format!("; second server on the same queues: {}", command_line(words)));
            let beside = beside.unwrap_or_default();
            let steered = if lab.steered { "; connections are steered" } else { "" };
            let shared = if lab.shared_core == Some(true) { "; server and client share a core" } else { "" };
            format!(
                "{name} in a veth lab, {}, {}, {stand_in}{steered}{shared}{beside}\n{host}\n",
                counted(lab.queues, "queue"),
                counted(load.connections, "connection")
            )
        }
        SubjectFacts::Model(model) => of_model(model),
        SubjectFacts::Guest(guest) => {
            let driver = guest.driver.as_deref().map_or_else(|| "a NIC".into(), visible::name);
            let load = visible::name(&guest.load);
            let text = format!("{driver} with interrupt {} in a guest; {load}", guest.rx_irq);
            format!("{}\nLinux {kernel}\n", Terminal::of_stdout().fill(&text, "", ""))
        }
    }
}

fn of_model(model: &ModelFacts) -> String {
    let (profile, description) = (visible::name(&model.profile), visible::name(&model.description));
    let host = Terminal::of_stdout().fill(&format!("model of {profile}: {description}"), "", "");
    format!(
        "{host}\nan epoll server similar to memcached, {}, {}; times are virtual\n",
        counted(model.queues, "queue"),
        counted(model.connections, "connection")
    )
}

fn of_programs(programs: &ProgramsFacts) -> String {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for process in &programs.processes {
        names.entry(&process.name).or_default().push(process.pid.to_string());
    }
    let names = names.iter().map(|(name, pids)| format!("{} {}", visible::name(name), pids.join(" ")));
    let names: Vec<String> = names.collect();
    let mut devices: Vec<&str> = programs.queues.iter().map(|queue| queue.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let devices: Vec<_> = devices.into_iter().map(visible::name).collect();
    let attached = programs.attached.map_or_else(String::new, |mode| format!("; attached: {mode}"));
    format!(
        "{}: {} of {}, {}{attached}; {}",
        names.join(", "),
        counted(programs.queues.len(), "queue"),
        if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") },
        counted(programs.epolls, "epoll"),
        match &programs.clients {
            Some(clients) => of_clients(clients),
            None => traffic(programs.load.as_deref(), programs.latency.as_deref(), programs.beside.as_deref()),
        },
    )
}

/// Describes clients on other machines, and how exactly requests are attributed to slices.
fn of_clients(facts: &RemoteClientsFacts) -> String {
    let mut hosts: Vec<&str> = facts.clients.iter().map(|client| client.host.as_str()).collect();
    hosts.dedup();
    let hosts: Vec<_> = hosts.into_iter().map(visible::name).collect();
    let measuring = facts.clients.iter().find(|client| client.measures_only);
    let measuring =
        measuring.map_or_else(String::new, |client| format!("; only rank {} measures latency", client.rank));
    format!(
        "load of {} on {}{measuring}; requests are attributed to slices within ± {} ms (clocks compared by ping-pong)",
        counted(facts.clients.len(), "client"),
        hosts.join(", "),
        number::short(facts.attribution_error_ns() as f64 / 1e6)
    )
}

fn of_command(facts: &CommandFacts) -> String {
    let traffic = match &facts.client {
        Some(client) => format!("Quell's generator in a private lab, {}", counted(client.connections, "connection")),
        None => traffic(facts.load.as_deref(), facts.latency.as_deref(), facts.beside.as_deref()),
    };
    let placement = match &facts.placement[..] {
        [] => String::new(),
        options => format!(" with {}", visible::name(&options.join(" "))),
    };
    format!("{}: started for each slice{placement}; {traffic}", command_line(&facts.command))
}

/// Steered connections and pinned workers, before or after they were placed.
#[must_use]
pub(crate) fn placement(placement: Option<&PlacementFacts>) -> String {
    let Some(placement) = placement else { return String::new() };
    let mut out = String::new();
    for steered in &placement.steered {
        let SteeredFacts { group, sockets, connections_before, aligned_before, new_connections } = steered;
        let arrived = match new_connections {
            None => "; existing connections stay with their workers until their clients reconnect".to_owned(),
            Some(0) => format!(
                "; no client has reconnected, so the result is that of the connections from before. To measure steered \
                 ones, run `quell attach base PID {} --follow`, let the clients reconnect, and run this command again",
                visible::name(&placement.options.join(" "))
            ),
            Some(count) => format!("; {} arrived through the filter", counted(*count, "new connection")),
        };
        let text = format!(
            "steering {}: over {} under every mode; before, {aligned_before} of {} shared the queue of their worker{arrived}",
            visible::name(group),
            counted(*sockets, "socket"),
            counted(*connections_before, "connection"),
        );
        out.push_str(&format!("{}\n", wrapped(&text)));
    }
    if placement.steered.is_empty() && placement.options.iter().any(|option| option.starts_with("--steer")) {
        out.push_str("the attachment of the programs steers their connections, under every mode\n");
    }
    if placement.pinned > 0 {
        out.push_str(&format!("pinned to the CPUs of their queues: {}\n", counted(placement.pinned, "thread")));
    }
    for why in &placement.not_pinned {
        out.push_str(&format!("{}\n", wrapped(&format!("not pinned: {}", visible::name(why)))));
    }
    out
}

/// Serious findings: one paragraph for all objects with the same problem under the same modes.
#[must_use]
pub(crate) fn problems(problems: &[ProblemFacts]) -> String {
    let mut kinds: Vec<(&ProblemFacts, Vec<&str>)> = Vec::new();
    for problem in problems {
        match kinds.iter_mut().find(|(first, _)| (&first.id, &first.modes) == (&problem.id, &problem.modes)) {
            Some((_, observed)) => observed.push(&problem.observed),
            None => kinds.push((problem, vec![&problem.observed])),
        }
    }
    let paragraph = |(first, observed): &(&ProblemFacts, Vec<&str>)| {
        let modes: Vec<String> = first.modes.iter().map(ToString::to_string).collect();
        let text = format!("serious under {}: {}: {}", modes.join(", "), first.id, observed.join("; "));
        wrapped(&visible::name(&text)) + "\n"
    };
    kinds.iter().map(paragraph).collect()
}

fn wrapped(text: &str) -> String {
    Terminal::of_stdout().fill(text, "", "  ")
}

fn traffic(load: Option<&[String]>, latency: Option<&[String]>, beside: Option<&[String]>) -> String {
    let load = match (load, latency) {
        (Some(load), _) => Some(format!("load: {}", command_line(load))),
        (None, None) => Some("live traffic".to_owned()),
        (None, Some(_)) => None,
    };
    let latency = match latency {
        Some(latency) => format!("measured by: {}", command_line(latency)),
        None => "latency is not measured, so only the server is compared".to_owned(),
    };
    let beside =
        beside.map(|beside| format!("another program on the same queues is measured by: {}", command_line(beside)));
    load.into_iter().chain([latency]).chain(beside).collect::<Vec<_>>().join("; ")
}

pub(super) fn command_line(words: &[String]) -> String {
    visible::name(&shell_words::join(words)).into_owned()
}

fn heading(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let rate = experiment.offered_per_s.map(|per_s| format!(" ({} requests/s)", number::short(per_s)));
    let load = match experiment.load {
        Some(OfferedLoad::Percent(percent)) => format!("{percent}% of {}'s maximum throughput", reference(experiment)),
        Some(OfferedLoad::Max) => "Closed loop".to_owned(),
        Some(OfferedLoad::Rate(_)) => "Open loop".to_owned(),
        None => "Result".to_owned(),
    };
    let spent_ms: f64 = experiment.record.slices.iter().map(|slice| slice.observation.spent_ms).sum();
    let slices = experiment.record.slices.len();
    format!(
        "{load}{}: {} of {} slices in {} s",
        rate.unwrap_or_default(),
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
        let name = name(criterion);
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
                format!("{} {}{alike}", visible::name(&first.treatment), change(estimate.ratio))
            }
        };
        out.push_str(&format!("  best {name}: {line}\n"));
    }
    out
}

fn table(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let design = &experiment.record.design;
    let mut table = new_table();
    let headings = design.criteria.iter().map(name);
    table.set_header(std::iter::once(String::new()).chain(headings));
    let absolute = design.criteria.iter().map(|criterion| absolute_of_reference(experiment, analysis, criterion));
    table.add_row(std::iter::once(reference(experiment)).chain(absolute));
    for treatment in &design.treatments {
        let of = |criterion: &Criterion| {
            let contrast = analysis
                .contrasts
                .iter()
                .find(|contrast| contrast.criterion == *criterion && contrast.treatment == treatment.name);
            contrast.map_or_else(|| ABSENT.to_owned(), cell)
        };
        let row = std::iter::once(visible::name(&treatment.name).into_owned()).chain(design.criteria.iter().map(of));
        table.add_row(row);
    }
    lines(&table)
}

/// Renders a ratio with its interval and verdict: `−25 % (−28 to −21) better`.
fn cell(contrast: &ContrastResult) -> String {
    let interval = contrast.estimate.filter(|estimate| estimate.high.is_some()).map(|estimate| {
        let high = estimate.high.unwrap_or(f64::INFINITY);
        format!("{} ({} to {})", change(estimate.ratio), percent(estimate.low), percent(high))
    });
    let verdict = match contrast.verdict {
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
        ContrastVerdict::Undecided { reason: WhyUndecided::ForeignCpu } => {
            return "withheld: other programs".to_owned();
        }
        ContrastVerdict::Undecided { .. } => "undecided".to_owned(),
    };
    match interval {
        Some(interval) => format!("{interval} {verdict}"),
        None => verdict,
    }
}

/// Formats a ratio as a signed change (`−25 %`), or as a factor if it is at least 3.
pub(super) fn change(ratio: f64) -> String {
    if ratio >= 3.0 { format!("×{}", number::short(ratio)) } else { format!("{} %", percent(ratio)) }
}

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

pub(super) fn name(criterion: &Criterion) -> String {
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
    latency_us(experiment, analysis, treatment, quantile).map(number::short)
}

/// Quantile of all latencies of a mode, or the median of the quantiles that a judge printed.
pub(super) fn latency_us(
    experiment: &LoadExperiment,
    analysis: &SwitchbackAnalysis,
    treatment: &str,
    quantile: f64,
) -> Option<f64> {
    let pooled = analysis.pooled_latency.iter().find(|pooled| pooled.treatment == treatment);
    let Some(pooled) = pooled else { return experiment.median(treatment, &figures::printed_latency(quantile)) };
    let found = pooled.quantiles.iter().find(|found| (found.quantile - quantile).abs() < 1e-9)?;
    Some(found.ns as f64 / 1e3)
}

pub(super) fn treatments(experiment: &LoadExperiment) -> impl Iterator<Item = &str> {
    let design = &experiment.record.design;
    std::iter::once(&design.reference).chain(&design.treatments).map(|treatment| treatment.name.as_str())
}

fn notes(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let mut out = String::new();
    let mut note = |text: String| out.push_str(&format!("  {text}\n"));
    for (arm, why) in &experiment.record.dropped {
        let name = experiment.record.design.treatment(*arm).map_or("", |treatment| &treatment.name);
        note(format!("{} is left out: {}", visible::name(name), visible::name(why)));
    }
    match &experiment.end {
        EndOfExperiment::Stopped(StopReason::AllDecided) => note("ended early: all comparisons are decided".to_owned()),
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
            name(&control.criterion),
            reference(experiment)
        ));
    }
    if experiment.has_foreign_cpu() {
        let own = treatments(experiment).filter_map(|mode| {
            let metrics = [Work::Request, Work::Packet].map(|work| work.name(figures::PROCESS_CPU));
            let us = metrics.iter().find_map(|metric| experiment.median(mode, metric))?;
            Some(format!("{} {}", visible::name(mode), number::short(us)))
        });
        let own = own.collect::<Vec<_>>().join(", ");
        note("CPU time: other programs used most of the time of the server's CPUs".to_owned());
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
        let modes: Vec<String> = treatments(experiment).filter_map(|treatment| flagged(&treatment)).collect();
        if !modes.is_empty() {
            note(format!("{what} in more than a quarter of the slices of {}", modes.join(", ")));
        }
    }
    out
}

fn absolute(experiment: &LoadExperiment, analysis: &SwitchbackAnalysis) -> String {
    let record = &experiment.record;
    let has = |name: &str| record.slices.iter().any(|slice| slice.observation.metric(name).is_some());
    let work = if has(&Work::Request.name(figures::CPU)) { Work::Request } else { Work::Packet };
    let metric = |name: &str| if name.ends_with("-per") { work.name(name) } else { name.to_owned() };
    let rate = if work == Work::Request { (figures::REQUESTS, "requests/s") } else { (figures::PACKETS, "packets/s") };
    let columns: Vec<(String, &str)> = std::iter::once(rate)
        .chain(DETAILS)
        .map(|(name, heading)| (metric(name), heading))
        .filter(|(name, _)| has(name))
        .collect();
    let latencies: Vec<(f64, &str)> = LATENCIES
        .into_iter()
        .filter(|(quantile, _)| {
            treatments(experiment).any(|treatment| latency(experiment, analysis, treatment, *quantile).is_some())
        })
        .collect();
    let mut table = new_table();
    let headings = columns.iter().map(|(_, heading)| *heading).chain(latencies.iter().map(|(_, heading)| *heading));
    table.set_header(std::iter::once("").chain(headings).map(str::to_owned));
    for treatment in treatments(experiment) {
        let of_metric = |name: &String| experiment.median(treatment, name).map_or(ABSENT.to_owned(), number::short);
        let of_latency =
            |quantile: f64| latency(experiment, analysis, treatment, quantile).unwrap_or_else(|| ABSENT.to_owned());
        let values = columns.iter().map(|(name, _)| of_metric(name));
        let values = values.chain(latencies.iter().map(|(quantile, _)| of_latency(*quantile)));
        table.add_row(std::iter::once(visible::name(treatment).into_owned()).chain(values));
    }
    align_numbers(&mut table, 1);
    lines(&table)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_several_workers_is_one_paragraph_that_names_each_once() {
        let problem = |observed: &str| ProblemFacts {
            id: "epoll-mixes-napis".to_owned(),
            observed: observed.to_owned(),
            modes: vec!["suspend20".parse().unwrap_or_else(|_| unreachable!())],
        };
        let said = problems(&[problem("nginx (812): 3 on 7"), problem("nginx (813): 4 on 7")]);
        assert_eq!(said, "serious under suspend20: epoll-mixes-napis: nginx (812): 3 on 7; nginx (813): 4 on 7\n");
    }

    #[test]
    fn ratios_are_signed_changes_below_three_and_factors_from_three_on() {
        assert_eq!([change(0.75), change(1.0), change(1.049), change(3.2)], ["−25 %", "0 %", "+4.9 %", "×3.20"]);
        assert_eq!(percent(f64::INFINITY), "∞");
    }
}
