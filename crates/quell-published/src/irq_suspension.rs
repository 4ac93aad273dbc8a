//! Published experiment (a), 2024: IRQ suspension, measured with memcached and 11 modes at 6 loads.

use quell_mode::DeliveryMode;
use quell_sim::{Figures, Load};
use serde::Deserialize;

use super::{PublishedError, rows};

#[derive(Debug, Clone, PartialEq)]
pub struct PublishedCell {
    pub mode: DeliveryMode,
    pub load: Load,
    pub figures: Figures,
    /// Coefficient of variation of the mean latency across the published runs, in percent.
    pub mean_cov_pct: f64,
    /// Instructions per request, which the model does not count. Absent if the table has no such column.
    pub instructions_per_query: Option<f64>,
}

#[derive(Deserialize)]
struct Row {
    case: String,
    load_qps: String,
    qps_mean: f64,
    lat_avg_us: f64,
    lat_p50_us: f64,
    lat_p95_us: f64,
    lat_p99_us: f64,
    cpu_pct: f64,
    cycles_per_query: f64,
    #[serde(default)]
    instructions_per_query: Option<f64>,
    irqs_per_s: f64,
    napi_poll_work_mean: f64,
    epoll_events_mean: f64,
}

#[derive(Deserialize)]
struct MoreRow {
    case: String,
    load_qps: String,
    lat_avg_cov_pct: f64,
    soft_pct: f64,
    napi_polls_per_s_per_queue: f64,
    napi_polls_zero_pct: f64,
}

pub fn irq_suspension_cells() -> Result<Vec<PublishedCell>, PublishedError> {
    irq_suspension_cells_from(
        include_str!("../data/irq-suspension.csv"),
        include_str!("../data/irq-suspension-more.csv"),
    )
}

/// Reads a table, and a second file with more metrics of the same cells.
pub fn irq_suspension_cells_from(table: &str, more: &str) -> Result<Vec<PublishedCell>, PublishedError> {
    let table: Vec<Row> = rows(table)?;
    let more: Vec<MoreRow> = rows(more)?;
    table.into_iter().map(|row| cell(row, &more)).collect()
}

fn cell(row: Row, more: &[MoreRow]) -> Result<PublishedCell, PublishedError> {
    let more = more
        .iter()
        .find(|more| more.case == row.case && more.load_qps == row.load_qps)
        .ok_or_else(|| PublishedError::Mismatch(format!("{} {}", row.case, row.load_qps)))?;
    Ok(PublishedCell {
        mode: row.case.parse()?,
        load: row.load_qps.parse()?,
        figures: Figures {
            qps: row.qps_mean,
            mean_us: row.lat_avg_us,
            p50_us: row.lat_p50_us,
            p95_us: row.lat_p95_us,
            p99_us: row.lat_p99_us,
            cpu_pct: row.cpu_pct,
            softirq_pct: more.soft_pct,
            cycles_per_query: row.cycles_per_query,
            irqs_per_s: row.irqs_per_s,
            poll_work: row.napi_poll_work_mean,
            polls_per_s: more.napi_polls_per_s_per_queue,
            empty_polls_pct: more.napi_polls_zero_pct,
            epoll_events: row.epoll_events_mean,
        },
        mean_cov_pct: more.lat_avg_cov_pct,
        instructions_per_query: row.instructions_per_query,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: [&str; 5] = ["base", "suspend20", "suspend200", "defer200", "fullbusy"];
    const HEADING: &str = "| | 200K requests/s | 400K | 600K | 800K |\n| --- | --- | --- | --- | --- |\n";

    fn markdown() -> String {
        let cells = irq_suspension_cells().expect("the data ships");
        let cell = |mode: &str, load: &str| {
            let is_of = |cell: &&PublishedCell| cell.mode.to_string() == mode && Ok(cell.load) == load.parse();
            let Figures { p50_us, p99_us, cpu_pct, .. } =
                cells.iter().find(is_of).expect("the table is complete").figures;
            format!(" {p50_us:.0} / {p99_us:.0} µs, {cpu_pct:.0} % |")
        };
        let row = |mode| {
            let cells = ["200000", "400000", "600000", "800000"].map(|load| cell(mode, load));
            format!("| `{mode}` |{}\n", cells.concat())
        };
        HEADING.to_owned() + &SHOWN.map(row).concat()
    }

    /// `QUELL_WRITE_DOCS=1` writes the rows below the heading instead of comparing them.
    #[test]
    fn the_page_has_the_published_figures() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/published.md");
        let page = std::fs::read_to_string(path).expect("the page exists");
        let (before, rest) = page.split_once(HEADING).expect("the page has the heading of the table");
        let (_, after) = rest.split_once("\n## ").expect("a section follows");
        let current = format!("{before}{}\n## {after}", markdown());
        if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
            return std::fs::write(path, current).expect("the page is writable");
        }
        assert!(page == current, "out of date: QUELL_WRITE_DOCS=1 cargo test -p quell-published");
    }

    #[test]
    fn the_published_table_has_eleven_modes_at_six_loads() {
        assert_eq!(irq_suspension_cells().expect("the data ships").len(), 66);
    }
}
