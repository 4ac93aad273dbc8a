//! The servers of recorded snapshots, and the next step of each.

use std::collections::BTreeMap;

use crate::snapshots::{before, healthy, set, snapshot, udp};
use quell_change::journal::StallRecord;
use quell_host::attach::AttachedMode;
use quell_host::attach::attached::Attached;
use quell_host::attach::payoff::DoesItPay;
use quell_host::findings::{FixText, QueuePerEpoll, examine, will_mix};
use quell_host::servers::{
    EarlierAnswer, EarlierMeasurement, EarlierVerdict, HostServer, Known, NextStep, OpenQuestion, ProcessOrigin,
    ServerWait, servers, with_started_since,
};
use quell_linux::{NapiId, Pid};
use quell_mode::DeliveryMode;
use quell_sampler::QueueSample;
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) parents: Vec<(i32, i32)>,
    pub(crate) attached: Vec<(i32, AttachedMode)>,
    /// The newest first.
    pub(crate) measured: Vec<EarlierAnswer>,
    pub(crate) packets_per_s: Option<u64>,
    pub(crate) experiment: Option<i32>,
    /// Mode of the settings below an attachment.
    pub(crate) below: Option<&'static str>,
    pub(crate) stalls: Vec<StallRecord>,
    /// Attachments of other programs, of which `below` is then.
    pub(crate) owners: Vec<Attached>,
    pub(crate) drifted: bool,
    pub(crate) worked_ms: Option<u64>,
    pub(crate) before: Option<Value>,
}

/// Polls of one second, all of them by the program, in which both queues together received so many packets.
fn polls(packets: u64) -> BTreeMap<NapiId, QueueSample> {
    let mut sample = QueueSample { packets: packets / 2, ..QueueSample::default() };
    sample.program_found_suspended = Some(packets / 2);
    sample.polls.program = packets / 2;
    [8193, 8194].map(|napi| (NapiId::from_kernel(napi).unwrap(), sample)).into()
}

/// An answer that was measured at 100,000 packets per second.
pub(crate) fn answer(better: Option<&str>) -> EarlierAnswer {
    let measured = EarlierMeasurement {
        result: "bench-1".to_owned(),
        started_unix_s: 7,
        packets_per_s: Some(100_000),
        own_load: None,
        problem: None,
        reservation: None,
    };
    let mode = |word: &str| word.parse().unwrap();
    let verdict =
        better.map_or_else(|| EarlierVerdict::Keep(mode("base")), |better| EarlierVerdict::Better(mode(better)));
    EarlierAnswer {
        measured,
        verdict,
        open: None,
        reference: mode("base"),
        // With the settings of `plain` and `healthy`.
        compared: ["base", "suspend20", "suspend200"].map(mode).to_vec(),
        worse: Vec::new(),
        for_goal: None,
        steered: false,
    }
}

fn undecided(unsteered: bool) -> EarlierAnswer {
    let (advice, command) = ("measure longer".to_owned(), "quell bench --pid 4242 --budget 4m".to_owned());
    EarlierAnswer { verdict: EarlierVerdict::Undecided { advice, command, unsteered }, ..answer(None) }
}

fn with_problem(better: Option<&str>, id: &str) -> EarlierAnswer {
    let mut answer = answer(better);
    answer.measured.problem = Some(id.to_owned());
    answer
}

pub(crate) fn pid(pid: i32) -> Pid {
    Pid::new(pid).unwrap()
}

