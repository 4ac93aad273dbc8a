//! Checks before a search whether its subject has the metrics of the goal and of the guards.

use std::fmt::Display;

use quell_mode::nearest;

use quell_result::figures::{self, Work};
use quell_tune::{TuneGoal, TuneGuard, TuneMetric, TunePlan};

use crate::experiment::judge::{Judges, PrintedFigures};

/// Width of the list of known names.
const KNOWN_COLUMNS: usize = 98;

/// A metric of a goal or of a guard that a subject does not have, or a guard that can never be violated. The text has its
/// place, and the metrics that the subject has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MetricError(String);

/// Metrics that a subject has.
#[derive(Debug, Clone)]
pub struct Available {
    /// Names that the subject records.
    recorded: Vec<String>,
    /// Whether Quell measures the latency of each request.
    has_latencies: bool,
    /// Remedy for a metric that is missing.
    remedy: &'static str,
}

/// Server whose load Quell does not control: only the server is measured.
pub fn of_server() -> Available {
    let remedy = "p50, p99, errors and other figures need --latency (p50, p99, errors also --clients)";
    Available { remedy, ..of_started_command() }
}

/// Command that is started for each slice, under a load that Quell does not control.
pub fn of_started_command() -> Available {
    let remedy = "p50, p99, errors and other figures need --latency";
    Available { recorded: figures::names(Work::Packet), has_latencies: false, remedy }
}

/// Server that Quell's generator loads, here or on other machines.
pub fn of_generator() -> Available {
    Available { recorded: figures::names(Work::Request), has_latencies: true, remedy: "" }
}

/// Server that a command measures. `printed` are the figures of a first run.
pub fn of_command(judges: &Judges, printed: &PrintedFigures) -> Available {
    let mut available = Available { remedy: "the command of --latency did not print it in a first run", ..of_server() };
    available.recorded.extend(printed.keys().cloned());
    if judges.counts_requests(printed) {
        available.recorded.extend(figures::names(Work::Request));
    }
    available
}

/// The model of a host.
pub fn of_model() -> Available {
    let recorded = ["cpu-us-per-request", figures::REQUESTS, figures::BUSY, figures::DROPS].map(str::to_owned).to_vec();
    Available { recorded, has_latencies: true, remedy: "the model knows nothing else" }
}

impl Available {
    /// Checks all metrics of a plan.
    ///
    /// # Errors
    /// Names the first metric that the subject does not have, its place in the text, and what the subject has.
    pub fn check(&self, plan: &TunePlan) -> Result<(), MetricError> {
        self.check_goal(&plan.goal)?;
        plan.guards.iter().try_for_each(|guard: &TuneGuard| {
            self.check_one(&guard.metric, "guard", guard)?;
            let is_flag = self.has_latencies && matches!(guard.metric, TuneMetric::Errors | TuneMetric::Saturated);
            match is_flag && guard.above >= 1.0 && !guard.relative {
                true => Err(MetricError(format!(
                    "the guard {guard} would never be violated: {0} is 1 if it occurs in a slice, otherwise 0; use \
                     --never {0}; nothing was changed",
                    guard.metric
                ))),
                false => Ok(()),
            }
        })
    }

    /// Checks the metrics of a goal; see [`Self::check`].
    pub fn check_goal(&self, goal: &TuneGoal) -> Result<(), MetricError> {
        let limited = goal.limits.iter().map(|limit| &limit.metric);
        limited.chain([&goal.objective]).try_for_each(|metric| self.check_one(metric, "goal", goal))
    }

    fn has(&self, metric: &TuneMetric) -> bool {
        let is_recorded = metric.is_among(|name| self.recorded.iter().any(|recorded| recorded == name));
        is_recorded || (self.has_latencies && metric.needs_latencies())
    }

    fn check_one(&self, metric: &TuneMetric, of: &str, text: &dyn Display) -> Result<(), MetricError> {
        if self.has(metric) {
            return Ok(());
        }
        let name = metric.to_string();
        let text = text.to_string();
        let place = text.find(&name).map_or_else(String::new, |place| {
            let columns = |part: &str| part.chars().count();
            format!("\n  {text}\n  {}{}", " ".repeat(columns(&text[..place])), "^".repeat(columns(&name)))
        });
        let known = self.names();
        let near = nearest(&name, known.iter().copied());
        let near = near.map_or_else(String::new, |known| format!("\ndid you mean {known}?"));
        let remedy = if self.remedy.is_empty() { String::new() } else { format!("\n{}", self.remedy) };
        let options = textwrap::Options::new(KNOWN_COLUMNS).word_splitter(textwrap::WordSplitter::NoHyphenation);
        let known = textwrap::fill(&format!("known here: {}", known.join(", ")), options);
        Err(MetricError(format!(
            "the {of} needs {name}, which is not measured here; nothing was changed{place}{near}\n{known}{remedy}"
        )))
    }

