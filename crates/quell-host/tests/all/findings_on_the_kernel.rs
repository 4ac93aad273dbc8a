//! Provokes findings in a namespace of the real kernel and detects them in a snapshot. The examined program is this
//! test binary, started again in the lab with a role, or memcached. Needs root and Linux 6.13.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::roles;
use quell_change::journal::Journal;
use quell_host::apply::{self, ApplyRequest};
use quell_host::attach::attached::{adapt, in_use};
use quell_host::attach::{self, AttachRequest, EpollsSetBy};
use quell_host::behavior::ReadQueues;
use quell_host::findings::{Finding, FindingsReport, Severity, examine};
use quell_host::plan::ProfilePlan;
use quell_host::snapshot::{Snapshot, SnapshotScope, take};
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::ethtool::Ethtool;
use quell_linux::event::Trigger;
use quell_linux::link::Links;
use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings, QueueKind};
use quell_linux::netns::NamespaceName;
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::process::{Child, Output, Spawn};
use quell_linux::sched;
use quell_linux::{CpuList, InterfaceName};
use quell_mode::profile::{Profile, Source};
use quell_test_support::lab::{ARRIVES_WITHIN, PREFER, TestLab, UdpProgram, go_on};
use quell_test_support::{Lacks, kernel_threads_are_out_of_sight, skip, wait_until};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 7_000;
const OTHER_PORT: u16 = 7_001;

/// `suspend200`.
const SUSPEND: PartialNapiSettings = PartialNapiSettings {
    defer_hard_irqs: Some(100),
    gro_flush_timeout_ns: Some(200_000),
    irq_suspend_timeout_ns: Some(20_000_000),
    threaded: None,
};

/// A lab with a program that has received from a client.
struct Examined {
    lab: TestLab,
    child: Child,
    client: UdpSocket,
}

impl Examined {
    fn start(test: &str, role: &str) -> Option<Self> {
        let mut lab = TestLab::raise(test, 1)?;
        let child = lab.start(roles::spawn(role, PORT));
        let client = lab.client.run(|| UdpSocket::bind((CLIENT, 0))).unwrap().unwrap();
        client.connect((SERVER, PORT)).unwrap();
        let examined = Self { lab, child, client };
        examined.ask(b"?");
        Some(examined)
    }

    /// Sends a word until it is echoed.
    fn ask(&self, word: &[u8]) {
        self.client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let tries = ARRIVES_WITHIN.as_millis() / 100;
        let answered = (0..tries).any(|_| {
            // Refused until the program listens.
            let _ = self.client.send(word);
            self.client.recv(&mut [0; 8]).is_ok()
        });
        assert!(answered, "the program does not answer: {:?}", self.child.stderr_tail());
    }

    /// Exchanges this many words.
    fn converse(&self, times: u32) {
        (0..times).for_each(|_| self.ask(b"?"));
    }

    fn set_epolls(&self, params: EpollParams) {
        set_epolls(&self.child, params);
    }

    fn look(&self) -> Snapshot {
        look(&self.lab)
    }
}

fn set_epolls(child: &Child, params: EpollParams) {
    let fds = ProcRoot::default().process(child.pid()).fds().unwrap();
    for fd in fds.iter().filter(|fd| fd.kind == FdKind::Epoll) {
        epoll_params::set(child.pidfd().duplicate(fd.number).unwrap(), params).unwrap();
    }
}

/// Snapshot of the server's namespace.
fn look(lab: &TestLab) -> Snapshot {
    take(&SnapshotScope { netns: Some(lab.server_name.clone()), ..SnapshotScope::default() }).unwrap().0
}

fn severity(report: &FindingsReport, id: &str) -> Option<Severity> {
    report.findings.iter().filter(|one| one.id == id).map(|finding| finding.severity).max()
}

fn assert_found(report: &FindingsReport, id: &str, expected: Severity) {
    assert_eq!(severity(report, id), Some(expected), "{id}: {report:#?}");
}

