//! The commands: names, groups and examples. Their options are in the modules of `commands`.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use quell_mode::DeliveryMode;

use crate::commands::{
    apply, attach, bench, conformance, doctor, export, lab, load, report, respond, results, revert, run, show, sim,
    status, top, tune, vm, vm_commands,
};
use crate::completion::CompletionArgs;
use crate::manual::{self, ManualArgs};
use crate::render::terminal::Terminal;

/// The kernel's best packet delivery for unmodified Linux servers: measured, proved, reversible.
#[derive(Debug, Parser)]
#[command(name = "quell", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Command to run [default: list the servers of this host, and what to do next]
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Without a command: print JSON, the document of `quell doctor --all --json`.
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Log to standard error: decisions; -vv: changes; -vvv: kernel requests.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    pub(crate) verbose: u8,
    /// Name of the command.
    #[arg(skip)]
    pub(crate) command_name: String,
}

const EXIT_CODES: &str = concat!(
    "Exit codes: 0 ok, 1 usage, 2 the kernel refused, 3 a check failed, 4 failed and restored, 5 not possible here, ",
    "130 interrupted. Data goes to standard output, diagnostics to standard error.",
);

type Listed = (&'static str, [&'static str; 2]);

/// Commands by purpose, each with two examples for its help.
const GROUPS: &[(&str, &[Listed])] = &[
    (
        "Inspect (changes nothing)",
        &[
            ("doctor", ["quell doctor", "quell doctor --explain nested-epoll"]),
            ("show", ["quell show 1234", "quell show --device eth0 --details"]),
            ("status", ["quell status", "quell status -j"]),
            ("top", ["quell top", "quell top --device eth0 -n 3 -j"]),
            ("export", ["quell export", "quell export --textfile /var/lib/prometheus/node-exporter"]),
        ],
    ),
    (
        "Measure",
        &[
            ("bench", ["quell bench --pid 1234", "quell bench --quick"]),
            (
                "tune",
                [
                    "quell tune --advise --goal 'p99<=300us, least cpu'",
                    "quell tune --on sim --goal 'most requests' --loads max --profile found.toml",
                ],
            ),
            ("results", ["quell results", "quell results show bench-20261125-180405 --details"]),
            (
                "report",
                [
                    "quell report bench-20261125-180405 -o result.html",
                    "quell report before.json after.json -o difference.html",
                ],
            ),
            (
                "load",
                ["quell load 192.0.2.1:11211 --rate 20K", "quell load 192.0.2.1:7000 --protocol request-response"],
            ),
            ("respond", ["quell respond 192.0.2.1:7000", "quell respond --shape blocking --response-bytes 1000"]),
        ],
    ),
    (
        "Set",
        &[
            ("attach", ["quell attach suspend200 1234", "quell attach suspend200 --unit memcached.service --follow"]),
            ("detach", ["quell detach 1234", "quell detach --all"]),
            (
                "run",
                ["quell run suspend200 -- memcached -u nobody -t 4 -N 4", "quell run --profile memcached -- memcached"],
            ),
            ("apply", ["quell apply --dry-run profiles/memcached.toml", "quell apply --confirm 60s host.toml"]),
            ("confirm", ["quell confirm", "quell confirm -j"]),
            ("revert", ["quell revert attach-1234", "quell revert --dry-run"]),
        ],
    ),
    ("Model", &[("sim", ["quell sim run --mode base,suspend10..200 --load 600K", "quell sim explain suspend20"])]),
    (
        "Develop",
        &[
            ("conformance", ["quell conformance", "quell conformance --list"]),
            ("vm", ["quell vm get 7.3", "quell vm run --kernel 7.3 -- show"]),
            ("lab", ["quell lab up", "quell lab clean"]),
        ],
    ),
    ("Shell", &[("completion", ["quell completion bash", "quell completion fish"])]),
];

