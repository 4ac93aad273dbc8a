//! The page of a report of `quell load`, and of `quell-mpi`, whose load is that of many clients.

use std::time::Duration;

use maud::html;
use quell_cli::number::{ABSENT, short};
use quell_linux::visible::counted;
use quell_load::cluster_run::{ClientRun, ClusterRun, client_name};
use quell_load::{LoadReport, LoadSpec};
use quell_mode::DeliveryMode;
use quell_result::load::LoadRun;
use quell_stats::LatencyHistogram;

use super::embed::Download;
use super::{Body, ReportError, ReportSource, parts};
use crate::draw::curves::{self, LatencyCurve};
use crate::draw::{Grid, shown};
use crate::palette::ModeStyle;

pub(crate) fn body(source: &ReportSource, run: &LoadRun, level: u8) -> Result<Body, ReportError> {
    let report = &run.report;
    let count = |number: u64, what: &str| (number > 0).then(|| counted(number, what));
    let remarks = [
        count(report.never_sent, "request")
            .map(|count| format!("{count} never sent: the server is slower than the rate")),
        count(report.unanswered, "request").map(|count| format!("{count} without a response")),
        (!report.errors.is_empty()).then(|| format!("errors: {}", report.errors)),
        report.generator_was_late.then(|| "The generator was late: the latencies are not reliable.".to_owned()),
    ];
    let remarks: Vec<String> = remarks.into_iter().flatten().collect();
    page(source, "Quell load", (&run.spec, report), &remarks, None, level)
}

pub(crate) fn of_clients(source: &ReportSource, run: &ClusterRun, level: u8) -> Result<Body, ReportError> {
    let kicker =
        format!("Quell load from {} · version {}", counted(run.clients.len(), "client"), shown(&run.quell_version));
    page(source, &kicker, (&run.spec, &run.report), &run.notes(), Some(&clients(run)), level)
}

fn clients(run: &ClusterRun) -> Grid {
    let mut grid = Grid::new(["client", "requests/s", "p50 µs", "p99 µs", "p99.9 µs", "lateness p99 µs"]);
    for ClientRun { client, report } in &run.clients {
        let name = client_name(client.rank, &client.host) + if client.measures_only { ", measures only" } else { "" };
        let latency = &report.latency;
        let us = [latency.p50(), latency.p99(), latency.p99_9(), report.lateness.p99()].map(us);
        grid.rows.push([shown(&name), short(report.qps)].into_iter().chain(us).collect());
    }
    grid
}

fn us(latency: Option<Duration>) -> String {
    latency.map_or_else(|| ABSENT.to_owned(), |latency| short(latency.as_secs_f64() * 1e6))
}

fn page(
    source: &ReportSource,
    kicker: &str,
    (spec, report): (&LoadSpec, &LoadReport),
    remarks: &[String],
    clients: Option<&Grid>,
    level: u8,
) -> Result<Body, ReportError> {
    let histograms = [("intended send", &report.latency), ("actual send", &report.latency_from_send)];
    let names = histograms.map(|(name, _)| (name, DeliveryMode::default()));
    let styles = ModeStyle::of_all(names.into_iter());
    let of =
        |((_, histogram), style): ((&str, &LatencyHistogram), &ModeStyle)| LatencyCurve::of_histogram(histogram, style);
    let curves: Vec<LatencyCurve> = histograms.into_iter().zip(&styles).filter_map(of).collect();
    let Some(chart) = curves::chart("All requests", &curves, &[]) else {
        return Err(ReportError::Empty { name: source.name.clone() });
    };
    let address = spec.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let below = level + 1;
    Ok(Body {
        title: format!("Load on {} – Quell", shown(&address)),
        kicker: kicker.to_owned(),
        content: html! {
            section.answer {
                p.question { "How fast does " (shown(&address)) " answer?" }
                (parts::heading(level, &format!("{} requests/s answered", short(report.qps))))
                p.scope {
                    (counted(report.answered_in_window, "request")) " in " (short(report.duration_ns as f64 / 1e9))
                    " s over " (counted(spec.connections, "connection")) "."
                }
                @for remark in remarks { p.warning { (shown(remark)) } }
            }
            (parts::section(below, "Latency", ABOUT, &html! {
                (parts::charts([&chart]))
                (parts::table(&quantiles(&histograms, &report.lateness), "quantiles"))
            }))
            @if let Some(clients) = clients { (parts::section(below, "Clients", "", &parts::table(clients, "clients"))) }
        },
        downloads: vec![Download::document(source)],
    })
}

const ABOUT: &str =
    "From the intended time of sending, a request that waits for its turn is late; from the actual one, it is not.";

fn quantiles(histograms: &[(&str, &LatencyHistogram)], lateness: &LatencyHistogram) -> Grid {
    let mut grid = Grid::new(["µs", "mean", "p50", "p95", "p99", "p99.9", "max"]);
    for (name, of) in histograms.iter().copied().chain([("generator’s lateness", lateness)]) {
        let values = [of.mean(), of.p50(), of.p95(), of.p99(), of.p99_9(), of.max()];
        grid.rows.push(std::iter::once(name.to_owned()).chain(values.map(us)).collect());
    }
    grid
}