#[test]
fn a_well_configured_program_has_no_relevant_finding() {
    let Some(examined) = Examined::start("well", "plain") else { return };
    let cpu: CpuList = [0].into_iter().collect();
    for tid in ProcRoot::default().process(examined.child.pid()).tids().unwrap() {
        sched::set_affinity(tid, &cpu).unwrap();
    }
    examined.lab.set_napi(&SUSPEND);
    examined.set_epolls(PREFER);
    examined.ask(b"?");
    let before = examined.look();
    examined.converse(10);
    let report = examine(&examined.look(), Some(&before));
    // Ignore findings that depend on the machine: its services, and CPUs shared with other labs.
    let of_the_machine = ["service-undoes-settings", "too-many-empty-polls", "deep-idle-states", "slow-cpu-frequency"];
    let of_the_lab = report.findings.iter().filter(|finding| !of_the_machine.contains(&finding.id));
    let matter: Vec<_> = of_the_lab.filter(|finding| finding.severity > Severity::Note).collect();
    assert!(matter.is_empty(), "{matter:#?}");
    let finding = report.findings.iter().find(|one| one.id == "suspension-without-effect").unwrap();
    assert_eq!(finding.severity, Severity::CannotTell);
    assert!(finding.observed.contains("at this load"), "{finding:?}");
    // These hold for every veth.
    for id in ["settings-not-kept", "sysfs-differs", "driver-lacks"] {
        assert_found(&report, id, Severity::Note);
    }
}

#[test]
fn queue_settings_without_effect_are_found() {
    let Some(examined) = Examined::start("halves", "plain") else { return };
    let found = |change: PartialNapiSettings, id: &str, expected| {
        examined.lab.set_napi(&change);
        assert_found(&examine(&examined.look(), None), id, expected);
    };
    found(SUSPEND, "no-epoll-prefers", Severity::Warning);
    let no_deferral = PartialNapiSettings { defer_hard_irqs: Some(0), ..SUSPEND };
    found(no_deferral, "suspension-without-deferral", Severity::Serious);
    let short = PartialNapiSettings { irq_suspend_timeout_ns: Some(200_000), ..SUSPEND };
    found(short, "suspend-timeout-too-short", Severity::Warning);
    let half = PartialNapiSettings { irq_suspend_timeout_ns: Some(0), gro_flush_timeout_ns: Some(0), ..SUSPEND };
    found(half, "deferral-incomplete", Severity::Warning);
    examined.set_epolls(EpollParams { busy_poll_budget: 0, ..PREFER });
    found(PartialNapiSettings::NONE, "small-busy-poll-budget", Severity::Note);
}

/// A profile for the lab, and the findings that are predicted for it.
struct Forecast {
    _dir: tempfile::TempDir,
    journal: Journal,
    netns: NamespaceName,
    profile: Profile,
    findings: Vec<Finding>,
}

impl Forecast {
    fn of(examined: &Examined, mode: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let netns = NamespaceName::new(examined.lab.server_name.clone()).unwrap();
        let text = format!("[device.lab]\nname = 'server0'\nqueues.all.mode = '{mode}'\n");
        let profile = Profile::parse(&[Source::new("test.toml", &text)]).unwrap();
        let observed = apply::observe(Some(&netns), &profile).unwrap();
        let plan = ProfilePlan::of(&observed, &profile);
        let findings = apply::forecast(&journal, &observed, &plan).unwrap();
        Self { _dir: dir, journal, netns, profile, findings }
    }

    fn apply(&self) {
        let (netns, profile) = (Some(&self.netns), &self.profile);
        let request = ApplyRequest { netns, profile, name: "test.toml", content: 0, skip_impossible: false };
        apply::apply(&self.journal, &request, None, &mut go_on).unwrap();
    }
}

#[test]
fn findings_of_a_profile_are_predicted_and_fixed_in_the_profile() {
    let Some(examined) = Examined::start("profile", "plain") else { return };
    let relevant = |findings: &[Finding]| -> BTreeSet<(&'static str, Severity)> {
        let relevant = findings.iter().filter(|finding| finding.severity > Severity::Note);
        relevant.map(|finding| (finding.id, finding.severity)).collect()
    };
    let before = relevant(&examine(&examined.look(), None).findings);
    let forecast = Forecast::of(&examined, "suspend200");
    forecast.apply();
    let now = examined.look();
    let mut findings = examine(&now, None).findings;
    let predicted = relevant(&forecast.findings);
    assert!(predicted.contains(&("no-epoll-prefers", Severity::Warning)), "{predicted:?}");
    let missing: Vec<_> =
        relevant(&findings).difference(&before).filter(|found| !predicted.contains(found)).copied().collect();
    assert_eq!(missing, []);

    let fix = |findings: &[Finding]| {
        let found = findings.iter().find(|finding| finding.id == "no-epoll-prefers").unwrap();
        found.fix.last().unwrap().to_string()
    };
    assert!(fix(&findings).contains("ynl "), "{}", fix(&findings));
    adapt(&mut findings, &now, &in_use(&forecast.journal).unwrap(), &BTreeMap::new());
    assert!(fix(&findings).starts_with("profile test.toml sets it:"), "{}", fix(&findings));
}