fn of(host: &Value, facts: &Facts) -> Vec<HostServer> {
    let (now, earlier) = (snapshot(host), snapshot(facts.before.as_ref().unwrap_or(&before())));
    let origin = |&(child, parent): &(i32, i32)| (pid(child), ProcessOrigin { parent: Some(pid(parent)), place: None });
    let name = host["processes"][0]["name"].as_str().unwrap().to_owned();
    let attached = facts.owners.first().map_or(pid(4242), |owner| owner.history.targets[0].pid);
    let known = Known {
        drifted: &facts.drifted.then(|| pid(4242)).into_iter().collect(),
        owners: &facts.owners,
        findings: &examine(&now, Some(&earlier)).findings,
        origins: &facts.parents.iter().map(origin).collect(),
        attached: &facts.attached.iter().map(|&(one, mode)| (pid(one), mode)).collect(),
        experiments: &facts.experiment.iter().map(|by| (pid(4242), pid(*by))).collect(),
        below: &facts.below.iter().map(|below| (attached, below.parse().unwrap())).collect(),
        measured: &BTreeMap::from([((pid(4242), name), facts.measured.clone())]),
        stalls: &facts.stalls,
        polls: &facts.packets_per_s.map(polls).unwrap_or_default(),
        sampled_ns: 1_000_000_000,
        behavior: None,
        worked_ns: &facts.worked_ms.iter().map(|ms| (pid(4242), ms * 1_000_000)).collect(),
    };
    servers(&now, Some(&earlier), &known)
}

pub(crate) fn only(host: &Value, facts: &Facts) -> HostServer {
    let found = <[HostServer; 1]>::try_from(of(host, facts));
    found.map(|[only]| only).unwrap_or_else(|found| panic!("{found:#?}"))
}

pub(crate) fn attached(mode: &str, steers: bool) -> AttachedMode {
    AttachedMode { mode: mode.parse().unwrap(), steers, pins: steers, ..AttachedMode::default() }
}

/// Without any mode.
pub(crate) fn plain() -> Value {
    let mut host = healthy();
    for epoll in [1, 2] {
        let params = json!({"busy_poll_usecs": 0, "busy_poll_budget": 0, "prefer_busy_poll": false});
        set(&mut host, &format!("/processes/0/files/epolls/{epoll}/params"), params);
    }
    for napi in [0, 1] {
        for key in ["defer-hard-irqs", "gro-flush-timeout-ns", "irq-suspend-timeout-ns"] {
            set(&mut host, &format!("/devices/0/napis/{napi}/{key}"), json!(0));
        }
    }
    host
}

/// Both queues deliver to the second epoll.
fn mixing(reuseport: bool) -> Value {
    let mut host = plain();
    set(&mut host, "/sockets/1/napi", json!(8194));
    // memcached has an option of its own.
    set(&mut host, "/processes/0/name", json!("nginx"));
    if reuseport {
        set(&mut host, "/sockets/0/reuseport", json!(true));
        let mut second = host["sockets"][0].clone();
        second["inode"] = json!(99);
        set(&mut host, "/sockets/-", second);
    }
    host
}

#[test]
fn a_server_has_its_present_mode_queues_workers_and_cpu_time() {
    let server = only(&healthy(), &Facts::default());
    assert_eq!((server.name.as_str(), server.pid, server.waits), ("memcached", pid(4242), ServerWait::Epoll));
    assert_eq!(server.present.map(|mode| mode.to_string()).as_deref(), Some("suspend20"));
    assert_eq!((server.queues, server.workers, server.serious + server.warnings), (2, 2, 0));
    assert!(server.cpus.is_some_and(|cpus| cpus > 0.0));
    assert_eq!(server.next, NextStep::Measure { steered: false });
}

#[test]
fn children_of_a_program_with_its_name_belong_to_it() {
    let mut host = healthy();
    let mut child = host["processes"][0].clone();
    child["pid"] = json!(4300);
    child["start-time-ticks"] = json!(77_001);
    for fd in 0..3 {
        let epoll = [3, 5, 8][fd];
        child["files"]["epolls"][fd]["same-as"] = json!({"pid": 4242, "fd": epoll});
    }
    set(&mut host, "/processes/-", child);
    let parents = || vec![(4242, 1), (4300, 4242)];
    let server = only(&host, &Facts { parents: parents(), ..Facts::default() });
    assert_eq!((server.pid, server.processes), (pid(4242), vec![pid(4242), pid(4300)]));
    set(&mut host, "/processes/1/name", json!("helper"));
    assert_eq!(of(&host, &Facts { parents: parents(), ..Facts::default() }).len(), 2);
}

