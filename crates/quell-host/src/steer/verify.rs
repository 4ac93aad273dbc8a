//! Whether a filter does what it is for: by `SO_INCOMING_NAPI_ID` of the connections that came since. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::NapiId;

use super::groups::{Worker, workers_by_socket};
use super::plan::Steering;
use super::surroundings::Connection;
use crate::picture::{Picture, Protocol, Socket};

/// The connections that were there when the filter had been put on, which it did not choose for. The kernel chooses with
/// the first packet, so those whose handshake was under way then are among them (`tcp_v4_rcv` of `net/ipv4/tcp_ipv4.c`
/// gives them to `rsk_listener`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baseline {
    accepted: BTreeSet<u64>,
    /// Both ends of those that had no inode yet, from here.
    under_way: BTreeSet<(SocketAddr, SocketAddr)>,
}

impl Baseline {
    /// From what was listed after the filter had been put on, and before the pictures that it is compared with.
    #[must_use]
    pub fn of(connections: &[Connection]) -> Self {
        let mut baseline = Self::default();
        for &Connection { local, remote, inode } in connections {
            match inode {
                Some(inode) => _ = baseline.accepted.insert(inode),
                None => _ = baseline.under_way.insert((local, remote)),
            }
        }
        baseline
    }

    /// Those of several filters.
    #[must_use]
    pub fn union(baselines: &[&Self]) -> Self {
        Self {
            accepted: baselines.iter().flat_map(|baseline| &baseline.accepted).copied().collect(),
            under_way: baselines.iter().flat_map(|baseline| &baseline.under_way).copied().collect(),
        }
    }

    pub(super) fn contains(&self, socket: &Socket) -> bool {
        let ends = || socket.local.zip(socket.remote);
        self.accepted.contains(&socket.inode) || ends().is_some_and(|ends| self.under_way.contains(&ends))
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
        if !steering.group.key.accepted(socket) || baseline.contains(socket) {
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
