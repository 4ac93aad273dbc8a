//! Switches a running memcached between modes while it answers. Needs root, Linux 6.13 and memcached.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use quell_change::drift::{Condition, condition};
use quell_change::journal::{Journal, Purpose};
use quell_change::recovery::recover;
use quell_change::transaction::ChangeError;
use quell_host::attach::measured::{measured_attachments, settings_below};
use quell_host::attach::plan::plan;
use quell_host::attach::{
    AttachError, AttachRequest, Attached, Attachment, EpollsSetBy, Selection, Targets, attachments, observe,
};
use quell_host::snapshot::{SnapshotScope, take};
use quell_host::switching::{
    ModeValues, ReportedEpoll, ReportedQueue, ReportedValues, SwitchError, SwitchPlan, Switching,
};
use quell_linux::link::Links;
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::process::{Child, Spawn};
use quell_linux::{NapiId, Pid};
use quell_mode::DeliveryMode;
use quell_test_support::kernel_values::KernelValues;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, go_on, no_keeper};
use quell_test_support::{Lacks, skip};

const MODES: [&str; 4] = ["base", "suspend200", "defer200", "fullbusy"];

struct Server {
    child: Child,
    connections: Vec<TcpStream>,
}

impl Server {
    fn start(lab: &mut TestLab) -> Option<Self> {
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "memcached is not installed");
            return None;
        }
        let child = lab.start(Spawn::new("memcached").args(["-u", "root", "-U", "0", "-t", "2", "-l", "192.0.2.1"]));
        let deadline = Instant::now() + ARRIVES_WITHIN;
        let connect = || {
            loop {
                match TcpStream::connect("192.0.2.1:11211") {
                    Ok(connection) => return connection,
                    Err(error) => assert!(Instant::now() < deadline, "memcached accepts no connection: {error}"),
                }
                std::thread::yield_now();
            }
        };
        let connections = lab.client.run(|| (0..16).map(|_| connect()).collect()).unwrap();
        let mut server = Self { child, connections };
        server.answers();
        Some(server)
    }

    fn answers(&mut self) {
        for connection in &mut self.connections {
            connection.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
            connection.write_all(b"version\r\n").unwrap();
            // Retries after EINTR, which closing an io_uring of this thread can cause in a receive with a timeout.
            let mut answer = String::new();
            BufReader::new(connection).read_line(&mut answer).unwrap();
            assert!(answer.starts_with("VERSION"), "{answer:?}");
        }
    }

    fn targets(&self) -> Targets {
        Targets::find(Selection::Processes(vec![self.child.pid()])).unwrap()
    }

    fn plan(&self, modes: &[&str]) -> SwitchPlan {
        let modes: Vec<DeliveryMode> = modes.iter().map(|mode| mode.parse().unwrap()).collect();
        SwitchPlan::new(&observe().unwrap(), &self.targets(), &modes)
    }

    fn switching(&self, dir: &tempfile::TempDir) -> Switching {
        Switching::begin(&Journal::in_dir(dir.path()), Purpose::Experiment, self.targets(), &self.plan(&MODES), None)
            .unwrap()
    }
}

/// Settings of the lab's queues and of the epolls of a process, by name.
fn state(lab: &TestLab, pid: Pid) -> BTreeMap<String, String> {
    let snapshot = take(&SnapshotScope { netns: Some(lab.server_name.clone()), ..SnapshotScope::default() }).unwrap().0;
    let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
    let mut state: BTreeMap<String, String> =
        napis.map(|napi| (format!("NAPI {}", napi.id), format!("{napi:?}"))).collect();
    for process in snapshot.processes.iter().filter(|process| process.pid == pid) {
        for epoll in &process.files.known().unwrap().epolls {
            state.insert(format!("epoll {}", epoll.fd), format!("{:?}", epoll.params));
        }
    }
    state
}

fn set_gro_flush_timeout(lab: &TestLab, napi: NapiId, gro_flush_timeout_ns: u64) {
    let change =
        PartialNapiSettings { gro_flush_timeout_ns: Some(gro_flush_timeout_ns), ..PartialNapiSettings::default() };
    Netdev::open_in(&lab.server).unwrap().set_napi(napi, &change).unwrap();
}

