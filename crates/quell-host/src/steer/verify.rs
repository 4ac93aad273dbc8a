//! Whether a filter does what it is for: by `SO_INCOMING_NAPI_ID` of the connections that came since. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::NapiId;

use super::groups::{Worker, workers_by_socket};
use super::plan::Steering;
use crate::picture::{Picture, Protocol};

/// The connections that were there when the filter had been put on, which it did not choose for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baseline(BTreeSet<u64>);

impl Baseline {
    /// From a picture that was taken after the filter was put on; `None` while connections that arrived before wait to
    /// be accepted: take another one.
    #[must_use]
    pub fn of(steering: &Steering, picture: &Picture) -> Option<Self> {
        let key = &steering.group.key;
        let waits = |inode| picture.index().socket(inode).is_some_and(|socket| socket.receive_queue != Some(0));
        if key.protocol == Protocol::Tcp && steering.group.members.iter().any(|member| waits(member.inode)) {
            return None;
        }
        Some(Self(picture.sockets.iter().filter(|socket| key.accepted(socket)).map(|socket| socket.inode).collect()))
    }
}

impl Baseline {
    /// Those of several filters.
    #[must_use]
    pub fn union(baselines: &[&Self]) -> Self {
        Self(baselines.iter().flat_map(|baseline| &baseline.0).copied().collect())
    }

    pub(super) fn contains(&self, inode: u64) -> bool {
        self.0.contains(&inode)
    }
}

/// What is seen of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// The workers that have new connections, each with these.
    pub workers: Vec<SeenWorker>,
    /// What follows.
    pub verdict: Verdict,
}

/// The new connections of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenWorker {
    /// The worker.
    pub worker: Worker,
    /// How many connections come by each NAPI.
    pub connections: BTreeMap<NapiId, usize>,
}

/// Whether each worker's connections sit on one NAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Those of every worker do, or on as few as there can be with fewer workers than queues.
    Holds,
    /// A worker's connections sit on more NAPIs than they should: the driver does not record the queue, an interface was
    /// added, or the group has changed.
    Mixed,
    /// Nothing has come yet.
    NotYet,
    /// A datagram socket tells only the NAPI of its last packet.
    CannotTell,
}

/// Looks at the connections that came since `baseline`. Those without a NAPI (by `lo`) do not count.
#[must_use]
pub fn verify(steering: &Steering, baseline: &Baseline, picture: &Picture) -> Verification {
    if steering.group.key.protocol == Protocol::Udp {
        return Verification { workers: Vec::new(), verdict: Verdict::CannotTell };
    }
    let workers_of = workers_by_socket(picture);
    let mut seen: BTreeMap<&Worker, BTreeMap<NapiId, usize>> = BTreeMap::new();
    for socket in &picture.sockets {
        if !steering.group.key.accepted(socket) || baseline.contains(socket.inode) {
            continue;
        }
        let Some(Some(napi)) = socket.napi.known() else { continue };
        for worker in workers_of.get(&socket.inode).into_iter().flatten() {
            *seen.entry(worker).or_default().entry(*napi).or_default() += 1;
        }
    }
    let most = seen.values().map(BTreeMap::len).max().unwrap_or(0);
    let verdict = match most {
        0 => Verdict::NotYet,
        most if most <= steering.queues_of_a_worker() as usize => Verdict::Holds,
        _ => Verdict::Mixed,
    };
    let seen_worker = |(worker, connections): (&Worker, _)| SeenWorker { worker: worker.clone(), connections };
    Verification { workers: seen.into_iter().map(seen_worker).collect(), verdict }
}
