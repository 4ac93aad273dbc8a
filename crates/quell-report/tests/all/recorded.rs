//! Documents for the tests: recorded ones, and one that the model makes.

use std::sync::OnceLock;

use quell_experiment::{
    Criterion, ExperimentDesign, Goal, LatencyCounts, SliceFlag, SliceObservation, Switchback, Treatment,
};
use quell_report::page::ReportSource;
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::{HostFacts, ModelFacts};
use quell_result::simulation::{XskRow, XskSimulationRun};
use quell_result::{Document as _, ResultDocument};
use quell_sim::explain;
use quell_sim::sweep::{Point, Setup};
use quell_sim::{HostProfile, Load, XskPolling, XskRoundTrips};
use serde_json::{Value, json};

const EXPERIMENT: &str = include_str!("../../../quell/tests/fixtures/result.json");
const GUEST: &str = include_str!("../../../quell/tests/fixtures/interrupts.json");
const TUNE: &str = include_str!("../../../quell/tests/fixtures/tune.json");

pub(crate) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// One document of each kind that a report shows.
pub(crate) fn documents() -> Vec<Value> {
    let experiment = value(EXPERIMENT);
    let part = json!({
        "transport": "tcp", "shape": "epoll", "load": "200000", "threads": 1, "result": experiment.clone(),
    });
    let published = json!({ "schema": "quell-published/1", "experiment": "a", "parts": [part] });
    vec![experiment, value(GUEST), value(TUNE), published, simulation(), load(), recording(), clients(), xsk()]
}

/// A minute in which a program is attached, and its queue stalls once.
fn recording() -> Value {
    let report = |second: u64| {
        let is_attached = second > 20;
        let timeout = if is_attached { 200_000 } else { 0 };
        let wait_ns = if is_attached { 230_000 + 3_000 * (second % 7) } else { 12_000 };
        let polls = json!({
            "interrupt": if is_attached { 0 } else { 9_000 + 100 * (second % 5) }, "timer": if is_attached { 900 } else { 0 },
            "rescheduled": 3, "ksoftirqd": 40, "thread": 0, "program": if is_attached { 5_200 + 90 * (second % 6) } else { 0 },
            "program-last": 7,
        });
        let wait = json!({
            "packets": 8_000, "interrupt-packets": 1_000, "mean-ns": wait_ns / 2, "p50-ns": wait_ns / 2, "p99-ns": wait_ns,
            "max-ns": wait_ns * 2, "stalled-polls": 0,
        });
        let queue = |number: u64| {
            json!({
                "namespace": 1, "device": "eth0", "rx-queues": [number], "napi": 8193 + number, "interrupts": 10,
                "settings": { "gro-flush-timeout": timeout, "defer-hard-irqs": if is_attached { 100 } else { 0 } },
                "thread-ns": null, "unsampled": null, "stalled": second == 40,
                "sample": {
                    "polls": polls, "packets": 9_000 + 50 * (second % 9), "empty": 200, "budget-exhausted": 0,
                    "program-found-suspended": 10, "softirq-ns": 90_000_000, "enabled-ns": 300_000_000,
                    "masked-ns": 500_000_000, "suspended-ns": 200_000_000, "wait": wait,
                },
            })
        };
        let program = json!({
            "pid": 42, "name": "memcached", "unit": "memcached.service", "napis": [8193, 8194],
            "epolls": [{
                "count": 4,
                "params": { "busy_poll_usecs": 0, "busy_poll_budget": 64, "prefer_busy_poll": is_attached },
            }],
            "cpus": 0.4 + 0.01 * (second % 8) as f64, "cpu-ns-per-packet": 21_000.0, "cpu-ns": 5_000_000_000_u64,
            "mode": if is_attached { json!("suspend200") } else { json!(null) },
            "effect": if is_attached { json!({ "verdict": "in-effect", "reason": "290 of 300 polls" }) } else { json!(null) },
            "drifted": null, "skipped": null,
        });
        json!({
            "schema": "quell-top/1", "unix-ns": 1_795_303_516_000_000_000 + second * 1_000_000_000,
            "interval-ns": 1_000_000_000, "polls-unknown": null, "queues": [queue(0), queue(1)],
            "devices": [{
                "namespace": 1, "name": "eth0", "rx-dropped": 0, "rx-queue-dropped": second / 59, "tx-dropped": null,
            }],
            "programs": [program], "idle-states": [], "hidden-processes": 0,
        })
    };
    let reports: Vec<Value> = (1..=60).map(report).collect();
    json!({
        "schema": "quell-recording/1", "quell-version": "0.2.0", "started-unix-s": 1_795_303_516,
        "host": value(EXPERIMENT)["host"], "reports": reports,
    })
}

