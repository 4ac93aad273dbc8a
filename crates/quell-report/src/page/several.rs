//! Several experiments side by side: their answers, their latencies in one chart, and a table of differences.

use maud::{Markup, html};
use quell_cli::number::ABSENT;
use quell_experiment::{Criterion, RatioEstimate};
use quell_result::experiment::ExperimentResult;

use super::parts;
use crate::draw::curves::{self, LatencyCurve};
use crate::draw::{Chart, Grid, label, shown};
use crate::palette::ModeStyle;
use crate::part::{self, Part, with_unit};
use crate::words;

/// An experiment among others.
pub(crate) struct Compared<'a> {
    /// Name of its document.
    pub(crate) name: String,
    pub(crate) result: &'a ExperimentResult,
    pub(crate) parts: Vec<Part<'a>>,
}

impl Compared<'_> {
    fn part(&self, load: &str) -> Option<&Part<'_>> {
        self.parts.iter().find(|part| part.load == load)
    }
}

/// Answers, latencies and differences of the experiments.
pub(crate) fn content(compared: &[Compared<'_>]) -> Markup {
    let curves = latency(compared);
    html! {
        (parts::section(2, "Answers", "", &parts::table(&answers(compared), "answers")))
        @if !curves.is_empty() { (parts::section(2, "Latency", LATENCY, &parts::charts(&curves))) }
        @match unrelated(compared) {
            Some(why) => (parts::section(2, "Differences", &why, &html! {})),
            None => (parts::section(2, "Differences", DIFFERENCES, &parts::table(&differences(compared), "differences"))),
        }
    }
}

/// Why there is no difference to show. `None` if two results share a mode at a load.
fn unrelated(compared: &[Compared<'_>]) -> Option<String> {
    let shares = |load: &&str| !common_modes(&parts_at(compared, load)).is_empty();
    if common_loads(compared).iter().any(shares) {
        return None;
    }
    let one = |(index, one): (usize, &Compared<'_>)| {
        let at = |part: &Part<'_>| {
            let modes: Vec<String> = part.experiment.treatment_names().map(shown).collect();
            format!("{} at {}", modes.join(", "), shown(&part.load))
        };
        format!("{} has {}", letter(index), one.parts.iter().map(at).collect::<Vec<_>>().join("; "))
    };
    let has: Vec<String> = compared.iter().enumerate().map(one).collect();
    Some(format!("None: no two of these results have the same mode at the same load. {}.", has.join(". ")))
}

const LATENCY: &str = "The same mode at the same load in each result. The bands hold 95 % of the lines when the measured blocks \
                       are drawn again by chance.";
const DIFFERENCES: &str = "Within a result, modes took turns, so that effects relative to the reference can be compared. Values of different \
     results also differ by whatever else has changed between the measurements.";

/// A name for each result that is short and its own.
fn letter(index: usize) -> char {
    u8::try_from(index).ok().filter(|index| *index < 26).map_or('Z', |index| char::from(b'A' + index))
}

fn title(index: usize, name: &str) -> String {
    format!("{} {}", letter(index), shown(name.strip_suffix(".json").unwrap_or(name)))
}

fn answers(compared: &[Compared<'_>]) -> Grid {
    let mut grid = Grid::new(["result", "subject", "kernel", "answer"]);
    for (index, one) in compared.iter().enumerate() {
        let conclusion = one.result.conclusion();
        grid.rows.push(vec![
            title(index, &one.name),
            shown(&words::short_subject(&one.result.subject)),
            shown(&one.result.host.kernel_release),
            conclusion.map_or_else(|| ABSENT.to_owned(), |conclusion| words::conclusion(&conclusion, &[])),
        ]);
    }
    grid
}

/// Loads that at least two results have, in the order of their appearance.
fn common_loads<'a>(compared: &'a [Compared<'_>]) -> Vec<&'a str> {
    let mut loads: Vec<&str> = Vec::new();
    for part in compared.iter().flat_map(|one| &one.parts) {
        let is_common = compared.iter().filter(|one| one.part(&part.load).is_some()).count() > 1;
        if is_common && !loads.contains(&&*part.load) {
            loads.push(&part.load);
        }
    }
    loads
}

/// Modes that at least two of the parts have.
fn common_modes(parts: &[(usize, &Part<'_>)]) -> Vec<ModeStyle> {
    let of_part = |part: &&Part<'_>| part::styles(std::slice::from_ref(*part));
    let mut modes: Vec<ModeStyle> = Vec::new();
    for style in parts.iter().flat_map(|(_, part)| of_part(part)) {
        let having = parts.iter().filter(|(_, part)| part.experiment.treatment_names().any(|name| name == style.name));
        if having.count() > 1 && modes.iter().all(|other| other.name != style.name) {
            modes.push(style);
        }
    }
    modes
}

fn parts_at<'a>(compared: &'a [Compared<'_>], load: &str) -> Vec<(usize, &'a Part<'a>)> {
    compared.iter().enumerate().filter_map(|(index, one)| Some((index, one.part(load)?))).collect()
}

fn latency(compared: &[Compared<'_>]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for load in common_loads(compared) {
        let parts = parts_at(compared, load);
        for mode in common_modes(&parts) {
            let curve = |(index, part): &(usize, &Part<'_>)| {
                let style = mode.varied(label(&title(*index, &compared[*index].name)), *index);
                LatencyCurve::of(part, &mode.name, &style)
            };
            let of_results: Vec<LatencyCurve> = parts.iter().filter_map(curve).collect();
            let heading = format!("{} at {load}", label(&mode.name));
            charts.extend(curves::chart(&heading, &of_results, &[]).filter(|_| of_results.len() > 1));
        }
    }
    charts
}

/// A row for each quantity of a mode at a load: its value in each result, its difference from the first, and its effect
/// relative to the reference in each.
fn differences(compared: &[Compared<'_>]) -> Grid {
    let letters = || (0..compared.len()).map(letter);
    let mut head = vec!["load".to_owned(), "mode".to_owned(), "quantity".to_owned()];
    head.extend(letters().map(|letter| letter.to_string()));
    head.extend(letters().skip(1).map(|letter| format!("{letter} to A")));
    head.extend(letters().map(|letter| format!("effect in {letter}")));
    let mut grid = Grid::new(head);
    for load in common_loads(compared) {
        let parts = parts_at(compared, load);
        let criteria = part::criteria_of(parts.iter().map(|(_, part)| *part));
        for mode in common_modes(&parts) {
            for criterion in &criteria {
                grid.rows.push(row(compared, load, &mode.name, criterion));
            }
        }
    }
    grid
}

fn row(compared: &[Compared<'_>], load: &str, mode: &str, criterion: &Criterion) -> Vec<String> {
    let of_result = |one: &Compared<'_>| one.part(load)?.value(mode, criterion).filter(|value| value.is_finite());
    let values: Vec<Option<f64>> = compared.iter().map(of_result).collect();
    let first = values.first().copied().flatten();
    let absent = || ABSENT.to_owned();
    let mut row = vec![shown(load), shown(mode), words::criterion(criterion)];
    row.extend(values.iter().map(|value| value.map_or_else(absent, |value| with_unit(value, criterion))));
    row.extend(values.iter().skip(1).map(|value| match (first, value) {
        (Some(first), Some(value)) if first > 0.0 => words::change(value / first),
        _ => absent(),
    }));
    row.extend(compared.iter().map(|one| one.part(load).map_or_else(absent, |part| effect(part, mode, criterion))));
    row
}

fn effect(part: &Part<'_>, mode: &str, criterion: &Criterion) -> String {
    if mode == part.reference() {
        return "reference".to_owned();
    }
    let mut contrasts = part.analysis.contrasts.iter();
    let found = contrasts.find(|contrast| contrast.treatment == mode && contrast.criterion == *criterion);
    let interval = |RatioEstimate { ratio, low, high, .. }: RatioEstimate| match high {
        Some(high) => words::change_with_interval(ratio, low, high),
        None => words::change(ratio),
    };
    found.and_then(|contrast| contrast.estimate).map_or_else(|| ABSENT.to_owned(), interval)
}
