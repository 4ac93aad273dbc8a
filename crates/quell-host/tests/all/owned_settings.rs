//! Fixes of findings about settings that Quell has set: they undo or correct the owner.

use crate::servers::{Facts, only};
use crate::snapshots::{Edit, edits, healthy, set, snapshot};
use std::path::PathBuf;

use quell_change::change::{
    Change, ChangeOutcome, DeviceId, Diff, Drift, HostSetting, NapiSettingsChange, PlannedChange, ThreadAffinity,
};
use quell_change::drift::Condition;
use quell_change::journal::record::{Begin, FORMAT, Record};
use quell_change::journal::{History, Keeper, Purpose, TargetProgram};
use quell_change::missing_queue::{MissingCause, MissingQueue};
use quell_host::attach::Attached;
use quell_host::attach::attached::OwnerCondition;
use quell_host::attach::owners::{CoveredValues, QueueSharers, covered_by, covered_values};
use quell_host::attach::payoff::DoesItPay;
use quell_host::findings::FixText;
use quell_host::findings::{Finding, Severity, add_missing_queues, are_owned, examine};
use quell_host::servers::NextStep;
use quell_linux::{Ifindex, NapiId, Pid};
use quell_mode::NapiAttribute;
use serde_json::{Value, json};

const NAPI: u32 = 8_193;

fn history(purpose: Purpose, changes: Vec<Change>) -> History {
    let pid = Pid::from_kernel(4_242).unwrap();
    let owner = Keeper { pid, start_time_ticks: 1 };
    let boot_id = healthy()["taken"]["boot-id"].as_str().unwrap().to_owned();
    let (format, version) = (FORMAT.to_owned(), String::new());
    let mut history = History::new(Begin { format, version, boot_id, owner, started_unix_s: 0, purpose });
    if history.begin.purpose.is_of_programs() {
        let start_time_ticks = healthy()["processes"][0]["start-time-ticks"].as_u64().unwrap();
        history.append(Record::Target(TargetProgram { pid, start_time_ticks, name: "server".to_owned() })).unwrap();
    }
    for (seq, change) in (0..).zip(changes) {
        history.append(Record::Intend { seq, change }).unwrap();
        history.append(Record::Done { seq, outcome: ChangeOutcome::Made }).unwrap();
    }
    history
}

fn profile(changes: Vec<Change>) -> History {
    let (name, netns) = ("a b.toml".to_owned(), Some("blue".to_owned()));
    history(Purpose::Profile { name, netns, content: 0 }, changes)
}

fn attached(mode: &str, change: Change) -> History {
    history(Purpose::Attachment { mode: mode.parse().unwrap() }, vec![change])
}

/// A change of the first queue from 0 to these values.
fn queue(values: &[(NapiAttribute, u64)], at: u64) -> Change {
    let zero = |(attribute, _): &(NapiAttribute, u64)| (*attribute, 0);
    Change::NapiSettings(NapiSettingsChange {
        namespace_cookie: 0,
        device: "eth0".to_owned(),
        ifindex: Ifindex::new(2).unwrap(),
        sysfs_inode: None,
        napi_id: NAPI,
        place: 0,
        rx_queue: Some(0),
        old: values.iter().map(zero).collect(),
        new: values.iter().copied().collect(),
        alternatives: Vec::new(),
        set_at_boot_ns: at,
        since_boot_ns: values.iter().map(|(attribute, _)| (*attribute, at)).collect(),
        in_plan: None,
    })
}

fn host_setting(setting: PlannedChange) -> Change {
    Change::HostSetting(HostSetting { namespace_cookie: 0, sysfs_inode: None, setting })
}

/// Fixes of the finding that the edit of a rule causes, on a host with these owners.
fn fixes(rule: &str, more: &[(&str, Value)], owners: &[&History]) -> Vec<String> {
    let mut host = healthy();
    let Edit { now, .. } = edits().into_iter().find(|edit| edit.rule == rule).unwrap();
    now.into_iter().for_each(|(place, value)| set(&mut host, place, value));
    more.iter().for_each(|(place, value)| set(&mut host, place, value.clone()));
    let host = snapshot(&host);
    let mut findings = examine(&host, Some(&snapshot(&crate::snapshots::before()))).findings;
    are_owned(&mut findings, &host, owners);
    let found = findings.iter().find(|finding| finding.id == rule).unwrap();
    found.fix.iter().map(ToString::to_string).collect()
}

