//! Location of result files: the state directory, unless the user specifies a file.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_linux::process::is_root;
use quell_linux::{own_file, visible};

use crate::exit::Failure;
use crate::file::Destination;

/// State directory of root.
const OF_ROOT: &str = "/var/lib/quell/results";
/// Environment variable that overrides the directory, for tests and for users.
const VARIABLE: &str = "QUELL_RESULTS_DIR";

/// Returns the file for a result of `command`: `named`, or a new file in the state directory. Creates the directory.
///
/// # Errors
/// Fails if the directory cannot be created.
pub(in crate::commands) fn destination(named: Option<&PathBuf>, command: &str) -> Result<Destination, Failure> {
    if let Some(file) = named {
        return Ok(Destination::named(file.clone(), "the result"));
    }
    let dir = directory();
    // Only this user may write to it, regardless of the umask.
    DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(|error| not_creatable(&dir, &error))?;
    Ok(Destination::by_default(dir.join(format!("{command}-{}.json", unix_time().as_secs())), "the result"))
}

/// Checks whether [`destination`] would succeed, without creating anything.
///
/// # Errors
/// Fails if the result cannot be created.
pub(in crate::commands) fn check_creatable(named: Option<&PathBuf>) -> Result<(), Failure> {
    let dir = named.map_or_else(|| Some(directory()), |file| file.parent().map(Path::to_owned));
    dir.map_or(Ok(()), |dir| own_file::check_creatable(&dir).map_err(|error| not_creatable(&dir, &error)))
}

fn not_creatable(dir: &Path, error: &std::io::Error) -> Failure {
    let dir = visible::path(dir);
    Failure::usage(format!("cannot create results in {dir}: {error}; specify a file for the result"))
}

pub(crate) fn directory() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable(VARIABLE) {
        return dir;
    }
    if is_root() {
        return OF_ROOT.into();
    }
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    state.map_or_else(|| PathBuf::from("."), |state| state.join("quell"))
}

/// Returns the time since 1970-01-01 UTC.
pub(in crate::commands) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
