//! Options of `quell bench` and `quell tune` that name the subject, its load, and the durations of slices.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use quell_host::attach::{TargetError, Targets};
use quell_linux::shell;
use quell_load::OfferedLoad;
use quell_vm::KernelName;

use super::Place;
use crate::commands::apply::duration;
use crate::commands::placement_args::PlacementArgs;
use crate::commands::programs_args::ProgramsArgs;
use crate::commands::vm::NicName;
use crate::exit::Failure;

/// Subject, if the user selects no programs of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Where {
    /// A private lab on this machine: network namespaces, a veth pair, and a real server. Needs root and Linux 6.13.
    Lab,
    /// The model of a host. Works on any machine and takes seconds.
    Sim,
    /// A kernel of `quell vm` under QEMU. Counts interrupts; its times mean nothing. Needs no root.
    Vm,
}

/// Requests to the server of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabProtocol {
    /// memcached's text protocol: get and set, with the published sizes of keys and values.
    Memcached,
    /// Redis's protocol: GET and SET, with the same sizes.
    Redis,
    /// HTTP/1.1: GET / on persistent connections. The server must not close them after a number of requests.
    Http,
}

/// Exactly one subject.
#[derive(Debug, Args)]
struct NamedSubject {
    #[command(flatten)]
    programs: ProgramsArgs,
    /// Measure a server in a private lab or in a guest, or the model of a host.
    #[arg(long, value_enum, value_name = "WHERE", conflicts_with = "ProgramsArgs")]
    on: Option<Where>,
    /// Start this command under each mode. This also works for modes that need the preload library.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["ProgramsArgs", "on"])]
    command: Vec<String>,
}

