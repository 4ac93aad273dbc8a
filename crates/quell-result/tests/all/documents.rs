//! Documents are read back as they were written, and their fields have names of one form.

use std::collections::BTreeSet;
use std::fmt::Debug;

use quell_experiment::{Criterion, ExperimentDesign, Switchback, Treatment};
use quell_load::clients::{ClientFacts, ClockOffset};
use quell_load::cluster_run::{self, ClientRun, ClusterRun};
use quell_load::{KeyValues, LoadReport, LoadSpec, OfferedLoad, RunSpec, Schedule, ServeShape, Transport, Workload};
use quell_published::Experiment;
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment};
use quell_result::load::LoadRun;
use quell_result::published::{PublishedPart, PublishedRun};
use quell_result::published_xdp::{AbsentWay, PublishedXdpRun, XdpPlacement, XdpPoint, XdpWay};
use quell_result::simulation::{SimulationRun, SweepHeader};
use quell_result::top::{IntervalReport, RecordingHeader, TopRecording};
use quell_result::{Document, DocumentError, ResultDocument};
use quell_sampler::XdpHook;
use quell_sim::sweep::{Point, Setup};
use quell_sim::{HostProfile, Load};
use quell_stats::LatencyHistogram;
use quell_xdp::{PollWay, XdpQueue};

const EXPERIMENT: &str = include_str!("../../../quell/tests/fixtures/result.json");
const RECORDING: &str = include_str!("../../../quell/tests/fixtures/recording.json");
const TUNE: &str = include_str!("../../../quell/tests/fixtures/tune.json");

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

#[track_caller]
fn is_read_back(text: &str) {
    let written = json(&ResultDocument::parse(text).unwrap());
    assert_eq!(json(&ResultDocument::parse(&written).unwrap()), written);
}

#[track_caller]
fn is_read_back_as<D: Document + PartialEq + Debug>(document: &D) {
    let text = json(document);
    is_read_back(&text);
    assert_eq!(D::from_json(&text).unwrap(), *document);
}

#[test]
fn experiments_and_searches_are_read_back() {
    is_read_back(EXPERIMENT);
    is_read_back(TUNE);
}

#[test]
fn a_recording_is_lines_of_which_a_torn_last_one_is_no_report() {
    let header = RecordingHeader::begin().unwrap();
    let report = IntervalReport {
        schema: IntervalReport::SCHEMA.to_owned(),
        unix_ns: 1,
        interval_ns: 1_000_000_000,
        polls_unknown: None,
        queues: Vec::new(),
        devices: Vec::new(),
        programs: Vec::new(),
        idle_states: Vec::new(),
        hidden_processes: 0,
    };
    let line = json(&report);
    let text = format!("{}\n{line}\n{line}\n{}", json(&header), &line[..line.len() / 2]);
    let recording = TopRecording { header, reports: vec![report.clone(), report] };
    assert_eq!(TopRecording::from_json(&text).unwrap(), recording);
    is_read_back_as(&recording);
    is_read_back(RECORDING);
}

#[test]
fn published_experiments_are_read_back() {
    let part = |result, not_possible| PublishedPart {
        transport: Transport::Udp,
        shape: ServeShape::Blocking,
        message_bytes: Some(1),
        load: Some(OfferedLoad::Max),
        threads: 1,
        result,
        not_possible,
    };
    let measured = ExperimentResult::from_json(EXPERIMENT).unwrap();
    is_read_back_as(&PublishedRun {
        schema: PublishedRun::SCHEMA.to_owned(),
        experiment: Experiment::B,
        parts: vec![part(Some(measured), None), part(None, Some("no such mode here".to_owned()))],
        no_hardware_counters: None,
        ended: Some("interrupted".to_owned()),
    });
}

