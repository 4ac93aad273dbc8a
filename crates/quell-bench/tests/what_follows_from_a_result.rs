//! Table and findings of synthetic results: counted trials, absent values, significance.

use std::collections::BTreeMap;

use quell_bench::cpus::CpuLayout;
use quell_bench::metric::Metric;
use quell_bench::offered_load::OfferedLoad;
use quell_bench::plan::{Plan, TrialId};
use quell_bench::result::{
    BenchResult, CpuUse, Disturbance, HostFacts, Lab, LabFacts, SCHEMA, ServerFacts, SettingsReadBack, Trial,
    TrialCounters,
};
use quell_bench::table::{Finding, Question, Scope};
use quell_load::{LoadReport, LoadSpec, RequestResponse, Transport, Workload};
use quell_mode::NapiSettings;
use quell_stats::Verdict;

/// Behaviour of a mode in one repeat: median latency in µs, CPU per request in µs, requests per second.
type Behaviour = fn(mode: &str, repeat: u32) -> (u64, f64, f64);

const HALF: Scope = Scope::Load(OfferedLoad::Percent(50.0));

fn trial(id: TrialId, attempt: u32, (p50_us, cpu_us, qps): (u64, f64, f64)) -> Trial {
    let mut load = LoadReport { answered_in_window: 1_000, qps, duration_ns: 1_000_000_000, ..LoadReport::default() };
    load.latency.record_n(p50_us * 1_000, 1_000);
    let run_ns = (cpu_us * 1e6) as u64;
    Trial {
        id,
        attempt,
        began_ms: 0,
        settings: SettingsReadBack { napi: vec![], epoll: vec![] },
        offered_per_s: None,
        load,
        counters: TrialCounters { server_run_ns: Some(run_ns), napi_run_ns: Some(0), ..TrialCounters::default() },
        disturbances: vec![],
    }
}

fn result(loads: &[&str], behaviour: Behaviour) -> BenchResult {
    let modes = ["base", "defer200", "fullbusy"].map(|mode| mode.parse().expect("a mode")).to_vec();
    let loads: Vec<OfferedLoad> = loads.iter().map(|load| load.parse().expect("a load")).collect();
    let plan = Plan::new(modes, loads, 3, 1).expect("a plan");
    let behave = |id: TrialId| trial(id, 0, behaviour(&plan.modes[id.mode].label, id.repeat));
    let trials = plan.order().into_iter().map(behave).collect();
    let sizes = RequestResponse { request_bytes: 1, response_bytes: 1, check_content: false };
    BenchResult {
        schema: SCHEMA.into(),
        quell_version: "0".into(),
        began_unix_s: 0,
        host: HostFacts {
            kernel_release: "6.18".into(),
            kernel_version: String::new(),
            kernel_command_line: None,
            cpu_model: None,
            cpus: vec![0, 1],
            busy_poll_us: Some(0),
            busy_read_us: Some(0),
        },
        lab: Lab::Veth(LabFacts {
            name: "quell-x".into(),
            queues: 1,
            interrupt_stand_in: true,
            cpus: CpuLayout::plan(&[0, 1], 1, 1, false).expect("two CPUs"),
            shared_core: None,
            server_napi_ids: vec![],
            client_napi_ids: vec![],
            client_napi: NapiSettings::default(),
            checks: vec![],
        }),
        server: Some(ServerFacts { command: vec!["memcached".into()], version: None, workers: vec![] }),
        load: Some(LoadSpec::new(([192, 0, 2, 1], 1).into(), Transport::Tcp, Workload::RequestResponse(sizes))),
        plan,
        base_reaches: vec![],
        trials,
        refused: BTreeMap::new(),
        not_a_measurement: None,
        interrupted: false,
    }
}

/// `fullbusy` halves the latency and doubles the CPU. `defer200` adds latency and saves no significant CPU. `base`
/// differs from itself by up to 5 %.
fn as_published(mode: &str, repeat: u32) -> (u64, f64, f64) {
    let drift = [1.0, 1.02, 0.97][repeat as usize];
    match mode {
        "base" => (100, 10.0, 1_000.0 * drift),
        "base again" => (104, 10.0 * drift * 1.03, 1_000.0),
        "fullbusy" => ((50.0 * drift) as u64, 20.0, 1_250.0 * drift),
        _ => (200, 9.9 * drift, 1_010.0),
    }
}

fn finding(result: &BenchResult, scope: Scope, question: Question) -> Finding {
    let findings = result.findings();
    let (_, found) = findings.iter().find(|(one, _)| *one == scope).expect("the scope");
    found.iter().find(|finding| finding.question == question).expect("the question").clone()
}

#[test]
fn the_lowest_latency_is_found_with_its_effect() {
    let found = finding(&result(&["50%"], as_published), HALF, Question::MedianLatency);
    assert_eq!(found.choice.winner, "fullbusy");
    assert!(found.choice.not_distinguishable.is_empty());
    assert!(matches!(found.against_base, Some(Verdict::Lower(effect)) if (effect.ratio - 0.5).abs() < 0.02));
}

