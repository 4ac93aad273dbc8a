//! The JSON Schemas in `docs/schema/` are those that the commands print.

use std::path::Path;
use std::process::Command;

/// `QUELL_WRITE_DOCS=1` writes the file instead of comparing it.
#[track_caller]
fn is_published(name: &str, command: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/schema/quell-{name}.schema.json"));
    let printed = Command::new(env!("CARGO_BIN_EXE_quell")).args(command).arg("--schema").output().unwrap().stdout;
    if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let published = std::fs::read(&path).unwrap();
    assert!(published == printed, "out of date: QUELL_WRITE_DOCS=1 cargo test -p quell --test published_schemas");
}

#[test]
fn the_schema_of_snapshots_is_published() {
    is_published("snapshot", &["show"]);
}

#[test]
fn the_schema_of_top_is_published() {
    is_published("top", &["top"]);
}

#[test]
fn the_schema_of_experiments_is_published() {
    is_published("experiment", &["bench"]);
}

#[test]
fn the_schema_of_published_experiments_is_published() {
    is_published("published", &["bench", "--experiment=b"]);
}

#[test]
fn the_schema_of_tune_is_published() {
    is_published("tune", &["tune"]);
}

#[test]
fn the_schema_of_conformance_reports_is_published() {
    is_published("conformance", &["conformance"]);
}