const DEFER: NapiAttribute = NapiAttribute::DeferHardIrqs;
const FLUSH: NapiAttribute = NapiAttribute::GroFlushTimeout;
const SUSPEND: NapiAttribute = NapiAttribute::IrqSuspendTimeout;

/// Missing queues as findings, the first ones before all others: severity, observation, fixes.
fn missing(history: History, cause: MissingCause, command: Option<&str>) -> Vec<(Severity, String, Vec<String>)> {
    let host = snapshot(&healthy());
    let owner = Attached { path: PathBuf::new(), history, keeper: None, is_locked: true };
    let device = "eth0".to_owned();
    let why = MissingQueue { cause, device: device.clone(), command: command.map(str::to_owned) };
    let (setting, made) = ("napi".to_owned(), "defer-hard-irqs 100".to_owned());
    let of = |queue| Drift {
        device: Some(device.clone()),
        queue: Some(queue),
        setting: setting.clone(),
        made: made.clone(),
        now: None,
        missing: Some(why.clone()),
    };
    let condition = Condition { drifted: vec![of(0), of(1)], ..Condition::default() };
    let owners = [OwnerCondition { owner: &owner, condition }];
    let Edit { now, .. } = edits().into_iter().find(|edit| edit.rule == "nested-epoll").unwrap();
    let mut later = healthy();
    now.into_iter().for_each(|(place, value)| set(&mut later, place, value));
    let mut findings = examine(&snapshot(&later), None).findings;
    add_missing_queues(&mut findings, &host, &owners);
    assert!(findings.iter().any(|finding| finding.id != "missing-queue"));
    let (first, others) = findings.split_first().unwrap();
    assert!(first.id == "missing-queue" && others.iter().all(|other| other.id != first.id), "{findings:#?}");
    findings.truncate(1);
    let in_words = |one: Finding| (one.severity, one.observed, one.fix.iter().map(ToString::to_string).collect());
    findings.into_iter().map(in_words).collect()
}

#[test]
fn a_missing_queue_of_an_owner_comes_first_with_the_commands_that_repair_it() {
    let up = "ip link set eth0 up";
    let suspending = || attached("suspend20", queue(&[(SUSPEND, 20_000_000)], 5));
    let [(severity, observed, fix)] = &missing(suspending(), MissingCause::LinkDown, Some(up))[..] else { panic!() };
    assert_eq!((*severity, &**observed), (Severity::Serious, "the link eth0 is down: rx 0-1 of attach suspend20"));
    let again = "then set the mode again: `quell detach 4242 && quell attach suspend20 4242`";
    assert_eq!(*fix, [up, again]);
    let mut followed = suspending();
    let keeper = followed.begin.owner;
    followed.append(Record::MaintainedByFollower(keeper)).unwrap();
    assert_eq!(missing(followed, MissingCause::LinkDown, Some(up))[0].2, [up], "the follower sets it again");
    let fewer = MissingCause::FewerQueues { queues: 1 };
    let more = "ethtool -L eth0 combined 2";
    let (severity, _, fix) = missing(profile(vec![queue(&[(SUSPEND, 20_000_000)], 5)]), fewer, Some(more)).remove(0);
    assert_eq!((severity, fix), (Severity::Warning, vec![more.to_owned(), "quell apply --reassert".to_owned()]));
    assert_eq!(missing(suspending(), MissingCause::Unknown, None)[0].2, [again]);
}