/// The subject, its load, and the durations of slices.
#[derive(Debug, Args)]
pub(crate) struct SubjectArgs {
    #[command(flatten)]
    named: NamedSubject,
    /// Generate the load on the programs or the command with this command during the measurement [live traffic]
    #[arg(long, value_name = "COMMAND", help_heading = LOAD)]
    pub(crate) load: Option<String>,
    /// Load from other machines during the measurement, and compare the latencies that they measure. The command starts
    /// `quell-mpi … --follow` on them: "mpirun --hostfile hosts --bind-to none quell-mpi 192.0.2.1:11211 --rate 200K
    /// --follow"
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["load", "latency"], help_heading = LOAD)]
    pub(crate) clients: Option<String>,
    /// Run this command once per slice, for example "wrk --latency -d 1 ...", and use its results: those of wrk, oha, hey,
    /// h2load, redis-benchmark, memtier_benchmark, dnsperf or fortio, or lines `NAME VALUE` or of JSON: p50-us, p99-us,
    /// requests, errors, or others.
    #[arg(long, value_name = "COMMAND", help_heading = LOAD)]
    pub(crate) latency: Option<String>,
    /// Comma-separated loads: percentages of base's maximum throughput, requests per second, or max. `quell tune` answers
    /// for the worst of them [50%,90%,max; of a search 50%,90%, on the model also 25%]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = LOAD)]
    pub(crate) loads: Option<Vec<OfferedLoad>>,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Do not ask for confirmation before the programs are changed.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Set modes with suspension even if they stall the programs: network events can be delayed forever.
    #[arg(long)]
    pub(crate) accept_stalls: bool,
    /// Number of receive queues of the server. Each queue has a worker on its own CPU [1; on the model as many as its
    /// host has]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = LAB)]
    pub(crate) queues: Option<u32>,
    /// Number of generator threads, each on its own CPU [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = LAB)]
    pub(super) generators: Option<u32>,
    /// Total number of connections. With fewer connections, the server is partly idle at max; more overflow the veth's
    /// ring of 255 packets [128; on the model 560 per queue]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = LAB)]
    pub(crate) connections: Option<u32>,
    /// Measure this server instead of memcached. {address}, {port} and {workers} are replaced.
    #[arg(long, value_name = "COMMAND", help_heading = LAB)]
    pub(super) server: Option<String>,
    /// With --server: request protocol [default: memcached]
    #[arg(long, value_enum, requires = "server", help_heading = LAB)]
    pub(super) protocol: Option<LabProtocol>,
    /// Do not replace the interrupts of the server's queues by NAPI threads. Softirqs then poll the queues on the
    /// sending CPU.
    #[arg(long, help_heading = LAB)]
    pub(super) no_interrupt_stand_in: bool,
    /// Measure even if there are too few CPUs or a lab check fails. The result is marked as not a measurement.
    #[arg(long, help_heading = LAB)]
    pub(crate) insist: bool,
    /// With --on sim: host to model, either a name from `quell sim hosts` or the path of a .toml profile [epyc7662-cx5]
    #[arg(long, value_name = "NAME|FILE", help_heading = LAB)]
    pub(crate) host: Option<String>,
    /// With --on sim: add a CPU per queue for its interrupt, NAPI thread or polling thread (userbusy), in all modes.
    #[arg(long, help_heading = LAB)]
    pub(super) irqs_apart: bool,
    /// With --on vm: kernel of the guest, from `quell vm list` [the newest]
    #[arg(long, value_name = "KERNEL", help_heading = LAB)]
    pub(super) kernel: Option<KernelName>,
    /// With --on vm: NIC model of the guest; e1000e needs a -full kernel [default: virtio]
    #[arg(long, value_enum, help_heading = LAB)]
    pub(super) nic: Option<NicName>,
    /// Maximum duration of the whole measurement. It ends earlier when the answer is known. On the model, the time is
    /// virtual; a search uses a part of it to confirm. Default of `quell bench`: 2m (--quick 50s, on programs 30s; --full 6m;
    /// on the model 1m, 20s, 3m; in a guest 1m); of `quell tune`: 3m (-- COMMAND 5m, in a guest 90s)
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = TIME)]
    pub(crate) budget: Option<Duration>,
    /// Duration of a slice: for how long a mode is measured before the next one is set, in milliseconds [200; 1000, of a
    /// search 500, with --latency or a COMMAND; 100 on the model; 500 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(20..=60_000), help_heading = TIME)]
    pub(crate) slice: Option<u32>,
    /// Settling time between setting a mode and measuring it, in milliseconds [10; 300 with a COMMAND; 150 on the
    /// model, which starts idle; 200 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(0..=60_000), help_heading = TIME)]
    pub(crate) settle: Option<u32>,
    /// Seed for the order of the modes, the generator's random choices, and the model [from the clock]
    #[arg(long, value_name = "N", help_heading = TIME)]
    pub(crate) seed: Option<u64>,
    /// Write the result to this file [bench-TIME.json or tune-TIME.json in /var/lib/quell/results, or in ~/.local/state/quell without
    /// root]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also write an HTML page with the answer, charts and data to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print the result as JSON instead of a table.
    #[arg(short, long)]
    pub(crate) json: bool,
}

pub(crate) const LOAD: &str = "Load and figures";
pub(crate) const LAB: &str = "Lab, model and guest";
pub(crate) const TIME: &str = "Durations";

/// An option: whether it is given, its name, and the places where it applies.
pub(crate) type Applies = (bool, &'static str, &'static [Place]);

impl SubjectArgs {
    /// Where the user wants to measure. `None` if no subject is named.
    pub(crate) fn place(&self) -> Option<Place> {
        let NamedSubject { programs, on, command } = &self.named;
        match on {
            Some(Where::Lab) => Some(Place::Lab),
            Some(Where::Sim) => Some(Place::Sim),
            Some(Where::Vm) => Some(Place::Vm),
            None if !command.is_empty() => Some(Place::Command),
            None => programs.is_given().then_some(Place::Programs),
        }
    }

    /// The selected programs. Fails without one.
    pub(crate) fn targets(&self) -> Result<Targets, TargetError> {
        self.named.programs.selection(&[]).and_then(Targets::find)
    }

