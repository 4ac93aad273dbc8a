//! Published experiment (a): IRQ suspension with memcached, 11 modes at 6 loads. The data and where
//! it comes from are in `data/published/`; this file reads it and sets up the runs that reproduce it.

use std::fmt;
use std::str::FromStr;

use quell_mode::DeliveryMode;
use serde::{Deserialize, Serialize};

use super::cell::Figures;
use super::score::{ComparedCell, Scored, held_out, score};
use crate::engine::Ns;
use crate::host::HostProfile;
use crate::run::{Run, RunError, RunResult, Spread};
use crate::sweep::in_parallel;
use crate::world::{Gaps, TrafficKind};

/// Connections of the published experiment: 7 clients × 32 threads × 20.
const CONNECTIONS: usize = 4480;
/// RX queues, workers and CPUs.
const QUEUES: usize = 8;
/// Shape of the generator's gaps between requests (mutilate's `fb_ia`).
const GAP_SHAPE: f64 = 0.154_971;

/// An offered load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Load {
    /// Requests a second, over all connections.
    Qps(f64),
    /// A closed loop: as much as the server can do.
    Max,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.pad("MAX"),
            Self::Qps(qps) if *qps >= 1000.0 && qps % 1000.0 == 0.0 => f.pad(&format!("{}K", qps / 1000.0)),
            Self::Qps(qps) => f.pad(&qps.to_string()),
        }
    }
}

/// A text that is no load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no load: a number of requests a second such as 600000 or 600K, or MAX")]
pub struct LoadError(String);

impl FromStr for Load {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        let (digits, unit) = match text.strip_suffix(['K', 'k']) {
            Some(digits) => (digits, 1e3),
            None => (text.strip_suffix('M').unwrap_or(text), if text.ends_with('M') { 1e6 } else { 1.0 }),
        };
        let number: f64 = digits.parse().map_err(|_| LoadError(text.to_owned()))?;
        let qps = number * unit;
        if qps.is_finite() && qps > 0.0 { Ok(Self::Qps(qps)) } else { Err(LoadError(text.to_owned())) }
    }
}

impl From<Load> for String {
    fn from(load: Load) -> Self {
        load.to_string()
    }
}

impl TryFrom<String> for Load {
    type Error = LoadError;

    fn try_from(text: String) -> Result<Self, LoadError> {
        text.parse()
    }
}

/// Why published data cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishedError {
    /// A line is not what it should be.
    #[error("{file}: {source}")]
    Csv {
        /// The data file.
        file: &'static str,
        /// What is wrong, and in which line.
        source: csv::Error,
    },
    /// A mode that does not exist.
    #[error("{file}: {source}")]
    Mode {
        /// The data file.
        file: &'static str,
        /// What is wrong with it.
        source: quell_mode::ParseModeError,
    },
    /// A load that is none.
    #[error("{file}: {source}")]
    Load {
        /// The data file.
        file: &'static str,
        /// What is wrong with it.
        source: LoadError,
    },
    /// The two files do not have the same cells.
    #[error("the two data files of the experiment do not have the same cells at {0}")]
    Mismatch(String),
}

/// One published cell.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedCell {
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The offered load.
    pub load: Load,
    /// Its figures.
    pub figures: Figures,
    /// Coefficient of variation of the mean latency across the published runs, in percent.
    pub mean_cov_pct: f64,
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

const TABLE: &str = "irq-suspension.csv";
const MORE: &str = "irq-suspension-more.csv";

pub(super) fn rows<T: for<'de> Deserialize<'de>>(file: &'static str, text: &str) -> Result<Vec<T>, PublishedError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().collect::<Result<_, _>>().map_err(|source| PublishedError::Csv { file, source })
}

/// How much is simulated: more takes longer and scatters less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunScale {
    /// Queues; the published host had 8. With fewer, loads and connections are scaled down.
    pub queues: usize,
    /// Virtual time before anything is counted, in ns.
    pub warm_up_ns: Ns,
    /// Virtual time that is counted, in ns.
    pub measured_ns: Ns,
    /// Whether connections are spread by a hash, as a NIC does it, or evenly.
    pub hashed: bool,
    /// Where random numbers come from.
    pub seed: u64,
}

impl RunScale {
    /// The whole host.
    pub const FULL: Self =
        Self { queues: QUEUES, warm_up_ns: 150_000_000, measured_ns: 100_000_000, hashed: true, seed: 1 };
}

/// The experiment's cells.
#[derive(Debug, Clone)]
pub struct IrqSuspension {
    /// In the order of the data file.
    pub cells: Vec<PublishedCell>,
}

impl IrqSuspension {
    /// Reads the data that ships with the project.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and where.
    pub fn published() -> Result<Self, PublishedError> {
        Self::from_csv(
            include_str!("../../data/published/irq-suspension.csv"),
            include_str!("../../data/published/irq-suspension-more.csv"),
        )
    }

    /// Reads a table and the further figures of the same cells.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them, and where.
    pub fn from_csv(table: &str, more: &str) -> Result<Self, PublishedError> {
        let table: Vec<Row> = rows(TABLE, table)?;
        let more: Vec<MoreRow> = rows(MORE, more)?;
        let cells = table.into_iter().map(|row| cell(row, &more)).collect::<Result<_, _>>()?;
        Ok(Self { cells })
    }

