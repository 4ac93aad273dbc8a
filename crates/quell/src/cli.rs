//! The commands, as their user sees them listed. The options of each stand in its own module of `commands`.

use clap::{Parser, Subcommand};

use crate::commands::{
    apply, attach, bench, conformance, doctor, lab, load, respond, run, show, sim, status, vm, vm_commands,
};

/// The kernel's best packet delivery for unmodified Linux servers: measured, proved, reversible.
#[derive(Debug, Parser)]
#[command(name = "quell", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = concat!(
    "Exit codes: 0 ok, 1 usage, 2 the kernel refused, 3 a check did not hold, 4 failed and put back, 5 not possible here, ",
    "130 interrupted. Data goes to standard output, everything else to standard error.",
);

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Which delivery mode wins on this machine? Runs them against a real server on a private lab, prints the table.
    Bench(Box<bench::BenchArgs>),
    /// The way of packets here, from queues to sockets, as one picture.
    Show(show::ShowArgs),
    /// What is wrong with this host's packet delivery, how bad it is, and what mends it.
    Doctor(doctor::DoctorArgs),
    /// Ask the model of the kernel's packet delivery: anywhere, without root, in seconds.
    Sim {
        /// What to ask.
        #[command(subcommand)]
        command: sim::SimCommand,
    },
    /// Start a program with a delivery mode, from its first connection on; it goes back when the program ends.
    Run(Box<run::RunArgs>),
    /// Give a running program a delivery mode, from outside; it goes back when the program ends.
    Attach(attach::AttachArgs),
    /// Take the mode of a program back: exactly, in the safe order, also when the program is stuck.
    Detach(attach::detach::DetachArgs),
    /// Give the host a profile as one transaction: verified, and undone if anything fails.
    Apply(Box<apply::ApplyArgs>),
    /// What is applied, since when, by which profile, and what others have changed since.
    Status(status::StatusArgs),
    /// Put back everything that is applied, exactly as it was.
    Revert(status::RevertArgs),
    /// Let stay what was applied with --confirm.
    Confirm(status::StatusArgs),
    /// Does the model do what this kernel does? Plays scenarios on both and compares what is seen.
    Conformance(conformance::ConformanceArgs),
    /// Load a server with requests and print what became of them.
    Load(Box<load::LoadArgs>),
    /// Answer requests with responses of a chosen size: the plain server for request/response loads.
    Respond(respond::RespondArgs),
    /// Labs that are up, and what killed runs left behind.
    Lab {
        /// What to do about them.
        #[command(subcommand)]
        command: lab::LabCommand,
    },
    /// Distribution kernels under emulation: real interrupts, any kernel version, no privileges.
    Vm {
        /// What to do with them.
        #[command(subcommand)]
        command: vm::VmCommand,
    },
    /// Puts back what nobody confirms.
    #[command(name = apply::watchdog::COMMAND, hide = true)]
    Watchdog(apply::watchdog::WatchdogArgs),
    /// Puts back an attachment whose programs have ended.
    #[command(name = attach::keeper::COMMAND, hide = true)]
    Keeper(attach::keeper::KeeperArgs),
    /// What process 1 of a guest runs.
    #[command(name = quell_vm::machine::GUEST_COMMAND, hide = true)]
    VmGuest,
    /// The part of the conformance suite that runs in a guest.
    #[command(name = quell_conformance::in_guest::GUEST_COMMAND, hide = true)]
    VmConformance {
        /// Which scenarios.
        names: Vec<String>,
    },
    /// What the tests of the vm lab run in a guest.
    #[command(name = vm_commands::COMMAND, hide = true)]
    VmCommands {
        /// The commands, as JSON.
        commands: String,
    },
    /// The vm lab's part in the guest.
    #[command(name = quell_bench::vm::GUEST_COMMAND, hide = true)]
    VmLab {
        /// What is to be counted.
        request: String,
    },
}
