//! Objects that Quell creates for a lab: network namespaces, veth pairs and processes. An undo removes them.

use std::fmt;
use std::time::Duration;

use quell_linux::executable::FileId;
use quell_linux::link::Links;
use quell_linux::netlink::Failure;
use quell_linux::netns::{Deletion, Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_linux::process::{ProcessError, SessionMember, kill_session, session_members};
use quell_linux::{InterfaceName, Pid};
use serde::{Deserialize, Serialize};

use crate::change::{ChangeOutcome, Kind, Undo, UndoOutcome, identity};
use crate::netns_processes::end_processes;
use crate::undo::UndoError;

const KILL_BOUND: Duration = Duration::from_secs(5);

/// A network namespace with a name in `/run/netns`. Undone by killing every process in it and removing the name;
/// the kernel frees the namespace with its last user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CreatedNamespace {
    /// Name as shown by `ip netns`.
    pub name: String,
}

/// A veth pair. Undone by deleting the named end; the kernel deletes its peer too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CreatedVethPair {
    pub namespace: String,
    pub link: String,
}

/// A process in its own session. Undone by killing every process of the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StartedProcess {
    pub command: Vec<String>,
}

impl fmt::Display for CreatedNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network namespace {}", self.name)
    }
}

impl fmt::Display for CreatedVethPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "veth pair {} in {}", self.link, self.namespace)
    }
}

impl fmt::Display for StartedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.command.join(" "))
    }
}

impl Kind for CreatedNamespace {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        delete_namespace(&self.name, undo.outcome, undo.proc)
    }
}

impl Kind for CreatedVethPair {
    fn undo(&self, _: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        delete_link(&self.namespace, &self.link)
    }
}

impl Kind for StartedProcess {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        match undo.outcome {
            // A process that undoes a journal cannot end itself in between. It exits afterwards.
            Some(ChangeOutcome::Process { pid, .. }) if pid == Pid::of_this_process() => Ok(UndoOutcome::AlreadyGone),
            Some(ChangeOutcome::Process { pid, start_time_ticks, executable }) => {
                end_session(undo.proc, &identity(pid, start_time_ticks, undo.boot_id), executable)
            }
            // The writer died before it knew the PID, and the kernel killed the child with its parent. Processes that
            // the child had started end with their namespace.
            _ => Ok(UndoOutcome::AlreadyGone),
        }
    }
}

/// Kills a session that Quell started. The executable identifies its leader, or another of its processes if the leader
/// has exited. Other processes end with their namespace, if Quell created it.
fn end_session(
    proc: &ProcRoot,
    leader: &ProcessIdentity,
    executable: Option<FileId>,
) -> Result<UndoOutcome, UndoError> {
    let members = session_members(proc, leader).map_err(ProcessError::from)?;
    if members.is_empty() {
        return Ok(UndoOutcome::AlreadyGone);
    }
    let leads = |member: &&SessionMember| member.identity.pid == leader.pid;
    let witnesses: Vec<&SessionMember> = match members.iter().find(leads) {
        Some(leader) => vec![leader],
        None => members.iter().collect(),
    };
    let executes = |member: &&SessionMember| proc.process(member.identity.pid).executable().ok() == executable;
    if executable.is_none() || !witnesses.iter().any(executes) {
        return Ok(UndoOutcome::LeftAlone(format!(
            "the session of process {}, which runs another executable than the one that Quell started",
            leader.pid
        )));
    }
    let killed = kill_session(proc, leader, KILL_BOUND)?;
    Ok(if killed > 0 { UndoOutcome::Undone } else { UndoOutcome::AlreadyGone })
}

fn namespace_name(name: &str) -> Result<NamespaceName, UndoError> {
    let impossible = |error: NamespaceError| UndoError::impossible("network namespace", name, error);
    NamespaceName::new(name).map_err(impossible)
}

fn delete_namespace(name: &str, outcome: Option<ChangeOutcome>, proc: &ProcRoot) -> Result<UndoOutcome, UndoError> {
    let valid = namespace_name(name)?;
    if let Some(ChangeOutcome::NetworkNamespace { cookie: made }) = outcome {
        match Namespace::open_named(&valid) {
            Ok(found) => {
                let today = found.cookie()?;
                if today != made {
                    return Err(UndoError::NotTheSame { name: name.to_owned(), made, today });
                }
                end_processes(&found, proc, KILL_BOUND)?;
            }
            Err(NamespaceError::NotANamespace { .. }) => {}
            Err(error) if error.is_absent() => return Ok(UndoOutcome::AlreadyGone),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(match Namespace::delete_named(&valid)? {
        Deletion::Deleted => UndoOutcome::Undone,
        Deletion::WasAbsent => UndoOutcome::AlreadyGone,
    })
}

fn delete_link(namespace: &str, link: &str) -> Result<UndoOutcome, UndoError> {
    let name = InterfaceName::new(link).map_err(|error| UndoError::impossible("interface", link, error))?;
    let namespace = match Namespace::open_named(&namespace_name(namespace)?) {
        Ok(namespace) => namespace,
        Err(NamespaceError::Absent { .. } | NamespaceError::NotANamespace { .. }) => {
            return Ok(UndoOutcome::AlreadyGone);
        }
        Err(error) => return Err(error.into()),
    };
    let mut links = Links::open_in(&namespace)?;
    let deleted = links.by_name(&name).and_then(|link| links.delete(link.index));
    match deleted {
        Ok(()) => Ok(UndoOutcome::Undone),
        Err(error) if error.failure() == Failure::Absent => Ok(UndoOutcome::AlreadyGone),
        Err(error) => Err(error.into()),
    }
}
