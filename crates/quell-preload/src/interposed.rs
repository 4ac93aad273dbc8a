//! The six functions that this library stands before. Each jumps to where a pointer says; at load the pointer becomes
//! the next library's function where nothing is to be done, so that a call which is not touched costs one jump.
//!
//! Where a wait sleeps, a function of the C library sleeps and no system call of ours: `pthread_cancel` works by what
//! happens in there, and then unwinds the thread through the frames here. As those of a library in C that knows no
//! exceptions, they have tables for that (which the build of the shared object asks for) and nothing to drop.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{ENOSYS, c_int, epoll_event, sigset_t, timespec};

use crate::load::load;
use crate::set_errno;

pub(crate) type EpollCreate = unsafe extern "C" fn(c_int) -> c_int;
pub(crate) type EpollWait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
pub(crate) type EpollPwait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
pub(crate) type EpollPwait2 =
    unsafe extern "C" fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
pub(crate) type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

pub(crate) static EPOLL_CREATE: Interposed<EpollCreate> = Interposed::new(c"epoll_create", first_epoll_create as _);
pub(crate) static EPOLL_CREATE1: Interposed<EpollCreate> = Interposed::new(c"epoll_create1", first_epoll_create1 as _);
pub(crate) static EPOLL_WAIT: Interposed<EpollWait> = Interposed::new(c"epoll_wait", first_epoll_wait as _);
pub(crate) static EPOLL_PWAIT: Interposed<EpollPwait> = Interposed::new(c"epoll_pwait", first_epoll_pwait as _);
pub(crate) static EPOLL_PWAIT2: Interposed<EpollPwait2> = Interposed::new(c"epoll_pwait2", first_epoll_pwait2 as _);
pub(crate) static SOCKET: Interposed<Socket> = Interposed::new(c"socket", first_socket as _);

/// One function: where calls of it go, and the next library's, which are both of type `F`.
pub(crate) struct Interposed<F> {
    name: &'static CStr,
    target: AtomicPtr<c_void>,
    next: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Interposed<F> {
    /// `first` is of type `F`, and what runs until it is known where calls go.
    const fn new(name: &'static CStr, first: *mut c_void) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a pointer to a function");
        Self { name, target: AtomicPtr::new(first), next: AtomicPtr::new(first), function: PhantomData }
    }

    /// Looks the next library's function up. Says whether there is one.
    pub(crate) fn find_next(&self) -> bool {
        // SAFETY: the name ends with a null byte. The result is looked at below, so that this is no tail call: dlsym
        // learns from its return address which library is the one after.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if next.is_null() {
            return false;
        }
        self.next.store(next, Ordering::Relaxed);
        true
    }

    /// Lets `function`, of type `F`, stand for the next library's.
    pub(crate) fn without_next(&self, function: *mut c_void) {
        self.next.store(function, Ordering::Relaxed);
    }

    /// Sends calls to the next library.
    pub(crate) fn pass_through(&self) {
        self.send_to(self.next.load(Ordering::Relaxed));
    }

    /// Sends calls to `function`, which is of type `F`. What it reads is to be stored before.
    pub(crate) fn send_to(&self, function: *mut c_void) {
        self.target.store(function, Ordering::Release);
    }

    /// The next library's function. Not before [`load`].
    #[inline(always)]
    pub(crate) fn next(&self) -> F {
        let next = self.next.load(Ordering::Relaxed);
        // SAFETY: only functions of type `F` are stored.
        unsafe { transmute_copy(&next) }
    }

    #[inline(always)]
    fn target(&self) -> F {
        let target = self.target.load(Ordering::Acquire);
        // SAFETY: only functions of type `F` are stored.
        unsafe { transmute_copy(&target) }
    }
}

/// `epoll_create(2)`.
///
/// # Safety
/// That of the C library's function of this name; so it is with all of these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { EPOLL_CREATE.target()(size) }
}

/// `epoll_create1(2)`.
///
/// # Safety
/// See [`epoll_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { EPOLL_CREATE1.target()(flags) }
}

/// `epoll_wait(2)`.
///
/// # Safety
/// See [`epoll_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { EPOLL_WAIT.target()(epfd, events, maxevents, timeout) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// See [`epoll_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
    sigmask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { EPOLL_PWAIT.target()(epfd, events, maxevents, timeout, sigmask) }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// See [`epoll_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { EPOLL_PWAIT2.target()(epfd, events, maxevents, timeout, sigmask) }
}

/// `socket(2)`.
///
/// # Safety
/// See [`epoll_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { SOCKET.target()(domain, kind, protocol) }
}

/// Calls before this library's constructor has run, by constructors of others, come here.
macro_rules! load_before {
    ($first:ident, $function:ident($($argument:ident: $type:ty),*)) => {
        #[cold]
        unsafe extern "C" fn $first($($argument: $type),*) -> c_int {
            if !load() {
                set_errno(ENOSYS);
                return -1;
            }
            // SAFETY: the caller's call, passed on.
            unsafe { $function($($argument),*) }
        }
    };
}

load_before!(first_epoll_create, epoll_create(size: c_int));
load_before!(first_epoll_create1, epoll_create1(flags: c_int));
load_before!(first_epoll_wait, epoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int));
load_before!(first_epoll_pwait, epoll_pwait(
    epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int, sigmask: *const sigset_t
));
load_before!(first_epoll_pwait2, epoll_pwait2(
    epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: *const timespec, sigmask: *const sigset_t
));
load_before!(first_socket, socket(domain: c_int, kind: c_int, protocol: c_int));
