//! Tests with `kcmp(2)` whether two descriptors are one open file (`KCMP_FILE`) and whether an epoll watches a file
//! (`KCMP_EPOLL_TFD` in `kernel/kcmp.c`, Linux 4.13, `CONFIG_KCMP`). Inodes do not identify epolls, because all epolls
//! share one inode.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::Pid;

/// `enum kcmp_type` of `include/uapi/linux/kcmp.h`.
const KCMP_FILE: libc::c_int = 0;
/// As [`KCMP_FILE`].
const KCMP_EPOLL_TFD: libc::c_int = 7;
/// Maximum number of files that are checked under one descriptor number. A file that was closed while a duplicate
/// existed remains registered, and its number is reused.
const UNDER_ONE_NUMBER_MAX: u32 = 16;

/// The kernel's `struct kcmp_epoll_slot`.
#[repr(C)]
struct Slot {
    efd: u32,
    tfd: u32,
    toff: u32,
}

/// Whether two descriptors of two processes are the same open file.
///
/// # Errors
/// The error returned by `kcmp(2)`. `ENOSYS` if the kernel lacks the system call; `ESRCH` and `EBADF` if a process has
/// exited or its descriptor is closed; `EPERM` if a process may not be inspected.
pub fn is_same_file((one, fd): (Pid, i32), (other, other_fd): (Pid, i32)) -> io::Result<bool> {
    // SAFETY: the kernel takes numbers only for this type.
    let compared = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            one.get(),
            other.get(),
            KCMP_FILE,
            libc::c_ulong::from(fd.unsigned_abs()),
            libc::c_ulong::from(other_fd.unsigned_abs()),
        )
    };
    if compared < 0 { Err(io::Error::last_os_error()) } else { Ok(compared == 0) }
}

/// Whether `epoll` watches the open file `file` under the descriptor number `tfd` of its program.
///
/// # Errors
/// The error returned by `kcmp(2)`. `ENOSYS` if the kernel lacks the system call; `EINVAL` if it cannot compare epolls
/// or the file is not an epoll.
pub fn epoll_watches(epoll: impl AsFd, tfd: i32, file: impl AsFd) -> io::Result<bool> {
    let own = Pid::of_this_process().get();
    let (file, efd) = (file.as_fd().as_raw_fd().unsigned_abs(), epoll.as_fd().as_raw_fd().unsigned_abs());
    for toff in 0..UNDER_ONE_NUMBER_MAX {
        let slot = Slot { efd, tfd: tfd.unsigned_abs(), toff };
        // SAFETY: both PIDs are this process, which has `file` open. The kernel reads one `Slot` through the last
        // argument.
        let compared = unsafe {
            libc::syscall(libc::SYS_kcmp, own, own, KCMP_EPOLL_TFD, libc::c_ulong::from(file), &raw const slot)
        };
        match compared {
            0 => return Ok(true),
            1.. => {}
            _ => {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) };
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Epoll, Trigger};
    use quell_test_support::{Lacks, skip};

    #[test]
    fn a_duplicate_is_the_same_file_and_another_one_is_not() {
        let (one, other) = (Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        let duplicate = one.as_fd().try_clone_to_owned().unwrap();
        let here = |fd: &dyn AsFd| (Pid::of_this_process(), fd.as_fd().as_raw_fd());
        match is_same_file(here(&one), here(&duplicate)) {
            Ok(same) => assert!(same),
            Err(error) => return skip(Lacks::KernelFeature, &error),
        }
        assert!(!is_same_file(here(&one), here(&other)).unwrap());
        assert!(is_same_file(here(&one), (Pid::of_this_process(), i32::MAX)).is_err());
    }

    #[test]
    fn an_epoll_is_identified_by_a_watched_file() {
        let (watching, other) = (Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        watching.add(&reader, 0, Trigger::Level).unwrap();
        let tfd = reader.as_raw_fd();
        match epoll_watches(&watching, tfd, &reader) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return skip(Lacks::KernelFeature, &error),
            watches => assert!(watches.unwrap()),
        }
        assert!(!epoll_watches(&watching, tfd, &writer).unwrap(), "the descriptor refers to another file");
        assert!(!epoll_watches(&other, tfd, &reader).unwrap());
        assert!(epoll_watches(&reader, tfd, &reader).is_err(), "not an epoll");
    }

    #[test]
    fn a_file_with_the_reused_number_of_a_closed_one_is_found() {
        let epoll = Epoll::new(1).unwrap();
        let (first, _writer) = rustix::pipe::pipe().unwrap();
        let held = first.try_clone().unwrap();
        let tfd = first.as_raw_fd();
        epoll.add(&first, 0, Trigger::Level).unwrap();
        drop(first);
        let (second, _second_writer) = rustix::pipe::pipe().unwrap();
        if second.as_raw_fd() != tfd {
            return skip(Lacks::Machine, "another thread reused the descriptor number");
        }
        epoll.add(&second, 1, Trigger::Level).unwrap();
        match (epoll_watches(&epoll, tfd, &held), epoll_watches(&epoll, tfd, &second)) {
            (Err(error), _) if error.kind() == io::ErrorKind::Unsupported => skip(Lacks::KernelFeature, &error),
            (held, second) => assert!(held.unwrap() && second.unwrap()),
        }
    }
}
