//! The cookie of a network namespace, which is unique during a boot. nsfs reuses inode numbers at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;

use super::{Namespace, NamespaceError};

impl Namespace {
    /// Number of this namespace, unique until reboot (`net_cookie` of `struct net` in `net/core/net_namespace.c`). It
    /// is read with `SO_NETNS_COOKIE` from a socket in the namespace. Errors: [`NamespaceError::NoCookie`] before Linux
    /// 5.14; [`NamespaceError::System`] if the namespace cannot be entered (`CAP_SYS_ADMIN`).
    pub fn cookie(&self) -> Result<u64, NamespaceError> {
        let read = self.run(|| UnixDatagram::unbound().and_then(netns_cookie))?;
        read.map_err(|error| self.refusal(&error))
    }

    fn refusal(&self, error: &io::Error) -> NamespaceError {
        let what = self.to_string();
        match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => NamespaceError::NoCookie { what },
            errno => {
                let action = "read the cookie of network namespace";
                NamespaceError::System { action, what, errno: errno.unwrap_or(libc::EIO) }
            }
        }
    }
}

fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has that size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};

    #[test]
    fn sockets_of_one_namespace_have_the_same_cookie() {
        let cookie = || netns_cookie(UnixDatagram::unbound().unwrap());
        match cookie() {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                skip(Lacks::KernelFeature, "needs Linux 5.14")
            }
            first => assert_eq!(first.unwrap(), cookie().unwrap()),
        }
    }

    #[test]
    fn a_kernel_without_cookies_is_distinguished_from_a_refusal() {
        let here = Namespace::current().unwrap();
        let unknown = here.refusal(&io::Error::from_raw_os_error(libc::ENOPROTOOPT));
        assert!(matches!(unknown, NamespaceError::NoCookie { .. }), "{unknown}");
        let refused = here.refusal(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(matches!(refused, NamespaceError::System { errno: libc::EMFILE, .. }), "{refused}");
    }

    #[test]
    fn a_file_that_is_not_a_socket_has_no_cookie() {
        let error = netns_cookie(std::fs::File::open("/proc/self/stat").unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
