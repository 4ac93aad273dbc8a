//! The options of `quell bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use quell_bench::offered_load::OfferedLoad;
use quell_host::attach::{Selection, TargetError, Targets};
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;
use quell_vm::KernelName;

use crate::commands::apply::duration;
use crate::commands::vm::NicName;

/// Where the modes are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Where {
    /// A private lab of this machine: network namespaces, a veth pair, a real server. Needs root and Linux 6.13.
    Veth,
    /// The model of a host: anywhere, in seconds.
    Sim,
    /// A kernel of `quell vm` under QEMU's emulation: counts its interrupts, times nothing. Without root.
    Vm,
}

/// Options of `quell bench`.
#[derive(Debug, Args)]
#[command(after_help = MODES_HELP)]
pub(crate) struct BenchArgs {
    /// Where: on a private lab of this machine, in a guest, or on the model [veth; where this machine cannot run it, the
    /// model]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) on: Option<Where>,
    /// The modelled host, with --on sim: one of `quell sim hosts`, or the path of a profile, which ends in .toml
    /// [epyc7662-cx5]
    #[arg(long, value_name = "NAME|FILE", requires = "on")]
    pub(crate) host: Option<String>,
    /// The guest's kernel, with --on vm: one of `quell vm list` [the newest]
    #[arg(long, value_name = "KERNEL", requires = "on")]
    pub(crate) kernel: Option<KernelName>,
    /// The guest's NICs, with --on vm; e1000e takes a -full kernel [default: virtio]
    #[arg(long, value_enum, requires = "on")]
    pub(crate) nic: Option<NicName>,
    /// Measure these running processes and their children, on their own NIC and under their own traffic.
    #[arg(long, value_name = "PID", value_delimiter = ',', conflicts_with_all = OF_LAB, conflicts_with_all = ["unit", "cgroup"])]
    pub(crate) pid: Vec<Pid>,
    /// Measure the processes of a unit of the service manager, like nginx.service.
    #[arg(long, value_name = "NAME", conflicts_with_all = OF_LAB, conflicts_with = "cgroup")]
    pub(crate) unit: Option<String>,
    /// Measure the processes of a control group, by its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH", conflicts_with_all = OF_LAB)]
    pub(crate) cgroup: Option<String>,
    /// Run this command as load while the programs are measured [their live traffic]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) load: Option<String>,
    /// Run this command once per slice and compare the figures it prints, as `NAME VALUE` or a line of JSON: "wrk -d 1 ..."
    #[arg(long, value_name = "COMMAND")]
    pub(crate) latency: Option<String>,
    /// In the lab: start this second server on the same queues and report what each mode does to its latency. It speaks
    /// memcached's text protocol: "memcached -u root -l {address} -p {port}"
    #[arg(long, value_name = "COMMAND")]
    pub(crate) beside: Option<String>,
    /// For programs of this host: run this command once per slice too. It measures another program on the same queues and
    /// prints figures like that of --latency.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) beside_latency: Option<String>,
    /// Do not ask before the programs are switched between modes.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Three modes and two loads, under a minute.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every mode that can be set from outside, at 25, 50, 75, 90 % and max.
    #[arg(long)]
    pub(crate) full: bool,
    /// Modes to compare, by commas: base,defer200,suspend20,defer-hard-irqs=10. The first is what others are compared with.
    #[arg(long, value_name = "LIST")]
    pub(crate) modes: Option<String>,
    /// Loads to measure them under, by commas: shares of what base reaches, rates, max [50%,90%,max]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) loads: Option<Vec<OfferedLoad>>,
    /// Time of the whole measurement at most, virtual on the model; it ends early when every comparison is decided [2m;
    /// 50s with --quick, 6m with --full; on the model 1m, 20s, 3m; in a guest 1m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) budget: Option<Duration>,
    /// How long each mode is observed before the next is set, in milliseconds [200; 1000 with --latency or a COMMAND;
    /// 100 on the model, 500 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(20..=60_000))]
    pub(crate) slice: Option<u32>,
    /// How long each mode acts before it is observed, in milliseconds [10; 300 with a COMMAND; 150 on the model, which
    /// starts empty; 200 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(0..=60_000))]
    pub(crate) settle: Option<u32>,
    /// Decides the order of the modes and the generator's random choices [from the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Receive queues of the server, each with a worker on a CPU of its own [1; on the model its host's]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) queues: Option<u32>,
    /// Generator threads, each on a CPU of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) generators: Option<u32>,
    /// Connections in all; fewer leave the server idle at max, more overflow a veth's ring of 255 packets [128; on the
    /// model 560 for each queue]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) connections: Option<u32>,
    /// Another server than memcached, speaking its text protocol: {address}, {port}, {workers} are filled in.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,
    /// Do not let NAPI threads stand in for the interrupts of the server's queues: softirqs poll them, on whichever CPU
    /// sends.
    #[arg(long)]
    pub(crate) no_interrupt_stand_in: bool,
    /// Measure although there are fewer CPUs than workers and generator threads, or a check does not hold. The result
    /// says that it is not a measurement.
    #[arg(long)]
    pub(crate) insist: bool,
    /// Print absolute figures and counters of every mode too.
    #[arg(long)]
    pub(crate) details: bool,
    /// Write the result to this file [bench-TIME.json in /var/lib/quell/results, or in ~/.local/state/quell without root]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the table of an earlier result instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_MEASURING, conflicts_with_all = ["on", "schema"])]
    pub(crate) show: Option<PathBuf>,
    /// Draw the result of --show as an SVG image instead: latency and CPU time per request of each mode.
    #[arg(long, requires = "show", conflicts_with = "json")]
    pub(crate) svg: bool,
    /// Print the JSON Schema of result files instead of measuring.
    #[arg(long, conflicts_with_all = OF_MEASURING, conflicts_with = "json")]
    pub(crate) schema: bool,
    /// Print the result as JSON instead of the table.
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Start this command under each mode, after `--`, and measure it. Modes that need the preload library are possible.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = OF_LAB, conflicts_with_all = ["pid", "unit", "cgroup"])]
    pub(crate) command: Vec<String>,
}

