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

fn find(
    proc: &ProcRoot,
    mut is_it: impl FnMut(&Namespace) -> Result<bool, NamespaceError>,
) -> Result<Option<Namespace>, SearchError> {
    let here = Namespace::current()?;
    if is_it(&here)? {
        return Ok(Some(here));
    }
    for name in Namespace::list_named()? {
        // It may be deleted meanwhile, or be a file that nothing is mounted on.
        let Ok(namespace) = Namespace::open_named(&name) else { continue };
        if is_it(&namespace)? {
            return Ok(Some(namespace));
        }
    }
    for pid in proc.pids()? {
        let Ok(namespace) = Namespace::open_pid(proc.path(), pid) else { continue };
        if is_it(&namespace)? {
            return Ok(Some(namespace));
        }
    }
    Ok(None)
}
