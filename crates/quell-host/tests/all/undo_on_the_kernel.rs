//! Undoes settings of a queue after its device changed: link down, queues not in use, device renamed, moved or
//! recreated. veth keeps irq-suspend-timeout in all these cases. Needs root and Linux 6.13.

use std::path::PathBuf;
use std::process::Command;

use quell_change::drift::{Condition, condition};
use quell_change::journal::{Journal, ListedJournal};
use quell_change::missing_queue::MissingCause;
use quell_change::persistent;
use quell_change::recovery::{Found, Reverted, left_behind, recover, waiting_settings};
use quell_change::transaction::Transaction;
use quell_host::apply::{self, ApplyRequest};
use quell_linux::ethtool::{ChannelRequest, Ethtool};
use quell_linux::link::Links;
use quell_linux::netdev::{Napi, Netdev, PartialNapiSettings};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::{Ifindex, InterfaceName};
use quell_mode::profile::{Profile, Source};
use quell_test_support::lab::{SUSPENDING, TestLab, every_namespace_is_in_sight, go_on, id};
use quell_test_support::{Lacks, skip};
use tempfile::TempDir;

/// A lab whose queues are set by a transaction with its own journal directory.
struct Set {
    lab: TestLab,
    dir: TempDir,
    transaction: Transaction,
    name: String,
}

impl Set {
    fn raise(test: &str, values: &PartialNapiSettings) -> Option<Self> {
        let lab = TestLab::raise(test, 2)?;
        let dir = tempfile::tempdir().unwrap();
        let name = format!("{test}-t");
        let mut transaction = lab.transaction(&dir, &name);
        for &napi in &lab.napis {
            transaction.set_napi(&lab.server, napi, values).unwrap();
        }
        Some(Self { lab, dir, transaction, name })
    }

    fn links(&self) -> Links {
        Links::open_in(&self.lab.server).unwrap()
    }

    fn is_up(&self, up: bool) {
        let index = self.lab.server_index;
        if up { self.links().set_up(index).unwrap() } else { self.links().set_down(index).unwrap() }
    }

    fn journal(&self) -> Journal {
        Journal::in_dir(self.dir.path())
    }
}

fn napis(namespace: &Namespace, index: Ifindex) -> Vec<Napi> {
    Netdev::open_in(namespace).unwrap().napis(index).unwrap()
}

fn suspend_timeouts(namespace: &Namespace, index: Ifindex) -> Vec<u64> {
    napis(namespace, index).iter().map(|napi| napi.settings.irq_suspend_timeout_ns.unwrap()).collect()
}

fn use_queues(namespace: &Namespace, index: Ifindex, count: u32) {
    let counts = ChannelRequest { rx: Some(count), tx: Some(count), combined: None };
    Ethtool::open_in(namespace).unwrap().set_channels(index, counts).unwrap();
}

fn counts(reverted: &Reverted) -> (usize, usize, usize, usize) {
    (reverted.restored(), reverted.waiting.len(), reverted.left_alone.len(), reverted.failed.len())
}

fn recovered(journal: &Journal) -> Reverted {
    let mut found = recover(journal).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let Some(Found::Recovered { reverted, .. }) = found.pop() else { panic!("{found:?}") };
    reverted
}

