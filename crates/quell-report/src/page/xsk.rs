//! The page of rows of `quell sim run --server xsk`.

use maud::html;
use quell_cli::number::{plain, short};
use quell_mode::DeliveryMode;
use quell_result::simulation::{XskRow, XskSimulationRun};
use quell_sim::XskPolling;

use super::embed::Download;
use super::{Body, ReportError, ReportSource, parts};
use crate::draw::loads::{self, Bar, BarChart, cell};
use crate::draw::{Chart, Grid, shown};
use crate::palette::ModeStyle;

/// Quantity that is drawn: name, what it is, unit, value.
type Drawn = (&'static str, &'static str, &'static str, fn(&XskRow) -> Option<f64>);

const DRAWN: [Drawn; 3] = [
    ("p50", "latency since sent", "µs", |row| row.figures.p50_us),
    ("p99", "latency since sent", "µs", |row| row.figures.p99_us),
    ("CPU time per request", "of both hosts", "µs", cpu_us),
];

pub(crate) fn body(source: &ReportSource, run: &XskSimulationRun, level: u8) -> Result<Body, ReportError> {
    if run.rows.is_empty() {
        return Err(ReportError::Empty { name: source.name.clone() });
    }
    let names: Vec<(String, DeliveryMode)> =
        run.rows.iter().map(|row| (row.mode.to_string(), like(row.mode))).collect();
    let styles = ModeStyle::of_all(names.iter().map(|(name, mode)| (name.as_str(), *mode)));
    let charts: Vec<Chart> = DRAWN.iter().filter_map(|drawn| chart(&run.rows, &styles, drawn)).collect();
    let below = level + 1;
    Ok(Body {
        title: format!("Model of {} – Quell", shown(&run.host)),
        kicker: "Quell sim run --server xsk · times are virtual".to_owned(),
        content: html! {
            section.answer {
                p.question { "What does the model expect of AF_XDP sockets?" }
                (parts::heading(level, &format!("Model of {}", shown(&run.host))))
                p.scope {
                    "A client and a server with AF_XDP sockets, one queue each; "
                    (short(run.measured_ns as f64 / 1e6)) " ms after " (short(run.warm_up_ns as f64 / 1e6))
                    " ms of warm-up. Nothing was measured."
                }
            }
            @if !charts.is_empty() { (parts::section(below, "Latency and cost", ABOUT, &parts::charts(&charts))) }
            (parts::section(below, "All rows", "", &parts::table(&table(&run.rows), "rows")))
        },
        downloads: vec![Download::document(source)],
    })
}

const ABOUT: &str = "Each way to poll at each rate: the time between two packets of the client, and, after the slash, the \
                     time for which it works on a reply.";

/// A mode whose poller is the same: it has the colour.
fn like(way: XskPolling) -> DeliveryMode {
    let name = match way {
        XskPolling::Interrupts => "base",
        XskPolling::BusyPoll => "napibusy",
        XskPolling::BusyPollThread => "userbusy",
        XskPolling::ThreadedBusyPoll => "threadedbusy",
    };
    name.parse().unwrap_or_default()
}

fn cpu_us(row: &XskRow) -> Option<f64> {
    let (client, server) = (&row.figures.client, &row.figures.server);
    Some(client.cpu_us_per_request? + server.cpu_us_per_request?)
}

fn us(ns: u64) -> String {
    plain(ns as f64 / 1e3)
}

fn chart(rows: &[XskRow], styles: &[ModeStyle], (name, about, unit, value): &Drawn) -> Option<Chart> {
    let mut groups: Vec<(String, Vec<Bar<'_>>)> = Vec::new();
    for row in rows {
        let style = styles.iter().find(|style| style.name == row.mode.to_string());
        let Some((style, value)) = style.zip(value(row).filter(|value| value.is_finite())) else { continue };
        let rate = match row.delay_ns {
            0 => format!("{} µs", us(row.period_ns)),
            delay_ns => format!("{}/{} µs", us(row.period_ns), us(delay_ns)),
        };
        match groups.iter_mut().find(|(other, _)| *other == rate) {
            Some((_, bars)) => bars.push((style, [value; 3])),
            None => groups.push((rate, vec![(style, [value; 3])])),
        }
    }
    loads::bars(&BarChart { title: name, about, unit, spread: None }, &groups)
}

fn table(rows: &[XskRow]) -> Grid {
    let mut grid = Grid::new([
        "way to poll",
        "period µs",
        "delay µs",
        "replies/s",
        "p5 µs",
        "p50 µs",
        "p95 µs",
        "p99 µs",
        "CPU µs/request",
        "irqs/s",
        "polls/s",
        "lost packets",
    ]);
    for row in rows {
        let figures = &row.figures;
        let (client, server) = (&figures.client, &figures.server);
        let numbers = [
            Some(figures.qps),
            figures.p5_us,
            figures.p50_us,
            figures.p95_us,
            figures.p99_us,
            cpu_us(row),
            Some(client.irqs_per_s + server.irqs_per_s),
            Some(client.polls_per_s + server.polls_per_s),
            Some(figures.drops as f64),
        ];
        let fixed = [row.mode.to_string(), us(row.period_ns), us(row.delay_ns)];
        grid.rows.push(fixed.into_iter().chain(numbers.map(cell)).collect());
    }
    grid
}
