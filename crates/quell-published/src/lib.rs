//! Published measurements of packet delivery, as tables of typed rows. [Their sources](../data/README.md). `quell bench
//! --experiment` prints them beside measurements of this machine, `quell-study` compares them with the model.

#![forbid(unsafe_code)]

mod event_busy_loop;
mod irq_suspension;
mod low_latency_sockets;
mod threaded_napi;

use std::fmt;
use std::str::FromStr;

use quell_mode::ParseModeError;
use quell_sim::InvalidLoad;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use event_busy_loop::{EventLoopForm, EventLoopRow, FLOWS, event_loop_rows};
pub use irq_suspension::{PublishedCell, irq_suspension_cells, irq_suspension_cells_from};
pub use low_latency_sockets::{CellTransport, HARDWARE_THREADS, LowLatencyRow, low_latency_rows};
pub use threaded_napi::{
    PollMechanism, RECEIVE_CALLS, RECEIVE_CALLS_AT, ThreadedNapiRow, threaded_napi_rows, xsk_rr_percentiles,
};

/// A published experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// IRQ suspension, 2024: memcached with 11 modes at 6 loads.
    A,
    /// Low-latency sockets, 2013: netperf with 11 configurations, TCP and UDP.
    B,
    /// Threaded NAPI busy polling, 2025: `xsk_rr` with 4 mechanisms in 5 experiments.
    C,
    /// Busy loop for events in `epoll_wait` or in the program, 2024: neper tcp_rr with various message sizes.
    D,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown experiment `{0}`: {list}", list = Experiment::list())]
pub struct ParseExperimentError(String);

impl FromStr for Experiment {
    type Err = ParseExperimentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|experiment| experiment.letter().eq_ignore_ascii_case(text));
        known.ok_or_else(|| ParseExperimentError(text.to_owned()))
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.letter())
    }
}

impl Experiment {
    pub const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    fn list() -> String {
        Self::ALL.map(|experiment| format!("{experiment} ({})", experiment.title())).join(", ")
    }

    /// Name on the command line and in files.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
        }
    }

    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::A => "IRQ suspension: memcached under 11 delivery modes at 6 loads",
            Self::B => "low-latency sockets of 2013: netperf TCP_RR and UDP_RR, 1 byte",
            Self::C => "threaded NAPI busy polling: xsk_rr under 4 mechanisms in 5 experiments",
            Self::D => "looping for events in epoll_wait or in the program: neper tcp_rr, 8 message sizes",
        }
    }

    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::A => "Suspend IRQs during application busy periods v2, netdev, October 2024; raw runs",
            Self::B => "net: low latency Ethernet device polling v10, netdev, June 2013",
            Self::C => "Add support to do threaded napi busy poll v10, netdev, October 2025",
            Self::D => "Add provision to busyloop for events in ep_poll, netdev, September 2024",
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishedError {
    /// The data is not valid CSV. The message has the line.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    #[error(transparent)]
    Mode(#[from] ParseModeError),
    #[error(transparent)]
    Load(#[from] InvalidLoad),
    /// Two tables of an experiment contain different cells.
    #[error("the two tables of the experiment differ in their cells at {0}")]
    Mismatch(String),
}

fn rows<T: for<'de> Deserialize<'de>>(table: &str) -> Result<Vec<T>, PublishedError> {
    Ok(csv::Reader::from_reader(table.as_bytes()).deserialize().collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_is_named_by_its_letter() {
        for experiment in Experiment::ALL {
            assert_eq!(experiment.to_string().parse(), Ok(experiment));
        }
        let error = "z".parse::<Experiment>().expect_err("there is no such experiment").to_string();
        assert!(error.contains("`z`") && error.contains("memcached"), "{error}");
    }
}
