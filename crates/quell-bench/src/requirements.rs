//! Finds the requirements of a lab that this machine lacks, before anything is changed. The machine is probed; its
//! version is not used. Each entry states the missing requirement, the observation and the fix.

use std::path::{Path, PathBuf};

use quell_linux::capability::{self, Capability};
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::netlink::Failure;
use quell_linux::proc::ProcRoot;
use quell_linux::visible;
use quell_linux::{NapiId, kernel};

use crate::server::ServerCommand;

/// A missing requirement of the lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Missing requirement.
    pub what: String,
    /// Observation.
    pub seen: String,
    /// How to fix it.
    pub fix: String,
}

/// Capabilities that the lab uses, with their purpose.
const CAPABILITIES: &[(Capability, &str)] = &[
    (Capability::NetAdmin, "make the veth pair and set its queues"),
    (Capability::SysAdmin, "make network namespaces"),
    (Capability::SysNice, "run NAPI threads under SCHED_FIFO"),
    (Capability::SysPtrace, "reach the server's epolls"),
];

/// All requirements that are missing to run `server` in the lab. Empty if it can run.
#[must_use]
pub fn missing(server: &ServerCommand) -> Vec<Missing> {
    let all = [missing_capabilities(), missing_napi_settings(), missing_kernel_threads(), missing_server(server)];
    all.into_iter().flatten().collect()
}

fn missing_capabilities() -> Option<Missing> {
    let Ok(Some(effective)) = capability::effective(&ProcRoot::default()) else {
        return Some(Missing {
            what: "the capabilities of this process".into(),
            seen: "its status could not be read".into(),
            fix: "mount the proc file system".into(),
        });
    };
    let lacking: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(capability, _)| !effective.missing(&[*capability]).is_empty())
        .map(|(capability, purpose)| format!("{capability} to {purpose}"))
        .collect();
    if lacking.is_empty() {
        return None;
    }
    Some(Missing {
        what: format!("privileges: {}", lacking.join(", ")),
        seen: "this process does not have them".into(),
        fix: "run it as root: sudo quell bench".into(),
    })
}

/// Asks the kernel to set nothing on a NAPI instance that cannot exist. A kernel with `napi-set` answers that there is
/// no such instance. A kernel without it answers that the operation is not supported.
fn missing_napi_settings() -> Option<Missing> {
    let asked = Netdev::open().and_then(|mut netdev| {
        let nobody = NapiId::from_kernel(u32::MAX).unwrap_or_else(|| unreachable!("not zero"));
        netdev.set_napi(nobody, &PartialNapiSettings::default())
    });
    let error = asked.err()?;
    if error.failure() != Failure::Unsupported {
        return None;
    }
    Some(Missing {
        what: "per-NAPI settings (netlink family netdev, napi-set)".into(),
        seen: error.to_string(),
        fix: "boot Linux 6.13 or newer; before it there is no IRQ suspension either".into(),
    })
}

fn missing_kernel_threads() -> Option<Missing> {
    if kernel::threads_are_in_sight(&ProcRoot::default()) {
        return None;
    }
    Some(Missing {
        what: "the kernel's threads, to pin those of NAPI instances".into(),
        seen: "they are not in this PID namespace".into(),
        fix: "run it outside of the container, or in one that shares the host's PID namespace (--pid=host)".into(),
    })
}

fn missing_server(server: &ServerCommand) -> Option<Missing> {
    let program = match server {
        ServerCommand::Memcached { program } => program.clone(),
        ServerCommand::Other(words) => PathBuf::from(words.first()?),
    };
    if is_executable(&program) {
        return None;
    }
    let fix = match server {
        ServerCommand::Memcached { .. } => {
            "install it (Debian: apt-get install memcached), or name another with --server"
        }
        ServerCommand::Other(_) => "give the path of a program that exists",
    };
    let what = format!("the server program {}", visible::path(&program));
    Some(Missing { what, seen: "there is no such executable file".into(), fix: fix.into() })
}

fn is_executable(program: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if program.components().count() > 1 {
        return executable(program);
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| executable(&dir.join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_is_reported_with_its_fix() {
        let server = ServerCommand::Memcached { program: "/nonexistent/memcached".into() };
        let missing = missing_server(&server).unwrap();
        assert!(missing.what.contains("/nonexistent/memcached"));
        assert!(missing.fix.contains("apt-get install memcached"));
    }

    #[test]
    fn a_program_is_searched_in_the_path() {
        assert_eq!(missing_server(&ServerCommand::Other(vec!["sh".into()])), None);
        assert!(missing_server(&ServerCommand::Other(vec!["no-such-program-anywhere".into()])).is_some());
    }

    #[test]
    fn requirements_are_probed_and_none_is_missing_where_labs_can_run() {
        let able = capability::effective(&ProcRoot::default()).unwrap().unwrap();
        let needed: Vec<Capability> = CAPABILITIES.iter().map(|(capability, _)| *capability).collect();
        let missing = missing(&ServerCommand::Other(vec!["sh".into()]));
        let privileges = missing.iter().any(|missing| missing.what.starts_with("privileges"));
        assert_eq!(privileges, !able.missing(&needed).is_empty(), "{missing:?}");
    }
}
