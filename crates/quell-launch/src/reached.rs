//! Checks whether a mode takes effect in the processes of a launched command. The check uses snapshots, which read
//! epolls and sockets through duplicated descriptors, and the report of the preload library. A setting counts only if
//! it was read back.

use std::collections::BTreeMap;

use quell_host::snapshot::{Files, Process, Reading, Snapshot, SnapshotEpoll, WatchedFile};
use quell_linux::Pid;
use quell_mode::{EpollParams, PollUsecs};

use crate::library_report::Library;
use crate::preload_settings::{PreloadSettings, WaitChange};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// Parameters that every epoll with sockets must have.
    pub epoll: Option<EpollParams>,
    /// Time for which every socket must busy poll (`SO_BUSY_POLL`), in µs.
    pub sockets: Option<u32>,
    /// Whether waits must go through the preload library.
    pub waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachedObjects {
    /// The mode does not require a setting, or the kernel did not report it.
    Unknown,
    Nothing,
    Everywhere,
    Lacking {
        without: usize,
        of: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// The mode does not depend on the waits, or they are unknown.
    Unknown,
    /// The process has not called a wait function yet.
    NotSeen,
    ThroughLibrary,
    /// The process waits with system calls that bypass the preload library.
    AroundLibrary,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub name: String,
    pub epolls: ReachedObjects,
    pub sockets: ReachedObjects,
    pub waits: Waits,
    pub library: Library,
}

/// Tracks the processes of a command over time. A result counts if it is the same in several consecutive checks. The
/// reason is that a program may create its epolls some time after its sockets.
#[derive(Debug, Default)]
pub struct ReachTracker {
    tracks: BTreeMap<(Pid, u64), Track>,
}

#[derive(Debug)]
struct Track {
    last: Reached,
    looks: u32,
    reported: Option<Reached>,
}

/// Number of consecutive checks after which a result counts.
const LOOKS: u32 = 2;
/// Number of consecutive checks after which a result counts if an object is still missing.
const LOOKS_FOR_NOTHING: u32 = 5;

impl Needs {
    /// Effects that the settings of the preload library should have. Without the library, only epolls can be
    /// configured.
    #[must_use]
    pub fn of(settings: &PreloadSettings, by_library: bool) -> Self {
        let changes_waits =
            settings.timed_zero_waits || settings.wait != WaitChange::AsWritten || settings.events_max.is_some();
        Self {
            epoll: settings.epoll,
            sockets: settings.sockets.filter(|_| by_library).map(PollUsecs::get),
            waits: changes_waits && by_library,
        }
    }

    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Checks a process. Returns `None` if the process has no network sockets, or its files cannot be read.
    #[must_use]
    pub fn look(&self, snapshot: &Snapshot, process: &Process, library: Library) -> Option<Reached> {
        let files = process.files.known()?;
        if files.sockets.is_empty() {
            return None;
        }
        Some(Reached {
            pid: process.pid,
            start_time_ticks: process.start_time_ticks,
            name: process.name.clone(),
            epolls: self.epolls(files),
            sockets: self.sockets(snapshot, files),
            waits: self.waits(process, library),
            library,
        })
    }

    fn epolls(&self, files: &Files) -> ReachedObjects {
        if self.epoll.is_none() && !self.waits {
            return ReachedObjects::Unknown;
        }
        let with_sockets: Vec<&SnapshotEpoll> = files.epolls.iter().filter(|epoll| watches_sockets(epoll)).collect();
        match self.epoll {
            _ if with_sockets.is_empty() => ReachedObjects::Nothing,
            Some(wanted) => found(with_sockets.iter().map(|epoll| epoll.params.known().map(|has| *has == wanted))),
            None => ReachedObjects::Unknown,
        }
    }

    fn sockets(&self, snapshot: &Snapshot, files: &Files) -> ReachedObjects {
        let Some(usecs) = self.sockets else { return ReachedObjects::Unknown };
        let socket = |inode| {
            let at = snapshot.sockets.binary_search_by_key(&inode, |socket| socket.inode).ok()?;
            Some(*snapshot.sockets[at].busy_poll_us.known()? == usecs)
        };
        found(files.sockets.iter().map(|held| socket(held.inode)))
    }

    fn waits(&self, process: &Process, library: Library) -> Waits {
        let sleeps_in_one = || {
            let mut threads = process.threads.known_elements();
            threads.any(|thread| matches!(thread.epoll_wait, Reading::Known(Some(_))))
        };
        match library {
            _ if !self.waits => Waits::Unknown,
            Library::Unknown => Waits::Unknown,
            Library::Absent => Waits::AroundLibrary,
            Library::Loaded(calls) if calls.waited => Waits::ThroughLibrary,
            Library::Loaded(_) if sleeps_in_one() => Waits::AroundLibrary,
            Library::Loaded(_) => Waits::NotSeen,
        }
    }
}

fn watches_sockets(epoll: &SnapshotEpoll) -> bool {
    epoll.targets.known_elements().any(|target| matches!(target.file, WatchedFile::Socket { .. }))
}

/// Summarizes objects. An item of `has` tells whether an object has the required values; it is `None` if they could not
/// be read.
fn found(has: impl Iterator<Item = Option<bool>>) -> ReachedObjects {
    let (mut with, mut without) = (0, 0);
    for has in has.flatten() {
        *(if has { &mut with } else { &mut without }) += 1;
    }
    match (with, without) {
        (0, 0) => ReachedObjects::Unknown,
        (_, 0) => ReachedObjects::Everywhere,
        _ => ReachedObjects::Lacking { without, of: with + without },
    }
}

impl Reached {
    /// Whether the mode changes nothing in the process. This is so if the process has a required epoll, socket or wait,
    /// but none of that kind has the mode's values.
    #[must_use]
    pub fn is_without_effect(&self) -> bool {
        let lacks_all = |found| match found {
            ReachedObjects::Nothing => true,
            ReachedObjects::Lacking { without, of } => without == of,
            ReachedObjects::Everywhere | ReachedObjects::Unknown => false,
        };
        // Epolls have the mode's values, regardless of which program set them. The waits of such a process matter less.
        let lacks_waits = self.waits == Waits::AroundLibrary && self.epolls != ReachedObjects::Everywhere;
        lacks_all(self.epolls) || lacks_all(self.sockets) || lacks_waits
    }

    fn waits_for_something(&self) -> bool {
        self.epolls == ReachedObjects::Nothing || self.waits == Waits::NotSeen
    }

    /// Whether both results are the same, apart from numbers.
    fn says_the_same(&self, other: &Self) -> bool {
        let kind = |found| match found {
            ReachedObjects::Lacking { without, of } => (3, without == of),
            ReachedObjects::Everywhere => (2, false),
            ReachedObjects::Nothing => (1, false),
            ReachedObjects::Unknown => (0, false),
        };
        let of = |reached: &Self| (kind(reached.epolls), kind(reached.sockets), reached.waits, reached.name.clone());
        of(self) == of(other)
    }
}

impl ReachTracker {
    /// Adds the results of one check. Returns the results that are now certain, or have changed.
    pub fn certain(&mut self, looked: Vec<Reached>) -> Vec<Reached> {
        looked.into_iter().filter_map(|reached| self.track(reached)).collect()
    }

    fn track(&mut self, reached: Reached) -> Option<Reached> {
        let key = (reached.pid, reached.start_time_ticks);
        let track = self.tracks.entry(key).or_insert_with(|| Track { last: reached.clone(), looks: 0, reported: None });
        track.looks = if track.last.says_the_same(&reached) { track.looks + 1 } else { 1 };
        let needed = if reached.waits_for_something() { LOOKS_FOR_NOTHING } else { LOOKS };
        let is_news = track.reported.as_ref().is_none_or(|before| !before.says_the_same(&reached));
        track.last = reached;
        if track.looks < needed || !is_news {
            return None;
        }
        track.reported = Some(track.last.clone());
        track.reported.clone()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracks.values().all(|track| track.reported.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library_report::Calls;

    fn reached(epolls: ReachedObjects, waits: Waits) -> Reached {
        let (pid, name) = (Pid::new(7).unwrap(), "server".to_owned());
        let library = Library::Loaded(Calls::default());
        Reached { pid, start_time_ticks: 1, name, epolls, sockets: ReachedObjects::Unknown, waits, library }
    }

    #[test]
    fn an_unreadable_object_gives_no_result() {
        assert_eq!(found([None, None].into_iter()), ReachedObjects::Unknown);
        assert_eq!(found([Some(true), None].into_iter()), ReachedObjects::Everywhere);
        assert_eq!(found([Some(true), Some(false), None].into_iter()), ReachedObjects::Lacking { without: 1, of: 2 });
    }

    #[test]
    fn a_result_counts_at_the_second_check_and_is_reported_once() {
        let mut tracker = ReachTracker::default();
        let mut look = |epolls, waits| tracker.certain(vec![reached(epolls, waits)]).len();
        let lacking = |without| ReachedObjects::Lacking { without, of: 4 };
        assert_eq!([0; 3].map(|_| look(ReachedObjects::Everywhere, Waits::ThroughLibrary)), [0, 1, 0]);
        assert_eq!([1, 2, 3].map(|without| look(lacking(without), Waits::ThroughLibrary)), [0, 1, 0]);
        assert_eq!([0; 2].map(|_| look(ReachedObjects::Everywhere, Waits::ThroughLibrary)), [0, 1]);
        assert!(!tracker.is_empty());
    }

    #[test]
    fn a_missing_object_is_reported_later() {
        let mut tracker = ReachTracker::default();
        let mut look = |epolls| tracker.certain(vec![reached(epolls, Waits::Unknown)]).len();
        assert_eq!([0; 6].map(|_| look(ReachedObjects::Nothing)), [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn a_mode_is_without_effect_if_it_reached_none_of_its_objects() {
        let is_without = |epolls, waits| reached(epolls, waits).is_without_effect();
        assert!(is_without(ReachedObjects::Lacking { without: 2, of: 2 }, Waits::Unknown));
        assert!(is_without(ReachedObjects::Nothing, Waits::Unknown));
        assert!(is_without(ReachedObjects::Unknown, Waits::AroundLibrary));
        assert!(!is_without(ReachedObjects::Lacking { without: 1, of: 2 }, Waits::Unknown));
        assert!(!is_without(ReachedObjects::Everywhere, Waits::AroundLibrary));
        assert!(!is_without(ReachedObjects::Unknown, Waits::NotSeen));
    }

    #[test]
    fn without_the_library_only_epolls_are_required() {
        let epoll = Some(EpollParams { prefer_busy_poll: true, ..EpollParams::default() });
        let settings = PreloadSettings { epoll, timed_zero_waits: true, ..PreloadSettings::default() };
        assert!(Needs::of(&settings, true).waits && !Needs::of(&settings, false).waits);
        assert!(Needs::of(&settings, false).epoll.is_some());
        assert!(Needs::of(&PreloadSettings::default(), true).is_nothing());
    }
}
