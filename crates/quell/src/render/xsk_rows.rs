//! Rows of `quell sim run --server xsk` as a table.

use quell_linux::visible;
use quell_result::simulation::{XskRow, XskSimulationRun};
use quell_sim::XskFigures;

use super::number;
use super::terminal::Terminal;
use quell_cli::table::{align_numbers, new_table, set_gap};

/// Share of the packets whose reply counts as a met rate.
const RATE_MET: f64 = 0.99;
/// Packets that are on their way at both ends of the measured time.
const ON_THE_WAY: f64 = 2.0;

/// Heading and text of a column.
type Column = (&'static str, fn(&XskRow) -> String);

const SEEN_BY_CLIENT: [Column; 7] = [
    ("period", |row| microseconds(row.period_ns)),
    ("delay", |row| microseconds(row.delay_ns)),
    ("qps", |row| number::short(row.figures.qps)),
    ("p5", |row| known(row.figures.p5_us)),
    ("p50", |row| known(row.figures.p50_us)),
    ("p95", |row| known(row.figures.p95_us)),
    ("p99", |row| known(row.figures.p99_us)),
];
const DONE_BY_HOSTS: [Column; 5] = [
    ("client", |row| number::short(row.figures.client.busy_cpus)),
    ("server", |row| number::short(row.figures.server.busy_cpus)),
    ("µs/req", |row| {
        let XskFigures { client, server, .. } = &row.figures;
        known(client.cpu_us_per_request.zip(server.cpu_us_per_request).map(|(client, server)| client + server))
    }),
    ("irq/s", |row| number::short(row.figures.client.irqs_per_s + row.figures.server.irqs_per_s)),
    ("poll/s", |row| number::short(row.figures.client.polls_per_s + row.figures.server.polls_per_s)),
];

const LEGEND: &str = "
  period  between two packets, µs  delay           client's work on a reply, µs
  qps     replies per second       p5..p99         latency since sent, µs
  µs/req  CPU time, both hosts     client, server  busy CPUs of each
  irq/s   interrupts, both hosts   poll/s          NAPI polls, both hosts
";

/// Header, table and legend; the table is split in two if the terminal is too narrow.
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
    let whole = grid(run, &[&SEEN_BY_CLIENT[..], &DONE_BY_HOSTS].concat());
    let tables = if terminal.fits(whole.lines().map(|line| line.chars().count()).max().unwrap_or(0)) {
        whole
    } else {
        let of_hosts = [&SEEN_BY_CLIENT[..2], &DONE_BY_HOSTS].concat();
        format!("{}\n\n{}", grid(run, &SEEN_BY_CLIENT), grid(run, &of_hosts))
    };
    let note =
        if rows.iter().all(|row| is_met(run, row)) { "" } else { "\n* the client or the server could not keep up\n" };
    format!("{}\n\n{tables}\n{note}{LEGEND}", terminal.fill(&header, "", ""))
}

fn grid(run: &XskSimulationRun, columns: &[Column]) -> String {
    let mut grid = new_table();
    grid.set_header(std::iter::once("mode").chain(columns.iter().map(|(heading, _)| *heading)));
    for row in &run.rows {
        let mark = if is_met(run, row) { "" } else { "*" };
        grid.add_row(std::iter::once(format!("{}{mark}", row.mode)).chain(columns.iter().map(|(_, text)| text(row))));
    }
    align_numbers(&mut grid, 1);
    set_gap(&mut grid, 2);
    grid.trim_fmt()
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
        for columns in [80, 100] {
            let text = render(&run, Terminal { columns: Some(columns), colour: false });
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert_eq!(text.matches("threaded-busy-poll").count(), 2, "{text}");
            assert!(text.contains("could not keep up"), "{text}");
        }
    }
}
