//! Reads several times which requests each io_uring has. A ring that never shows one for a socket is used for files.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use quell_linux::io_uring_polling::RingRequests;
use quell_linux::proc::{FdKind, ProcRoot};

use super::processes::OpenProcess;

/// Number of complete lists without a request for a socket after which a ring is left alone.
const COMPLETE_LISTS: u32 = 3;
/// Maximum number of readings: the kernel lists no requests of a ring that is in use.
const READINGS: u32 = 8;
/// Time between two readings, so that a ring that handles the events of one wait is seen waiting too.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Seen {
    complete: u32,
    sockets: bool,
    unclear: bool,
}

impl Seen {
    fn add(&mut self, requests: RingRequests) {
        match requests {
            RingRequests::NoSocket => self.complete += 1,
            RingRequests::Socket => self.sockets = true,
            RingRequests::Unclear => self.unclear = true,
            // The kernel lists nothing if it does not get the lock of the ring at once (`io_uring_show_fdinfo`), so
            // this is no evidence.
            RingRequests::NotListed => {}
        }
    }

    fn is_decided(&self) -> bool {
        self.sockets || self.unclear || self.complete >= COMPLETE_LISTS
    }

    /// Whether requests for sockets were seen; `None` if it is unknown.
    fn with_sockets(&self) -> Option<bool> {
        match (self.sockets, self.unclear) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => (self.complete >= COMPLETE_LISTS).then_some(false),
        }
    }
}

pub(super) fn look_at(proc: &ProcRoot, processes: &mut [OpenProcess]) {
    let mut rings: BTreeMap<(usize, i32), Seen> = BTreeMap::new();
    for (number, process) in processes.iter().enumerate() {
        let fds = process.fds.known_elements().filter(|fd| fd.kind == FdKind::IoUring);
        rings.extend(fds.map(|fd| ((number, fd.number), Seen::default())));
    }
    for reading in 0..READINGS {
        let mut undecided = rings.iter_mut().filter(|(_, seen)| !seen.is_decided()).peekable();
        if undecided.peek().is_none() {
            break;
        }
        if reading > 0 {
            thread::sleep(PAUSE);
        }
        for (&(number, fd), seen) in undecided {
            if let Ok(requests) = proc.process(processes[number].pid).ring_requests(fd) {
                seen.add(requests);
            }
        }
    }
    for ((number, fd), seen) in rings {
        match seen.with_sockets() {
            Some(true) => processes[number].rings_with_sockets.push(fd),
            Some(false) => processes[number].rings_without_sockets.push(fd),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RingRequests::{NoSocket, NotListed, Socket, Unclear};

    fn seen(readings: &[RingRequests]) -> Option<bool> {
        let mut seen = Seen::default();
        readings.iter().for_each(|&requests| seen.add(requests));
        seen.with_sockets()
    }

    #[test]
    fn only_several_complete_lists_without_sockets_leave_a_ring_alone() {
        assert_eq!(seen(&[NoSocket, NotListed, NoSocket, NoSocket]), Some(false));
        assert_eq!(seen(&[NoSocket, NotListed, NotListed, NoSocket]), None);
        assert_eq!(seen(&[NotListed; 8]), None);
        assert_eq!(seen(&[NoSocket, NoSocket, Socket]), Some(true));
        assert_eq!(seen(&[NoSocket, NoSocket, NoSocket, Unclear]), None);
    }
}
