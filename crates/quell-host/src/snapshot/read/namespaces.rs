//! Network namespaces of a snapshot, with handles for reading them. The caller's own namespace is not entered, so
//! reading it needs no privileges.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::namespaces;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{NetDev, ProcError, ProcRoot};
use quell_linux::sysfs::Sysfs;

use super::super::{NetworkNamespace, Reading, SnapshotScope, Unknown, UnknownReason};
use super::TakeError;
use super::outcome::Outcome as _;
use super::processes::Candidate;

pub(super) struct Space {
    pub(super) namespace: Namespace,
    pub(super) is_current: bool,
    /// Whether the scope names it, or a process in it.
    pub(super) is_requested: bool,
    pub(super) sysfs: Reading<Sysfs>,
    names: Vec<String>,
}

impl Space {
    /// Opens a handle in this namespace: `here` for the caller's own, `there` for others.
    pub(super) fn open<T, E>(
        &self,
        here: impl FnOnce() -> Result<T, E>,
        there: impl FnOnce(&Namespace) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_current { here() } else { there(&self.namespace) }
    }

    pub(super) fn net_dev(&self) -> Reading<NetDev> {
        self.read_proc_net(|proc| proc.thread_self().net_dev())
    }

    pub(super) fn describe(
        &self,
        unlisted_devices: Option<Unknown>,
        unlisted_sockets: Vec<Unknown>,
    ) -> NetworkNamespace {
        let netstat = self.read_proc_net(|proc| proc.thread_self().netstat());
        let busy_poll_rx_packets = netstat.map(|netstat| netstat.busy_poll_rx_packets());
        let ip_rx_packets = self.read_proc_net(|proc| proc.thread_self().ip_rx_packets());
        NetworkNamespace {
            inode: self.namespace.inode(),
            cookie: self.namespace.cookie().outcome(),
            names: self.names.clone(),
            is_current: self.is_current,
            unlisted_devices,
            unlisted_sockets,
            busy_poll_rx_packets: counted(busy_poll_rx_packets, "BusyPollRxPackets"),
            ip_rx_packets: counted(ip_rx_packets, "received packets by ECN"),
        }
    }

    fn read_proc_net<T: Send>(&self, read: impl FnOnce(&ProcRoot) -> Result<T, ProcError> + Send) -> Reading<T> {
        let proc = ProcRoot::default();
        if self.is_current {
            return read(&proc).outcome();
        }
        match self.namespace.run(|| read(&proc)) {
            Ok(read) => read.outcome(),
            Err(error) => Err(error).outcome(),
        }
    }
}

fn counted(count: Reading<Option<u64>>, name: &str) -> Reading<u64> {
    match count {
        Reading::Known(Some(count)) => Reading::Known(count),
        Reading::Known(None) => Reading::unknown(
            UnknownReason::UnsupportedByKernel,
            format!("read /proc/net/netstat: it does not contain {name}"),
        ),
        Reading::Unknown(unknown) => Reading::Unknown(unknown),
    }
}

pub(super) fn open(scope: &SnapshotScope, candidates: &[Candidate]) -> Result<Vec<Space>, TakeError> {
    let readers = Namespace::current()?;
    let mut found = BTreeMap::new();
    let mut add = |namespace: Namespace| found.insert(namespace.inode(), namespace);
    let mut requested = BTreeSet::new();
    if let Some(name) = &scope.netns {
        let named = Namespace::open_named(&NamespaceName::new(name.clone())?)?;
        requested.insert(named.inode());
        add(named);
    }
    if scope.netns.is_none() && !scope.pids.is_empty() {
        let asked = candidates.iter().filter(|candidate| scope.pids.contains(&candidate.pid));
        for namespace in of_processes(asked) {
            requested.insert(namespace.inode());
            add(namespace);
        }
    }
    for cookie in &scope.other_namespaces {
        // A namespace that vanished or cannot be entered is missing from the snapshot.
        if let Ok(Some(namespace)) = namespaces::by_cookie(&ProcRoot::default(), *cookie) {
            add(namespace);
        }
    }
    if scope.whole_host {
        named().into_iter().for_each(|(_, namespace)| drop(add(namespace)));
        of_processes(candidates.iter()).into_iter().for_each(|namespace| drop(add(namespace)));
        add(Namespace::current()?);
    } else if scope.netns.is_none() && scope.pids.is_empty() {
        add(Namespace::current()?);
    }
    let names = named();
    let space = |namespace: Namespace| {
        let names = names.iter().filter(|(_, named)| *named == namespace).map(|(name, _)| name.to_string());
        Space {
            is_current: namespace == readers,
            is_requested: requested.contains(&namespace.inode()),
            sysfs: Sysfs::of(&namespace).outcome(),
            names: names.collect(),
            namespace,
        }
    };
    Ok(found.into_values().map(space).collect())
}

/// Opens the named namespaces. Skips inaccessible and deleted ones.
fn named() -> Vec<(NamespaceName, Namespace)> {
    let names = Namespace::list_named().unwrap_or_default();
    names.into_iter().filter_map(|name| Some((name.clone(), Namespace::open_named(&name).ok()?))).collect()
}

fn of_processes<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Vec<Namespace> {
    let mut by_inode = BTreeMap::new();
    for candidate in candidates {
        if let Reading::Known(inode) = candidate.namespace {
            by_inode.entry(inode).or_insert(candidate.pid);
        }
    }
    let open = |pid| -> Result<Namespace, NamespaceError> { Namespace::open_pid(ProcRoot::default().path(), pid) };
    by_inode.into_values().filter_map(|pid| open(pid).ok()).collect()
}
