//! Why a guest did not get to the end of its command, with its last words.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::proc::Schedstat;
use quell_linux::process::ProcessError;
use thiserror::Error;

use crate::program::ProgramError;
use crate::store::StoreError;

/// Why a guest did not get to the end of its command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// QEMU is not installed.
    #[error("{program} is not on the PATH; guests run under QEMU (Debian: apt install qemu-system-x86)")]
    NoEmulator {
        /// The program that was looked for.
        program: &'static str,
    },
    /// QEMU could not be started, or waited for.
    #[error(transparent)]
    Qemu(ProcessError),
    /// This machine is of another kind than the kernels.
    #[error("the kernels of the vm lab are for x86-64, and this program is built for {}", std::env::consts::ARCH)]
    Architecture,
    /// This program could not be put into the guest.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's files could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the host could not be read or written.
    #[error("preparing {path}: {source}")]
    Prepare {
        /// The file.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// There is no shell to put into a guest.
    #[error("a shell in the guest needs a statically linked BusyBox on the PATH (Debian: busybox-static)")]
    NoBusybox,
    /// The time limit passed.
    #[error("the guest did not end within {} s ({}); its last words:\n{console}", .limit.as_secs(), so_far(.boot, .host))]
    TimeLimit {
        /// The limit.
        limit: Duration,
        /// From the start of QEMU until the command was started; absent when it was not.
        boot: Option<Duration>,
        /// What QEMU had of the host's CPUs; absent when the host does not tell.
        host: Option<Schedstat>,
        /// The end of its console and of what its command wrote to standard error.
        console: String,
    },
    /// It ended before it had booted, again and again: the kernel panicked.
    #[error("{attempts} guests ended before they had booted; QEMU says {qemu:?}; the last one's console:\n{console}")]
    Boot {
        /// How many were started.
        attempts: u32,
        /// What QEMU wrote to standard error.
        qemu: String,
        /// Beginning and end of the console.
        console: String,
    },
    /// It ended without saying how its command did: the kernel panicked under it, or QEMU failed.
    #[error("the guest ended before its command did; QEMU says {qemu:?}; its last words:\n{console}")]
    Lost {
        /// What QEMU wrote to standard error.
        qemu: String,
        /// The end of its console and of what its command wrote to standard error.
        console: String,
    },
    /// It could not be set up.
    #[error("in the guest: {failure}; its last words:\n{console}")]
    Guest {
        /// The guest's words.
        failure: String,
        /// The end of its console and of what its command wrote to standard error.
        console: String,
    },
    /// Its messages could not be read.
    #[error("listening to the guest: {0}")]
    Listen(io::Error),
    /// The user had enough.
    #[error("interrupted")]
    Interrupted,
}

/// How far a guest got, and whether its host let it.
fn so_far(boot: &Option<Duration>, host: &Option<Schedstat>) -> String {
    let got = boot.map_or_else(
        || "its command was not started yet".to_owned(),
        |boot| format!("it had booted after {:.1} s", boot.as_secs_f64()),
    );
    let had = host.map_or_else(String::new, |host| {
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        format!(
            "; the emulator ran for {:.1} s and waited {:.1} s for a CPU",
            seconds(host.run_ns),
            seconds(host.wait_ns)
        )
    });
    got + &had
}

/// For `map_err`: a file of the host could not be read or written.
pub(crate) fn prepare(path: &Path) -> impl FnOnce(io::Error) -> MachineError {
    let path = path.to_owned();
    move |source| MachineError::Prepare { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_took_too_long_says_how_far_it_got_and_what_its_host_gave_it() {
        let host = Schedstat { run_ns: 12_000_000_000, wait_ns: 40_500_000_000, timeslices: 1 };
        assert_eq!(
            so_far(&Some(Duration::from_millis(3_400)), &Some(host)),
            "it had booted after 3.4 s; the emulator ran for 12.0 s and waited 40.5 s for a CPU"
        );
        assert_eq!(so_far(&None, &None), "its command was not started yet");
    }
}
