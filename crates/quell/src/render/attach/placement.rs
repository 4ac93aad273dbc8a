//! Reuseport filters, their verification and pinned threads, as text and as JSON.

use std::fmt::Write as _;

use quell_host::attach::placement::{Groups, Placement, PlacementPass, PlacementResult, Steered};
use quell_host::steer::{Pin, SteerQueue, SteerVerdict, Steering, Verification};
use quell_linux::CpuList;
use quell_linux::visible::counted;
use serde_json::{Value, json};

pub(crate) fn groups(groups: &Groups) -> String {
    let mut text = String::new();
    for steering in &groups.steerings {
        let _ = writeln!(text, "  steering {}", over(steering));
        text.extend(steering.notes.iter().map(|note| format!("    {note}\n")));
    }
    text.extend(groups.refused.iter().map(|why| format!("  not steered: {why}\n")));
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
    placement.unverified().map(|(steering, verification)| steered(steering, verification)).collect()
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
        SteerVerdict::NotYet => "not verified yet: no new connection has arrived".to_owned(),
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

pub(crate) fn report(groups: &Groups, placed: Option<&PlacementResult>) -> Value {
    let verification = |number: usize| placed.and_then(|placed| placed.verifications.get(number)).map(verification);
    let steering = |(number, steering): (usize, &Steering)| {
        json!({
            "group": steering.group.key,
            "sockets": steering.filter.sockets(),
            "queues": steering.places.iter().map(place).collect::<Vec<_>>(),
            "notes": steering.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "verification": verification(number),
        })
    };
    json!({
        "steering": groups.steerings.iter().enumerate().map(steering).collect::<Vec<_>>(),
        "not-steered": groups.refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "pinned": placed.map(|placed| placed.pinned.iter().map(pin).collect::<Vec<_>>()),
        "not-pinned": placed.map(|placed| placed.not_pinned.iter().map(ToString::to_string).collect::<Vec<_>>()),
    })
}

fn place(place: &SteerQueue) -> Value {
    json!({ "device": place.device, "queue": place.queue, "napi": place.napi })
}

fn verification(verification: &Verification) -> Value {
    let verdict = match verification.verdict {
        SteerVerdict::Holds => "holds",
        SteerVerdict::Mixed => "mixed",
        SteerVerdict::NotYet => "not-yet",
        _ => "cannot-tell",
    };
    let napi =
        |(napi, connections): (&quell_linux::NapiId, &usize)| json!({ "napi": napi, "connections": connections });
    let worker = |worker: &quell_host::steer::SeenWorker| {
        json!({
            "pid": worker.worker.pid,
            "epoll": worker.worker.epoll_fd,
            "napis": worker.connections.iter().map(napi).collect::<Vec<_>>(),
        })
    };
    json!({ "verdict": verdict, "workers": verification.workers.iter().map(worker).collect::<Vec<_>>() })
}

fn pin(pin: &Pin) -> Value {
    json!({ "pid": pin.pid, "tid": pin.tid, "napi": pin.napi, "old": pin.old, "new": pin.new })
}
