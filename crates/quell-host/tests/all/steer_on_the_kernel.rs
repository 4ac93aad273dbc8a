//! Steers the reuseport group of a server with several workers, in a lab of two veth pairs. Shows what a filter sees,
//! that a filter by queue alone mixes the NAPI instances of two devices, that Quell's filter does not, and that it is
//! detached again. Needs root and Linux 6.13.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Instant;

use crate::steered::{BOTH, QUEUES, Steered};
use crate::workers::{self, Served, count, most_napis_of_a_worker, open, table};
use quell_change::journal::Journal;
use quell_change::recovery::{Found, recover};
use quell_change::transaction::{ChangeError, Transaction};
use quell_host::steer::{Baseline, CannotSteer, Note, SteerVerdict, connections, verify};
use quell_linux::NapiId;
use quell_linux::netdev::Netdev;
use quell_linux::reuseport::{self, Detachment, QueueSteering, SeenQueues};
use quell_test_support::lab::{ARRIVES_WITHIN, SECOND_SERVER, SERVER, id};
use quell_test_support::{Lacks, skip};

const CONNECTIONS: usize = 10_000;
const SOME: usize = 400;
/// Enough connections that their hashes mix queues in some worker.
const HALF_OPEN: usize = 32;

fn workers_seen(counts: &BTreeMap<Served, usize>) -> BTreeSet<u32> {
    counts.keys().map(|served| served.worker).collect()
}

/// Checks the queue number that a filter reads: each queue goes to the socket with that index.
fn what_a_filter_reads(steered: &Steered, sockets: u32) {
    let raw = |ifindex| SeenQueues { ifindex, first: 0, queues: sockets };
    let by_raw_value = QueueSteering::new(vec![raw(steered.lab.server_index), raw(steered.second)], sockets).unwrap();
    reuseport::attach(steered.socket(), &by_raw_value).unwrap();
    let mut netdev = Netdev::open_in(&steered.lab.server).unwrap();
    for (address, device) in [(SERVER, steered.lab.server_index), (SECOND_SERVER, steered.second)] {
        let expected: BTreeSet<Served> = (0..)
            .zip(netdev.napis(device).unwrap())
            .map(|(queue, napi)| Served { worker: queue, napi: napi.id.get() })
            .collect();
        let counts = count(&steered.lab.client, &[address], SOME);
        assert_eq!(counts.into_keys().collect::<BTreeSet<_>>(), expected);
    }
}

#[test]
fn a_filter_on_a_veth_reads_the_queue_number() {
    let sockets = QUEUES + 2;
    let Some(steered) = Steered::start("st-raw", sockets) else { return };
    what_a_filter_reads(&steered, sockets);
    steered.thread_queues();
    what_a_filter_reads(&steered, sockets);
}

#[test]
fn a_filter_by_queue_alone_mixes_two_devices_and_quells_filter_does_not() {
    let Some(steered) = Steered::start("st-two", 4) else { return };
    steered.thread_queues();

    let by_queue = |ifindex| SeenQueues { ifindex, first: 0, queues: QUEUES };
    let by_queue_alone =
        QueueSteering::new(vec![by_queue(steered.lab.server_index), by_queue(steered.second)], QUEUES).unwrap();
    reuseport::attach(steered.socket(), &by_queue_alone).unwrap();
    let mixed = steered.count(SOME);
    eprintln!("by queue alone, {SOME} connections:\n{}", table(&mixed));
    assert_eq!(most_napis_of_a_worker(&mixed), 2);

    let (_, steering) = steered.plan(&[]);
    let steering = steering.unwrap();
    assert_eq!(steering.notes, [], "no notes");
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-two-t");
    transaction.steer(&steering).unwrap();
    let steered_counts = steered.count(CONNECTIONS);
    eprintln!("by interface and queue, {CONNECTIONS} connections:\n{}", table(&steered_counts));
    assert_eq!(steered_counts.values().sum::<usize>(), CONNECTIONS);
    assert_eq!(most_napis_of_a_worker(&steered_counts), 1);
    assert_eq!(workers_seen(&steered_counts), (0..4).collect());
    let napis: BTreeSet<u32> = steered_counts.keys().map(|served| served.napi).collect();
    assert_eq!(napis, steered.napis().into_iter().map(NapiId::get).collect());

    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!(reuseport::detach(steered.socket()).unwrap(), Detachment::WasAbsent);
    let hashed = steered.count(SOME);
    eprintln!("without a filter, {SOME} connections:\n{}", table(&hashed));
    assert!(most_napis_of_a_worker(&hashed) > 1);
}

