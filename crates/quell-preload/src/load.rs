//! What happens once, when the library is loaded or first called: the next library's functions are looked up, the
//! settings are read from the environment, and it is decided which calls are to be touched. Two threads may do it at
//! once: both store the same.

use core::ffi::{CStr, c_void};

use libc::{c_int, c_long, epoll_event, sigset_t, timespec};
use quell_preload_settings::{ENVIRONMENT_VARIABLE, PreloadSettings};

use crate::interposed::{EPOLL_CREATE, EPOLL_CREATE1, EPOLL_PWAIT, EPOLL_PWAIT2, EPOLL_WAIT, EpollPwait2, SOCKET};
use crate::{births, waits};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        load();
    }
    at_load
};

/// Decides where calls go. Says whether it could: without a next library calls stay where they are.
pub(crate) fn load() -> bool {
    let there_are = EPOLL_CREATE.find_next()
        && EPOLL_CREATE1.find_next()
        && EPOLL_WAIT.find_next()
        && EPOLL_PWAIT.find_next()
        && SOCKET.find_next();
    if !there_are {
        return false;
    }
    if !EPOLL_PWAIT2.find_next() {
        EPOLL_PWAIT2.without_next(epoll_pwait2_by_system_call as EpollPwait2 as *mut c_void);
    }
    let settings = settings();
    births::decide(&settings);
    waits::decide(&settings);
    true
}

/// What the launcher says; nothing is to be done when it says nothing, or what is not understood.
fn settings() -> PreloadSettings {
    let mut name = [0; 32];
    for (to, from) in name.iter_mut().zip(ENVIRONMENT_VARIABLE.bytes()) {
        *to = from;
    }
    // SAFETY: the name ends with a null byte, for it is shorter than the array.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    if value.is_null() {
        return PreloadSettings::default();
    }
    // SAFETY: a value of the environment ends with a null byte; it is not kept beyond this function.
    let text = unsafe { CStr::from_ptr(value) };
    text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// For C libraries without this function (glibc before 2.35). No place to be cancelled at.
unsafe extern "C" fn epoll_pwait2_by_system_call(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    /// Of the kernel's, in bytes; the C library's type is larger.
    const SIGSET_SIZE: usize = 8;
    // SAFETY: the caller's call, passed on to the kernel.
    let result: c_long =
        unsafe { libc::syscall(libc::SYS_epoll_pwait2, epfd, events, maxevents, timeout, sigmask, SIGSET_SIZE) };
    result as c_int
}