#[test]
fn the_next_step_is_to_fix_then_to_measure_then_to_attach() {
    let mut ill = healthy();
    set(&mut ill, "/devices/0/napis/0/defer-hard-irqs", json!(0));
    let answered = |measured| Facts { measured: vec![measured], ..Facts::default() };
    let better = || answered(answer(Some("suspend50")));
    assert!(matches!(only(&ill, &better()).next, NextStep::Fix { .. }));
    let measured_now = Facts { experiment: Some(99), ..better() };
    assert_eq!(only(&ill, &measured_now).next, NextStep::AwaitExperiment { pid: pid(99) });
    let next = only(&healthy(), &better()).next;
    assert!(matches!(next, NextStep::Attach { mode, .. } if mode == "suspend50".parse().unwrap()), "{next:?}");
    assert!(matches!(only(&plain(), &answered(answer(None))).next, NextStep::Keep { .. }));
    let launched = || vec![(4242, AttachedMode { launched: true, ..attached("suspend20", false) })];
    let attached = Facts { attached: launched(), ..better() };
    let server = only(&healthy(), &attached);
    assert!(matches!(server.next, NextStep::Attach { .. }), "a measurement counts for launched programs, too");
    assert_eq!(server.payoff, None, "polls were not sampled");
    let sampled = only(&healthy(), &Facts { packets_per_s: Some(20_000), ..attached });
    assert_eq!(sampled.payoff.map(|payoff| payoff.pays), Some(DoesItPay::MeasureToKnow));
    let mut floating = healthy();
    set(&mut floating, "/processes/0/threads/1/affinity", json!("0-3"));
    let next = |packets_per_s| only(&floating, &Facts { attached: launched(), packets_per_s, ..Facts::default() }).next;
    assert_eq!(next(None), NextStep::Fix { finding: "floating-worker" });
    assert_eq!(next(Some(20_000)), NextStep::Check, "whether the mode pays is worth more than a warning");
}

#[test]
fn a_measurement_of_an_attached_server_ends_the_advice_to_measure() {
    let next = |mode, steers, better| {
        let facts = Facts {
            attached: vec![(4242, attached(mode, steers))],
            measured: vec![answer(better)],
            ..Facts::default()
        };
        only(&healthy(), &facts).next
    };
    let better = next("base", true, Some("suspend200"));
    assert!(
        matches!(&better, NextStep::Attach { mode, steered: true, .. } if mode.to_string() == "suspend200"),
        "{better:?}"
    );
    assert!(matches!(next("base", true, None), NextStep::Keep { .. }));
    let facts =
        Facts { attached: vec![(4242, attached("base", true))], measured: vec![answer(None)], ..Facts::default() };
    let mixing = only(&mixing(true), &facts).next;
    assert!(matches!(mixing, NextStep::Keep { .. }), "it cannot be steered more: {mixing:?}");
    assert!(matches!(next("suspend200", false, Some("suspend200")), NextStep::Keep { .. }));
    let kept = next("suspend200", false, None);
    assert!(matches!(&kept, NextStep::Return { mode, .. } if *mode == "base".parse().unwrap()), "{kept:?}");
    assert_eq!(next("fullbusy", false, None), NextStep::Check, "the result does not know fullbusy");
}

#[test]
fn a_result_without_an_answer_leads_to_its_own_next_command() {
    let next = |measured, attached: Option<AttachedMode>, packets_per_s| {
        let attached = attached.map(|mode| (4242, mode)).into_iter().collect();
        only(&healthy(), &Facts { measured, attached, packets_per_s, ..Facts::default() }).next
    };
    let decides =
        |step: &NextStep| matches!(step, NextStep::Decide { command, .. } if command.ends_with("--budget 4m"));
    let open = || vec![undecided(false)];
    assert!(decides(&next(open(), None, None)));
    assert!(decides(&next(open(), Some(attached("suspend200", false)), Some(100_000))));
    assert!(matches!(next(open(), None, Some(2_000)), NextStep::MeasureAgain { .. }), "another load");
    let both = vec![undecided(false), answer(Some("suspend20"))];
    assert!(matches!(next(both, None, None), NextStep::Keep { .. }), "an older result has decided");
    let unsteered = || vec![undecided(true)];
    assert!(decides(&next(unsteered(), None, None)));
    assert_eq!(next(unsteered(), Some(attached("base", true)), None), NextStep::Check, "it is steered now");
}

