//! The page of a recording of `quell top`: who polled each queue over time, how long packets can have waited, what
//! changed.

use maud::{Markup, html};
use quell_cli::number::short;
use quell_linux::visible::counted;
use quell_linux::{NapiId, Pid};
use quell_result::top::{IntervalReport, ObservedProgram, ObservedQueue, TopRecording};
use quell_sampler::{QueuePoller, QueueSample};

use super::embed::Download;
use super::{Body, ReportError, ReportSource, facts, parts};
use crate::draw::over_time::{TimeAxis, TimeLine};
use crate::draw::{Chart, label, shown};
use crate::words::poller_name;
use crate::words::recording::{ends_s, name_of, name_of_program, programs, queue_totals};
use crate::words::{RecordedChange, RecordingSummary, recording_summary};

/// Number of queues, and of programs, that have charts: those with the most packets, and with the most CPU time.
const DRAWN: usize = 6;
/// Number of points of a line. Longer recordings have reports joined.
const POINTS: usize = 60;

pub(crate) fn body(source: &ReportSource, recording: &TopRecording, level: u8) -> Result<Body, ReportError> {
    if recording.reports.is_empty() {
        return Err(ReportError::Empty { name: source.name.clone() });
    }
    let summary = recording_summary(recording);
    let when = facts::utc(recording.header.started_unix_s).unwrap_or_default();
    Ok(Body {
        title: format!("{} – Quell", summary.headline),
        kicker: format!("Quell top · {when} · version {}", shown(&recording.header.quell_version)),
        content: content(recording, &summary, level),
        downloads: vec![Download::document(source)],
    })
}

fn content(recording: &TopRecording, summary: &RecordingSummary, level: u8) -> Markup {
    let below = level + 1;
    let joined = Joined::of(&recording.reports);
    let axis = TimeAxis { times_s: &joined.ends_s, changes: &summary.changes };
    let totals = queue_totals(&recording.reports);
    let drawn = totals.iter().filter(|queue| queue.packets > 0.0).take(DRAWN);
    html! {
        section.answer {
            p.question { "Who polls the queues, how long can packets wait, and what changes?" }
            (parts::heading(level, &summary.headline))
            @for statement in &summary.statements { p.lede { (facts::shown_long(statement)) } }
            @if joined.reports_each > 1 {
                p.scope {
                    "Each point of a line covers " (counted(joined.reports_each, "report"))
                    "; waits are the longest of them."
                }
            }
        }
        @if !summary.changes.is_empty() { (parts::section(below, "What changed", CHANGES, &changes(&summary.changes))) }
        @for queue in drawn {
            @let charts = queue_charts(queue.queue, &joined, &axis);
            @if !charts.is_empty() { (parts::section(below, &shown(&name_of(queue.queue)), "", &parts::charts(&charts))) }
        }
        (parts::section(below, "All queues", "", &facts::text_tables(&summary.queues)))
        @if !summary.programs.rows.is_empty() {
            (parts::section(below, "Programs", "", &html! {
                (facts::text_tables([&summary.programs]))
                (parts::charts(&program_charts(&recording.reports, &joined, &axis)))
            }))
        }
        (parts::section(below, "Settings", SETTINGS, &facts::text_tables(&summary.settings)))
        (parts::section(below, "Where", "", &parts::facts(&facts::of_host(&recording.header.host))))
    }
}

const CHANGES: &str = "Dashed lines in the charts are at these times. Changes of settings are noticed by the next snapshot of the \
                       host, which can be seconds later.";
const SETTINGS: &str = "As the kernel reported them.";

fn changes(changes: &[RecordedChange]) -> Markup {
    html! { ol.changes { @for change in changes { li { b { (short(change.at_s)) " s" } " " (facts::shown_long(&change.text)) } } } }
}

/// Reports, a few consecutive ones at each point.
struct Joined<'a> {
    reports_each: usize,
    points: Vec<&'a [IntervalReport]>,
    ends_s: Vec<f64>,
}

impl<'a> Joined<'a> {
    fn of(reports: &'a [IntervalReport]) -> Self {
        let reports_each = reports.len().div_ceil(POINTS).max(1);
        let points: Vec<_> = reports.chunks(reports_each).collect();
        let ends = ends_s(reports);
        let ends_s = ends.chunks(reports_each).filter_map(|ends| ends.last().copied()).collect();
        Self { reports_each, points, ends_s }
    }

