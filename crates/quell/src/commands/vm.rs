//! `quell vm`: fetches and lists kernels, and runs a command of this program or a shell in a QEMU guest.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use quell_linux::signal::{Interruption, InterruptionFlag};
use quell_subject::vm::{self, GuestTask};
use quell_vm::debian::{Archives, FetchError, FetchStep, Offer, SUITES};
use quell_vm::machine::{Emulator, Ended, Machine, MachineError, Nic};
use quell_vm::store::{Store, StoreError, StoredKernel};
use quell_vm::{Flavour, KernelName, guest};
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::progress::Progress;

/// Actions on kernels and guests.
#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Fetch and verify kernels from the Debian mirror into the user's cache; needs no root, installs nothing.
    Get {
        /// Series such as 6.12, or 6.12-full with drivers of real NICs [default: the lean build of every series]
        kernels: Vec<KernelName>,
        /// Mirror of the Debian archive [default: apt's]
        #[arg(long, value_name = "URL")]
        mirror: Option<String>,
    },
    /// List fetched kernels.
    List {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Run a quell command in a guest: `quell vm run --kernel 6.12 -- show --json`.
    Run {
        #[command(flatten)]
        guest: GuestArgs,
        /// Time limit of the guest, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        limit_s: u64,
        /// The command and its options.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Open a shell in a guest; leave it with `exit` or Ctrl-A X.
    Shell {
        #[command(flatten)]
        guest: GuestArgs,
    },
}

/// Options of a guest.
#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// Kernel [default: the newest fetched]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<KernelName>,
    /// NIC type; e1000e needs a -full kernel [default: virtio]
    #[arg(long, value_enum)]
    nic: Option<NicName>,
}

impl GuestArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.kernel.is_some() || self.nic.is_some()
    }

    pub(crate) fn machine(&self, limit: Duration) -> Result<Machine, Failure> {
        let kernel = stored_kernel(self.kernel.as_ref())?;
        let emulator = Emulator::find().map_err(|error| of_machine(&error))?;
        Ok(Machine { emulator, kernel, nic: self.nic.unwrap_or_default().into(), cpus: CPUS, limit })
    }
}

/// NIC types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum NicName {
    /// virtio-net-pci.
    #[default]
    Virtio,
    /// e1000e.
    E1000e,
}

impl From<NicName> for Nic {
    fn from(name: NicName) -> Self {
        match name {
            NicName::Virtio => Self::Virtio,
            NicName::E1000e => Self::E1000e,
        }
    }
}

const CPUS: u32 = 2;

/// Output of `quell vm list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KernelsReport {
    schema: &'static str,
    kernels: Vec<quell_vm::store::Origin>,
}

impl KernelsReport {
    pub(super) const SCHEMA: &str = "quell-kernels/1";
}

/// Runs the command.
///
/// # Errors
/// When a kernel cannot be fetched, or the guest fails. If the command in the guest fails, its exit code is passed on.
pub(crate) fn run(command: &VmCommand) -> Result<(), Failure> {
    match command {
        VmCommand::Get { kernels, mirror } => get(kernels, mirror.as_deref()),
        VmCommand::List { json } => list(*json),
        VmCommand::Run { guest, limit_s, command } => in_guest(guest, Duration::from_secs(*limit_s), command),
        VmCommand::Shell { guest } => guest.machine(Duration::MAX)?.shell().map_err(|error| of_machine(&error)),
    }
}

/// Runs as process 1 of a guest; returns only on errors, for example outside of a guest.
pub(crate) fn guest_init() -> Result<(), Failure> {
    let never: Infallible = guest::run().map_err(Failure::usage)?;
    match never {}
}

/// Carries out a task in this guest, and prints each event as a line of JSON.
pub(crate) fn lab_in_guest(task: &str) -> Result<(), Failure> {
    let task = serde_json::from_str(task).map_err(Failure::usage)?;
    let mut printed = Ok(());
    let mut take = |line: Result<(), Failure>| printed = std::mem::replace(&mut printed, Ok(())).and(line);
    let carried_out = match &task {
        GuestTask::Answer(question) => {
            vm::guest::answer(question, &journal(), &mut |event| take(output::json_line(event)))
        }
        GuestTask::Play(replay) => vm::xdp::carry_out(replay, &mut |event| take(output::json_line(event))),
    };
    carried_out.map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    printed
}

fn get(wanted: &[KernelName], mirror: Option<&str>) -> Result<(), Failure> {
    let store = store()?;
    if let Err(missing) = Emulator::find() {
        output::say(&format!("warning: guests cannot be started: {missing}"));
    }
    let progress = Progress::new();
    let outcome = fetch(wanted, mirror, &store, &progress);
    progress.finish();
    outcome
}