#[test]
fn a_snapshot_agrees_with_the_reports_of_the_connections() {
    let Some(steered) = Steered::start("st-verify", 4) else { return };
    let before = open(&steered.lab.client, &BOTH, SOME);
    let (_, steering) = steered.plan(&[]);
    let steering = steering.unwrap();
    assert_eq!(steering.notes, [Note::Established { connections: SOME }]);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-verify-t");
    transaction.steer(&steering).unwrap();
    let baseline = Baseline::of(&connections(&steering.group.key).unwrap());
    assert_eq!(verify(&steering, &baseline, &steered.look()).verdict, SteerVerdict::NotYet);

    let since = open(&steered.lab.client, &BOTH, SOME);
    let verification = verify(&steering, &baseline, &steered.look());
    assert_eq!(verification.verdict, SteerVerdict::Holds, "{verification:?}");
    assert_eq!(verification.workers.len(), 4);
    let seen: usize = verification.workers.iter().flat_map(|worker| worker.connections.values()).sum();
    assert_eq!(seen, since.len());

    let everything = verify(&steering, &Baseline::default(), &steered.look());
    assert_eq!(everything.verdict, SteerVerdict::Mixed, "older connections were distributed by their hash");
    drop(before);
}

/// Makes the server's packets to its first client get lost, or stops that. Returns `None`, with the reason on stderr,
/// if `ip` is not installed.
fn lose_answers(steered: &Steered, change: &[&str]) -> Option<()> {
    let words = ["-n", &steered.lab.server_name, "neigh", change[0], "192.0.2.2", "dev", "server0"];
    match Command::new("ip").args(words).args(&change[1..]).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            skip(Lacks::Tool("ip"), format_args!("ip: {error}"));
            return None;
        }
    }
    Some(())
}

#[test]
fn connections_with_a_handshake_older_than_the_filter_do_not_count() {
    let Some(steered) = Steered::start("st-half", 4) else { return };
    let steering = steered.plan(&[]).1.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-half-t");
    let nobodys = ["replace", "lladdr", "02:00:00:00:00:99", "nud", "permanent"];
    let Some(()) = lose_answers(&steered, &nobodys) else { return };
    let (baseline, _clients) = std::thread::scope(|scope| {
        let connect = || open(&steered.lab.client, &[SERVER], 1);
        let clients: Vec<_> = (0..HALF_OPEN).map(|_| scope.spawn(connect)).collect();
        let (give_up, key) = (Instant::now() + ARRIVES_WITHIN, steering.group.key);
        let under_way = || connections(&key).unwrap().iter().filter(|connection| connection.inode.is_none()).count();
        while under_way() < HALF_OPEN {
            assert!(Instant::now() < give_up, "the handshakes are not listed");
            std::thread::yield_now();
        }
        transaction.steer(&steering).unwrap();
        let baseline = Baseline::of(&connections(&key).unwrap());
        lose_answers(&steered, &["del"]).unwrap();
        (baseline, clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>())
    });
    assert_eq!(verify(&steering, &baseline, &steered.look()).verdict, SteerVerdict::NotYet);
    let everything = verify(&steering, &Baseline::default(), &steered.look());
    assert_eq!(everything.verdict, SteerVerdict::Mixed, "the filter did not apply to these connections");
    let _since = open(&steered.lab.client, &BOTH, SOME);
    assert_eq!(verify(&steering, &baseline, &steered.look()).verdict, SteerVerdict::Holds);
}

