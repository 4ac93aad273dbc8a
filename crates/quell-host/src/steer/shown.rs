//! What of a picture the filters of programs depend on: cheap to compare, so that it is decided anew only where that can
//! come to something else. Pure. It knows the sockets that the programs hold; those that only others hold it does not see.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::{Ifindex, NapiId, Pid};

use super::groups::GroupKey;
use crate::picture::{Picture, WatchedFile};

/// The sockets that wait for connections, who watches them, and the queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    waiting: BTreeMap<u64, GroupKey>,
    /// Socket, process, number of the epoll there.
    watched: BTreeSet<(u64, Pid, i32)>,
    /// Namespace, device, receive queue.
    queues: BTreeMap<(u64, Ifindex, u32), Option<NapiId>>,
}

impl Shown {
    /// Of these processes of the picture.
    #[must_use]
    pub fn of(picture: &Picture, pids: &BTreeSet<Pid>) -> Self {
        let index = picture.index();
        let mut shown = Self { queues: queues(picture), ..Self::default() };
        let mine = || picture.processes.iter().filter(|process| pids.contains(&process.pid));
        for held in mine().filter_map(|process| process.files.known()).flat_map(|files| &files.sockets) {
            if let Some(key) = index.socket(held.inode).and_then(GroupKey::of) {
                shown.waiting.insert(held.inode, key);
            }
        }
        for process in mine() {
            for epoll in process.files.known().map_or(&[][..], |files| &files.epolls) {
                let inodes = epoll.targets.known_elements().filter_map(|target| match target.file {
                    WatchedFile::Socket { inode } => Some(inode),
                    WatchedFile::Other { .. } => None,
                });
                let waiting = inodes.filter(|inode| shown.waiting.contains_key(inode));
                shown.watched.extend(waiting.map(|inode| (inode, process.pid, epoll.fd)));
            }
        }
        shown
    }
}

fn queues(picture: &Picture) -> BTreeMap<(u64, Ifindex, u32), Option<NapiId>> {
    let of_device = |device: &crate::picture::Device| {
        let (namespace, ifindex) = (device.namespace, device.ifindex);
        let queue = move |queue: &crate::picture::RxQueue| {
            ((namespace, ifindex, queue.id), queue.napi.known().copied().flatten().map(|linked| linked.to))
        };
        device.rx_queues.known_elements().map(queue).collect::<Vec<_>>()
    };
    picture.devices.iter().flat_map(of_device).collect()
}
