//! The page of a search of `quell tune`.

use maud::{Markup, html};
use quell_cli::number::{self, ABSENT};
use quell_experiment::SliceObservation;
use quell_tune::{ArmReport, ArmState, Confirmation, TuneLimit, TuneMetric, TuneResult};

use quell_result::tune::TuneFile;

use super::embed::Download;
use super::{Body, ReportSource, experiment, facts, parts};
use crate::draw::curves::{self, LatencyCurve, LimitLine};
use crate::draw::race::{self, RacedArm};
use crate::draw::{Chart, Grid, shown};
use crate::part::{self, Part};
use crate::words;

/// Number of arms in the chart of the race.
const RACED: usize = 24;

pub(crate) fn body(source: &ReportSource, file: &TuneFile, level: u8) -> Body {
    let conclusion = file.conclusion();
    let search = &file.search;
    let plan = &search.plan;
    let when = facts::utc(file.started_unix_s).unwrap_or_default();
    let confirmed: Vec<(&Confirmation, Vec<Part<'_>>)> = search
        .confirmations
        .iter()
        .map(|confirmation| (confirmation, Part::of_confirmation(confirmation, plan)))
        .collect();
    let mut downloads = vec![Download::document(source)];
    let last = confirmed.last().map_or(&[][..], |(_, parts)| parts);
    downloads.extend(Download::latencies(source, last, file.started_unix_s));
    let below = level + 1;
    let modes = std::iter::once(plan.present).chain(file.found());
    let modes: Vec<_> = modes.map(|mode| (mode.to_string(), mode)).collect();
    let content = html! {
        section.answer {
            p.question {
                "Which setting meets the goal “" (shown(&plan.goal.to_string())) "” best on "
                (shown(&words::short_subject(&file.subject))) ", at " (shown(&plan.loads.join(", "))) "?"
            }
            (experiment::said(&conclusion, &file.subject, Some(words::search_advice(file)), level))
            @if let Some(why) = &file.not_a_measurement {
                p.warning { b { "Not a measurement: " } (shown(why)) }
            }
            p.scope {
                (tried(search)) " of " (search.arms.len()) " settings were tried in " (number::count(search.slices.len())) " slices, "
                (number::short(search.spent_ms / 1e3)) " s in all. The winner was compared again on fresh slices."
            }
        }
        @if let Some(chart) = race_chart(search) {
            (parts::section(below, "The search", RACE, &html! {
                (parts::charts([&chart]))
                @if file.why_withheld().is_none() {
                    @for line in words::refuted(search) { p { (shown(&line)) } }
                    @for line in words::rivals(search) { p { (shown(&line)) } }
                }
                details { summary { "All arms as a table" } (parts::table(&arms(search), "arms")) }
            }))
        }
        @for (confirmation, parts) in &confirmed { (confirmation_section(confirmation, parts, search, below)) }
        (parts::section(below, "Where and how", "", &html! {
            (facts::machine(&file.host, &file.subject))
        }))
        (parts::section(below, "Settings", "", &html! {
            (parts::table(&facts::settings(modes.iter().map(|(name, mode)| (name.as_str(), *mode))), "settings"))
            @if let Some(reported) = facts::reported(file.settings.iter()) { (reported) }
        }))
        (parts::section(below, "The command that repeats it", "", &parts::command(&words::repeat_search(file, None))))
    };
    Body {
        title: format!("{} – Quell", experiment::headline(&conclusion)),
        kicker: format!("Quell tune · {when} · version {}", shown(&file.quell_version)),
        content,
        downloads,
    }
}

const RACE: &str = "Each dot is a slice of an arm. Arms race until they are worse than another, miss a limit or violate a guard \
                    beyond doubt; the search only selects, the confirmation proves.";

fn tried(search: &TuneResult) -> usize {
    search.arms.iter().filter(|arm| arm.slices > 0).count()
}

/// The arms with the most slices.
fn race_chart(search: &TuneResult) -> Option<Chart> {
    let mut spent_ms = 0.0;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); search.arms.len()];
    for slice in &search.slices {
        let half = slice.observation.spent_ms.max(0.0) / 2.0;
        if let Some(of_arm) = times.get_mut(slice.arm) {
            of_arm.push((spent_ms + half) / 1e3);
        }
        spent_ms += half * 2.0;
    }
    let arms = search.arms.iter().zip(times).filter(|(_, times)| !times.is_empty());
    let mut arms: Vec<RacedArm> = arms
        .map(|(arm, times)| {
            let (is_alive, why) = (arm.state == ArmState::Alive, words::arm_state(&arm.state));
            RacedArm { mode: arm.mode, times, is_alive, end: end(&arm.state), why }
        })
        .collect();
    arms.sort_by_key(|arm| std::cmp::Reverse(arm.times.len()));
    let more = arms.len().saturating_sub(RACED);
    arms.truncate(RACED);
    race::chart(&arms, spent_ms / 1e3, more)
}