#[test]
fn queues_without_instances_wait_until_their_link_is_up() {
    let Some(set) = Set::raise("undo-down", &SUSPENDING) else { return };
    set.is_up(false);
    let journal = set.journal();
    let Set { lab, dir, transaction, name } = set;
    let reverted = transaction.revert().unwrap();
    assert_eq!(counts(&reverted), (0, 2, 0, 0), "{reverted:?}");
    assert!(reverted.waiting[0].1.contains("server0 up`"), "{reverted:?}");
    assert_eq!(counts(&recovered(&journal)), (0, 2, 0, 0), "the link is down");

    lab.transaction(&dir, &name).revert().unwrap();
    let [ListedJournal::Abandoned { history, .. }] = &journal.list().unwrap()[..] else { panic!("one journal") };
    assert!(history.only_waits());

    Links::open_in(&lab.server).unwrap().set_up(lab.server_index).unwrap();
    let kept_by_driver = suspend_timeouts(&lab.server, lab.server_index);
    let reverted = recovered(&journal);
    if kept_by_driver == [0, 0] {
        skip(Lacks::Machine, "this kernel's veth does not keep irq-suspend-timeout");
    } else {
        assert_eq!(counts(&reverted), (2, 0, 0, 0), "{reverted:?}");
    }
    assert_eq!(suspend_timeouts(&lab.server, lab.server_index), [0, 0]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_waiting_setting_is_listed_under_the_present_name_of_its_device() {
    let Some(set) = Set::raise("undo-waits-renamed", &SUSPENDING) else { return };
    set.is_up(false);
    let journal = set.journal();
    let Set { lab, transaction, .. } = set;
    transaction.revert().unwrap();
    let listed = || {
        let [(_, history)] = &left_behind(&journal).unwrap()[..] else { panic!("one journal") };
        waiting_settings(history)
    };
    assert!(listed().iter().all(|setting| setting.contains(" of server0: ")), "{:?}", listed());
    let name = InterfaceName::new("renamed0").unwrap();
    Links::open_in(&lab.server).unwrap().move_to(lab.server_index, &lab.server, &name).unwrap();
    assert_eq!(listed().len(), 2);
    assert!(listed().iter().all(|setting| setting.contains(" of renamed0: ")), "{:?}", listed());
}

#[test]
fn an_unused_queue_waits_until_it_is_used() {
    let Some(set) = Set::raise("undo-channels", &SUSPENDING) else { return };
    let journal = set.journal();
    let Set { lab, dir, transaction, .. } = set;
    use_queues(&lab.server, lab.server_index, 1);
    let reverted = transaction.revert().unwrap();
    assert_eq!(counts(&reverted), (1, 1, 0, 0), "{reverted:?}");
    use_queues(&lab.server, lab.server_index, 2);
    recovered(&journal);
    assert_eq!(suspend_timeouts(&lab.server, lab.server_index), [0, 0]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_device_that_was_renamed_is_restored() {
    let Some(set) = Set::raise("undo-renamed", &SUSPENDING) else { return };
    set.is_up(false);
    let name = InterfaceName::new("renamed0").unwrap();
    set.links().move_to(set.lab.server_index, &set.lab.server, &name).unwrap();
    set.is_up(true);
    let Set { lab, transaction, .. } = set;
    let reverted = transaction.revert().unwrap();
    assert_eq!(counts(&reverted), (2, 0, 0, 0), "{reverted:?}");
    assert_eq!(suspend_timeouts(&lab.server, lab.server_index), [0, 0]);
}

#[test]
fn a_device_that_was_moved_to_another_namespace_is_restored() {
    let Some(set) = Set::raise("undo-moved", &SUSPENDING) else { return };
    let name = InterfaceName::new("moved0").unwrap();
    set.is_up(false);
    set.links().move_to(set.lab.server_index, &set.lab.client, &name).unwrap();
    let mut links = Links::open_in(&set.lab.client).unwrap();
    let index = links.by_name(&name).unwrap().index;
    links.set_up(index).unwrap();
    Ethtool::open_in(&set.lab.client).unwrap().set_features(index, &[("rx-gro", true)]).unwrap();
    let Set { lab, transaction, .. } = set;
    let reverted = transaction.revert().unwrap();
    assert_eq!(counts(&reverted), (2, 0, 0, 0), "{reverted:?}");
    assert_eq!(suspend_timeouts(&lab.client, index), [0, 0]);
}

/// Deletes the server's device and creates one with the same name and ifindex, with NAPI enabled.
fn make_again(lab: &TestLab) -> bool {
    let index = lab.server_index.to_string();
    Links::open_in(&lab.server).unwrap().delete(lab.server_index).unwrap();
    let queues = ["numrxqueues", "2", "numtxqueues", "2"];
    let made = Command::new("ip")
        .args(["-n", &lab.server_name, "link", "add", "server0", "index", &index])
        .args(queues)
        .args(["type", "veth", "peer", "name", "other0"])
        .args(queues)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        skip(Lacks::Tool("ip"), "needs ip(8)");
        return false;
    }
    Ethtool::open_in(&lab.server).unwrap().set_features(lab.server_index, &[("rx-gro", true)]).unwrap();
    Links::open_in(&lab.server).unwrap().set_up(lab.server_index).unwrap();
    true
}

#[test]
fn a_recreated_device_with_the_same_name_and_ifindex_is_not_changed() {
    let Some(lab) = TestLab::raise("undo-again", 2) else { return };
    let suspend =
        |timeout_ns| PartialNapiSettings { irq_suspend_timeout_ns: Some(timeout_ns), ..PartialNapiSettings::default() };
    lab.set_napi(&suspend(7_000_000));
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "undo-again-t");
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &suspend(0)).unwrap());
    if !make_again(&lab) {
        return;
    }
    let reverted = transaction.revert().unwrap();
    let (gone, waiting) = if every_namespace_is_in_sight() { (1, 0) } else { (0, 1) };
    assert_eq!((counts(&reverted), reverted.already_gone.len()), ((0, waiting, 0, 0), gone), "{reverted:?}");
    assert_eq!(suspend_timeouts(&lab.server, lab.server_index), [0, 0], "Quell never set these queues");
}

