//! Finds a network namespace by its cookie, which is unique within one boot. Names and process IDs are reused; they
//! only provide candidates.

use std::collections::{BTreeSet, HashSet};

use quell_linux::Pid;
use quell_linux::netns::{self, Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::shell;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// Finds the namespace with this cookie: the caller's, a named one, or one of a running process. Returns `None` if
/// there is no match. Cannot find a namespace that only an open file keeps alive.
pub fn by_cookie(proc: &ProcRoot, cookie: u64) -> Result<Option<Namespace>, SearchError> {
    let mut seen = HashSet::new();
    find(proc, |namespace| Ok(seen.insert(namespace.inode()) && namespace.cookie()? == cookie))
}

/// Like [`by_cookie`], but by inode. The kernel reuses inodes after a namespace is freed.
pub fn by_inode(proc: &ProcRoot, inode: u64) -> Result<Option<Namespace>, SearchError> {
    find(proc, |namespace| Ok(namespace.inode() == inode))
}

/// Command of these words in a namespace, for a shell in the caller's. `None` if it has no name and no process that can be
/// read.
pub(crate) fn command_in(namespace: &Namespace, proc: &ProcRoot, words: &[&str]) -> Option<String> {
    if Namespace::current().is_ok_and(|current| current.inode() == namespace.inode()) {
        return Some(shell::command(words));
    }
    let name = name_of(namespace);
    let pid = || namespace.processes(proc.path()).ok()?.pids.first().copied();
    let enter = netns::entering(name.as_deref(), if name.is_some() { None } else { pid() })?;
    Some(shell::command(enter.iter().map(String::as_str).chain(words.iter().copied())))
}

/// Name of a namespace, as of `ip netns`.
pub(crate) fn name_of(namespace: &Namespace) -> Option<String> {
    let names = Namespace::list_named().unwrap_or_default();
    let is_it = |name: &&NamespaceName| Namespace::open_named(name).is_ok_and(|it| it.inode() == namespace.inode());
    names.iter().find(is_it).map(ToString::to_string)
}

/// Returns the first namespace that `is_it` accepts. Tries the caller's, then named ones, then those of processes.
pub(crate) fn find(
    proc: &ProcRoot,
    is_it: impl FnMut(&Namespace) -> Result<bool, NamespaceError>,
) -> Result<Option<Namespace>, SearchError> {
    let named = Namespace::list_named()?;
    let named = named.iter().map(Namespace::open_named);
    let pids = proc.pids()?;
    let (mut searched, mut hidden) = (Vec::new(), Vec::new());
    let of_processes = pids.into_iter().filter_map(|pid| match Namespace::open_pid(proc.path(), pid) {
        Err(error) if error.is_denied() => {
            hidden.push((pid, error));
            None
        }
        opened => {
            searched.push(pid);
            Some(opened)
        }
    });
    let found = find_among(std::iter::once_with(Namespace::current).chain(named).chain(of_processes), is_it)?;
    if found.is_none() && !hidden.is_empty() {
        let inode = |pid: Pid| proc.process(pid).net_dev_inode().ok();
        let own = proc.thread_self().net_dev_inode().ok();
        let searched: BTreeSet<u64> = searched.into_iter().filter_map(inode).chain(own).collect();
        // The kernel reports a process that is just exiting as inaccessible (`fs/proc/namespaces.c`).
        let is_there = |pid: Pid| proc.path().join(pid.to_string()).exists();
        let hidden = hidden.into_iter().filter(|(pid, _)| is_there(*pid));
        refuse_unsearched(hidden.map(|(pid, error)| (inode(pid), error)), &searched)?;
    }
    Ok(found)
}

/// Fails if a process may be in a namespace that was not searched. A process that denies access to its namespace still
/// shows the inode of its `net/dev`, which it shares with all processes of the namespace.
fn refuse_unsearched(
    hidden: impl Iterator<Item = (Option<u64>, NamespaceError)>,
    searched: &BTreeSet<u64>,
) -> Result<(), NamespaceError> {
    let is_unsearched = |inode: &Option<u64>| inode.is_none_or(|inode| !searched.contains(&inode));
    hidden.filter(|(inode, _)| is_unsearched(inode)).try_for_each(|(_, error)| Err(error))
}

/// Checks all candidates. An inaccessible namespace may be the wanted one, so its error is returned if no other
/// candidate matches.
fn find_among(
    candidates: impl Iterator<Item = Result<Namespace, NamespaceError>>,
    mut is_it: impl FnMut(&Namespace) -> Result<bool, NamespaceError>,
) -> Result<Option<Namespace>, NamespaceError> {
    let mut unknown = None;
    for candidate in candidates {
        let found = candidate.and_then(|namespace| Ok(is_it(&namespace)?.then_some(namespace)));
        match found {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            // The namespace was deleted, the process exited, or the name is a file without a namespace mounted on it.
            Err(NamespaceError::Absent { .. } | NamespaceError::NotANamespace { .. }) => {}
            Err(error @ NamespaceError::NoCookie { .. }) => return Err(error),
            Err(error) => unknown = unknown.or(Some(error)),
        }
    }
    unknown.map_or(Ok(None), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> NamespaceError {
        NamespaceError::System { action: "enter network namespace", what: "net:[1]".to_owned(), errno: 1 }
    }

    fn here() -> Result<Namespace, NamespaceError> {
        Namespace::current()
    }

    #[test]
    fn an_inaccessible_namespace_does_not_end_the_search() {
        let found = find_among([Err(denied()), here()].into_iter(), |_| Ok(true)).unwrap();
        assert_eq!(found, Some(here().unwrap()));
        let mut answers = [Err(denied()), Ok(true)].into_iter();
        let found = find_among([here(), here()].into_iter(), |_| answers.next().unwrap()).unwrap();
        assert_eq!(found, Some(here().unwrap()));
    }

    #[test]
    fn an_inaccessible_namespace_may_still_exist() {
        assert_eq!(find_among([Err(denied()), here()].into_iter(), |_| Ok(false)), Err(denied()));
        assert_eq!(find_among([here()].into_iter(), |_| Err(denied())), Err(denied()));
    }

    #[test]
    fn a_hidden_process_in_a_namespace_that_was_searched_hides_nothing() {
        let searched = BTreeSet::from([7, 8]);
        let refused = |inodes: &[Option<u64>]| refuse_unsearched(inodes.iter().map(|one| (*one, denied())), &searched);
        assert_eq!(refused(&[Some(7), Some(8)]), Ok(()));
        assert_eq!(refused(&[Some(7), Some(9)]), Err(denied()));
        assert_eq!(refused(&[None]), Err(denied()), "hidepid hides it");
    }

    #[test]
    fn vanished_namespaces_do_not_match() {
        let absent = NamespaceError::Absent { what: "/proc/7/ns/net".to_owned() };
        assert_eq!(find_among([Err(absent), here()].into_iter(), |_| Ok(false)), Ok(None));
    }
}