#[test]
fn settings_without_a_poller_are_not_those_of_a_mode_with_one() {
    let Some(mut lab) = TestLab::raise("present", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let userbusy: DeliveryMode = "userbusy".parse().unwrap();
    let set = Netdev::open_in(&lab.server).unwrap().set_napi(lab.napis[0], &userbusy.napi().into());
    set.unwrap();
    let plan = server.plan(&["base", "userbusy", "defer1000"]);
    assert_eq!((plan.present(), plan.present_setting()), (Some(2), Some("defer1000".parse().unwrap())));
}

#[test]
fn a_server_answers_in_every_mode_and_is_restored_at_the_end() {
    let Some(mut lab) = TestLab::raise_beside_others("switch", 2) else { return };
    let Some(mut server) = Server::start(&mut lab) else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), server.child.pid());
    let before = state(&lab, pid);
    let mut switching = server.switching(&dir);
    let journal_bytes = || std::fs::metadata(switching.journal_path()).unwrap().len();
    let recorded = journal_bytes();
    let mut seen = Vec::new();
    for mode in [0, 1, 2, 1, 3, 0, 3, 1, 0, 2].repeat(5) {
        switching.switch_to(mode).unwrap();
        server.answers();
        seen.push((mode, state(&lab, pid)));
    }
    for (mode, state) in &seen {
        let (_, first) = seen.iter().find(|(other, _)| other == mode).unwrap();
        assert_eq!(state, first, "{} has the same values each time", MODES[*mode]);
    }
    assert_ne!(seen[0].1, seen[1].1);
    assert_eq!(std::fs::metadata(switching.journal_path()).unwrap().len(), recorded, "a switch writes nothing");
    let (reverted, reported) = switching.end().unwrap();
    assert!(
        reverted.failed.is_empty() && reverted.left_alone.is_empty() && reverted.partial.is_empty(),
        "{reverted:?}"
    );
    assert_eq!(state(&lab, pid), before);
    server.answers();
    let restored = |queue: &ReportedQueue| queue.values.after == Some(queue.values.before);
    assert!(reported.queues.len() == 2 && reported.queues.iter().all(restored), "{reported:?}");
    let restored = |epoll: &ReportedEpoll| epoll.values.after == Some(epoll.values.before);
    assert!(!reported.epolls.is_empty() && reported.epolls.iter().all(restored), "{reported:?}");
    let names: Vec<String> = reported.queues[0].values.modes.iter().map(|under| under.mode.to_string()).collect();
    assert_eq!(names, MODES, "each mode once, in the order of the first switches");
    let suspend = |under: &ModeValues<PartialNapiSettings>| under.values.irq_suspend_timeout_ns;
    let suspends: Vec<_> = reported.queues[1].values.modes.iter().map(suspend).collect();
    assert_eq!(suspends, [Some(0), Some(20_000_000), Some(0), Some(0)]);
    let prefers: Vec<bool> =
        reported.epolls[0].values.modes.iter().map(|under| under.values.prefer_busy_poll).collect();
    assert_eq!(prefers, [false, true, false, true]);
}

#[test]
fn a_profile_below_an_experiment_can_end_first_or_last() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-below", 2) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), server.child.pid());
    let before = state(&lab, pid);
    let deferral: DeliveryMode = "defer50".parse().unwrap();
    let wanted = PartialNapiSettings { threaded: None, ..deferral.napi().into() };
    for (mode, name) in MODES.iter().enumerate() {
        for profile_ends_first in [true, false] {
            let mut profile = lab.transaction(&dir, "switch-below-p");
            for napi in lab.napis.clone() {
                profile.set_napi(&lab.server, napi, &wanted).unwrap();
            }
            let below = state(&lab, pid);
            let mut switching = server.switching(&dir);
            switching.switch_to(mode).unwrap();
            let switched = state(&lab, pid);
            if profile_ends_first {
                profile.revert().unwrap();
                assert_eq!(state(&lab, pid), switched, "the newest owner keeps its values");
                switching.end().unwrap();
            } else {
                switching.end().unwrap();
                assert_eq!(state(&lab, pid), below);
                profile.revert().unwrap();
            }
            assert_eq!(state(&lab, pid), before, "{name}, profile first: {profile_ends_first}");
        }
    }
}

#[test]
fn dropping_the_switching_restores_everything_in_every_mode() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-drop", 2) else { return };
    let Some(mut server) = Server::start(&mut lab) else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), server.child.pid());
    let before = state(&lab, pid);
    for (mode, name) in MODES.iter().enumerate() {
        let mut switching = server.switching(&dir);
        switching.switch_to(mode).unwrap();
        drop(switching);
        assert_eq!(state(&lab, pid), before, "{name}");
        server.answers();
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no journal is left");
}

