//! The keeper process undoes an attachment when its programs exit. It starts before the first change, in its own
//! session, so it outlives the terminal and `quell attach`.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use quell_change::journal::Keeper;
use quell_host::attach::keeper::{KeepingEnded, keep};
use quell_linux::Pid;
use quell_linux::process::{Output, Spawn};

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::logging;

pub(crate) const COMMAND: &str = "keeper";
const READY: &str = "ready";

/// Arguments of the keeper.
#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    /// Journal of the attachment.
    journal: PathBuf,
}

/// Starts the keeper and waits until it handles signals.
pub(crate) fn start(journal: &Path) -> Result<Keeper, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let (reader, writer) = io::pipe().map_err(|error| error.to_string())?;
    let spawn = Spawn::new(program).args([COMMAND.as_ref(), journal.as_os_str()]).stdout(Output::Pipe(writer));
    let child = logging::inherited_by(spawn).start().map_err(|error| error.to_string())?;
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).map_err(|error| error.to_string())?;
    if line.trim_end() != READY {
        return Err("the keeper exited immediately".to_owned());
    }
    let identity = child.leave_running();
    Ok(Keeper { pid: identity.pid, start_time_ticks: identity.starttime.0 })
}

/// That the keeper was started again.
pub(crate) fn restarted(pid: Pid) -> String {
    format!(
        "somebody has ended the keeper, which restores the mode if this command is killed: started it again, PID {pid}"
    )
}

pub(crate) fn run(args: &KeeperArgs) -> Result<(), Failure> {
    let ready = || {
        let mut out = io::stdout().lock();
        writeln!(out, "{READY}")?;
        out.flush()
    };
    if args.journal.is_absolute() {
        // The keeper can live as long as a server. It must not prevent the user from unmounting a file system.
        let _ = std::env::set_current_dir("/");
    }
    let ended = keep(&journal(), &args.journal, ready);
    match ended.map_err(|error| Failure::new(Exit::KernelRefused, error))? {
        KeepingEnded::Reverted(reverted) if !reverted.failed.is_empty() => {
            Err(Failure::new(Exit::KernelRefused, "some changes could not be undone; they stay in the journal"))
        }
        KeepingEnded::Reverted(_) | KeepingEnded::AlreadyReverted | KeepingEnded::HandedOver => Ok(()),
    }
}