#[test]
fn a_partly_undone_change_counts_as_restored() {
    let Some(set) = Set::raise("undo-part", &SUSPENDING) else { return };
    set.lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..PartialNapiSettings::default() });
    let Set { lab: _lab, transaction, dir: _dir, .. } = set;
    let reverted = transaction.revert().unwrap();
    assert_eq!((counts(&reverted), reverted.partial.len()), ((2, 0, 0, 0), 1), "{reverted:?}");
}

#[test]
fn values_that_another_program_set_are_left_alone() {
    let suspend = PartialNapiSettings { irq_suspend_timeout_ns: Some(20_000_000), ..PartialNapiSettings::default() };
    let Some(set) = Set::raise("undo-alone", &suspend) else { return };
    set.lab.set_napi(&PartialNapiSettings { irq_suspend_timeout_ns: Some(77_000), ..PartialNapiSettings::default() });
    let Set { lab: _lab, transaction, dir: _dir, .. } = set;
    let reverted = transaction.revert().unwrap();
    assert_eq!(counts(&reverted), (1, 0, 1, 0), "{reverted:?}");
}

#[test]
fn a_queue_has_drifted_unless_another_attachment_set_its_value() {
    let Some(set) = Set::raise("undo-drift", &SUSPENDING) else { return };
    let drifted = |transaction: &Transaction| {
        condition(transaction.journal_path(), transaction.history().unwrap()).unwrap().drifted
    };
    assert_eq!(drifted(&set.transaction), []);
    set.lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..PartialNapiSettings::default() });
    let [drift] = &drifted(&set.transaction)[..] else { panic!("{:?}", drifted(&set.transaction)) };
    assert_eq!((drift.device.as_deref(), drift.queue), (Some("server0"), Some(0)));
    assert_eq!(drift.now.as_deref(), Some("gro-flush-timeout 77 µs"));

    let mut other = set.lab.transaction(&set.dir, "undo-drift-other");
    let wanted = PartialNapiSettings { gro_flush_timeout_ns: Some(88_000), ..PartialNapiSettings::default() };
    assert!(other.set_napi(&set.lab.server, set.lab.napis[0], &wanted).unwrap());
    assert_eq!(drifted(&set.transaction), [], "the other attachment has set the value");
}

#[test]
fn a_missing_queue_has_its_cause_and_a_mode_without_any_queue_too() {
    let Some(set) = Set::raise("undo-missing", &SUSPENDING) else { return };
    let (namespace, index) = (&set.lab.server, set.lab.server_index);
    let now = || condition(set.transaction.journal_path(), set.transaction.history().unwrap()).unwrap();
    let causes = |condition: &Condition| -> Vec<MissingCause> {
        condition.drifted.iter().filter_map(|drift| Some(drift.missing.as_ref()?.cause)).collect()
    };
    use_queues(namespace, index, 1);
    let fewer = now();
    assert_eq!(causes(&fewer), [MissingCause::FewerQueues { queues: 1 }], "{fewer:?}");
    assert_eq!(fewer.without_queues, None, "queue 0 exists");
    use_queues(namespace, index, 2);
    Ethtool::open_in(namespace).unwrap().set_features(index, &[("rx-gro", false)]).unwrap();
    let off = now();
    assert_eq!(causes(&off), [MissingCause::GroOff; 2], "{off:?}");
    let command = off.without_queues.unwrap().command.unwrap();
    assert!(command.starts_with("ip netns exec ") && command.ends_with(" ethtool -K server0 gro on"), "{command}");
    let name = InterfaceName::new("moved0").unwrap();
    set.links().move_to(index, &set.lab.client, &name).unwrap();
    let moved = now();
    assert_eq!(causes(&moved), [MissingCause::Moved; 2], "{moved:?}");
    let command = moved.without_queues.unwrap().command.unwrap();
    let back = format!(" ip link set moved0 netns {}", set.lab.server_name);
    assert!(command.starts_with("ip netns exec ") && command.ends_with(&back), "{command}");
}

fn profile(text: &str) -> Profile {
    Profile::parse(&[Source::new("test.toml", text)]).unwrap()
}

fn apply(journal: &Journal, netns: &NamespaceName, profile: &Profile) -> PathBuf {
    let request = ApplyRequest { netns: Some(netns), profile, name: "test.toml", content: 0, skip_impossible: false };
    apply::apply(journal, &request, None, &mut go_on).unwrap().journal.unwrap()
}

#[test]
fn queues_that_a_profile_adds_are_removed_completely_at_its_release() {
    let Some(lab) = TestLab::raise("undo-more", 4) else { return };
    use_queues(&lab.server, lab.server_index, 2);
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let more = profile(
        "[device.lab]\nname = \"server0\"\n[device.lab.channels]\nrx = 4\ntx = 4\n\
         [device.lab.queues.all]\nmode = \"suspend20\"\n",
    );
    let path = apply(&journal, &NamespaceName::new(lab.server_name.clone()).unwrap(), &more);
    assert!(suspend_timeouts(&lab.server, lab.server_index).iter().all(|timeout| *timeout > 0));
    let reverted = persistent::release(&journal, &path).unwrap().unwrap();
    assert_eq!(reverted.failed.len() + reverted.waiting.len(), 0, "{reverted:?}");
    use_queues(&lab.server, lab.server_index, 4);
    assert_eq!(suspend_timeouts(&lab.server, lab.server_index), [0, 0, 0, 0]);
}