#[test]
fn a_mode_that_was_kept_or_better_is_kept_where_it_is_set_and_attached_where_it_is_not() {
    let mode = |word: &str| word.parse().unwrap();
    let next = |host: &Value, verdict| {
        only(host, &Facts { measured: vec![EarlierAnswer { verdict, ..answer(None) }], ..Facts::default() }).next
    };
    let is_attach = |step: &NextStep| matches!(step, NextStep::Attach { .. });
    let better = |word| EarlierVerdict::Better(mode(word));
    assert!(matches!(next(&healthy(), better("suspend20")), NextStep::Keep { .. }), "a profile has set it");
    assert!(is_attach(&next(&healthy(), better("suspend200"))));
    assert!(is_attach(&next(&plain(), EarlierVerdict::Keep(mode("suspend200")))), "it was attached then");
    assert!(matches!(next(&plain(), EarlierVerdict::Keep(mode("base"))), NextStep::Keep { .. }));
    assert!(is_attach(&next(&healthy(), EarlierVerdict::Keep(mode("base")))), "it was compared, and worse");
}

#[test]
fn a_mode_that_is_kept_has_what_is_open_and_the_command_that_decides_it() {
    let open = Some(OpenQuestion { advice: "keep base: …".to_owned(), command: "quell bench".to_owned() });
    let measured = vec![EarlierAnswer { open: open.clone(), ..answer(None) }];
    let next = only(&plain(), &Facts { measured, ..Facts::default() }).next;
    assert!(matches!(&next, NextStep::Keep { open: said, .. } if *said == open), "{next:?}");
}

#[test]
fn a_server_has_the_address_of_its_connections() {
    assert_eq!(only(&healthy(), &Facts::default()).address.map(|it| it.port()), Some(11_211));
    assert!(only(&healthy(), &Facts::default()).address.is_some_and(|it| !it.ip().is_unspecified()));
}

#[test]
fn connections_of_several_queues_in_one_epoll_are_fixed_or_steered_before_they_are_measured() {
    assert_eq!(only(&mixing(true), &Facts::default()).next, NextStep::Measure { steered: true });
    assert_eq!(only(&mixing(false), &Facts::default()).next, NextStep::Fix { finding: "epoll-mixes-napis" });
    let kept = |steered| Facts { measured: vec![EarlierAnswer { steered, ..answer(None) }], ..Facts::default() };
    assert_eq!(only(&mixing(true), &kept(false)).next, NextStep::Measure { steered: true });
    assert!(matches!(only(&mixing(true), &kept(true)).next, NextStep::Keep { .. }));
    let mixed = |better| Facts { measured: vec![with_problem(better, "epoll-mixes-napis")], ..Facts::default() };
    assert_eq!(only(&mixing(true), &mixed(Some("suspend20"))).next, NextStep::Measure { steered: true });
    assert_eq!(only(&healthy(), &mixed(None)).next, NextStep::Measure { steered: false });
}

/// All connections, of both queues, in one epoll, as those of Go programs.
fn one_epoll() -> Value {
    let mut host = mixing(false);
    set(&mut host, "/processes/0/name", json!("goweb"));
    set(&mut host, "/processes/0/files/epolls/2/targets", json!([]));
    host
}

/// What can be compared on a program whose epolls cannot poll.
pub(crate) fn without_epolls() -> Vec<DeliveryMode> {
    DeliveryMode::parse_list("base,defer20,defer200,threaded").unwrap()
}

