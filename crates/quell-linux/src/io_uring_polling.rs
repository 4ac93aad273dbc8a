//! Busy-poll settings of an io_uring, through its file descriptor or a duplicate of it. The ring polls the NAPI
//! instances of its sockets while it waits (`IORING_REGISTER_NAPI` in `io_uring/napi.c`, Linux 6.9). Callers select the
//! rings.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::io_uring::{IoringRegisterOp, io_uring_napi, io_uring_register};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::proc::{ProcDir, ProcError};

/// Size of `struct io_uring_probe` in bytes, without the operations that follow it.
const PROBE_HEADER_BYTES: usize = 16;

/// Busy-poll settings of a ring. It polls the NAPI instances from which its sockets receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct RingPolling {
    /// Time for which a wait busy polls before it sleeps, in µs. The kernel limits it to 10,000.
    pub busy_poll_us: u32,
    /// Whether the ring asks for preferred busy polling (as `SO_PREFER_BUSY_POLL` does for a socket).
    pub prefer_busy_poll: bool,
}

/// Why busy polling of a ring could not be configured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingPollingError {
    /// The ring was created with `IORING_SETUP_SINGLE_ISSUER`, so only the thread that created it may configure it.
    #[error(
        "the ring has a single issuer (IORING_SETUP_SINGLE_ISSUER): only the thread that created it may configure it"
    )]
    SingleIssuer,
    /// The kernel does not support busy polling of rings, or the ring polls for disk I/O (`IORING_SETUP_IOPOLL`).
    #[error("io_uring busy polling is unsupported: it needs Linux 6.9 and a ring without IORING_SETUP_IOPOLL")]
    Unsupported,
    /// The ring is restricted, or this process may not use io_uring.
    #[error(
        "could not configure polling of an io_uring: {source}; it is restricted, or io_uring is disabled for this process"
    )]
    Denied {
        /// Error returned by the system call.
        source: io::Error,
    },
    /// The kernel returned another error.
    #[error("could not configure polling of an io_uring: {source}")]
    Refused {
        /// Error returned by the system call.
        source: io::Error,
    },
}

impl From<Errno> for RingPollingError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::EXIST => Self::SingleIssuer,
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => Self::Unsupported,
            Errno::PERM | Errno::ACCESS | Errno::BADFD => Self::Denied { source: errno.into() },
            _ => Self::Refused { source: errno.into() },
        }
    }
}

/// Checks whether this thread may configure the ring, without changing it.
///
/// # Errors
/// The reason why the thread may not configure the ring.
pub fn may_configure(ring: impl AsFd) -> Result<(), RingPollingError> {
    let mut probe = [0_u64; PROBE_HEADER_BYTES / size_of::<u64>()];
    // SAFETY: the kernel writes a `struct io_uring_probe` with 0 operations to the pointer. The array has that size.
    let result = unsafe { io_uring_register(ring, IoringRegisterOp::RegisterProbe, probe.as_mut_ptr().cast(), 0) };
    result.map(drop).map_err(RingPollingError::from)
}

/// Enables busy polling from the ring's next wait on. This replaces earlier settings.
///
/// # Errors
/// See [`RingPollingError`].
pub fn set(ring: impl AsFd, polling: RingPolling) -> Result<(), RingPollingError> {
    let mut request = io_uring_napi::default();
    request.busy_poll_to = polling.busy_poll_us;
    request.prefer_busy_poll = polling.prefer_busy_poll.into();
    register(ring, IoringRegisterOp::RegisterNapi, request)
}

/// Disables busy polling of the ring.
///
/// # Errors
/// See [`RingPollingError`].
pub fn clear(ring: impl AsFd) -> Result<(), RingPollingError> {
    register(ring, IoringRegisterOp::UnregisterNapi, io_uring_napi::default())
}

fn register(ring: impl AsFd, what: IoringRegisterOp, mut request: io_uring_napi) -> Result<(), RingPollingError> {
    let argument = (&raw mut request).cast::<std::ffi::c_void>();
    // SAFETY: the kernel reads and writes one `struct io_uring_napi`; `argument` points to it.
    let result = unsafe { io_uring_register(ring, what, argument, 1) };
    result.map(drop).map_err(RingPollingError::from)
}

/// Busy-poll state of an io_uring, from `/proc/PID/fdinfo/FD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPollingInfo {
    /// The ring does not busy poll.
    Off,
    /// The ring busy polls with these settings.
    On(RingPolling),
    /// The kernel does not report the settings. It is older than 6.13, or the ring was in use during the read.
    Unreported,
}

