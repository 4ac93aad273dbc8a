//! Finding a network namespace again by the number that no other has or had in this boot. Names and process ids, which
//! are given out again, are only where it is looked for.

use std::collections::HashSet;

use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::proc::{ProcError, ProcRoot};

/// Why the namespaces could not be looked through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// A namespace could not be entered, or the named ones not be listed.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The processes could not be listed.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// The namespace with this cookie: the caller's, a named one, or one that a process lives in. `None` when it is none of
/// them; one that only an open file keeps alive is not found.
///
/// # Errors
/// See [`SearchError`].
pub(crate) fn by_cookie(proc: &ProcRoot, cookie: u64) -> Result<Option<Namespace>, SearchError> {
    let mut seen = HashSet::new();
    find(proc, |namespace| Ok(seen.insert(namespace.inode()) && namespace.cookie()? == cookie))
}

/// As [`by_cookie`], by the inode, which is given out again when a namespace is gone.
///
/// # Errors
/// See [`SearchError`].
pub(crate) fn by_inode(proc: &ProcRoot, inode: u64) -> Result<Option<Namespace>, SearchError> {
    find(proc, |namespace| Ok(namespace.inode() == inode))
}

/// The first namespace that `is_it` accepts: the caller's, named ones, then those of processes.
///
/// # Errors
/// See [`SearchError`].
pub(crate) fn find(
    proc: &ProcRoot,
    is_it: impl FnMut(&Namespace) -> Result<bool, NamespaceError>,
) -> Result<Option<Namespace>, SearchError> {
    let named = Namespace::list_named()?;
    let named = named.iter().map(Namespace::open_named);
    let pids = proc.pids()?;
    let of_processes = pids.into_iter().map(|pid| {
        let what = || proc.path().join(pid.to_string());
        // That of a process which ends just now is refused as one that may not be looked into (`fs/proc/namespaces.c`).
        Namespace::open_pid(proc.path(), pid).map_err(|error| match error.is_denied() && !what().exists() {
            true => NamespaceError::Absent { what: what().display().to_string() },
            false => error,
        })
    });
    Ok(find_among(std::iter::once_with(Namespace::current).chain(named).chain(of_processes), is_it)?)
}

/// Looks at all of them. What may not be opened or entered could be the one: only when all others are not it, that is the
/// error, for then it is not known to be gone.
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
            // Deleted, or ended, since it was listed; a file that nothing is mounted on.
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
    fn one_that_may_not_be_opened_or_entered_does_not_end_the_search() {
        let found = find_among([Err(denied()), here()].into_iter(), |_| Ok(true)).unwrap();
        assert_eq!(found, Some(here().unwrap()));
        let mut answers = [Err(denied()), Ok(true)].into_iter();
        let found = find_among([here(), here()].into_iter(), |_| answers.next().unwrap()).unwrap();
        assert_eq!(found, Some(here().unwrap()));
    }

    #[test]
    fn one_that_may_not_be_entered_is_not_known_to_be_gone() {
        assert_eq!(find_among([Err(denied()), here()].into_iter(), |_| Ok(false)), Err(denied()));
        assert_eq!(find_among([here()].into_iter(), |_| Err(denied())), Err(denied()));
    }

    #[test]
    fn those_that_went_away_are_not_it() {
        let absent = NamespaceError::Absent { what: "/proc/7/ns/net".to_owned() };
        assert_eq!(find_among([Err(absent), here()].into_iter(), |_| Ok(false)), Ok(None));
    }
}