    /// Counts per second; absent at points without a sample of the queue.
    fn rates(&self, napi: NapiId, count: impl Fn(&QueueSample) -> u64) -> Vec<Option<f64>> {
        let rate = |reports: &&[IntervalReport]| {
            let (mut sum, mut ns) = (0.0, 0.0);
            for report in *reports {
                let Some(sample) = sample_of(report, napi) else { continue };
                (sum, ns) = (sum + count(sample) as f64, ns + report.interval_ns as f64);
            }
            (ns > 0.0).then(|| sum / ns * 1e9)
        };
        self.points.iter().map(rate).collect()
    }

    /// The largest value at each point.
    fn largest(&self, value: impl Fn(&IntervalReport) -> Option<f64>) -> Vec<Option<f64>> {
        self.points.iter().map(|reports| reports.iter().filter_map(&value).reduce(f64::max)).collect()
    }
}

fn sample_of(report: &IntervalReport, napi: NapiId) -> Option<&QueueSample> {
    report.queues.iter().find(|queue| queue.napi == napi)?.sample.as_ref()
}

/// Kind of mode that makes it poll, whose colour it has.
fn accent(poller: QueuePoller) -> &'static str {
    match poller {
        QueuePoller::Interrupt => "base",
        QueuePoller::Timer => "defer",
        QueuePoller::Rescheduled => "threadedbusy",
        QueuePoller::Ksoftirqd => "eventspin",
        QueuePoller::Thread => "threaded",
        QueuePoller::Program => "suspend",
    }
}

fn queue_charts(queue: &ObservedQueue, joined: &Joined<'_>, axis: &TimeAxis<'_>) -> Vec<Chart> {
    let napi = queue.napi;
    let pollers: Vec<TimeLine> = QueuePoller::ALL
        .into_iter()
        .map(|poller| TimeLine {
            name: poller_name(poller).to_owned(),
            accent: accent(poller),
            variant: 0,
            values: joined.rates(napi, |sample| poller.polls(&sample.polls)),
        })
        .collect();
    let wait = |name: &str, variant, ns: fn(&QueueSample) -> Option<u64>| TimeLine {
        name: name.to_owned(),
        accent: "suspend",
        variant,
        values: joined.largest(|report| Some(ns(sample_of(report, napi)?)? as f64 / 1e3)),
    };
    let waits = [wait("median", 1, |sample| sample.wait.p50_ns), wait("p99", 0, |sample| sample.wait.p99_ns)];
    let packets = TimeLine {
        name: "packets".to_owned(),
        accent: "base",
        variant: 0,
        values: joined.rates(napi, |sample| sample.packets),
    };
    let charts = [
        axis.chart("Polls by who polled", "polls/s", &pollers, false),
        axis.chart("Longest wait in the ring", "µs", &waits, true),
        axis.chart("Packets", "packets/s", &[packets], false),
    ];
    charts.into_iter().flatten().collect()
}

fn program_charts(reports: &[IntervalReport], joined: &Joined<'_>, axis: &TimeAxis<'_>) -> Vec<Chart> {
    let all = programs(reports);
    let cpus = |seen: &[&ObservedProgram]| seen.iter().filter_map(|program| program.cpus).sum::<f64>();
    let mut busiest: Vec<(&Pid, &Vec<&ObservedProgram>)> = all.iter().filter(|(_, seen)| cpus(seen) > 0.0).collect();
    busiest.sort_by(|(_, one), (_, other)| cpus(other).total_cmp(&cpus(one)));
    let chart = |(pid, seen): (&Pid, &Vec<&ObservedProgram>)| {
        let of = |report: &IntervalReport| report.programs.iter().find(|program| program.pid == *pid)?.cpus;
        let last = seen.last()?;
        let values = joined.largest(of);
        let line = TimeLine { name: label(&last.name), accent: "base", variant: 0, values };
        axis.chart(&shown(&name_of_program(last)), "CPUs", &[line], false)
    };
    busiest.into_iter().take(DRAWN).filter_map(chart).collect()
}
