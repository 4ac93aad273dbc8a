//! The published AF_XDP experiment played in a lab: latencies of each way to poll with the published ones beside them,
//! CPU time, and the order of the ways.

use quell_cli::number::{ABSENT, short};
use quell_experiment::{ContrastResult, ContrastVerdict, Criterion, RatioEstimate, SwitchbackAnalysis};
use quell_linux::visible;
use quell_published::{
    Experiment, PublishedError, RECEIVE_CALLS, RECEIVE_CALLS_AT, ThreadedNapiRow, threaded_napi_rows,
    xsk_rr_percentiles,
};
use quell_result::experiment::LoadExperiment;
use quell_result::figures::{POLLS, Work};
use quell_result::published_xdp::{
    CLIENT_CPU, NAPI_THREAD, ON_TIME, POLLER, PublishedXdpRun, RECEIVER, RESPONDER, SENDER, XdpPoint, XdpWay, cpus_of,
    poll_share,
};
use quell_sampler::QueuePoller;
use quell_stats::LatencyHistogram;

use super::published::PublishedText::{self, Break, Statement, Table};
use super::published::{figure, side};
use super::published_xdp_counts;

const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];
const P50: Criterion = Criterion::Latency { quantile: 0.5 };
/// Share of requests on time below which a point is that of the generator.
const ON_TIME_MIN: f64 = 0.9;
/// p50 in periods of the schedule above which responses queue up.
const PERIODS_MAX: f64 = 2.0;

/// The points of a run with the published ones beside them, in words and tables.
pub fn published_xdp(run: &PublishedXdpRun) -> Result<Vec<PublishedText>, PublishedError> {
    let rows = threaded_napi_rows()?;
    let mut out = Vec::new();
    out.extend(
        run.not_a_measurement.as_ref().map(|why| Statement(format!("NOT A MEASUREMENT: {}", visible::name(why)))),
    );
    out.push(Statement(format!("({}) {}", Experiment::C, Experiment::C.title())));
    out.push(Statement(format!("published: {}", Experiment::C.source())));
    out.push(Statement(run.slowed_by.map_or_else(|| here(run), |by| published_xdp_counts::here(run, by))));
    for point in &run.points {
        out.push(Break);
        out.extend(match run.slowed_by {
            None => of_point(point, &rows),
            Some(slowed_by) => published_xdp_counts::of_point(point, slowed_by),
        });
    }
    out.push(Break);
    out.push(Statement(if run.slowed_by.is_none() { LEGEND } else { published_xdp_counts::LEGEND }.to_owned()));
    out.push(Break);
    if !run.absent.is_empty() {
        out.push(Statement("ways that are not played here:".to_owned()));
        out.extend(
            run.absent
                .iter()
                .map(|absent| Statement(format!("  {}: {}", visible::name(&absent.ways), visible::name(&absent.why)))),
        );
    }
    if run.slowed_by.is_none() && !run.absent.is_empty() {
        out.push(Statement(IN_GUEST.to_owned()));
    }
    out.extend(run.ended.as_ref().map(|why| Statement(format!("ENDED EARLY: {}", visible::name(why)))));
    Ok(out)
}

fn here(run: &PublishedXdpRun) -> String {
    let cpu = run.host.cpu_model.as_deref().unwrap_or("unknown processor");
    let placement = run.placement;
    let poller = placement.poller.map_or_else(String::new, |cpu| format!("; CPU {cpu}: the thread that polls"));
    format!(
        "here: a veth lab on Linux {}, {}; CPU {}: the client's receiver, which also does the processing; CPU {}: its sender and \
         the responder{poller}",
        visible::name(&run.host.kernel_release),
        visible::name(cpu),
        placement.receiver,
        placement.sender,
    )
}

const IN_GUEST: &str = "who polls in busy-poll, and in the ways with a third CPU: quell bench --experiment c --on vm";

