//! Compares open files with `kcmp(2)` (`kernel/kcmp.c`, Linux 4.13, `CONFIG_KCMP`): whether two descriptors refer to
//! one file, and whether an epoll watches a file. Inodes do not identify epolls, because all epolls share one inode.

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::Pid;

/// `enum kcmp_type` of `include/uapi/linux/kcmp.h`.
const KCMP_FILE: libc::c_int = 0;
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

pub type FdOf = (Pid, i32);

/// Whether `epoll` watches the open file `file` under the descriptor number `tfd` of its program. Errors: those of
/// `kcmp(2)`. `ENOSYS` if the kernel lacks the system call; `EINVAL` if it cannot compare epolls or the file is not an
/// epoll.
pub fn epoll_watches(epoll: impl AsFd, tfd: i32, file: impl AsFd) -> io::Result<bool> {
    let own = |fd: i32| (Pid::of_this_process(), fd);
    let (epoll, file) = (own(epoll.as_fd().as_raw_fd()), own(file.as_fd().as_raw_fd()));
    for number in 0..UNDER_ONE_NUMBER_MAX {
        match is_registered(epoll, (tfd, number), file) {
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => return other,
        }
    }
    Ok(false)
}

/// Whether the file `file` is the one that `epoll` watches under the descriptor number `tfd`. Several files can be
/// registered under one number: `number` counts them from 0, in the order of `fdinfo`. Errors: those of `kcmp(2)`: as
/// for [`epoll_watches`], and `ENOENT` without such a registration, `EBADF` if one of the descriptors is closed,
/// `EPERM` without ptrace access to both processes.
pub fn is_registered(epoll: FdOf, (tfd, number): (i32, u32), file: FdOf) -> io::Result<bool> {
    let slot = Slot { efd: epoll.1.unsigned_abs(), tfd: tfd.unsigned_abs(), toff: number };
    // SAFETY: the kernel reads one `Slot` through the last argument, and writes nothing.
    let compared = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            file.0.get(),
            epoll.0.get(),
            KCMP_EPOLL_TFD,
            libc::c_ulong::from(file.1.unsigned_abs()),
            &raw const slot,
        )
    };
    order(compared).map(Ordering::is_eq)
}

pub fn is_same_file(one: FdOf, other: FdOf) -> io::Result<bool> {
    compare_files(one, other).map(Ordering::is_eq)
}

/// Order of two open files, which is the same for all processes until the next boot. Descriptors of one file are equal.
pub fn compare_files(one: FdOf, other: FdOf) -> io::Result<Ordering> {
    let index = |fd: FdOf| libc::c_ulong::from(fd.1.unsigned_abs());
    // SAFETY: `KCMP_FILE` takes only numbers.
    let compared =
        unsafe { libc::syscall(libc::SYS_kcmp, one.0.get(), other.0.get(), KCMP_FILE, index(one), index(other)) };
    order(compared)
}

/// The answer of `kcmp(2)`.
fn order(compared: libc::c_long) -> io::Result<Ordering> {
    match compared {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2.. => Ok(Ordering::Greater),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Epoll, Trigger};
    use quell_test_support::{Lacks, skip};

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

    #[test]
    fn the_registration_of_a_reused_number_is_that_of_the_file_that_was_registered() {
        let own = |fd: &dyn AsRawFd| (Pid::of_this_process(), fd.as_raw_fd());
        let epoll = Epoll::new(1).unwrap();
        let (first, _writer) = rustix::pipe::pipe().unwrap();
        let (held, tfd) = (first.try_clone().unwrap(), first.as_raw_fd());
        epoll.add(&first, 0, Trigger::Level).unwrap();
        let (second, _second_writer) = rustix::pipe::pipe().unwrap();
        let mut first = first;
        rustix::io::dup2(&second, &mut first).unwrap();
        let epoll = (Pid::of_this_process(), epoll.as_fd().as_raw_fd());
        match is_registered(epoll, (tfd, 0), own(&held)) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return skip(Lacks::KernelFeature, &error),
            registered => assert!(registered.unwrap()),
        }
        assert!(!is_registered(epoll, (tfd, 0), (Pid::of_this_process(), tfd)).unwrap());
        assert_eq!(is_registered(epoll, (tfd, 1), own(&held)).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(is_same_file((Pid::of_this_process(), tfd), own(&second)).unwrap());
        assert!(!is_same_file((Pid::of_this_process(), tfd), own(&held)).unwrap());
    }
}
