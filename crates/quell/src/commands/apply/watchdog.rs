//! The watchdog process rolls a profile back unless it is confirmed. It starts before the first change, in its own
//! session, so it outlives the terminal and `quell apply`.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use quell_change::journal::Watchdog;
use quell_change::persistent::{self, WatchEnded};
use quell_linux::process::{Output, Spawn};

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::logging;

pub(crate) const COMMAND: &str = "watchdog";
const READY: &str = "ready";

/// Arguments of the watchdog.
#[derive(Debug, Args)]
pub(crate) struct WatchdogArgs {
    /// Journal of the profile.
    journal: PathBuf,
    /// Time until the rollback, in seconds.
    seconds: u64,
}

/// Starts the watchdog and waits until it accepts confirmations.
pub(super) fn start(journal: &Path, timeout: Duration) -> Result<Watchdog, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::KernelRefused, error);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let (reader, writer) = io::pipe().map_err(|error| failed(&error))?;
    let arguments = [COMMAND.to_owned(), journal.display().to_string(), timeout.as_secs().to_string()];
    let spawn = Spawn::new(program).args(arguments).stdout(Output::Pipe(writer));
    let child = logging::inherited_by(spawn).start().map_err(|error| failed(&error))?;
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).map_err(|error| failed(&error))?;
    if line.trim_end() != READY {
        return Err(Failure::new(Exit::KernelRefused, "the watchdog exited immediately"));
    }
    let identity = child.leave_running();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Watchdog {
        pid: identity.pid,
        start_time_ticks: identity.starttime.0,
        deadline_unix_s: (now + timeout).as_secs(),
    })
}

pub(crate) fn run(args: &WatchdogArgs) -> Result<(), Failure> {
    let ready = || {
        let mut out = io::stdout().lock();
        writeln!(out, "{READY}")?;
        out.flush()
    };
    let ended = persistent::watch(&journal(), &args.journal, Duration::from_secs(args.seconds), ready);
    match ended.map_err(|error| Failure::new(Exit::KernelRefused, error))? {
        WatchEnded::Reverted(reverted) if !reverted.failed.is_empty() => {
            Err(Failure::new(Exit::KernelRefused, "some changes could not be undone; they stay in the journal"))
        }
        WatchEnded::Reverted(_) | WatchEnded::Confirmed | WatchEnded::AlreadyReverted => Ok(()),
    }
}
