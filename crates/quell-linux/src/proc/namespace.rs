//! `/proc/PID/ns/net`: the network namespace of a process. [`crate::netns`] enters namespaces.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use super::{ProcDir, ProcError};
use crate::netns::parse_namespace_link;

impl ProcDir {
    /// Inode number of `net/dev` of this process or thread. It is the same for all processes of a network namespace, and
    /// needs no ptrace access, unlike [`Self::net_namespace`].
    pub fn net_dev_inode(&self) -> Result<u64, ProcError> {
        let path = self.path().join("net/dev");
        fs::metadata(&path).map(|metadata| metadata.ino()).map_err(|source| ProcError::refused(&path, source))
    }

    /// Inode number of this process's or thread's network namespace, as in `net:[…]`. Needs ptrace access, and fails
    /// after the exit of the process.
    pub fn net_namespace(&self) -> Result<u64, ProcError> {
        let path = self.path().join("ns/net");
        let link = fs::read_link(&path).map_err(|source| ProcError::refused(&path, source))?;
        parse_namespace_link(&link).ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidData, format!("{link:?} is not a network namespace"));
            ProcError::refused(&path, source)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Pid;
    use crate::netns::Namespace;
    use crate::proc::ProcRoot;

    #[test]
    fn this_process_is_in_its_current_namespace() {
        let here = ProcRoot::default().process(Pid::of_this_process()).net_namespace().unwrap();
        assert_eq!(here, Namespace::current().unwrap().inode());
    }
}