#[test]
fn the_filter_of_a_killed_owner_is_detached_by_the_next_command() {
    let Some(steered) = Steered::start("st-kill", 4) else { return };
    let (_, steering) = steered.plan(&[]);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-kill-t");
    transaction.steer(&steering.unwrap()).unwrap();

    // The copy on disk has no owner, as after a `kill -9`.
    let left_behind = tempfile::tempdir().unwrap();
    let written = std::fs::read(dir.path().join(format!("{}.journal", id("st-kill-t")))).unwrap();
    std::fs::write(left_behind.path().join("left.journal"), written).unwrap();
    let found = recover(&Journal::in_dir(left_behind.path())).unwrap();
    let [Found::Recovered { reverted, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!(reuseport::detach(steered.socket()).unwrap(), Detachment::WasAbsent);
    let again = transaction.revert().unwrap();
    assert_eq!((again.already_gone.len(), again.failed.len()), (1, 0), "{again:?}");
}

#[test]
fn a_filter_of_an_exited_or_restarted_server_is_left_alone() {
    let Some(mut steered) = Steered::start("st-gone", 4) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-gone-t");
    transaction.steer(&steered.plan(&[]).1.unwrap()).unwrap();
    steered.end_server();
    steered.server = steered.lab.start(workers::spawn(4));
    workers::wait_for(&steered.server, &steered.lab.client, SERVER);
    let own = steered.plan(&[]).1.unwrap().filter;
    reuseport::attach(steered.socket(), &own).unwrap();
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.left_alone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!(reuseport::detach(steered.socket()).unwrap(), Detachment::Detached, "the filter belongs to the server");
}

#[test]
fn a_filter_of_another_owner_is_not_replaced() {
    let Some(steered) = Steered::start("st-owned", 4) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut first = steered.lab.transaction(&dir, "st-owned-a");
    let steering = steered.plan(&[]).1.unwrap();
    first.steer(&steering).unwrap();
    let mut second = steered.lab.transaction(&dir, "st-owned-b");
    let refused = second.steer(&steering).unwrap_err();
    assert!(matches!(refused, ChangeError::HasOwner { .. }), "{refused}");
    assert_eq!(second.revert().unwrap().undone.len(), 0);
    assert_eq!(first.revert().unwrap().undone.len(), 1);
    let mut third = steered.lab.transaction(&dir, "st-owned-c");
    third.steer(&steering).unwrap();
    third.revert().unwrap();
}

#[test]
fn a_new_filter_for_a_group_ends_the_earlier_one() {
    let Some(mut steered) = Steered::start("st-anew", 4) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-anew-t");
    let pending = |transaction: &Transaction| transaction.history().unwrap().pending().count();
    transaction.steer(&steered.plan(&[]).1.unwrap()).unwrap();
    workers::add_worker(&steered.lab.client, SERVER);
    transaction.steer(&steered.plan(&[]).1.unwrap()).unwrap();
    assert_eq!(pending(&transaction), 1, "the second filter replaces the first");

    steered.end_server();
    steered.server = steered.lab.start(workers::spawn(4));
    workers::wait_for(&steered.server, &steered.lab.client, SERVER);
    transaction.steer(&steered.plan(&[]).1.unwrap()).unwrap();
    assert_eq!(pending(&transaction), 1, "the filter of an exited server is gone");
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.partial.len(), reverted.failed.len()), (1, 0, 0), "{reverted:?}");
    assert_eq!(reuseport::detach(steered.socket()).unwrap(), Detachment::WasAbsent);
}

#[test]
fn a_group_that_changed_since_the_snapshot_is_left_alone() {
    let Some(mut steered) = Steered::start("st-changed", 2) else { return };
    let (_, steering) = steered.plan(&[]);
    steered.end_server();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-changed-t");
    let error = transaction.steer(&steering.unwrap()).unwrap_err().to_string();
    assert!(error.contains("its sockets have changed"), "{error}");
    assert!(transaction.revert().unwrap().undone.is_empty());
}

#[test]
fn a_single_listening_socket_and_a_missing_device_are_reported() {
    let Some(steered) = Steered::start("st-one", 1) else { return };
    let (group, steering) = steered.plan(&[]);
    let CannotSteer::OneSocket { key, workers: 1, .. } = steering.unwrap_err() else {
        panic!("one socket is no group")
    };
    assert_eq!(key, group.key);
    let (_, steering) = steered.plan(&["eth7".to_owned()]);
    assert!(matches!(steering, Err(CannotSteer::NoSuchDevice { .. })));
}

#[test]
fn fewer_and_more_workers_than_queues_are_reported_and_steered() {
    for (workers, note, most) in [
        (2, Note::FewerWorkersThanQueues { workers: 2, queues: 4 }, 2),
        (8, Note::MoreWorkersThanQueues { workers: 8, queues: 4 }, 1),
    ] {
        let Some(steered) = Steered::start(&format!("st-of-{workers}"), workers) else { return };
        let steering = steered.plan(&[]).1.unwrap();
        assert_eq!(steering.notes, [note]);
        let dir = tempfile::tempdir().unwrap();
        let mut transaction = steered.lab.transaction(&dir, &format!("st-of-{workers}-t"));
        transaction.steer(&steering).unwrap();
        let counts = steered.count(SOME);
        assert_eq!(most_napis_of_a_worker(&counts), most, "{}", table(&counts));
        assert_eq!(workers_seen(&counts), (0..workers).collect(), "{}", table(&counts));
    }
}

#[test]
fn only_the_queues_of_the_named_device_are_distinguished() {
    let Some(steered) = Steered::start("st-only", 2) else { return };
    let steering = steered.plan(&["server1".to_owned()]).1.unwrap();
    assert_eq!((steering.devices(), steering.notes.len()), (["server1"].into(), 0));
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "st-only-t");
    transaction.steer(&steering).unwrap();
    let counts = count(&steered.lab.client, &[SECOND_SERVER], SOME);
    assert_eq!(most_napis_of_a_worker(&counts), 1, "{}", table(&counts));
}
