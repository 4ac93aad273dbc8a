//! Processes outside the attachment whose sockets use the same queues, and the longest delays of their packets. Pure:
//! computed from snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::{NapiId, Pid};
use quell_mode::{DeliveryMode, PartialNapiSettings};
use schemars::JsonSchema;
use serde::Serialize;

use super::plan::AttachPlan;
use crate::findings::time_text;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Process, SnapshotSocket};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AffectedProcess {
    pub pid: Pid,
    pub name: String,
    pub sockets: usize,
    /// Whether each of these sockets is the other end of a connection of the programs.
    pub is_client: bool,
    pub napis: Vec<NapiId>,
    /// Longest delays of its packets; absent if the mode delays no packets.
    pub delay: Option<PacketDelay>,
}

/// How long packets on a queue wait for the program that polls it, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PacketDelay {
    /// While the program does not poll: until the timer of the queue expires.
    pub gro_flush_timeout_ns: u64,
    /// While the program handles the events of one `epoll_wait`; absent without suspension.
    pub irq_suspend_timeout_ns: Option<u64>,
}

impl PacketDelay {
    /// Nothing polls the queue while the program handles events (`ep_poll` in `fs/eventpoll.c`). With a deferred interrupt,
    /// the timer polls it. `None` without deferral.
    #[must_use]
    pub fn of(settings: &PartialNapiSettings) -> Option<Self> {
        let set = |ns: Option<u64>| ns.filter(|&ns| ns > 0);
        let is_deferred = settings.defer_hard_irqs.unwrap_or(0) > 0;
        let gro_flush_timeout_ns = set(settings.gro_flush_timeout_ns).filter(|_| is_deferred)?;
        let irq_suspend_timeout_ns = set(settings.irq_suspend_timeout_ns).filter(|&ns| ns > gro_flush_timeout_ns);
        Some(Self { gro_flush_timeout_ns, irq_suspend_timeout_ns })
    }

    /// That of the queues of programs with this mode.
    #[must_use]
    pub fn of_mode(mode: &DeliveryMode) -> Option<Self> {
        Self::of(&mode.napi().into())
    }

    /// `up to 200 µs while the program sleeps, up to 20 ms while it handles the events of one epoll_wait`.
    #[must_use]
    pub fn text(&self, program: &str) -> String {
        let timer = time_text(self.gro_flush_timeout_ns);
        match self.irq_suspend_timeout_ns.map(time_text) {
            None => format!("up to {timer} for the timer of the queue"),
            Some(suspended) => format!(
                "up to {timer} while {program} sleeps, up to {suspended} while it handles the events of one epoll_wait"
            ),
        }
    }
}

pub(super) fn affected_processes(
    query: &SnapshotQuery<'_>,
    targets: &BTreeSet<Pid>,
    plan: &AttachPlan,
) -> Vec<AffectedProcess> {
    let delays: BTreeMap<NapiId, Option<PacketDelay>> =
        plan.queues().map(|step| (step.napi, PacketDelay::of(&step.new))).collect();
    let (theirs, others): (Vec<&Process>, Vec<_>) =
        query.now.processes.iter().partition(|process| targets.contains(&process.pid));
    let ends = |socket: &SnapshotSocket| {
        let end = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Some((end(socket.local?), end(socket.remote?)))
    };
    let accepted: BTreeSet<_> =
        theirs.into_iter().flat_map(|process| query.sockets_of(process)).filter_map(ends).collect();
    let is_theirs =
        |socket: &SnapshotSocket| ends(socket).is_some_and(|(local, remote)| accepted.contains(&(remote, local)));
    let is_set = |napis: &BTreeSet<NapiId>| napis.iter().any(|napi| delays.contains_key(napi));
    let affected = |process: &Process| {
        let files = process.files.known()?;
        let sockets = query.sockets_of(process).map(|socket| (query.queues_of(socket), is_theirs(socket)));
        let by_xdp = files.xdp_details.iter().filter_map(|socket| query.napi_of_xdp(socket).ok()?);
        let arrive_by = sockets.chain(by_xdp.map(|napi| (BTreeSet::from([napi]), false)));
        let (by, are_theirs): (Vec<BTreeSet<NapiId>>, Vec<bool>) = arrive_by.filter(|(napis, _)| is_set(napis)).unzip();
        let napis: BTreeSet<NapiId> = by.iter().flatten().copied().filter(|napi| delays.contains_key(napi)).collect();
        let delay = napis.iter().filter_map(|napi| delays[napi]).max();
        let (pid, name) = (process.pid, process.name.clone());
        let napis: Vec<NapiId> = napis.into_iter().collect();
        (!napis.is_empty()).then_some(AffectedProcess {
            pid,
            name,
            sockets: by.len(),
            is_client: are_theirs.iter().all(|is_theirs| *is_theirs),
            napis,
            delay,
        })
    };
    others.into_iter().filter_map(affected).collect()
}