#[test]
fn what_a_measurement_of_mixed_epolls_decided_is_the_answer_with_the_change_that_could_decide_otherwise() {
    let measured = || Facts { measured: vec![with_problem(None, "epoll-mixes-napis")], ..Facts::default() };
    let kept = only(&mixing(false), &measured());
    assert!(matches!(kept.next, NextStep::Keep { .. }), "{kept:?}");
    assert!(matches!(kept.queue_per_epoll, Some(QueuePerEpoll::Configured { steered: true, .. })), "{kept:?}");
    let open = only(&mixing(false), &Facts { measured: vec![undecided(false)], ..Facts::default() });
    assert!(matches!(open.next, NextStep::Decide { .. }), "{open:?}");
    let go = only(&one_epoll(), &measured());
    assert!(matches!(go.next, NextStep::Keep { .. }), "{go:?}");
    let answers = vec![EarlierAnswer { steered: true, ..with_problem(None, "epoll-mixes-napis") }];
    let facts = Facts { attached: vec![(4242, attached("base", true))], measured: answers, ..Facts::default() };
    assert!(matches!(only(&one_epoll(), &facts).next, NextStep::Keep { .. }), "no filter sorts what it mixes");
    let again = only(&one_epoll(), &Facts { packets_per_s: Some(2_000), ..measured() });
    assert!(matches!(again.next, NextStep::MeasureAgain { steered: false, .. }), "{again:?}");
    assert_eq!(again.modes, without_epolls());
}

#[test]
fn a_program_with_one_epoll_is_measured_with_the_modes_that_can_work() {
    let go = only(&one_epoll(), &Facts::default());
    assert_eq!((go.next, go.modes), (NextStep::Measure { steered: false }, without_epolls()));
    let healthy = only(&healthy(), &Facts::default());
    assert_eq!((healthy.modes, healthy.queue_per_epoll), (Vec::new(), None));
}

#[test]
fn a_udp_socket_that_receives_from_several_queues_is_measured_with_the_modes_that_can_work() {
    let mut host = plain();
    set(&mut host, "/sockets/1", udp(101));
    let dns = only(&host, &Facts::default());
    assert_eq!((dns.next, dns.modes), (NextStep::Measure { steered: false }, without_epolls()));
    assert!(
        matches!(dns.queue_per_epoll, Some(QueuePerEpoll::Impossible { reason }) if reason.contains("--steer-udp"))
    );
}

#[test]
fn a_udp_socket_of_several_devices_with_one_queue_each_is_to_listen_on_one() {
    let mut host = plain();
    let mut socket = udp(101);
    socket["local"] = json!("0.0.0.0:53");
    set(&mut host, "/sockets/1", socket);
    let devices = host["devices"].as_array_mut().unwrap();
    devices.push(devices[0].clone());
    (devices[1]["ifindex"], devices[1]["name"]) = (json!(99), json!("eth1"));
    for (device, other) in [(0, 1), (1, 0)] {
        for list in ["rx-queues", "napis"] {
            devices[device][list].as_array_mut().unwrap().remove(other);
        }
    }
    let by = only(&host, &Facts::default()).queue_per_epoll;
    assert!(
        matches!(&by, Some(QueuePerEpoll::Impossible { reason }) if reason.contains("the address of one device")),
        "{by:?}"
    );
}

#[test]
fn an_attached_mode_that_leaves_queues_unpolled_has_the_advice_of_attach() {
    let mut host = healthy();
    set(&mut host, "/sockets/1/napi", json!(8194));
    set(&mut host, "/processes/0/name", json!("nginx"));
    let facts = |packets_per_s| Facts {
        attached: vec![(4242, attached("suspend20", false))],
        packets_per_s,
        ..Facts::default()
    };
    let server = only(&host, &facts(Some(20_000)));
    assert_eq!(server.next, NextStep::Check);
    assert!(
        matches!(server.payoff.map(|payoff| payoff.pays), Some(DoesItPay::LeavesQueuesUnpolled { fix, .. }) if fix.contains("reuseport"))
    );
    assert_eq!(only(&host, &facts(None)).next, NextStep::Fix { finding: "epoll-mixes-napis" }, "polls are not sampled");
}

