//! What becomes of the program's waits: fewer events a wait, no wait of zero under suspension, long waits made of short
//! ones, a spin before sleeping. The program must not see a difference: a wait ends when an event is there, when the
//! time that it asked for is over, or when a signal was handled.
//!
//! A signal between two pieces of one wait would be handled without ending it. So signals are blocked between the pieces,
//! and let in by `epoll_pwait`, whose pieces they end. They are not blocked in the first call, which only takes what is
//! ready already: a signal in it is as one that came before the wait.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::null;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use libc::{EINTR, ENOSYS, EPERM, c_int, epoll_event, sigset_t, timespec};
use quell_preload_settings::{PreloadSettings, Wait};

use crate::interposed::{EPOLL_PWAIT, EPOLL_PWAIT2, EPOLL_WAIT, EpollPwait, EpollPwait2, EpollWait};
use crate::{errno, set_errno};

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
/// A wait without an end.
const FOREVER: u64 = u64::MAX;

static EVENTS_MAX: AtomicI32 = AtomicI32::new(c_int::MAX);
static TIMED_ZERO_WAITS: AtomicBool = AtomicBool::new(false);
/// The longest piece of a wait; [`FOREVER`] where waits stay whole.
static PIECE_NS: AtomicU64 = AtomicU64::new(FOREVER);
static SPIN_NS: AtomicU64 = AtomicU64::new(0);
/// Whether [`PIECE_NS`] or [`SPIN_NS`] make a wait longer than one call.
static IN_PIECES: AtomicBool = AtomicBool::new(false);

/// Sends calls where `settings` want them.
pub(crate) fn decide(settings: &PreloadSettings) {
    let is_touched = settings.timed_zero_waits || settings.events_max.is_some() || settings.wait != Wait::AsWritten;
    if !is_touched {
        EPOLL_WAIT.pass_through();
        EPOLL_PWAIT.pass_through();
        EPOLL_PWAIT2.pass_through();
        return;
    }
    let events_max = settings.events_max.map_or(c_int::MAX, |events| events.get().cast_signed());
    EVENTS_MAX.store(events_max, Ordering::Relaxed);
    TIMED_ZERO_WAITS.store(settings.timed_zero_waits, Ordering::Relaxed);
    match settings.wait {
        Wait::AsWritten => {}
        Wait::AtMost(millis) => PIECE_NS.store(u64::from(millis.get()) * NS_PER_MS, Ordering::Relaxed),
        Wait::SpinBeforeSleep(micros) => SPIN_NS.store(u64::from(micros.get()) * 1_000, Ordering::Relaxed),
    }
    IN_PIECES.store(settings.wait != Wait::AsWritten, Ordering::Relaxed);
    EPOLL_WAIT.send_to(epoll_wait as EpollWait as *mut c_void);
    EPOLL_PWAIT.send_to(epoll_pwait as EpollPwait as *mut c_void);
    EPOLL_PWAIT2.send_to(epoll_pwait2 as EpollPwait2 as *mut c_void);
}

/// What a wait is about, besides its time.
#[repr(C)]
#[derive(Clone, Copy)]
struct Call {
    epfd: c_int,
    maxevents: c_int,
    events: *mut epoll_event,
    sigmask: *const sigset_t,
    /// Whether the program asked by `epoll_pwait2`, whose times are of ns.
    exact: bool,
}

unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int {
    let maxevents = maxevents.min(EVENTS_MAX.load(Ordering::Relaxed));
    if is_as_written(timeout == 0) {
        // SAFETY: the program's call, passed on.
        return unsafe { EPOLL_WAIT.next()(epfd, events, maxevents, timeout) };
    }
    let call = Call { epfd, events, maxevents, sigmask: null(), exact: false };
    wait_for(&call, ns_of_millis(timeout))
}

unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
    sigmask: *const sigset_t,
) -> c_int {
    let maxevents = maxevents.min(EVENTS_MAX.load(Ordering::Relaxed));
    if is_as_written(timeout == 0) {
        // SAFETY: the program's call, passed on.
        return unsafe { EPOLL_PWAIT.next()(epfd, events, maxevents, timeout, sigmask) };
    }
    let call = Call { epfd, events, maxevents, sigmask, exact: false };
    wait_for(&call, ns_of_millis(timeout))
}

unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    let maxevents = maxevents.min(EVENTS_MAX.load(Ordering::Relaxed));
    // SAFETY: null, or the program's own time.
    let asked = ns_of_timespec(unsafe { timeout.as_ref() });
    match asked {
        Some(asked_ns) if !is_as_written(asked_ns == 0) => {
            let call = Call { epfd, events, maxevents, sigmask, exact: true };
            wait_for(&call, asked_ns)
        }
        // SAFETY: the program's call, passed on; a time that is none is the kernel's to refuse.
        _ => unsafe { EPOLL_PWAIT2.next()(epfd, events, maxevents, timeout, sigmask) },
    }
}

/// Whether a wait needs one call, with the time that the program asked for.
#[inline(always)]
fn is_as_written(is_zero: bool) -> bool {
    let touched = if is_zero { &TIMED_ZERO_WAITS } else { &IN_PIECES };
    !touched.load(Ordering::Relaxed)
}

