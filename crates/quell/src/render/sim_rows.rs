//! Simulated rows as a table with the columns of the published one.

use quell_linux::visible::{self, agree, counted};
use quell_report::words;
use quell_result::simulation::SimulationSetup;
use quell_sim::sweep::SweepRow;
use quell_sim::{Column, Load};

use super::number;
use super::terminal::Terminal;
use quell_cli::table::{Grid, legend};

/// Share of the offered load that counts as met, apart from random variation.
const LOAD_MET: f64 = 0.99;
/// Tolerated standard deviations of a Poisson process.
const CHANCE: f64 = 3.0;

const COLUMNS: [Column; 12] = [
    Column::Qps,
    Column::Mean,
    Column::P50,
    Column::P95,
    Column::P99,
    Column::Cpu,
    Column::Softirq,
    Column::Cycles,
    Column::Irqs,
    Column::PollWork,
    Column::Polls,
    Column::EpollEvents,
];

const MEANINGS: [(&str, &str); 10] = [
    ("load", "requests sent per second"),
    ("qps", "requests answered per second"),
    ("mean..p99", "latency seen by the client, µs"),
    ("cpu%", "CPU utilization"),
    ("soft%", "softirq and interrupt part of cpu%"),
    ("cyc/req", "executed cycles per request"),
    ("irq/s", "device interrupts, all queues"),
    ("pkt/poll", "packets per NAPI poll"),
    ("poll/s", "polls of one queue, some others"),
    ("ev/wait", "events that epoll_wait returned"),
];

/// What to do with the figures.
const NEXT: &str = "These are figures of the modelled host. To measure a mode on your server:
  quell bench --pid PID --modes base,MODE
";

/// Header and table with a line for each row.
#[must_use]
pub(crate) fn render(setup: &SimulationSetup, rows: &[SweepRow], terminal: Terminal) -> String {
    of_groups(setup, rows, &rows.chunks(1).collect::<Vec<_>>(), terminal)
}

/// Header and table with a line for each mode and load: medians over the seeds, p95 and p99 as ranges.
#[must_use]
pub(crate) fn summary(setup: &SimulationSetup, rows: &[SweepRow], terminal: Terminal) -> String {
    let groups: Vec<&[SweepRow]> =
        rows.chunk_by(|one, other| (one.mode, one.load) == (other.mode, other.load)).collect();
    of_groups(setup, rows, &groups, terminal)
}

fn of_groups(setup: &SimulationSetup, rows: &[SweepRow], groups: &[&[SweepRow]], terminal: Terminal) -> String {
    let header = terminal.fill(&header(setup, rows, groups), "", "");
    let poller = words::pollers_share_cpus(setup, rows);
    let poller = poller.map_or_else(String::new, |why| format!("\n{}\n", terminal.fill(&why, "", "")));
    format!(
        "{header}\n\n{}{}{poller}\n{}\n{}",
        grid(setup, groups, terminal),
        terminal.wrap(&notes(setup, rows)),
        legend(&MEANINGS, terminal),
        terminal.wrap(NEXT)
    )
}

fn header(setup: &SimulationSetup, rows: &[SweepRow], groups: &[&[SweepRow]]) -> String {
    let SimulationSetup { host, connections, warm_up_ns, measured_ns, .. } = setup;
    let ms = |ns: &u64| *ns as f64 / 1e6;
    let seed = match (rows.first(), rows.last()) {
        (Some(first), _) if one_seed(rows) => format!(", seed {}", first.seed),
        (Some(first), Some(last)) if groups.iter().any(|group| group.len() > 1) => {
            format!("; seeds {}–{}: medians, p95 and p99 as ranges (--seeds N prints each)", first.seed, last.seed)
        }
        _ => String::new(),
    };
    format!(
        "model of {}: {}, {}; {} ms after {} ms of warm-up{}",
        visible::name(host),
        shape(setup),
        counted(*connections, "connection"),
        number::plain(ms(measured_ns)),
        number::plain(ms(warm_up_ns)),
        seed,
    )
}