const LEGEND: &str = concat!(
    "Latencies in µs from the intended send. ×p50: p50 divided by that of interrupts, with a 95 % interval that ",
    "holds for all pairs of a point together. low50, low99: mean of the lowest 50 and 99 %, ",
    "which xsk_rr prints as percentiles, rounded down at every 0.1 µs as there; *: published, for the mechanism in the ",
    "column as. CPU µs: time per request of the client's receiver, poller and NAPI thread. recv, poller, NAPI, send, resp: share of a CPU ",
    "that the receiver, the thread that polls, the NAPI thread, the sender and the responder use, in %. polls: ",
    "polls of the client's queue per request. All threads spin, except for the responder, the NAPI thread and a ",
    "sleeping receiver. Published: both sides poll in this way, and interrupts have a CPU of their own. Here, the ",
    "client alone does, and on a veth the softirq of the client's queue runs where the responder sends, so its ",
    "time is the responder's.",
);

fn of_point(point: &XdpPoint, rows: &[ThreadedNapiRow]) -> Vec<PublishedText> {
    let mut out =
        vec![Statement(format!("{} Kpkt/s, {} µs processing", short(point.rate_kpps), short(point.delay_us)))];
    out.extend(point.not_possible.as_ref().map(|why| Statement(format!("not possible here: {}", visible::name(why)))));
    let Some(experiment) = &point.result else { return out };
    let analysis = experiment.analyse();
    let played = ways(experiment);
    let published = |way: XdpWay| {
        let mechanism = way.published()?;
        rows.iter().find(|row| {
            row.mechanism == mechanism && (row.rate_kpps, row.delay_us) == (point.rate_kpps, point.delay_us)
        })
    };
    let latency = |(name, way): &(&str, XdpWay)| {
        let all = experiment.latencies(name);
        let published = published(*way);
        let quantiles = QUANTILES.map(|quantile| us(&all, quantile));
        let [_, low50_ns, _, low99_ns] = xsk_rr_percentiles(all.slots());
        let here = [low50_ns, low99_ns].map(|ns| figure(Some(ns / 1e3)));
        let there = [published.map(|row| row.p50_ns), published.map(|row| row.p99_ns)];
        let there = there.map(|ns| figure(ns.map(|ns| ns / 1e3)));
        let to_reference = match pair(&analysis, &P50, name, reference(experiment)) {
            _ if !keeps_up(point, experiment, name) => "falls behind".to_owned(),
            Some(pair) => interval(&pair),
            None => ABSENT.to_owned(),
        };
        let names =
            [visible::name(name).into_owned(), way.published().map_or(ABSENT.to_owned(), |one| one.to_string())];
        names.into_iter().chain(quantiles).chain([to_reference]).chain(here).chain(there).collect()
    };
    let heading = vec!["way", "as", "p50", "p95", "p99", "×p50", "low50", "low99", "low50*", "low99*"];
    out.push(Table { heading, rows: played.iter().map(latency).collect() });
    let heading = vec!["way", "polled by", "CPU µs", "recv", "poller", "NAPI", "send", "resp", "polls"];
    out.push(Table { heading, rows: played.iter().map(|(name, _)| costs(experiment, name)).collect() });
    out.extend(statements(point, experiment, &analysis, &played, &published));
    out.extend(calls(point));
    out
}

/// The ways of an experiment with their names, the reference first.
pub(super) fn ways(experiment: &LoadExperiment<XdpWay>) -> Vec<(&str, XdpWay)> {
    let design = &experiment.record.design;
    let treatments = std::iter::once(&design.reference).chain(&design.treatments);
    let all = treatments.map(|treatment| (treatment.name.as_str(), treatment.setting));
    let polls = Work::Request.name(POLLS);
    all.filter(|(name, _)| !experiment.latencies(name).is_empty() || experiment.median(name, &polls).is_some())
        .collect()
}

fn reference(experiment: &LoadExperiment<XdpWay>) -> &str {
    &experiment.record.design.reference.name
}