    /// The run that reproduces a cell.
    #[must_use]
    pub fn run(mode: DeliveryMode, load: Load, host: &HostProfile, scale: RunScale) -> Run {
        let share = scale.queues as f64 / QUEUES as f64;
        let traffic = match load {
            Load::Max => TrafficKind::Closed,
            Load::Qps(qps) => {
                TrafficKind::Scheduled { rate_qps: qps * share, gaps: Gaps::GeneralisedPareto { shape: GAP_SHAPE } }
            }
        };
        Run {
            connections: CONNECTIONS * scale.queues / QUEUES,
            floating: scale.queues > 1,
            xps: true,
            spread: if scale.hashed { Spread::Hashed } else { Spread::Even },
            warm_up_ns: scale.warm_up_ns,
            measured_ns: scale.measured_ns,
            seed: scale.seed,
            ..Run::new(mode, host.clone(), traffic, scale.queues)
        }
    }
}

/// Schema of a comparison.
const COMPARISON_SCHEMA: &str = "quell-sim-published-a-1";

/// Published beside modelled, all of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// `quell-sim-published-a-1`.
    pub schema: &'static str,
    /// The host's name.
    pub host: String,
    /// Where random numbers came from.
    pub seed: u64,
    /// Every cell.
    pub cells: Vec<ComparedCell>,
    /// How well the modes are met on which the host's constants were fitted.
    pub training: Scored,
    /// How well the others are met.
    pub held_out: Scored,
    /// Events that the engine let happen.
    pub events: u64,
}

impl IrqSuspension {
    /// Simulates every cell on up to `threads` threads and compares. `progress` hears how many are
    /// done.
    ///
    /// # Errors
    ///
    /// A run that is not possible.
    pub fn compare(
        &self,
        host: &HostProfile,
        scale: RunScale,
        threads: usize,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Comparison, RunError> {
        let simulate = |index: usize| Self::run(self.cells[index].mode, self.cells[index].load, host, scale).simulate();
        let results: Vec<RunResult> =
            in_parallel(self.cells.len(), threads, simulate, progress).into_iter().collect::<Result<_, _>>()?;
        let events = results.iter().map(|result| result.events).sum();
        let pairs = self.cells.iter().zip(&results);
        let cells: Vec<_> =
            pairs.map(|(published, result)| ComparedCell::new(published, result.figures(host.cpus))).collect();
        Ok(Comparison {
            schema: COMPARISON_SCHEMA,
            host: host.name.clone(),
            seed: scale.seed,
            training: score(&cells, |cell| !held_out(&cell.mode)),
            held_out: score(&cells, |cell| held_out(&cell.mode)),
            cells,
            events,
        })
    }
}

fn cell(row: Row, more: &[MoreRow]) -> Result<PublishedCell, PublishedError> {
    let more = more
        .iter()
        .find(|more| more.case == row.case && more.load_qps == row.load_qps)
        .ok_or_else(|| PublishedError::Mismatch(format!("{} {}", row.case, row.load_qps)))?;
    Ok(PublishedCell {
        mode: row.case.parse().map_err(|source| PublishedError::Mode { file: TABLE, source })?,
        load: row.load_qps.parse().map_err(|source| PublishedError::Load { file: TABLE, source })?,
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
    })
}

impl RunResult {
    /// The run's figures, of the whole host: what a part of its queues did, times their share. Polls
    /// are what the published counter would have counted.
    #[must_use]
    pub fn figures(&self, host_queues: usize) -> Figures {
        let scale = host_queues as f64 / self.queues as f64;
        let us = |share: f64| self.latency.quantile(share).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6);
        let counters = &self.counters;
        let per_s = |count: u64| count as f64 / self.measured_s;
        let per_queue = |count: u64| per_s(count) / self.queues as f64;
        let beside = self.counted_beside;
        let polls_per_s = per_queue(counters.polls) + beside.polls_per_s;
        let per_poll = |per_s: f64| if polls_per_s > 0.0 { per_s / polls_per_s } else { 0.0 };
        Figures {
            qps: self.qps * scale,
            mean_us: self.mean_us,
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            cpu_pct: self.cpu_pct,
            softirq_pct: 100.0 * self.cpu.interrupt_share(),
            cycles_per_query: self.cycles_per_query,
            irqs_per_s: per_s(counters.irqs) * scale,
            poll_work: per_poll(per_queue(counters.polled_packets) + beside.packets_per_s),
            polls_per_s,
            empty_polls_pct: 100.0 * per_poll(per_queue(counters.empty_polls) + beside.empty_polls_per_s),
            epoll_events: counters.epoll_events as f64 / counters.epoll_waits.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_has_eleven_modes_at_six_loads() {
        let experiment = IrqSuspension::published().expect("the data ships");
        assert_eq!(experiment.cells.len(), 66);
    }

    #[test]
    fn loads_are_written_as_people_write_them() {
        for (text, load) in
            [("MAX", Load::Max), ("600K", Load::Qps(600e3)), ("1.5M", Load::Qps(1.5e6)), ("250", Load::Qps(250.0))]
        {
            assert_eq!(text.parse(), Ok(load));
        }
        assert!("-3".parse::<Load>().is_err() && "fast".parse::<Load>().is_err());
    }
}
