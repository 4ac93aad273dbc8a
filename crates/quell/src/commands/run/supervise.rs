//! Standing before a command until it ends: what is sent to this program is passed on, what comes up in the command is
//! kept in its mode, and the command's end becomes this program's.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::pidfd::Signal;
use quell_linux::process::{Foreground, end_by, leads_its_session};
use quell_linux::signal_queue::{Arrived, Sender, SignalQueue};

use super::queues::Queues;
use crate::exit::{Exit, Failure};

/// What ends or steers programs and can be caught. Stopping and going on (Ctrl-Z, `fg`) reach the command by itself, for
/// it is in this program's process group, and have to stop this program too, or a shell takes the job for running: hence
/// neither SIGTSTP nor SIGTTIN, SIGTTOU and SIGCONT are taken from it.
pub(super) const PASSED_ON: [Signal; 8] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH];

const SIGNALLED: u64 = 0;
const ENDED: u64 = 1;
/// What it is added to the code of a command that a signal ended, as shells do.
const BY_SIGNAL: u8 = 128;

/// Waits for the end of the command, puts back what was set for it, and ends as it did.
///
/// # Errors
/// When the kernel refuses to wait.
pub(super) fn until_the_end(
    command: &mut Foreground,
    signals: &SignalQueue,
    mut queues: Queues,
) -> Result<ExitCode, Failure> {
    let refused = |error: &dyn std::fmt::Display| Failure::new(Exit::KernelRefused, error);
    let mut epoll = Epoll::new(2).map_err(|error| refused(&error))?;
    epoll.add(signals, SIGNALLED, Trigger::Level).map_err(|error| refused(&error))?;
    epoll.add(command.pidfd(), ENDED, Trigger::Level).map_err(|error| refused(&error))?;
    let mut pace = Pace::new();
    loop {
        epoll.wait(queues.are_followed().then(|| pace.left())).map_err(|error| refused(&error))?;
        let tokens: Vec<u64> = (0..epoll.len()).filter_map(|index| epoll.get(index)).map(|event| event.token).collect();
        if tokens.contains(&SIGNALLED) {
            pass_on(signals, command).map_err(|error| refused(&error))?;
        }
        if tokens.contains(&ENDED) {
            break;
        }
        if queues.are_followed() && pace.is_due() {
            pace.spend(|| queues.keep_up());
        }
    }
    let status = command.wait().map_err(|error| refused(&error))?;
    queues.end();
    Ok(end_as(status))
}

fn pass_on(signals: &SignalQueue, command: &Foreground) -> std::io::Result<()> {
    while let Some(arrived) = signals.take()? {
        if is_for_this_program_alone(&arrived, command.pid(), leads_its_session()) {
            // It ended a moment ago: then there is nobody left to be told.
            let _ = command.pidfd().signal(arrived.signal);
        }
    }
    Ok(())
}

/// A key of the terminal reaches the whole process group, and so the command; that the terminal hung up reaches the leader
/// of the session alone. What the command sends its own group, or its parent, is not sent back to it.
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

/// When the command is looked at again: soon after its start and then rarely, and the more rarely the longer a look
/// takes, so that looking takes at most a twentieth of a CPU. While something changes that is to be looked at again, soon
/// once more.
struct Pace {
    interval: Duration,
    due: Instant,
    /// How often in a row it was to be soon.
    hurried: u32,
}

impl Pace {
    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(2);
    const SHARE: u32 = 20;
    /// What never stays as it is is not looked at more often for that.
    const HURRIED_MOST: u32 = 10;
    const SHARE_IN_A_HURRY: u32 = 2;

    fn new() -> Self {
        Self { interval: Self::FIRST, due: Instant::now() + Self::FIRST, hurried: 0 }
    }

    fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// `look` says whether to look again soon.
    fn spend(&mut self, look: impl FnOnce() -> bool) {
        let begin = Instant::now();
        self.hurried = if look() { self.hurried.saturating_add(1) } else { 0 };
        self.interval = match self.hurried {
            1..=Self::HURRIED_MOST => Self::FIRST.max(begin.elapsed() * Self::SHARE_IN_A_HURRY),
            _ => (self.interval * 2).min(Self::LONGEST).max(begin.elapsed() * Self::SHARE),
        };
        self.due = Instant::now() + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_up_to_a_bound() {
        let mut pace = Pace::new();
        let mut intervals = Vec::new();
        for _ in 0..12 {
            pace.spend(|| false);
            intervals.push(pace.interval);
        }
        assert!(intervals.is_sorted() && intervals.last() == Some(&Pace::LONGEST), "{intervals:?}");
    }

    #[test]
    fn what_changes_is_looked_at_again_soon() {
        let mut pace = Pace::new();
        (0..12).for_each(|_| pace.spend(|| false));
        pace.spend(|| true);
        assert!(pace.interval < Pace::LONGEST, "{:?}", pace.interval);
        (0..40).for_each(|_| pace.spend(|| true));
        assert_eq!(pace.interval, Pace::LONGEST, "what never stays as it is is looked at as rarely as all else");
    }

    #[test]
    fn a_hang_up_is_passed_on_by_the_leader_of_the_session_and_keys_by_nobody() {
        let command = Pid::of_this_process();
        let passed_on = |signal, from, leads| is_for_this_program_alone(&Arrived { signal, from }, command, leads);
        assert!(passed_on(Signal::HUP, Sender::Kernel, true));
        assert!(!passed_on(Signal::HUP, Sender::Kernel, false));
        assert!(!passed_on(Signal::INT, Sender::Kernel, true));
        assert!(passed_on(Signal::HUP, Sender::Process(None), false));
        assert!(!passed_on(Signal::HUP, Sender::Process(Some(command)), true));
    }

    #[test]
    fn a_command_that_ends_by_itself_gives_its_code() {
        // Codes are eight bits in the second byte of what wait(2) says.
        assert_eq!(end_as(ExitStatus::from_raw(0)), ExitCode::SUCCESS);
        assert_eq!(end_as(ExitStatus::from_raw(7 << 8)), ExitCode::from(7));
        assert_eq!(end_as(ExitStatus::from_raw(255 << 8)), ExitCode::from(255));
    }
}
