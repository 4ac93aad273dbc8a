//! Options of `quell bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, value_parser};
use quell_host::attach::{TargetError, Targets};
use quell_load::OfferedLoad;
use quell_published::Experiment;
use quell_subject::replay::PLAYED;
use quell_vm::KernelName;

use crate::commands::apply::duration;
use crate::commands::programs_args::ProgramsArgs;
use crate::commands::vm::NicName;

/// Subject on which the modes are compared, if the user selects no programs of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Where {
    /// A private lab on this machine: network namespaces, a veth pair, and a real server. Needs root and Linux 6.13.
    Lab,
    /// The model of a host. Works on any machine and takes seconds.
    Sim,
    /// A kernel of `quell vm` under QEMU. Counts interrupts and measures no times. Needs no root.
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

/// Options of `quell bench`.
#[derive(Debug, Args)]
#[command(after_help = MODES_HELP, mut_group("ProgramsArgs", |group| group.conflicts_with_all(OF_LAB)))]
pub(crate) struct BenchArgs {
    /// Run in a private lab on this machine, in a guest, or on the model [lab, or sim if this machine cannot run the
    /// lab]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) on: Option<Where>,
    /// Play a published experiment in a private lab, and print the published figures beside those of this machine.
    #[arg(long, value_parser = played(), ignore_case = true, conflicts_with_all = OF_LAB_BUT_INSIST, conflicts_with_all = OF_SUBJECTS)]
    pub(crate) experiment: Option<Experiment>,
    /// With --on sim: host to model, either a name from `quell sim hosts` or the path of a .toml profile [epyc7662-cx5]
    #[arg(long, value_name = "NAME|FILE", requires = "on")]
    pub(crate) host: Option<String>,
    /// With --on vm: kernel of the guest, from `quell vm list` [the newest]
    #[arg(long, value_name = "KERNEL", requires = "on")]
    pub(crate) kernel: Option<KernelName>,
    /// With --on vm: NIC model of the guest; e1000e needs a -full kernel [default: virtio]
    #[arg(long, value_enum, requires = "on")]
    pub(crate) nic: Option<NicName>,
    #[command(flatten)]
    pub(crate) programs: ProgramsArgs,
    /// Generate the load with this command during the measurement [live traffic]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) load: Option<String>,
    /// Load from other machines during the measurement, and compare the latencies that they measure. The command starts
    /// `quell-mpi … --follow` on them: "mpirun --hostfile hosts --bind-to none quell-mpi 192.0.2.1:11211 --rate 200K
    /// --follow"
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["load", "latency", "beside_latency", "command"])]
    pub(crate) clients: Option<String>,
    /// Run this command once per slice, for example "wrk -d 1 ...", and compare the figures that it prints as `NAME
    /// VALUE` or as a line of JSON.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) latency: Option<String>,
    /// In the lab: start a second server on the same queues and compare its latency too. The command must speak
    /// memcached's text protocol: "memcached -u root -l {address} -p {port}"
    #[arg(long, value_name = "COMMAND")]
    pub(crate) beside: Option<String>,
    /// For programs of this host: run this command too, once per slice. It measures another program on the same queues
    /// and prints figures as the command of --latency does.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) beside_latency: Option<String>,
    /// Do not ask for confirmation before the programs are changed.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Set modes with suspension even if they stall the programs: network events can be delayed forever.
    #[arg(long)]
    pub(crate) accept_stalls: bool,
    /// Compare three modes under two loads, in less than a minute.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Compare all modes that need no restart of the server, at 25, 50, 75, 90 % and max.
    #[arg(long)]
    pub(crate) full: bool,
    /// Comma-separated modes to compare, such as base,defer200,suspend20,defer-hard-irqs=10. The other modes are
    /// compared with the first one.
    #[arg(long, value_name = "LIST")]
    pub(crate) modes: Option<String>,
    /// Comma-separated loads: percentages of base's maximum throughput, requests per second, or max [50%,90%,max]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) loads: Option<Vec<OfferedLoad>>,
    /// Maximum duration of the whole measurement. It ends earlier when all comparisons are decided. On the model, the
    /// time is virtual [2m; 50s with --quick, 30s on programs, 6m with --full; on the model 1m, 20s, 3m; in a guest
    /// 1m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) budget: Option<Duration>,
    /// Duration of a slice: for how long a mode is measured before the next one is set, in milliseconds [200; 1000 with
    /// --latency or a COMMAND; 100 on the model; 500 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(20..=60_000))]
    pub(crate) slice: Option<u32>,
    /// Settling time between setting a mode and measuring it, in milliseconds [10; 300 with a COMMAND; 150 on the
    /// model, which starts idle; 200 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(0..=60_000))]
    pub(crate) settle: Option<u32>,
    /// Seed for the order of the modes and for the generator's random choices [from the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Number of receive queues of the server. Each queue has a worker on its own CPU [1; on the model as many as its
    /// host has]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) queues: Option<u32>,
    /// Number of generator threads, each on its own CPU [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) generators: Option<u32>,
    /// Total number of connections. With fewer connections, the server is partly idle at max; more overflow the veth's
    /// ring of 255 packets [128; on the model 560 per queue]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) connections: Option<u32>,
    /// Measure this server instead of memcached. {address}, {port} and {workers} are replaced.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,
    /// With --server: request protocol [default: memcached]
    #[arg(long, value_enum, requires = "server")]
    pub(crate) protocol: Option<LabProtocol>,
    /// Do not replace the interrupts of the server's queues by NAPI threads. Softirqs then poll the queues on the
    /// sending CPU.
    #[arg(long)]
    pub(crate) no_interrupt_stand_in: bool,
    /// Measure even if there are too few CPUs or a lab check fails. The result is marked as not a measurement.
    #[arg(long)]
    pub(crate) insist: bool,
    /// Also print absolute figures and counters of each mode.
    #[arg(long)]
    pub(crate) details: bool,
    /// Write the result to this file [bench-TIME.json in /var/lib/quell/results, or in ~/.local/state/quell without
    /// root]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the result as JSON instead of a table.
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Start this command under each mode, and compare the modes on it. This also works for modes that need the preload
    /// library.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = OF_LAB, conflicts_with = "ProgramsArgs")]
    pub(crate) command: Vec<String>,
}

