//! `/proc/sys/net/core`: the sysctls of packet delivery (`net/core/sysctl_net_core.c`), above all the two that switch busy
//! polling on for the whole machine, whatever an epoll or a socket says.

use super::text::{Malformed, first_line};
use super::{ProcError, ProcRoot};

fn parse(bytes: &[u8]) -> Result<u32, Malformed> {
    let line = first_line(bytes);
    line.next_number(&mut line.fields(), "a number")
}

impl ProcRoot {
    /// `net.core.busy_poll`: how long `poll`, `select` and every `epoll_wait` whose epoll says nothing else busy poll, µs.
    /// Not 0: an epoll with parameters 0/0/0 polls all the same (`ep_busy_loop_on` in `fs/eventpoll.c`).
    ///
    /// # Errors
    /// When it cannot be read or parsed; absent on kernels without busy polling and in other namespaces than the initial.
    pub fn busy_poll_us(&self) -> Result<u32, ProcError> {
        self.read("sys/net/core/busy_poll", parse)
    }

    /// `net.core.busy_read`: what `SO_BUSY_POLL` is on new sockets, µs.
    ///
    /// # Errors
    /// As [`Self::busy_poll_us`].
    pub fn busy_read_us(&self) -> Result<u32, ProcError> {
        self.read("sys/net/core/busy_read", parse)
    }

    /// Another number of `net.core`, by its name: `netdev_budget`, `dev_weight`, `netdev_max_backlog`, …
    ///
    /// # Errors
    /// As [`Self::busy_poll_us`].
    pub fn net_core(&self, name: &str) -> Result<u32, ProcError> {
        self.read(&format!("sys/net/core/{name}"), parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_and_anything_else_is_not() {
        assert_eq!(parse(b"50\n"), Ok(50));
        for malformed in [&b""[..], b"-1\n", b"fifty\n", b"99999999999\n"] {
            assert!(parse(malformed).is_err());
        }
    }

    #[test]
    fn a_machine_without_the_file_has_none() {
        let empty = tempfile::tempdir().unwrap();
        assert!(ProcRoot::new(empty.path()).busy_poll_us().unwrap_err().is_absent());
    }
}
