//! Finds a network namespace by its cookie, which is unique within one boot. Names and process IDs are reused; they
//! only provide candidates.

use std::collections::HashSet;

use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::proc::{ProcError, ProcRoot};

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

/// Returns the first namespace that `is_it` accepts. Tries the caller's, then named ones, then those of processes.
pub(crate) fn find(
    proc: &ProcRoot,
    is_it: impl FnMut(&Namespace) -> Result<bool, NamespaceError>,
) -> Result<Option<Namespace>, SearchError> {
    let named = Namespace::list_named()?;
    let named = named.iter().map(Namespace::open_named);
    let pids = proc.pids()?;
    let of_processes = pids.into_iter().map(|pid| {
        let what = || proc.path().join(pid.to_string());
        // The kernel reports a process that is just exiting as inaccessible (`fs/proc/namespaces.c`).
        Namespace::open_pid(proc.path(), pid).map_err(|error| match error.is_denied() && !what().exists() {
            true => NamespaceError::Absent { what: what().display().to_string() },
            false => error,
        })
    });
    Ok(find_among(std::iter::once_with(Namespace::current).chain(named).chain(of_processes), is_it)?)
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
    fn vanished_namespaces_do_not_match() {
        let absent = NamespaceError::Absent { what: "/proc/7/ns/net".to_owned() };
        assert_eq!(find_among([Err(absent), here()].into_iter(), |_| Ok(false)), Ok(None));
    }
}
