//! Extends the scope of a snapshot along attachments and sockets. A program in a container can receive from a queue of a
//! device in another network namespace, as through a macvlan. Its queues and its mode are then visible only in a snapshot
//! of both.

use std::collections::BTreeSet;

use quell_change::journal::{Entry, Journal};
use quell_change::persistent;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};

use super::attached::{Attached, attachments};
use super::attachment::observe;
use crate::findings::with_the_same_listeners;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Process, Snapshot, SnapshotScope};

/// Adds the network namespaces of attachments: of all, and of all applied profiles, to the default scope; otherwise of
/// those that touch a namespace of the scope. A scope of one device, or of the whole host, stays as it is. Does nothing
/// if the journals cannot be read.
#[must_use]
pub fn with_attachments(scope: SnapshotScope, journal: &Journal) -> SnapshotScope {
    if scope.whole_host || scope.device.is_some() {
        return scope;
    }
    let attached = attachments(journal).unwrap_or_default();
    let viewed = viewed(&scope);
    let further: BTreeSet<u64> = match scope.netns.is_none() && scope.pids.is_empty() {
        true => attached.iter().flat_map(touched).chain(of_profiles(journal)).collect(),
        false => attached.iter().map(touched).filter(|touched| !touched.is_disjoint(&viewed)).flatten().collect(),
    };
    let further = further.into_iter().filter(|cookie| !viewed.contains(cookie));
    let further: BTreeSet<u64> = further.chain(scope.other_namespaces.iter().copied()).collect();
    SnapshotScope { other_namespaces: further.into_iter().collect(), ..scope }
}

/// Adds the network namespaces of the devices from which the sockets of `seen`, a snapshot of the scope, receive. A scope of
/// one device, or of the whole host, stays as it is.
#[must_use]
pub fn with_devices(scope: SnapshotScope, seen: &Snapshot) -> SnapshotScope {
    let unknown = napis_elsewhere(seen);
    if scope.whole_host || scope.device.is_some() || unknown.is_empty() {
        return scope;
    }
    let Ok(host) = observe() else { return scope };
    let delivers = |device: &&Device| device.napis.known_elements().any(|napi| unknown.contains(&napi.id));
    let delivering: BTreeSet<u64> = host.devices.iter().filter(delivers).map(|device| device.namespace).collect();
    let theirs = host.namespaces.iter().filter(|namespace| delivering.contains(&namespace.inode));
    SnapshotScope {
        other_namespaces: theirs.filter_map(|namespace| namespace.cookie.known().copied()).collect(),
        ..scope
    }
}

/// Adds the processes that receive from the same queues as those of the scope: how a queue works depends on all of them. A
/// scope without processes stays as it is.
#[must_use]
pub fn with_queue_sharers(mut scope: SnapshotScope) -> SnapshotScope {
    if scope.pids.is_empty() {
        return scope;
    }
    let Ok(host) = observe() else { return scope };
    let query = SnapshotQuery::new(&host, None);
    let napis_of = |process: &Process| process.files.known().map(|files| query.napis_of(files)).unwrap_or_default();
    let (own, others): (Vec<_>, Vec<_>) = host.processes.iter().partition(|process| scope.pids.contains(&process.pid));
    let napis: BTreeSet<NapiId> = own.into_iter().flat_map(napis_of).collect();
    let shares = |process: &&Process| !napis_of(process).is_disjoint(&napis);
    let sharers: Vec<&Process> = others.into_iter().filter(shares).collect();
    // A parent holds the listening sockets of its workers, and commands name it.
    let parents = sharers.iter().flat_map(|sharer| with_the_same_listeners(&query, sharer));
    let added: BTreeSet<Pid> = sharers.iter().copied().chain(parents).map(|process| process.pid).collect();
    scope.pids.extend(added);
    scope
}

/// NAPI instances of sockets whose device is not part of the snapshot.
fn napis_elsewhere(snapshot: &Snapshot) -> BTreeSet<NapiId> {
    let index = snapshot.index();
    let recorded = snapshot.sockets.iter().filter_map(|socket| socket.napi.known().copied().flatten());
    recorded.filter(|napi| index.napi(*napi).is_none()).collect()
}

/// Cookies of the namespaces of applied profiles.
fn of_profiles(journal: &Journal) -> Vec<u64> {
    let applied = persistent::list(journal).unwrap_or_default();
    let of_profiles = applied.iter().filter(|applied| applied.history.begin.purpose.profile().is_some());
    of_profiles
        .flat_map(|applied| applied.history.pending())
        .filter_map(|(_, entry)| entry.change.namespace_cookie())
        .collect()
}

/// Cookies of the namespaces of the scope.
fn viewed(scope: &SnapshotScope) -> BTreeSet<u64> {
    let named =
        scope.netns.iter().filter_map(|name| Namespace::open_named(&NamespaceName::new(name.clone()).ok()?).ok());
    let viewed: BTreeSet<u64> =
        named.filter_map(|namespace| namespace.cookie().ok()).chain(of_processes(&scope.pids)).collect();
    if scope.netns.is_none() && scope.pids.is_empty() {
        return Namespace::current().and_then(|current| current.cookie()).into_iter().collect();
    }
    viewed
}

/// Cookies of the namespaces of an attachment's queues and programs.
fn touched(attached: &Attached) -> BTreeSet<u64> {
    let of_queue = |(_, entry): (u32, &Entry)| entry.change.namespace_cookie();
    let pids: Vec<Pid> = attached.history.targets.iter().map(|target| target.pid).collect();
    attached.history.pending().filter_map(of_queue).chain(of_processes(&pids)).collect()
}

fn of_processes(pids: &[Pid]) -> impl Iterator<Item = u64> {
    let cookie = |pid: &Pid| Namespace::open_pid(ProcRoot::default().path(), *pid).and_then(|of| of.cookie()).ok();
    pids.iter().filter_map(cookie)
}
