//! The init process of a guest. It mounts file systems, loads drivers, runs one Quell command, sends the command's
//! output to the host, and restarts the machine. A file from the host describes the task.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use quell_linux::boot::{self, BootError};
use quell_linux::{Pid, kernel};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::message::Message;
use crate::program::{LIBRARIES, PROGRAM};

/// Serial port for messages. It is the second port, because the kernel prints to the first.
const PORT: &str = "/dev/ttyS1";
pub(crate) const TASK: &str = "/quell/task.json";
pub(crate) const SHELL: &str = "/bin/sh";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Task {
    pub(crate) modules: Vec<PathBuf>,
    pub(crate) run: Run,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Run {
    /// This program with these arguments. Its output is sent to the host as messages.
    Command(Vec<String>),
    Shell,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuestError {
    #[error("this command runs only as the first process of a guest of the vm lab")]
    NotAGuest,
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error("reading {TASK}: {0}")]
    Task(io::Error),
    #[error("running {program}: {source}")]
    Command { program: &'static str, source: io::Error },
    #[error("could not write to the host: {0}")]
    Speak(io::Error),
    #[error("could not power off the machine: {0}")]
    Restart(io::Error),
}

/// Executes the host's task, then ends the machine. Returns only on failure. Fails with `NotAGuest` in every
/// process that is not the init of a guest, before anything is done.
pub fn run() -> Result<Infallible, GuestError> {
    if Pid::of_this_process().get() != 1 || !Path::new(TASK).exists() {
        return Err(GuestError::NotAGuest);
    }
    boot::mount_kernel_file_systems()?;
    let host = Host { port: Mutex::new(boot::open_serial_port(Path::new(PORT))?) };
    if let Err(error) = carry_out(&host) {
        host.say(&Message::Failed(error.to_string()))?;
    }
    host.finish()?;
    boot::restart().map_err(GuestError::Restart)?;
    // The reboot was requested, so only wait for it.
    loop {
        std::thread::park();
    }
}

fn carry_out(host: &Host) -> Result<(), GuestError> {
    let text = fs::read(TASK).map_err(GuestError::Task)?;
    let task: Task = serde_json::from_slice(&text).map_err(|error| GuestError::Task(error.into()))?;
    for module in &task.modules {
        boot::load_module(module)?;
    }
    boot::start_further_cpus()?;
    host.say(&Message::Started { kernel: kernel::Kernel::running().release })?;
    match task.run {
        Run::Command(arguments) => command(host, &arguments),
        Run::Shell => shell(host),
    }
}

fn command(host: &Host, arguments: &[String]) -> Result<(), GuestError> {
    let failed = |source| GuestError::Command { program: PROGRAM, source };
    let mut program = Command::new(PROGRAM);
    program.args(arguments).envs(ENVIRONMENT).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().map_err(failed)?;
    let (output, diagnostics) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let diagnostics = scope.spawn(|| host.pass_on(diagnostics, Message::Diagnostic));
        host.pass_on(output, Message::Output)?;
        diagnostics.join().unwrap_or(Ok(()))
    })?;
    let status = child.wait().map_err(failed)?;
    if status.code().is_none() {
        host.say(&Message::Diagnostic(format!("the command ended abnormally: {status}")))?;
    }
    host.say(&Message::Ended { code: status.code() })
}

const ENVIRONMENT: [(&str, &str); 4] =
    [("PATH", "/bin"), ("HOME", "/tmp"), ("LD_LIBRARY_PATH", LIBRARIES), ("QUELL_JOURNAL_DIR", "/run/quell/journal")];

fn shell(host: &Host) -> Result<(), GuestError> {
    let mut shell = Command::new(SHELL);
    let ended = shell.envs(ENVIRONMENT).status().map_err(|source| GuestError::Command { program: SHELL, source })?;
    host.say(&Message::Ended { code: ended.code() })
}

struct Host {
    port: Mutex<File>,
}

impl Host {
    fn say(&self, message: &Message) -> Result<(), GuestError> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        port.write_all(message.to_line().as_bytes()).map_err(GuestError::Speak)
    }

    /// Waits until all data was sent. A reboot discards the data in the port's buffer.
    fn finish(&self) -> Result<(), GuestError> {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        boot::drain_serial_port(&port).map_err(GuestError::Speak)
    }

    fn pass_on(&self, output: Option<impl Read>, message: fn(String) -> Message) -> Result<(), GuestError> {
        let Some(output) = output else { return Ok(()) };
        let mut lines = BufReader::new(output);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).map_err(GuestError::Speak)? > 0 {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            self.say(&message(String::from_utf8_lossy(text).into_owned()))?;
            line.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_init_of_a_guest_does_nothing() {
        assert!(matches!(run(), Err(GuestError::NotAGuest)));
    }
}