fn shape(setup: &SimulationSetup) -> String {
    let queues = setup.queues;
    match (queues, setup.irqs_apart) {
        (1, false) => "1 queue, worker and CPU".to_owned(),
        (1, true) => {
            "1 queue and worker, 2 CPUs (1 for the queue's interrupt, NAPI thread or polling thread)".to_owned()
        }
        (_, false) => format!("{queues} queues, workers and CPUs"),
        (_, true) => format!(
            "{queues} queues and workers, {} CPUs ({queues} for the queues' interrupts, NAPI threads or polling threads)",
            queues.saturating_mul(2)
        ),
    }
}

fn one_seed(rows: &[SweepRow]) -> bool {
    rows.windows(2).all(|pair| pair[0].seed == pair[1].seed)
}

fn grid(setup: &SimulationSetup, groups: &[&[SweepRow]], terminal: Terminal) -> String {
    let seeds = groups.iter().all(|group| group.len() == 1) && !one_seed(&groups.concat());
    let headings = COLUMNS.iter().map(|column| column.short_heading());
    let head = ["mode", "load"].into_iter().chain(seeds.then_some("seed")).chain(headings);
    // The load is a number that names a row.
    let mut grid = Grid::new(head, if seeds { 3 } else { 2 }).with_numbers(1..usize::MAX).with_gap(2);
    for group in groups {
        let Some(row) = group.iter().find(|row| !is_met(setup, row)).or(group.first()) else { continue };
        let figures = COLUMNS.iter().map(|column| cell(column, group));
        let seed = seeds.then(|| row.seed.to_string());
        grid.push([row.mode.to_string(), load(setup, row)].into_iter().chain(seed).chain(figures));
    }
    grid.render(terminal)
}

/// Median over seeds, or the range of a tail.
fn cell(column: &Column, group: &[SweepRow]) -> String {
    // A run without a request has no latency.
    let is_latency = matches!(column, Column::Mean | Column::P50 | Column::P95 | Column::P99);
    let with_values = group.iter().filter(|row| !is_latency || row.figures.qps > 0.0);
    let mut values: Vec<f64> = with_values.map(|row| column.of(&row.figures)).collect();
    values.sort_by(f64::total_cmp);
    match (column, &values[..]) {
        (Column::P95 | Column::P99, [low, .., high]) => format!("{}–{}", number::short(*low), number::short(*high)),
        (_, values) => number::short(values.get(values.len() / 2).copied().unwrap_or(f64::NAN)),
    }
}

/// The load, marked with `*` if it was not met.
fn load(setup: &SimulationSetup, row: &SweepRow) -> String {
    let mark = if is_met(setup, row) { "" } else { "*" };
    match row.load {
        Load::Qps(qps) if qps >= 1000.0 => format!("{}K{mark}", number::plain(three_digits(qps / 1000.0))),
        load => format!("{load}{mark}"),
    }
}

/// Rounds to three digits: loads given as percentages have many.
fn three_digits(thousands: f64) -> f64 {
    match thousands {
        small if small < 10.0 => (small * 100.0).round() / 100.0,
        medium if medium < 100.0 => (medium * 10.0).round() / 10.0,
        large => large.round(),
    }
}

fn is_met(setup: &SimulationSetup, row: &SweepRow) -> bool {
    match row.load {
        Load::Max => true,
        Load::Qps(qps) => {
            let seconds = setup.measured_ns as f64 / 1e9;
            row.figures.qps >= LOAD_MET * qps - CHANCE * (qps / seconds).sqrt()
        }
    }
}

