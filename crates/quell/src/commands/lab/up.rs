//! `quell lab up` and `quell lab down`: a persistent lab for manual experiments.

use clap::{Args, value_parser};
use quell_change::journal::Purpose;
use quell_change::persistent::{Persistent, list, release};
use quell_linux::Pid;
use quell_linux::sched;
use quell_linux::visible::counted;
use quell_mode::NapiSettings;
use quell_subject::cpus;
use quell_subject::lab::veth::{SERVER_DEVICE, VethLab, VethPlan};

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// Name of the lab and prefix of its namespaces.
const NAME: &str = "quell-lab";

/// Options of `quell lab up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Receive queues of the server's device.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    queues: u32,
}

pub(in crate::commands) fn is_persistent_lab(kept: &Persistent) -> bool {
    kept.history.begin.purpose == Purpose::Lab
}

pub(super) fn up(args: &UpArgs) -> Result<(), Failure> {
    let journal = journal();
    if list(&journal).map_err(Failure::refused)?.iter().any(is_persistent_lab) {
        return Err(Failure::usage("the lab is already up: remove it with `quell lab down`"));
    }
    let cpus: Vec<u32> = sched::affinity(Pid::of_this_process()).map_err(Failure::refused)?.iter().collect();
    let plan = VethPlan {
        queues: args.queues,
        // Queues may share CPUs: nothing is measured here.
        cpus: cpus::assign(&cpus, args.queues as usize, 1, true).map_err(Failure::refused)?,
        interrupt_stand_in: false,
        client_napi: NapiSettings::default(),
    };
    let lab = VethLab::raise(&journal, NAME.to_owned(), plan).map_err(Failure::refused)?;
    let (server, client) = (lab.server.address, lab.client.address);
    lab.keep().map_err(Failure::refused)?;
    output::data(&format!(
        "{NAME}-server  {SERVER_DEVICE} {server}, {}\n{NAME}-client  {client}\n\
         run a server in it:  ip netns exec {NAME}-server COMMAND\n\
         send requests to it: ip netns exec {NAME}-client quell load {server}:PORT --rate 5K --seconds 60\n\
         remove the lab:      quell lab down\n",
        counted(args.queues, "queue")
    ))
}

/// Removes the lab and kills everything that runs in it.
pub(super) fn down() -> Result<(), Failure> {
    let journal = journal();
    let kept = list(&journal).map_err(Failure::refused)?;
    let Some(lab) = kept.iter().find(|kept| is_persistent_lab(kept)) else {
        return Err(Failure::usage("no lab is up: create one with `quell lab up`"));
    };
    let reverted = release(&journal, &lab.path).map_err(Failure::refused)?;
    let failed: Vec<String> =
        reverted.iter().flat_map(|reverted| &reverted.failed).map(|(_, error)| format!("\n  {error}")).collect();
    if failed.is_empty() {
        return output::data("lab removed\n");
    }
    let text = format!("the lab could not be removed completely; its journal is kept:{}", failed.concat());
    Err(Failure::new(Exit::KernelRefused, text))
}
