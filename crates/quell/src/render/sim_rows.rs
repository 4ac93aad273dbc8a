//! Simulated rows as a table, in the columns of the published one.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quell_sim::published::{Column, Load};
use quell_sim::sweep::{Row, Setup};

use super::number;
use super::terminal::Terminal;

/// A throughput this near the offered load is the offered load.
const LOAD_MET: f64 = 0.99;

const SEEN_BY_CLIENT: &[Column] =
    &[Column::Qps, Column::Mean, Column::P50, Column::P95, Column::P99, Column::Cpu, Column::Softirq, Column::Cycles];
const DONE_BY_KERNEL: &[Column] = &[Column::Irqs, Column::PollWork, Column::Polls, Column::EpollEvents];

/// What was simulated on what, and the table; in two parts where the terminal is too narrow for one.
#[must_use]
pub(crate) fn render(setup: &Setup, rows: &[Row], terminal: Terminal) -> String {
    let all = [SEEN_BY_CLIENT, DONE_BY_KERNEL].concat();
    let whole = grid(rows, &all);
    let widest = whole.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let tables = if terminal.fits(widest) {
        whole
    } else {
        format!("{}\n\n{}", grid(rows, SEEN_BY_CLIENT), grid(rows, DONE_BY_KERNEL))
    };
    format!("{}\n{tables}\n{}", header(setup, rows), notes(rows))
}

fn header(setup: &Setup, rows: &[Row]) -> String {
    let Setup { host, queues, connections, warm_up_ns, measured_ns } = setup;
    let ms = |ns: &u64| *ns as f64 / 1e6;
    let seed = if one_seed(rows) { rows.first().map(|row| format!(", seed {}", row.seed)) } else { None };
    format!(
        "model of {}: {queues} queues, workers and CPUs, {} connections; {} ms after a warm-up of {} ms{}\n",
        host.name,
        number::short(*connections as f64),
        ms(measured_ns),
        ms(warm_up_ns),
        seed.unwrap_or_default(),
    )
}

fn one_seed(rows: &[Row]) -> bool {
    rows.windows(2).all(|pair| pair[0].seed == pair[1].seed)
}

fn grid(rows: &[Row], columns: &[Column]) -> String {
    let mut grid = Table::new();
    grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let seeds = !one_seed(rows);
    let headings = columns.iter().map(|column| column.heading());
    grid.set_header(["mode", "load"].into_iter().chain(seeds.then_some("seed")).chain(headings));
    for row in rows {
        let figures = columns.iter().map(|column| number::short(column.of(&row.figures)));
        let seed = seeds.then(|| row.seed.to_string());
        grid.add_row([row.mode.to_string(), load(row)].into_iter().chain(seed).chain(figures));
    }
    for (index, column) in grid.column_iter_mut().enumerate() {
        let left = index == 0;
        column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding(if left { (0, 0) } else { (2, 0) });
    }
    grid.trim_fmt()
}

/// The load, marked when it was not met.
fn load(row: &Row) -> String {
    let mark = if is_met(row) { "" } else { "*" };
    match row.load {
        Load::Qps(qps) if qps >= 1000.0 => format!("{}K{mark}", number::plain(qps / 1000.0)),
        load => format!("{load}{mark}"),
    }
}

fn is_met(row: &Row) -> bool {
    match row.load {
        Load::Max => true,
        Load::Qps(qps) => row.figures.qps >= LOAD_MET * qps,
    }
}

fn notes(rows: &[Row]) -> String {
    let mut notes = String::new();
    if rows.iter().any(|row| !is_met(row)) {
        notes.push_str("\n* more was asked than the server could do: the latency is that of a closed loop\n");
    }
    let drops: u64 = rows.iter().map(|row| row.drops).sum();
    if drops > 0 {
        notes.push_str(&format!("\n{drops} packets found no place in a ring and were sent again after 200 ms\n"));
    }
    notes
}