#[test]
fn a_profile_on_a_link_that_is_down_waits_without_blocking_another() {
    let Some(lab) = TestLab::raise("undo-profile", 2) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let netns = NamespaceName::new(lab.server_name.clone()).unwrap();
    let suspends = profile("[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"suspend20\"\n");
    let path = apply(&journal, &netns, &suspends);
    Links::open_in(&lab.server).unwrap().set_down(lab.server_index).unwrap();
    let down = condition(&path, &persistent::list(&journal).unwrap()[0].history).unwrap();
    assert_eq!((down.drifted.len(), down.gone), (2, 0), "{down:?}");
    assert!(down.drifted.iter().all(|drift| drift.now.is_none()), "{down:?}");
    let reverted = persistent::release(&journal, &path).unwrap().unwrap();
    assert_eq!(counts(&reverted), (0, 2, 0, 0), "{reverted:?}");
    assert!(persistent::list(&journal).unwrap().is_empty());

    let other = apply(&journal, &netns, &profile("[sysctl]\n\"net.core.somaxconn\" = 99\n"));
    persistent::release(&journal, &other).unwrap();
    Links::open_in(&lab.server).unwrap().set_up(lab.server_index).unwrap();
    recovered(&journal);
    assert_eq!(suspend_timeouts(&lab.server, lab.server_index), [0, 0]);
}

#[test]
fn a_profile_follows_a_device_that_is_renamed() {
    let Some(lab) = TestLab::raise("undo-rename", 2) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let netns = NamespaceName::new(lab.server_name.clone()).unwrap();
    let text = "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"defer20\"\nrps = false\n";
    let path = apply(&journal, &netns, &profile(text));
    let mut links = Links::open_in(&lab.server).unwrap();
    links.set_down(lab.server_index).unwrap();
    links.move_to(lab.server_index, &lab.server, &InterfaceName::new("renamed0").unwrap()).unwrap();
    links.set_up(lab.server_index).unwrap();
    let history = &persistent::list(&journal).unwrap()[0].history;
    let drifted = condition(&path, history).unwrap().drifted;
    assert!(drifted.iter().all(|drift| drift.now.is_some()), "the queues are there: {drifted:?}");
    quell_change::drift::reassert(&path, history).unwrap();
    assert_eq!(condition(&path, history).unwrap().drifted, []);
    assert!(napis(&lab.server, lab.server_index).iter().all(|napi| napi.settings.defer_hard_irqs != Some(0)));
    let reverted = persistent::release(&journal, &path).unwrap().unwrap();
    assert_eq!((reverted.failed.len(), reverted.already_gone.len()), (0, 0), "{reverted:?}");
    assert!(napis(&lab.server, lab.server_index).iter().all(|napi| napi.settings.defer_hard_irqs == Some(0)));
}

#[test]
fn a_profile_is_gone_with_its_namespace_even_if_the_name_is_reused() {
    if quell_test_support::lab::skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let netns = NamespaceName::new(id("undo-netns")).unwrap();
    let profile = profile("[sysctl]\n\"net.core.somaxconn\" = 99\n");
    let first = Namespace::create_named(&netns).unwrap();
    let path = apply(&journal, &netns, &profile);
    let history = persistent::list(&journal).unwrap().remove(0).history;
    assert_eq!(condition(&path, &history).unwrap().gone, 0);
    drop(first);
    Namespace::delete_named(&netns).unwrap();
    let in_sight = every_namespace_is_in_sight();
    let lost = |condition: Condition| if in_sight { condition.gone } else { condition.drifted.len() };
    assert_eq!(lost(condition(&path, &history).unwrap()), 1);
    let again = Namespace::create_named(&netns).unwrap();
    assert_eq!(lost(condition(&path, &history).unwrap()), 1, "the name belongs to another namespace");

    let applied_again = apply(&journal, &netns, &profile);
    let kept = persistent::list(&journal).unwrap();
    assert!(kept.iter().any(|kept| kept.path == applied_again), "the first journal does not block it");
    assert_eq!(kept.iter().any(|kept| kept.path == path), !in_sight, "the journal of a deleted namespace is removed");
    kept.iter().for_each(|kept| drop(persistent::release(&journal, &kept.path).unwrap()));
    drop(again);
    Namespace::delete_named(&netns).unwrap();
}