/// Parses the letter of a published experiment that a lab can play.
fn played() -> impl TypedValueParser<Value = Experiment> {
    let value = |experiment: Experiment| PossibleValue::new(experiment.letter()).help(experiment.title());
    PossibleValuesParser::new(PLAYED.map(value)).try_map(|letter| letter.parse::<Experiment>())
}

impl BenchArgs {
    /// Returns the programs to measure, or `None` if the user selected none.
    pub(crate) fn programs(&self) -> Option<Result<Targets, TargetError>> {
        self.programs.find()
    }

    /// Returns whether an option requires a lab. If the lab is not possible, the model must not replace it.
    pub(crate) fn asks_for_a_lab(&self) -> bool {
        let sized = self.kernel.is_some()
            || self.nic.is_some()
            || self.queues.is_some()
            || self.generators.is_some()
            || self.connections.is_some();
        sized || self.server.is_some() || self.beside.is_some() || self.no_interrupt_stand_in || self.insist
    }

    /// Returns the specified options that apply only to programs of this host. A lab has its own load.
    pub(crate) fn of_programs_only(&self) -> Vec<&'static str> {
        let given = [
            (self.load.is_some(), "--load"),
            (self.clients.is_some(), "--clients"),
            (self.latency.is_some(), "--latency"),
            (self.beside_latency.is_some(), "--beside-latency"),
            (self.yes, "--yes"),
            (self.accept_stalls, "--accept-stalls"),
        ];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// Returns the specified options that apply only to a guest.
    pub(crate) fn of_guest_only(&self) -> Vec<&'static str> {
        let given = [(self.kernel.is_some(), "--kernel"), (self.nic.is_some(), "--nic")];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// Returns the specified options that apply only to a lab.
    pub(crate) fn of_lab_only(&self) -> Vec<&'static str> {
        let given = [
            (self.generators.is_some(), "--generators"),
            (self.server.is_some(), "--server"),
            (self.beside.is_some(), "--beside"),
            (self.no_interrupt_stand_in, "--no-interrupt-stand-in"),
            (self.insist, "--insist"),
        ];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }
}

impl BenchArgs {
    /// Returns the specified options that do not apply to a guest, which has a fixed load.
    pub(crate) fn meaningless_in_a_guest(&self) -> Vec<&'static str> {
        let given = [
            (self.quick, "--quick"),
            (self.full, "--full"),
            (self.loads.is_some(), "--loads"),
            (self.host.is_some(), "--host"),
            (self.queues.is_some(), "--queues"),
            (self.generators.is_some(), "--generators"),
            (self.connections.is_some(), "--connections"),
            (self.server.is_some(), "--server"),
            (self.beside.is_some(), "--beside"),
            (self.no_interrupt_stand_in, "--no-interrupt-stand-in"),
            (self.insist, "--insist"),
        ];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }
}

/// Options of subjects other than the lab of a published experiment.
const OF_SUBJECTS: [&str; 13] = [
    "ProgramsArgs",
    "command",
    "load",
    "clients",
    "latency",
    "beside_latency",
    "yes",
    "accept_stalls",
    "modes",
    "beside",
    "server",
    "no_interrupt_stand_in",
    "details",
];

/// Options of labs that a published experiment fixes.
const OF_LAB_BUT_INSIST: [&str; 9] =
    ["on", "host", "kernel", "nic", "full", "loads", "queues", "generators", "connections"];

/// Options of labs, which do not apply to programs of this host.
const OF_LAB: [&str; 13] = [
    "beside",
    "on",
    "host",
    "kernel",
    "nic",
    "full",
    "loads",
    "queues",
    "generators",
    "connections",
    "server",
    "no_interrupt_stand_in",
    "insist",
];

const MODES_HELP: &str = concat!(
    "Modes: base (interrupts), deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy; N is gro-flush-timeout in µs. ",
    "A COMMAND also supports sockpollN and eventspinN, which spin for N µs; --on sim supports eventspinN. ",
    "Any setting can be overridden: suspend20,defer-hard-irqs=10,irq-suspend-timeout=5ms. Modes are switched in short slices ",
    "while the server runs. The first mode is measured twice per block; if its two results differ, the verdicts are withheld.",
);
