//! Errors of guests that did not finish their command. They contain the end of the console output.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::proc::Schedstat;
use quell_linux::process::ProcessError;
use quell_linux::visible::counted;
use thiserror::Error;

use crate::program::ProgramError;
use crate::store::StoreError;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    #[error("{program} is not on the PATH; guests run under QEMU (Debian: apt install qemu-system-x86)")]
    NoEmulator { program: &'static str },
    #[error(transparent)]
    Qemu(ProcessError),
    #[error("the kernels of the vm lab are for x86-64, and this program is built for {}", std::env::consts::ARCH)]
    Architecture,
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("preparing {path}: {source}")]
    Prepare { path: PathBuf, source: io::Error },
    #[error("a shell in the guest needs a statically linked BusyBox on the PATH (Debian: busybox-static)")]
    NoBusybox,
    #[error("the guest did not exit within {} s ({}); console:\n{console}", .limit.as_secs(), so_far(.boot, .host))]
    TimeLimit {
        limit: Duration,
        /// Time from the start of QEMU to the start of the command. Absent if the command did not start.
        boot: Option<Duration>,
        /// The host's `schedstat` of QEMU's threads: run time and wait time. Absent if the host does not report it.
        host: Option<Schedstat>,
        console: String,
    },
    #[error(
        "{} exited before booting; QEMU: {qemu:?}; console of the last one:\n{console}", counted(*attempts, "guest")
    )]
    Boot { attempts: u32, qemu: String, console: String },
    /// The guest ended without a result of its command, because the kernel panicked or QEMU failed.
    #[error("the guest exited before its command; QEMU: {qemu:?}; console:\n{console}")]
    Lost { qemu: String, console: String },
    #[error("in the guest: {failure}; console:\n{console}")]
    Guest { failure: String, console: String },
    #[error("could not read from the guest: {0}")]
    Listen(io::Error),
    #[error("interrupted")]
    Interrupted,
}

fn so_far(boot: &Option<Duration>, host: &Option<Schedstat>) -> String {
    let got = boot.map_or_else(
        || "its command had not started".to_owned(),
        |boot| format!("it booted in {:.1} s", boot.as_secs_f64()),
    );
    let had = host.map_or_else(String::new, |host| {
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        format!(
            "; the emulator ran for {:.1} s and waited for a CPU for {:.1} s",
            seconds(host.run_ns),
            seconds(host.wait_ns)
        )
    });
    got + &had
}

/// Converts an error of a file on the host; for `map_err`.
pub(crate) fn prepare(path: &Path) -> impl FnOnce(io::Error) -> MachineError {
    let path = path.to_owned();
    move |source| MachineError::Prepare { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_reports_the_guests_progress_and_its_host_cpu_time() {
        let host = Schedstat { run_ns: 12_000_000_000, wait_ns: 40_500_000_000, timeslices: 1 };
        assert_eq!(
            so_far(&Some(Duration::from_millis(3_400)), &Some(host)),
            "it booted in 3.4 s; the emulator ran for 12.0 s and waited for a CPU for 40.5 s"
        );
        assert_eq!(so_far(&None, &None), "its command had not started");
    }
}
