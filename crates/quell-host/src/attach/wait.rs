//! Blocks until programs exit, a signal arrives, or a timeout expires. Uses an epoll on pidfds, without periodic
//! polling.

use std::io;
use std::time::{Duration, Instant};

use quell_linux::event::{Epoll, Trigger};
use quell_linux::pidfd::PidFd;
use quell_linux::proc::{ProcRoot, ProcessIdentity, Ticks};
use quell_linux::signal::Interruption;

use quell_change::journal::TargetProgram;

/// Epoll user data of the signal. The user data of a program is its index.
const SIGNALLED: u64 = u64::MAX;
/// Epoll user data of a process on which the programs depend.
const NEEDED: u64 = u64::MAX - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    Signalled,
    AllEnded,
    TimeIsOver,
    /// The process of [`Ends::also_wait_for`] has exited.
    NeededEnded,
}

/// An epoll over the pidfds of programs. The exit of a single program does not end a wait, because servers that fork per
/// request have children exit all the time.
#[derive(Debug)]
pub struct Ends<'a> {
    epoll: Epoll,
    interruption: &'a Interruption,
    living: usize,
    /// Kept open, because closing a pidfd removes it from the epoll.
    _programs: Vec<PidFd>,
}

impl<'a> Ends<'a> {
    /// Opens the programs that are still running.
    pub fn of<'t>(
        targets: impl IntoIterator<Item = &'t TargetProgram>,
        interruption: &'a Interruption,
    ) -> io::Result<Self> {
        let proc = ProcRoot::default();
        let programs = targets.into_iter().filter_map(|target| open_living(target, &proc).transpose());
        let programs = programs.collect::<io::Result<Vec<PidFd>>>()?;
        let epoll = Epoll::new(16)?;
        epoll.add(interruption, SIGNALLED, Trigger::Level)?;
        for (place, program) in (0_u64..).zip(&programs) {
            // One-shot, because the pidfd of an exited process stays readable.
            epoll.add(program, place, Trigger::OneShot)?;
        }
        Ok(Self { epoll, interruption, living: programs.len(), _programs: programs })
    }

    /// Waits for the exit of this process, too. It must stay open.
    pub fn also_wait_for(&mut self, needed: &PidFd) -> io::Result<()> {
        self.epoll.add(needed, NEEDED, Trigger::OneShot)
    }

    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<Woken> {
        while self.living > 0 {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            self.epoll.wait(left)?;
            // Before the exits are counted: the event of the signal is in the same epoll and would count as one.
            if self.interruption.flag().get().is_some() {
                return Ok(Woken::Signalled);
            }
            let events = || (0..self.epoll.len()).filter_map(|index| self.epoll.get(index));
            let ended = events().filter(|event| event.token != NEEDED).count();
            self.living -= ended;
            if events().count() > ended {
                return Ok(Woken::NeededEnded);
            }
            // `left` is from before the wait, so the last round of a wait that times out is one without patience. A
            // wait that an exit has ended goes on with the rest of the time.
            if ended == 0 && left == Some(Duration::ZERO) {
                return Ok(Woken::TimeIsOver);
            }
        }
        Ok(Woken::AllEnded)
    }
}

fn open_living(target: &TargetProgram, proc: &ProcRoot) -> io::Result<Option<PidFd>> {
    let handle = match PidFd::open(target.pid) {
        Ok(handle) => handle,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(io::Error::other(error)),
    };
    // Check after opening the pidfd: from then on, the PID cannot refer to another process.
    let boot_id = proc.boot_id().map_err(io::Error::other)?;
    let identity = ProcessIdentity { pid: target.pid, starttime: Ticks(target.start_time_ticks), boot_id };
    Ok(identity.is_running(proc).unwrap_or(true).then_some(handle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_linux::Pid;
    use std::process::{Child, Command};

    const LONG: Duration = Duration::from_secs(60);

    fn sleep() -> (Child, TargetProgram) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_kernel(child.id()).unwrap();
        let stat = ProcRoot::default().process(pid).stat().unwrap();
        (child, TargetProgram { pid: stat.pid, start_time_ticks: stat.starttime.0, name: "sleep".into() })
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn waits_for_all_even_if_one_has_already_exited() {
        let interruption = Interruption::listen().unwrap();
        let ((first, one), (second, two)) = (sleep(), sleep());
        end(first);
        let wait = move || Ends::of(&[one, two], &interruption)?.wait(None);
        let waiting = std::thread::spawn(wait);
        end(second);
        assert_eq!(waiting.join().unwrap().unwrap(), Woken::AllEnded);
    }

    #[test]
    fn only_the_exit_of_all_is_reported() {
        let interruption = Interruption::listen().unwrap();
        let ((first, one), (second, two)) = (sleep(), sleep());
        let mut ends = Ends::of(&[one, two], &interruption).unwrap();
        let mut wait = |time| ends.wait(Some(Instant::now() + time)).unwrap();
        let soon = Duration::from_millis(1);
        assert_eq!(wait(soon), Woken::TimeIsOver);
        end(first);
        assert_eq!(wait(soon), Woken::TimeIsOver);
        end(second);
        assert_eq!(wait(LONG), Woken::AllEnded);
    }
}