#[test]
fn a_value_that_another_program_changes_ends_the_switching_and_is_left_alone() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-other", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut switching = server.switching(&dir);
    switching.switch_to(1).unwrap();
    set_gro_flush_timeout(&lab, lab.napis[0], 77_000);
    let error = switching.switch_to(0).unwrap_err();
    assert!(matches!(error, SwitchError::ChangedByOthers { .. }) && error.to_string().contains("77 µs"), "{error}");
    let (reverted, reported) = switching.end().unwrap();
    assert_eq!(reverted.partial.len(), 1, "{reverted:?}");
    let ReportedValues { before, modes, after } = &reported.queues[0].values;
    let [under] = &modes[..] else { panic!("{modes:?}") };
    let timeouts = [Some(*before), Some(under.values), *after].map(|values| values.unwrap().gro_flush_timeout_ns);
    assert_eq!((under.mode.to_string(), timeouts), (MODES[1].to_owned(), [Some(0), Some(77_000), Some(77_000)]));
    let napi = lab.napi();
    assert_eq!((napi.settings.gro_flush_timeout_ns, napi.settings.irq_suspend_timeout_ns), (Some(77_000), Some(0)));
    set_gro_flush_timeout(&lab, lab.napis[0], 0);
}

#[test]
fn the_queues_of_an_experiment_that_ends_while_the_link_is_down_are_restored_later() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-down", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let Some(kernel) = KernelValues::of_namespace(&lab.server_name) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut switching = server.switching(&dir);
    switching.switch_to(1).unwrap();
    let links = || Links::open_in(&lab.server).unwrap();
    links().set_down(lab.server_index).unwrap();
    let (reverted, _) = switching.end().unwrap();
    assert_eq!(reverted.waiting.len(), 1, "{reverted:?}");
    links().set_up(lab.server_index).unwrap();
    recover(&Journal::in_dir(dir.path())).unwrap();
    let [napi] = &kernel.napis("server0")[..] else { panic!("one queue") };
    assert_eq!((napi.gro_flush_timeout_ns, napi.irq_suspend_timeout_ns), (Some(0), Some(0)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no journal is left");
}

/// An attachment that is complete, with this process as its owner.
fn attach(server: &Server, dir: &tempfile::TempDir, mode: &str) -> Attachment {
    let request = AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let journal = Journal::in_dir(dir.path());
    let mut attachment = Attachment::begin(&journal, server.targets(), request, &mut no_keeper).unwrap();
    attachment.settle(&mut go_on).unwrap();
    attachment.hold().unwrap();
    attachment
}

#[test]
fn an_attachment_below_an_experiment_can_end_first_or_last() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-att", 2) else { return };
    let Some(mut server) = Server::start(&mut lab) else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), server.child.pid());
    let before = state(&lab, pid);
    for (mode, name) in MODES.iter().enumerate() {
        for attachment_ends_first in [true, false] {
            let attachment = attach(&server, &dir, "suspend20");
            let attached = state(&lab, pid);
            let mut switching = server.switching(&dir);
            switching.switch_to(mode).unwrap();
            server.answers();
            let switched = state(&lab, pid);
            if attachment_ends_first {
                attachment.end().unwrap();
                assert_eq!(state(&lab, pid), switched, "the experiment keeps its values");
                switching.end().unwrap();
            } else {
                switching.end().unwrap();
                assert_eq!(state(&lab, pid), attached);
                attachment.end().unwrap();
            }
            assert_eq!(state(&lab, pid), before, "{name}, attachment first: {attachment_ends_first}");
        }
    }
    server.answers();
}

#[test]
fn the_owner_of_an_attachment_pauses_during_an_experiment_and_goes_on_after_it() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-pause", 2) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), server.child.pid());
    let journal = Journal::in_dir(dir.path());
    let mut attachment = attach(&server, &dir, "suspend20");
    let attached = state(&lab, pid);
    let mut switching = server.switching(&dir);
    for mode in 0..MODES.len() {
        switching.switch_to(mode).unwrap();
        let switched = state(&lab, pid);
        let pass = attachment.keep_up(&mut go_on).unwrap();
        assert!(pass.made.is_empty() && pass.changed_by_others.is_empty() && pass.failed.is_empty(), "{pass:?}");
        assert!(!pass.over && pass.snapshot.is_none(), "{pass:?}");
        assert_eq!(state(&lab, pid), switched);
        for Attached { path, history, .. } in attachments(&journal).unwrap() {
            assert_eq!(condition(&path, &history).unwrap(), Condition::default(), "no drift");
        }
    }
    switching.end().unwrap();
    assert_eq!(state(&lab, pid), attached);
    let pass = attachment.keep_up(&mut go_on).unwrap();
    assert!(pass.made.is_empty() && pass.snapshot.is_some(), "{pass:?}");
    attachment.end().unwrap();
}

