//! The table of a bench run: for each load what the client saw and what it cost, then what the kernel did for it. Every
//! cell is the median over the repeats and half of their range.

use std::collections::BTreeMap;

use comfy_table::presets;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use quell_bench::metric::Metric;
use quell_bench::offered_load::OfferedLoad;
use quell_bench::result::{BenchResult, Disturbance, Lab, LabFacts, SimFacts, Trial};
use quell_bench::table::{LoadTable, Row};
use quell_load::Engine;

use super::number::{self, ABSENT};

const SEEN_BY_CLIENT: &[Metric] = &[
    Metric::Qps,
    Metric::Mean,
    Metric::P50,
    Metric::P95,
    Metric::P99,
    Metric::P999,
    Metric::CpuPerRequest,
    Metric::ServerCpu,
];

/// How wide prose is set above tables that are wider.
const PROSE_COLUMNS: usize = 120;

/// The same on the model, which has interrupts, and neither a generator that is late nor anything that disturbs.
const DONE_BY_MODEL: &[Metric] = &[
    Metric::Interrupts,
    Metric::Polls,
    Metric::EmptyPolls,
    Metric::BusyPolled,
    Metric::EventsPerWait,
    Metric::Unsent,
    Metric::Drops,
];

const DONE_BY_KERNEL: &[Metric] = &[
    Metric::NapiWakeups,
    Metric::Polls,
    Metric::EmptyPolls,
    Metric::BusyPolled,
    Metric::EventsPerWait,
    Metric::Unsent,
    Metric::Drops,
    Metric::Lateness,
    Metric::ForeignOnServer,
    Metric::ForeignOnClient,
];

/// What was measured on what, all tables, notes to single modes, the legend of the columns.
#[must_use]
pub(crate) fn render(result: &BenchResult) -> String {
    let (done, legend) = match result.lab {
        Lab::Veth(_) => (DONE_BY_KERNEL, [LEGEND, LEGEND_OF_LAB, LEGEND_OF_FINDINGS]),
        Lab::Sim(_) => (DONE_BY_MODEL, [LEGEND_OF_MODEL, LEGEND_OF_INTERRUPTS, LEGEND_OF_FINDINGS]),
    };
    let mut out = header(result);
    for table in result.tables() {
        out.push_str(&format!("\n{}", render_load(&table, done)));
    }
    out.push('\n');
    out.push_str(&notes(result));
    out.extend(legend);
    out
}

fn header(result: &BenchResult) -> String {
    let mut out = String::new();
    if let Some(why) = &result.not_a_measurement {
        out.push_str(&format!("NOT A MEASUREMENT: {why}\n"));
    }
    out.push_str(&match &result.lab {
        Lab::Veth(lab) => of_lab(result, lab),
        Lab::Sim(sim) => of_model(result, sim),
    });
    out
}

fn of_lab(result: &BenchResult, lab: &LabFacts) -> String {
    let (host, plan) = (&result.host, &result.plan);
    let cpu = host.cpu_model.as_deref().unwrap_or("unknown processor");
    let stand_in =
        if lab.interrupt_stand_in { "NAPI threads stand in for interrupts" } else { "no interrupt stand-in" };
    let command = result.server.as_ref().and_then(|server| server.version.as_ref().or(server.command.first()));
    let server = command.map_or("unknown", String::as_str);
    let connections = result.load.as_ref().map_or(0, |load| load.connections);
    let mut out = format!("Linux {} on {cpu}, {} CPUs\n", host.kernel_release, host.cpus.len());
    out.push_str(&format!(
        "veth lab, {} queue(s), {stand_in}; server {server} on CPU {}, generator on CPU {}, {connections} connections\n",
        lab.queues,
        list(&lab.cpus.server),
        list(&lab.cpus.client),
    ));
    if lab.shared_core == Some(true) {
        out.push_str("server and client run on hardware threads of one core: each slows the other\n");
    }
    out.push_str(&format!(
        "{} trials of {} ms in {} interleaved repeats, seed {}{}\n",
        result.trials.len(),
        plan.measure_ms,
        plan.repeats,
        plan.seed,
        engine(result),
    ));
    out
}

