//! Prints a configured veth as a profile. Its plan is empty. After a change by hand, the plan is the inverse of that
//! change. Needs root and Linux 6.13.

use quell_change::journal::Journal;
use quell_host::apply::{self, ApplyRequest, observe};
use quell_host::plan::{ProfilePlan, as_profile};
use quell_host::snapshot::{Device, Snapshot};
use quell_linux::ethtool::{ChannelRequest, Ethtool};
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::netns::NamespaceName;
use quell_linux::sched::{Policy, Scheduling, set_affinity, set_scheduling};
use quell_linux::sysfs::Sysfs;
use quell_linux::{CpuList, InterfaceName, Pid};
use quell_mode::NapiThreading;
use quell_mode::profile::{Profile, Source};
use quell_test_support::lab::{TestLab, go_on};

const NONE: PartialNapiSettings = PartialNapiSettings::NONE;

fn profile(text: &str) -> Profile {
    Profile::parse(&[Source::new("test.toml", text)]).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn netns(lab: &TestLab) -> NamespaceName {
    NamespaceName::new(lab.server_name.clone()).unwrap()
}

fn snapshot(lab: &TestLab) -> Snapshot {
    observe(Some(&netns(lab)), &profile("")).unwrap().snapshot
}

fn device(snapshot: &Snapshot) -> &Device {
    snapshot.devices.iter().find(|device| device.name == "server0").unwrap()
}

fn printed(lab: &TestLab) -> String {
    as_profile(&snapshot(lab), |_| true).unwrap()
}

/// Changes by queue, as text.
fn planned(lab: &TestLab, text: &str) -> Vec<String> {
    let profile = profile(text);
    let plan = ProfilePlan::of(&observe(Some(&netns(lab)), &profile).unwrap(), &profile);
    assert_eq!(plan.impossible, []);
    let line = |step: &quell_host::plan::ProfileStep| match step.change.queue() {
        Some(queue) => format!("{queue}: {}", step.change.text()),
        None => step.change.text().to_string(),
    };
    plan.steps.iter().map(line).collect()
}

fn apply(lab: &TestLab, text: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (netns, profile) = (netns(lab), profile(text));
    let request =
        ApplyRequest { netns: Some(&netns), profile: &profile, name: "test.toml", content: 0, skip_impossible: false };
    apply::apply(&Journal::in_dir(dir.path()), &request, None, &mut go_on).unwrap();
}

fn set_napi(lab: &TestLab, queue: usize, change: PartialNapiSettings) {
    Netdev::open_in(&lab.server).unwrap().set_napi(lab.napis[queue], &change).unwrap();
}

fn thread(lab: &TestLab, queue: usize) -> Option<Pid> {
    let snapshot = snapshot(lab);
    let napi = device(&snapshot).napis.known_elements().find(|napi| napi.id == lab.napis[queue]).unwrap();
    napi.thread.known().and_then(Option::as_ref).map(|thread| thread.tid)
}

fn cpu0() -> CpuList {
    CpuList::from_iter([0])
}

/// Creates a lab in which neighbouring queues differ in deferral and suspension. Of four queues, the second has a
/// thread, and the third has RPS and XPS. Returns whether the kernel supports threads for single queues.
fn configured(test: &str, queues: u32) -> Option<(TestLab, bool)> {
    let lab = TestLab::raise(test, queues)?;
    let has_threads = lab.napi().settings.threaded.is_some();
    let sysfs = Sysfs::of(&lab.server).unwrap();
    let files = sysfs.net_class(&InterfaceName::new("server0").unwrap());
    for queue in 0..queues {
        let deferral = PartialNapiSettings {
            defer_hard_irqs: Some(100),
            gro_flush_timeout_ns: Some(20_000 + 500 * u64::from(queue % 3)),
            irq_suspend_timeout_ns: Some(if queue % 2 == 0 { 20_000_000 } else { 0 }),
            ..NONE
        };
        set_napi(&lab, queue as usize, deferral);
        if queue % 4 == 1 && has_threads {
            let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..NONE };
            set_napi(&lab, queue as usize, threaded);
            let tid = thread(&lab, queue as usize).unwrap();
            set_affinity(tid, &cpu0()).unwrap();
            let policy = Policy::Fifo { priority: 7 };
            set_scheduling(tid, Scheduling { policy, reset_on_fork: false }).unwrap();
        }
        if queue % 4 == 2 {
            files.set_rps_cpus(queue, &cpu0()).unwrap();
            files.set_xps_rxqs(queue, &[queue]).unwrap();
        }
    }
    Some((lab, has_threads))
}