#[test]
fn differences_below_the_resolution_are_not_significant() {
    let found = finding(&result(&["50%"], as_published), HALF, Question::Cpu);
    assert_eq!(found.choice.winner, "defer200");
    assert_eq!(found.choice.not_distinguishable, ["base"]);
    assert!(matches!(found.against_base, Some(Verdict::CannotTell { .. })));
}

#[test]
fn throughput_is_compared_in_the_closed_loop_and_latency_in_open_loads() {
    let found = result(&["50%", "max"], as_published).findings();
    let questions = |wanted: Scope| -> Vec<Question> {
        let (_, found) = found.iter().find(|(scope, _)| *scope == wanted).expect("the scope");
        found.iter().map(|finding| finding.question).collect()
    };
    assert!(!questions(HALF).contains(&Question::Throughput));
    assert_eq!(questions(Scope::Load(OfferedLoad::Max)), [Question::Throughput, Question::Cpu]);
}

#[test]
fn several_open_loads_are_also_compared_together() {
    let found = finding(&result(&["50%", "90%", "max"], as_published), Scope::OpenLoads, Question::MedianLatency);
    assert_eq!(found.choice.winner, "fullbusy");
    assert!(matches!(found.against_base, Some(Verdict::Lower(effect)) if effect.pairs == 6));
    assert!(!result(&["50%", "max"], as_published).findings().iter().any(|(scope, _)| *scope == Scope::OpenLoads));
}

#[test]
fn the_second_base_is_a_row_but_never_a_winner() {
    let result = result(&["50%"], |mode, _| if mode == "base again" { (1, 1.0, 9.0) } else { (100, 10.0, 1.0) });
    assert!(result.tables()[0].rows.iter().any(|row| row.label == "base again"));
    for (_, findings) in result.findings() {
        assert!(findings.iter().all(|finding| finding.choice.winner != "base again"));
    }
}

#[test]
fn one_attempt_of_a_repeated_trial_counts() {
    let mut result = result(&["50%"], as_published);
    let id = result.trials[0].id;
    result.trials[0].disturbances.push(Disturbance::Drops { packets: 1 });
    result.trials.push(trial(id, 1, (7_000, 1.0, 1.0)));
    let figure = result.series(id.load, id.mode, Metric::P50)[id.repeat as usize].expect("a value");
    assert!((figure / 7_000.0 - 1.0).abs() < 0.01, "{figure}");
    assert!(result.tables()[0].rows.iter().all(|row| row.disturbed == 0), "the disturbed attempt does not count");
    assert_eq!(result.trials_that_count().len(), result.trials.len() - 1);
}

#[test]
fn a_value_with_an_unread_counter_is_missing_not_zero() {
    let mut result = result(&["50%"], as_published);
    for trial in &mut result.trials {
        trial.counters.napi_run_ns = None;
    }
    for row in &result.tables()[0].rows {
        assert!(!row.cells.contains_key(&Metric::CpuPerRequest));
        assert!(!row.cells.contains_key(&Metric::Polls));
        assert!(row.cells.contains_key(&Metric::P50));
    }
}

#[test]
fn a_saturated_mode_has_no_latency_and_cannot_win_but_can_be_beaten() {
    let mut result = result(&["50%"], as_published);
    let fullbusy = result.plan.modes.iter().position(|entry| entry.label == "fullbusy").expect("fullbusy");
    for trial in &mut result.trials {
        if trial.id.mode == fullbusy || trial.id.mode == 0 {
            trial.load.sent = 1_000;
            trial.load.never_sent = 100;
        }
    }
    let rows = &result.tables()[0].rows;
    assert!(rows.iter().filter(|row| row.mode == fullbusy).all(|row| !row.cells.contains_key(&Metric::P50)));
    let found = finding(&result, HALF, Question::MedianLatency);
    assert_eq!(found.choice.winner, "defer200", "slower than what fullbusy reached at least, but it kept up");
    assert!(found.against_base.is_some(), "base is compared with, though it fell behind");
}

#[test]
fn an_interrupted_run_has_the_rows_that_were_measured() {
    let mut result = result(&["50%"], as_published);
    result.trials.retain(|trial| trial.id.mode == 0);
    let tables = result.tables();
    let labels: Vec<&str> = tables[0].rows.iter().map(|row| row.label.as_str()).collect();
    assert_eq!(labels, ["base"]);
}

#[test]
fn foreign_cpu_time_is_neither_idle_nor_of_the_lab() {
    let mut result = result(&["50%"], as_published);
    let used = CpuUse { capacity_ns: 1_000, idle_ns: 300, steal_ns: 0, lab_ns: 600 };
    result.trials[0].counters.server_cpus = Some(used);
    let figure = Metric::ForeignOnServer.of(&result.trials[0]).expect("a value");
    assert!((figure - 10.0).abs() < 1e-9);
}

#[test]
fn a_result_survives_its_file() {
    let result = result(&["50%", "200K", "max"], as_published);
    let json = serde_json::to_string(&result).expect("JSON");
    let back: BenchResult = serde_json::from_str(&json).expect("a result");
    assert_eq!(back.tables(), result.tables());
    assert_eq!(back.findings(), result.findings());
}
