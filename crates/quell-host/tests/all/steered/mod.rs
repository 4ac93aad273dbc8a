//! A server of [`workers`](crate::workers) in a lab with two devices, with access to Quell's view of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use quell_host::snapshot::{Snapshot, SnapshotScope, take};
use quell_host::steer::{CannotSteer, Group, SteerRequest, Steering, groups, look, plan};
use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::pidfd::{DuplicatedFd, PidFd, Signal};
use quell_linux::process::Child;
use quell_linux::{CpuList, Ifindex, NapiId, sched};

use crate::workers::{self, Served, count};
use quell_test_support::lab::{ARRIVES_WITHIN, SECOND_SERVER, SERVER, TestLab};

/// The server's addresses, one on each device.
pub(crate) const BOTH: [Ipv4Addr; 2] = [SERVER, SECOND_SERVER];
/// Queues per device.
pub(crate) const QUEUES: u32 = 2;

/// A server in a lab with two devices of [`QUEUES`] queues each.
pub(crate) struct Steered {
    pub(crate) lab: TestLab,
    pub(crate) second: Ifindex,
    pub(crate) server: Child,
}

impl Steered {
    pub(crate) fn start(test: &str, workers: u32) -> Option<Self> {
        let mut lab = TestLab::raise_beside_others(test, QUEUES)?;
        let second = lab.add_device(QUEUES);
        let server = lab.start(workers::spawn(workers));
        workers::wait_for(&server, &lab.client, SERVER);
        Some(Self { lab, second, server })
    }

    pub(crate) fn look(&self) -> Snapshot {
        let netns = Some(self.lab.server_name.clone());
        take(&SnapshotScope { netns, ..SnapshotScope::default() }).unwrap().0
    }

    /// The group, and the filter planned for it.
    pub(crate) fn plan(&self, only: &[String]) -> (Group, Result<Steering, CannotSteer>) {
        let (snapshot, pids) = (self.look(), [self.server.pid()]);
        let surroundings = look(&snapshot, &pids).unwrap();
        let [group] = &groups(&snapshot, &surroundings, &pids)[..] else { panic!("one group") };
        let request = SteerRequest { devices: only.to_vec(), ..SteerRequest::default() };
        (group.clone(), plan(group, &snapshot, &surroundings, &request))
    }

    pub(crate) fn count(&self, connections: usize) -> BTreeMap<Served, usize> {
        count(&self.lab.client, &BOTH, connections)
    }

    /// Duplicate of a socket of the group, as another program would obtain it.
    pub(crate) fn socket(&self) -> DuplicatedFd {
        let snapshot = self.look();
        let process = snapshot.processes.iter().find(|process| process.pid == self.server.pid()).unwrap();
        let listening = |inode| snapshot.index().socket(inode).is_some_and(|socket| socket.remote.is_none());
        let sockets = &process.files.known().unwrap().sockets;
        let fd = sockets.iter().find(|held| listening(held.inode)).unwrap().fd;
        PidFd::open(process.pid).unwrap().duplicate(fd).unwrap()
    }

    pub(crate) fn napis(&self) -> BTreeSet<NapiId> {
        let mut netdev = Netdev::open_in(&self.lab.server).unwrap();
        let devices = [self.lab.server_index, self.second];
        devices.iter().flat_map(|device| netdev.napis(*device).unwrap()).map(|napi| napi.id).collect()
    }

    pub(crate) fn end_server(&mut self) {
        self.server.pidfd().signal(Signal::KILL).unwrap();
        self.server.wait(ARRIVES_WITHIN).unwrap();
    }

    pub(crate) fn thread_queues(&self) {
        let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() };
        let mut netdev = Netdev::open_in(&self.lab.server).unwrap();
        self.napis().into_iter().for_each(|napi| netdev.set_napi(napi, &threaded).unwrap());
    }

    /// Binds the kthread of each queue to one of these CPUs in turn, in place of an interrupt; returns the CPUs by NAPI
    /// ID.
    pub(crate) fn bind_queues(&self, cpus: &CpuList) -> BTreeMap<NapiId, CpuList> {
        let snapshot = self.look();
        let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
        let bind = |(cpu, napi): (u32, &quell_host::snapshot::SnapshotNapi)| {
            let cpu = CpuList::from_iter([cpu]);
            sched::set_affinity(napi.thread.known().unwrap().as_ref().unwrap().tid, &cpu).unwrap();
            (napi.id, cpu)
        };
        cpus.iter().collect::<Vec<_>>().into_iter().cycle().zip(napis).map(bind).collect()
    }
}
