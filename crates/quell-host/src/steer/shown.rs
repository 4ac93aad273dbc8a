//! The part of a snapshot that filters depend on, limited to sockets of the programs. A cheap comparison shows whether
//! a new decision is needed. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::reuseport_group::GroupKey;
use quell_linux::{Ifindex, NapiId, Pid};

use super::groups::key_of;
use crate::snapshot::{Snapshot, WatchedFile};

/// Receiving sockets of each group, and the queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    groups: BTreeMap<GroupKey, ShownGroup>,
    /// Keyed by namespace, device and receive queue.
    queues: BTreeMap<(u64, Ifindex, u32), Option<NapiId>>,
}

/// Socket inodes of one group, each with whether an epoll watches it.
pub type ShownGroup = BTreeMap<u64, bool>;

impl Shown {
    #[must_use]
    pub fn of(snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> Self {
        let index = snapshot.index();
        let mine = || snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
        let mut shown = Self { groups: BTreeMap::new(), queues: queues(snapshot) };
        for held in mine().filter_map(|process| process.files.known()).flat_map(|files| &files.sockets) {
            if let Some(key) = index.socket(held.inode).and_then(key_of) {
                shown.groups.entry(key).or_default().insert(held.inode, false);
            }
        }
        let epolls = mine().filter_map(|process| process.files.known()).flat_map(|files| &files.epolls);
        for target in epolls.flat_map(|epoll| epoll.targets.known_elements()) {
            let WatchedFile::Socket { inode } = target.file else { continue };
            if let Some(is_watched) = shown.groups.values_mut().find_map(|group| group.get_mut(&inode)) {
                *is_watched = true;
            }
        }
        shown
    }

    /// Sockets of one group; absent if there is no such group.
    #[must_use]
    pub fn group(&self, key: &GroupKey) -> Option<&ShownGroup> {
        self.groups.get(key)
    }

    #[must_use]
    pub fn has_the_queues_of(&self, other: &Self) -> bool {
        self.queues == other.queues
    }

    /// Groups that are identical in `other`, with their sockets.
    pub fn groups_as_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a GroupKey, &'a ShownGroup)> {
        self.groups.iter().filter(|(key, group)| other.group(key) == Some(group))
    }
}

fn queues(snapshot: &Snapshot) -> BTreeMap<(u64, Ifindex, u32), Option<NapiId>> {
    let of_device = |device: &crate::snapshot::Device| {
        let (namespace, ifindex) = (device.namespace, device.ifindex);
        let queue = move |queue: &crate::snapshot::RxQueue| {
            ((namespace, ifindex, queue.id), queue.napi.known().copied().flatten().map(|linked| linked.to))
        };
        device.rx_queues.known_elements().map(queue).collect::<Vec<_>>()
    };
    snapshot.devices.iter().flat_map(of_device).collect()
}