fn simulation() -> Value {
    simulated(&[("base", 50e3, 1), ("base", 100e3, 1), ("suspend20", 50e3, 1), ("suspend20", 100e3, 1)])
}

/// Rows of the model for modes, loads and seeds.
pub(crate) fn simulated(points: &[(&str, f64, u64)]) -> Value {
    let setup = setup();
    let row = |(mode, load, seed): &(&str, f64, u64)| {
        setup.row(&Point { mode: mode.parse().unwrap(), load: Load::Qps(*load), seed: *seed }).unwrap()
    };
    let rows = points.iter().map(row).collect();
    serde_json::to_value(quell_result::simulation::SimulationRun::new(&setup, rows)).unwrap()
}

/// Two ways to poll AF_XDP sockets, each at two rates.
fn xsk() -> Value {
    let host = HostProfile::shipped("af-xdp-2025").unwrap();
    let (warm_up_ns, measured_ns) = (1_000_000, 10_000_000);
    let row = |(mode, period_ns, delay_ns)| {
        let run = XskRoundTrips {
            host: host.clone(),
            polling: mode,
            period_ns: period_ns as f64,
            delay_ns,
            warm_up_ns,
            measured_ns,
        };
        XskRow { mode, period_ns, delay_ns, figures: run.simulate().unwrap().figures() }
    };
    let points = [XskPolling::Interrupts, XskPolling::ThreadedBusyPoll]
        .into_iter()
        .flat_map(|mode| [(mode, 83_300, 0), (mode, 83_300, 38_000)]);
    let rows = points.map(row).collect();
    let schema = XskSimulationRun::SCHEMA.to_owned();
    let run = XskSimulationRun { schema, host: host.name.clone(), warm_up_ns, measured_ns, rows };
    serde_json::to_value(run).unwrap()
}

fn load() -> Value {
    let latency = value(EXPERIMENT).pointer("/experiments/0/record/slices/0/observation/latency").unwrap().clone();
    let errors = json!({
        "connections-lost": 0, "requests-lost": 1, "reconnects-failed": 0, "reconnected": 0, "timed-out": 0,
        "server-errors": 0, "malformed": 0, "wrong-content": 0,
    });
    json!({
        "schema": "quell-load/1",
        "spec": value(EXPERIMENT).pointer("/subject/load").unwrap(),
        "run": {
            "schedule": { "open": { "rate-per-s": 1000.0, "gaps": "gpd:0,16.0292,0.154971" } },
            "warm-up-ms": 0, "measure-ms": 1000,
        },
        "report": {
            "duration-ns": 1_000_000_000_u64, "sent": 1000, "answered-in-window": 1000, "qps": 1000.0, "never-sent": 0,
            "unanswered": 3, "latency": latency.clone(), "latency-from-send": latency.clone(), "lateness": latency,
            "waited-for-connection": 0, "hits": 0, "misses": 0, "errors": errors, "generator-was-late": true, "cpu": null,
            "engines": [],
        },
    })
}

fn clients() -> Value {
    let Value::Object(load) = load() else { unreachable!() };
    let client = |rank: u32, measures_only: bool| {
        json!({
            "client": {
                "rank": rank, "host": format!("client{rank}"), "connections": 16,
                "measures-only": measures_only, "clock": { "offset-ns": 10, "error-ns": 900 }, "start-skew-ns": 4_000,
            },
            "report": load["report"],
        })
    };
    json!({
        "schema": "quell-mpi/1", "quell-version": "0.2.0", "spec": load["spec"], "run": load["run"], "windows": 1,
        "clients": [client(0, true), client(1, false)], "report": load["report"], "start-skew-ns": 4_000,
        "start-skew-error-ns": 1_800, "invalid": "client1 is saturated",
    })
}

