//! The process that puts a profile back when nobody confirms it: started before the first change, in a session of its
//! own, so that it outlives the terminal and whoever applied the profile.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use quell_host::journal::Watchdog;
use quell_host::kept::{self, WatchEnded};
use quell_linux::process::{Output, Spawn};

use crate::exit::{Exit, Failure};
use crate::journals::journal;

/// The hidden command that is the watchdog.
pub(crate) const COMMAND: &str = "watchdog";
/// What it says once it hears confirmations.
const READY: &str = "ready";

/// Its arguments.
#[derive(Debug, Args)]
pub(crate) struct WatchdogArgs {
    /// The journal that it watches over.
    journal: PathBuf,
    /// How long it waits, in seconds.
    seconds: u64,
}

/// Starts one, and returns when it hears confirmations.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(journal: &Path, patience: Duration) -> Result<Watchdog, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::KernelRefused, error);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let (reader, writer) = io::pipe().map_err(|error| failed(&error))?;
    let arguments = [COMMAND.to_owned(), journal.display().to_string(), patience.as_secs().to_string()];
    let spawn = Spawn::new(program).args(arguments).stdout(Output::Pipe(writer));
    let child = spawn.start().map_err(|error| failed(&error))?;
    let mut said = String::new();
    BufReader::new(reader).read_line(&mut said).map_err(|error| failed(&error))?;
    if said.trim_end() != READY {
        return Err(Failure::new(Exit::KernelRefused, "it ended at once"));
    }
    let identity = child.leave_running();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Watchdog {
        pid: identity.pid.get().unsigned_abs(),
        start_time_ticks: identity.starttime.0,
        deadline_unix_s: (now + patience).as_secs(),
    })
}

/// Is one.
///
/// # Errors
/// When the journal cannot be read or written, or something could not be put back.
pub(crate) fn run(args: &WatchdogArgs) -> Result<(), Failure> {
    let ready = || {
        let mut out = io::stdout().lock();
        writeln!(out, "{READY}")?;
        out.flush()
    };
    let ended = kept::watch(&journal(), &args.journal, Duration::from_secs(args.seconds), ready);
    match ended.map_err(|error| Failure::new(Exit::KernelRefused, error))? {
        WatchEnded::Reverted(reverted) if !reverted.failed.is_empty() => {
            Err(Failure::new(Exit::KernelRefused, "not everything could be restored; it stays in the journal"))
        }
        WatchEnded::Reverted(_) | WatchEnded::Confirmed | WatchEnded::AlreadyReverted => Ok(()),
    }
}