fn us(latency: &LatencyHistogram, quantile: f64) -> String {
    latency.quantile(quantile).map_or(ABSENT.to_owned(), |latency| short(latency.as_secs_f64() * 1e6))
}

/// Cell of the table. The ways are named after interrupts, which on a veth are softirqs that the sender raises.
fn polled_by(poller: QueuePoller) -> &'static str {
    match poller {
        QueuePoller::Interrupt => "softirq",
        other => super::poller_name(other),
    }
}

/// Who polled the client's queue, with shares from 1 %.
pub(super) fn polled(experiment: &LoadExperiment<XdpWay>, name: &str) -> String {
    let share = |metric: String| experiment.median(name, &metric).filter(|share| *share > 0.0);
    let of_poller = |poller| Some((share(poll_share(poller))?, polled_by(poller)));
    let mut shares: Vec<(f64, &str)> = QueuePoller::ALL.into_iter().filter_map(of_poller).collect();
    shares.sort_by(|one, other| other.0.total_cmp(&one.0));
    let polled: Vec<String> = shares
        .iter()
        .filter(|(share, _)| *share >= 0.01)
        .map(|(share, text)| format!("{text} {:.0} %", share * 100.0))
        .collect();
    if polled.is_empty() { ABSENT.to_owned() } else { polled.join(", ") }
}

/// CPU time and polls of a way.
fn costs(experiment: &LoadExperiment<XdpWay>, name: &str) -> Vec<String> {
    let share = |metric: String| experiment.median(name, &metric).filter(|share| *share > 0.0);
    let percent = |share: Option<f64>| share.map_or(ABSENT.to_owned(), |share| short(share * 100.0));
    let threads = [RECEIVER, POLLER, NAPI_THREAD, SENDER, RESPONDER].map(|thread| percent(share(cpus_of(thread))));
    let polls = figure(experiment.median(name, &Work::Request.name(POLLS)));
    let first =
        [visible::name(name).into_owned(), polled(experiment, name), figure(experiment.median(name, CLIENT_CPU))];
    first.into_iter().chain(threads).chain([polls]).collect()
}

/// Comparison of two ways by one criterion.
struct Pair {
    estimate: RatioEstimate,
    verdict: ContrastVerdict,
}

/// A way compared with another one, in this direction.
fn pair(analysis: &SwitchbackAnalysis, criterion: &Criterion, way: &str, against: &str) -> Option<Pair> {
    let of_pair = |contrast: &&ContrastResult, one: &str, other: &str| {
        contrast.criterion == *criterion && contrast.treatment == one && contrast.against == other
    };
    let mut contrasts = analysis.contrasts.iter();
    if let Some(contrast) = contrasts.clone().find(|contrast| of_pair(contrast, way, against)) {
        return Some(Pair { estimate: contrast.estimate?, verdict: contrast.verdict });
    }
    let contrast = contrasts.find(|contrast| of_pair(contrast, against, way))?;
    let RatioEstimate { ratio, low, high, blocks } = contrast.estimate?;
    if ratio <= 0.0 {
        return None;
    }
    let inverse = |end: f64| (end > 0.0).then(|| 1.0 / end);
    let estimate =
        RatioEstimate { ratio: 1.0 / ratio, low: high.and_then(inverse).unwrap_or(0.0), high: inverse(low), blocks };
    let verdict = match contrast.verdict {
        ContrastVerdict::Better => ContrastVerdict::Worse,
        ContrastVerdict::Worse => ContrastVerdict::Better,
        other => other,
    };
    Some(Pair { estimate, verdict })
}

fn interval(pair: &Pair) -> String {
    let RatioEstimate { ratio, low, high, .. } = pair.estimate;
    let high = high.map_or(ABSENT.to_owned(), |high| format!("{high:.2}"));
    format!("{ratio:.2} ({low:.2}–{high})")
}