fn fetch(wanted: &[KernelName], mirror: Option<&str>, store: &Store, progress: &Progress) -> Result<(), Failure> {
    let doing = |what: &str| {
        progress.say(&format!("{what} ..."));
        progress.doing(what);
    };
    doing(&format!("updating the apt indexes of {}", SUITES.join(", ")));
    let archives = Archives::update(store, mirror).map_err(|error| of_fetching(&error))?;
    for offer in offers(&archives, wanted).map_err(|error| of_fetching(&error))? {
        let name = &offer.origin.name;
        progress.say(&format!("{name} is {} of {}", offer.origin.version, offer.origin.suite));
        let mut step = |step: FetchStep| doing(&format!("{name}: {step}"));
        let kernel = archives.get(&offer, store, &mut step).map_err(|error| of_fetching(&error))?;
        output::data(&line(&kernel))?;
    }
    Ok(())
}

fn offers(archives: &Archives, wanted: &[KernelName]) -> Result<Vec<Offer>, FetchError> {
    if wanted.is_empty() {
        let mut offers = archives.offers()?;
        offers.retain(|offer| offer.origin.name.flavour() == Flavour::Cloud);
        return Ok(offers);
    }
    wanted.iter().map(|name| archives.offer(name)).collect()
}

fn list(json: bool) -> Result<(), Failure> {
    let kernels = store()?.kernels().map_err(|error| of_store(&error))?;
    if json {
        let kernels = kernels.into_iter().map(|kernel| kernel.origin).collect();
        return output::json(&KernelsReport { schema: KernelsReport::SCHEMA, kernels });
    }
    if kernels.is_empty() {
        return output::data("no kernels fetched; run `quell vm get`\n");
    }
    output::data(&kernels.iter().map(line).collect::<String>())
}

fn line(kernel: &StoredKernel) -> String {
    let origin = &kernel.origin;
    format!("{:<10} {} ({})\n", origin.name.to_string(), origin.version, origin.suite)
}

fn in_guest(guest: &GuestArgs, limit: Duration, command: &[String]) -> Result<(), Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag: InterruptionFlag = interruption.flag();
    let mut printed = Ok(());
    let mut print = |line: &str, _| {
        printed = output::data(&format!("{line}\n"));
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let ended = guest.machine(limit)?.run(command, &mut print, &|| flag.get().is_some());
    let ended = ended.map_err(|error| of_machine(&error))?;
    printed?;
    let Some(Ended { release, boot, code, diagnostics }) = ended else { return Ok(()) };
    if !diagnostics.is_empty() {
        output::say(diagnostics.trim_end());
    }
    output::say(&format!("ran on Linux {release} in a guest that booted in {:.1} s", boot.as_secs_f64()));
    match code {
        Some(0) => Ok(()),
        Some(code) => {
            Err(Failure::new(Exit::from_code(code), format!("the command in the guest exited with code {code}")))
        }
        None => Err(Failure::new(Exit::RolledBack, "the command in the guest was killed by a signal")),
    }
}

/// The fetched kernel of this name, or the newest.
pub(crate) fn stored_kernel(name: Option<&KernelName>) -> Result<StoredKernel, Failure> {
    let store = store()?;
    let kernel = name.map_or_else(|| store.newest(), |name| store.kernel(name));
    kernel.map_err(|error| of_store(&error))
}

fn store() -> Result<Store, Failure> {
    Store::of_user().map_err(|error| of_store(&error))
}

pub(crate) fn of_store(error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::NotHere { .. } | StoreError::Empty | StoreError::NotOwn { .. } => Exit::NotSupported,
        _ => Exit::RolledBack,
    };
    Failure::new(exit, error)
}

fn of_fetching(error: &FetchError) -> Failure {
    let exit = match error {
        FetchError::NotOffered { .. } | FetchError::InvalidMirror(_) => Exit::Usage,
        FetchError::Run { .. } | FetchError::NoMirror => Exit::NotSupported,
        _ => Exit::RolledBack,
    };
    Failure::new(exit, error)
}

pub(crate) fn of_machine(error: &MachineError) -> Failure {
    let exit = match error {
        MachineError::NoEmulator { .. } | MachineError::Architecture | MachineError::NoBusybox => Exit::NotSupported,
        MachineError::Interrupted => Exit::Interrupted,
        _ => Exit::RolledBack,
    };
    Failure::new(exit, error)
}
