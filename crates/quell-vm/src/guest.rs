//! The first process of a guest: mounts, loads the drivers, runs one command of this program, passes on what it
//! writes, and ends the machine. What the command is, it reads from a file that the host put there.

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

/// The port of the messages: the second, for the kernel prints to the first.
const PORT: &str = "/dev/ttyS1";
/// Where the host wrote down what is to be done.
pub(crate) const TASK: &str = "/quell/task.json";
/// A shell, where the host put one.
pub(crate) const SHELL: &str = "/bin/sh";

/// What a guest is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Task {
    /// Drivers, in the order of their loading.
    pub(crate) modules: Vec<PathBuf>,
    /// What to run.
    pub(crate) run: Run,
}

/// What to run in a guest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Run {
    /// This program with these arguments; what it writes becomes messages.
    Command(Vec<String>),
    /// A shell on the console.
    Shell,
}

/// Why a guest did not get to its command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuestError {
    /// This is no guest.
    #[error("this is for the first process of a guest of the vm lab, which this process is not")]
    NotAGuest,
    /// A step that the kernel refused.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The host's file could not be read.
    #[error("reading {TASK}: {0}")]
    Task(io::Error),
    /// The command could not be run.
    #[error("running {program}: {source}")]
    Command {
        /// What was to be run.
        program: &'static str,
        /// What came back.
        source: io::Error,
    },
    /// The host no longer listens.
    #[error("speaking to the host: {0}")]
    Speak(io::Error),
    /// The machine could not be ended.
    #[error("ending the machine: {0}")]
    Restart(io::Error),
}

/// Does what the host wrote down, then ends the machine; returns only when it cannot.
///
/// # Errors
/// [`GuestError::NotAGuest`] before anything is done, in every process but the first of a guest.
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
    // The restart has been asked for; until it happens there is nothing left to do.
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
        host.say(&Message::Diagnostic(format!("the command was ended: {status}")))?;
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

/// The port by which the host listens.
struct Host {
    port: Mutex<File>,
}

impl Host {
    fn say(&self, message: &Message) -> Result<(), GuestError> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        port.write_all(message.to_line().as_bytes()).map_err(GuestError::Speak)
    }

    /// Waits until the host has all that was said: a machine that restarts forgets what is still in the port's buffer.
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
    fn a_process_that_is_no_guests_first_does_nothing() {
        assert!(matches!(run(), Err(GuestError::NotAGuest)));
    }
}
