//! `quell lab up` and `quell lab down`: a lab that stays, to try things in by hand.

use clap::{Args, value_parser};
use quell_bench::cpus::CpuLayout;
use quell_bench::lab::veth::{PURPOSE, SERVER_DEVICE, VethLab, VethPlan};
use quell_host::kept::{Kept, list, release};
use quell_linux::Pid;
use quell_linux::sched;
use quell_mode::NapiSettings;

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// The lab's name, and the beginning of those of its namespaces.
const NAME: &str = "quell-lab";

/// Options of `quell lab up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Receive queues of the server's device.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    queues: u32,
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::KernelRefused, error)
}

/// Whether a journal is that of a lab which stays.
pub(in crate::commands) fn is_kept_lab(kept: &Kept) -> bool {
    kept.history.begin.purpose == PURPOSE
}

/// Raises the lab.
///
/// # Errors
/// When it is up already, or cannot be raised.
pub(super) fn up(args: &UpArgs) -> Result<(), Failure> {
    let journal = journal();
    if list(&journal).map_err(Failure::refused)?.iter().any(is_kept_lab) {
        return Err(Failure::usage("the lab is up already: `quell lab down` takes it down"));
    }
    let cpus: Vec<u32> = sched::affinity(Pid::of_this_process()).map_err(refused)?.iter().collect();
    let plan = VethPlan {
        queues: args.queues,
        // Queues share CPUs where there are too few: nothing is measured here.
        cpus: CpuLayout::plan(&cpus, args.queues as usize, 1, true).map_err(refused)?,
        interrupt_stand_in: false,
        client_napi: NapiSettings::default(),
    };
    let lab = VethLab::raise(&journal, NAME.to_owned(), plan).map_err(refused)?;
    let (server, client) = (lab.server.address, lab.client.address);
    lab.keep().map_err(refused)?;
    output::data(&format!(
        "{NAME}-server  {SERVER_DEVICE} {server}, {} queues\n{NAME}-client  {client}\n\
         run a server in it:  ip netns exec {NAME}-server COMMAND\n",
        args.queues
    ))
}

/// Takes it down, with everything that runs in it.
///
/// # Errors
/// When it is not up, or not all of it could be removed.
pub(super) fn down() -> Result<(), Failure> {
    let journal = journal();
    let kept = list(&journal).map_err(Failure::refused)?;
    let Some(lab) = kept.iter().find(|kept| is_kept_lab(kept)) else {
        return Err(Failure::usage("no lab is up: `quell lab up` raises one"));
    };
    let reverted = release(&journal, &lab.path).map_err(Failure::refused)?;
    let failed: Vec<String> =
        reverted.iter().flat_map(|reverted| &reverted.failed).map(|(_, error)| format!("\n  {error}")).collect();
    if failed.is_empty() {
        return output::data("the lab is down\n");
    }
    Err(refused(format!("not all of the lab could be removed; the rest stays in its journal:{}", failed.concat())))
}
