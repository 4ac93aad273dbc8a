//! Finds and kills the processes of a session, given the recorded identity of its leader. Quell uses this to clean up
//! after a crash, when the leader may have exited and its PID may be reused.

use std::time::{Duration, Instant};

use super::ProcessError;
use crate::Pid;
use crate::pidfd::{PidFd, Signal};
use crate::proc::{PidStat, ProcError, ProcRoot, ProcessIdentity};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionMember {
    pub identity: ProcessIdentity,
    pub comm: Vec<u8>,
}

/// Finds the running processes of the session that `leader` led, in no particular order.
///
/// The kernel does not reuse a leader's PID while its session has processes. If a process has that PID but another
/// start time, the session has ended. Processes that are older than the leader, or belong to another boot, are not
/// included.
///
/// One ambiguity remains. After the session ended, a new session leader may have received the PID and exited before its
/// members. Those members are then included.
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

/// Kills all processes of the session that `leader` led with SIGKILL, including those that start during the call. Waits
/// for their exit, up to `bound`. Returns the number of killed processes.
pub fn kill_session(proc: &ProcRoot, leader: &ProcessIdentity, bound: Duration) -> Result<usize, ProcessError> {
    let started = Instant::now();
    let mut killed = 0;
    loop {
        // A member can fork between the search and its death, so the search is repeated until it finds none.
        let members = session_members(proc, leader)?;
        if members.is_empty() {
            return Ok(killed);
        }
        if started.elapsed() > bound {
            // The processes fork faster than Quell can kill them.
            let left = members.iter().map(|member| member.identity.pid).collect();
            return Err(ProcessError::StillThere { leader: leader.pid, left, within: bound });
        }
        let mut handles = Vec::new();
        // All are killed before any is waited for, because those that still run could fork in the meantime.
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

/// Kills a member of a session, unless its PID was reused since the search.
fn kill(proc: &ProcRoot, member: &SessionMember, leader: &ProcessIdentity) -> Result<Option<PidFd>, ProcessError> {
    let pidfd = match PidFd::open(member.identity.pid) {
        Ok(pidfd) => pidfd,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Read the values while the handle is open, so that they belong to the process of the handle.
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