/// Whether the client answers as fast as requests are sent: the responses of a way that does not wait longer and
/// longer.
fn keeps_up(point: &XdpPoint, experiment: &LoadExperiment<XdpWay>, name: &str) -> bool {
    let period_us = 1e3 / point.rate_kpps;
    let p50 = experiment.latencies(name).p50();
    p50.is_some_and(|p50| p50.as_secs_f64() * 1e6 < PERIODS_MAX * period_us)
}

/// What the point shows: the order, its agreement with the published one, and what was wrong.
fn statements<'a>(
    point: &XdpPoint,
    experiment: &LoadExperiment<XdpWay>,
    analysis: &SwitchbackAnalysis,
    played: &[(&str, XdpWay)],
    published: &impl Fn(XdpWay) -> Option<&'a ThreadedNapiRow>,
) -> Vec<PublishedText> {
    let mut out = Vec::new();
    let on_time = experiment.median(reference(experiment), ON_TIME);
    if let Some(share) = on_time.filter(|share| *share < ON_TIME_MIN) {
        out.push(Statement(format!(
            "the sender, which shares a CPU with the responder, was late: {} % of the requests were sent within 10 µs of the \
             schedule, so these latencies are mostly its own, and no order follows",
            short(share * 100.0)
        )));
    } else {
        let (in_time, behind): (Vec<_>, Vec<_>) =
            played.iter().copied().partition(|(name, _)| keeps_up(point, experiment, name));
        out.extend(order(experiment, analysis, &in_time).map(Statement));
        if !behind.is_empty() {
            let names: Vec<_> = behind.iter().map(|(name, _)| visible::name(name)).collect();
            out.push(Statement(format!(
                "falls behind: {} (processing, polls, timers and NAPI thread together need the whole period of {} µs on one CPU, \
                 so responses queue up)",
                names.join(", "),
                short(1e3 / point.rate_kpps)
            )));
        }
        out.extend(agreements(experiment, analysis, played, &behind, published).map(Statement));
    }
    out.extend(left_out(experiment).map(Statement));
    out
}

/// The modes or ways that could not be set.
pub(super) fn left_out<S>(experiment: &LoadExperiment<S>) -> impl Iterator<Item = String> {
    let record = &experiment.record;
    record.dropped.iter().map(|(arm, why)| {
        let name = record.design.treatment(*arm).map_or("", |treatment| treatment.name.as_str());
        format!("{} is left out: {}", visible::name(name), visible::name(why))
    })
}

/// The ways by their p50, and whether each one differs from the one before it.
fn order(
    experiment: &LoadExperiment<XdpWay>,
    analysis: &SwitchbackAnalysis,
    played: &[(&str, XdpWay)],
) -> Option<String> {
    let latencies =
        played.iter().filter_map(|(name, _)| Some((*name, experiment.latencies(name).p50()?.as_secs_f64()))).collect();
    order_text(analysis, &P50, "p50", latencies)
}

/// The ways by a criterion, whose values are `sorted` here.
pub(super) fn order_text(
    analysis: &SwitchbackAnalysis,
    criterion: &Criterion,
    by: &str,
    mut sorted: Vec<(&str, f64)>,
) -> Option<String> {
    sorted.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut text = visible::name(sorted.first()?.0).into_owned();
    for two in sorted.windows(2) {
        let (before, name) = (two[0].0, visible::name(two[1].0));
        text += &match pair(analysis, criterion, two[1].0, before) {
            Some(pair) if pair.verdict == ContrastVerdict::Worse => format!(" < {name} × {}", interval(&pair)),
            Some(pair) => format!(" ? {name} × {}", interval(&pair)),
            None => format!(" ? {name}"),
        };
    }
    Some(format!("order by {by} (<: decided; ?: not decided; ×: times the one before): {text}"))
}