#[test]
fn lost_settings_are_set_again_after_connections_are_sorted_and_queues_are_back() {
    let mut host = healthy();
    let with = |drifted| Facts {
        attached: vec![(4242, crate::servers::attached("suspend20", false))],
        drifted,
        ..Facts::default()
    };
    let lost = only(&host, &with(true));
    assert_eq!((lost.next, lost.payoff.map(|it| it.pays)), (NextStep::Check, Some(DoesItPay::Drifted)), "no polls");
    set(&mut host, "/sockets/1/napi", json!(8194));
    assert_eq!(only(&host, &with(false)).next, NextStep::Fix { finding: "epoll-mixes-napis" });
    let refused = only(&host, &with(true)).payoff.map(|it| it.pays);
    assert!(matches!(refused, Some(DoesItPay::LeavesQueuesUnpolled { .. })), "the mode would be refused: {refused:?}");
    set(&mut host, "/devices/0/is-up", json!(false));
    for facts in [with(true), with(false), Facts::default()] {
        let down = only(&host, &facts);
        assert_eq!(down.next, NextStep::Fix { finding: "missing-queue" });
        assert_eq!(down.fix, Some(FixText::Command("ip link set eth0 up".to_owned())));
    }
}

#[test]
fn a_value_of_a_profile_is_changed_in_the_profile_and_not_beside_it() {
    let suspending = profile(vec![queue(&[(SUSPEND, 20_000_000)], 5)]);
    let [attach, correct] = &fixes("no-epoll-prefers", &[], &[&suspending])[..] else { panic!("two fixes") };
    assert_eq!(attach, "quell attach suspend20 4242");
    assert_eq!(
        correct,
        "profile a b.toml sets it: correct it there (irq-suspend-timeout 0 ns), then `quell revert 'a b.toml' && \
         quell apply --netns blue 'a b.toml'`; `quell revert 'a b.toml'` undoes the profile"
    );
}

#[test]
fn a_missing_value_is_added_by_the_owner_of_the_others() {
    let suspending = profile(vec![queue(&[(SUSPEND, 20_000_000)], 5)]);
    let fix = fixes("suspension-without-deferral", &[], &[&suspending]).concat();
    assert!(fix.starts_with("profile a b.toml sets it: correct it there (defer-hard-irqs 100)"), "{fix}");
    let deferring = profile(vec![queue(&[(DEFER, 100)], 5)]);
    let both = fixes("deferral-incomplete", &[], &[&deferring]);
    assert_eq!(both.len(), 1, "{both:?}");
}

#[test]
fn a_value_that_another_program_has_set_since_or_before_is_not_the_owners() {
    let others = [
        profile(vec![queue(&[(DEFER, 100), (FLUSH, 20_000)], 5)]),
        profile(vec![queue(&[(SUSPEND, 30_000_000)], 5)]),
        attached("suspend20", Change::ThreadAffinity(pinned("3"))),
        { History { begin: Begin { boot_id: "b".to_owned(), ..suspending().begin }, ..suspending() } },
    ];
    for owner in others {
        let fix = fixes("no-epoll-prefers", &[], &[&owner]);
        assert!(fix[1].starts_with("or, to end suspension: `ynl "), "{fix:?}");
    }
}

#[test]
fn a_queue_with_a_new_instance_has_the_same_owner() {
    let Change::NapiSettings(change) = queue(&[(SUSPEND, 20_000_000)], 5) else { unreachable!() };
    let namespace_cookie = healthy()["namespaces"][0]["cookie"].as_u64().unwrap();
    let of = |rx_queue| {
        let replaced = NapiSettingsChange { napi_id: 7, namespace_cookie, rx_queue, ..change.clone() };
        fixes("no-epoll-prefers", &[], &[&profile(vec![Change::NapiSettings(replaced)])]).pop().unwrap()
    };
    assert!(of(Some(0)).starts_with("profile "), "{}", of(Some(0)));
    assert!(of(Some(1)).contains("`ynl "), "{}", of(Some(1)));
}

fn suspending() -> History {
    profile(vec![queue(&[(SUSPEND, 20_000_000)], 5)])
}

fn pinned(cpus: &str) -> ThreadAffinity {
    let tid = Pid::from_kernel(4_243).unwrap();
    ThreadAffinity {
        pid: tid,
        tid,
        thread_start_time_ticks: 1,
        old: "0-3".parse().unwrap(),
        new: cpus.parse().unwrap(),
    }
}