#[test]
fn an_idle_server_has_what_is_known_without_requests() {
    let idle = |mut host: Value, name: &str, epolls: &[usize]| {
        set(&mut host, "/processes/0/name", json!(name));
        (1..5).for_each(|socket| set(&mut host, &format!("/sockets/{socket}/napi"), json!(null)));
        for epoll in 0..3 {
            let listener = json!([{"fd": 30, "events": 1, "file": {"socket": {"inode": 100}}}]);
            let targets = if epolls.contains(&epoll) { listener } else { json!([]) };
            set(&mut host, &format!("/processes/0/files/epolls/{epoll}/targets"), targets);
        }
        let server = only(&host, &Facts::default());
        assert_eq!(will_mix(&snapshot(&host), &[server.pid].into(), true), server.will_mix, "attach warns, too");
        assert_eq!(server.queue_per_epoll, None);
        (server.next, server.will_mix, will_mix(&snapshot(&host), &[server.pid].into(), false))
    };
    let (next, nginx, _) = idle(plain(), "nginx", &[1, 2]);
    assert_eq!(next, NextStep::AwaitClients);
    assert!(matches!(nginx, Some(QueuePerEpoll::Configured { steered: true, .. })), "{nginx:?}");
    let go = idle(plain(), "goweb", &[1]).1;
    assert!(matches!(go, Some(QueuePerEpoll::Impossible { .. })), "{go:?}");
    assert_eq!(idle(plain(), "memcached", &[1]).1, None, "its option is not visible");
    let (_, steered, unsteered) = idle(mixing(true), "nginx", &[1, 2]);
    assert_eq!((steered, unsteered), (None, Some(QueuePerEpoll::Steered)), "--steer needs no change");
    let mut one_queue = plain();
    let same = one_queue["devices"][0]["rx-queues"][0]["napi"].clone();
    set(&mut one_queue, "/devices/0/rx-queues/1/napi", same);
    assert_eq!(idle(one_queue, "goweb", &[1]).1, None);
    let mut off = plain();
    set(&mut off, "/devices/0/features/rx-gro/active", json!(false));
    for (key, value) in [("defer-hard-irqs", 100), ("gro-flush-timeout-ns", 20_000)] {
        (0..2).for_each(|napi| set(&mut off, &format!("/devices/0/napis/{napi}/{key}"), json!(value)));
    }
    assert_eq!(idle(off, "nginx", &[1]).0, NextStep::Fix { finding: "gro-off" }, "of the device that will deliver");
}

/// Each epoll has the connections of one queue at present, and a listening socket of a reuseport group of its own.
fn sorted_for_now() -> Value {
    let mut host = mixing(true);
    set(&mut host, "/sockets/1/napi", json!(8193));
    for (epoll, inode) in [(1, 100), (2, 99)] {
        let listener = json!({"fd": 30 + epoll, "events": 1, "file": {"socket": {"inode": inode}}});
        set(&mut host, &format!("/processes/0/files/epolls/{epoll}/targets/-"), listener);
    }
    host
}

#[test]
fn a_reuseport_group_on_several_queues_is_steered_although_no_epoll_mixes_queues_now() {
    let next = |measured| only(&sorted_for_now(), &Facts { measured, ..Facts::default() }).next;
    assert_eq!(next(Vec::new()), NextStep::Measure { steered: true });
    let better = next(vec![answer(Some("suspend200"))]);
    assert!(matches!(better, NextStep::Attach { steered: true, .. }), "{better:?}");
    assert_eq!(next(vec![undecided(false)]), NextStep::Measure { steered: true }, "its command does not steer");
    let mut one_queue = sorted_for_now();
    for socket in 1..5 {
        set(&mut one_queue, &format!("/sockets/{socket}/napi"), json!(8193));
    }
    let same = one_queue["devices"][0]["rx-queues"][0]["napi"].clone();
    set(&mut one_queue, "/devices/0/rx-queues/1/napi", same);
    assert_eq!(only(&one_queue, &Facts::default()).next, NextStep::Measure { steered: false });
    let steered = Facts { attached: vec![(4242, attached("base", true))], ..Facts::default() };
    assert_eq!(only(&sorted_for_now(), &steered).next, NextStep::Check);
    let mut floating = sorted_for_now();
    set(&mut floating, "/processes/0/threads/1/affinity", json!("0-3"));
    let fixes = |host: &Value| -> Vec<String> {
        let found = examine(&snapshot(host), None).findings;
        let floating = found.into_iter().filter(|finding| finding.id == "floating-worker");
        floating.flat_map(|finding| finding.fix).map(|fix| fix.to_string()).collect()
    };
    assert_eq!(fixes(&floating), ["pin it to the CPU of its queue: `quell attach MODE 4242 --steer --pin --follow`"]);
    let by_hand = |host: &Value| fixes(host).iter().all(|fix| fix.starts_with("pin it to one CPU: taskset -cp CPU "));
    let mut unbound = floating.clone();
    for irq in unbound["irqs"].as_array_mut().unwrap() {
        irq["effective-affinity"] = json!("0-3");
    }
    assert!(by_hand(&unbound), "the interrupts arrive on all CPUs: {:?}", fixes(&unbound));
    for napi in floating["devices"][0]["napis"].as_array().map(Vec::len).into_iter().flat_map(|count| 0..count) {
        set(&mut floating, &format!("/devices/0/napis/{napi}/irq"), json!(null));
    }
    assert!(by_hand(&floating));
}

