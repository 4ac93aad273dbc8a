//! Operations on files that store persistent records: reserving disk space, and file locks (`flock(2)`) with a limited
//! wait and a known holder.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::Pid;
use crate::event::{Epoll, Trigger};
use crate::executable::FileId;
use crate::proc::{FdKind, ProcDir, ProcRoot};
use crate::signal::Interruption;

/// First interval between attempts to take a lock. It is short, because the lock should be free soon.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Allocates the first `bytes` of a file without changing its length, so that later writes do not fail with a full
/// disk. A file system that does not support `fallocate(2)` reserves nothing.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno.into()),
        _ => Ok(()),
    }
}

pub fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the exclusive lock of a file that others hold only briefly. Gives up after `patience`, or when `stop` returns
/// true. Returns whether the lock was taken.
pub fn lock_within(file: &File, patience: Duration, stop: &mut dyn FnMut() -> bool) -> io::Result<bool> {
    let until = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    while !try_lock(file)? {
        if Instant::now() >= until || stop() {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = LONGEST_PAUSE.min(pause * 2);
    }
    Ok(true)
}

/// Takes the exclusive lock of a file without a time limit. After a signal, it waits for at most `grace`. Returns
/// whether the lock was taken.
pub fn lock_unless_interrupted(file: &File, interruption: &Interruption, grace: Duration) -> io::Result<bool> {
    if try_lock(file)? {
        return Ok(true);
    }
    // `flock(2)` is not a file that can be waited for together with a signal. A thread blocks in it, and a pipe turns
    // the lock into something readable.
    let (mut reader, mut writer) = io::pipe()?;
    // A duplicate refers to the same open file description, so the caller owns the lock. If the caller gives up,
    // closing this duplicate releases the lock.
    let duplicate = file.try_clone()?;
    std::thread::Builder::new().name("lock".into()).spawn(move || {
        let locked = loop {
            match duplicate.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        if locked.is_ok() {
            // The write fails if the caller gave up and closed its end.
            let _ = writer.write_all(&[1]);
        }
    })?;
    let mut epoll = Epoll::new(2)?;
    epoll.add(&reader, 0, Trigger::Level)?;
    // One-shot: after the signal, this epoll waits only for the lock.
    epoll.add(interruption, 1, Trigger::OneShot)?;
    let mut until = None;
    loop {
        let left = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
        epoll.wait(left)?;
        if (0..epoll.len()).filter_map(|index| epoll.get(index)).any(|event| event.token == 0) {
            return Ok(reader.read(&mut [0])? == 1);
        }
        if until.is_none() && interruption.flag().get().is_some() {
            until = Some(Instant::now() + grace);
        }
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    pub pid: Pid,
    pub comm: Vec<u8>,
    pub is_in_other_namespace: bool,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.comm.escape_ascii())
    }
}

/// Finds the process that locked the file at `path`. Returns `None` if the lock is free, or if its holder is not
/// visible (another PID namespace or user).
#[must_use]
pub fn lock_holder(proc: &ProcRoot, path: &Path) -> Option<LockHolder> {
    let file = file_id(path)?;
    proc.pids().ok()?.into_iter().find(|&pid| has_locked(proc, pid, file)).map(|pid| {
        let comm = proc.process(pid).stat().map(|stat| stat.comm).unwrap_or_default();
        LockHolder {
            pid,
            comm,
            is_in_other_namespace: pid_namespace(proc, pid) != pid_namespace(proc, Pid::of_this_process()),
        }
    })
}

fn pid_namespace(proc: &ProcRoot, pid: Pid) -> Option<FileId> {
    Some(FileId::from(&std::fs::metadata(proc.process(pid).path().join("ns/pid")).ok()?))
}

#[must_use]
pub fn is_locked_by(proc: &ProcRoot, path: &Path, pid: Pid) -> bool {
    file_id(path).is_some_and(|file| has_locked(proc, pid, file))
}

fn file_id(path: &Path) -> Option<FileId> {
    Some(FileId::from(&std::fs::symlink_metadata(path).ok()?))
}

/// Whether a process has locked the file, according to its `fdinfo`. `/proc/locks` is unsuitable: its device numbers
/// differ from those of `stat(2)` on btrfs and overlayfs.
fn has_locked(proc: &ProcRoot, pid: Pid, file: FileId) -> bool {
    let process = proc.process(pid);
    let Ok(fds) = process.fds() else { return false };
    let files = fds.into_iter().filter(|fd| matches!(fd.kind, FdKind::Path(_)));
    files.into_iter().any(|fd| is_file(&process, fd.number, file) && has_lock(&process, fd.number))
}

fn is_file(process: &ProcDir, fd: i32, file: FileId) -> bool {
    let opened = std::fs::metadata(process.path().join(format!("fd/{fd}")));
    opened.is_ok_and(|opened| opened.ino() == file.inode && opened.dev() == file.device)
}

fn has_lock(process: &ProcDir, fd: i32) -> bool {
    let info = std::fs::read(process.path().join(format!("fdinfo/{fd}"))).unwrap_or_default();
    info.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"lock:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let proc = ProcRoot::default();
        let this = Pid::of_this_process();
        assert_eq!(lock_holder(&proc, file.path()), None, "the file is open but not locked");
        assert!(try_lock(file.as_file()).unwrap());
        assert_eq!(lock_holder(&proc, file.path()).map(|holder| holder.pid), Some(this));
        assert!(is_locked_by(&proc, file.path(), this));
        assert!(!is_locked_by(&proc, file.path(), Pid::new(1).unwrap()));
    }

    #[test]
    fn escape_sequences_in_a_name_are_not_printed() {
        let holder =
            LockHolder { pid: Pid::new(7).unwrap(), comm: b"a\x1b[2J\nb".to_vec(), is_in_other_namespace: false };
        assert_eq!(holder.to_string(), r"process 7 (a\x1b[2J\nb)");
    }

    #[test]
    fn waiting_for_a_lock_ends_on_request() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().lock().unwrap();
        let other = file.reopen().unwrap();
        let mut asked = 0;
        let mut stop = || {
            asked += 1;
            asked == 3
        };
        assert!(!lock_within(&other, Duration::from_secs(600), &mut stop).unwrap());
        assert!(!lock_within(&other, Duration::ZERO, &mut || false).unwrap());
        file.as_file().unlock().unwrap();
        assert!(lock_within(&other, Duration::ZERO, &mut || true).unwrap());
    }

    #[test]
    fn waiting_for_a_lock_ends_when_it_is_free_or_after_a_signal_and_the_grace_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().lock().unwrap();
        let interruption = Interruption::listen_to(&[crate::pidfd::Signal::USR2]).unwrap();
        let other = file.reopen().unwrap();
        let waiting = std::thread::spawn(move || {
            let taken = lock_unless_interrupted(&other, &interruption, Duration::from_secs(600)).unwrap();
            (taken, other, interruption)
        });
        file.as_file().unlock().unwrap();
        let (taken, other, interruption) = waiting.join().unwrap();
        assert!(taken && !try_lock(file.as_file()).unwrap());

        let third = file.reopen().unwrap();
        signal_hook::low_level::raise(signal_hook::consts::SIGUSR2).unwrap();
        assert!(!lock_unless_interrupted(&third, &interruption, Duration::from_millis(1)).unwrap());
        drop((other, third));
    }

    #[test]
    fn reserving_space_does_not_change_the_length() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        reserve(&file, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
    }
}
