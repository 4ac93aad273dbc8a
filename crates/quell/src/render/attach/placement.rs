//! Reuseport filters, their verification and pinned threads, as text and as JSON.

use std::fmt::Write as _;

use quell_host::attach::placement::{Groups, Placement, PlacementPass, PlacementResult, Steered};
use quell_host::steer::{GroupKey, Pin, SeenWorker, SteerQueue, SteerVerdict, Steering, Verification};
use quell_linux::visible::counted;
use quell_linux::{CpuList, NapiId, Pid};
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) fn groups(groups: &Groups, pins: bool) -> String {
    let mut text = String::new();
    for steering in &groups.steerings {
        let _ = writeln!(text, "  steering {}", over(steering));
        text.extend(steering.notes.iter().map(|note| format!("    {note}\n")));
    }
    text.extend(groups.refused.iter().map(|why| format!("  not steered: {why}\n")));
    if pins {
        text.push_str("  pinning each worker with one queue to the CPUs of that queue\n");
    }
    text
}

/// `tcp 0.0.0.0:80: over 4 sockets by interface and queue: eth0 rx 0-3`.
fn over(steering: &Steering) -> String {
    let (sockets, queues) = (steering.filter.sockets(), queues(&steering.places));
    format!("{}: over {} by interface and queue: {queues}", steering.group.key, counted(sockets, "socket"))
}

/// `eth0 rx 0-3, eth1 rx 0-3`.
fn queues(places: &[SteerQueue]) -> String {
    let mut devices: Vec<(&str, Vec<u32>)> = Vec::new();
    for place in places {
        match devices.last_mut() {
            Some((device, queues)) if *device == place.device => queues.push(place.queue),
            _ => devices.push((&place.device, vec![place.queue])),
        }
    }
    let device =
        |(device, queues): (&str, Vec<u32>)| format!("{device} rx {}", queues.into_iter().collect::<CpuList>());
    devices.into_iter().map(device).collect::<Vec<_>>().join(", ")
}

pub(crate) fn placed(groups: &Groups, placed: &PlacementResult) -> String {
    let mut text = String::new();
    for (steering, verification) in groups.steerings.iter().zip(&placed.verifications) {
        let _ = writeln!(text, "{}", steered(steering, verification));
    }
    text.extend(placed.pinned.iter().map(|pin| pinned(pin) + "\n"));
    if !placed.in_place.is_empty() {
        let _ = writeln!(text, "already on the CPUs of their queues: {}", counted(placed.in_place.len(), "thread"));
    }
    text.extend(placed.not_pinned.iter().map(|one| format!("not pinned: {one}\n")));
    text
}

pub(crate) fn pass(pass: &PlacementPass) -> Vec<String> {
    let attached = pass.steered.iter().flat_map(|Steered { steering, is_replacement }| {
        let again = if *is_replacement { " again" } else { "" };
        let notes = steering.notes.iter().map(|note| format!("  {note}"));
        std::iter::once(format!("steering{again} {}", over(steering))).chain(notes)
    });
    let refused = pass.refused.iter().map(|why| format!("not steered: {why}"));
    let failed = pass.not_steered.iter().map(|(group, error)| format!("not steered: {group}: {error}"));
    let unread = pass.unread.iter().map(|error| format!("could not find reuseport groups: {error}"));
    let verification = pass.verifications.iter().map(|(steering, verification)| steered(steering, verification));
    let pinned_now = pass.pinned.iter().map(pinned);
    let not_bound = pass.not_bound.iter().map(|(tid, error)| format!("not pinned: thread {tid}: {error}"));
    let left = pass.not_pinned.iter().map(|one| format!("not pinned: {one}"));
    attached
        .chain(refused)
        .chain(failed)
        .chain(unread)
        .chain(verification)
        .chain(pinned_now)
        .chain(not_bound)
        .chain(left)
        .collect()
}

pub(crate) fn unverified(placement: &Placement) -> Vec<String> {
    // That no connection has arrived was printed after the filter was attached.
    let is_news = |(_, verification): &(&Steering, &Verification)| verification.verdict != SteerVerdict::NotYet;
    placement.unverified().filter(is_news).map(|(steering, verification)| steered(steering, verification)).collect()
}