    /// Names that a goal can use here, short ones first.
    fn names(&self) -> Vec<&str> {
        let quantiles = if self.has_latencies { &["p50", "p99", "p99.9", "errors", "saturated"][..] } else { &[] };
        let short = ["cpu", "busy", "requests"].into_iter().chain(quantiles.iter().copied());
        short.chain(self.recorded.iter().map(String::as_str)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_mode::DeliveryMode;
    use quell_tune::TuneSpace;

    fn refusal(available: &Available, goal: &str, guards: &[&str]) -> Option<String> {
        let goal = goal.parse().unwrap_or_else(|why| panic!("{why}"));
        let guards = guards.iter().map(|guard| guard.parse().unwrap_or_else(|why| panic!("{why}"))).collect();
        let plan = TunePlan { guards, ..TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), 1) };
        available.check(&plan).err().map(|error| error.to_string())
    }

    #[test]
    fn a_server_without_a_measured_latency_has_the_metrics_of_the_kernel() {
        assert_eq!(refusal(&of_server(), "busy<=50%, wait-p99-us<=300, least cpu", &["stalls", "drops>3"]), None);
        let text = refusal(&of_server(), "p99<=300us, least cpu", &[]).unwrap();
        assert!(
            text.contains("the goal needs p99") && text.contains("\n  ^^^\n") && text.contains("--latency"),
            "{text}"
        );
        for metric in ["errors", "saturated", "p99>1ms"] {
            assert!(refusal(&of_server(), "least cpu", &[metric]).is_some(), "{metric}");
        }
    }

    #[test]
    fn a_misspelled_metric_is_refused_with_its_place_and_the_nearest_name() {
        let text = refusal(&of_server(), "least cpu", &["drops", "stall>2"]).unwrap();
        assert!(text.contains("\n  stall>2\n  ^^^^^\n") && text.contains("did you mean stalls?"), "{text}");
        let text = refusal(&of_generator(), "p99<=300us, least foo", &[]).unwrap();
        assert!(text.contains("\n                    ^^^\n") && text.contains("known here: cpu, busy"), "{text}");
    }

    #[test]
    fn a_guard_that_can_never_be_violated_is_refused() {
        assert_eq!(refusal(&of_generator(), "least cpu", &["errors", "saturated"]), None);
        for guard in ["errors>10", "saturated>1"] {
            assert!(refusal(&of_generator(), "least cpu", &[guard]).unwrap().contains("never be violated"), "{guard}");
        }
    }

    #[test]
    fn requests_of_a_command_beside_other_load_do_not_count_costs() {
        let printed = PrintedFigures::from([("requests".into(), 600.0)]);
        let beside = Judges { counts_all_requests: false, ..Judges::default() };
        assert_eq!(refusal(&of_command(&Judges::default(), &printed), "least cpu-us-per-request", &[]), None);
        assert!(refusal(&of_command(&beside, &printed), "least cpu-us-per-request", &[]).is_some());
        assert_eq!(refusal(&of_command(&beside, &printed), "least cpu", &[]), None);
    }

    #[test]
    fn a_command_adds_the_figures_that_it_printed() {
        let printed = PrintedFigures::from([("p99-us".into(), 7.0), ("hits/s".into(), 5.0)]);
        let available = of_command(&Judges::default(), &printed);
        assert_eq!(refusal(&available, "p99<=1ms, most hits/s", &["stalls"]), None);
        assert!(refusal(&available, "lowest p50", &[]).unwrap().contains("did not print it"));
        assert!(refusal(&available, "least cpu", &["errors"]).is_some());
    }

    #[test]
    fn the_model_has_latencies_and_no_bound_of_the_wait() {
        assert_eq!(refusal(&of_model(), "p99<=300us, least cpu", &["drops", "errors", "saturated"]), None);
        assert!(refusal(&of_model(), "wait-p99-us<=300, least cpu", &[]).unwrap().contains("the model"));
    }
}
