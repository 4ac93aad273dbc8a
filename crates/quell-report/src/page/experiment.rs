//! The page of an experiment of `quell bench`.

use maud::{Markup, html};
use quell_cli::number;
use quell_experiment::{Criterion, RatioEstimate};
use quell_linux::visible::counted;
use quell_result::conclusion::{Conclusion, QuantityChange, WhyLonger};
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::PlacementFacts;

use super::embed::Download;
use super::{Body, ReportError, ReportSource, facts, parts};
use crate::draw::{Chart, curves, effects, loads, shown, slices};
use crate::palette::ModeStyle;
use crate::part::{self, Part};
use crate::words::{self, Advice};

/// Quantiles of latency that are drawn against throughput.
const AGAINST_THROUGHPUT: [f64; 2] = [0.5, 0.99];

pub(crate) fn body(source: &ReportSource, result: &ExperimentResult, level: u8) -> Result<Body, ReportError> {
    let parts = Part::of_result(result);
    if parts.iter().all(|part| part.experiment.record.slices.is_empty()) {
        return Err(ReportError::Empty { name: source.name.clone() });
    }
    let when = facts::utc(result.started_unix_s).unwrap_or_default();
    let headline = result.conclusion().map_or_else(|| "Counts in a guest".to_owned(), |said| headline(&said));
    let mut downloads = vec![Download::document(source)];
    downloads.extend(Download::latencies(source, &parts, result.started_unix_s));
    Ok(Body {
        title: format!("{headline} – Quell"),
        kicker: format!("Quell bench · {when} · version {}", shown(&result.quell_version)),
        content: content(result, &parts, level),
        downloads,
    })
}

