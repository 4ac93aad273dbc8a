//! Busy-poll parameters of an epoll, accessed with `EPIOCGPARAMS` and `EPIOCSPARAMS` (`fs/eventpoll.c`, Linux 6.9).
//! They belong to the open file description. A descriptor duplicated with `pidfd_getfd(2)` therefore accesses the
//! parameters of the program that created the epoll.

use std::io;
use std::os::fd::AsFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Setter};
use thiserror::Error;

use quell_mode::USECS_MAX;
pub use quell_mode::{EpollParams, NAPI_POLL_WEIGHT};

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EpollParamsError {
    #[error("this kernel does not support busy-poll parameters of epolls (needs Linux 6.9)")]
    Unsupported,
    #[error("this kernel is built without CONFIG_NET_RX_BUSY_POLL")]
    NoBusyPoll,
    #[error("the file is not an epoll")]
    NotAnEpoll,
    #[error(
        "busy_poll_usecs {0} is above the kernel's limit of {max}",
        max = USECS_MAX
    )]
    UsecsTooHigh(u32),
    /// The budget exceeds the limit for an unprivileged caller. The parameters are unchanged.
    #[error("setting busy_poll_budget {budget}: {source}; above {NAPI_POLL_WEIGHT} it needs CAP_NET_ADMIN")]
    Denied { budget: u16, source: io::Error },
    #[error("{action} the busy-poll parameters of an epoll: {source}")]
    Refused { action: &'static str, source: io::Error },
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RawParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    /// Padding that must be zero.
    pad: u8,
}

const EPOLL_IOC_TYPE: u8 = 0x8A;
const EPIOCSPARAMS: ioctl::Opcode = ioctl::opcode::write::<RawParams>(EPOLL_IOC_TYPE, 1);
const EPIOCGPARAMS: ioctl::Opcode = ioctl::opcode::read::<RawParams>(EPOLL_IOC_TYPE, 2);

pub fn get(epoll: impl AsFd) -> Result<EpollParams, EpollParamsError> {
    get_raw(epoll).map_err(|errno| refusal("reading", errno))
}

/// Sets all parameters of an epoll at once. On an error none is changed.
pub fn set(epoll: impl AsFd, params: EpollParams) -> Result<(), EpollParamsError> {
    if params.busy_poll_usecs > USECS_MAX {
        return Err(EpollParamsError::UsecsTooHigh(params.busy_poll_usecs));
    }
    let raw = RawParams {
        busy_poll_usecs: params.busy_poll_usecs,
        busy_poll_budget: params.busy_poll_budget,
        prefer_busy_poll: params.prefer_busy_poll.into(),
        pad: 0,
    };
    // SAFETY: the opcode belongs to an ioctl that reads one `struct epoll_params`, laid out as `RawParams`, from
    // its argument.
    let result = unsafe { ioctl::ioctl(epoll, Setter::<EPIOCSPARAMS, RawParams>::new(raw)) };
    result.map_err(|errno| match errno {
        Errno::PERM => {
            let budget = params.busy_poll_budget;
            EpollParamsError::Denied { budget, source: errno.into() }
        }
        other => refusal("setting", other),
    })
}

fn get_raw(epoll: impl AsFd) -> Result<EpollParams, Errno> {
    // SAFETY: the opcode belongs to an ioctl that writes one `struct epoll_params`, laid out as `RawParams`; any
    // bytes are valid values.
    let raw = unsafe { ioctl::ioctl(epoll, Getter::<EPIOCGPARAMS, RawParams>::new()) }?;
    Ok(EpollParams {
        busy_poll_usecs: raw.busy_poll_usecs,
        busy_poll_budget: raw.busy_poll_budget,
        prefer_busy_poll: raw.prefer_busy_poll != 0,
    })
}

/// Classifies the error of an ioctl. A kernel without the ioctl returns `ENOTTY` for an epoll. Every kernel returns it
/// for other files.
fn refusal(action: &'static str, errno: Errno) -> EpollParamsError {
    match errno {
        Errno::NOTTY if kernel_knows_the_ioctl() => EpollParamsError::NotAnEpoll,
        Errno::NOTTY => EpollParamsError::Unsupported,
        Errno::OPNOTSUPP => EpollParamsError::NoBusyPoll,
        other => EpollParamsError::Refused { action, source: other.into() },
    }
}

fn kernel_knows_the_ioctl() -> bool {
    let probe = epoll::create(epoll::CreateFlags::CLOEXEC);
    probe.is_ok_and(|probe| get_raw(probe) != Err(Errno::NOTTY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};

    fn epoll() -> rustix::fd::OwnedFd {
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
    }

    fn supported() -> bool {
        let supported = kernel_knows_the_ioctl();
        if !supported {
            skip(Lacks::KernelFeature, "this kernel has no EPIOCGPARAMS");
        }
        supported
    }

    #[test]
    fn parameters_read_back_as_set() {
        if !supported() {
            return;
        }
        let epoll = epoll();
        assert_eq!(get(&epoll).unwrap(), EpollParams::default());
        let params = EpollParams { busy_poll_usecs: 64, busy_poll_budget: 32, prefer_busy_poll: true };
        set(&epoll, params).unwrap();
        assert_eq!(get(&epoll).unwrap(), params);
    }

    #[test]
    fn a_file_that_is_not_an_epoll_is_distinguished_from_an_old_kernel() {
        if !supported() {
            return;
        }
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        assert!(matches!(get(&file), Err(EpollParamsError::NotAnEpoll)));
    }

    #[test]
    fn a_time_above_the_limit_changes_nothing() {
        if !supported() {
            return;
        }
        let epoll = epoll();
        let params = EpollParams { busy_poll_usecs: 1 << 31, ..EpollParams::default() };
        assert!(matches!(set(&epoll, params), Err(EpollParamsError::UsecsTooHigh(_))));
        assert_eq!(get(&epoll).unwrap(), EpollParams::default());
    }
}