    /// The options that select these programs and place their workers, for a command that the user can paste.
    pub(crate) fn programs_text(&self) -> String {
        let named = self.named.programs.options(std::iter::empty());
        let words = named.into_iter().chain(self.placement.wanted().options());
        shell::command(words)
    }

    pub(super) fn command(&self) -> &[String] {
        &self.named.command
    }

    /// Returns whether an option requires a lab.
    pub(crate) fn asks_for_a_lab(&self) -> bool {
        let sized = self.queues.is_some() || self.generators.is_some() || self.connections.is_some();
        sized || self.placement.steers() || self.server.is_some() || self.no_interrupt_stand_in || self.insist
    }

    /// Refuses options that do not apply to a place. `others` are those of one command alone.
    ///
    /// # Errors
    /// When there is one.
    pub(crate) fn check_applies(&self, place: Place, others: &[Applies]) -> Result<(), Failure> {
        let refused = self.applies().into_iter().chain(others.iter().copied());
        let mut refused = refused.filter(|(given, _, places)| *given && !places.contains(&place));
        match refused.next() {
            // `--on lab` can be given beside it, and is one of the places of most options.
            Some((_, option, _)) if place.is_published() => {
                Err(Failure::usage(format!("{option} cannot be used with {}", place.words())))
            }
            Some((_, option, places)) => {
                // Its options are those of a guest and of a published experiment.
                let named = places.iter().filter(|place| **place != Place::PublishedGuest);
                let places: Vec<&str> = named.map(|place| place.words()).collect();
                let (last, first) = places.split_last().unwrap_or((&"", &[]));
                let places =
                    if first.is_empty() { (*last).to_owned() } else { format!("{} or {last}", first.join(", ")) };
                Err(Failure::usage(format!("{option} can only be used with {places}")))
            }
            None => Ok(()),
        }
    }

    /// Refuses options that `quell tune --advise` does not use for programs. Placement says which plan is wanted.
    ///
    /// # Errors
    /// When there is one.
    pub(crate) fn check_advised(&self) -> Result<(), Failure> {
        let is_used =
            |option: &str, places: &[Place]| places.contains(&Place::Sim) || ["--steer", "--pin"].contains(&option);
        match self.applies().into_iter().find(|(given, option, places)| *given && !is_used(option, places)) {
            Some((_, option, _)) => {
                Err(Failure::usage(format!("{option} cannot be used with --advise, which only asks the model")))
            }
            None => Ok(()),
        }
    }

    fn applies(&self) -> [Applies; 17] {
        const SERVERS: &[Place] = &[Place::Programs, Place::Command];
        const MODELLED: &[Place] = &[Place::Lab, Place::Sim];
        const GUESTS: &[Place] = &[Place::Vm, Place::PublishedGuest];
        [
            (self.load.is_some(), "--load", SERVERS),
            (self.clients.is_some(), "--clients", &[Place::Programs]),
            (self.latency.is_some(), "--latency", SERVERS),
            (self.placement.steers(), "--steer", &[Place::Programs, Place::Command, Place::Lab]),
            // The workers of a lab are always pinned.
            (self.placement.pins(), "--pin", SERVERS),
            (self.accept_stalls, "--accept-stalls", &[Place::Programs]),
            (self.loads.is_some(), "--loads", MODELLED),
            (self.queues.is_some(), "--queues", MODELLED),
            (self.connections.is_some(), "--connections", MODELLED),
            (self.generators.is_some(), "--generators", &[Place::Lab]),
            (self.server.is_some(), "--server", &[Place::Lab]),
            (self.no_interrupt_stand_in, "--no-interrupt-stand-in", &[Place::Lab]),
            (self.insist, "--insist", &[Place::Lab, Place::Published]),
            (self.host.is_some(), "--host", &[Place::Sim]),
            (self.irqs_apart, "--irqs-apart", &[Place::Sim]),
            (self.kernel.is_some(), "--kernel", GUESTS),
            (self.nic.is_some(), "--nic", GUESTS),
        ]
    }
}
