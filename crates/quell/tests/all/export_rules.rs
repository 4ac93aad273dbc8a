//! The rules and the dashboard for the metrics of `quell export`: promtool parses and tests them, and each of their
//! metrics is one that the exporter has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quell_test_support::{Lacks, skip, wait_until};
use serde_json::{Value, json};

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(dist(name)).unwrap()
}

/// Requires that promtool succeeds. Counts a skip if it is not installed.
fn promtool_accepts(arguments: &[&str], file: &Path) {
    let Ok(checked) = Command::new("promtool").args(arguments).arg(file).output() else {
        return skip(Lacks::Tool("promtool"), "promtool is not installed");
    };
    let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "promtool {}: {said}", arguments.join(" "));
}

/// Names of all metrics of the exporter, which also declares those without samples.
fn exported_metrics() -> BTreeSet<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(["export", "-i", "0.2", "--textfile"]).arg(directory.path()).arg(std::process::id().to_string());
    command.env("QUELL_JOURNAL_DIR", directory.path().join("no-journal"));
    let mut exporter = command.stdin(Stdio::null()).spawn().unwrap();
    let file = directory.path().join("quell.prom");
    let text = wait_until(|| std::fs::read_to_string(&file).map_err(|error| error.to_string()));
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    let name = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let names: BTreeSet<String> = text.lines().filter_map(name).collect();
    assert!(names.contains("quell_queue_packets_total"), "{text}");
    names
}

/// Names in the text that contain `quell_`: metrics of the exporter, and recorded ones.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "_:".contains(letter)));
    words.filter(|word| word.contains("quell_")).map(str::to_owned).collect()
}

#[test]
fn the_rules_are_valid_and_pass_their_tests() {
    promtool_accepts(&["check", "rules"], &dist("prometheus/quell.rules.yml"));
    promtool_accepts(&["test", "rules"], &dist("prometheus/quell.rules.test.yml"));
}

#[test]
fn each_alert_is_tested() {
    let (rules, tests) = (read("prometheus/quell.rules.yml"), read("prometheus/quell.rules.test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alerts.len(), 14, "{alerts:?}");
    let documented = include_str!("../../../../docs/operate.md");
    for alert in alerts {
        assert!(documented.contains(&format!("\n| `{alert}` | ")), "{alert} is not in docs/operate.md");
        // The test that follows the name requires that it fires.
        let fires = |test: &str| test.lines().next() == Some(alert) && test.contains("exp_alerts:");
        assert!(tests.split("- alertname: ").any(fires), "{alert}");
    }
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_exist() {
    let rules = read("prometheus/quell.rules.yml");
    let recorded = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).map(str::to_owned);
    let known: BTreeSet<String> = exported_metrics().into_iter().chain(recorded).collect();
    for file in ["prometheus/quell.rules.yml", "prometheus/quell.rules.test.yml", "grafana/quell.json"] {
        let named = metrics_in(&read(file));
        assert!(!named.is_empty());
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn prometheus_parses_each_query_of_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&read("grafana/quell.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(queries.len() >= panels.len(), "{queries:#?}");
    let rule = |(number, query): (usize, &&str)| {
        // Grafana replaces the interval. Its other variables are in strings.
        json!({ "record": format!("query:{number}"), "expr": query.replace("$__rate_interval", "1m") })
    };
    let rules: Vec<Value> = queries.iter().enumerate().map(rule).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    // Every JSON document is a YAML document.
    serde_json::to_writer(&file, &json!({ "groups": [{ "name": "dashboard", "rules": rules }] })).unwrap();
    promtool_accepts(&["check", "rules"], file.path());
}

#[test]
fn each_variable_of_the_dashboard_is_defined() {
    let text = read("grafana/quell.json");
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let defined = dashboard["templating"]["list"].as_array().unwrap().iter().map(|variable| &variable["name"]);
    let defined: BTreeSet<&str> = defined.map(|name| name.as_str().unwrap()).collect();
    let name = |rest: &str| -> String {
        rest.trim_start_matches('{')
            .chars()
            .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
            .collect()
    };
    // Names that begin with `__` are Grafana's own.
    let used: BTreeSet<String> = text.split('$').skip(1).map(name).filter(|name| !name.starts_with("__")).collect();
    assert_eq!(used.iter().map(String::as_str).collect::<BTreeSet<_>>(), defined);
}