#[test]
fn workers_on_suspended_queues_are_attached_by_their_parent_and_steered() {
    let mut host = sorted_for_now();
    let mut parent = host["processes"][0].clone();
    (parent["pid"], parent["start-time-ticks"], parent["files"]["epolls"]) = (json!(4_000), json!(1), json!([]));
    for epoll in 0..host["processes"][0]["files"]["epolls"].as_array().map_or(0, Vec::len) {
        set(&mut host, &format!("/processes/0/files/epolls/{epoll}/params/prefer_busy_poll"), json!(false));
    }
    set(&mut host, "/processes/-", parent);
    for napi in [0, 1] {
        for (key, value) in
            [("defer-hard-irqs", 100), ("gro-flush-timeout-ns", 20_000), ("irq-suspend-timeout-ns", 20_000_000)]
        {
            set(&mut host, &format!("/devices/0/napis/{napi}/{key}"), json!(value));
        }
    }
    let findings = examine(&snapshot(&host), None).findings;
    let found = findings.iter().find(|finding| finding.id == "no-epoll-prefers").unwrap();
    assert_eq!(found.fix[0].to_string(), "quell attach suspend20 4000 --steer --pin --follow");
}

#[test]
fn an_answer_decides_at_the_load_at_which_it_was_measured_only() {
    let next = |measured: Vec<EarlierAnswer>, packets_per_s| {
        only(&plain(), &Facts { measured, packets_per_s, ..Facts::default() }).next
    };
    let at = |packets_per_s, mode| {
        let mut answer = answer(mode);
        answer.measured.packets_per_s = packets_per_s;
        answer
    };
    for load in [50_000, 200_000] {
        assert!(matches!(next(vec![answer(None)], Some(load)), NextStep::Keep { .. }), "{load}");
    }
    let other = next(vec![answer(None)], Some(2_000));
    let is_again = |measured: &EarlierMeasurement| measured.packets_per_s == Some(100_000);
    assert!(
        matches!(&other, NextStep::MeasureAgain { steered: false, measured, packets_per_s: 2_000 } if is_again(measured)),
        "{other:?}"
    );
    let both = || vec![answer(None), at(Some(1_500), Some("suspend50"))];
    assert!(matches!(next(both(), Some(2_000)), NextStep::Attach { .. }), "the older one was at this load");
    assert!(matches!(next(both(), Some(80_000)), NextStep::Keep { .. }));
    assert!(matches!(next(vec![at(None, None)], Some(2_000)), NextStep::Keep { .. }), "an unknown load");
    assert!(matches!(next(vec![answer(None)], None), NextStep::Keep { .. }));
}

#[test]
fn an_answer_counts_for_the_measured_process_and_not_for_others_with_its_name() {
    let mut host = healthy();
    set(&mut host, "/processes/0/pid", json!(4243));
    let answered = Facts { measured: vec![answer(None)], ..Facts::default() };
    assert_eq!(only(&host, &answered).next, NextStep::Measure { steered: false });
}

