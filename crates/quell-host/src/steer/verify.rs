//! Verifies a filter by the `SO_INCOMING_NAPI_ID` of connections that are newer than the filter. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::NapiId;
use schemars::JsonSchema;
use serde::Serialize;

use super::groups::{SteerWorker, has_accepted, workers_by_socket};
use super::plan::Steering;
use super::surroundings::Connection;
use crate::snapshot::{Protocol, Snapshot, SnapshotSocket};

/// Connections that existed when the filter was attached. Includes handshakes in progress, because the kernel selects
/// the socket with the first packet (`tcp_v4_rcv` in `net/ipv4/tcp_ipv4.c` delivers them to `rsk_listener`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baseline {
    accepted: BTreeSet<u64>,
    /// Local and remote address of connections that had no inode yet.
    under_way: BTreeSet<(SocketAddr, SocketAddr)>,
}

impl Baseline {
    /// Builds the baseline from a list of connections that is newer than the filter and older than the snapshots to
    /// compare with.
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

    #[must_use]
    pub fn union(baselines: &[&Self]) -> Self {
        Self {
            accepted: baselines.iter().flat_map(|baseline| &baseline.accepted).copied().collect(),
            under_way: baselines.iter().flat_map(|baseline| &baseline.under_way).copied().collect(),
        }
    }

    pub(super) fn contains(&self, socket: &SnapshotSocket) -> bool {
        let ends = || socket.local.zip(socket.remote);
        self.accepted.contains(&socket.inode) || ends().is_some_and(|ends| self.under_way.contains(&ends))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    pub workers: Vec<SeenWorker>,
    pub verdict: SteerVerdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenWorker {
    pub worker: SteerWorker,
    /// Number of connections per NAPI instance.
    pub connections: BTreeMap<NapiId, usize>,
}

/// Whether the connections of each worker share one NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SteerVerdict {
    /// The connections of every worker share one instance. With fewer workers than queues, each worker uses as few
    /// instances as possible.
    Holds,
    /// A worker's connections use more instances than expected. Possible reasons: the driver does not record the queue,
    /// an interface was added, or the group has changed.
    Mixed,
    /// No new connection was observed yet.
    NotYet,
    /// Unknown: a datagram socket reports only the NAPI instance of its first datagram.
    CannotTell,
}

/// Connections of steered groups, and those among them that share the queues of their worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alignment {
    pub connections: usize,
    /// Connections on the queue, or as many queues as the filter has for each worker, on which most of the worker's
    /// connections arrive.
    pub aligned: usize,
}

/// Counts the present connections of a group, whatever has selected their worker.
#[must_use]
pub fn alignment(steering: &Steering, snapshot: &Snapshot) -> Alignment {
    let mut alignment = Alignment::default();
    for worker in verify(steering, &Baseline::default(), snapshot).workers {
        let mut of_queues: Vec<usize> = worker.connections.into_values().collect();
        of_queues.sort_unstable_by(|one, other| other.cmp(one));
        alignment.connections += of_queues.iter().sum::<usize>();
        alignment.aligned += of_queues.iter().take(steering.queues_of_a_worker() as usize).sum::<usize>();
    }
    alignment
}

/// Evaluates connections that are newer than `baseline`. Ignores those without a NAPI instance (over `lo`), and those from
/// devices whose queues the filter does not distinguish.
#[must_use]
pub fn verify(steering: &Steering, baseline: &Baseline, snapshot: &Snapshot) -> Verification {
    if steering.group.key.protocol == Protocol::Udp {
        return Verification { workers: Vec::new(), verdict: SteerVerdict::CannotTell };
    }
    let workers_of = workers_by_socket(snapshot);
    let (index, devices) = (snapshot.index(), steering.devices());
    let is_steered = |napi: NapiId| index.napi(napi).is_none_or(|(device, _)| devices.contains(device.name.as_str()));
    let mut seen: BTreeMap<&SteerWorker, BTreeMap<NapiId, usize>> = BTreeMap::new();
    for socket in &snapshot.sockets {
        if !has_accepted(&steering.group.key, socket) || baseline.contains(socket) {
            continue;
        }
        let Some(napi) = socket.napi.known().copied().flatten().filter(|napi| is_steered(*napi)) else { continue };
        for worker in workers_of.get(&socket.inode).into_iter().flatten() {
            *seen.entry(worker).or_default().entry(napi).or_default() += 1;
        }
    }
    let most = seen.values().map(BTreeMap::len).max().unwrap_or(0);
    let verdict = match most {
        0 => SteerVerdict::NotYet,
        most if most <= steering.queues_of_a_worker() as usize => SteerVerdict::Holds,
        _ => SteerVerdict::Mixed,
    };
    let seen_worker = |(worker, connections): (&SteerWorker, _)| SeenWorker { worker: worker.clone(), connections };
    Verification { workers: seen.into_iter().map(seen_worker).collect(), verdict }
}
