//! The process that puts an attachment back when its programs end: started before the first change, in a session of its
//! own, so that it outlives the terminal and whoever attached.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use quell_host::attach::keeper::{KeepingEnded, keep};
use quell_host::journal::Keeper;
use quell_linux::process::{Output, Spawn};

use crate::exit::{Exit, Failure};
use crate::journals::journal;

/// The hidden command that is the keeper.
pub(crate) const COMMAND: &str = "keeper";
/// What it says once it hears signals.
const READY: &str = "ready";

/// Its arguments.
#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    /// The journal that it keeps.
    journal: PathBuf,
}

/// Starts one, and returns when it hears signals.
///
/// # Errors
/// Says why it cannot be started.
pub(crate) fn start(journal: &Path) -> Result<Keeper, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (reader, writer) = io::pipe().map_err(|error| error.to_string())?;
    let spawn = Spawn::new(program).args([COMMAND.as_ref(), journal.as_os_str()]).stdout(Output::Pipe(writer));
    let child = spawn.start().map_err(|error| error.to_string())?;
    let mut said = String::new();
    BufReader::new(reader).read_line(&mut said).map_err(|error| error.to_string())?;
    if said.trim_end() != READY {
        return Err("it ended at once".to_owned());
    }
    let identity = child.leave_running();
    Ok(Keeper { pid: identity.pid.get().unsigned_abs(), start_time_ticks: identity.starttime.0 })
}

/// Is one.
///
/// # Errors
/// When the journal cannot be read or written, or something could not be put back.
pub(crate) fn run(args: &KeeperArgs) -> Result<(), Failure> {
    let ready = || {
        let mut out = io::stdout().lock();
        writeln!(out, "{READY}")?;
        out.flush()
    };
    if args.journal.is_absolute() {
        // It may live for as long as a server, and keeps no file system of whoever attached from being unmounted.
        let _ = std::env::set_current_dir("/");
    }
    let ended = keep(&journal(), &args.journal, ready);
    match ended.map_err(|error| Failure::new(Exit::KernelRefused, error))? {
        KeepingEnded::Reverted(reverted) if !reverted.failed.is_empty() => {
            Err(Failure::new(Exit::KernelRefused, "not everything could be restored; it stays in the journal"))
        }
        KeepingEnded::Reverted(_) | KeepingEnded::AlreadyReverted => Ok(()),
    }
}