#[test]
fn connections_that_pass_no_napi_instance_are_fixed_first() {
    let mut host = healthy();
    (1..5).for_each(|socket| set(&mut host, &format!("/sockets/{socket}/napi"), json!(null)));
    set(&mut host, "/devices/0/kind", json!("veth"));
    let next = |host: &Value| only(host, &Facts::default());
    assert_eq!(next(&host).next, NextStep::Fix { finding: "connections-without-napi" });
    set(&mut host, "/devices/0/napis", json!([]));
    set(&mut host, "/devices/0/features/rx-gro/active", json!(false));
    let gro_on = Some(FixText::Command("ethtool -K eth0 gro on".to_owned()));
    assert_eq!(next(&host).fix, gro_on);
    (1..5).for_each(|socket| set(&mut host, &format!("/sockets/{socket}/state"), json!("listen")));
    assert_eq!((next(&host).next, next(&host).fix), (NextStep::Fix { finding: "gro-off" }, gro_on));
}

#[test]
fn a_server_without_packets_waits_for_clients() {
    let mut host = healthy();
    for socket in 1..5 {
        set(&mut host, &format!("/sockets/{socket}/napi"), json!(null));
        set(&mut host, &format!("/sockets/{socket}/remote"), json!("127.0.0.1:40000"));
    }
    let server = only(&host, &Facts::default());
    assert_eq!((server.waits, server.queues, server.next), (ServerWait::Epoll, 0, NextStep::AwaitClients));
}

#[test]
fn a_server_in_another_network_namespace_has_its_name() {
    let mut host = healthy();
    assert_eq!(only(&host, &Facts::default()).netns, None);
    set(&mut host, "/namespaces/0/is-current", json!(false));
    set(&mut host, "/namespaces/0/names", json!(["shop"]));
    assert_eq!(only(&host, &Facts::default()).netns.as_deref(), Some("shop"));
    set(&mut host, "/namespaces/0/names", json!([]));
    assert!(only(&host, &Facts::default()).netns.is_some_and(|name| name.starts_with("net:[")));
}

#[test]
fn clients_and_the_program_of_this_session_are_no_servers() {
    let mut host = healthy();
    set(&mut host, "/sockets/0/local", json!("127.0.0.1:11211"));
    assert_eq!(of(&host, &Facts::default()), []);
    let mut host = healthy();
    set(&mut host, "/management-sockets", json!([101]));
    assert_eq!(of(&host, &Facts::default()), []);
}

#[test]
fn a_finding_about_another_program_on_the_queue_is_not_about_a_server() {
    let mut host = healthy();
    set(&mut host, "/processes/0/files/epolls/1/targets/0/file/other/ready", json!(true));
    let mut other = healthy()["processes"][0].clone();
    other["pid"] = json!(5_000);
    other["name"] = json!("nginx");
    other["files"]["epolls"] = json!([]);
    other["threads"] = json!([]);
    other["files"]["sockets"] = json!([{"fd": 26, "inode": 100}, {"fd": 3, "inode": 103}]);
    set(&mut host, "/processes/-", other);
    let found = of(&host, &Facts::default());
    let notes = |name: &str| found.iter().find(|server| server.name == name).map(|server| server.notes);
    assert!(notes("memcached") > notes("nginx"), "{found:#?}");
}

#[test]
fn a_proxy_whose_own_connections_mix_queues_is_not_measured_with_steering() {
    let mut proxy = mixing(true);
    assert_eq!(only(&proxy, &Facts::default()).next, NextStep::Measure { steered: true });
    set(&mut proxy, "/sockets/1/local", json!("10.0.0.1:40000"));
    let server = only(&proxy, &Facts::default());
    assert_eq!((server.next, server.modes), (NextStep::Measure { steered: false }, without_epolls()));
    assert!(matches!(server.queue_per_epoll, Some(QueuePerEpoll::Impossible { .. })), "{:?}", server.queue_per_epoll);
}

#[test]
fn workers_that_an_attached_program_has_started_since_are_meant_by_its_mode() {
    let now = snapshot(&healthy());
    let worker = now.processes[0].pid;
    let parent = Pid::new(4_000).unwrap();
    let origins = |of| BTreeMap::from([(worker, ProcessOrigin { parent: Some(of), place: None })]);
    let modes = |of| with_started_since(BTreeMap::from([(parent, attached("suspend200", true))]), &now, &origins(of));
    assert_eq!(modes(parent).get(&worker), Some(&attached("suspend200", true)));
    assert_eq!(modes(Pid::new(1).unwrap()).get(&worker), None);
}
