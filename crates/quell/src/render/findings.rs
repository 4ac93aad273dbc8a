//! Findings of a bench run as sentences: for each load the best mode by each criterion, modes without a significant
//! difference from it, and its difference from `base`.

use quell_bench::table::{Finding, Question, Scope};
use quell_stats::{Effect, Verdict};

/// The sentences of every scope.
#[must_use]
pub(crate) fn render(findings: &[(Scope, Vec<Finding>)]) -> String {
    if findings.iter().all(|(_, findings)| findings.is_empty()) {
        return "no best mode: no mode kept up with the load while base was measured twice\n".to_owned();
    }
    let mut out = String::new();
    for (scope, findings) in findings {
        let scope = match scope {
            Scope::OpenLoads => "over all open loads".to_owned(),
            Scope::Load(load) => format!("at {load}"),
        };
        out.push_str(&format!("{scope}:\n"));
        if findings.is_empty() {
            out.push_str("  no best mode: under each mode the server fell behind the rate at least once\n");
        }
        for finding in findings {
            out.push_str(&format!("  {}\n", sentence(finding)));
        }
    }
    out
}

fn sentence(finding: &Finding) -> String {
    let choice = &finding.choice;
    let heading = heading(finding.question);
    let mut text = format!("{heading:<22} {}{}", choice.winner, against_base(finding));
    if !choice.not_distinguishable.is_empty() {
        text.push_str(&format!(
            "\n{:<24} no significant difference from {}",
            "",
            choice.not_distinguishable.join(", ")
        ));
    }
    if let Some(resolution) = finding.resolution {
        text.push_str(&format!("  [A/A {:.0} %]", (resolution.ratio - 1.0) * 100.0));
    }
    if finding.disturbed_pairs > 0 {
        text.push_str(&format!(" [{} pairs disturbed]", finding.disturbed_pairs));
    }
    text
}

fn heading(question: Question) -> &'static str {
    match question {
        Question::Throughput => "most requests/s:",
        Question::MedianLatency => "lowest p50:",
        Question::TailLatency => "lowest p99:",
        Question::Cpu => "least CPU per request:",
        Question::Compromise => "best compromise:",
    }
}

fn against_base(finding: &Finding) -> String {
    match finding.against_base {
        None => String::new(),
        Some(Verdict::Lower(effect) | Verdict::Higher(effect)) => format!(": {} against base", percent(effect)),
        Some(Verdict::CannotTell { reason, seen }) => {
            let seen = seen.map_or_else(String::new, |effect| format!(" (seen {})", percent(effect)));
            format!(": no significant difference from base{seen}: {reason}")
        }
    }
}

fn percent(effect: Effect) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let (low, high) = (percent(effect.interval.low), percent(effect.interval.high));
    format!("{:+.0} % ({low:+.0} to {high:+.0})", percent(effect.ratio))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_stats::{Choice, PairedRatios, Resolution, compare};

    fn finding(base: [f64; 3], winner: [f64; 3], again: [f64; 3]) -> Finding {
        let some = |values: [f64; 3]| values.map(Some);
        let identical = PairedRatios::new(&some(base), &some(again)).unwrap();
        let ratios = PairedRatios::new(&some(base), &some(winner)).unwrap();
        Finding {
            question: Question::MedianLatency,
            choice: Choice {
                winner: "fullbusy".to_owned(),
                not_distinguishable: vec!["suspend50".to_owned()],
                without_value: vec![],
            },
            against_base: Some(compare(&ratios, &identical)),
            resolution: Resolution::of(&identical, 3),
            disturbed_pairs: 0,
        }
    }

    #[test]
    fn a_load_without_a_winner_is_reported() {
        let named = finding([100.0; 3], [50.0; 3], [101.0; 3]);
        let half = (Scope::Load("50%".parse().unwrap()), vec![named]);
        let said = render(&[half.clone(), (Scope::Load("90%".parse().unwrap()), vec![])]);
        assert!(said.contains("at 90%:\n  no best mode"), "{said}");
        assert!(!render(&[half]).contains("at 90%"));
        assert!(render(&[]).starts_with("no best mode"));
    }

    #[test]
    fn a_clear_winner_is_named_with_its_effect_and_indistinguishable_modes() {
        let said = sentence(&finding([100.0; 3], [50.0, 51.0, 49.0], [101.0, 99.0, 102.0]));
        assert!(said.contains("fullbusy: -50 % (-51 to -49) against base"), "{said}");
        assert!(said.contains("no significant difference from suspend50"), "{said}");
        assert!(said.contains("[A/A 2 %]"), "{said}");
    }

    #[test]
    fn a_difference_within_that_of_identical_runs_is_not_significant() {
        let said = sentence(&finding([100.0; 3], [97.0, 98.0, 96.0], [110.0, 104.0, 95.0]));
        assert!(said.contains("fullbusy: no significant difference from base"), "{said}");
    }
}