#[test]
fn the_newest_owner_is_undone_or_corrected() {
    let attached = attached("suspend20", queue(&[(DEFER, 100), (FLUSH, 20_000), (SUSPEND, 20_000_000)], 9));
    let fix = |owners: &[&History]| fixes("no-epoll-prefers", &[], owners).pop().unwrap();
    let corrected = "attach suspend20 sets it: `quell detach 4242 && quell attach defer20 4242`";
    assert_eq!(fix(&[&suspending(), &attached]), corrected);
    assert_eq!(fix(&[&attached, &suspending()]), corrected);
    let newer = profile(vec![queue(&[(SUSPEND, 20_000_000)], 10)]);
    let text = fix(&[&attached, &newer]);
    assert!(text.starts_with("profile ") && text.ends_with("undoes the profile"), "{text}");
}

#[test]
fn modes_of_commands_that_run_end_with_them() {
    let of = |purpose| {
        let owner = history(purpose, vec![queue(&[(SUSPEND, 20_000_000)], 5)]);
        fixes("no-epoll-prefers", &[], &[&owner]).pop().unwrap()
    };
    let launched = of(Purpose::Launch { mode: "suspend20".parse().unwrap() });
    assert_eq!(launched, "run suspend20 sets it; start the program again: `quell run defer20 -- COMMAND`");
    assert_eq!(of(Purpose::Experiment), "`quell bench` sets it, and restores it when it ends");
    assert_eq!(of(Purpose::Search), "`quell tune` sets it, and restores it when it ends");
    assert!(of(Purpose::Lab).contains("`ynl "));
}

#[test]
fn a_mode_without_the_wanted_value_is_detached() {
    let owner = attached("userbusy", queue(&[(SUSPEND, 20_000_000)], 5));
    assert_eq!(fixes("no-epoll-prefers", &[], &[&owner])[1], "attach userbusy sets it: `quell detach 4242`");
}

#[test]
fn host_settings_of_a_profile_are_changed_in_the_profile() {
    let host = snapshot(&healthy());
    let device =
        DeviceId { namespace: host.devices[0].namespace, ifindex: host.devices[0].ifindex, name: String::new() };
    let diff = |old: &str, new: &str| Diff { old: Some(old.parse().unwrap()), new: Some(new.parse().unwrap()) };
    let rps = PlannedChange::RpsCpus { device: device.clone(), queue: 0, cpus: diff("", "2") };
    let gro = |new: bool| {
        let (device, name) = (device.clone(), "rx-gro".to_owned());
        PlannedChange::Feature { device, name, on: Diff { old: Some(!new), new: Some(new) } }
    };
    let sysctl = |new: &str| {
        let value = Diff { old: Some("0".to_owned()), new: Some(new.to_owned()) };
        PlannedChange::Sysctl { name: "net.core.busy_read".to_owned(), value }
    };
    let wanted = |rule, setting| {
        let fix = fixes(rule, &[], &[&profile(vec![host_setting(setting)])]).concat();
        let words = fix.strip_prefix("profile a b.toml sets it: correct it there (")?.split(')').next()?;
        Some(words.to_owned())
    };
    assert_eq!(wanted("rps-on-polled-queue", rps).as_deref(), Some("rps_cpus none"));
    assert_eq!(wanted("gro-off", gro(false)).as_deref(), Some("rx-gro on"));
    assert_eq!(wanted("gro-off", gro(true)), None, "another program has set it since");
    assert_eq!(wanted("system-wide-busy-poll", sysctl("50")).as_deref(), Some("net.core.busy_read 0"));
    assert_eq!(wanted("system-wide-busy-poll", sysctl("20")), None);
}

/// An attachment of a program with this PID.
pub(crate) fn of_program(pid: i32, mode: &str, values: &[(NapiAttribute, u64)], at: u64) -> Attached {
    let mut history = attached(mode, queue(values, at));
    history.targets =
        vec![TargetProgram { pid: Pid::new(pid).unwrap(), start_time_ticks: 1, name: "server".to_owned() }];
    Attached { path: format!("attach-{pid}").into(), history, keeper: None, is_locked: false }
}

