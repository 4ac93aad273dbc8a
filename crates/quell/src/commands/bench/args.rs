//! Options of `quell bench`.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quell_published::Experiment;

use crate::commands::subject::Place;
use crate::commands::subject::args::{Applies, LAB, LOAD, SubjectArgs, TIME};

/// Options of `quell bench`.
#[derive(Debug, Args)]
#[command(after_help = MODES_HELP)]
pub(crate) struct BenchArgs {
    /// Comma-separated modes to compare, such as base,defer200,suspend20,defer-hard-irqs=10. The other modes are
    /// compared with the first one.
    #[arg(long, value_name = "LIST")]
    pub(super) modes: Option<String>,
    /// Play a published experiment in a private lab, and print the published figures beside those of this machine. With
    /// --on vm: experiment c in a guest, slowed down, to see who polls.
    #[arg(long, value_parser = played(), ignore_case = true, conflicts_with_all = ["ProgramsArgs", "command"])]
    pub(super) experiment: Option<Experiment>,
    #[command(flatten)]
    pub(super) subject: SubjectArgs,
    /// In the lab: start a second server on the same queues and compare its latency too. The command must speak
    /// memcached's text protocol: "memcached -u root -l {address} -p {port}"
    #[arg(long, value_name = "COMMAND", help_heading = LAB)]
    pub(super) beside: Option<String>,
    /// Run this command too, once per slice. It measures another program on the same queues and prints figures as the
    /// command of --latency does.
    #[arg(long, value_name = "COMMAND", conflicts_with = "clients", help_heading = LOAD)]
    pub(super) beside_latency: Option<String>,
    /// Compare three modes under two loads, in less than a minute; on programs, in 30 s, or up to 2 minutes if runs of
    /// --latency or COMMAND need it.
    #[arg(long, conflicts_with = "full", help_heading = TIME)]
    pub(super) quick: bool,
    /// Compare all modes that need no restart of the server, at 25, 50, 75, 90 % and max.
    #[arg(long, help_heading = TIME)]
    pub(super) full: bool,
    /// Print the plan and do nothing.
    #[arg(long, conflicts_with = "json")]
    pub(super) dry_run: bool,
    /// Also print absolute figures and counters of each mode.
    #[arg(long)]
    pub(super) details: bool,
}

/// Parses the letter of a published experiment.
fn played() -> impl TypedValueParser<Value = Experiment> {
    let value = |experiment: Experiment| PossibleValue::new(experiment.letter()).help(experiment.title());
    PossibleValuesParser::new(Experiment::ALL.map(value)).try_map(|letter| letter.parse::<Experiment>())
}

impl BenchArgs {
    /// Returns whether an option requires a lab. If the lab is not possible, the model must not replace it.
    pub(super) fn asks_for_a_lab(&self) -> bool {
        self.beside.is_some() || self.subject.asks_for_a_lab()
    }

    /// Options of this command alone, and where they apply.
    pub(super) fn applies(&self) -> [Applies; 6] {
        const SERVERS: &[Place] = &[Place::Programs, Place::Command];
        const QUICK: &[Place] =
            &[Place::Programs, Place::Command, Place::Lab, Place::Sim, Place::Published, Place::PublishedGuest];
        [
            (self.modes.is_some(), "--modes", &Place::OWN),
            (self.beside.is_some(), "--beside", &[Place::Lab]),
            (self.beside_latency.is_some(), "--beside-latency", SERVERS),
            (self.quick, "--quick", QUICK),
            (self.full, "--full", &[Place::Lab, Place::Sim]),
            (self.details, "--details", &Place::OWN),
        ]
    }
}

const MODES_HELP: &str = concat!(
    "Modes: base (interrupts), deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, userbusy; N is gro-flush-timeout in µs. ",
    "A COMMAND also supports sockpollN and eventspinN, which spin for N µs; --on sim supports eventspinN. ",
    "Any setting can be overridden: suspend20,defer-hard-irqs=10,irq-suspend-timeout=5ms. Modes are switched in short slices ",
    "while the server runs. The first mode is measured twice per block; if its two results differ, the verdicts are withheld.",
);