fn of_model(result: &BenchResult, sim: &SimFacts) -> String {
    let plan = &result.plan;
    let (queues, connections) = (sim.queues as usize, sim.connections as usize);
    let host = textwrap::fill(&format!("model of {}: {}", sim.profile, sim.description), PROSE_COLUMNS);
    format!(
        "{host}\n\
         an epoll server of memcached's shape, {} queue(s), workers and CPUs, {} connections\n\
         {} runs of {} ms of virtual time, each with a seed of its own, {} seeds a cell, from {} on\n",
        number::count(queues),
        number::count(connections),
        result.trials.len(),
        plan.measure_ms,
        plan.repeats,
        plan.seed,
    )
}

fn engine(result: &BenchResult) -> &'static str {
    match result.trials.first().and_then(|trial| trial.load.engines.first()).map(|used| used.engine) {
        Some(Engine::BusyPoll) => "; the generator busy-polls its own queue",
        Some(Engine::Epoll) => "; the generator waits by epoll",
        None => "",
    }
}

fn list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn notes(result: &BenchResult) -> String {
    let noted = result.plan.modes.iter().filter_map(|entry| Some((&entry.label, entry.note.as_ref()?)));
    let noted = noted.map(|(label, note)| format!("{label} differs here: {note}.\n"));
    let refused = result.refused.iter().map(|(label, reason)| format!("{label} cannot be set here: {reason}\n"));
    let notes: String = noted.chain(refused).chain(disturbed(result)).collect();
    if notes.is_empty() { notes } else { format!("{notes}\n") }
}

/// How many trials that count were disturbed, and by what.
fn disturbed(result: &BenchResult) -> Option<String> {
    let counting = result.trials_that_count();
    let disturbed: Vec<&Trial> = counting.iter().copied().filter(|trial| !trial.disturbances.is_empty()).collect();
    if disturbed.is_empty() {
        return None;
    }
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for disturbance in disturbed.iter().flat_map(|trial| &trial.disturbances) {
        *kinds.entry(kind(disturbance)).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} in {count}")).collect();
    Some(format!("{} of {} trials were disturbed: {}\n", disturbed.len(), counting.len(), kinds.join(", ")))
}

fn kind(disturbance: &Disturbance) -> &'static str {
    match disturbance {
        Disturbance::ForeignOnServer { .. } => "foreign CPU on the server's side",
        Disturbance::ForeignOnClient { .. } => "foreign CPU on the client's side",
        Disturbance::GeneratorLate { .. } => "a late generator",
        Disturbance::Saturated { .. } => "a server slower than the rate",
        Disturbance::Drops { .. } => "dropped packets",
        Disturbance::Errors { .. } => "failed requests",
    }
}

const LEGEND: &str = "\
Each cell: median ± half the range over the repeats; – where it could not be had; * a repeat was disturbed.
  qps      requests answered per second           mean..p99.9  latency from the intended send time, µs
  cpu/req  run time of the server's threads and its queues' NAPI threads per request, µs
  cpu%     of the server's CPUs, not idle          ev/wait      events per successful wait of the server
";

const LEGEND_OF_LAB: &str = "\
\x20 wake/k   wake-ups of NAPI threads (the interrupts' stand-in) per 1,000 requests
  poll/k   NAPI polls per 1,000 requests           empty%       polls that found nothing
  busy%    packets received by busy polling, a lower bound
  unsent%  requests due and never sent: the server is slower than the rate, its latency means nothing
  late99   99th percentile of the generator's lateness, µs
  for-s%   for-c%  what else ran on the server's and on the client's CPUs, and steal
";

const LEGEND_OF_MODEL: &str = "\
Each cell: median ± half the range over the seeds; – where it could not be had; * packets were dropped, or unsent.
  qps      requests answered per second           mean..p99.9  latency from the intended send time, µs
  cpu/req  threads, softirqs and interrupts per request, µs
  cpu%     of the server's CPUs, not idle          ev/wait      events per successful wait of the server
";

const LEGEND_OF_INTERRUPTS: &str = "\
\x20 irq/k    device interrupts per 1,000 requests
  poll/k   NAPI polls per 1,000 requests           empty%       polls that found nothing
  busy%    packets received by busy polling, without those of the final poll
  unsent%  requests due and never sent: the server is slower than the rate, its latency means nothing