impl RingPollingInfo {
    /// Parses the `fdinfo` file (`napi_show_fdinfo` in `io_uring/fdinfo.c`). If lines are missing, the result is
    /// [`Self::Unreported`].
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let value = |key: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            found.map(str::trim)
        };
        let ns = || value("napi_busy_poll_dt")?.parse::<u64>().ok();
        let prefer = || value("napi_prefer_busy_poll")?.parse::<bool>().ok();
        match (value("NAPI"), ns(), prefer()) {
            (Some("disabled"), ..) => Self::Off,
            (Some("enabled"), Some(ns), Some(prefer_busy_poll)) => match u32::try_from(ns / 1_000) {
                Ok(busy_poll_us) => Self::On(RingPolling { busy_poll_us, prefer_busy_poll }),
                Err(_) => Self::Unreported,
            },
            _ => Self::Unreported,
        }
    }
}

impl ProcDir {
    /// Reads the busy-poll state of an io_uring at a file descriptor of this process.
    ///
    /// # Errors
    /// When the file cannot be read, which needs ptrace access.
    pub fn ring_polling(&self, fd: i32) -> Result<RingPollingInfo, ProcError> {
        self.read(&format!("fdinfo/{fd}"), |bytes| Ok(RingPollingInfo::parse(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::io_uring::IoringSetupFlags;

    use super::*;
    use crate::Pid;
    use crate::io_uring::setup;
    use crate::proc::ProcRoot;
    use proptest::prelude::*;

    const POLLING: RingPolling = RingPolling { busy_poll_us: 50, prefer_busy_poll: true };

    fn ring(flags: IoringSetupFlags) -> Option<OwnedFd> {
        setup(flags)
            .map_err(|errno| skip(Lacks::KernelFeature, format_args!("could not create an io_uring: {errno}")))
            .ok()
    }

    fn from_another_thread<T: Send>(configure: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(configure).join().unwrap())
    }

    fn info(ring: &OwnedFd) -> RingPollingInfo {
        ProcRoot::default().process(Pid::of_this_process()).ring_polling(ring.as_raw_fd()).unwrap()
    }

    #[test]
    fn polling_set_by_another_thread_is_reported_and_can_be_cleared() {
        let Some(ring) = ring(IoringSetupFlags::empty()) else { return };
        if info(&ring) == RingPollingInfo::Unreported {
            return skip(Lacks::KernelFeature, "this kernel cannot configure busy polling of a ring");
        }
        from_another_thread(|| may_configure(&ring)).unwrap();
        assert_eq!(info(&ring), RingPollingInfo::Off);
        from_another_thread(|| set(&ring, POLLING)).unwrap();
        assert_eq!(info(&ring), RingPollingInfo::On(POLLING));
        from_another_thread(|| clear(&ring)).unwrap();
        assert_eq!(info(&ring), RingPollingInfo::Off);
    }

    #[test]
    fn a_single_issuer_ring_refuses_another_thread() {
        let Some(ring) = ring(IoringSetupFlags::SINGLE_ISSUER) else { return };
        assert!(matches!(from_another_thread(|| may_configure(&ring)), Err(RingPollingError::SingleIssuer)));
        assert!(matches!(from_another_thread(|| set(&ring, POLLING)), Err(RingPollingError::SingleIssuer)));
    }

    #[test]
    fn a_file_that_is_not_a_ring_is_refused() {
        assert!(may_configure(std::fs::File::open("/proc/self/stat").unwrap()).is_err());
    }

    /// Relevant lines of the file on Linux 6.18.
    const ON: &[u8] =
        b"pos:\t0\nNAPI:\tenabled\nnapi tracking:\tdynamic\nnapi_busy_poll_dt:\t50000\nnapi_prefer_busy_poll:\ttrue\n";

    #[test]
    fn the_polling_of_a_ring_is_parsed() {
        assert_eq!(RingPollingInfo::parse(ON), RingPollingInfo::On(POLLING));
        assert_eq!(RingPollingInfo::parse(b"NAPI:\tdisabled\n"), RingPollingInfo::Off);
        assert_eq!(RingPollingInfo::parse(b"pos:\t0\n"), RingPollingInfo::Unreported);
        assert_eq!(RingPollingInfo::parse(&ON[..60]), RingPollingInfo::Unreported);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RingPollingInfo::parse(&bytes);
        }
    }
}
