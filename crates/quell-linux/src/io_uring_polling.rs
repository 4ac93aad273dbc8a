//! Busy-poll settings of an io_uring, through its file descriptor or a duplicate of it. The ring polls the NAPI
//! instances of its sockets while it waits (`IORING_REGISTER_NAPI` in `io_uring/napi.c`, Linux 6.9).

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
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RingPolling {
    /// Time for which a wait busy polls before it sleeps, in µs. The kernel limits it to 10,000.
    pub busy_poll_us: u32,
    /// Whether the ring asks for preferred busy polling (as `SO_PREFER_BUSY_POLL` does for a socket).
    pub prefer_busy_poll: bool,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingPollingError {
    #[error(
        "the ring has a single issuer (IORING_SETUP_SINGLE_ISSUER): only the thread that created it may configure it"
    )]
    SingleIssuer,
    #[error("io_uring busy polling is unsupported: it needs Linux 6.9 and a ring without IORING_SETUP_IOPOLL")]
    Unsupported,
    #[error(
        "could not configure polling of an io_uring: {source}; it is restricted, or io_uring is disabled for this process"
    )]
    Denied { source: io::Error },
    #[error("could not configure polling of an io_uring: {source}")]
    Refused { source: io::Error },
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

pub fn may_configure(ring: impl AsFd) -> Result<(), RingPollingError> {
    let mut probe = [0_u64; PROBE_HEADER_BYTES / size_of::<u64>()];
    // SAFETY: the kernel writes a `struct io_uring_probe` with 0 operations to the pointer. The array has that size.
    let result = unsafe { io_uring_register(ring, IoringRegisterOp::RegisterProbe, probe.as_mut_ptr().cast(), 0) };
    result.map(drop).map_err(RingPollingError::from)
}

/// Enables busy polling from the ring's next wait on. This replaces earlier settings.
pub fn set(ring: impl AsFd, polling: RingPolling) -> Result<(), RingPollingError> {
    let mut request = io_uring_napi::default();
    request.busy_poll_to = polling.busy_poll_us;
    request.prefer_busy_poll = polling.prefer_busy_poll.into();
    register(ring, IoringRegisterOp::RegisterNapi, request)
}

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
    Off,
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
    /// Reads the busy-poll state of an io_uring at a file descriptor of this process. Needs ptrace access.
    pub fn ring_polling(&self, fd: i32) -> Result<RingPollingInfo, ProcError> {
        self.read(&format!("fdinfo/{fd}"), |bytes| Ok(RingPollingInfo::parse(bytes)))
    }
}

/// Requests of an io_uring at one moment, from `/proc/PID/fdinfo/FD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingRequests {
    /// The kernel lists no request that may concern a socket.
    NoSocket,
    /// A request that only sockets accept.
    Socket,
    /// A request that may concern a socket or another file.
    Unclear,
    /// The kernel lists no requests: the ring was in use during the read, or the kernel is too old.
    NotListed,
}

impl RingRequests {
    /// Parses the `fdinfo` file (`__io_uring_show_fdinfo` in `io_uring/fdinfo.c`). It lists submitted requests by name,
    /// and requests that wait for a file by the number of their opcode. It does not list requests of the kernel's
    /// workers.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let is_complete = text.lines().any(|line| line.starts_with("CqOverflowList:"));
        if !is_complete {
            return Self::NotListed;
        }
        let waiting = text.lines().filter_map(|line| line.trim_start().strip_prefix("op="));
        let waiting = waiting.map(|rest| of_opcode(rest.split(',').next().and_then(|number| number.parse().ok())));
        let submitted = text.lines().filter_map(|line| line.split_once("opcode:"));
        let submitted = submitted.map(|(_, rest)| of_name(rest.split(',').next().unwrap_or_default()));
        let seen: Vec<Self> = waiting.chain(submitted).collect();
        [Self::Socket, Self::Unclear].into_iter().find(|kind| seen.contains(kind)).unwrap_or(Self::NoSocket)
    }
}

/// Numbers of `enum io_uring_op` in `include/uapi/linux/io_uring.h`.
fn of_opcode(number: Option<u32>) -> RingRequests {
    match number {
        // SENDMSG, RECVMSG, ACCEPT, CONNECT, SEND, RECV, SHUTDOWN, SEND_ZC, SENDMSG_ZC, RECV_ZC.
        Some(9 | 10 | 13 | 16 | 26 | 27 | 34 | 47 | 48 | 58) => RingRequests::Socket,
        // NOP, FSYNC, TIMEOUT, OPENAT, CLOSE, EPOLL_CTL and others that wait for no socket.
        Some(0 | 3 | 8 | 11 | 12 | 14 | 15 | 17..=21 | 24 | 25 | 28 | 29 | 35..=45 | 50..=55) => RingRequests::NoSocket,
        _ => RingRequests::Unclear,
    }
}

fn of_name(name: &str) -> RingRequests {
    match name {
        "SENDMSG" | "RECVMSG" | "ACCEPT" | "CONNECT" | "SEND" | "RECV" | "SHUTDOWN" | "SEND_ZC" | "SENDMSG_ZC"
        | "RECV_ZC" | "BIND" | "LISTEN" => RingRequests::Socket,
        // On a socket, these have the effect of RECV and SEND.
        "POLL_ADD" | "READ" | "READV" | "READ_FIXED" | "READ_MULTISHOT" | "WRITE" | "WRITEV" | "WRITE_FIXED"
        | "SPLICE" | "URING_CMD" | "EPOLL_WAIT" => RingRequests::Unclear,
        _ => RingRequests::NoSocket,
    }
}

impl ProcDir {
    pub fn ring_requests(&self, fd: i32) -> Result<RingRequests, ProcError> {
        self.read(&format!("fdinfo/{fd}"), |bytes| Ok(RingRequests::parse(bytes)))
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
    fn requests_for_sockets_are_told_from_others_and_a_busy_ring_says_nothing() {
        let requests = |submitted: &str, waiting: &str| {
            let text = format!(
                "pos:\t0\nSQEs:\t1\n{submitted}CQEs:\t0\nPollList:\n{waiting}CqOverflowList:\nNAPI:\tdisabled\n"
            );
            RingRequests::parse(text.as_bytes())
        };
        let submitted = |name: &str| {
            requests(
                &format!(
                    "    0: opcode:{name}, fd:7, flags:0, off:0, addr:0x0, rw_flags:0x0, buf_index:0 user_data:9\n"
                ),
                "",
            )
        };
        let waiting = |opcode: u32| requests("", &format!("  op={opcode}, task_works=0\n"));
        assert_eq!(requests("", ""), RingRequests::NoSocket);
        assert_eq!([submitted("EPOLL_CTL"), waiting(29)], [RingRequests::NoSocket; 2]);
        assert_eq!([submitted("ACCEPT"), waiting(13), waiting(27)], [RingRequests::Socket; 3]);
        assert_eq!([submitted("READ"), waiting(6), waiting(22)], [RingRequests::Unclear; 3]);
        assert_eq!(requests("", "  op=22, task_works=0\n  op=27, task_works=0\n"), RingRequests::Socket);
        let busy = b"pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t50437\n";
        assert_eq!(RingRequests::parse(busy), RingRequests::NotListed);
    }

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
            let _ = RingRequests::parse(&bytes);
        }
    }
}