/// How each way compares with the reference here and in the publication, and why it differs.
fn agreements<'a>(
    experiment: &LoadExperiment<XdpWay>,
    analysis: &SwitchbackAnalysis,
    played: &[(&str, XdpWay)],
    behind: &[(&str, XdpWay)],
    published: &impl Fn(XdpWay) -> Option<&'a ThreadedNapiRow>,
) -> impl Iterator<Item = String> {
    let base = reference(experiment);
    let of_base = played.first().and_then(|(_, way)| published(*way));
    let is_behind = |name: &str| behind.iter().any(|(other, _)| *other == name);
    let others = played.iter().filter(|(name, _)| *name != base && !is_behind(base));
    let low50 = |name: &str| xsk_rr_percentiles(experiment.latencies(name).slots())[1];
    let mut is_explained = false;
    let texts = others.filter_map(|(name, way)| {
        let there = published(*way)?.p50_ns / of_base?.p50_ns;
        let pair = pair(analysis, &P50, name, base).filter(|_| !is_behind(name));
        let is_slower = is_behind(name) || pair.as_ref()?.verdict == ContrastVerdict::Worse;
        let shown = visible::name(name);
        let text = match &pair {
            Some(Pair { estimate, .. }) => format!(
                "p50, {shown}: {} ({:.2} times the reference here; low50: {:.2} here, {there:.2} published)",
                side(there, estimate),
                estimate.ratio,
                low50(name) / low50(base)
            ),
            None => format!("p50, {shown}: falls behind here (low50: {there:.2} times the reference published)"),
        };
        let why = (is_slower && way.poller.is_inline() && !std::mem::replace(&mut is_explained, true))
            .then(|| format!("; {INLINE_IS_SLOWER}"));
        Some(text + &why.unwrap_or_default())
    });
    texts.collect::<Vec<_>>().into_iter()
}

const INLINE_IS_SLOWER: &str = "each poll of the program sets the queue's timer of 15 µs, which on a virtual machine exits to the \
     hypervisor, and the timer's polls take the receiver's CPU; the softirq of interrupts runs on the sender's CPU, which never \
     sleeps (published, a CPU that sleeps between packets)";

/// Durations of the receive call at the point for which they were published.
fn calls(point: &XdpPoint) -> Vec<PublishedText> {
    if (point.rate_kpps, point.delay_us) != RECEIVE_CALLS_AT {
        return Vec::new();
    }
    let Some((way, calls)) = point.receive_calls.iter().find(|(_, calls)| !calls.is_empty()) else { return Vec::new() };
    let total: u64 = RECEIVE_CALLS.iter().map(|(_, count)| count).sum();
    let slots: Vec<(u64, u32)> = calls.slots().collect();
    let last = slots.iter().map(|(ns, _)| (*ns).max(1).ilog2()).max().unwrap_or(0).min(20);
    let first = RECEIVE_CALLS.iter().map(|(ns, _)| ns.ilog2()).min().unwrap_or(0);
    let percent =
        |count: u64, of: u64| if of == 0 { ABSENT.to_owned() } else { short(100.0 * count as f64 / of as f64) };
    let row = |power: u32| {
        let here: u64 = slots
            .iter()
            .filter(|(ns, _)| {
                let at = (*ns).max(1).ilog2();
                at == power || power == first && at < first || power == last && at > last
            })
            .map(|(_, count)| u64::from(*count))
            .sum();
        let there = RECEIVE_CALLS.iter().find(|(ns, _)| ns.ilog2() == power).map_or(0, |(_, count)| *count);
        let (from, to) = (1_u64 << power, 1_u64 << (power + 1));
        vec![format!("{from} to {to} ns"), String::new(), percent(here, calls.count()), percent(there, total)]
    };
    let heading = vec!["receive call", "", "here %", "published %"];
    vec![
        Statement(format!("time in the receive call, {}; published: recvfrom of SO_BUSY_POLL", visible::name(way))),
        Table { heading, rows: (first..=last.max(first + 5)).map(row).collect() },
    ]
}

#[cfg(test)]
mod tests {
    use quell_experiment::{ContrastSet, ExperimentDesign, SliceObservation, Switchback, Treatment};
    use quell_result::experiment::EndOfExperiment;

    use std::collections::BTreeMap;

    use super::*;

