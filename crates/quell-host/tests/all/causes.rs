//! Each sentence that gives a cause or advice, with a snapshot that shows the cause, beside snapshots that show a
//! neighbour of it. A new cause needs a row here: `every_cause_has_a_row` counts them.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshots::{self, before, healthy, set, snapshot};
use quell_host::attach::AttachedMode;
use quell_host::attach::no_poll::{NoPollCause, no_poll_cause};
use quell_host::findings::{
    Finding, Fix, FixText, are_attached, are_placed, are_steered, examine, name_mode, stays_when_steered,
};
use quell_host::steer::{Baseline, pins};
use quell_linux::{NapiId, Pid};
use serde_json::{Value, json};

/// A row: the edits in the later snapshot, those in both, the cause and the advice.
struct Row {
    now: Vec<(&'static str, Value)>,
    both: Vec<(&'static str, Value)>,
    cause: &'static str,
    advice: Option<&'static str>,
}

fn row(
    now: Vec<(&'static str, Value)>,
    both: Vec<(&'static str, Value)>,
    cause: &'static str,
    advice: &'static str,
) -> Row {
    Row { now, both, cause, advice: (!advice.is_empty()).then_some(advice) }
}

const OBSERVE_IT: &str =
    "see the other findings of `quell doctor` about how it waits; a mode that only defers does not depend on it";

const OF_FIRST: &str = "an unconnected UDP socket receives from several queues, and polls only that of its first \
                        datagram (NAPI 8194)";
const ONE_PER_QUEUE: &str = "let the program open one UDP socket with SO_REUSEPORT per queue, and give `quell attach`, \
                             `bench` or `tune` --steer --steer-udp; or let it listen on the address of a device with one \
                             queue, or use userbusy, which polls all queues";

/// An unconnected UDP socket, whose first datagram came through another queue.
fn first(inode: u64, busy_poll_us: u32) -> Value {
    let mut socket = snapshots::udp(inode);
    (socket["napi"], socket["busy-poll-us"]) = (json!(8_194), json!(busy_poll_us));
    socket
}

/// The same in a reuseport group.
fn first_of_group(inode: u64) -> Value {
    let mut socket = first(inode, 50);
    socket["reuseport"] = json!(true);
    socket
}

const SOCKETS: [&str; 4] = ["/sockets/1/napi", "/sockets/2/napi", "/sockets/3/napi", "/sockets/4/napi"];

fn rows() -> Vec<Row> {
    let ready = "/processes/0/files/epolls/1/targets/0/file/other/ready";
    let wait = "/processes/0/threads/1/epoll-wait";
    let moved = || vec![("/sockets/1/napi", json!(8_194)), ("/sockets/2/napi", json!(8_194))];
    let mut socket = healthy()["sockets"][1].clone();
    socket["inode"] = json!(909);
    let accepting = healthy()["processes"][0]["files"]["epolls"][0].clone();
    let mut other = healthy()["processes"][0].clone();
    (other["pid"], other["name"], other["threads"]) = (json!(5_000), json!("resolver"), json!([]));
    other["files"] = json!({"epolls": [], "sockets": [{"fd": 4, "inode": 909}], "xdp-sockets": [], "io-urings": []});
    let others = || vec![("/sockets/-", socket.clone()), ("/processes/-", other.clone())];
    let outer = json!([{"fd": 5, "events": 1, "file": {"other": {"kind": "epoll", "ready": false}}}]);
    let in_outer = json!({"epoll-fd": 3, "max-events": 64, "timeout-ms": -1});
    vec![
        row(
            vec![],
            vec![],
            "the cause is unknown: epoll 5 of server 4242 watches 2 sockets of the queue, and 1 thread sleeps in it",
            "",
        ),
        row(vec![("/processes/0/pid", json!(4_243))], vec![], "the programs have no TCP or UDP socket", ""),
        row(
            vec![("/processes/0/files/epolls", json!([]))],
            vec![],
            "no epoll of the program watches a network socket, and only an epoll polls",
            "choose a mode that only defers, such as defer20, if a measurement finds that it pays",
        ),
        row(
            moved(),
            vec![],
            "the program's sockets receive from NAPI 8194 now",
            "set the mode again: `quell attach MODE 4242`",
        ),
        row(
            vec![("/sockets/1", first(101, 0)), ("/devices/0/napis/1/irq-suspend-timeout-ns", json!(0))],
            vec![],
            OF_FIRST,
            ONE_PER_QUEUE,
        ),
        row(
            vec![("/processes/0/files/epolls", json!([])), ("/sockets/1", first(101, 50))],
            vec![],
            OF_FIRST,
            ONE_PER_QUEUE,
        ),
        row(
            vec![
                ("/processes/0/files/epolls", json!([])),
                ("/sockets/1", first_of_group(101)),
                ("/sockets/-", first_of_group(910)),
            ],
            vec![],
            OF_FIRST,
            "give `quell attach`, `bench` or `tune` --steer --steer-udp, so that each socket of its SO_REUSEPORT group gets \
             one queue, or use userbusy, which polls all queues",
        ),
        row(
            vec![("/processes/0/files/epolls", json!([])), ("/sockets/1", first(101, 0))],
            vec![],
            "no epoll of the program watches a network socket, and only an epoll polls",
            "choose a mode that only defers, such as defer20, if a measurement finds that it pays",
        ),
        row(
            vec![],
            vec![("/processes/0/files/epolls", json!([accepting]))],
            "the epolls of the program watch listening sockets only; its connections are received without an epoll",
            "choose a mode that only defers, such as defer20, if a measurement finds that it pays",
        ),
        row([moved(), others()].concat(), vec![], "the program has no socket on this queue; resolver has", ""),
        row(
            SOCKETS.map(|napi| (napi, json!(null))).to_vec(),
            vec![],
            "no socket in an epoll of the programs has received from a queue: the packets may be those of others",
            "",
        ),
        row(
            others(),
            vec![],
            "the cause is unknown: epoll 5 of server 4242 watches 2 sockets of the queue, and 1 thread sleeps in it",
            "",
        ),
        row(
            vec![],
            vec![(ready, json!(true))],
            "ready-object-holds-suspension: file 6, an eventfd; ready in both snapshots",
            "let the program read it until EAGAIN, or watch it in another epoll; or use a mode without suspension, such as \
             defer20, if a measurement finds that it pays",
        ),
        row(
            vec![(ready, json!(true))],
            vec![],
            "the cause is unknown: epoll 5 of server 4242 watches 2 sockets of the queue, and 1 thread sleeps in it",
            "",
        ),
        row(
            vec![("/processes/0/files/epolls/1/params/prefer_busy_poll", json!(false))],
            vec![],
            "epoll 5 of server 4242 does not busy poll",
            "set the mode again: `quell attach MODE 4242`",
        ),
        row(
            vec![],
            vec![(wait, json!(null))],
            "no thread slept in epoll 5 of server 4242 when it was inspected, and only a thread that sleeps there polls",
            OBSERVE_IT,
        ),
        row(
            vec![],
            vec![(wait, in_outer), ("/processes/0/files/epolls/0/targets", outer)],
            "nobody slept in epoll 5 of server 4242, which has the connections; epoll 3 watches it",
            OBSERVE_IT,
        ),
        row(
            vec![("/sockets/1/napi", json!(8_194))],
            vec![],
            "epoll 5 of server 4242 has sockets on 2 queues and polls only that of the socket ready last",
            "give each worker a listening socket of its own (SO_REUSEPORT), then `quell attach MODE 4242 --steer --pin \
             --follow`; or compare modes without suspension: `quell bench --pid 4242 --modes \
             base,defer20,defer200,threaded`",
        ),
    ]
}

/// A host with a program that Quell does not know by name.
pub(crate) fn server() -> Value {
    let mut host = healthy();
    set(&mut host, "/processes/0/name", json!("server"));
    host
}

fn cause(row: &Row) -> NoPollCause {
    let (mut now, mut then) = (server(), before());
    row.both.iter().for_each(|(place, value)| set(&mut then, place, value.clone()));
    row.now.iter().chain(&row.both).for_each(|(place, value)| set(&mut now, place, value.clone()));
    let programs = BTreeSet::from([Pid::from_kernel(4_242).unwrap()]);
    no_poll_cause(&snapshot(&now), Some(&snapshot(&then)), &programs, NapiId::from_kernel(8_193).unwrap())
}

#[test]
fn each_cause_is_said_where_the_snapshot_shows_it_and_not_beside() {
    for row in rows() {
        let cause = cause(&row);
        let advice = cause.fix().map(|fix| fix.to_string());
        assert_eq!((cause.to_string().as_str(), advice.as_deref()), (row.cause, row.advice));
    }
}

/// A new variant does not compile until it has a number here, and then needs a row.
fn number(cause: &NoPollCause) -> usize {
    match cause {
        NoPollCause::NoEpoll => 0,
        NoPollCause::TrafficOfOthers { .. } => 1,
        NoPollCause::Moved { .. } => 2,
        NoPollCause::Found(_) => 3,
        NoPollCause::NotEnabled { .. } => 4,
        NoPollCause::WatchedByAnother { .. } => 5,
        NoPollCause::NobodySleeps { .. } => 6,
        NoPollCause::SeveralQueues { .. } => 7,
        NoPollCause::Unknown { .. } => 8,
        NoPollCause::ListenersOnly => 9,
        NoPollCause::OfFirstDatagram { .. } => 10,
        NoPollCause::NoSocket => 11,
        NoPollCause::NoConnection => 12,
    }
}

#[test]
fn every_cause_has_a_row() {
    let numbers: BTreeSet<usize> = rows().iter().map(|row| number(&cause(row))).collect();
    assert_eq!(numbers, (0..=12).collect());
}

#[test]
fn a_program_whose_files_are_hidden_has_no_known_cause() {
    let hidden = json!({"unknown": {"reason": "failed", "message": "needs CAP_SYS_PTRACE"}});
    let cause = cause(&row(vec![("/processes/0/files", hidden)], vec![], "", ""));
    assert_eq!(cause.to_string(), "the cause is unknown: the programs' files could not be read");
}

/// The advice of a rule, with these edits.
fn advice(rule: &str, edits: &[(&str, Value)]) -> Vec<String> {
    let mut now = server();
    edits.iter().for_each(|(place, value)| set(&mut now, place, value.clone()));
    let report = examine(&snapshot(&now), Some(&snapshot(&before())));
    let found = report.findings.into_iter().find(|finding| finding.id == rule);
    let fix = found.unwrap_or_else(|| panic!("{rule} is not found")).fix;
    fix.into_iter().filter_map(|fix| if let FixText::Advice(text) = fix.text() { Some(text) } else { None }).collect()
}

#[test]
fn steering_is_advised_only_to_a_program_with_a_listening_socket_per_worker() {
    let mixed = ("/sockets/1/napi", json!(8_194));
    let mut second = healthy()["sockets"][0].clone();
    second["inode"] = json!(99);
    let of =
        |more: &[(&str, Value)]| advice("epoll-mixes-napis", &[std::slice::from_ref(&mixed), more].concat()).concat();
    assert!(of(&[]).starts_with("give each worker a listening socket"), "{}", of(&[]));
    let grouped = of(&[("/sockets/-", second.clone())]);
    assert!(grouped.ends_with("`quell attach MODE 4242 --steer --pin --follow`"), "{grouped}");
    let mut parent = healthy()["processes"][0].clone();
    (parent["pid"], parent["start-time-ticks"], parent["files"]["epolls"]) = (json!(4_000), json!(1), json!([]));
    let of_worker = of(&[("/sockets/-", second.clone()), ("/processes/-", parent)]);
    assert!(
        of_worker.ends_with("`quell attach MODE 4000 --steer --pin --follow`"),
        "the parent opened the sockets: {of_worker}"
    );
    second["local"] = json!("0.0.0.0:9999");
    assert!(
        of(&[("/sockets/-", second)]).starts_with("give each worker a listening socket"),
        "another address is another group"
    );
    assert!(of(&[("/processes/0/name", json!("memcached"))]).contains("-N"));
}

#[test]
fn a_worker_that_cannot_be_pinned_is_advised_only_what_its_program_can_do() {
    let of = |edits: &[(&str, Value)]| {
        let mut now = server();
        set(&mut now, "/sockets/1/napi", json!(8_194));
        edits.iter().for_each(|(place, value)| set(&mut now, place, value.clone()));
        let decided = pins(&snapshot(&now), &[Pid::from_kernel(4_242).unwrap()], &Baseline::default());
        decided.not_pinned.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let memcached = of(&[("/processes/0/name", json!("memcached"))]);
    assert!(
        memcached.contains("2 NAPI instances: start memcached with") && !memcached.contains("--steer"),
        "{memcached}"
    );
    let mut second = healthy()["sockets"][0].clone();
    second["inode"] = json!(99);
    let grouped = of(&[("/sockets/-", second)]);
    assert!(grouped.contains("2 NAPI instances: add --steer"), "{grouped}");
    let alone = of(&[]);
    assert!(alone.contains("(SO_REUSEPORT), then add --steer"), "{alone}");
}

#[test]
fn connections_without_a_queue_can_be_due_to_transmit_queues_while_others_of_the_device_have_one() {
    let of = |sockets: &[&'static str]| {
        let mut edits = vec![("/devices/0/kind", json!("veth"))];
        edits.extend(sockets.iter().map(|socket| (*socket, json!(null))));
        advice("connections-without-napi", &edits).concat()
    };
    let first = ["/sockets/1/napi", "/sockets/2/napi"];
    let some = of(&first);
    assert!(some.contains("tso off gso off; if it sends by more queues than 2: ethtool -L PEER tx 2"), "{some}");
    let all = of(&[&first[..], &["/sockets/3/napi", "/sockets/4/napi"]].concat());
    assert!(all.contains("tso off") && !all.contains("ethtool -L"), "{all}");
}

#[test]
fn the_other_end_of_a_veth_is_named_where_the_snapshot_has_it() {
    let mut host = healthy();
    let napis = ["/sockets/1/napi", "/sockets/2/napi", "/sockets/3/napi", "/sockets/4/napi"];
    napis.iter().for_each(|napi| set(&mut host, napi, json!(null)));
    set(&mut host, "/devices/0/kind", json!("veth"));
    let ifindex = host["devices"][0]["ifindex"].clone();
    let fixes = |peers: &[(u64, &str)]| {
        let mut host = host.clone();
        set(&mut host, "/devices/0/lower", json!({"ifindex": 77, "is-in-other-namespace": true}));
        for (namespace, name) in peers {
            let mut peer = host["devices"][0].clone();
            (peer["namespace"], peer["name"], peer["ifindex"]) = (json!(namespace), json!(name), json!(77));
            peer["lower"] = json!({"ifindex": ifindex, "is-in-other-namespace": true});
            (peer["napis"], peer["rx-queues"]) = (json!([]), json!([]));
            host["devices"].as_array_mut().unwrap().push(peer);
        }
        let found = examine(&snapshot(&host), None).findings;
        let its = found.iter().find(|finding| finding.id == "connections-without-napi").unwrap();
        its.fix.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let named = fixes(&[(9, "lan7")]);
    assert!(named.contains("lan7 tso off") && !named.contains("PEER"), "{named}");
    let several = fixes(&[(9, "lan7"), (10, "lan8")]);
    assert!(several.contains("ethtool -K PEER tso off"), "two namespaces have a device with this index: {several}");
    assert!(fixes(&[]).contains("ethtool -K PEER tso off"));
}

#[test]
fn a_steered_udp_server_is_restarted_because_its_sockets_keep_their_first_queue() {
    let edits = vec![
        ("/processes/0/files/epolls", json!([])),
        ("/sockets/1", first_of_group(101)),
        ("/sockets/-", first_of_group(910)),
    ];
    let attached = AttachedMode { steers: true, ..AttachedMode::default() };
    let fix = cause(&row(edits, vec![], "", "")).if_attached(&attached).fix().map(|fix| fix.to_string());
    assert!(fix.is_some_and(|fix| fix.starts_with("restart the program") && !fix.contains("--steer")));
}

#[test]
fn connections_that_the_program_opened_are_said_to_stay_mixed() {
    let mixed = ("/sockets/1/napi", json!(8_194));
    let is_said = |advice: &[String]| advice.iter().any(|text| text.starts_with("the program opened 1 connection"));
    assert!(!is_said(&advice("epoll-mixes-napis", std::slice::from_ref(&mixed))));
    let opened = ("/sockets/1/local", json!("10.0.0.1:40000"));
    let only = advice("epoll-mixes-napis", &[mixed.clone(), opened.clone()]);
    assert!(is_said(&only) && only.len() == 1, "steering is no fix: {only:?}");

    let mut now = server();
    [mixed, opened].into_iter().for_each(|(place, value)| set(&mut now, place, value));
    let mut findings = examine(&snapshot(&now), None).findings;
    are_steered(&mut findings, &BTreeSet::from([Pid::from_kernel(4_242).unwrap()]));
    let finding = findings.iter().find(|finding| finding.id == "epoll-mixes-napis").unwrap();
    let texts: Vec<String> = finding.fix.iter().map(ToString::to_string).collect();
    assert!(is_said(&texts) && stays_when_steered(finding), "reconnecting clients do not change it: {texts:?}");
}

#[test]
fn placement_ends_findings_about_the_workers_of_the_placed_programs_only() {
    let mut now = server();
    set(&mut now, "/sockets/1/napi", json!(8_194));
    for thread in [1, 2] {
        set(&mut now, &format!("/processes/0/threads/{thread}/affinity"), json!("0-3"));
    }
    let left = |program, steered, pinned| {
        let mut findings = examine(&snapshot(&now), None).findings;
        are_placed(&mut findings, &BTreeSet::from([Pid::from_kernel(program).unwrap()]), steered, pinned);
        let has = |id| findings.iter().any(|finding| finding.id == id);
        [has("floating-worker"), has("napi-shared-by-workers")]
    };
    assert_eq!(left(4_242, false, false), [true, true]);
    assert_eq!(left(4_242, false, true), [false, true]);
    assert_eq!(left(4_242, true, false), [true, false]);
    assert_eq!(left(1, true, true), [true, true], "another program is placed");
}

#[test]
fn steering_is_not_advised_to_a_program_that_is_steered() {
    let listener = || {
        let mut listener = healthy()["sockets"][0].clone();
        listener["inode"] = json!(910);
        listener
    };
    let mut now = server();
    set(&mut now, "/sockets/1/napi", json!(8_194));
    set(&mut now, "/sockets/-", listener());
    let mut findings = examine(&snapshot(&now), None).findings;
    let advice = |findings: &[Finding]| {
        findings.iter().find(|finding| finding.id == "epoll-mixes-napis").unwrap().fix[0].to_string()
    };
    let before = advice(&findings);
    are_steered(&mut findings, &BTreeSet::from([Pid::from_kernel(1).unwrap()]));
    assert_eq!(advice(&findings), before, "another program is steered");
    let programs = BTreeSet::from([Pid::from_kernel(4_242).unwrap()]);
    are_steered(&mut findings, &programs);
    assert!(advice(&findings).starts_with("new connections are steered"), "{}", advice(&findings));

    let third = json!({"id": 2, "napi": {"to": 8_195, "source": "kernel"}});
    let mut queue = now["devices"][0]["rx-queues"][1].clone();
    (queue["id"], queue["napi"]) = (third["id"].clone(), third["napi"].clone());
    set(&mut now, "/devices/0/rx-queues/-", queue);
    let mut too_few = examine(&snapshot(&now), None).findings;
    are_steered(&mut too_few, &programs);
    assert!(advice(&too_few).starts_with("use 3 workers, one per queue (it has 2 "), "{}", advice(&too_few));

    let mixing = vec![("/sockets/1/napi", json!(8_194)), ("/sockets/-", listener())];
    let several = cause(&row(mixing, vec![], "", ""));
    let attached = |steers| AttachedMode { steers, ..attached(false) };
    let fix_if = |steers| several.clone().if_attached(&attached(steers)).fix().unwrap().to_string();
    assert!(fix_if(true).starts_with("new connections are steered"), "{}", fix_if(true));
    let again = fix_if(false);
    assert!(again.contains("`quell attach suspend200 4242 --steer --pin --follow --take-over --yes`"), "{again}");
    let other = cause(&row(vec![("/processes/0/files/epolls", json!([]))], vec![], "", ""));
    assert_eq!(other.clone().if_attached(&attached(true)), other);
}

#[test]
fn a_program_is_detached_before_it_is_attached_again() {
    let mut now = server();
    set(&mut now, "/processes/0/files/epolls/1/params/busy_poll_budget", json!(0));
    let mut findings = examine(&snapshot(&now), None).findings;
    let fix = |findings: &[Finding]| {
        findings.iter().find(|finding| finding.id == "small-busy-poll-budget").unwrap().fix[0].to_string()
    };
    let attach = fix(&findings);
    assert!(attach.starts_with("quell attach ") && attach.ends_with(" 4242"), "{attach}");
    let is_attached = |findings: &mut [Finding], pid, launched| {
        are_attached(findings, &BTreeMap::from([(Pid::from_kernel(pid).unwrap(), attached(launched))]));
    };
    is_attached(&mut findings, 1, false);
    assert_eq!(fix(&findings), attach, "another program is attached");
    let mut launched = findings.clone();
    is_attached(&mut findings, 4_242, false);
    assert_eq!(fix(&findings), format!("quell detach 4242 && {attach}"));
    is_attached(&mut launched, 4_242, true);
    assert!(fix(&launched).starts_with("start the program again: `quell run suspend"), "{}", fix(&launched));
}

fn attached(launched: bool) -> AttachedMode {
    AttachedMode { mode: "suspend200".parse().unwrap(), launched, ..AttachedMode::default() }
}

/// Advice how each worker of a program with this name gets one queue.
fn one_queue_each(name: &str, reuseport: bool, epolls: usize) -> (Vec<Finding>, String) {
    let mut now = server();
    set(&mut now, "/processes/0/name", json!(name));
    set(&mut now, "/sockets/1/napi", json!(8_194));
    for thread in [1, 2] {
        set(&mut now, &format!("/processes/0/threads/{thread}/affinity"), json!("0-3"));
    }
    if reuseport {
        let mut listener = now["sockets"][0].clone();
        listener["inode"] = json!(999);
        set(&mut now, "/sockets/-", listener);
    }
    if epolls == 1 {
        set(&mut now, "/processes/0/files/epolls/2/targets", json!([]));
    }
    let findings = examine(&snapshot(&now), None).findings;
    let mixed = findings.iter().find(|finding| finding.id == "epoll-mixes-napis").unwrap();
    let fix = mixed.fix[0].to_string();
    (findings, fix)
}

#[test]
fn the_fix_for_the_program_that_was_found_comes_first() {
    let fix = |name, reuseport, epolls| one_queue_each(name, reuseport, epolls).1;
    assert!(fix("nginx", false, 2).starts_with("add `reuseport` to its `listen`"));
    assert!(fix("haproxy", false, 2).starts_with("add `shards by-thread`"));
    assert!(fix("nginx", false, 1).starts_with("set `worker_processes 2` and add `reuseport`"));
    assert!(fix("memcached", false, 2).starts_with("start memcached with `-t 2 -N 2`"));
    assert!(fix("server", false, 2).starts_with("give each worker a listening socket of its own"));
    let redis = fix("redis-server", false, 1);
    assert!(redis.contains("one epoll for the connections of all queues") && !redis.contains("steer"), "{redis}");
    assert!(redis.ends_with("`quell bench --pid 4242 --modes base,defer20,defer200,threaded`"), "{redis}");
    let steered = fix("nginx", true, 2);
    assert!(steered.ends_with("`quell attach MODE 4242 --steer --pin --follow`"), "{steered}");
}

#[test]
fn the_advice_for_one_epoll_is_the_same_however_many_threads_sleep_in_it() {
    let fixes = |sleeping: usize| -> Vec<String> {
        let mut now = server();
        set(&mut now, "/sockets/1/napi", json!(8_194));
        set(&mut now, "/processes/0/files/epolls/2/targets", json!([]));
        let wait = now["processes"][0]["threads"][1]["epoll-wait"].clone();
        for thread in [1, 2] {
            let wait = if thread <= sleeping { wait.clone() } else { json!(null) };
            set(&mut now, &format!("/processes/0/threads/{thread}/epoll-wait"), wait);
        }
        let findings = examine(&snapshot(&now), None).findings.into_iter();
        let about = findings.filter(|one| ["epoll-mixes-napis", "epoll-shared-by-threads"].contains(&one.id));
        about.flat_map(|finding| finding.fix).map(|fix| fix.to_string()).collect()
    };
    let (both, one) = (fixes(2), fixes(1));
    assert_eq!((both.len(), one.len()), (2, 1), "{both:?}");
    assert!(both.iter().chain(&fixes(0)).all(|fix| *fix == one[0]), "{both:?}");
}

#[test]
fn a_mode_that_needs_a_cpu_per_queue_is_advised_only_if_there_is_one() {
    assert!(!one_queue_each("redis-server", false, 1).1.contains("userbusy"), "4 CPUs are for 2 queues and 3 threads");
}

#[test]
fn an_attached_program_is_not_advised_to_run_a_command_that_is_refused() {
    let (mut findings, _) = one_queue_each("nginx", true, 2);
    let mut planned = findings.clone();
    name_mode(&mut planned, &"defer20".parse().unwrap());
    let has = |text: &Fix| text.to_string().contains("`quell attach defer20 4242 --steer --pin --follow`");
    assert!(planned.iter().flat_map(|finding| &finding.fix).any(has), "{planned:#?}");
    are_attached(&mut findings, &BTreeMap::from([(Pid::from_kernel(4_242).unwrap(), attached(false))]));
    let advice: Vec<String> = findings.iter().flat_map(|finding| &finding.fix).map(ToString::to_string).collect();
    let again = "quell attach suspend200 4242 --steer --pin --follow --take-over --yes";
    assert!(advice.contains(&format!("pin it when it polls one queue: `{again}`")), "{advice:?}");
    assert!(
        advice.contains(&format!("sort new connections by queue (clients have to reconnect): `{again}`")),
        "{advice:?}"
    );
    assert!(!advice.iter().any(|text| text.contains("attach MODE")), "{advice:?}");
}

#[test]
fn a_suspend_timeout_is_advised_above_the_flush_timeout() {
    let of = |flush: u64, suspend: u64| {
        let napi = "/devices/0/napis/0/";
        let edits =
            [(format!("{napi}gro-flush-timeout-ns"), flush), (format!("{napi}irq-suspend-timeout-ns"), suspend)];
        let edits: Vec<(&str, Value)> = edits.iter().map(|(place, value)| (place.as_str(), json!(value))).collect();
        advice("suspend-timeout-too-short", &edits).concat()
    };
    assert!(of(20_000, 20_000).ends_with("such as 20 ms"), "{}", of(20_000, 20_000));
    let long = of(5_000_000_000, 20_000_000);
    assert!(long.contains("gro-flush-timeout") && !long.contains("such as 20 ms"), "{long}");
}
