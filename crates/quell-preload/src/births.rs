//! What epolls and sockets are told when the program makes them. A kernel that does not know it, or a program that may
//! not do it any more, goes without: the launcher looks from outside and says so.

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{AF_INET, AF_INET6, SOL_SOCKET, c_int};
use quell_preload_settings::{BusyPoll, PreloadSettings};

use crate::interposed::{EPOLL_CREATE, EPOLL_CREATE1, EpollCreate, SOCKET, Socket};
use crate::{errno, set_errno};

/// `struct epoll_params` of `linux/eventpoll.h`, as the eight bytes that it is.
static EPOLL_PARAMS: AtomicU64 = AtomicU64::new(0);

/// `_IOW(0x8A, 0x01, struct epoll_params)`.
const EPIOCSPARAMS: libc::Ioctl = libc::_IOW::<u64>(0x8A, 1);

static SO_BUSY_POLL_USECS: AtomicI32 = AtomicI32::new(0);
static SO_BUSY_POLL_BUDGET: AtomicI32 = AtomicI32::new(0);
static SO_PREFER_BUSY_POLL: AtomicI32 = AtomicI32::new(0);

/// Sends calls where `settings` want them.
pub(crate) fn decide(settings: &PreloadSettings) {
    match settings.epoll {
        Some(params) => {
            EPOLL_PARAMS.store(epoll_params(params), Ordering::Relaxed);
            EPOLL_CREATE.send_to(epoll_create as EpollCreate as *mut c_void);
            EPOLL_CREATE1.send_to(epoll_create1 as EpollCreate as *mut c_void);
        }
        None => {
            EPOLL_CREATE.pass_through();
            EPOLL_CREATE1.pass_through();
        }
    }
    match settings.sockets {
        Some(options) => {
            SO_BUSY_POLL_USECS.store(options.usecs().cast_signed(), Ordering::Relaxed);
            SO_BUSY_POLL_BUDGET.store(options.budget().into(), Ordering::Relaxed);
            SO_PREFER_BUSY_POLL.store(options.prefer().into(), Ordering::Relaxed);
            SOCKET.send_to(socket as Socket as *mut c_void);
        }
        None => SOCKET.pass_through(),
    }
}

/// `busy_poll_usecs`, `busy_poll_budget`, `prefer_busy_poll`, and a byte that has to be zero, in the order of memory.
fn epoll_params(params: BusyPoll) -> u64 {
    let [a, b, c, d] = params.usecs().to_ne_bytes();
    let [e, f] = params.budget().to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, params.prefer().into(), 0])
}

unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the program's call, passed on.
    born_epoll(unsafe { EPOLL_CREATE.next()(size) })
}

unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the program's call, passed on.
    born_epoll(unsafe { EPOLL_CREATE1.next()(flags) })
}

fn born_epoll(epfd: c_int) -> c_int {
    if epfd < 0 {
        return epfd;
    }
    let before = errno();
    let params = EPOLL_PARAMS.load(Ordering::Relaxed);
    // SAFETY: this request reads eight bytes.
    unsafe { libc::ioctl(epfd, EPIOCSPARAMS, &raw const params) };
    set_errno(before);
    epfd
}

/// Connections that a listening socket accepts have its options from it (`sk_clone` in `net/core/sock.c`).
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the program's call, passed on.
    let fd = unsafe { SOCKET.next()(domain, kind, protocol) };
    if fd < 0 || !matches!(domain, AF_INET | AF_INET6) {
        return fd;
    }
    let before = errno();
    set_option(fd, libc::SO_BUSY_POLL, &SO_BUSY_POLL_USECS);
    set_option(fd, libc::SO_PREFER_BUSY_POLL, &SO_PREFER_BUSY_POLL);
    set_option(fd, libc::SO_BUSY_POLL_BUDGET, &SO_BUSY_POLL_BUDGET);
    set_errno(before);
    fd
}

fn set_option(fd: c_int, option: c_int, value: &AtomicI32) {
    let value: c_int = value.load(Ordering::Relaxed);
    // SAFETY: reads one int.
    unsafe { libc::setsockopt(fd, SOL_SOCKET, option, (&raw const value).cast(), size_of::<c_int>() as _) };
}
