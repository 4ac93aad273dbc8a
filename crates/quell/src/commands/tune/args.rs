//! Options of `quell tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use quell_load::OfferedLoad;
use quell_tune::{TuneGoal, TuneGuard};

use crate::commands::apply::duration;

/// Subject of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TuneWhere {
    /// The model of a host. Works on any machine. The answer is not a measurement.
    Sim,
}

/// Options of `quell tune`.
#[derive(Debug, Args)]
#[command(after_help = GOALS_HELP)]
pub(crate) struct TuneArgs {
    /// Search on the model of a host.
    #[arg(long, value_enum, value_name = "WHERE", required_unless_present_any = ["show", "schema", "advise"])]
    pub(crate) experiment: Option<TuneWhere>,
    /// Objective and limits, such as "p99<=300us, least cpu" or "most requests".
    #[arg(long, value_name = "GOAL", required_unless_present_any = ["show", "schema"])]
    pub(crate) goal: Option<TuneGoal>,
    /// Abandon a mode after the first slice that violates this, such as "p99>1ms", drops or saturated. Can be
    /// repeated.
    #[arg(long, value_name = "GUARD")]
    pub(crate) never: Vec<TuneGuard>,
    /// Comma-separated loads: percentages of base's maximum throughput, requests per second, or max. The answer is the
    /// best for the worst of them [25%,50%,90%]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) loads: Option<Vec<OfferedLoad>>,
    /// Host to model: a name from `quell sim hosts`, or the path of a .toml profile [epyc7662-cx5]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) host: Option<String>,
    /// Number of receive queues of the modelled server [as many as its host has]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) queues: Option<u32>,
    /// Total number of connections of the modelled server [560 per queue]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) connections: Option<u32>,
    /// Maximum duration of all slices, in virtual time. At most 60 % of it is used to search, the rest to confirm (default: 3m)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) budget: Option<Duration>,
    /// Duration of a slice, in milliseconds [default: 100]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(20..=60_000))]
    pub(crate) slice: Option<u32>,
    /// Settling time between setting a mode and measuring it, in milliseconds [default: 150]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(0..=60_000))]
    pub(crate) settle: Option<u32>,
    /// Seed for the order of the modes and for the model. Equal seeds give equal results [from the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print the plan and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Rank all modes by the model alone, and print how far to trust the ranking. Takes seconds.
    #[arg(long, conflicts_with_all = ["dry_run", "never", "budget", "profile", "result"])]
    pub(crate) advise: bool,
    /// Write the mode that was found to this profile, with the evidence as comments.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Write the result to this file [tune-TIME.json in /var/lib/quell/results, or in ~/.local/state/quell without
    /// root]
    #[arg(long, value_name = "FILE")]
    pub(crate) result: Option<PathBuf>,
    /// Print an earlier result.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["experiment", "goal", "advise", "dry_run", "schema"])]
    pub(crate) show: Option<PathBuf>,
    /// Print the JSON Schema of result files.
    #[arg(long, conflicts_with = "json")]
    pub(crate) schema: bool,
    /// Print the result as JSON.
    #[arg(short, long)]
    pub(crate) json: bool,
}

const GOALS_HELP: &str = concat!(
    "A goal has one objective (least, lowest, most or highest, and a metric) and any number of limits (METRIC<=VALUE). ",
    "Metrics: p50, p99, p99.9 (us, ms), cpu (us per request), busy (share of CPU time), requests (per second). ",
    "Guards also know errors, saturated and drops.",
);
