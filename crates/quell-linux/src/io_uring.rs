//! Busy polls one NAPI instance by its id, without a socket that receives from it. An io_uring without requests polls
//! the NAPI ids that are registered with it (`IO_URING_NAPI_STATIC_ADD_ID` in `io_uring/napi.c`, Linux 6.13).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
const IO_URING_NAPI_TRACKING_STATIC: u32 = 1;

/// Timeout of the ring's wait in ns. The ring polls before it waits, and no event ever arrives.
const WAIT_NS: i64 = 1_000_000;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NapiPollError {
    #[error("polling NAPI {napi} by io_uring: not supported by this kernel (needs Linux 6.13)")]
    Unsupported { napi: NapiId },
    /// This process may not use io_uring, because of `kernel.io_uring_disabled` or a seccomp filter.
    #[error("polling NAPI {napi} by io_uring: {source}; see sysctl kernel.io_uring_disabled, and seccomp filters")]
    Denied { napi: NapiId, source: io::Error },
    #[error("polling NAPI {napi} by io_uring: {action}: {source}")]
    Refused { napi: NapiId, action: &'static str, source: io::Error },
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

/// Polls the instance once with preferred busy polling. If packets are waiting, at least one of them reaches its
/// socket. The kernel then sets the instance's timer to `gro-flush-timeout` (`busy_poll_stop` in `net/core/dev.c`). An
/// id without an instance is not an error, and no instance is polled.
pub fn poll_napi_once(napi: NapiId) -> Result<(), NapiPollError> {
    let refused = |action| move |errno| refusal(napi, action, errno);
    let ring = setup(IoringSetupFlags::empty()).map_err(refused("creating the ring"))?;
    let register = |mut request: io_uring_napi| {
        let argument = (&raw mut request).cast::<std::ffi::c_void>();
        // SAFETY: the kernel reads and writes one `struct io_uring_napi`; `argument` points to it.
        unsafe { io_uring_register(&ring, IoringRegisterOp::RegisterNapi, argument, 1) }
    };
    let mut by_id = io_uring_napi::default();
    by_id.prefer_busy_poll = 1;
    by_id.opcode = IO_URING_NAPI_REGISTER_OP;
    by_id.op_param = IO_URING_NAPI_TRACKING_STATIC;
    register(by_id).map_err(refused("enabling polling by NAPI id"))?;
    let mut id = io_uring_napi::default();
    id.opcode = IO_URING_NAPI_STATIC_ADD_ID;
    id.op_param = napi.get();
    register(id).map_err(refused("registering the NAPI id"))?;

    let timeout = Timespec { tv_sec: 0, tv_nsec: WAIT_NS };
    let timeout = io_uring_ptr::from((&raw const timeout).cast_mut().cast::<std::ffi::c_void>());
    let wait = io_uring_getevents_arg { ts: timeout, ..Default::default() };
    let flags = IoringEnterFlags::GETEVENTS | IoringEnterFlags::EXT_ARG;
    // SAFETY: `EXT_ARG` is set, there is no signal mask, and the timeout that `wait` points to outlives the call.
    match unsafe { io_uring_enter_arg(&ring, 0, 1, flags, Some(&wait)) } {
        Ok(_) | Err(Errno::TIME | Errno::INTR) => Ok(()),
        Err(errno) => Err(refusal(napi, "waiting", errno)),
    }
}

fn refusal(napi: NapiId, action: &'static str, errno: Errno) -> NapiPollError {
    match errno {
        Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP => NapiPollError::Unsupported { napi },
        Errno::PERM | Errno::ACCESS => NapiPollError::Denied { napi, source: errno.into() },
        _ => NapiPollError::Refused { napi, action, source: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};

    #[test]
    fn polling_an_id_without_an_instance_is_not_an_error() {
        match poll_napi_once(NapiId::from_kernel(u32::MAX).unwrap()) {
            Err(error @ (NapiPollError::Unsupported { .. } | NapiPollError::Denied { .. })) => {
                skip(Lacks::KernelFeature, &error);
            }
            polled => polled.unwrap(),
        }
    }
}
