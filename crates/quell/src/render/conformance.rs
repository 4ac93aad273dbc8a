//! Results of scenarios: a row per scenario with a mark per backend; below the table the reasons for scenarios that did
//! not run, and the observations of those that failed.

use std::collections::BTreeMap;

use clap::builder::styling::{AnsiColor, Style};
use quell_conformance::expect::{Backend, ExpectationResult};
use quell_conformance::observe::Observations;
use quell_conformance::run::{ConformanceReport, ScenarioOutcome, ScenarioResult};
use quell_conformance::scenario::Scenario;
use quell_linux::visible::counted;

use super::number::ABSENT;
use super::terminal::Terminal;
use quell_cli::table::{new_table, set_gap};

#[must_use]
pub(crate) fn list(scenarios: &[Scenario], terminal: Terminal) -> String {
    let set = |scenario: &Scenario| format!("{}\n{}\n", scenario.name, terminal.fill(&scenario.statement, "  ", "  "));
    scenarios.iter().map(set).collect()
}

#[must_use]
pub(crate) fn render(report: &ConformanceReport, scenarios: &[Scenario], terminal: Terminal) -> String {
    let mut text = format!("{}\n\n{}", grid(report, terminal), reasons(report));
    for result in &report.results {
        if let ScenarioOutcome::DidNotHold { runs, misses, stretch, observations } = &result.outcome {
            let scenario = scenarios.iter().find(|scenario| scenario.name == result.scenario);
            text.push_str(&difference(result, *runs, misses));
            text.push_str(&observed(observations, *stretch, scenario));
            text.push('\n');
        }
    }
    text.push_str(&summary(report));
    text
}

fn backend_name(arm: Backend) -> &'static str {
    match arm {
        Backend::Model => "model",
        Backend::Kernel => "kernel",
        Backend::Guest => "guest",
        _ => "other backend",
    }
}

fn arms(report: &ConformanceReport) -> Vec<Backend> {
    let mut arms: Vec<Backend> = report.results.iter().map(|result| result.arm).collect();
    arms.sort_unstable();
    arms.dedup();
    arms
}

fn grid(report: &ConformanceReport, terminal: Terminal) -> String {
    let arms = arms(report);
    let mut table = new_table();
    table.set_header(["scenario"].into_iter().chain(arms.iter().copied().map(backend_name)));
    for rows in report.results.chunk_by(|one, next| one.scenario == next.scenario) {
        let cell = |arm: &Backend| {
            rows.iter().find(|result| result.arm == *arm).map_or_else(String::new, |result| mark(&result.outcome))
        };
        let marks = arms.iter().map(cell).map(|mark| coloured(mark, terminal));
        let name = rows.first().map(|result| result.scenario.clone());
        table.add_row(name.into_iter().chain(marks));
    }
    set_gap(&mut table, 2);
    table.trim_fmt()
}

fn mark(outcome: &ScenarioOutcome) -> String {
    match outcome {
        ScenarioOutcome::Held { misses, .. } if misses.is_empty() => "ok".to_owned(),
        ScenarioOutcome::Held { runs, misses, .. } => format!("ok {} of {runs}", *runs as usize - misses.len()),
        ScenarioOutcome::DidNotHold { .. } => "FAILED".to_owned(),
        ScenarioOutcome::NotRun { .. } => "not run".to_owned(),
        _ => ABSENT.to_owned(),
    }
}

fn coloured(mark: String, terminal: Terminal) -> String {
    let style = match mark.as_str() {
        "FAILED" | "not run" => AnsiColor::Red.on_default(),
        ABSENT => Style::new().dimmed(),
        _ => return mark,
    };
    if terminal.colour { format!("{style}{mark}{style:#}") } else { mark }
}

fn reasons(report: &ConformanceReport) -> String {
    let mut by_reason: BTreeMap<(Backend, &str, &str), Vec<&str>> = BTreeMap::new();
    for result in &report.results {
        let (what, reason) = match &result.outcome {
            ScenarioOutcome::NotPossible { reason } => ("not possible", reason),
            ScenarioOutcome::NotRun { reason } => ("not run", reason),
            _ => continue,
        };
        by_reason.entry((result.arm, what, reason)).or_default().push(&result.scenario);
    }
    let line = |((arm, what, reason), names): (&(Backend, &str, &str), &Vec<&str>)| {
        format!("{what} on the {}: {reason}\n  {}\n\n", backend_name(*arm), names.join("\n  "))
    };
    by_reason.iter().map(line).collect()
}

