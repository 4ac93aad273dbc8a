//! Text output of `quell load`.

use std::time::Duration;

use quell_cli::table::Grid;
use quell_linux::visible::counted;
use quell_load::{Engine, EngineUsed, LoadReport};
use quell_stats::LatencyHistogram;

use super::number::{ABSENT, short};
use super::terminal::Terminal;

/// Figures for a judge of an experiment: requests, requests per second, failed requests, latency quantiles in µs.
pub(crate) fn figures(report: &LoadReport) -> String {
    let errors = report.errors.failed_requests();
    let mut out =
        format!("requests {}\nrequests-per-s {:.1}\nerrors {errors}\n", report.answered_in_window, report.qps);
    for (name, latency) in [("p50-us", report.latency.p50()), ("p99-us", report.latency.p99())] {
        if let Some(latency) = latency {
            out.push_str(&format!("{name} {:.1}\n", latency.as_secs_f64() * 1e6));
        }
    }
    out
}

#[must_use]
pub(crate) fn render(report: &LoadReport, terminal: Terminal) -> String {
    let mut out = format!(
        "{} requests/s answered ({} in {:.1} s)\n\n",
        short(report.qps),
        short(count(report.answered_in_window)),
        Duration::from_nanos(report.duration_ns).as_secs_f64()
    );
    let rows = [
        ("from intended send", &report.latency),
        ("from actual send", &report.latency_from_send),
        ("generator's lateness", &report.lateness),
    ];
    out.push_str(&latencies(&rows, terminal));
    out.push('\n');
    out.extend(facts(report).iter().map(|line| terminal.fill(line, "", "  ") + "\n"));
    out
}

/// Latencies of these names, in µs.
pub(super) fn latencies(rows: &[(&str, &LatencyHistogram)], terminal: Terminal) -> String {
    let mut grid = Grid::new(["µs", "mean", "p50", "p95", "p99", "p99.9", "max"], 1).with_gap(2);
    let us =
        |value: Option<Duration>| value.map_or_else(|| ABSENT.to_owned(), |value| short(value.as_secs_f64() * 1e6));
    for (name, one) in rows {
        let values = [one.mean(), one.p50(), one.p95(), one.p99(), one.p99_9(), one.max()];
        grid.push([(*name).to_owned()].into_iter().chain(values.map(us)));
    }
    grid.render(terminal)
}

fn facts(report: &LoadReport) -> Vec<String> {
    let mut lines = Vec::new();
    if report.hits + report.misses > 0 {
        lines.push(format!("gets: {}, {}", counted(report.hits, "hit"), counted(report.misses, "miss")));
    }
    if report.waited_for_connection > 0 {
        lines.push(format!(
            "{} delayed because no connection was free",
            counted(report.waited_for_connection, "request")
        ));
    }
    if report.never_sent > 0 {
        lines.push(format!("{} never sent: the server is slower than the rate", counted(report.never_sent, "request")));
    }
    if report.unanswered > 0 {
        lines.push(format!("{} without a response", counted(report.unanswered, "request")));
    }
    lines.extend(errors(report));
    if report.generator_was_late {
        let limit = LoadReport::LATENESS_MAX.as_micros();
        lines.push(format!(
            "THE GENERATOR WAS LATE: p99 of its lateness exceeds {limit} µs; the latencies are not reliable"
        ));
    }
    if let Some(cpu) = &report.cpu {
        let share = |ns: u64| short(100.0 * count(ns) / count(report.duration_ns.max(1)));
        lines.push(format!(
            "generator CPU: {} % of one CPU (user {}, system {}), {} % waiting for a CPU",
            share(cpu.run_ns),
            share(cpu.user_ns),
            share(cpu.system_ns),
            share(cpu.wait_ns)
        ));
    }
    lines.extend(engine(&report.engines));
    lines
}

/// Answers per lost connection below which the server seems to close connections itself.
const ANSWERS_PER_CLOSED: u64 = 100;

fn errors(report: &LoadReport) -> Option<String> {
    let closes = report.errors.connections_lost * ANSWERS_PER_CLOSED > report.answered_in_window;
    let keep = if closes { "; a server that closes connections gets few requests: let it keep them alive" } else { "" };
    (!report.errors.is_empty()).then(|| format!("errors, including the warm-up: {}{keep}", report.errors))
}

fn engine(engines: &[EngineUsed]) -> Option<String> {
    let first = engines.first()?;
    let name = match first.engine {
        Engine::Epoll => "epoll",
        Engine::BusyPoll => "busy-polling receives",
    };
    let why = first.fallback_reason.as_ref().map_or_else(String::new, |why| format!(" (no busy polling: {why})"));
    Some(format!("responses received by {name}{why}"))
}

#[expect(clippy::cast_precision_loss, reason = "counts for display")]
fn count(number: u64) -> f64 {
    number as f64
}
