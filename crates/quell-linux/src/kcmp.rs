//! Whether two descriptors are of the same open file, which no inode says of an epoll: all of them have one
//! (`kernel/kcmp.c`). Only what an epoll watches is asked here (`KCMP_EPOLL_TFD`, Linux 4.13, `CONFIG_KCMP`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::Pid;

/// `enum kcmp_type` of `include/uapi/linux/kcmp.h`.
const KCMP_EPOLL_TFD: libc::c_int = 7;
/// Files that one epoll watches under one number: one that was closed while somebody else had it open leaves its number
/// to the next.
const UNDER_ONE_NUMBER_MAX: u32 = 16;

/// `struct kcmp_epoll_slot`.
#[repr(C)]
struct Slot {
    efd: u32,
    tfd: u32,
    toff: u32,
}

/// Whether `epoll` watches the open file `file` under the number `tfd`, by which its program added it.
///
/// # Errors
/// What `kcmp(2)` said: `ENOSYS` of a kernel without it, `EINVAL` of one that cannot ask epolls, or of a file that is no
/// epoll.
pub fn epoll_watches(epoll: impl AsFd, tfd: i32, file: impl AsFd) -> io::Result<bool> {
    let own = Pid::of_this_process().get();
    let (file, efd) = (file.as_fd().as_raw_fd().unsigned_abs(), epoll.as_fd().as_raw_fd().unsigned_abs());
    for toff in 0..UNDER_ONE_NUMBER_MAX {
        let slot = Slot { efd, tfd: tfd.unsigned_abs(), toff };
        // SAFETY: both processes are this one, whose file `file` is open, and the kernel reads one `Slot` through the
        // last argument.
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
    fn an_epoll_is_known_by_what_it_watches() {
        let (watching, other) = (Epoll::new(1).unwrap(), Epoll::new(1).unwrap());
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        watching.add(&reader, 0, Trigger::Level).unwrap();
        let tfd = reader.as_raw_fd();
        match epoll_watches(&watching, tfd, &reader) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return skip(Lacks::KernelFeature, &error),
            watches => assert!(watches.unwrap()),
        }
        assert!(!epoll_watches(&watching, tfd, &writer).unwrap(), "another file under that number");
        assert!(!epoll_watches(&other, tfd, &reader).unwrap());
        assert!(epoll_watches(&reader, tfd, &reader).is_err(), "no epoll");
    }

    #[test]
    fn a_file_that_got_the_number_of_a_closed_one_is_found_beside_it() {
        let epoll = Epoll::new(1).unwrap();
        let (first, _writer) = rustix::pipe::pipe().unwrap();
        let held = first.try_clone().unwrap();
        let tfd = first.as_raw_fd();
        epoll.add(&first, 0, Trigger::Level).unwrap();
        drop(first);
        let (second, _second_writer) = rustix::pipe::pipe().unwrap();
        if second.as_raw_fd() != tfd {
            return skip(Lacks::Machine, "another thread got the number");
        }
        epoll.add(&second, 1, Trigger::Level).unwrap();
        match (epoll_watches(&epoll, tfd, &held), epoll_watches(&epoll, tfd, &second)) {
            (Err(error), _) if error.kind() == io::ErrorKind::Unsupported => skip(Lacks::KernelFeature, &error),
            (held, second) => assert!(held.unwrap() && second.unwrap()),
        }
    }
}
