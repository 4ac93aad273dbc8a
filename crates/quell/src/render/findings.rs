//! What a bench run says, in words: for each load the best by each question, what cannot be told from it, and by how
//! much it differs from `base`, or that this cannot be told.

use quell_bench::table::{Finding, Question, Scope};
use quell_stats::{Effect, Verdict};

/// The sentences of every scope.
#[must_use]
pub(crate) fn render(findings: &[(Scope, Vec<Finding>)]) -> String {
    if findings.iter().all(|(_, findings)| findings.is_empty()) {
        return "nothing can be said about which mode is best: no mode kept up beside a base measured twice\n"
            .to_owned();
    }
    let mut out = String::new();
    for (scope, findings) in findings {
        let scope = match scope {
            Scope::OpenLoads => "over all open loads".to_owned(),
            Scope::Load(load) => format!("at {load}"),
        };
        out.push_str(&format!("{scope}:\n"));
        if findings.is_empty() {
            out.push_str("  none is named: under each mode the server fell behind the rate at least once\n");
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
        text.push_str(&format!("\n{:<24} cannot tell it from {}", "", choice.not_distinguishable.join(", ")));
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
            format!(": cannot tell it from base{seen}: {reason}")
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
    fn a_load_that_no_mode_kept_up_with_is_said() {
        let named = finding([100.0; 3], [50.0; 3], [101.0; 3]);
        let half = (Scope::Load("50%".parse().unwrap()), vec![named]);
        let said = render(&[half.clone(), (Scope::Load("90%".parse().unwrap()), vec![])]);
        assert!(said.contains("at 90%:\n  none is named"), "{said}");
        assert!(!render(&[half]).contains("none is named"));
        assert!(render(&[]).starts_with("nothing can be said"));
    }

    #[test]
    fn a_clear_winner_is_named_with_its_effect_and_what_cannot_be_told_from_it() {
        let said = sentence(&finding([100.0; 3], [50.0, 51.0, 49.0], [101.0, 99.0, 102.0]));
        assert!(said.contains("fullbusy: -50 % (-51 to -49) against base"), "{said}");
        assert!(said.contains("cannot tell it from suspend50"), "{said}");
        assert!(said.contains("[A/A 2 %]"), "{said}");
    }

    #[test]
    fn a_difference_that_base_has_from_itself_is_cannot_tell() {
        let said = sentence(&finding([100.0; 3], [97.0, 98.0, 96.0], [110.0, 104.0, 95.0]));
        assert!(said.contains("fullbusy: cannot tell it from base"), "{said}");
    }
}
