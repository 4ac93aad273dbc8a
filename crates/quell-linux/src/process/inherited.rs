//! Restores the state that this process inherited, for a program that it starts in its place. Before `main`, the
//! runtime of the standard library (`std::rt::init`) ignores SIGPIPE and opens `/dev/null` for closed standard files.
//! In each child, `Command` sets SIGPIPE to the default and sorts the environment.

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use super::{ProcessError, SpawnStep};

unsafe extern "C" {
    /// Environment in the C library. Until a variable is set, it is the array that `exec` created.
    static environ: *const *const c_char;
}

/// Bit mask of the signals that were ignored at startup, in the kernel's format.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Bit mask of the standard files (0, 1 and 2) that were closed at startup.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Parent-death signal at startup; 0 means none.
static DEATH_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Constructor of the program, which runs before the Rust runtime starts.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = record;

extern "C" fn record() {
    // Neither the allocator nor the standard library may be used here: their initialisation can come later.
    let ignored = SIGNALS.filter(|signal| handler(*signal) == Some(libc::SIG_IGN)).fold(0, |set, it| set | bit(it));
    IGNORED.store(ignored, Ordering::Relaxed);
    for fd in 0..3 {
        // SAFETY: the call reads a flag of a file descriptor, which need not be open.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    let mut signal: libc::c_int = 0;
    // SAFETY: the call writes one `int` to `signal`.
    if unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) } == 0 {
        DEATH_SIGNAL.store(signal, Ordering::Relaxed);
    }
}

const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

const fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// The kernel's `struct sigaction`, which starts with the handler. The flags, the restorer and the mask follow.
type Action = [libc::sighandler_t; 4];

/// Reads the handler of a signal with a raw system call. The C library hides and changes the handlers of the signals
/// that it uses itself (32 and 33).
fn handler(signal: libc::c_int) -> Option<libc::sighandler_t> {
    let mut action = Action::default();
    // SAFETY: the kernel writes the current action, which fits the type. The call sets no action.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, null::<Action>(), &raw mut action, size_of::<u64>()) };
    (result == 0).then_some(action[0])
}

fn ignore(signal: libc::c_int) {
    let action: Action = [libc::SIG_IGN, 0, 0, 0];
    // SAFETY: the call sets the ignore action, which always exists. The kernel rejects SIGKILL and SIGSTOP, but these
    // are never ignored.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, null::<Action>(), size_of::<u64>());
    }
}

/// Whether stdout was closed at startup. Output is then lost without an error, because the runtime opened `/dev/null`
/// as stdout.
#[must_use]
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << libc::STDOUT_FILENO) != 0
}

/// Sets SIGCHLD to the default action, so that this process can wait for its children. If a process inherits an ignored
/// SIGCHLD, the kernel discards the exit statuses of its children (`wait(2)`).
pub(super) fn remember_children() {
    if IGNORED.load(Ordering::Relaxed) & bit(libc::SIGCHLD) != 0 {
        // SAFETY: the call sets the default action, which always exists.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// Restores in the calling process the state that its parent inherited. It makes only system calls, because it runs in
/// the child between `fork` and `exec`.
pub(super) fn give_back() -> io::Result<()> {
    let ignored = IGNORED.load(Ordering::Relaxed);
    SIGNALS.filter(|signal| ignored & bit(*signal) != 0).for_each(ignore);
    let closed = CLOSED.load(Ordering::Relaxed);
    for fd in (0..3).filter(|fd| closed & (1 << fd) != 0) {
        // SAFETY: the call runs in the child. The runtime opened this file in place of a closed one, and no later code
        // uses it.
        unsafe { libc::close(fd) };
    }
    match DEATH_SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        // SAFETY: the call takes a number.
        signal if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } == 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A program with its arguments and environment, in the format of `exec`. It is created before a `fork` and used after
/// it.
pub(super) struct Image {
    path: CString,
    words: Vector,
    environment: Vector,
}

/// Strings, and the null-terminated array of pointers to them.
struct Vector {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers refer to the strings in the same struct, which never change.
unsafe impl Send for Vector {}
// SAFETY: the pointers refer to the strings in the same struct, which never change.
unsafe impl Sync for Vector {}

impl Vector {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([null()]).collect();
        Self { _strings: strings, pointers }
    }
}

impl Image {
    /// Creates an image of the program at `path`. `words[0]` is its `argv[0]`, and its environment is that of this
    /// process with `variables` set.
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
        prepare().map_err(|error| ProcessError::Spawn { program, step: SpawnStep::Exec, source: error.into() })
    }

    /// Executes the program in place of the calling process. The function returns only on an error. A shell executes a
    /// file without a known header, as with `execvp(3)`.
    pub(super) fn execute(&self) -> io::Error {
        // SAFETY: the path ends with a null byte, and both arrays end with a null pointer.
        unsafe {
            libc::execvpe(self.path.as_ptr(), self.words.pointers.as_ptr(), self.environment.pointers.as_ptr());
        }
        io::Error::last_os_error()
    }
}

/// All strings of this process's environment in their order, including malformed strings.
fn environment() -> Vec<CString> {
    let mut strings = Vec::new();
    // SAFETY: the array contains null-terminated strings and ends with a null pointer. This program sets no variables.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            strings.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    strings
}

/// Sets a variable at its current position in the environment, and removes duplicates.
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