/// All sections. `level` is that of the heading of the answer.
pub(crate) fn content(result: &ExperimentResult, parts: &[Part<'_>], level: u8) -> Markup {
    let below = level + 1;
    let styles = part::styles(parts);
    html! {
        (answer(result, parts, level))
        (measured(parts, &styles, below))
        (parts::section(below, "Where and how", "", &html! {
            (facts::machine(&result.host, &result.subject))
            @if let Some(checks) = facts::checks(&result.subject) {
                details { summary { "Checks before the measurement" } (parts::table(&checks, "checks")) }
            }
        }))
        (parts::section(below, "Settings", "", &html! {
            (parts::table(&settings(parts), "settings of the modes"))
            @if let Some(reported) = facts::reported(result.experiments.iter().filter_map(|one| one.settings.as_ref())) {
                (reported)
            }
        }))
        (parts::section(below, "The command that repeats it", "", &parts::command(&words::repeat_experiment(result, None))))
    }
}

fn settings(parts: &[Part<'_>]) -> crate::draw::Grid {
    let design = parts.first().map(|part| &part.experiment.record.design);
    let treatments = design.into_iter().flat_map(|design| std::iter::once(&design.reference).chain(&design.treatments));
    facts::settings(treatments.map(|treatment| (treatment.name.as_str(), treatment.setting)))
}

/// The charts of all parts.
pub(crate) fn measured(parts: &[Part<'_>], styles: &[ModeStyle], level: u8) -> Markup {
    let latency: Vec<Chart> = parts.iter().filter_map(|part| latency_chart(part, styles)).collect();
    html! {
        @if !latency.is_empty() {
            (parts::section(level, "Latency", LATENCY, &parts::charts(&latency)))
        }
        (effects_and_slices(parts, styles, level))
    }
}

/// The charts of all parts without those of latency.
pub(crate) fn effects_and_slices(parts: &[Part<'_>], styles: &[ModeStyle], level: u8) -> Markup {
    let criteria = part::criteria_of(parts.iter());
    let effects: Vec<Chart> = criteria.iter().filter_map(|one| effects::chart(one, parts, styles)).collect();
    let throughput = AGAINST_THROUGHPUT.iter().filter_map(|quantile| loads::latency(*quantile, parts, styles));
    let over_loads: Vec<Chart> = throughput.chain(loads::cpu(parts, styles)).collect();
    let over = if parts.len() > 1 { "Over the loads" } else { "Cost" };
    let seen: Vec<Chart> = parts.iter().filter_map(|part| slices_chart(part, styles)).collect();
    html! {
        @if !effects.is_empty() {
            (parts::section(level, "What each mode changes", &certainty(parts), &parts::charts(&effects)))
        }
        @if !over_loads.is_empty() {
            (parts::section(level, over, "", &parts::charts(&over_loads)))
        }
        @if !seen.is_empty() {
            (parts::section(level, "What the experiment saw", SLICES, &parts::charts(&seen)))
        }
    }
}

const LATENCY: &str = "One line for each mode: so many percent of the requests were answered within this time. Each nine has \
                       the same width. The band holds 95 % of the lines when the measured blocks are drawn again by chance.";
const SLICES: &str =
    "Each dot is a slice: the mode was set for this time. Within each block, the modes take turns in a random order.";

fn latency_chart(part: &Part<'_>, styles: &[ModeStyle]) -> Option<Chart> {
    let curves = styles.iter().filter_map(|style| curves::LatencyCurve::of(part, &style.name, style));
    curves::chart(&part.heading, &curves.collect::<Vec<_>>(), &[])
}

/// The slices by the highest latency quantile that was compared, otherwise by the first criterion.
fn slices_chart(part: &Part<'_>, styles: &[ModeStyle]) -> Option<Chart> {
    let criteria = &part.experiment.record.design.criteria;
    let latency = criteria.iter().filter(|one| matches!(one, Criterion::Latency { .. }));
    let mut wanted = latency.rev().chain(criteria);
    wanted.find_map(|criterion| slices::chart(part, criterion, styles))
}

/// How sure the effects are.
fn certainty(parts: &[Part<'_>]) -> String {
    let error_rate: f64 = parts.iter().map(|part| part.experiment.record.design.error_rate).sum();
    let reference = parts.first().map_or_else(String::new, |part| shown(part.reference()));
    format!(
        "The line is the interval of the change; all intervals together hold with {} % confidence. Where it does not cross \
         0, the mode differs from {reference}. {reference} was also compared with itself: what identical runs differ by is \
         noise.",
        number::plain(((1.0 - error_rate) * 100.0).max(0.0)),
    )
}

/// The answer in a few words.
pub(crate) fn headline(conclusion: &Conclusion) -> String {
    match conclusion {
        Conclusion::Use { mode, instead_of, .. } => format!("Use {mode} instead of {instead_of}"),
        Conclusion::Keep { mode, .. } => format!("Keep {mode}"),
        Conclusion::NotDecidable { .. } => "Not decidable here".to_owned(),
        Conclusion::MeasureLonger { .. } => "No answer yet".to_owned(),
    }
}

fn answer(result: &ExperimentResult, parts: &[Part<'_>], level: u8) -> Markup {
    let conclusion = result.conclusion();
    let modes: Vec<String> =
        result.experiments.first().map_or_else(Vec::new, |first| first.treatment_names().map(shown).collect());
    let loads: Vec<String> = parts.iter().map(|part| part.load.clone()).collect();
    let subject = words::short_subject(&result.subject);
    let receiver = match result.subject {
        SubjectFacts::Model(_) => format!("on the {subject}"),
        _ => format!("to {subject}"),
    };
    let question = format!(
        "Which mode delivers packets best {}? Compared: {}; at {}.",
        shown(&receiver),
        modes.join(", "),
        loads.join(", ")
    );
    html! {
        section.answer {
            p.question { (question) }
            @match &conclusion {
                Some(conclusion) => (said(conclusion, &result.subject, words::experiment_advice(result), level)),
                None => (parts::heading(level, "Counts in a guest, whose times mean nothing")),
            }
            @if let Some(why) = &result.not_a_measurement {
                p.warning { b { "Not a measurement: " } (facts::shown_long(&shown(why))) }
            }
            @if let Some(why) = parts.iter().find_map(|part| words::other_programs(&part.experiment)) {
                p.warning { b { "Disturbed: " } (why) "." }
            }
            @if let Some(why) = result.failure() { p.warning { b { "Ended early: " } (shown(why)) } }
            p.scope { (scope(result, parts)) }
        }
    }
}

/// How much was measured, and the noise.
fn scope(result: &ExperimentResult, parts: &[Part<'_>]) -> String {
    let done = match (&result.subject, &result.not_a_measurement) {
        (SubjectFacts::Model(_), _) => "Simulated",
        (_, Some(_)) => "Observed",
        _ => "Measured",
    };
    let slices: usize = parts.iter().map(|part| part.experiment.record.slices.len()).sum();
    let blocks: u32 = parts.iter().map(|part| part.analysis.blocks).sum();
    let dropped: u32 = parts.iter().map(|part| part.analysis.blocks_dropped).sum();
    let left_out =
        if dropped > 0 { format!("; {} disturbed and left out", counted(dropped, "block")) } else { String::new() };
    let controls = parts.iter().flat_map(|part| &part.analysis.controls).filter_map(|control| control.estimate);
    let factor = |estimate: RatioEstimate| estimate.ratio.max(1.0 / estimate.ratio);
    let noise = controls.map(factor).filter(|factor| factor.is_finite()).reduce(f64::max);
    let noise = noise.map_or_else(String::new, |factor| {
        format!(". Identical runs differed by at most {}", words::change(factor).trim_start_matches('+'))
    });
    format!("{done} in {} of {}{left_out}{noise}.", counted(slices, "slice"), counted(blocks, "block"))
}

/// A conclusion: headline, gains and costs, the next command.
pub(crate) fn said(conclusion: &Conclusion, subject: &SubjectFacts, advice: Option<Advice>, level: u8) -> Markup {
    let (saves, costs, undecided): (&[_], &[_], &[_]) = match conclusion {
        Conclusion::Use { saves, costs, undecided, .. } => (saves, costs, undecided),
        _ => (&[], &[], &[]),
    };
    let undecided = words::undecided_costs(undecided);
    let sentence = match conclusion {
        Conclusion::Use { holds_limits: true, instead_of, .. } => {
            Some(format!("It holds the limits, and {instead_of} does not."))
        }
        Conclusion::Use { without_clients: true, .. } => Some("Latency was not measured (--latency).".to_owned()),
        Conclusion::Use { costs, .. } if costs.is_empty() && undecided.is_empty() => {
            Some("No cost was measured.".to_owned())
        }
        Conclusion::Use { .. } => None,
        _ => advice.as_ref().map(|advice| capitalised(&advice.text) + "."),
    };
    html! {
        (parts::heading(level, &headline(conclusion)))
        @if !saves.is_empty() || !costs.is_empty() {
            ul.tiles {
                @for (changes, word) in [(saves, "better"), (costs, "worse")] {
                    @for change in changes { (tile(change, word)) }
                }
            }
        }
        @if !undecided.is_empty() { p.lede { "Undecided, and can cost: " (undecided) "." } }
        @if let Some(sentence) = sentence { p.lede { (facts::shown_long(&sentence)) } }
        @if let Some(command) = advice.and_then(|advice| advice.command) {
            p.next { (next(conclusion, subject)) }
            (parts::command(&command))
        }
    }
}

/// What the command after a conclusion is for.
fn next(conclusion: &Conclusion, subject: &SubjectFacts) -> &'static str {
    match (conclusion, subject) {
        (Conclusion::Use { .. }, SubjectFacts::Programs(_)) => "To apply it:",
        (Conclusion::Use { .. }, SubjectFacts::Command(_)) => "To start it so:",
        (Conclusion::Use { .. }, _) => "Before you use it, measure it on your server:",
        (Conclusion::MeasureLonger { because: WhyLonger::NotSteered, .. }, SubjectFacts::Programs(facts))
            if !facts.placement.as_ref().is_some_and(PlacementFacts::is_by_attachment) =>
        {
            "To steer them:"
        }
        _ => "To measure again:",
    }
}

fn tile(change: &QuantityChange, word: &str) -> Markup {
    let [low, high] = words::change_range(change.low, change.high);
    html! {
        li class=(word) {
            b { @if low == high { (low) } @else { (low) span.to { " to " } (high) } }
            span { (shown(&words::quantity(&change.quantity))) " " em { (word) (words::loads_of_change(change)) } }
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