";

const LEGEND_OF_FINDINGS: &str = "\
Below, modes are compared with base pair by pair across the repeats; [A/A n %] is what base and base differed by.
";

fn render_load(table: &LoadTable, done: &[Metric]) -> String {
    let offered = match (table.load, table.offered_per_s) {
        (OfferedLoad::Max, _) => "max: closed loop, every connection sends as soon as it has its answer".to_owned(),
        (load @ OfferedLoad::Percent(_), Some(rate)) => {
            format!("{load} of what base reached just before: {} requests/s offered", number::with_spread(&rate))
        }
        (load, _) => format!("{load} requests/s offered"),
    };
    let seen = grid(&table.rows, SEEN_BY_CLIENT);
    let done = grid(&table.rows, done);
    format!("{offered}\n\n{seen}\n\n{done}\n")
}

/// Each figure takes two columns, so that medians stand under medians and spreads under spreads.
fn grid(rows: &[Row], figures: &[Metric]) -> String {
    let mut grid = Table::new();
    grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let headings = figures.iter().flat_map(|figure| [figure.heading(), ""]);
    grid.set_header(std::iter::once("").chain(headings));
    for row in rows {
        let mark = if row.disturbed > 0 { "*" } else { "" };
        let cells = figures.iter().flat_map(|figure| cells(row, *figure));
        grid.add_row(std::iter::once(format!("{}{mark}", row.label)).chain(cells));
    }
    for (index, column) in grid.column_iter_mut().enumerate() {
        let (alignment, padding) = match index {
            0 => (CellAlignment::Left, (0, 0)),
            median if median % 2 == 1 => (CellAlignment::Right, (2, 0)),
            _ => (CellAlignment::Left, (1, 0)),
        };
        column.set_cell_alignment(alignment);
        column.set_padding(padding);
    }
    grid.trim_fmt()
}

fn cells(row: &Row, figure: Metric) -> [String; 2] {
    let Some(spread) = row.cells.get(&figure) else { return [ABSENT.to_owned(), String::new()] };
    number::with_spread(spread).split_once(' ').map_or_else(
        || [number::short(spread.median), String::new()],
        |(median, half_range)| [median.to_owned(), half_range.to_owned()],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_stats::Spread;
    use std::collections::BTreeMap;

    fn row(label: &str, p50: Option<f64>, disturbed: usize) -> Row {
        let spread = p50.and_then(|p50| Spread::of([Some(p50), Some(p50 + 2.0)]));
        let cells: BTreeMap<_, _> = spread.map(|spread| (Metric::P50, spread)).into_iter().collect();
        Row { label: label.into(), mode: 0, cells, disturbed }
    }

    #[test]
    fn what_could_not_be_had_is_shown_as_absent_never_as_zero() {
        let table = LoadTable { load: OfferedLoad::Max, offered_per_s: None, rows: vec![row("base", None, 0)] };
        let shown = render_load(&table, DONE_BY_KERNEL);
        let line = shown.lines().find(|line| line.starts_with("base")).unwrap();
        assert_eq!(line.matches(ABSENT).count(), SEEN_BY_CLIENT.len());
        assert!(!line.contains('0'));
    }

    #[test]
    fn a_disturbed_row_is_marked() {
        let rows = vec![row("base", Some(100.0), 0), row("fullbusy", Some(50.0), 1)];
        let shown = grid(&rows, &[Metric::P50]);
        let starts: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(starts, ["p50", "base", "fullbusy*"]);
        assert!(shown.contains("101 ±1"), "{shown}");
    }

    #[test]
    fn every_table_of_five_digit_figures_fits_a_hundred_and_seventy_columns() {
        let wide = Spread::of([Some(12_345.0), Some(14_345.0)]).unwrap();
        let cells: BTreeMap<_, _> = Metric::ALL.into_iter().map(|figure| (figure, wide)).collect();
        let rows = vec![Row { label: "suspend200".into(), mode: 0, cells, disturbed: 1 }];
        for figures in [SEEN_BY_CLIENT, DONE_BY_KERNEL] {
            let widest = grid(&rows, figures).lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(170), "{widest:?}");
        }
    }
}