fn steered(steering: &Steering, verification: &Verification) -> String {
    format!("steered {}: {}", steering.group.key, verdict(steering, verification))
}

fn verdict(steering: &Steering, verification: &Verification) -> String {
    let connections: usize = verification.workers.iter().flat_map(|worker| worker.connections.values()).sum();
    let (workers, all) = (verification.workers.len(), steering.group.workers().len());
    match verification.verdict {
        SteerVerdict::Holds => {
            let most = match steering.queues_of_a_worker() {
                1 => "one queue".to_owned(),
                most => format!("at most {most} queues"),
            };
            format!(
                "{} reached {workers} of {}, each through {most}",
                counted(connections, "new connection"),
                counted(all, "worker")
            )
        }
        SteerVerdict::NotYet => {
            "the filter is in place, and not verified yet: no new connection stayed open long enough to be seen"
                .to_owned()
        }
        SteerVerdict::CannotTell => {
            "not verifiable: a datagram socket reports only the queue of its first datagram".to_owned()
        }
        _ => "workers receive connections from more queues than planned".to_owned(),
    }
}

fn pinned(pin: &Pin) -> String {
    format!(
        "pinned {} {} of process {}: CPUs {} → {} (NAPI {})",
        pin.thread, pin.tid, pin.pid, pin.old, pin.new, pin.napi
    )
}

/// Reuseport filters of an attachment, and its pinned threads.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PlacementReport {
    steering: Vec<SteeringReport>,
    /// Groups that are not steered, with the reasons.
    not_steered: Vec<String>,
    /// Null before threads are pinned.
    pinned: Option<Vec<PinReport>>,
    /// Threads that are not pinned, with the reasons. Null before threads are pinned.
    not_pinned: Option<Vec<String>>,
}

/// Filter of a reuseport group.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct SteeringReport {
    group: GroupKey,
    sockets: u32,
    queues: Vec<SteerQueue>,
    notes: Vec<String>,
    /// Null before the filter is attached.
    verification: Option<VerificationReport>,
}

/// Connections since the filter was attached.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct VerificationReport {
    verdict: SteerVerdict,
    workers: Vec<WorkerReport>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct WorkerReport {
    pid: Pid,
    /// File descriptor of its epoll.
    epoll: i32,
    napis: Vec<NapiConnections>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct NapiConnections {
    napi: NapiId,
    connections: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct PinReport {
    pid: Pid,
    tid: Pid,
    napi: NapiId,
    /// CPUs before.
    old: CpuList,
    new: CpuList,
}

impl PlacementReport {
    pub(crate) fn new(groups: &Groups, placed: Option<&PlacementResult>) -> Self {
        let verification = |number: usize| placed?.verifications.get(number).map(VerificationReport::of);
        let steering = |(number, steering): (usize, &Steering)| SteeringReport {
            group: steering.group.key,
            sockets: steering.filter.sockets(),
            queues: steering.places.clone(),
            notes: steering.notes.iter().map(ToString::to_string).collect(),
            verification: verification(number),
        };
        let pin = |pin: &Pin| PinReport {
            pid: pin.pid,
            tid: pin.tid,
            napi: pin.napi,
            old: pin.old.clone(),
            new: pin.new.clone(),
        };
        Self {
            steering: groups.steerings.iter().enumerate().map(steering).collect(),
            not_steered: groups.refused.iter().map(ToString::to_string).collect(),
            pinned: placed.map(|placed| placed.pinned.iter().map(pin).collect()),
            not_pinned: placed.map(|placed| placed.not_pinned.iter().map(ToString::to_string).collect()),
        }
    }
}

impl VerificationReport {
    fn of(verification: &Verification) -> Self {
        let worker = |worker: &SeenWorker| WorkerReport {
            pid: worker.worker.pid,
            epoll: worker.worker.epoll_fd,
            napis: worker
                .connections
                .iter()
                .map(|(&napi, &connections)| NapiConnections { napi, connections })
                .collect(),
        };
        Self { verdict: verification.verdict, workers: verification.workers.iter().map(worker).collect() }
    }
}
