//! The page of rows of `quell sim run`.

use maud::html;
use quell_cli::number::{ABSENT, short};
use quell_linux::visible::counted;
use quell_mode::OfferedLoad;
use quell_published::irq_suspension_cells;
use quell_result::simulation::SimulationSetup;
use quell_sim::sweep::SweepRow;
use quell_sim::{Column, Figures};
use quell_stats::Spread;

use super::embed::Download;
use super::{Body, ReportError, ReportSource, parts};
use crate::draw::loads::{self, Bar, BarChart, LoadPoint, over_throughput};
use crate::draw::{Chart, Grid, shown};
use crate::palette::ModeStyle;
use crate::words;

/// Quantity that is drawn: column, name, what it is, unit.
type Drawn = (Column, &'static str, &'static str, &'static str);

const DRAWN: [Drawn; 4] = [
    (Column::P50, "p50", "latency", "µs"),
    (Column::P99, "p99", "latency", "µs"),
    (Column::Cpu, "CPU use", "of all CPUs", "%"),
    (Column::Cycles, "cycles per request", "executed", "cycles"),
];
/// Host whose published rows are known.
const PUBLISHED_HOST: &str = "epyc7662-cx5";

pub(crate) fn body(
    source: &ReportSource,
    setup: &SimulationSetup,
    rows: &[SweepRow],
    level: u8,
) -> Result<Body, ReportError> {
    if rows.is_empty() {
        return Err(ReportError::Empty { name: source.name.clone() });
    }
    let names: Vec<String> = rows.iter().map(|row| row.mode.to_string()).collect();
    let styles = ModeStyle::of_all(names.iter().zip(rows).map(|(name, row)| (name.as_str(), row.mode)));
    let drawn = |drawn: &Drawn| {
        let (column, name, about, unit) = drawn;
        if loads(rows).len() < 2 {
            return bars(rows, &styles, drawn);
        }
        let lines = styles.iter().map(|style| (style, points(rows, style, *column)));
        over_throughput(name, about, unit, lines.collect())
    };
    let charts: Vec<Chart> = DRAWN.iter().filter_map(drawn).collect();
    let published = published(setup, rows)?;
    let below = level + 1;
    Ok(Body {
        title: format!("Model of {} – Quell", shown(&setup.host)),
        kicker: "Quell sim run · times are virtual".to_owned(),
        content: html! {
            section.answer {
                p.question { "What does the model expect?" }
                (parts::heading(level, &format!("Model of {}", shown(&setup.host))))
                p.scope {
                    (counted(setup.queues, "queue")) ", " (counted(setup.connections, "connection")) "; "
                    (short(setup.measured_ns as f64 / 1e6)) " ms after " (short(setup.warm_up_ns as f64 / 1e6))
                    " ms of warm-up. Nothing was measured."
                }
                @if let Some(why) = words::pollers_share_cpus(setup, rows) { p.warning { (why) "." } }
                @let answers = answers(rows, &styles);
                @match &answers[..] {
                    [] => {},
                    [answer] => p.lede { (answer) },
                    _ => ul { @for answer in &answers { li { (answer) } } },
                }
            }
            @let name = if loads(rows).len() > 1 { "Over the loads" } else { "Latency and cost" };
            @if !charts.is_empty() { (parts::section(below, name, "", &parts::charts(&charts))) }
            @if let Some(published) = published {
                (parts::section(below, "Beside the published figures", PUBLISHED, &parts::table(&published, "published figures")))
            }
            (parts::section(below, "All rows", "", &parts::table(&table(rows), "rows")))
        },
        downloads: vec![Download::document(source)],
    })
}

const PUBLISHED: &str = "Rows of the model at loads that were published for this host.";

/// Rows by mode and load, in the order of the loads' first appearance.
fn loads(rows: &[SweepRow]) -> Vec<String> {
    let mut loads: Vec<String> = Vec::new();
    for load in rows.iter().map(|row| row.load.to_string()) {
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads
}

/// Figures of a mode at a load, for each seed.
fn figures(rows: &[SweepRow], mode: &str, load: &str) -> Vec<Figures> {
    let is_row = |row: &&SweepRow| row.mode.to_string() == mode && row.load.to_string() == load;
    rows.iter().filter(is_row).map(|row| row.figures).collect()
}

/// The median over the seeds at each load.
fn points(rows: &[SweepRow], style: &ModeStyle, column: Column) -> Vec<LoadPoint> {
    let point = |load: String| {
        let median = Figures::median(&figures(rows, &style.name, &load))?;
        Some(LoadPoint { load, per_s: median.qps, value: column.of(&median) })
    };
    loads(rows).into_iter().filter_map(point).collect()
}

/// Bars at the only load. `None` without values.
fn bars(rows: &[SweepRow], styles: &[ModeStyle], (column, name, about, unit): &Drawn) -> Option<Chart> {
    let load = loads(rows).pop()?;
    let bars = styles.iter().filter_map(|style| {
        let runs = figures(rows, &style.name, &load);
        let spread = Spread::of(runs.iter().map(|run| Some(column.of(run))))?;
        Some((style, [spread.min, spread.median, spread.max]))
    });
    let of_load: (String, Vec<Bar<'_>>) = (load.clone(), bars.collect());
    let seeds = rows.iter().any(|row| row.seed != rows[0].seed);
    loads::bars(&BarChart { title: name, about, unit, spread: seeds.then_some("range of the seeds") }, &[of_load])
}

/// Which modes are best at each load.
fn answers(rows: &[SweepRow], styles: &[ModeStyle]) -> Vec<String> {
    if styles.len() < 2 {
        return Vec::new();
    }
    let at = |load: String| {
        let name = if load == "max" { "In a closed loop".to_owned() } else { format!("At {load} requests/s") };
        let best = |(column, name, _, unit): &Drawn| {
            let medians = styles.iter().filter_map(|style| {
                let value = column.of(&Figures::median(&figures(rows, &style.name, &load))?);
                value.is_finite().then_some((&style.name, value))
            });
            let (mode, value) = medians.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
            Some(format!("lowest {name}: {mode} ({} {unit})", short(value)))
        };
        format!("{name}: {}.", DRAWN.iter().filter_map(best).collect::<Vec<_>>().join("; "))
    };
    loads(rows).into_iter().map(at).collect()
}

fn table(rows: &[SweepRow]) -> Grid {
    let columns = Column::ALL.map(|column| column.heading().replace(" us", " µs"));
    let mut grid = Grid::new(["mode", "load", "seed"].map(str::to_owned).into_iter().chain(columns));
    for row in rows {
        let fixed = [row.mode.to_string(), row.load.to_string(), row.seed.to_string()];
        grid.rows.push(fixed.into_iter().chain(Column::ALL.map(|column| short(column.of(&row.figures)))).collect());
    }
    grid
}

/// Rows with their published counterparts. `None` if nothing was published for the host.
fn published(setup: &SimulationSetup, rows: &[SweepRow]) -> Result<Option<Grid>, ReportError> {
    if setup.host != PUBLISHED_HOST {
        return Ok(None);
    }
    let cells = irq_suspension_cells().map_err(ReportError::Published)?;
    let columns = [Column::Qps, Column::P50, Column::P99, Column::Cpu];
    let heads = columns.iter().flat_map(|column| {
        let heading = column.heading().replace(" us", " µs");
        [heading.clone(), format!("{heading}, published")]
    });
    let mut grid = Grid::new(["mode", "load"].map(str::to_owned).into_iter().chain(heads));
    for row in rows {
        let is_row = |load: OfferedLoad| load == OfferedLoad::from(row.load);
        let cell = cells.iter().find(|cell| cell.mode == row.mode && is_row(cell.load.into()));
        let Some(cell) = cell else { continue };
        let of = |column: &Column| {
            let numbers = [column.of(&row.figures), column.of(&cell.figures)];
            numbers.map(|number| if number.is_finite() { short(number) } else { ABSENT.to_owned() })
        };
        let fixed = [row.mode.to_string(), row.load.to_string()];
        grid.rows.push(fixed.into_iter().chain(columns.iter().flat_map(of)).collect());
    }
    Ok((!grid.rows.is_empty()).then_some(grid))
}
