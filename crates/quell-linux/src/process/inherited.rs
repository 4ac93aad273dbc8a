//! Restores what this process inherited, for a program that it starts in its place. The runtime of the standard
//! library (`std::rt::init`) ignores SIGPIPE before `main`, and opens `/dev/null` for closed standard files.
//! `Command` sets SIGPIPE to the default in each child, and sorts the environment.

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use super::{ProcessError, Step};

unsafe extern "C" {
    /// Environment of the C library. Until a variable is set, it is the array from `exec`.
    static environ: *const *const c_char;
}

/// Kernel mask of the signals that were ignored at startup.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Bit mask of the files 0, 1 and 2 that were closed at startup.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Parent-death signal at startup, 0 for none.
static DEATH_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Constructors run before the runtime's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = record;

extern "C" fn record() {
    let ignored = SIGNALS.filter(|signal| handler(*signal) == Some(libc::SIG_IGN)).fold(0, |set, it| set | bit(it));
    IGNORED.store(ignored, Ordering::Relaxed);
    for fd in 0..3 {
        // SAFETY: reads a flag of a file descriptor, open or not.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    let mut signal: libc::c_int = 0;
    // SAFETY: writes one int.
    if unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) } == 0 {
        DEATH_SIGNAL.store(signal, Ordering::Relaxed);
    }
}

/// All signal numbers of the kernel.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

const fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// The kernel's `struct sigaction` starts with the handler; flags, restorer and mask follow.
type Action = [libc::sighandler_t; 4];

/// Handler of a signal. It uses the system call, because the C library hides and changes the handlers of its
/// own signals (32 and 33).
fn handler(signal: libc::c_int) -> Option<libc::sighandler_t> {
    let mut action = Action::default();
    // SAFETY: the kernel writes the current action, which fits the type; no action is set.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, null::<Action>(), &raw mut action, size_of::<u64>()) };
    (result == 0).then_some(action[0])
}

fn ignore(signal: libc::c_int) {
    let action: Action = [libc::SIG_IGN, 0, 0, 0];
    // SAFETY: sets the ignore action, which always exists. The kernel refuses SIGKILL and SIGSTOP, but these are
    // never ignored.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, null::<Action>(), size_of::<u64>());
    }
}

/// Whether stdout was closed at startup. Output is then lost without an error, because the runtime opened
/// `/dev/null` in its place.
#[must_use]
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << libc::STDOUT_FILENO) != 0
}

/// Resets SIGCHLD to the default, so that this process can wait for its children. If SIGCHLD is ignored, which
/// is inherited, the kernel discards exit statuses (`wait(2)`).
pub(super) fn remember_children() {
    if IGNORED.load(Ordering::Relaxed) & bit(libc::SIGCHLD) != 0 {
        // SAFETY: sets the default action, which always exists.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// Restores in the calling process what its parent inherited. Makes only system calls, because it runs in the
/// child between `fork` and `exec`.
pub(super) fn give_back() -> io::Result<()> {
    let ignored = IGNORED.load(Ordering::Relaxed);
    SIGNALS.filter(|signal| ignored & bit(*signal) != 0).for_each(ignore);
    let closed = CLOSED.load(Ordering::Relaxed);
    for fd in (0..3).filter(|fd| closed & (1 << fd) != 0) {
        // SAFETY: runs in the child. The runtime opened this file in place of a closed one, and the following code
        // uses no file.
        unsafe { libc::close(fd) };
    }
    match DEATH_SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        // SAFETY: takes a number.
        signal if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } == 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Program, arguments and environment in the format of `exec`: created before a `fork`, used after it.
pub(super) struct Image {
    path: CString,
    words: Vector,
    environment: Vector,
}

/// Strings and their null-terminated array of pointers.
struct Vector {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers refer to the strings beside them, which never change.
unsafe impl Send for Vector {}
// SAFETY: as above.
unsafe impl Sync for Vector {}

impl Vector {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([null()]).collect();
        Self { _strings: strings, pointers }
    }
}

impl Image {
    /// Creates an image of the program at `path`, with `words[0]` as `argv[0]` and the environment of this process
    /// with `variables` set.
    pub(super) fn new(
        path: &Path,
        words: &[OsString],
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> Result<Self, ProcessError> {
        let prepare = || -> Result<Self, std::ffi::NulError> {
            let text = |text: &OsStr| CString::new(text.as_bytes());
            let words = words.iter().map(|word| text(word)).collect::<Result<_, _>>()?;
            let mut environment = environment();
            for (name, value) in variables {
                set(&mut environment, text(name.as_ref())?, &text(value.as_ref())?);
            }
            Ok(Self { path: text(path.as_os_str())?, words: Vector::new(words), environment: Vector::new(environment) })
        };
        let program = path.to_string_lossy().into_owned();
        prepare().map_err(|error| ProcessError::Spawn { program, step: Step::Exec, source: error.into() })
    }

    /// Executes the program in place of the calling process; returns only on error. A file without a known header
    /// is executed by the shell, as `execvp(3)` does.
    pub(super) fn execute(&self) -> io::Error {
        // SAFETY: the path ends with a null byte, both arrays with a null pointer.
        unsafe {
            libc::execvpe(self.path.as_ptr(), self.words.pointers.as_ptr(), self.environment.pointers.as_ptr());
        }
        io::Error::last_os_error()
    }
}

/// All strings of this process's environment in their order, including malformed ones.
fn environment() -> Vec<CString> {
    let mut strings = Vec::new();
    // SAFETY: the array contains null-terminated strings and ends with a null pointer; this program sets no
    // variables.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            strings.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    strings
}

/// Sets a variable at its existing position and removes duplicates.
fn set(environment: &mut Vec<CString>, name: CString, value: &CStr) {
    let mut whole = name.into_bytes();
    whole.push(b'=');
    let is_it = |string: &CString| string.as_bytes().starts_with(&whole);
    let at = environment.iter().position(is_it).unwrap_or(environment.len());
    environment.retain(|string| !is_it(string));
    whole.extend(value.to_bytes());
    environment.extend(CString::new(whole));
    environment[at..].rotate_right(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_set_at_its_position_and_once() {
        let strings = |texts: &[&str]| texts.iter().map(|text| CString::new(*text).unwrap()).collect::<Vec<_>>();
        let mut environment = strings(&["AB=0", "A=1", "NEITHER", "A=2", "B=3"]);
        set(&mut environment, c"A".into(), c"new");
        set(&mut environment, c"C".into(), c"");
        assert_eq!(environment, strings(&["AB=0", "A=new", "NEITHER", "B=3", "C="]));
    }
}