fn difference(result: &ScenarioResult, runs: u32, misses: &[Vec<ExpectationResult>]) -> String {
    let mut text = format!(
        "{} failed on the {} in {} of {}: {}\n",
        result.scenario,
        backend_name(result.arm),
        misses.len(),
        counted(runs, "run"),
        result.statement
    );
    for (play, findings) in misses.iter().enumerate() {
        for finding in findings {
            text.push_str(&format!("  miss {}: {}: {}\n", play + 1, finding.expected, finding.observed));
        }
    }
    text
}

/// Observations of the last failed run, in order of time.
fn observed(observations: &Observations, stretch: u32, scenario: Option<&Scenario>) -> String {
    let ms = |ns: u64| format!("{:.3} ms", ns as f64 / 1e6);
    let mut lines = Vec::new();
    if stretch > 1 {
        lines.push(format!("all times were stretched by {stretch}:"));
    }
    for message in &observations.messages {
        let name = scenario.and_then(|scenario| scenario.packets.get(message.packet)).map(|packet| &*packet.name);
        let read = message.read_ns.map_or_else(|| "not read".to_owned(), |read_ns| format!("read at {}", ms(read_ns)));
        lines.push(format!("`{}` sent at {}, {read}", name.unwrap_or(ABSENT), ms(message.sent_ns)));
    }
    for wait in &observations.waits {
        let name = scenario
            .and_then(|scenario| scenario.applications.get(wait.application))
            .map(|application| &*application.name);
        let (from, to) = (ms(wait.called_ns), ms(wait.returned_ns));
        lines.push(format!(
            "`{}` waits from {from} to {to}: {}",
            name.unwrap_or(ABSENT),
            counted(wait.events, "event")
        ));
    }
    for (index, queue) in observations.queues.iter().enumerate() {
        let counted = queue.counters().map(|(name, count)| {
            format!("{name} {}", count.map_or_else(|| ABSENT.to_owned(), |count| count.to_string()))
        });
        lines.push(format!("queue {index}: {}", counted.collect::<Vec<_>>().join(", ")));
    }
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

fn summary(report: &ConformanceReport) -> String {
    let line = |arm: Backend| {
        let of_arm = || report.results.iter().filter(move |result| result.arm == arm);
        let played = |result: &&ScenarioResult| {
            matches!(result.outcome, ScenarioOutcome::Held { .. } | ScenarioOutcome::DidNotHold { .. })
        };
        let held = of_arm().filter(|result| matches!(result.outcome, ScenarioOutcome::Held { .. })).count();
        let played = of_arm().filter(played).count();
        format!("{}: {held} of {played} passed\n", backend_name(arm))
    };
    arms(report).into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use quell_conformance::run::SCHEMA;
    use quell_conformance::{expect, model, suite};

    use super::*;

    fn result(scenario: &Scenario, arm: Backend, outcome: ScenarioOutcome) -> ScenarioResult {
        let (name, statement) = (scenario.name.clone(), scenario.statement.clone());
        ScenarioResult { scenario: name, statement, arm, outcome }
    }

    fn report(results: Vec<ScenarioResult>) -> ConformanceReport {
        ConformanceReport { schema: SCHEMA.to_owned(), results }
    }

    #[test]
    fn a_failure_is_shown_with_expectations_and_all_observations() {
        let scenario = suite::scenario("deferral-counts-down").unwrap();
        let mut observations = model::play(&scenario).unwrap();
        observations.queues[0].polls = None;
        observations.messages[1].read_ns = None;
        let misses = expect::judge(&scenario, &observations, Backend::Kernel);
        let misses = vec![misses.into_iter().filter(|finding| !finding.holds).collect()];
        let outcome = ScenarioOutcome::DidNotHold { runs: 1, misses, stretch: 8, observations: Box::new(observations) };
        let text = render(&report(vec![result(&scenario, Backend::Kernel, outcome)]), &[scenario], Terminal::PIPE);
        for part in [
            "deferral-counts-down  FAILED",
            "polls of queue 0: 7: not observed on this arm",
            "all times were stretched by 8:",
            "`after the interrupt is back` sent at 50.000 ms, not read",
            "queue 0: polls –, empty-polls 5",
            "kernel: 0 of 1 passed",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_reason_is_shown_once_for_all_scenarios_it_applies_to() {
        let scenarios = ["deferral-counts-down", "maxevents-bounds-a-wait"].map(|name| suite::scenario(name).unwrap());
        let outcome = || ScenarioOutcome::NotPossible { reason: "no second CPU".to_owned() };
        let results = scenarios.iter().map(|scenario| result(scenario, Backend::Kernel, outcome())).collect();
        let text = render(&report(results), &scenarios, Terminal::PIPE);
        assert_eq!(text.matches("not possible on the kernel: no second CPU").count(), 1, "{text}");
        assert!(text.ends_with("kernel: 0 of 0 passed\n"), "{text}");
    }
}