impl BenchArgs {
    /// The programs to measure. `None` if they are those of a lab.
    pub(crate) fn programs(&self) -> Option<Result<Targets, TargetError>> {
        let selection = match (&self.unit, &self.cgroup) {
            (Some(unit), _) => Cgroup::of_unit(unit).map(Selection::Cgroup),
            (None, Some(path)) => Cgroup::at(path).map(Selection::Cgroup),
            (None, None) if self.pid.is_empty() => return None,
            (None, None) => Ok(Selection::Processes(self.pid.clone())),
        };
        Some(selection.map_err(TargetError::from).and_then(Targets::find))
    }

    /// An option that only a lab has, or that asks for one of a certain size: where that cannot be had, the model is no
    /// answer.
    pub(crate) fn asks_for_a_lab(&self) -> bool {
        let sized = self.kernel.is_some()
            || self.nic.is_some()
            || self.queues.is_some()
            || self.generators.is_some()
            || self.connections.is_some();
        sized || self.server.is_some() || self.beside.is_some() || self.no_interrupt_stand_in || self.insist
    }

    /// The options among these that mean nothing in a lab, which has its own load.
    pub(crate) fn of_programs_only(&self) -> Vec<&'static str> {
        let given = [
            (self.load.is_some(), "--load"),
            (self.latency.is_some(), "--latency"),
            (self.beside_latency.is_some(), "--beside-latency"),
            (self.yes, "--yes"),
        ];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// The options among these that mean something in a guest only.
    pub(crate) fn of_guest_only(&self) -> Vec<&'static str> {
        let given = [(self.kernel.is_some(), "--kernel"), (self.nic.is_some(), "--nic")];
        given.into_iter().filter_map(|(given, name)| given.then_some(name)).collect()
    }

    /// The options among these that mean nothing on the model.
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
    /// The options among these that mean nothing in a guest: its load is made for emulation.
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

/// Options of a lab, which mean nothing for programs of this host.
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

/// Options that say nothing where nothing is measured.
const OF_MEASURING: [&str; 27] = [
    "beside",
    "beside_latency",
    "command",
    "pid",
    "unit",
    "cgroup",
    "load",
    "latency",
    "yes",
    "host",
    "kernel",
    "nic",
    "quick",
    "full",
    "modes",
    "loads",
    "budget",
    "slice",
    "settle",
    "seed",
    "queues",
    "generators",
    "connections",
    "server",
    "no_interrupt_stand_in",
    "insist",
    "output",
];

const MODES_HELP: &str = concat!(
    "Modes: base (interrupts), deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy; N is gro-flush-timeout in µs. ",
    "With --on sim also eventspinN, which spins for N µs. ",
    "Any setting can be overridden: suspend20,defer-hard-irqs=10,irq-suspend-timeout=5ms. Modes are switched in short slices ",
    "while the server serves; base is measured twice, and a difference between the two withholds the verdicts.",
);
