//! CPU affinity and scheduling policy of a NAPI thread.

use crate::common::LabPair;
use quell_linux::CpuList;
use quell_linux::ethtool::Ethtool;
use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, Policy, Scheduling};
use quell_test_support::{Lacks, kernel_threads_are_out_of_sight, skip};

#[test]
fn affinity_and_real_time_policy_of_a_napi_thread_are_set() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(lab) = LabPair::create(1) else { return };
    let mut ethtool = Ethtool::open_in(&lab.server.namespace).unwrap();
    ethtool.set_features(lab.server_index, &[("rx-gro", true)]).unwrap();
    let mut netdev = Netdev::open_in(&lab.server.namespace).unwrap();
    let id = netdev.napis(lab.server_index).unwrap()[0].id;
    let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() };
    if let Err(error) = netdev.set_napi(id, &threaded) {
        skip(Lacks::KernelFeature, &error);
        return;
    }
    let tid = netdev.napi(id).unwrap().pid.unwrap();

    let last: CpuList = sched::affinity(tid).unwrap().iter().max().into_iter().collect();
    sched::set_affinity(tid, &last).unwrap();
    assert_eq!(sched::affinity(tid).unwrap(), last);
    let fifo = Scheduling { policy: Policy::Fifo { priority: 50 }, reset_on_fork: false };
    sched::set_scheduling(tid, fifo).unwrap();
    assert_eq!(sched::scheduling(tid).unwrap(), fifo);

    let dir = ProcRoot::default().process(tid);
    let stat = dir.stat().unwrap();
    assert!(stat.comm.starts_with(b"napi/"), "{stat:?}");
    assert_eq!(stat.policy, Some(1), "SCHED_FIFO");
    assert_eq!(dir.status().unwrap().cpus_allowed, Some(last));
}
