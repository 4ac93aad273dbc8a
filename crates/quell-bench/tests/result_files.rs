//! Result files of earlier versions become experiments.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

use std::path::{Path, PathBuf};

use quell_bench::experiment::earlier::Matrix;
use quell_bench::experiment::{ExperimentResult, SubjectFacts};
use serde_json::{Value, json};

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(in_repository(path)).unwrap()).unwrap()
}

fn recorded() -> Value {
    read("crates/quell/tests/fixtures/result.json")
}

fn converted(document: Value) -> Result<ExperimentResult, String> {
    let matrix: Matrix = serde_json::from_value(document).map_err(|error| error.to_string())?;
    matrix.try_into().map_err(|error: quell_bench::experiment::earlier::NoServer| error.to_string())
}

#[test]
fn a_matrix_of_an_earlier_version_becomes_an_experiment_for_each_load() {
    let result = converted(recorded()).unwrap();
    let loads: Vec<String> = result.experiments.iter().map(|one| one.load.unwrap().to_string()).collect();
    assert_eq!(loads, ["50%", "max"]);
    for experiment in &result.experiments {
        let design = &experiment.record.design;
        assert_eq!((design.reference.name.as_str(), design.treatments[0].name.as_str()), ("base", "suspend200"));
        let places: Vec<(u32, usize)> = experiment.record.slices.iter().map(|slice| (slice.block, slice.arm)).collect();
        assert_eq!(places.len(), 9, "three repeats of base, base again and suspend200");
        assert!(places.is_sorted_by_key(|(block, _)| *block));
        assert_eq!(experiment.analyse().blocks, 3);
    }
}

#[test]
fn figures_of_an_earlier_version_keep_their_values() {
    let trial = &recorded()["trials"][0];
    let figure = |name: &str| trial.pointer(&format!("/{name}")).unwrap().as_f64().unwrap();
    let answered = figure("load/answered-in-window");
    let cpu_us = (figure("counters/server-run-ns") + figure("counters/napi-run-ns")) / 1e3 / answered;
    let result = converted(recorded()).unwrap();
    let slices = &result.experiments[1].record.slices;
    let slice = slices.iter().find(|slice| (slice.block, slice.arm) == (0, 0)).unwrap();
    assert!((slice.observation.metrics["cpu-us-per-request"] - cpu_us).abs() < 1e-9);
    assert_eq!(slice.observation.metrics["requests-per-s"], figure("load/qps"));
    assert_eq!(slice.observation.latency.as_ref().unwrap().count() as f64, answered);
}

#[test]
fn the_attempt_with_the_fewest_disturbances_is_used() {
    let mut document = recorded();
    let mut again = document["trials"][0].clone();
    assert_eq!(again["disturbances"].as_array().unwrap().len(), 1);
    again["attempt"] = json!(1);
    again["disturbances"] = json!([]);
    again["counters"]["polls"] = json!(33_950);
    document["trials"].as_array_mut().unwrap().push(again);
    let result = converted(document).unwrap();
    let slices = &result.experiments[1].record.slices;
    assert_eq!(slices.len(), 9);
    let polls = slices.iter().find(|slice| (slice.block, slice.arm) == (0, 0)).unwrap();
    assert_eq!(polls.observation.metrics["polls-per-request"], 10.0);
}

#[test]
fn a_result_of_the_earlier_model_can_be_read() {
    let mut document = recorded();
    let profile = json!({ "kind": "sim", "profile": "epyc7662-cx5", "description": "", "queues": 8, "connections": 4480,
        "obtained": { "load/hits": "not modelled" } });
    document["lab"] = profile;
    document["server"] = Value::Null;
    document["load"] = Value::Null;
    assert!(matches!(converted(document).unwrap().subject, SubjectFacts::Model(_)));
}

#[test]
fn a_file_that_is_not_a_result_is_rejected() {
    for (place, value) in [
        ("/trials/0/counters/polls", json!("many")),
        ("/plan/loads/0", json!("50 percent")),
        ("/lab", json!({ "kind": "veth" })),
        ("/server", Value::Null),
    ] {
        let mut document = recorded();
        *document.pointer_mut(place).unwrap() = value;
        assert!(converted(document).is_err(), "{place}");
    }
}