#[test]
fn stalls_of_programs_under_a_profile_are_predicted() {
    let Some(examined) = Examined::start("forecast", "ready-file") else { return };
    examined.set_epolls(PREFER);
    examined.ask(b"?");
    let stalls = |mode| Forecast::of(&examined, mode).findings.iter().any(Finding::predicts_stall);
    assert!(stalls("suspend200"));
    assert!(stalls("defer100000"), "the timer is as long as a stall");
    assert!(!stalls("base"));
}

#[test]
fn a_floating_worker_and_a_worker_far_from_its_queue_are_found() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(examined) = Examined::start("float", "plain") else { return };
    let online = CpuList::online(std::path::Path::new("/sys")).unwrap();
    let &[first, second, ..] = &online.iter().collect::<Vec<_>>()[..] else {
        skip(Lacks::Machine, "one CPU");
        return;
    };
    examined.set_epolls(PREFER);
    examined.lab.set_napi(&PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..SUSPEND });
    examined.ask(b"?");
    assert_found(&examine(&examined.look(), None), "floating-worker", Severity::Warning);
    let poller = examined.lab.napi().pid.unwrap();
    sched::set_affinity(poller, &[first].into_iter().collect()).unwrap();
    for tid in ProcRoot::default().process(examined.child.pid()).tids().unwrap() {
        sched::set_affinity(tid, &[second].into_iter().collect()).unwrap();
    }
    let report = examine(&examined.look(), None);
    assert_eq!(severity(&report, "floating-worker"), None, "{report:#?}");
    assert_found(&report, "irq-away-from-worker", Severity::Note);
}

#[test]
fn a_file_that_stays_ready_is_found() {
    let Some(examined) = Examined::start("ready", "ready-file") else { return };
    examined.lab.set_napi(&SUSPEND);
    examined.set_epolls(PREFER);
    let before = examined.look();
    assert_found(&examine(&before, None), "ready-object-holds-suspension", Severity::Warning);
    assert_found(&examine(&examined.look(), Some(&before)), "ready-object-holds-suspension", Severity::Serious);
}

#[test]
fn an_epoll_that_watches_another_is_found() {
    let Some(examined) = Examined::start("nested", "nested") else { return };
    examined.set_epolls(PREFER);
    assert_found(&examine(&examined.look(), None), "nested-epoll", Severity::Warning);
}

#[test]
fn a_thread_that_spins_on_epoll_wait_is_found() {
    let Some(examined) = Examined::start("spin", "spin") else { return };
    examined.lab.set_napi(&SUSPEND);
    examined.set_epolls(PREFER);
    let mut reports = (0..20).map(|_| {
        let before = examined.look();
        std::thread::sleep(Duration::from_millis(300));
        examine(&examined.look(), Some(&before))
    });
    let found = reports.any(|report| severity(&report, "waits-with-timeout-zero") == Some(Severity::Warning));
    assert!(found, "{:#?}", reports.next());
}

