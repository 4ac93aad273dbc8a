//! Starts `mpirun` for a host file, after every name in it was resolved. Open MPI reports a name that does not resolve as
//! a daemon that could not be started, with a page of possible reasons.

use std::ffi::OsString;
use std::io;
use std::net::ToSocketAddrs as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use quell_linux::visible;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    #[error("could not read the host file {}: {source}", visible::path(.file))]
    Read { file: PathBuf, source: io::Error },
    /// The host file names no host.
    #[error("the host file {} names no host; write one name or address per line", visible::path(.file))]
    Empty { file: PathBuf },
    #[error(
        "host file {}, line {line}: {:?} does not resolve ({source}); correct the line, or add the name to DNS or /etc/hosts",
        visible::path(.file), visible::name(.host)
    )]
    Unresolved { file: PathBuf, line: usize, host: String, source: io::Error },
    #[error("could not execute mpirun: {0}; install Open MPI (Debian: openmpi-bin)")]
    Execute(io::Error),
}

/// Resolves every name of a host file. The rest of a line, such as `slots=1`, is for `mpirun`.
pub fn check_hosts(file: &Path) -> Result<(), LaunchError> {
    let text = std::fs::read_to_string(file).map_err(|source| LaunchError::Read { file: file.to_owned(), source })?;
    let words = text.lines().map(|line| line.split('#').next().unwrap_or_default().split_whitespace().next());
    let hosts: Vec<(usize, &str)> = (1..).zip(words).filter_map(|(line, host)| Some((line, host?))).collect();
    if hosts.is_empty() {
        return Err(LaunchError::Empty { file: file.to_owned() });
    }
    // The port is not used.
    let unresolved = hosts.into_iter().find_map(|(line, host)| Some((line, host, (host, 0).to_socket_addrs().err()?)));
    match unresolved {
        None => Ok(()),
        Some((line, host, source)) => {
            Err(LaunchError::Unresolved { file: file.to_owned(), line, host: host.to_owned(), source })
        }
    }
}

/// Executes `mpirun` in place of this process: one rank of `program` with `arguments` on each host of the file. Returns
/// only on an error.
#[must_use]
pub fn launch(file: &Path, program: &Path, arguments: &[OsString]) -> LaunchError {
    if let Err(error) = check_hosts(file) {
        return error;
    }
    let mut mpirun = Command::new("mpirun");
    // Open MPI would bind all threads of a rank to one core.
    mpirun.arg("--hostfile").arg(file).args(["--map-by", "ppr:1:node", "--bind-to", "none"]);
    LaunchError::Execute(mpirun.arg(program).args(arguments).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts");
        std::fs::write(&file, text).unwrap();
        check_hosts(&file).map_err(|error| error.to_string().replace(&*file.to_string_lossy(), "hosts"))
    }

    #[test]
    fn a_name_that_does_not_resolve_is_reported_with_its_line() {
        assert_eq!(check("# clients\n127.0.0.1 slots=1\n::1 # second\n"), Ok(()));
        let why = check("127.0.0.1\n\nno-such-host.invalid slots=2\n").unwrap_err();
        assert!(why.starts_with("host file hosts, line 3: \"no-such-host.invalid\" does not resolve ("), "{why}");
        assert!(check("# nobody\n").unwrap_err().starts_with("the host file hosts names no host"));
    }
}
