//! What stored measurements say about a mode that programs have, or are about to get.

use std::collections::{BTreeMap, BTreeSet};

use quell_host::attach::AttachedMode;
use quell_host::attach::own_work::OwnWork;
use quell_host::attach::payoff::{DoesItPay, ModePayoff};
use quell_host::servers::{
    EarlierAnswer, EarlierAnswers, EarlierVerdict, JudgedMode, NextStep, OpenQuestion, OwnLoad, measured_step,
};
use quell_mode::{DeliveryMode, NapiAttribute};
use serde_json::{Value, json};

use crate::owned_settings::of_program;
use crate::servers::{Facts, answer, attached, only, pid, plain};
use crate::snapshots::{healthy, set, snapshot};

#[test]
fn a_mode_that_is_set_or_planned_has_the_answer_that_the_overview_has() {
    let mode = |word: &str| word.parse().unwrap();
    let measured = |answer: EarlierAnswer| {
        let now = snapshot(&plain());
        (BTreeMap::from([((pid(4242), now.processes[0].name.clone()), vec![answer])]), now)
    };
    let step = |(measured, now): &(EarlierAnswers, _), word: &str, packets_per_s| {
        let attached = AttachedMode { mode: mode(word), ..AttachedMode::default() };
        let judged = JudgedMode { packets_per_s, ..JudgedMode::planned(attached) };
        measured_step(now, &BTreeSet::from([pid(4242)]), measured, &judged)
    };
    let (kept, better) = (measured(answer(None)), measured(answer(Some("suspend200"))));
    let worse = step(&kept, "suspend200", Some(90_000)).unwrap();
    assert!(matches!(worse.next, NextStep::Return { mode: base, .. } if base == mode("base")), "{worse:?}");
    assert!(worse.was_compared);
    assert_eq!(step(&kept, "suspend200", Some(9_000)), None, "another load");
    assert_eq!(step(&kept, "suspend50", Some(90_000)), None, "it was not compared");
    let best = step(&better, "suspend200", Some(90_000)).unwrap();
    assert!(matches!(best.next, NextStep::Keep { open: None, .. }), "{best:?}");
    let other = step(&better, "defer20", None).unwrap();
    assert!(matches!(other.next, NextStep::Attach { .. }) && !other.was_compared, "{other:?}");
    let others = EarlierAnswer { reference: mode("threaded"), compared: Vec::new(), ..answer(Some("suspend50")) };
    assert_eq!(step(&measured(others), "suspend200", Some(90_000)), None, "other settings");
}

#[test]
fn a_newer_answer_that_leaves_something_open_does_not_hide_a_complete_one() {
    let now = snapshot(&plain());
    let open = Some(OpenQuestion { advice: "measure longer".to_owned(), command: "quell tune".to_owned() });
    let answers = vec![EarlierAnswer { open, ..answer(None) }, answer(None)];
    let measured = BTreeMap::from([((pid(4242), now.processes[0].name.clone()), answers)]);
    let attached = AttachedMode { mode: "suspend200".parse().unwrap(), ..AttachedMode::default() };
    let judged = JudgedMode { packets_per_s: Some(90_000), ..JudgedMode::planned(attached) };
    let step = measured_step(&now, &BTreeSet::from([pid(4242)]), &measured, &judged);
    assert!(matches!(step.map(|step| step.next), Some(NextStep::Return { .. })));
}