fn ns_of_millis(timeout: c_int) -> u64 {
    u64::try_from(timeout).map_or(FOREVER, |millis| millis * NS_PER_MS)
}

/// Absent for what the kernel refuses.
fn ns_of_timespec(timeout: Option<&timespec>) -> Option<u64> {
    let Some(timeout) = timeout else { return Some(FOREVER) };
    let seconds = u64::try_from(timeout.tv_sec).ok()?;
    let ns = u64::try_from(timeout.tv_nsec).ok().filter(|&ns| ns < NS_PER_S)?;
    Some(seconds.saturating_mul(NS_PER_S).saturating_add(ns))
}

#[inline(never)]
extern "C" fn wait_for(call: &Call, asked_ns: u64) -> c_int {
    if asked_ns == 0 {
        return zero_wait(call);
    }
    // What is ready costs one system call, as without this library.
    let ready = wait(call, 0);
    if ready != 0 {
        return ready;
    }
    let spin_ns = SPIN_NS.load(Ordering::Relaxed).min(asked_ns);
    let piece_ns = PIECE_NS.load(Ordering::Relaxed).min(asked_ns);
    let signals = Signals::block();
    let call = Call { sigmask: if call.sigmask.is_null() { &raw const signals.before } else { call.sigmask }, ..*call };
    let result = if spin_ns > 0 { spin(&call, spin_ns, asked_ns) } else { pieces(&call, piece_ns, asked_ns) };
    signals.unblock();
    result
}

/// The shortest wait in which the kernel polls the queue, and resumes interrupts when there is nothing. As one of zero it
/// is not ended by a signal.
extern "C" fn zero_wait(call: &Call) -> c_int {
    let before = errno();
    let mut result = wait(&Call { exact: true, ..*call }, 1);
    let is_refused = result < 0 && matches!(errno(), ENOSYS | EPERM);
    if is_refused && !call.exact {
        // An old filter of system calls does not know epoll_pwait2. Longer, but no wait of zero either.
        result = wait(call, NS_PER_MS);
    }
    if result < 0 && errno() == EINTR {
        set_errno(before);
        return 0;
    }
    result
}

/// Goes on asking until an event is there or `spin_ns` are over, then waits for what is left of `asked_ns`.
extern "C" fn spin(call: &Call, spin_ns: u64, asked_ns: u64) -> c_int {
    let begin = now_ns();
    loop {
        let result = wait(call, 0);
        if result != 0 {
            return result;
        }
        let spun_ns = now_ns().saturating_sub(begin);
        if spun_ns < spin_ns {
            continue;
        }
        if asked_ns == FOREVER {
            return wait(call, FOREVER);
        }
        let left_ns = asked_ns.saturating_sub(spun_ns);
        return if left_ns == 0 { 0 } else { wait(call, left_ns) };
    }
}

/// Waits in pieces of at most `piece_ns` until `asked_ns` are over.
extern "C" fn pieces(call: &Call, piece_ns: u64, asked_ns: u64) -> c_int {
    let end = now_ns().saturating_add(asked_ns);
    loop {
        let left_ns = if asked_ns == FOREVER { FOREVER } else { end.saturating_sub(now_ns()) };
        if left_ns == 0 {
            return 0;
        }
        let result = wait(call, left_ns.min(piece_ns));
        if result != 0 {
            return result;
        }
    }
}

/// Waits for so long, by the C library's function with times as exact as the program's were. Without `epoll_pwait2`,
/// which filters of system calls may not know, times are rounded up to ms: no wait ends too early.
extern "C" fn wait(call: &Call, ns: u64) -> c_int {
    if call.exact {
        let seconds = libc::time_t::try_from(ns / NS_PER_S).unwrap_or(libc::time_t::MAX);
        let timeout = timespec { tv_sec: seconds, tv_nsec: (ns % NS_PER_S) as _ };
        let timeout = if ns == FOREVER { null() } else { &raw const timeout };
        // SAFETY: the program's call, with another time.
        return unsafe { EPOLL_PWAIT2.next()(call.epfd, call.events, call.maxevents, timeout, call.sigmask) };
    }
    let millis = if ns == FOREVER { -1 } else { c_int::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(c_int::MAX) };
    // SAFETY: the program's call, with another time.
    unsafe { EPOLL_PWAIT.next()(call.epfd, call.events, call.maxevents, millis, call.sigmask) }
}

/// The thread's signals, blocked.
struct Signals {
    before: sigset_t,
}

impl Signals {
    fn block() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigfillset` fills the first, `sigprocmask` the second, which cannot fail with this argument. The
        // signals that the C library needs for itself stay as they are.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }

    /// Lets them in again. A handler that runs here does not change the `errno` of the wait, as none does that runs
    /// before the kernel's call returns.
    fn unblock(&self) {
        let result = errno();
        // SAFETY: sets what was there before.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, core::ptr::null_mut()) };
        set_errno(result);
    }
}

fn now_ns() -> u64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one time; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    ns_of_timespec(Some(&now)).unwrap_or(0)
}