fn holds(test: &str, queues: u32) {
    let Some((lab, has_threads)) = configured(test, queues) else { return };
    let text = printed(&lab);
    assert_eq!(planned(&lab, &text), [""; 0], "{text}");
    let back = |text: &str, change: &str| {
        assert_eq!(planned(&lab, text), [change], "{text}");
        apply(&lab, text);
        assert_eq!(printed(&lab), text);
    };

    assert!(text.contains("mode = \"suspend20\""), "{text}");
    set_napi(&lab, 0, PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..NONE });
    back(&text, "0: napi: gro-flush-timeout 77 µs → gro-flush-timeout 20 µs");
    set_napi(&lab, 0, PartialNapiSettings { irq_suspend_timeout_ns: Some(0), ..NONE });
    back(&text, "0: napi: irq-suspend-timeout 0 ns → irq-suspend-timeout 20 ms");
    let mut ethtool = Ethtool::open_in(&lab.server).unwrap();
    ethtool.set_features(lab.server_index, &[("rx-udp-gro-forwarding", true)]).unwrap();
    back(&text, "rx-udp-gro-forwarding: on → off");
    let sysfs = Sysfs::of(&lab.server).unwrap();
    let files = sysfs.net_class(&InterfaceName::new("server0").unwrap());
    files.set_rps_cpus(0, &cpu0()).unwrap();
    back(&text, "0: rps_cpus: 0 → none");
    if queues < 4 {
        return;
    }
    assert!(text.contains("# rps: CPUs 0; a profile can only turn it off"), "{text}");
    files.set_xps_rxqs(2, &[]).unwrap();
    back(&text, "2: xps_rxqs: none → 2");
    files.set_xps_cpus(3, &cpu0()).unwrap();
    back(&text, "3: xps_cpus: 0 → none");
    if has_threads {
        set_napi(&lab, 0, PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..NONE });
        back(&text, "0: napi: threaded 1 → threaded 0");
        let other = Scheduling { policy: Policy::Other { nice: 0 }, reset_on_fork: false };
        set_scheduling(thread(&lab, 1).unwrap(), other).unwrap();
        back(&text, "1: thread scheduling: other → fifo:7");
    }
    // Removing queues removes their settings, which the profile sets again.
    let fewer = ChannelRequest { rx: Some(queues - 1), tx: Some(queues - 1), ..ChannelRequest::default() };
    ethtool.set_channels(lab.server_index, fewer).unwrap();
    assert!(planned(&lab, &text).len() > 1);
    apply(&lab, &text);
    assert_eq!(printed(&lab), text);
}

#[test]
fn the_profile_of_one_queue_restores_its_settings() {
    holds("asprof1", 1);
}

#[test]
fn the_profile_of_four_queues_restores_their_settings() {
    holds("asprof4", 4);
}

#[test]
fn the_profile_of_sixteen_queues_restores_their_settings() {
    holds("asprof16", 16);
}

#[test]
fn the_profile_of_one_device_leaves_the_other_out() {
    let Some(mut lab) = TestLab::raise("asprof-two", 1) else { return };
    lab.add_device(4);
    let text = as_profile(&snapshot(&lab), |device| device.name == "server1").unwrap();
    assert!(text.contains("name = \"server1\"") && !text.contains("server0"), "{text}");
    lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..NONE });
    assert_eq!(planned(&lab, &text), [""; 0], "{text}");
    let both = printed(&lab);
    assert!(both.contains("mode = \"base,gro-flush-timeout=77us\""), "{both}");
    assert_eq!(planned(&lab, &both), [""; 0], "{both}");
}