#[test]
fn the_settings_without_the_attachment_are_those_from_before_it() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-without", 2) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let without = || {
        let measured = measured_attachments(&journal, &server.targets()).unwrap();
        server.plan(&MODES).setting_without(&journal, &measured).unwrap().map(|mode| mode.to_string())
    };
    let below = || {
        let (attached, now) = (attachments(&journal).unwrap(), observe().unwrap());
        let pids = server.targets().pids();
        settings_below(&journal, &attached, &now)
            .iter()
            .find(|(pid, _)| pids.contains(pid))
            .map(|(_, of)| of.to_string())
    };
    assert_eq!((without().as_deref(), below()), (Some("base"), None), "not attached");
    let attachment = attach(&server, &dir, "suspend20");
    assert_eq!(server.plan(&MODES).present_setting().unwrap().napi().irq_suspend_timeout_ns, 20_000_000);
    assert_eq!((without(), below()), (Some("base".to_owned()), Some("base".to_owned())));
    attachment.end().unwrap();
    let mut profile = lab.transaction(&dir, "switch-without-p");
    let deferral: DeliveryMode = "defer50".parse().unwrap();
    for napi in lab.napis.clone() {
        profile.set_napi(&lab.server, napi, &PartialNapiSettings { threaded: None, ..deferral.napi().into() }).unwrap();
    }
    let attachment = attach(&server, &dir, "suspend20");
    assert_eq!((without(), below()), (Some("defer50".to_owned()), Some("defer50".to_owned())));
    attachment.end().unwrap();
    profile.revert().unwrap();
}

#[test]
fn an_experiment_is_refused_beside_another_one_and_below_an_attachment_that_has_more_programs() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-or", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let request = AttachRequest { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let begin = || Switching::begin(&journal, Purpose::Experiment, server.targets(), &server.plan(&MODES), None);
    let switching = begin().unwrap();
    let refused = Attachment::begin(&journal, server.targets(), request, &mut no_keeper).unwrap_err();
    assert!(matches!(refused, AttachError::AlreadyAttached { .. }), "{refused}");
    let refused = begin().unwrap_err();
    assert!(matches!(refused, SwitchError::Attach(AttachError::AlreadyAttached { .. })), "{refused}");
    drop(switching);
    let both = Selection::Processes(vec![server.child.pid(), Pid::of_this_process()]);
    let mut attachment = Attachment::begin(&journal, Targets::find(both).unwrap(), request, &mut no_keeper).unwrap();
    let refused = begin().unwrap_err();
    assert!(matches!(refused, SwitchError::Attach(AttachError::BeingAttached { .. })), "{refused}");
    attachment.hold().unwrap();
    let refused = begin().unwrap_err();
    assert!(matches!(refused, SwitchError::Attach(AttachError::AttachedWithOthers { .. })), "{refused}");
    assert!(refused.to_string().contains(&Pid::of_this_process().to_string()), "{refused}");
    attachment.end().unwrap();
}

#[test]
fn a_plan_with_values_of_an_owner_that_has_ended_since_is_refused() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-old", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let begin = |plan: &SwitchPlan| Switching::begin(&journal, Purpose::Experiment, server.targets(), plan, None);
    let before = state(&lab, server.child.pid());
    let request = AttachRequest { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let mut attachment = Attachment::begin(&journal, server.targets(), request, &mut no_keeper).unwrap();
    let attached = plan(&observe().unwrap(), None, &server.targets().pids(), &request);
    attachment.make(&attached, &mut go_on).unwrap();
    let planned_under_the_attachment = server.plan(&MODES);
    attachment.end().unwrap();
    let mut with_epolls_alone = planned_under_the_attachment.clone();
    for queue in &mut with_epolls_alone.queues {
        queue.old = server.plan(&MODES).queues[0].old;
    }
    for (plan, what) in [(&planned_under_the_attachment, "NAPI"), (&with_epolls_alone, "epoll")] {
        let refused = begin(plan).unwrap_err();
        assert!(
            matches!(refused, SwitchError::Change(ChangeError::PlanOutdated { .. }))
                && refused.to_string().contains(what),
            "{refused}"
        );
        assert_eq!(state(&lab, server.child.pid()), before);
    }
    begin(&server.plan(&MODES)).unwrap().end().unwrap();
    assert_eq!(state(&lab, server.child.pid()), before);
}

#[test]
fn the_error_names_a_program_that_exits() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-end", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), server.child.pid());
    let mut switching = server.switching(&dir);
    switching.switch_to(1).unwrap();
    let mut child = server.child;
    child.terminate(Duration::ZERO).unwrap();
    let error = switching.switch_to(0).unwrap_err();
    assert!(matches!(error, SwitchError::ProgramEnded(ended) if ended == pid), "{error}");
    let (reverted, _) = switching.end().unwrap();
    assert!(reverted.failed.is_empty(), "{reverted:?}");
}

#[test]
fn impossible_modes_have_a_reason() {
    let Some(mut lab) = TestLab::raise_beside_others("switch-why", 1) else { return };
    let Some(server) = Server::start(&mut lab) else { return };
    let plan = server.plan(&["base", "eventspin50", "suspend200"]);
    assert!(plan.impossible[0].is_empty() && plan.impossible[2].is_empty(), "{:?}", plan.impossible);
    assert!(!plan.impossible[1].is_empty());
}
