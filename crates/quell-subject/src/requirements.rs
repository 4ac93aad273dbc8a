//! Finds the requirements of a lab that this machine does not meet, before anything is changed. The functions probe the
//! kernel instead of comparing versions.

use std::path::{Path, PathBuf};

use quell_linux::capability::{self, Capability};
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::netlink::Failure;
use quell_linux::proc::ProcRoot;
use quell_linux::visible;
use quell_linux::{NapiId, kernel};

use crate::server::ServerCommand;

/// A requirement of the lab that this machine does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Name of the requirement.
    pub what: String,
    /// Observed state.
    pub observed: String,
    /// Instruction that fixes the problem.
    pub fix: String,
}

/// Capabilities that the lab needs, with the reason for each.
const CAPABILITIES: &[(Capability, &str)] = &[
    (Capability::NetAdmin, "create the veth pair and configure its queues"),
    (Capability::SysAdmin, "create network namespaces"),
    (Capability::SysNice, "run NAPI threads under SCHED_FIFO"),
    (Capability::SysPtrace, "access the server's epolls"),
];

/// Returns all requirements of a lab with `server` that this machine does not meet.
#[must_use]
pub fn missing(server: &ServerCommand) -> Vec<Missing> {
    let all = [missing_capabilities(), missing_napi_settings(), missing_kernel_threads(), missing_server(server)];
    all.into_iter().flatten().collect()
}

fn missing_capabilities() -> Option<Missing> {
    let Ok(Some(effective)) = capability::effective(&ProcRoot::default()) else {
        return Some(Missing {
            what: "readable capabilities of this process".into(),
            observed: "its /proc/self/status could not be read".into(),
            fix: "mount the proc file system at /proc".into(),
        });
    };
    let lacking: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(capability, _)| !effective.missing(&[*capability]).is_empty())
        .map(|(capability, purpose)| format!("{capability} to {purpose}"))
        .collect();
    if lacking.is_empty() {
        // The kernel checks CAP_NET_ADMIN for `napi-set` in the initial user namespace.
        let is_initial = capability::in_initial_user_namespace(&ProcRoot::default()).unwrap_or(true);
        return (!is_initial).then(|| Missing {
            what: "privileges: capabilities in the initial user namespace".into(),
            observed: "this process is in another user namespace, as in a rootless container".into(),
            fix: "run quell as root of the host".into(),
        });
    }
    Some(Missing {
        what: format!("privileges: {}", lacking.join(", ")),
        observed: "this process lacks them".into(),
        fix: "run quell as root: sudo quell bench".into(),
    })
}

/// Sends an empty `napi-set` request for a NAPI instance that does not exist. A kernel with `napi-set` answers
/// `ENOENT`; an older kernel answers `EOPNOTSUPP`.
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
        observed: error.to_string(),
        fix: "boot Linux 6.13 or newer; older kernels have no IRQ suspension either".into(),
    })
}

fn missing_kernel_threads() -> Option<Missing> {
    if kernel::threads_are_in_sight(&ProcRoot::default()) {
        return None;
    }
    Some(Missing {
        what: "visible kernel threads, to pin NAPI threads".into(),
        observed: "this PID namespace does not contain the kernel's threads".into(),
        fix: "run quell outside of the container, or share the host's PID namespace with it (--pid=host)".into(),
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
            "install it (Debian: apt-get install memcached), or choose another server with --server"
        }
        ServerCommand::Other(_) => "specify the path of an existing program",
    };
    let what = format!("the server program {}", visible::path(&program));
    Some(Missing { what, observed: "no such executable file".into(), fix: fix.into() })
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
    fn a_program_is_searched_for_in_the_path() {
        assert_eq!(missing_server(&ServerCommand::Other(vec!["sh".into()])), None);
        assert!(missing_server(&ServerCommand::Other(vec!["no-such-program-anywhere".into()])).is_some());
    }

    #[test]
    fn no_requirement_is_missing_on_machines_that_can_run_labs() {
        let able = capability::effective(&ProcRoot::default()).unwrap().unwrap();
        let is_initial = capability::in_initial_user_namespace(&ProcRoot::default()).unwrap();
        let needed: Vec<Capability> = CAPABILITIES.iter().map(|(capability, _)| *capability).collect();
        let missing = missing(&ServerCommand::Other(vec!["sh".into()]));
        let privileges = missing.iter().any(|missing| missing.what.starts_with("privileges"));
        assert_eq!(privileges, !(is_initial && able.missing(&needed).is_empty()), "{missing:?}");
    }
}