#[test]
fn attachments_of_other_programs_share_a_queue_and_those_of_one_mode_can_be_measured_together() {
    let deferral = [(NapiAttribute::GroFlushTimeout, 20_000)];
    let [one, same, other] = [(7, "suspend20"), (8, "suspend20"), (9, "defer20")]
        .map(|(pid, mode)| of_program(pid, mode, &deferral, pid.unsigned_abs().into()));
    let pids = |pids: &[i32]| pids.iter().map(|pid| Pid::new(*pid).unwrap()).collect::<Vec<_>>();
    let of = |attached: &[&Attached]| {
        let attached: Vec<Attached> = attached.iter().map(|one| (*one).clone()).collect();
        QueueSharers::of_attached(&one, &attached, |_| None)
    };
    assert_eq!(of(&[&one]), None);
    assert_eq!(
        of(&[&one, &same]),
        Some(QueueSharers { programs: pids(&[8]), same_mode: true, launched: false, in_force: None })
    );
    assert_eq!(
        of(&[&one, &same, &other]),
        Some(QueueSharers { programs: pids(&[8, 9]), same_mode: false, launched: false, in_force: None })
    );
    let mut launched = same.clone();
    launched.history.begin.purpose = Purpose::Launch { mode: "suspend20".parse().unwrap() };
    assert_eq!(
        of(&[&one, &launched]),
        Some(QueueSharers { programs: pids(&[8]), same_mode: false, launched: true, in_force: None })
    );
    let of_server = |napi: u32| {
        let napis = [NapiId::from_kernel(napi).unwrap()].into();
        QueueSharers::of(&[Pid::new(6).unwrap()].into(), &napis, &[one.clone(), same.clone()], |_| None)
    };
    let of_both = of_server(NAPI).unwrap();
    assert_eq!((of_both.programs, of_both.same_mode), (pids(&[7, 8]), true), "it is not attached itself");
    assert!(of_both.in_force.is_some_and(|it| it.mode.to_string() == "suspend20"), "the newest one delays its packets");
    assert_eq!(of_server(NAPI + 1), None);
    let newer = of_program(8, "suspend200", &[(NapiAttribute::GroFlushTimeout, 200_000)], 9);
    let in_force = of(&[&one, &newer]).and_then(|sharers| sharers.in_force);
    assert_eq!(in_force.map(|it| (it.mode.to_string(), it.program.pid.get())), Some(("suspend200".to_owned(), 8)));
}

#[test]
fn the_values_of_an_older_owner_that_a_newer_one_has_changed_have_its_name() {
    use NapiAttribute::{DeferHardIrqs, GroFlushTimeout};
    let older = of_program(7, "suspend20", &[(DeferHardIrqs, 100), (GroFlushTimeout, 20_000)], 1);
    let newer = of_program(8, "suspend200", &[(DeferHardIrqs, 100), (GroFlushTimeout, 200_000)], 2);
    let owners = [older.clone(), newer.clone()];
    let covered = |one: &Attached| {
        let (_, entry) = one.history.pending().next().unwrap();
        let Change::NapiSettings(change) = &entry.change else { panic!("{entry:?}") };
        covered_values(change, &one.path, &owners)
    };
    let now = [(GroFlushTimeout, 200_000)].into_iter().collect();
    let owner = newer.purpose().clone();
    assert_eq!(covered(&older), Some(CoveredValues { now, owner, programs: newer.history.targets.clone() }));
    assert_eq!(covered(&newer), None);
}

#[test]
fn a_plan_covers_the_owners_of_its_queues_that_have_other_values() {
    use NapiAttribute::{DeferHardIrqs, GroFlushTimeout};
    let older = of_program(7, "suspend20", &[(DeferHardIrqs, 100), (GroFlushTimeout, 20_000)], 1);
    let covered = |timer_ns: u64, napi: u32, program: i32| -> Vec<i32> {
        let new = [(DeferHardIrqs, 100), (GroFlushTimeout, timer_ns)].into_iter().collect();
        let planned = [(NapiId::from_kernel(napi).unwrap(), new)];
        let covered = covered_by(&planned, &[Pid::new(program).unwrap()].into(), std::slice::from_ref(&older));
        covered.iter().flat_map(|one| one.programs.iter().map(|program| program.pid.get())).collect()
    };
    assert_eq!(covered(200_000, NAPI, 8), [7]);
    assert_eq!(covered(20_000, NAPI, 8), [0; 0], "equal values remain in force");
    assert_eq!(covered(200_000, NAPI + 1, 8), [0; 0], "another queue");
    assert_eq!(covered(200_000, NAPI, 7), [0; 0], "its own, which it replaces");
}