fn end(state: &ArmState) -> &'static str {
    match state {
        ArmState::Alive => "not excluded",
        ArmState::Worse { .. } => "worse",
        ArmState::MissesLimit { .. } => "misses limit",
        ArmState::ViolatedGuard { .. } => "abandoned",
        ArmState::NotSettable { .. } => "failed",
    }
}

fn arms(search: &TuneResult) -> Grid {
    let plan = &search.plan;
    let ratio = plan
        .loads
        .iter()
        .map(|load| shown(&format!("{} at {load}, to {}", plan.goal.objective, plan.name(plan.present))));
    let head = ["arm".to_owned(), "slices".to_owned()].into_iter().chain(ratio);
    let mut grid = Grid::new(head.chain(["of the limit".to_owned(), "became".to_owned()]));
    for arm in search.arms.iter().filter(|arm| arm.slices > 0 || arm.state != ArmState::Alive) {
        grid.rows.push(arm_row(plan.name(arm.mode), arm));
    }
    grid
}

fn arm_row(name: String, arm: &ArmReport) -> Vec<String> {
    let finite = |value: &f64| value.is_finite();
    let ratio =
        |ratio: &Option<f64>| ratio.filter(finite).map_or_else(|| ABSENT.to_owned(), |ratio| format!("{ratio:.2}"));
    let limit = arm
        .limit_ratio
        .map(|ratio| ratio * 100.0)
        .filter(finite)
        .map_or_else(|| ABSENT.to_owned(), |ratio| format!("{ratio:.0} %"));
    let became = match &arm.state {
        ArmState::Worse { than } => format!("worse than {than}"),
        state => words::arm_state(state),
    };
    let cells = [name, arm.slices.to_string()].into_iter().chain(arm.ratio.iter().map(ratio));
    cells.chain([limit, shown(&became)]).collect()
}

fn confirmation_section(confirmation: &Confirmation, parts: &[Part<'_>], search: &TuneResult, level: u8) -> Markup {
    let styles = part::styles(parts);
    let limits = |part: &Part<'_>| -> Vec<LimitLine> {
        search.plan.goal.limits.iter().filter_map(|limit| limit_line(limit, part)).collect()
    };
    let latency = parts.iter().filter_map(|part| {
        let curves = styles.iter().filter_map(|style| LatencyCurve::of(part, &style.name, style));
        curves::chart(&part.heading, &curves.collect::<Vec<_>>(), &limits(part))
    });
    let latency: Vec<Chart> = latency.collect();
    let held = match (search.plan.goal.limits.is_empty(), confirmation.meets_limits) {
        (true, _) => String::new(),
        (false, true) => " It was shown to hold all limits.".to_owned(),
        (false, false) => " It was not shown to hold all limits.".to_owned(),
    };
    let about = format!("Fresh slices, which the search did not see.{held}");
    html! {
        (parts::section(level, &format!("{} confirmed against {}", confirmation.mode, search.plan.name(search.plan.present)), &about, &html! {
            @if !latency.is_empty() { (parts::charts(&latency)) }
        }))
        (experiment::effects_and_slices(parts, &styles, level))
    }
}

/// Limit of a latency, as a line. A relative limit is a multiple of the present setting's value.
fn limit_line(limit: &TuneLimit, part: &Part<'_>) -> Option<LimitLine> {
    let TuneMetric::Latency { quantile } = limit.metric else { return None };
    let present = || {
        let arms = part.experiment.arms_of(part.reference());
        let slices = arms.into_iter().flat_map(|arm| part.experiment.record.of_arm(arm));
        let mut values: Vec<f64> = slices.filter_map(|slice: &SliceObservation| limit.metric.value(slice)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let us = if limit.relative { limit.bound(present()?) } else { limit.bound(0.0) };
    (us.is_finite() && us > 0.0).then(|| LimitLine { quantile, us, text: limit.to_string() })
}