impl Cli {
    pub(crate) fn from_command_line() -> Result<Self, clap::Error> {
        let matches = command().try_get_matches().map_err(with_suggestions)?;
        let command_name = matches.subcommand_name().unwrap_or_default().to_owned();
        let cli = Self { command_name, ..Self::from_arg_matches(&matches)? };
        if cli.json && cli.command.is_some() {
            let text = format!("--json belongs after the command: quell {} --json", cli.command_name);
            return Err(command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(cli)
    }
}

/// The error without suggestions of commands that only Quell itself runs, and with a suggestion for a second mode.
fn with_suggestions(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) {
        let hidden = |name: &str| Cli::command().find_subcommand(name).is_some_and(clap::Command::is_hide_set);
        let listed: Vec<String> = names.iter().filter(|name| !hidden(name)).cloned().collect();
        if listed.is_empty() {
            // Another list without suggestions would leave an empty line.
            error.remove(ContextKind::Suggested);
            error.remove(ContextKind::SuggestedSubcommand);
        } else {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(listed));
        }
    }
    let is_mode =
        |value: &ContextValue| matches!(value, ContextValue::String(text) if text.parse::<DeliveryMode>().is_ok());
    if error.kind() == ErrorKind::UnknownArgument && error.get(ContextKind::InvalidArg).is_some_and(is_mode) {
        let tip = "one mode is meant; `quell bench --modes base,suspend200` compares several".into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

pub(crate) fn examples() -> Vec<String> {
    let commands = GROUPS.iter().flat_map(|(_, commands)| *commands);
    commands.flat_map(|(_, examples)| examples.map(str::to_owned)).collect()
}

pub(crate) fn command() -> clap::Command {
    let examples = |[first, second]: &[&str; 2]| format!("Examples:\n  {first}\n  {second}\n");
    let commands = GROUPS.iter().flat_map(|(_, commands)| *commands);
    let command = commands.fold(Cli::command(), |command, (name, two)| {
        command.mut_subcommand(name, |subcommand| subcommand.before_help(examples(two)))
    });
    let list = list_of_commands(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    ))
}

const CONTINUED: &str = "               ";

fn list_of_commands(command: &clap::Command) -> String {
    let about = |name: &str| command.find_subcommand(name).and_then(|found| found.get_about()).map(ToString::to_string);
    let line = |(name, _): &Listed| {
        let first = format!("  {name:<13}");
        Terminal::of_stdout().fill(&about(name).unwrap_or_default(), &first, CONTINUED) + "\n"
    };
    GROUPS
        .iter()
        .map(|(group, commands)| format!("{group}:\n{}\n", commands.iter().map(line).collect::<String>()))
        .collect()
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare delivery modes on running programs, on a command, or in a private lab.
    Bench(Box<bench::BenchArgs>),
    /// Find the mode that meets a goal best, by experiment on running programs; confirm it, write a profile.
    Tune(Box<tune::TuneArgs>),
    /// List stored results of measurements, and print one again.
    Results(results::ResultsArgs),
    /// Write an HTML page with the answer, charts and data of a result, or that compares results.
    Report(report::ReportArgs),
    /// Print the packet path: devices, queues, NAPI instances, IRQs, threads, epolls, sockets.
    Show(show::ShowArgs),
    /// Report continuously who polls the queues, and how long packets can have waited.
    Top(top::TopArgs),
    /// Export what `top` shows to Prometheus.
    Export(export::ExportArgs),
    /// List packet delivery problems on this host, with severity and fix.
    Doctor(doctor::DoctorArgs),
    /// Simulate the kernel's packet delivery: no root, no lab.
    Sim {
        /// Simulation to run.
        #[command(subcommand)]
        command: sim::SimCommand,
    },
    /// Start a program with a delivery mode; everything is restored when it exits.
    Run(Box<run::RunArgs>),
    /// Apply a delivery mode to a running program; everything is restored when it exits.
    Attach(attach::AttachArgs),
    /// Undo `quell attach`, even if the program hangs.
    Detach(attach::detach::DetachArgs),
    /// Apply a profile to the host as one transaction: verified, and rolled back on failure.
    Apply(Box<apply::ApplyArgs>),
    /// List applied settings, their age, and later changes by other programs.
    #[command(after_help = "Exits with 3 after drift, a stall, or a killed command whose settings are left.")]
    Status(status::StatusArgs),
    /// Undo what is applied or attached: everything, or by name.
    Revert(revert::RevertArgs),
    /// Keep the changes made by `apply --confirm`.
    Confirm(status::StatusArgs),
    /// Run scenarios on the model and on this kernel, and check the results.
    Conformance(conformance::ConformanceArgs),
    /// Generate load on a server, check every response, print latencies.
    Load(Box<load::LoadArgs>),
    /// Answer requests with responses of a chosen size.
    Respond(respond::RespondArgs),
    /// Create, list and clean up veth labs.
    Lab {
        /// Action on labs.
        #[command(subcommand)]
        command: lab::LabCommand,
    },
    /// Run distribution kernels under emulation: real interrupts, no privileges.
    Vm {
        /// Action on guests.
        #[command(subcommand)]
        command: vm::VmCommand,
    },
    /// Print the completion script of a shell.
    Completion(CompletionArgs),
    /// Writes the manual pages.
    #[command(name = manual::COMMAND, hide = true)]
    ManualPages(ManualArgs),
    /// Rolls back a profile that is not confirmed in time.
    #[command(name = apply::watchdog::COMMAND, hide = true)]
    Watchdog(apply::watchdog::WatchdogArgs),
    /// Restores an attachment when its programs have exited.
    #[command(name = attach::keeper::COMMAND, hide = true)]
    Keeper(attach::keeper::KeeperArgs),
    /// Polls the queues of an attachment.
    #[command(name = attach::poller::COMMAND, hide = true)]
    Poller(attach::poller::PollerArgs),
    /// Process 1 of a guest.
    #[command(name = quell_vm::machine::GUEST_COMMAND, hide = true)]
    VmGuest,
    /// Runs conformance scenarios inside a guest.
    #[command(name = quell_conformance::in_guest::GUEST_COMMAND, hide = true)]
    VmConformance {
        /// Scenarios to run.
        names: Vec<String>,
    },
    /// Runs commands in a guest, for tests of the vm lab.
    #[command(name = vm_commands::COMMAND, hide = true)]
    VmCommands {
        /// The commands, as JSON.
        commands: String,
    },
    /// Compares modes or searches in a guest of the vm lab.
    #[command(name = quell_subject::vm::GUEST_COMMAND, hide = true)]
    VmLab {
        /// The task, as JSON.
        task: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_is_in_one_group() {
        let visible = Cli::command();
        let mut visible: Vec<_> =
            visible.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name()).collect();
        let mut grouped: Vec<_> =
            GROUPS.iter().flat_map(|(_, commands)| commands.iter().map(|(name, _)| *name)).collect();
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
    }

    #[test]
    fn every_example_is_valid_for_its_command() {
        for (name, examples) in GROUPS.iter().flat_map(|(_, commands)| *commands) {
            for example in examples {
                let words = shell_words::split(example).unwrap_or_default();
                let parsed =
                    command().try_get_matches_from(&words).unwrap_or_else(|error| panic!("{example}: {error}"));
                assert_eq!(parsed.subcommand_name(), Some(*name), "{example}");
            }
        }
    }
}
