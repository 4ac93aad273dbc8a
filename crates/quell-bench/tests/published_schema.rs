//! The published JSON Schema of result files is up to date, and a recorded result survives a round trip. Together,
//! these show that the schema describes the content of the files.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

use std::path::{Path, PathBuf};

use quell_bench::experiment::ExperimentResult;
use quell_bench::result::BenchResult;
use quell_bench::vm::interrupts::InterruptResult;
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

#[test]
fn the_published_schema_is_the_one_of_this_version() {
    let current = serde_json::to_value(BenchResult::json_schema()).unwrap();
    assert!(
        read("docs/schema/quell-bench.schema.json") == current,
        "to publish the current one: cargo run -p quell -- bench --on sim --schema > docs/schema/quell-bench.schema.json"
    );
}

#[test]
fn the_published_schema_of_experiments_is_the_one_of_this_version() {
    let current = serde_json::to_value(ExperimentResult::json_schema()).unwrap();
    assert!(
        read("docs/schema/quell-experiment.schema.json") == current,
        "to publish the current one: cargo run -p quell -- bench --schema > docs/schema/quell-experiment.schema.json"
    );
}

#[test]
fn the_published_schema_of_the_vm_lab_is_the_one_of_this_version() {
    let current = serde_json::to_value(InterruptResult::json_schema()).unwrap();
    assert!(
        read("docs/schema/quell-interrupts.schema.json") == current,
        "to publish the current one: cargo run -p quell -- bench --on vm --schema > docs/schema/quell-interrupts.schema.json"
    );
}

#[test]
fn a_recorded_vm_lab_result_survives_a_round_trip() {
    let recorded = read("crates/quell/tests/fixtures/interrupts.json");
    let result: InterruptResult = serde_json::from_value(recorded.clone()).unwrap();
    assert_eq!(serde_json::to_value(&result).unwrap(), recorded);
}

#[test]
fn a_recorded_result_survives_a_round_trip() {
    let result: BenchResult = serde_json::from_value(recorded()).unwrap();
    assert_eq!(serde_json::to_value(&result).unwrap(), recorded());
}

#[test]
fn every_field_of_a_recorded_result_is_in_the_schema() {
    let schema = read("docs/schema/quell-bench.schema.json");
    let described = |definition: &str, field: &str| {
        let properties = match definition {
            "" => schema.pointer("/properties"),
            // The first kind of lab.
            "Lab" => schema.pointer("/$defs/Lab/oneOf/0/properties"),
            definition => schema.pointer(&format!("/$defs/{definition}/properties")),
        };
        properties.unwrap().get(field).is_some()
    };
    let recorded = recorded();
    for (definition, place) in [
        ("", ""),
        ("HostFacts", "/host"),
        ("Lab", "/lab"),
        ("CpuLayout", "/lab/cpus"),
        ("Plan", "/plan"),
        ("Trial", "/trials/0"),
        ("SettingsReadBack", "/trials/0/settings"),
        ("NapiSettings", "/trials/0/settings/napi/0"),
        ("EpollParams", "/trials/0/settings/epoll/0"),
        ("LoadReport", "/trials/0/load"),
        ("TrialCounters", "/trials/0/counters"),
    ] {
        for field in recorded.pointer(place).unwrap().as_object().unwrap().keys() {
            assert!(described(definition, field), "{place}/{field} is not in the schema");
        }
    }
}

#[test]
fn a_file_that_is_not_a_result_is_rejected() {
    for (place, value) in [
        ("/trials/0/counters/polls", json!("many")),
        ("/trials/0/settings/napi/0/gro-flush-timeout", json!(-1)),
        ("/plan/loads/0", json!("50 percent")),
        ("/lab", json!({ "kind": "veth" })),
    ] {
        let mut document = recorded();
        *document.pointer_mut(place).unwrap() = value;
        assert!(serde_json::from_value::<BenchResult>(document).is_err(), "{place}");
    }
}

#[test]
fn an_unknown_field_is_rejected() {
    let mut document = recorded();
    document["trials"][0]["counters"]["unheard-of"] = json!(1);
    assert!(serde_json::from_value::<BenchResult>(document).is_err());
}