#[test]
fn lost_settings_are_set_again_unless_a_measurement_found_the_mode_worse() {
    let now = snapshot(&plain());
    let step = |answer: EarlierAnswer, payoff: &ModePayoff| {
        let measured = BTreeMap::from([((pid(4242), now.processes[0].name.clone()), vec![answer])]);
        let attached = AttachedMode { mode: payoff.mode, ..AttachedMode::default() };
        let judged = JudgedMode { packets_per_s: Some(90_000), payoff: Some(payoff), ..JudgedMode::planned(attached) };
        measured_step(&now, &BTreeSet::from([pid(4242)]), &measured, &judged).map(|step| step.next)
    };
    let lost = ModePayoff::of("suspend200".parse().unwrap(), &[], None, None).drifted(true);
    assert!(matches!(step(answer(None), &lost), Some(NextStep::Return { .. })));
    assert_eq!(step(answer(Some("suspend200")), &lost), None, "it is set again");
    let in_force = ModePayoff { pays: DoesItPay::MeasureToKnow, ..lost };
    assert!(matches!(step(answer(None), &in_force), Some(NextStep::Return { .. })));
    let open = Some(OpenQuestion { advice: "measure longer".to_owned(), command: "quell bench".to_owned() });
    let open_beside = |worse| step(EarlierAnswer { open: open.clone(), worse, ..answer(None) }, &in_force);
    assert_eq!(open_beside(Vec::new()), None, "it decides nothing about the mode");
    assert!(matches!(open_beside(vec![in_force.mode]), Some(NextStep::Return { .. })), "another mode is open");
    let verdict = || EarlierVerdict::Undecided {
        advice: "measure longer".to_owned(),
        command: "quell bench".to_owned(),
        unsteered: false,
    };
    let undecided = |worse| step(EarlierAnswer { verdict: verdict(), worse, ..answer(None) }, &in_force);
    assert!(matches!(undecided(Vec::new()), Some(NextStep::Decide { .. })));
    assert!(matches!(undecided(vec![in_force.mode]), Some(NextStep::Return { beneath: true, .. })));
    let of_others = EarlierAnswer { verdict: verdict(), compared: vec![DeliveryMode::default()], ..answer(None) };
    assert_eq!(step(of_others, &in_force), None, "it says nothing about this mode");
    let waits = ModePayoff {
        mode: "defer5000".parse().unwrap(),
        pays: DoesItPay::CannotTell,
        wait_p99_ns: Some(5_200_000),
        ..in_force.clone()
    };
    let beside = |compared| step(EarlierAnswer { verdict: verdict(), compared, ..answer(None) }, &waits);
    assert_eq!(beside(vec![waits.mode]), None, "the counters show that it delays packets");
    let near = ModePayoff { pays: DoesItPay::NearBreakEven, ..in_force.clone() };
    let near = step(EarlierAnswer { verdict: verdict(), ..answer(None) }, &near);
    assert!(matches!(near, Some(NextStep::Decide { .. })), "as a little above break-even: {near:?}");
}

#[test]
fn an_attached_mode_that_the_goal_of_a_search_chose_is_kept_although_it_costs_otherwise() {
    let now = snapshot(&plain());
    let mode: DeliveryMode = "suspend200".parse().unwrap();
    let costs = ModePayoff::of(mode, &[], None, None);
    let costs = ModePayoff { pays: DoesItPay::NothingToGain(OwnWork { cpu_ns_per_packet: 1 }), ..costs };
    let step = |answers: Vec<EarlierAnswer>| {
        let measured = BTreeMap::from([((pid(4242), now.processes[0].name.clone()), answers)]);
        let attached = AttachedMode { mode, ..AttachedMode::default() };
        let judged = JudgedMode { packets_per_s: Some(90_000), payoff: Some(&costs), ..JudgedMode::planned(attached) };
        measured_step(&now, &BTreeSet::from([pid(4242)]), &measured, &judged).map(|step| step.next)
    };
    let (advice, command) = ("if nothing but this goal counts".to_owned(), "quell attach".to_owned());
    let verdict = EarlierVerdict::Undecided { advice, command, unsteered: false };
    let for_goal = || EarlierAnswer { verdict: verdict.clone(), for_goal: Some(mode), ..answer(None) };
    let unaware = EarlierAnswer { compared: vec![DeliveryMode::default()], ..answer(None) };
    assert!(matches!(step(vec![unaware, for_goal()]), Some(NextStep::Keep { open: None, .. })));
    assert!(matches!(step(vec![answer(None), for_goal()]), Some(NextStep::Return { .. })), "a newer one knows it");
}

#[test]
fn a_server_without_clients_keeps_the_answer_of_a_judge_that_was_its_only_client() {
    let mut idle = healthy();
    for socket in 1..5 {
        set(&mut idle, &format!("/sockets/{socket}/napi"), json!(null));
        set(&mut idle, &format!("/sockets/{socket}/remote"), json!("127.0.0.1:40000"));
    }
    let mut judged = answer(None);
    judged.measured.own_load = Some(OwnLoad::Judge);
    let server = only(&idle, &Facts { measured: vec![judged], ..Facts::default() });
    assert!(matches!(server.next, NextStep::Keep { .. }), "{:?}", server.next);
}

