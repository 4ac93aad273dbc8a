//! Supervises the command until it exits: forwards signals, keeps its mode up to date, and exits with its exit code or
//! signal.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use quell_host::attach::stall::LOOKED_EVERY;
use quell_linux::Pid;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::pidfd::Signal;
use quell_linux::process::{Foreground, end_by, leads_its_session};
use quell_linux::signal_queue::{Arrived, Sender, SignalQueue};

use super::queues::Queues;
use super::verify::Verifier;
use crate::commands::pace::{Pace, PaceLimits};
use crate::exit::{Exit, Failure};

/// Forwarded signals. Job control signals (SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT) are not caught. The command receives
/// them as a member of the process group, and this program must stop too, or the shell would consider the job to be
/// running.
pub(super) const FORWARDED: [Signal; 8] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH];

const SIGNALLED: u64 = 0;
const ENDED: u64 = 1;
/// Passes are frequent after the start of the command, then rare, with at most a twentieth of a CPU.
const PACE: PaceLimits = PaceLimits { first: Duration::from_millis(20), longest: Duration::from_secs(2), pause: 20 };
/// Base of the exit code after death by a signal, as in shells (128 + signal number).
const BY_SIGNAL: u8 = 128;

pub(super) fn until_exit(
    command: &mut Foreground,
    signals: &SignalQueue,
    mut queues: Queues,
    mut verifier: Verifier,
) -> Result<ExitCode, Failure> {
    let refused = |error: &dyn std::fmt::Display| Failure::new(Exit::KernelRefused, error);
    let mut epoll = Epoll::new(2).map_err(|error| refused(&error))?;
    epoll.add(signals, SIGNALLED, Trigger::Level).map_err(|error| refused(&error))?;
    epoll.add(command.pidfd(), ENDED, Trigger::Level).map_err(|error| refused(&error))?;
    let mut pace = Pace::new(PACE);
    let is_attached = queues.has_attachment();
    let is_looked_at = is_attached || verifier.is_needed();
    loop {
        let watched = if queues.has_attachment() { LOOKED_EVERY } else { Duration::MAX };
        epoll.wait(is_looked_at.then(|| pace.left().min(watched))).map_err(|error| refused(&error))?;
        let tokens: Vec<u64> = (0..epoll.len()).filter_map(|index| epoll.get(index)).map(|event| event.token).collect();
        if tokens.contains(&SIGNALLED) {
            forward(signals, command).map_err(|error| refused(&error))?;
        }
        if tokens.contains(&ENDED) {
            break;
        }
        if queues.watch() {
            pace.hurry();
        }
        if is_looked_at && pace.is_due() {
            let began = Instant::now();
            let is_changing = match is_attached {
                true => queues.keep_up(&mut verifier),
                false => {
                    verifier.look_at(command.pid());
                    false
                }
            };
            pace.spend(began.elapsed(), is_changing);
        }
    }
    let status = command.wait().map_err(|error| refused(&error))?;
    queues.end();
    verifier.end();
    Ok(end_as(status))
}

fn forward(signals: &SignalQueue, command: &Foreground) -> std::io::Result<()> {
    while let Some(arrived) = signals.take()? {
        if is_for_this_program_alone(&arrived, command.pid(), leads_its_session()) {
            // This fails if the command has just exited.
            let _ = command.pidfd().signal(arrived.signal);
        }
    }
    Ok(())
}

/// Whether to forward a signal. The command receives signals of terminal keys directly, because they go to the whole
/// process group. A hang-up reaches only the session leader. A signal from the command to its group or parent is not
/// sent back.
fn is_for_this_program_alone(arrived: &Arrived, command: Pid, leads_session: bool) -> bool {
    match arrived.from {
        Sender::Kernel => arrived.signal == Signal::HUP && leads_session,
        Sender::Process(sender) => sender != Some(command),
    }
}

fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        end_by(signal);
        return ExitCode::from(BY_SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(0)));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_session_leader_forwards_a_hang_up_and_keys_are_never_forwarded() {
        let command = Pid::of_this_process();
        let forwarded = |signal, from, leads| is_for_this_program_alone(&Arrived { signal, from }, command, leads);
        assert!(forwarded(Signal::HUP, Sender::Kernel, true));
        assert!(!forwarded(Signal::HUP, Sender::Kernel, false));
        assert!(!forwarded(Signal::INT, Sender::Kernel, true));
        assert!(forwarded(Signal::HUP, Sender::Process(None), false));
        assert!(!forwarded(Signal::HUP, Sender::Process(Some(command)), true));
    }

    #[test]
    fn the_exit_code_is_that_of_the_command() {
        // wait(2) puts the exit code into the second byte.
        assert_eq!(end_as(ExitStatus::from_raw(0)), ExitCode::SUCCESS);
        assert_eq!(end_as(ExitStatus::from_raw(7 << 8)), ExitCode::from(7));
        assert_eq!(end_as(ExitStatus::from_raw(255 << 8)), ExitCode::from(255));
    }
}
