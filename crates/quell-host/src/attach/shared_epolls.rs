//! Finds one descriptor per epoll at which an attachment sets it. A program that forks shares its epolls with its
//! children, and each process can duplicate a descriptor. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::settings::epoll::EpollPlace;
use quell_linux::Pid;

use crate::snapshot::HeldEpoll;
use crate::snapshot::query::{EpollContext, SnapshotQuery};

/// Descriptors of each epoll, those of the targets first.
pub(super) struct EpollPlaces(BTreeMap<HeldEpoll, Vec<EpollPlace>>);

impl EpollPlaces {
    pub(super) fn new(query: &SnapshotQuery<'_>, targets: &BTreeSet<Pid>) -> Self {
        let mut places: BTreeMap<HeldEpoll, Vec<EpollPlace>> = BTreeMap::new();
        for epoll in &query.epolls_by_descriptor {
            places.entry(epoll.key()).or_default().push(place_of(epoll));
        }
        places.values_mut().for_each(|places| places.sort_by_key(|place| !targets.contains(&place.pid)));
        Self(places)
    }

    /// Further descriptors of an epoll if this is the one at which it is set.
    pub(super) fn duplicates_of(&self, epoll: &EpollContext<'_>) -> Option<&[EpollPlace]> {
        let (first, duplicates) = self.0.get(&epoll.key())?.split_first()?;
        (*first == place_of(epoll)).then_some(duplicates)
    }
}

fn place_of(epoll: &EpollContext<'_>) -> EpollPlace {
    EpollPlace::new(epoll.process.pid, epoll.process.start_time_ticks, epoll.epoll.fd)
}