#[test]
fn an_answer_counts_while_the_settings_without_an_attachment_are_those_that_it_was_measured_with() {
    let mode = |word: &str| word.parse().unwrap();
    let measured = |reference: &str, better: Option<&str>| {
        let (answer, reference) = (answer(better), mode(reference));
        let verdict = if better.is_some() { answer.verdict.clone() } else { EarlierVerdict::Keep(reference) };
        vec![EarlierAnswer { verdict, reference, compared: vec![reference], ..answer }]
    };
    let next = |host: &Value, measured| only(host, &Facts { measured, ..Facts::default() }).next;
    let mut threaded = plain();
    for napi in [0, 1] {
        set(&mut threaded, &format!("/devices/0/napis/{napi}/threading"), json!("enabled"));
    }
    let changed = next(&threaded, measured("base", None));
    let NextStep::SettingsChanged { then, now: Some(now), steered: false, .. } = &changed else {
        panic!("{changed:?}")
    };
    assert_eq!((*then, *now), (mode("base"), mode("threaded")));
    assert!(matches!(next(&threaded, measured("threaded", None)), NextStep::Keep { .. }));
    assert!(matches!(next(&plain(), measured("threaded", Some("suspend20"))), NextStep::SettingsChanged { .. }));
    let unmeasured = next(&healthy(), measured("base", None));
    assert!(matches!(unmeasured, NextStep::SettingsChanged { .. }), "a setting that was not compared is not kept");
    let both = [measured("threaded", Some("suspend20")), measured("base", None)].concat();
    assert!(matches!(next(&plain(), both), NextStep::Keep { .. }), "the older one was measured with these settings");
    let mut differ = plain();
    set(&mut differ, "/devices/0/napis/0/threading", json!("enabled"));
    assert!(matches!(next(&differ, measured("base", None)), NextStep::SettingsChanged { now: None, .. }));
    let on_attached = |below| {
        let facts = Facts {
            attached: vec![(4242, attached("suspend20", false))],
            measured: measured("base", Some("suspend20")),
            below,
            ..Facts::default()
        };
        only(&healthy(), &facts).next
    };
    assert!(matches!(on_attached(Some("base")), NextStep::Keep { .. }));
    assert!(matches!(on_attached(None), NextStep::Keep { .. }), "unknown");
    assert_eq!(on_attached(Some("threaded")), NextStep::Check);
}

#[test]
fn beside_an_attached_program_an_answer_counts_that_was_measured_without_that_attachment() {
    let mut host = plain();
    let values = [("defer-hard-irqs", 100), ("gro-flush-timeout-ns", 200_000)];
    for (napi, (setting, value)) in [0, 1].into_iter().flat_map(|napi| values.map(|value| (napi, value))) {
        set(&mut host, &format!("/devices/0/napis/{napi}/{setting}"), json!(value));
    }
    let next = |owners| {
        only(&host, &Facts { measured: vec![answer(None)], below: Some("base"), owners, ..Facts::default() }).next
    };
    let neighbour = of_program(7, "defer200", &[(NapiAttribute::GroFlushTimeout, 200_000)], 3);
    assert!(matches!(next(Vec::new()), NextStep::SettingsChanged { .. }));
    let beside = next(vec![neighbour]);
    assert!(matches!(beside, NextStep::Keep { .. }), "{beside:?}");
}

#[test]
fn base_leaves_napi_threads_that_were_kept_but_no_other_mode() {
    let kept = |word: &str| {
        let verdict = EarlierVerdict::Keep(word.parse().unwrap());
        let measured = vec![EarlierAnswer { verdict, ..answer(None) }];
        only(&healthy(), &Facts { attached: vec![(4242, attached("base", true))], measured, ..Facts::default() }).next
    };
    assert!(matches!(kept("threaded"), NextStep::Keep { .. }));
    let back = kept("suspend200");
    assert!(matches!(&back, NextStep::Return { mode, .. } if mode.to_string() == "suspend200"), "{back:?}");
}

#[test]
fn a_newer_measurement_at_the_same_load_refutes_the_mode_that_an_older_one_found_better() {
    let at = |packets_per_s, better| {
        let mut answer = answer(better);
        answer.measured.packets_per_s = Some(packets_per_s);
        answer
    };
    let next = |measured| only(&plain(), &Facts { measured, packets_per_s: Some(2_490), ..Facts::default() }).next;
    let older = || at(4_974, Some("suspend200"));
    assert!(matches!(next(vec![older()]), NextStep::Attach { .. }));
    // The present load is near that of the older one only.
    assert!(matches!(next(vec![at(5_007, None), older()]), NextStep::MeasureAgain { .. }));
    assert!(matches!(next(vec![at(40_000, None), older()]), NextStep::Attach { .. }), "at another load");
    let other = EarlierAnswer { compared: Vec::new(), reference: "base".parse().unwrap(), ..at(5_007, None) };
    assert!(matches!(next(vec![other, older()]), NextStep::Attach { .. }), "it did not compare that mode");
}