fn notes(setup: &SimulationSetup, rows: &[SweepRow]) -> String {
    let mut notes = String::new();
    if rows.iter().any(|row| row.figures.qps == 0.0) {
        notes.push_str("\na run without a request in the measured time has no latency: --seconds takes a longer one\n");
    }
    if !rows.iter().all(|row| is_met(setup, row)) {
        notes.push_str("\n* the server could not keep up; the latency is that of a closed loop\n");
    }
    let drops: u64 = rows.iter().map(|row| row.drops).sum();
    if drops > 0 {
        notes.push_str(&format!(
            "\n{} {} dropped by a full ring and retransmitted after 200 ms\n",
            counted(drops, "packet"),
            agree(&drops, "was", "were")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_sim::sweep::Setup;
    use quell_sim::{Figures, HostProfile};

    fn setup() -> SimulationSetup {
        (&Setup::new(HostProfile::shipped("epyc7662-cx5").unwrap())).into()
    }

    fn row(load: Load, qps: f64, seed: u64) -> SweepRow {
        let figures = Figures {
            qps,
            mean_us: 12_345.6,
            p50_us: 12_345.6,
            p95_us: 12_345.6,
            p99_us: f64::NAN,
            cpu_pct: 99.9,
            softirq_pct: 99.9,
            cycles_per_query: 123_456.0,
            irqs_per_s: 154_321.0,
            poll_work: 20.1,
            polls_per_s: 123_456.0,
            empty_polls_pct: 0.0,
            epoll_events: 482.1,
        };
        let (mode, host, digest) = ("suspend200".parse().unwrap(), "epyc7662-cx5".to_owned(), String::new());
        SweepRow { mode, load, host, queues: 8, cpus: 8, connections: 4480, seed, figures, drops: 0, digest }
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn the_table_fits_120_columns_and_in_parts_60_and_80() {
        let rows = [row(Load::Max, 1_234_567.0, 1), row(Load::Qps(987_654.0), 987_654.0, 1)];
        let unlimited = render(&setup(), &rows, Terminal::PIPE);
        let narrow = |columns| render(&setup(), &rows, Terminal::of_columns(columns));
        let table = |text: &str| text.lines().filter(|line| line.starts_with("suspend")).collect::<Vec<_>>().join("\n");
        assert!(widest(&table(&unlimited)) <= 120, "{unlimited}");
        for columns in [60, 80] {
            assert!(widest(&narrow(columns)) <= columns, "{}", narrow(columns));
        }
    }

    #[test]
    fn the_header_counts_all_cpus() {
        let apart = SimulationSetup { irqs_apart: true, ..setup() };
        let rows = [row(Load::Max, 1e6, 1)];
        assert!(header(&setup(), &rows, &[&rows]).contains("8 queues, workers and CPUs,"));
        assert!(header(&apart, &rows, &[&rows]).contains("8 queues and workers, 16 CPUs (8 for"));
        assert!(header(&SimulationSetup { queues: 1, ..apart.clone() }, &rows, &[&rows]).contains("2 CPUs (1 for"));
    }

    #[test]
    fn a_missed_load_is_marked() {
        let setup = setup();
        let shown = |qps| load(&setup, &row(Load::Qps(100e3), qps, 1));
        assert_eq!([shown(100e3), shown(97e3), shown(90e3)], ["100K", "100K", "100K*"]);
        assert!(notes(&setup, &[row(Load::Qps(100e3), 90e3, 1)]).contains("closed loop"));
    }

    #[test]
    fn a_polling_thread_on_the_cpu_of_a_worker_is_said_to_need_its_own() {
        let terminal = Terminal::PIPE;
        let said = |mode: &str, irqs_apart| {
            let row = SweepRow { mode: mode.parse().unwrap(), ..row(Load::Qps(50e3), 50e3, 1) };
            render(&SimulationSetup { irqs_apart, ..setup() }, &[row], terminal)
                .contains("userbusy: each polling thread shares")
        };
        assert_eq!([said("userbusy", false), said("userbusy", true), said("base", false)], [true, false, false]);
    }

    #[test]
    fn several_seeds_get_a_column() {
        let (one, two) = (row(Load::Max, 1e6, 1), row(Load::Max, 1e6, 2));
        let rows = [one, two];
        let terminal = Terminal::PIPE;
        assert!(!grid(&setup(), &[&rows[..1]], terminal).contains("seed"));
        assert!(grid(&setup(), &[&rows[..1], &rows[1..]], terminal).contains("seed"));
    }

    #[test]
    fn a_summary_has_medians_and_the_range_of_the_tail() {
        let seeded = |seed, qps, p99_us| {
            let mut row = row(Load::Qps(100e3), qps, seed);
            row.figures.p99_us = p99_us;
            row
        };
        let rows = [seeded(1, 100e3, 755.0), seeded(2, 101e3, 180.0), seeded(3, 99.9e3, 210.0)];
        let text = summary(&setup(), &rows, Terminal::PIPE);
        assert!(text.contains("; seeds 1–3: medians") && text.contains("  100,000  "), "{text}");
        assert!(text.contains("  180–755  "), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("suspend200")).count(), 1, "{text}");
    }
}
