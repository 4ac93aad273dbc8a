//! Effects: the change of each mode relative to the reference with its interval, beside the reference against itself.

use quell_experiment::{ContrastVerdict, Criterion, RatioEstimate};
use svg::node::element::Group;

use super::{
    Chart, Grid, Scale, WIDTH, axis_name, below_axis, dot, image, label, line, names_width, rectangle, shown, text,
};
use crate::palette::ModeStyle;
use crate::part::Part;
use crate::words;

const ROW: f64 = 20.0;
const RIGHT: f64 = WIDTH - 62.0;
const HEAD: f64 = 8.0;
const FOOT: f64 = 38.0;
/// Ratios that are drawn; intervals beyond end at the border.
const RATIO_MIN: f64 = 0.01;
const RATIO_MAX: f64 = 100.0;
/// Ratios with a line, and their names, the most important first.
const MARKED: [(f64, &str); 13] = [
    (1.0, "0"),
    (0.5, "−50 %"),
    (2.0, "×2"),
    (0.1, "−90 %"),
    (10.0, "×10"),
    (0.01, "−99 %"),
    (100.0, "×100"),
    (0.25, "−75 %"),
    (4.0, "×4"),
    (0.75, "−25 %"),
    (1.25, "+25 %"),
    (0.9, "−10 %"),
    (1.1, "+10 %"),
];
/// Distance of the names, in px.
const MARK_GAP: f64 = 44.0;

struct EffectRow<'a> {
    name: &'a str,
    estimate: Option<RatioEstimate>,
    /// Absent for the reference against itself.
    verdict: Option<ContrastVerdict>,
}

impl EffectRow<'_> {
    fn label(&self) -> String {
        match self.verdict {
            None => format!("{} again", self.name),
            Some(_) => self.name.to_owned(),
        }
    }
}

