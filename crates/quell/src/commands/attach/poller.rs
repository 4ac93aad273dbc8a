//! The process that polls the queues of an attachment (`userbusy`). It starts before the first queue is set, in its own
//! session.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use quell_host::attach::poller::process::poll_queues;
use quell_host::attach::poller::{self, PollerError};
use quell_host::attach::{AttachError, Attachment};
use quell_linux::process::{Output, Spawn};
use quell_mode::DeliveryMode;

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::logging;

pub(crate) const COMMAND: &str = "poller";

/// Arguments of the polling process.
#[derive(Debug, Args)]
pub(crate) struct PollerArgs {
    /// Journal of the attachment.
    journal: PathBuf,
}

/// Fails if the mode needs a poller for each of `queues` queues, and this host does not permit one or has too few CPUs.
pub(in crate::commands) fn check(mode: &DeliveryMode, queues: usize) -> Result<(), Failure> {
    let possible = poller::check(mode).map_err(PollerError::from).and_then(|()| poller::check_cpus(mode, queues));
    possible
        .map_err(|error| Failure::new(Exit::NotSupported, format!("{mode} is not possible here: {error}")).unchanged())
}

/// Starts the poller of an attachment whose mode has one, and waits until it may poll.
pub(in crate::commands) fn start(attachment: &mut Attachment) -> Result<(), AttachError> {
    if !attachment.needs_poller() {
        return Ok(());
    }
    let failed = |error: io::Error| PollerError::Process(error.to_string());
    let program = std::env::current_exe().map_err(failed)?;
    let (reader, writer) = io::pipe().map_err(failed)?;
    let args = [COMMAND.as_ref(), attachment.journal_path().as_os_str()];
    let spawn = Spawn::new(program).args(args).stdout(Output::Pipe(writer));
    attachment.start_poller(logging::inherited_by(spawn), reader)
}

pub(crate) fn run(args: &PollerArgs) -> Result<(), Failure> {
    let say = |line: &dyn std::fmt::Display| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    };
    if args.journal.is_absolute() {
        // It can live as long as a server, and must not prevent the user from unmounting a file system.
        let _ = std::env::set_current_dir("/");
    }
    poll_queues(&journal(), &args.journal, || say(&poller::READY)).map_err(|error| {
        // Before it is ready, the starter reads the reason. Later, nobody reads.
        let _ = say(&error);
        Failure::new(Exit::KernelRefused, error)
    })
}
