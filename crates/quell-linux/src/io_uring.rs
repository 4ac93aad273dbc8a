//! Busy polls NAPI instances by their ids, without sockets that receive from them. An io_uring without requests polls
//! the NAPI ids that are registered with it (`IO_URING_NAPI_STATIC_ADD_ID` in `io_uring/napi.c`, Linux 6.13).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, IoringSetupFlags, io_uring_enter_arg, io_uring_getevents_arg, io_uring_napi,
    io_uring_params, io_uring_ptr, io_uring_register, io_uring_setup,
};
use rustix::thread::Timespec;
use thiserror::Error;

use crate::NapiId;

/// Values of `enum io_uring_napi_op` and `enum io_uring_napi_tracking_strategy` in `include/uapi/linux/io_uring.h`.
const IO_URING_NAPI_REGISTER_OP: u8 = 0;
const IO_URING_NAPI_STATIC_ADD_ID: u8 = 1;
const IO_URING_NAPI_STATIC_DEL_ID: u8 = 2;
const IO_URING_NAPI_TRACKING_STATIC: u32 = 1;

/// Timeout of the wait of [`poll_napi_once`]. The ring polls before it waits, and no event ever arrives.
const WAIT: Duration = Duration::from_millis(1);
/// Maximum time of one busy poll in µs (`io_register_napi` in `io_uring/napi.c`).
const BUSY_POLL_MAX_US: u32 = 10_000;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NapiPollError {
    #[error("polling by NAPI ID through io_uring: not supported by this kernel (needs Linux 6.13)")]
    Unsupported,
    /// This process may not use io_uring, because of `kernel.io_uring_disabled` or a seccomp filter.
    #[error("polling by NAPI ID through io_uring: {source}; see sysctl kernel.io_uring_disabled, and seccomp filters")]
    Denied { source: io::Error },
    #[error("polling by NAPI ID through io_uring: {action}: {source}")]
    Refused { action: &'static str, source: io::Error },
}

/// A ring without requests. It only registers NAPI ids and waits.
#[derive(Debug)]
pub struct Ring(OwnedFd);

impl Ring {
    pub fn new() -> io::Result<Self> {
        Ok(Self(setup(IoringSetupFlags::empty())?))
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn setup(flags: IoringSetupFlags) -> Result<OwnedFd, Errno> {
    let mut params = io_uring_params::default();
    params.flags = flags;
    // SAFETY: the ring is never mapped and has no requests. The kernel accesses only `params`, which lives until the
    // call returns.
    unsafe { io_uring_setup(1, &mut params) }
}

/// A ring that busy polls the registered NAPI instances with preferred busy polling, in each [`Self::poll`].
#[derive(Debug)]
pub struct NapiPoller(OwnedFd);

impl NapiPoller {
    /// Creates a poller whose calls of [`Self::poll`] last for `busy_poll`, at most 10 ms. With zero, each call polls
    /// once.
    pub fn new(busy_poll: Duration) -> Result<Self, NapiPollError> {
        let ring = setup(IoringSetupFlags::empty()).map_err(refused("creating the ring"))?;
        let us = u32::try_from(busy_poll.as_micros()).unwrap_or(u32::MAX).min(BUSY_POLL_MAX_US);
        let mut by_id = io_uring_napi::default();
        by_id.busy_poll_to = us;
        by_id.prefer_busy_poll = 1;
        by_id.opcode = IO_URING_NAPI_REGISTER_OP;
        by_id.op_param = IO_URING_NAPI_TRACKING_STATIC;
        let poller = Self(ring);
        poller.register(by_id, "enabling polling by NAPI ID")?;
        Ok(poller)
    }

    /// Registers an instance. An ID without an instance is not an error: it is not polled, and the kernel does not say so.
    pub fn add(&self, napi: NapiId) -> Result<(), NapiPollError> {
        self.register_id(IO_URING_NAPI_STATIC_ADD_ID, napi, "registering the NAPI ID")
    }

    /// Removes a registered instance.
    pub fn remove(&self, napi: NapiId) -> Result<(), NapiPollError> {
        self.register_id(IO_URING_NAPI_STATIC_DEL_ID, napi, "removing the NAPI ID")
    }

    /// Polls until the time is over, the scheduler wants the CPU, or a signal is pending. Does not sleep. At the end, the
    /// kernel sets the instance's timer to `gro-flush-timeout` (`busy_poll_stop` in `net/core/dev.c`).
    pub fn poll(&self) -> Result<(), NapiPollError> {
        // The timeout of the sleep after the polls. It is over when they begin; the kernel then uses the whole busy-poll
        // time (`__io_napi_busy_loop` computes the rest as an unsigned number).
        self.wait(Duration::ZERO)
    }

    fn wait(&self, timeout: Duration) -> Result<(), NapiPollError> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let timeout = io_uring_ptr::from((&raw const timeout).cast_mut().cast::<std::ffi::c_void>());
        let wait = io_uring_getevents_arg { ts: timeout, ..Default::default() };
        let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG;
        // SAFETY: `EXT_ARG` is set, there is no signal mask, and the timeout that `wait` points to outlives the call.
        match unsafe { io_uring_enter_arg(&self.0, 0, 1, flags, Some(&wait)) } {
            Ok(_) | Err(Errno::TIME | Errno::INTR) => Ok(()),
            Err(errno) => Err(refused("waiting")(errno)),
        }
    }

    fn register_id(&self, opcode: u8, napi: NapiId, action: &'static str) -> Result<(), NapiPollError> {
        let mut id = io_uring_napi::default();
        id.opcode = opcode;
        id.op_param = napi.get();
        self.register(id, action)
    }

    fn register(&self, mut request: io_uring_napi, action: &'static str) -> Result<(), NapiPollError> {
        let argument = (&raw mut request).cast::<std::ffi::c_void>();
        // SAFETY: the kernel reads and writes one `struct io_uring_napi`; `argument` points to it.
        let result = unsafe { io_uring_register(&self.0, IoringRegisterOp::RegisterNapi, argument, 1) };
        result.map(drop).map_err(refused(action))
    }
}

/// Polls the instance once with preferred busy polling. If packets are waiting, at least one of them reaches its
/// socket. The kernel then sets the instance's timer to `gro-flush-timeout`. An id without an instance is not an error,
/// and no instance is polled.
pub fn poll_napi_once(napi: NapiId) -> Result<(), NapiPollError> {
    let poller = NapiPoller::new(Duration::ZERO)?;
    poller.add(napi)?;
    poller.wait(WAIT)
}

fn refused(action: &'static str) -> impl Fn(Errno) -> NapiPollError {
    move |errno| match errno {
        Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP => NapiPollError::Unsupported,
        Errno::PERM | Errno::ACCESS => NapiPollError::Denied { source: errno.into() },
        _ => NapiPollError::Refused { action, source: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};

    #[test]
    fn polling_an_id_without_an_instance_is_not_an_error() {
        match poll_napi_once(NapiId::from_kernel(u32::MAX).unwrap()) {
            Err(error @ (NapiPollError::Unsupported | NapiPollError::Denied { .. })) => {
                skip(Lacks::KernelFeature, &error);
            }
            polled => polled.unwrap(),
        }
    }
}