    fn treatment(poller: &str) -> Treatment<XdpWay> {
        let way = serde_json::json!({ "poller": poller, "sleeps": false, "own-cpu": false });
        Treatment { name: poller.to_owned(), setting: serde_json::from_value(way).unwrap() }
    }

    /// A point at 12 Kpkt/s, at which each way has this latency in µs.
    fn point(delay_us: f64, latencies: [(&str, u64); 4], on_time: f64) -> XdpPoint {
        let [reference, others @ ..] = latencies;
        let others = others.map(|(name, _)| treatment(name)).to_vec();
        let design = ExperimentDesign {
            contrasts: ContrastSet::AllPairs,
            ..ExperimentDesign::new(treatment(reference.0), others, vec![P50], 1)
        };
        let mut switchback = Switchback::new(ExperimentDesign { budget_ms: 24 * design.block_ms(), ..design }).unwrap();
        while let Some(next) = switchback.next_slice() {
            let us = latencies.iter().find(|(name, _)| *name == next.treatment.name).unwrap().1;
            let mut latency = LatencyHistogram::new();
            latency.record_n(us * 1_000 + u64::from(next.block % 5) * 40, 1_000);
            let slice =
                SliceObservation { spent_ms: 210.0, latency: Some((&latency).into()), ..SliceObservation::default() };
            switchback.record(slice.with_metric(ON_TIME, Some(on_time))).unwrap();
        }
        let (record, _) = switchback.finish();
        let result = Some(LoadExperiment::new(record, EndOfExperiment::Interrupted));
        let receive_calls = std::collections::BTreeMap::new();
        XdpPoint { rate_kpps: 12.0, delay_us, result, receive_calls, queues: BTreeMap::new(), not_possible: None }
    }

    fn statements_of(point: &XdpPoint) -> String {
        let texts = of_point(point, &threaded_napi_rows().unwrap()).into_iter().filter_map(|text| match text {
            Statement(text) => Some(text),
            Table { .. } | Break => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    const LATENCIES: [(&str, u64); 4] =
        [("interrupts", 10), ("udp-busy-poll", 20), ("napi-thread", 20), ("io-uring", 9_000)];

    #[test]
    fn ways_are_in_order_and_those_that_fall_behind_are_named() {
        let said = statements_of(&point(78.0, LATENCIES, 1.0));
        assert!(said.contains("interrupts < udp-busy-poll × 1.99"), "{said}");
        assert!(said.contains(" ? napi-thread × 1.00"), "{said}");
        assert!(said.contains("falls behind: io-uring (processing"), "{said}");
        let agrees = "p50, udp-busy-poll: same order as published (1.99 times the reference here; low50: 2.00 here, 1.20 published)";
        assert!(said.contains(agrees), "{said}");
        assert!(
            said.contains("p50, io-uring: falls behind here (low50: 1.20 times the reference published)"),
            "{said}"
        );
        assert_eq!(said.matches(INLINE_IS_SLOWER).count(), 1, "{said}");
    }

    #[test]
    fn means_of_the_lowest_half_stand_beside_the_published_ones() {
        let tables = of_point(&point(78.0, LATENCIES, 1.0), &threaded_napi_rows().unwrap()).into_iter();
        let latencies =
            tables.filter_map(|text| if let Table { heading, rows } = text { Some((heading, rows)) } else { None });
        let (heading, rows) = latencies.take(1).collect::<Vec<_>>().remove(0);
        let column = |name: &str| heading.iter().position(|heading| *heading == name).unwrap();
        let cells = ["low50", "low50*"].map(|name| rows[0][column(name)].as_str());
        assert_eq!((rows[0][0].as_str(), cells), ("interrupts", ["10.0", "14.3"]));
    }

    #[test]
    fn no_order_follows_if_the_sender_was_late() {
        let said = statements_of(&point(78.0, LATENCIES, 0.5));
        assert!(said.contains("50.0 % of the requests were sent within 10 µs") && !said.contains("order by"), "{said}");
    }
}
