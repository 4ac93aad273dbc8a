//! Queues from which servers read between two moments. A snapshot hardly ever shows connections that close at once, and
//! not all queues of a few.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use quell_linux::{NapiId, Pid, kernel};
use quell_sampler::{WaitCounts, WaitKey, WaitPlace, WaitSampler};
use tracing::info;

use super::{EpollKey, OBSERVED};
use crate::findings::receiving_devices;
use crate::snapshot::arrival::receiving_napis;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Process, Reading, Snapshot, SnapshotSocket, SocketState};

/// Queues from which servers read during an observation.
#[derive(Debug, Default)]
pub struct ReadQueues(BTreeMap<WaitKey, WaitCounts>);

impl ReadQueues {
    /// Counts for [`OBSERVED`] the reads of the chosen programs that accept connections and have fewer connections than
    /// queues. Returns at once, without queues, if there is no such program or the kernel refuses.
    #[must_use]
    pub fn observe(snapshot: &Snapshot, is_chosen: impl Fn(Pid) -> bool) -> Self {
        let query = SnapshotQuery::new(snapshot, None);
        let chosen = snapshot.processes.iter().filter(|process| is_chosen(process.pid));
        let programs: BTreeSet<Pid> =
            chosen.filter(|process| may_have_other_queues(&query, process)).map(|process| process.pid).collect();
        if programs.is_empty() {
            return Self::default();
        }
        let counted = WaitSampler::attach(kernel::sysfs(), &programs, &BTreeSet::new()).and_then(|sampler| {
            thread::sleep(OBSERVED);
            sampler.read()
        });
        Self(counted.unwrap_or_else(|error| {
            info!(%error, "reads of short connections cannot be counted");
            BTreeMap::new()
        }))
    }

    /// Adds the queues to a snapshot.
    pub fn add_to(&self, snapshot: &mut Snapshot) {
        let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements()).map(|napi| napi.id);
        let napis: BTreeSet<NapiId> = napis.collect();
        let mut of_process: BTreeMap<Pid, BTreeSet<NapiId>> = BTreeMap::new();
        let mut of_thread: BTreeMap<(Pid, Pid), BTreeSet<NapiId>> = BTreeMap::new();
        for &(pid, tid, place) in self.0.keys() {
            if let WaitPlace::Read(Some(napi)) | WaitPlace::Socket(Some(napi)) = place
                && napis.contains(&napi)
            {
                of_process.entry(pid).or_default().insert(napi);
                of_thread.entry((pid, tid)).or_default().insert(napi);
            }
        }
        let mut of_epoll: BTreeMap<EpollKey, BTreeSet<NapiId>> = BTreeMap::new();
        for (&(pid, tid, place), counted) in &self.0 {
            if let (WaitPlace::Epoll(fd), Some(read)) = (place, of_thread.get(&(pid, tid)))
                && counted.with_events > 0
            {
                of_epoll.entry((pid, fd)).or_default().extend(read);
            }
        }
        for process in &mut snapshot.processes {
            if let (Reading::Known(files), Some(read)) = (&mut process.files, of_process.remove(&process.pid)) {
                files.read_queues = read;
                for epoll in &mut files.epolls {
                    epoll.read_queues = of_epoll.remove(&(process.pid, epoll.fd)).unwrap_or_default();
                }
            }
        }
    }
}

fn may_have_other_queues(query: &SnapshotQuery<'_>, process: &Process) -> bool {
    // Connections through a device that was removed receive nothing any more.
    let is_open = |socket: &&SnapshotSocket| socket.state == SocketState::Established && !query.has_lost_queue(socket);
    let connections = query.sockets_of(process).filter(is_open).count();
    let queues: usize = receiving_devices(query, process).map(|device| receiving_napis(device).len()).sum();
    query.serves(process) && connections < queues
}