#[test]
fn frames_that_no_protocol_wants_are_a_note_and_those_that_a_full_ring_loses_are_serious() {
    let Some(lab) = TestLab::raise("drops", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let before = look(&lab);
    if lab.send_unwanted_frames(100).is_none() {
        return;
    }
    let mut now = look(&lab);
    wait_until(|| {
        now = look(&lab);
        match severity(&examine(&now, Some(&before)), "packets-dropped") {
            Some(Severity::Note) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let report = examine(&now, Some(&before));
    let found = report.findings.iter().find(|one| one.id == "packets-dropped").unwrap();
    assert!(found.observed.contains("none by a full queue"), "{found:?}");
    lab.poll_every_second();
    wait_until(|| {
        (0..1_000).for_each(|_| program.send(1));
        match severity(&examine(&look(&lab), Some(&now)), "packets-dropped") {
            Some(Severity::Serious) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn the_link_that_is_down_is_the_first_finding() {
    let Some(examined) = Examined::start("down", "plain") else { return };
    let links = || Links::open_in(&examined.lab.server).unwrap();
    links().set_down(examined.lab.server_index).unwrap();
    let report = examine(&examined.look(), None);
    assert_found(&report, "missing-queue", Severity::Serious);
    let fix = report.findings[0].fix.first().unwrap().to_string();
    assert_eq!(fix, format!("ip netns exec {} ip link set server0 up", examined.lab.server_name));
    links().set_up(examined.lab.server_index).unwrap();
    assert_eq!(severity(&examine(&examined.look(), None), "missing-queue"), None);
}

#[test]
fn recreated_queues_are_found() {
    let Some(examined) = Examined::start("anew", "plain") else { return };
    examined.lab.set_napi(&SUSPEND);
    let before = examined.look();
    let mut links = Links::open_in(&examined.lab.server).unwrap();
    links.set_down(examined.lab.server_index).unwrap();
    links.set_up(examined.lab.server_index).unwrap();
    let report = examine(&examined.look(), Some(&before));
    assert_found(&report, "napi-replaced", Severity::Warning);
    let replaced = report.findings.iter().find(|one| one.id == "napi-replaced").unwrap();
    assert!(replaced.observed.contains("lost: defer-hard-irqs 100"), "{replaced:?}");
}

#[test]
fn a_timer_with_empty_polls_is_found() {
    let Some(examined) = Examined::start("vain", "plain") else { return };
    // The timer is shorter than a poll on any machine, so it fires continuously.
    examined.lab.set_napi(&PartialNapiSettings {
        defer_hard_irqs: Some(i32::MAX as u32),
        gro_flush_timeout_ns: Some(1),
        ..PartialNapiSettings::NONE
    });
    examined.ask(b"?");
    let mut reports = (0..20).map(|_| {
        let before = examined.look();
        std::thread::sleep(Duration::from_millis(300));
        examine(&examined.look(), Some(&before))
    });
    let found = reports.any(|report| severity(&report, "too-many-empty-polls") == Some(Severity::Warning));
    assert!(found, "{:#?}", reports.next());
}

#[test]
fn a_timer_shorter_than_a_request_is_found() {
    let Some(examined) = Examined::start("short", "work") else { return };
    examined.lab.set_napi(&PartialNapiSettings {
        gro_flush_timeout_ns: Some(20_000),
        irq_suspend_timeout_ns: Some(0),
        ..SUSPEND
    });
    let before = examined.look();
    examined.converse(1_200);
    let report = examine(&examined.look(), Some(&before));
    assert_found(&report, "gro-flush-below-request-time", Severity::Warning);
}

#[test]
fn processes_that_wait_for_the_batch_of_another_are_found() {
    let Some(mut examined) = Examined::start("batch", "work") else { return };
    let other = examined.lab.start(roles::spawn("plain", OTHER_PORT));
    let client = examined.lab.client.run(|| UdpSocket::bind((CLIENT, 0))).unwrap().unwrap();
    client.connect((SERVER, OTHER_PORT)).unwrap();
    let main = std::mem::replace(&mut examined.client, client);
    examined.ask(b"?");
    examined.client = main;
    examined.lab.set_napi(&SUSPEND);
    examined.set_epolls(PREFER);
    let before = examined.look();
    examined.converse(1_200);
    let report = examine(&examined.look(), Some(&before));
    // Its epoll has too few files for a long batch.
    assert_found(&report, "batch-delays-others", Severity::Note);
    let finding = report.findings.iter().find(|one| one.id == "batch-delays-others").unwrap();
    let named = finding.nodes.iter().any(|node| node.to_string().contains(&other.pid().to_string()));
    assert!(named, "{finding:?}");
}

#[test]
fn a_socket_with_its_own_busy_polling_is_found() {
    let Some(examined) = Examined::start("socket", "prefer-socket") else { return };
    examined.lab.set_napi(&SUSPEND);
    assert_found(&examine(&examined.look(), None), "polls-without-suspension", Severity::Warning);
}

#[test]
fn disabled_gro_and_enabled_rps_are_found() {
    let Some(examined) = Examined::start("gro", "plain") else { return };
    examined.lab.set_napi(&SUSPEND);
    let name = InterfaceName::new("server0").unwrap();
    let sysfs = quell_linux::sysfs::Sysfs::of(&examined.lab.server).unwrap();
    let device = sysfs.net_class(&name);
    assert_eq!(device.queues(QueueKind::Rx).unwrap(), [0]);
    device.set_rps_cpus(0, &[0].into_iter().collect()).unwrap();
    assert_found(&examine(&examined.look(), None), "rps-on-polled-queue", Severity::Warning);
    let mut ethtool = Ethtool::open_in(&examined.lab.server).unwrap();
    ethtool.set_features(examined.lab.server_index, &[("rx-gro", false)]).unwrap();
    assert_found(&examine(&examined.look(), None), "gro-off", Severity::Warning);
}

/// Starts a shell under the name of a service. Returns `None` if there is no shell.
fn service(lab: &mut TestLab, name: &str, arguments: &[String]) -> Option<Child> {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    // A link instead of a copy: a process that another test is starting could hold a copy open for writing (ETXTBSY).
    if !std::path::Path::new("/bin/sh").exists() || std::os::unix::fs::symlink("/bin/sh", &program).is_err() {
        skip(Lacks::Tool("sh"), "no /bin/sh");
        return None;
    }
    let words = ["-c", "sleep 1000; true", name].map(str::to_owned);
    Some(lab.start(Spawn::new(&program).args(words.iter().chain(arguments).cloned())))
}

#[test]
fn a_service_is_found_by_its_name() {
    let Some(mut lab) = TestLab::raise("service", 1) else { return };
    lab.set_napi(&SUSPEND);
    let Some(_service) = service(&mut lab, "numad", &[]) else { return };
    assert_found(&examine(&look(&lab), None), "service-undoes-settings", Severity::Warning);
}

#[test]
fn irqbalance_is_found_unless_it_excludes_the_interrupts() {
    let here = || take(&SnapshotScope::default()).unwrap().0;
    let now = here();
    let irqs: Vec<u32> = now.irqs.known_elements().map(|irq| irq.number).collect();
    if irqs.is_empty() || now.services.known_elements().any(|service| service.name == "irqbalance") {
        return skip(Lacks::Machine, "no device of this machine has interrupts, or irqbalance runs");
    }
    let Some(mut lab) = TestLab::raise("irqbalance", 1) else { return };
    lab.set_napi(&SUSPEND);
    let found = |snapshot: Snapshot| {
        let report = examine(&snapshot, None);
        let its = report.findings.into_iter().filter(|one| one.id == "service-undoes-settings");
        its.filter(|finding| finding.observed.contains("irqbalance"))
            .map(|finding| finding.observed)
            .collect::<Vec<_>>()
    };
    let Some(running) = service(&mut lab, "irqbalance", &[]) else { return };
    let seen = found(here());
    assert!(seen[0].contains(&format!("does not exclude IRQ {}", irqs[0])), "{seen:?}");
    assert_eq!(found(look(&lab)), [""; 0], "a veth has no interrupts");
    drop(running);
    let bans: Vec<String> = irqs.iter().map(|irq| format!("--banirq={irq}")).collect();
    let _running = service(&mut lab, "irqbalance", &bans);
    wait_until(|| match &found(here())[..] {
        [] => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    let has_started = here().services.known_elements().any(|service| service.name == "irqbalance");
    assert!(has_started, "the service is seen, but excludes all interrupts");
}

/// Starts memcached in the lab and opens connections, each of which has received an answer. Returns `None` if memcached
/// is not installed.
fn memcached(lab: &mut TestLab, threads: &str, connections: usize) -> Option<(Child, Vec<TcpStream>)> {
    if std::process::Command::new("memcached").arg("-V").output().is_err() {
        skip(Lacks::Server("memcached"), "no memcached");
        return None;
    }
    let arguments = ["-u", "root", "-U", "0", "-l", "192.0.2.1", "-p", "11211", "-t", threads];
    let child = lab.start(Spawn::new("memcached").args(arguments).stderr(Output::Tail(500)));
    let connect = || -> TcpStream {
        for _ in 0..1_000 {
            if let Ok(stream) = TcpStream::connect((SERVER, 11_211)) {
                return stream;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("memcached does not accept");
    };
    let streams: Vec<TcpStream> = lab.client.run(|| (0..connections).map(|_| connect()).collect()).unwrap();
    for mut stream in &streams {
        use std::io::{Read as _, Write as _};
        stream.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        stream.write_all(b"version\r\n").unwrap();
        assert!(stream.read(&mut [0; 64]).unwrap() > 0);
    }
    Some((child, streams))
}

#[test]
fn an_epoll_that_mixes_queues_is_found() {
    let Some(mut lab) = TestLab::raise("mixes", 2) else { return };
    let Some((child, _streams)) = memcached(&mut lab, "1", 32) else { return };
    assert_found(&examine(&look(&lab), None), "epoll-mixes-napis", Severity::Note);
    for &napi in &lab.napis {
        Netdev::open_in(&lab.server).unwrap().set_napi(napi, &SUSPEND).unwrap();
    }
    set_epolls(&child, PREFER);
    assert_found(&examine(&look(&lab), None), "epoll-mixes-napis", Severity::Serious);
}

#[test]
fn workers_on_one_queue_and_a_ring_too_small_for_them_are_found() {
    let Some(mut lab) = TestLab::raise("shares", 1) else { return };
    let Some((child, _streams)) = memcached(&mut lab, "2", 140) else { return };
    lab.set_napi(&SUSPEND);
    set_epolls(&child, PREFER);
    let report = examine(&look(&lab), None);
    assert_found(&report, "napi-shared-by-workers", Severity::Warning);
    assert_found(&report, "small-ring-many-connections", Severity::Warning);
}

#[test]
fn a_polling_program_that_sleeps_past_a_long_timer_is_found() {
    let Some(mut lab) = TestLab::raise("long", 1) else { return };
    let Some((child, _streams)) = memcached(&mut lab, "1", 4) else { return };
    lab.set_napi(&PartialNapiSettings {
        gro_flush_timeout_ns: Some(5_000_000),
        irq_suspend_timeout_ns: Some(0),
        ..SUSPEND
    });
    set_epolls(&child, EpollParams { busy_poll_usecs: 64, ..PREFER });
    assert_found(&examine(&look(&lab), None), "long-flush-after-sleep", Severity::Warning);
}

#[test]
fn connections_that_bypass_napi_are_found() {
    let Some(mut lab) = TestLab::raise("bypass", 1) else { return };
    let client_index =
        Links::open_in(&lab.client).unwrap().by_name(&InterfaceName::new("client0").unwrap()).unwrap().index;
    let mut ethtool = Ethtool::open_in(&lab.client).unwrap();
    ethtool.set_features(client_index, &[("tx-tcp-segmentation", true)]).unwrap();
    let Some((child, _streams)) = memcached(&mut lab, "1", 4) else { return };
    set_epolls(&child, PREFER);
    let advice = || {
        let report = examine(&look(&lab), None);
        assert_found(&report, "connections-without-napi", Severity::Warning);
        let finding = report.findings.iter().find(|finding| finding.id == "connections-without-napi").unwrap();
        finding.fix.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert!(advice().contains("PEER tso off") && !advice().contains("gro on"), "{}", advice());
    Ethtool::open_in(&lab.server).unwrap().set_features(lab.server_index, &[("rx-gro", false)]).unwrap();
    assert!(advice().contains("gro on") && !advice().contains("PEER"), "{}", advice());
}

#[test]
fn connections_that_close_at_once_show_their_queue() {
    use std::io::{Read as _, Write as _};
    let Some(mut lab) = TestLab::raise("short", 1) else { return };
    let Some((child, streams)) = memcached(&mut lab, "1", 1) else { return };
    drop(streams);
    let programs = [child.pid()].into();
    let plan = |snapshot: &Snapshot| {
        let request = AttachRequest { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
        attach::plan(snapshot, None, &programs, &request)
    };
    let mut snapshot = wait_until(|| {
        let snapshot = look(&lab);
        if plan(&snapshot).queues().next().is_none() { Ok(snapshot) } else { Err(String::from("a connection is open")) }
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_over);
    let clients = lab.client.run(|| {
        std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect((SERVER, 11_211)).unwrap();
                stream.write_all(b"version\r\n").unwrap();
                assert!(stream.read(&mut [0; 64]).unwrap() > 0);
            }
        })
    });
    let planned = wait_until(|| {
        ReadQueues::observe(&snapshot, |pid| programs.contains(&pid)).add_to(&mut snapshot);
        let planned = plan(&snapshot);
        if planned.queues().count() == 1 { Ok(planned) } else { Err(format!("{planned:?}")) }
    });
    is_over.store(true, Ordering::Relaxed);
    clients.unwrap().join().unwrap();
    let napi = planned.queues().next().unwrap().napi;
    let worker = planned.epolls().filter(|epoll| epoll.napis.iter().eq([&napi])).count();
    assert_eq!(worker, 1, "the main thread accepts, and the worker reads: {planned:?}");
}
