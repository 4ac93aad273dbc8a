//! The processes of a session, found by what was written down about its leader, and killed. For the
//! time after a crash: the leader may be gone, and its number be another's by then.

use std::time::{Duration, Instant};

use super::ProcessError;
use crate::Pid;
use crate::pidfd::{PidFd, Signal};
use crate::proc::{PidStat, ProcError, ProcRoot, ProcessIdentity};

/// A process of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionMember {
    /// Which process it is.
    pub identity: ProcessIdentity,
    /// Its name, raw.
    pub comm: Vec<u8>,
}

/// The running processes of the session that `leader` led, in no particular order.
///
/// The kernel gives a leader's number to no other process while a process of its session exists. A
/// process with that number but another start time hence proves that the session is over. Processes
/// older than the leader, and other boots, are no part of it. What remains uncertain: if the session
/// ended, its number went to another session's leader, and that one ended before its members, then
/// those are taken for ours.
///
/// # Errors
/// When /proc cannot be read.
pub fn session_members(proc: &ProcRoot, leader: &ProcessIdentity) -> Result<Vec<SessionMember>, ProcError> {
    if proc.boot_id()? != leader.boot_id {
        return Ok(Vec::new());
    }
    let holder = stat_if_there(proc, leader.pid)?;
    if holder.is_some_and(|holder| holder.starttime != leader.starttime) {
        return Ok(Vec::new());
    }
    let mut members = Vec::new();
    for pid in proc.pids()? {
        if let Some(stat) = stat_if_there(proc, pid)?
            && belongs_to(&stat, leader)
        {
            let identity = ProcessIdentity { pid, starttime: stat.starttime, ..*leader };
            members.push(SessionMember { identity, comm: stat.comm });
        }
    }
    Ok(members)
}

/// Kills all processes of the session that `leader` led with SIGKILL, those too that they start
/// meanwhile, and waits for their end, at most until `bound`. Says how many were killed.
///
/// # Errors
/// When a process cannot be killed, or does not end in time.
pub fn kill_session(proc: &ProcRoot, leader: &ProcessIdentity, bound: Duration) -> Result<usize, ProcessError> {
    let started = Instant::now();
    let mut killed = 0;
    loop {
        let members = session_members(proc, leader)?;
        if members.is_empty() {
            return Ok(killed);
        }
        if started.elapsed() > bound {
            // They start new processes faster than those can be killed.
            let left = members.iter().map(|member| member.identity.pid).collect();
            return Err(ProcessError::StillThere { leader: leader.pid, left, within: bound });
        }
        let mut handles = Vec::new();
        for member in &members {
            handles.extend(kill(proc, member, leader)?);
        }
        killed += handles.len();
        let mut left = Vec::new();
        for handle in &handles {
            if !handle.wait_for_exit(bound.saturating_sub(started.elapsed()))? {
                left.push(handle.pid());
            }
        }
        if !left.is_empty() {
            return Err(ProcessError::StillThere { leader: leader.pid, left, within: bound });
        }
    }
}

/// Kills one member, if it still is what it was when it was found.
fn kill(proc: &ProcRoot, member: &SessionMember, leader: &ProcessIdentity) -> Result<Option<PidFd>, ProcessError> {
    let pidfd = match PidFd::open(member.identity.pid) {
        Ok(pidfd) => pidfd,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Read while the handle is open: what is read now is the process that the handle names.
    let unchanged = stat_if_there(proc, member.identity.pid)?
        .is_some_and(|stat| stat.starttime == member.identity.starttime && belongs_to(&stat, leader));
    if !unchanged {
        return Ok(None);
    }
    super::ignore_gone(pidfd.signal(Signal::KILL))?;
    Ok(Some(pidfd))
}

fn belongs_to(stat: &PidStat, leader: &ProcessIdentity) -> bool {
    stat.session == Some(leader.pid) && stat.starttime >= leader.starttime && !stat.process_has_ended()
}

fn stat_if_there(proc: &ProcRoot, pid: Pid) -> Result<Option<PidStat>, ProcError> {
    match proc.process(pid).stat() {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}
