//! Rows of `quell sim run --server xsk` as a table.

use quell_linux::visible;
use quell_result::simulation::{XskRow, XskSimulationRun};
use quell_sim::XskFigures;

use super::number;
use super::terminal::Terminal;
use quell_cli::table::{Grid, legend};

/// Share of the packets whose reply counts as a met rate.
const RATE_MET: f64 = 0.99;
/// Packets that are on their way at both ends of the measured time.
const ON_THE_WAY: f64 = 2.0;

/// Heading and text of a column.
type Column = (&'static str, fn(&XskRow) -> String);

const COLUMNS: [Column; 12] = [
    ("period", |row| microseconds(row.period_ns)),
    ("delay", |row| microseconds(row.delay_ns)),
    ("qps", |row| number::short(row.figures.qps)),
    ("p5", |row| known(row.figures.p5_us)),
    ("p50", |row| known(row.figures.p50_us)),
    ("p95", |row| known(row.figures.p95_us)),
    ("p99", |row| known(row.figures.p99_us)),
    ("client", |row| number::short(row.figures.client.busy_cpus)),
    ("server", |row| number::short(row.figures.server.busy_cpus)),
    ("µs/req", |row| {
        let XskFigures { client, server, .. } = &row.figures;
        known(client.cpu_us_per_request.zip(server.cpu_us_per_request).map(|(client, server)| client + server))
    }),
    ("irq/s", |row| number::short(row.figures.client.irqs_per_s + row.figures.server.irqs_per_s)),
    ("poll/s", |row| number::short(row.figures.client.polls_per_s + row.figures.server.polls_per_s)),
];

const MEANINGS: [(&str, &str); 8] = [
    ("period", "between two packets, µs"),
    ("delay", "client's work on a reply, µs"),
    ("qps", "replies per second"),
    ("p5..p99", "latency since sent, µs"),
    ("client, server", "busy CPUs of each"),
    ("µs/req", "CPU time, both hosts"),
    ("irq/s", "interrupts, both hosts"),
    ("poll/s", "NAPI polls, both hosts"),
];

/// What to do with the figures.
const NEXT: &str = "These are figures of the modelled hosts. To measure who polls best on this machine:
  quell bench --experiment c
";

/// Header, table and legend.
#[must_use]
pub(crate) fn render(run: &XskSimulationRun, terminal: Terminal) -> String {
    let XskSimulationRun { host, warm_up_ns, measured_ns, rows, .. } = run;
    let ms = |ns: &u64| number::plain(*ns as f64 / 1e6);
    let header = format!(
        "model of {}: a client and a server with AF_XDP sockets, one queue each, a CPU for each thread and interrupt; \
         {} ms after {} ms of warm-up",
        visible::name(host),
        ms(measured_ns),
        ms(warm_up_ns),
    );
    let note =
        if rows.iter().all(|row| is_met(run, row)) { "" } else { "\n* the client or the server could not keep up\n" };
    format!(
        "{}\n\n{}{}\n{}\n{}",
        terminal.fill(&header, "", ""),
        grid(run, terminal),
        terminal.wrap(note),
        legend(&MEANINGS, terminal),
        terminal.wrap(NEXT)
    )
}

fn grid(run: &XskSimulationRun, terminal: Terminal) -> String {
    let head = std::iter::once("mode").chain(COLUMNS.iter().map(|(heading, _)| *heading));
    // Period and delay are numbers that name a row.
    let mut grid = Grid::new(head, 3).with_numbers(1..usize::MAX).with_gap(2);
    for row in &run.rows {
        let mark = if is_met(run, row) { "" } else { "*" };
        grid.push(std::iter::once(format!("{}{mark}", row.mode)).chain(COLUMNS.iter().map(|(_, text)| text(row))));
    }
    grid.render(terminal)
}

fn microseconds(ns: u64) -> String {
    number::plain(ns as f64 / 1e3)
}

fn known(value: Option<f64>) -> String {
    number::short(value.unwrap_or(f64::NAN))
}

fn is_met(run: &XskSimulationRun, row: &XskRow) -> bool {
    let due = run.measured_ns as f64 / row.period_ns as f64;
    row.figures.qps * run.measured_ns as f64 / 1e9 >= RATE_MET * due - ON_THE_WAY
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_sim::{HostProfile, XskPolling, XskRoundTrips};

    #[test]
    fn a_wide_table_is_split_and_a_missed_rate_is_marked() {
        let host = HostProfile::shipped("af-xdp-2025").unwrap();
        let (period_ns, delay_ns, measured_ns) = (500, 0, 1_000_000);
        let rows = XskPolling::ALL.map(|mode| {
            let run = XskRoundTrips {
                host: host.clone(),
                polling: mode,
                period_ns: period_ns as f64,
                delay_ns,
                warm_up_ns: 0,
                measured_ns,
            };
            XskRow { mode, period_ns, delay_ns, figures: run.simulate().unwrap().figures() }
        });
        let schema = String::new();
        let run = XskSimulationRun { schema, host: host.name, warm_up_ns: 0, measured_ns, rows: rows.to_vec() };
        for columns in [60, 80] {
            let text = render(&run, Terminal::of_columns(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(text.matches("threaded-busy-poll").count() >= 2, "{text}");
            assert!(text.contains("could not keep up"), "{text}");
        }
    }
}
