//! Takes a snapshot in one pass over the kernel's interfaces, ordered by dependency. `join` links the objects without
//! further requests. Reads only the parts that the scope needs.

mod cpus;
mod devices;
mod files;
mod host;
mod join;
mod namespaces;
mod outcome;
mod processes;
mod rings;
mod session;
mod socket_options;
mod sockets;
mod threads;
pub(crate) mod watched;
mod xdp;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quell_linux::netlink::NetlinkError;
use quell_linux::netns::NamespaceError;
use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::{Pid, clock};
use quell_mode::did_you_mean;

use self::outcome::Outcome as _;
use self::processes::OpenProcess;
use super::{Reading, SCHEMA, Snapshot, SnapshotScope, Taken};

/// Reason why no snapshot could be taken. Unreadable parts are recorded in the snapshot itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Devices(#[from] NetlinkError),
    #[error(transparent)]
    Processes(#[from] ProcError),
    #[error("there is no process {0}")]
    NoSuchProcess(Pid),
    #[error(
        "there is no device {name} in this network namespace; there {}{}",
        in_words(there), did_you_mean(name, there.iter().map(String::as_str))
    )]
    NoSuchDevice { name: String, there: Vec<String> },
}

fn in_words(names: &[String]) -> String {
    match names {
        [] => "are none at all".to_owned(),
        names => format!("are {}", names.join(", ")),
    }
}

/// Duration of a snapshot: time for system calls and parsing, and time for joining.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub devices: Duration,
    pub processes: Duration,
    pub sockets: Duration,
    pub joining: Duration,
}

pub fn take(scope: &SnapshotScope) -> Result<(Snapshot, Cost), TakeError> {
    let began = Instant::now();
    let (unix_ns, monotonic_ns) = (clock::realtime_ns(), clock::monotonic_ns());
    let proc = ProcRoot::default();
    let mut cost = Cost::default();

    let candidates = processes::candidates(&proc, scope)?;
    let spaces = namespaces::open(scope, &candidates)?;
    let interrupts = proc.interrupts().outcome();
    let (mut devices, mut unlisted_devices) = devices::read_all(&spaces, scope, &interrupts)?;
    let irq_numbers: BTreeSet<u32> = devices.iter().flat_map(|device| device.irqs.known_elements().copied()).collect();
    let irqs = host::irqs(&proc, &interrupts, &irq_numbers);
    let cpus = cpus::read(&proc, &interrupts);
    cost.devices = began.elapsed();

    let inodes: BTreeSet<u64> = spaces.iter().map(|space| space.namespace.inode()).collect();
    let within = |candidate: &processes::Candidate| candidate.is_within(scope, &inodes);
    let mut processes: Vec<_> =
        candidates.iter().filter(|one| within(one)).map(|one| processes::read(&proc, one)).collect();
    cost.processes = began.elapsed() - cost.devices;

    let mut sockets = sockets::read(&spaces, &processes);
    files::look_at_watched(&mut processes, &sockets);
    xdp::read_queues(&spaces, &mut processes);
    processes.retain(|process| process.is_wanted(scope, &sockets));
    rings::look_at(&proc, &mut processes);
    sockets.ask(&processes);
    let is_shown = |process: &&mut OpenProcess| !process.is_hidden() || scope.pids.contains(&process.pid);
    processes.iter_mut().filter(is_shown).for_each(|process| process.read_threads(&proc));
    processes::look_again(&proc, &mut processes);

    let mut describe = |space: &namespaces::Space| {
        let inode = space.namespace.inode();
        let unlisted_sockets = sockets.unlisted.remove(&inode).unwrap_or_default();
        space.describe(unlisted_devices.remove(&inode), unlisted_sockets)
    };
    let namespaces = spaces.iter().map(&mut describe).collect();
    cost.sockets = began.elapsed() - cost.devices - cost.processes;

    join::queues_to_napis(&mut devices);
    let (mut processes, mut sockets, hidden_processes) = join::processes_to_sockets(processes, sockets, scope);
    if let (Some(_), true) = (&scope.device, scope.pids.is_empty()) {
        join::keep_what_arrives_by(&devices, &mut processes, &mut sockets);
    }
    let taken = Taken {
        unix_s: unix_ns / 1_000_000_000,
        monotonic_ns,
        duration_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        boot_id: proc.boot_id().outcome().map(|id| id.to_string()),
    };
    let snapshot = Snapshot {
        schema: SCHEMA.to_owned(),
        taken,
        scope: scope.clone(),
        kernel: host::kernel(),
        privileges: host::privileges(&proc),
        sysctls: host::sysctls(&proc, &spaces),
        services: Reading::Known(host::services(&proc, &candidates)),
        configured_files: host::configured_files(scope),
        namespaces,
        cpus,
        irqs,
        devices,
        management_sockets: session::sockets(&proc, &processes, &sockets),
        processes,
        hidden_processes,
        sockets,
    };
    cost.joining = began.elapsed() - cost.devices - cost.processes - cost.sockets;
    Ok((snapshot, cost))
}