/// Draws the effects on one criterion at all loads. `None` without an estimate.
pub(crate) fn chart(criterion: &Criterion, parts: &[Part<'_>], styles: &[ModeStyle]) -> Option<Chart> {
    let groups: Vec<(&Part<'_>, Vec<EffectRow<'_>>)> = parts.iter().map(|part| (part, rows(part, criterion))).collect();
    let groups: Vec<_> = groups.into_iter().filter(|(_, rows)| rows.iter().any(|row| row.estimate.is_some())).collect();
    let estimates = || groups.iter().flat_map(|(_, rows)| rows).filter_map(|row| row.estimate);
    let drawn = estimates().flat_map(|estimate| {
        let (low, high) = ends(estimate).unwrap_or((estimate.ratio, estimate.ratio));
        [low, estimate.ratio, high]
    });
    let (mut min, mut max) = (0.9_f64, 1.1_f64);
    for ratio in drawn.filter(|ratio| ratio.is_finite()) {
        (min, max) = (min.min(ratio), max.max(ratio));
    }
    let names: Vec<String> = groups.iter().flat_map(|(_, rows)| rows).map(EffectRow::label).collect();
    let left = 16.0 + names_width(names.iter().map(String::as_str));
    let x = Scale::of_ratios((min / 1.04).max(RATIO_MIN), (max * 1.04).min(RATIO_MAX), left, RIGHT);
    let lines: usize = groups.iter().map(|(_, rows)| rows.len() + 1).sum();
    (lines > 0).then_some(())?;
    let bottom = HEAD + ROW * lines as f64;
    let mut marks = Group::new();
    let (mut grid, mut y) = (Group::new(), HEAD);
    let mut table = Grid::new(["load", "mode", "change", "interval", "verdict"]);
    for (part, rows) in &groups {
        marks = marks.add(text(0.0, y + 14.0, &format!("at {}", label(&part.load)), "h"));
        y += ROW;
        let floor = rows.first().filter(|row| row.verdict.is_none()).and_then(|row| row.estimate);
        if let Some((low, high)) = floor.and_then(ends) {
            let (from, to) = (x.at(low), x.at(high));
            grid = grid.add(rectangle((from, y), (to, y + ROW * rows.len() as f64), "noise"));
        }
        for row in rows {
            let name = row.label();
            marks = marks.add(text(8.0, y + 14.0, &label(&name), ""));
            let style = styles.iter().find(|style| style.name == row.name);
            marks = marks.add(row_marks(row, &name, style, y + ROW / 2.0, &x));
            table.rows.push(table_row(part, &name, row));
            y += ROW;
        }
    }
    let mut named: Vec<f64> = Vec::new();
    for (ratio, name) in MARKED.into_iter().filter(|(ratio, _)| x.has(*ratio)) {
        let at = x.at(ratio);
        if named.iter().all(|other| (at - other).abs() >= MARK_GAP) {
            grid = grid
                .add(line((at, HEAD), (at, bottom), if ratio == 1.0 { "zero" } else { "grid" }))
                .add(below_axis(at, bottom, name));
            named.push(at);
        }
    }
    let middle = (left + RIGHT) / 2.0;
    let axis = format!("change relative to {}", label(parts.first().map_or("base", |part| part.reference())));
    grid = grid.add(axis_name(middle, bottom, &axis));
    let is_open = |row: &EffectRow<'_>| matches!(row.verdict, Some(ContrastVerdict::Undecided { .. }));
    let is_any_open = groups.iter().flat_map(|(_, rows)| rows).any(is_open);
    let open = if is_any_open { " A hollow dot has no verdict." } else { "" };
    let unbounded = match estimates().any(|estimate| ends(estimate).is_none()) {
        true => " A dot without a line has no interval: too few blocks were measured.",
        false => "",
    };
    Some(Chart {
        title: words::criterion(criterion),
        unit: "change with its interval".to_owned(),
        note: Some(format!("Grey: how much identical runs differ.{open}{unbounded}")),
        svg: image(bottom + FOOT, Group::new().add(grid).add(marks)),
        table,
    })
}

/// The reference against itself, then the treatments.
fn rows<'a>(part: &'a Part<'_>, criterion: &Criterion) -> Vec<EffectRow<'a>> {
    let control = part.analysis.controls.iter().find(|control| control.criterion == *criterion);
    let control =
        control.map(|control| EffectRow { name: part.reference(), estimate: control.estimate, verdict: None });
    let of_criterion = part.analysis.contrasts.iter().filter(|contrast| contrast.criterion == *criterion);
    let of_reference = of_criterion.filter(|contrast| contrast.against == part.reference());
    let treatments = of_reference.map(|contrast| EffectRow {
        name: &contrast.treatment,
        estimate: contrast.estimate,
        verdict: Some(contrast.verdict),
    });
    control.into_iter().chain(treatments).collect()
}

fn row_marks(row: &EffectRow<'_>, name: &str, style: Option<&ModeStyle>, y: f64, x: &Scale) -> Group {
    let group = Group::new().set("class", style.map(ModeStyle::classes).unwrap_or_default());
    let Some(estimate) = row.estimate else { return group.add(text(RIGHT + 8.0, y + 4.0, "unknown", "t")) };
    let is_open = matches!(row.verdict, Some(ContrastVerdict::Undecided { .. }));
    let said = format!("{}: {}, {}", label(name), words::change(estimate.ratio), interval(&estimate));
    let interval = ends(estimate).map(|(low, high)| line((x.at(low), y), (x.at(high), y), "line"));
    interval
        .into_iter()
        .fold(group, Group::add)
        .add(dot((x.at(estimate.ratio), y), 4.0, if is_open { "open" } else { "dot" }, &said))
        .add(text(RIGHT + 8.0, y + 4.0, &words::change(estimate.ratio), ""))
}

/// Ends of the interval. `None` if there are too few blocks for both.
fn ends(estimate: RatioEstimate) -> Option<(f64, f64)> {
    Some((estimate.low, estimate.high?))
}

fn interval(estimate: &RatioEstimate) -> String {
    ends(*estimate).map_or_else(
        || "no interval".to_owned(),
        |(low, high)| {
            let [low, high] = words::change_range(low, high);
            format!("{low} to {high}")
        },
    )
}

fn table_row(part: &Part<'_>, name: &str, row: &EffectRow<'_>) -> Vec<String> {
    let unknown = || "unknown".to_owned();
    let verdict = match row.verdict {
        None => "the noise floor".to_owned(),
        Some(verdict) => words::verdict(&verdict).to_lowercase(),
    };
    vec![
        shown(&part.load),
        shown(name),
        row.estimate.map_or_else(unknown, |estimate| words::change(estimate.ratio)),
        row.estimate.map_or_else(unknown, |estimate| interval(&estimate)),
        verdict,
    ]
}