#[test]
fn the_published_experiment_of_af_xdp_is_read_back() {
    let way = XdpWay { poller: PollWay::IoUring, sleeps: false, own_cpu: false };
    let treatment = |setting: XdpWay| Treatment { name: setting.to_string(), setting };
    let criteria = vec![Criterion::Latency { quantile: 0.5 }];
    let design = ExperimentDesign::new(treatment(XdpWay::default()), vec![treatment(way)], criteria, 1);
    let (record, _) = Switchback::new(design).unwrap().finish();
    let load = Some(OfferedLoad::Rate(12_000.0));
    let result = LoadExperiment {
        load,
        offered_per_s: Some(12_000.0),
        ..LoadExperiment::new(record, EndOfExperiment::Interrupted)
    };
    let mut calls = LatencyHistogram::new();
    calls.record(900);
    let placement = XdpPlacement { receiver: 1, sender: 0, poller: None };
    let absent = AbsentWay { ways: "busy-poll".to_owned(), why: "no NAPI ID".to_owned() };
    let queue = XdpQueue {
        device: "client".to_owned(),
        queue: 0,
        hook: XdpHook::Native,
        zero_copy: false,
        socket_napi: None,
        napi: None,
        defers: Some(true),
    };
    let point = |result, not_possible| XdpPoint {
        rate_kpps: 12.0,
        delay_us: 78.0,
        result,
        receive_calls: [(way.to_string(), calls.clone())].into(),
        queues: [(way.to_string(), queue.clone())].into(),
        not_possible,
    };
    is_read_back_as(&PublishedXdpRun {
        points: vec![point(Some(result), None), point(None, Some("no way".to_owned()))],
        ended: Some("interrupted".to_owned()),
        slowed_by: Some(100),
        ..PublishedXdpRun::begin(placement, vec![absent]).unwrap()
    });
}

#[test]
fn loads_of_one_client_and_of_many_are_read_back() {
    let address = "192.0.2.1:11211".parse().unwrap();
    let spec = LoadSpec::new(address, Transport::Tcp, Workload::Memcached(KeyValues::facebook()));
    let run = RunSpec { schedule: Schedule::Closed, warm_up_ms: 10, measure_ms: 100 };
    let mut report = LoadReport { sent: 3, qps: 0.1, ..LoadReport::default() };
    report.latency.record(123_456);
    let client = ClientFacts {
        rank: 0,
        host: "client".to_owned(),
        measures_only: false,
        connections: 16,
        clock: ClockOffset::SAME_CLOCK,
        start_skew_ns: -7,
    };
    is_read_back_as(&ClusterRun {
        schema: cluster_run::SCHEMA.to_owned(),
        quell_version: "0.2.0".to_owned(),
        spec: spec.clone(),
        run: run.clone(),
        windows: 2,
        clients: vec![ClientRun { client, report: report.clone() }],
        report: report.clone(),
        start_skew_ns: 7,
        start_skew_error_ns: 0,
        invalid: None,
        slower_clients: None,
    });
    is_read_back_as(&LoadRun::new(spec, run, report));
}

#[test]
fn simulated_rows_are_read_back_also_without_responses() {
    let host = HostProfile::shipped("epyc7662-cx5").unwrap();
    let setup = Setup { warm_up_ns: 1_000, measured_ns: 1_000, ..Setup::new(host).with_queues(1) };
    let row = setup.row(&Point { mode: "suspend20".parse().unwrap(), load: Load::Qps(1.0), seed: 1 }).unwrap();
    assert!(row.figures.p99_us.is_nan());
    is_read_back(&json(&SimulationRun::new(&setup, vec![row.clone()])));

    let header = SweepHeader::new(&setup, "0123".to_owned());
    let torn = "{\"mode\": \"ba";
    let text = format!("{}\n{}\n{torn}", json(&header), json(&row));
    let ResultDocument::Sweep(sweep) = ResultDocument::parse(&text).unwrap() else { panic!("{text}") };
    assert_eq!((&sweep.header, sweep.rows.len()), (&header, 1));
    is_read_back(&json(&sweep));
}

#[test]
fn every_kind_has_a_name_of_its_own() {
    let names: BTreeSet<&str> = ResultDocument::KINDS.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), ResultDocument::KINDS.len());
    assert!(names.contains("tune") && names.contains("sim-run"), "{names:?}");
}

#[test]
fn a_refusal_is_one_line_without_control_characters() {
    for text in [
        "",
        "[",
        "7",
        "{\"schema\": 7}",
        "{\"schema\": \"\\u001b[2J\"}",
        "{\"schema\": \"quell-experiment/1\", \"\\u001b[2J\\n\": 1}",
        "{\"schema\": \"quell-load/1\", \"spec\": \"\\u202e\\n\"}",
    ] {
        let said = ResultDocument::parse(text).unwrap_err().to_string();
        assert!(!said.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text}: {said:?}");
    }
    assert!(matches!(ResultDocument::parse("{}"), Err(DocumentError::Schema { found: None })));
}