pub(crate) fn source(name: &str, document: &Value) -> ReportSource {
    ReportSource { name: name.to_owned(), document: ResultDocument::parse(&document.to_string()).unwrap() }
}

fn setup() -> Setup {
    let host = HostProfile::shipped("epyc7662-cx5").unwrap();
    Setup { warm_up_ns: 5_000_000, measured_ns: 20_000_000, ..Setup::new(host).with_queues(1) }
}

const MODES: [&str; 6] = ["base", "defer200", "napibusy", "fullbusy", "suspend20", "suspend200"];
const LOADS: [f64; 6] = [30e3, 60e3, 90e3, 110e3, 120e3, 125e3];
/// Blocks of seven slices at each load: 294 slices in all.
const BLOCKS: u32 = 7;

/// An experiment with 6 modes and 6 loads on the model.
pub(crate) fn experiment() -> &'static ExperimentResult {
    static MADE: OnceLock<ExperimentResult> = OnceLock::new();
    MADE.get_or_init(|| {
        let setup = setup();
        ExperimentResult {
            schema: "quell-experiment/1".to_owned(),
            quell_version: "0.0.0".to_owned(),
            started_unix_s: 1_795_303_516,
            host: HostFacts { kernel_release: "6.18.0".to_owned(), ..HostFacts::default() },
            subject: SubjectFacts::Model(ModelFacts::of(&setup)),
            experiments: LOADS.iter().map(|per_s| at_load(&setup, *per_s)).collect(),
            not_a_measurement: None,
        }
    })
}

fn at_load(setup: &Setup, per_s: f64) -> LoadExperiment {
    let treatment = |name: &str| Treatment { name: name.to_owned(), setting: name.parse().unwrap() };
    let cpu = Criterion::Metric { name: "cpu-us-per-request".to_owned(), goal: Goal::Lowest };
    let criteria = vec![Criterion::Latency { quantile: 0.5 }, Criterion::Latency { quantile: 0.99 }, cpu];
    let mut design = ExperimentDesign::new(
        treatment(MODES[0]),
        MODES[1..].iter().map(|name| treatment(name)).collect(),
        criteria,
        1,
    );
    design.budget_ms = u64::from(BLOCKS) * design.block_ms() + 1;
    let mut switchback = Switchback::new(design).unwrap();
    let mut seed = 0;
    while let Some(next) = switchback.next_slice() {
        seed += 1;
        let block = next.block;
        let point = Point { mode: next.treatment.setting, load: Load::Qps(per_s), seed };
        let run = setup.run(&point).simulate().unwrap();
        let observation = SliceObservation {
            spent_ms: 210.0,
            latency: Some(LatencyCounts::from(&run.latency)),
            foreign_cpu: Some(if block == 3 { f64::from(u32::from(seed.is_multiple_of(2))) / 2.0 } else { 0.1 }),
            flags: if seed.is_multiple_of(9) { [SliceFlag::LoadWasLate].into() } else { [].into() },
            ..SliceObservation::default()
        };
        let cpu_us = run.cpu_pct / 100.0 / run.qps * 1e6;
        let observation = observation.with_metric("cpu-us-per-request", Some(cpu_us).filter(|us| us.is_finite()));
        switchback.record(observation.with_metric("requests-per-s", Some(run.qps))).unwrap();
    }
    let load = Some(quell_load::OfferedLoad::Rate(per_s));
    let (record, _) = switchback.finish();
    let end = EndOfExperiment::Stopped(quell_experiment::StopReason::BudgetSpent);
    LoadExperiment { load, offered_per_s: Some(per_s), ..LoadExperiment::new(record, end) }
}

/// The explanation that `docs/` shows.
pub(crate) fn explained() -> Vec<quell_report::page::ExplainedMode> {
    let host = HostProfile::shipped("epyc7662-cx5").unwrap();
    let explained = |mode: &str| {
        let mode = mode.parse().unwrap();
        let explanation = explain::explain(mode, &host).unwrap();
        quell_report::page::ExplainedMode { explanation, story: explain::record(mode, &host).unwrap() }
    };
    ["base", "defer200", "suspend20"].map(explained).into()
}
