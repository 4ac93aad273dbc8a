//! The race of a search: when each arm had slices, and why it left.

use quell_linux::visible::counted;
use quell_mode::DeliveryMode;
use svg::node::element::Group;

use super::{Chart, Grid, Scale, WIDTH, axis_name, below_axis, dot, image, line, shortened, shown, text, tick};
use crate::palette::ModeStyle;

const ROW: f64 = 19.0;
const LEFT: f64 = 178.0;
/// Number of letters of an arm: its settings distinguish it.
const ARM_LETTERS: usize = 22;
const RIGHT: f64 = WIDTH - 92.0;
const HEAD: f64 = 6.0;

/// An arm that had slices.
pub(crate) struct RacedArm {
    pub(crate) mode: DeliveryMode,
    /// Middle of each slice, in seconds of the search.
    pub(crate) times: Vec<f64>,
    pub(crate) is_alive: bool,
    /// What became of it, in a word or two, and in words.
    pub(crate) end: &'static str,
    pub(crate) why: String,
}

/// Draws the race. `more` arms are not drawn.
pub(crate) fn chart(arms: &[RacedArm], seconds: f64, more: usize) -> Option<Chart> {
    (!arms.is_empty()).then_some(())?;
    let x = Scale::from_zero(seconds, LEFT, RIGHT);
    let bottom = HEAD + ROW * arms.len() as f64;
    let mut marks = Group::new();
    for value in x.ticks(5) {
        marks = marks.add(line((x.at(value), HEAD), (x.at(value), bottom), "grid")).add(below_axis(
            x.at(value),
            bottom,
            &tick(value),
        ));
    }
    let mut table = Grid::new(["arm", "slices", "last slice, s", "became"]);
    let names: Vec<String> = arms.iter().map(|arm| arm.mode.to_string()).collect();
    let styles = ModeStyle::of_all(names.iter().zip(arms).map(|(name, arm)| (name.as_str(), arm.mode)));
    for (index, (arm, name)) in arms.iter().zip(&names).enumerate() {
        let y = HEAD + ROW * (index as f64 + 0.5);
        let last = arm.times.last().copied().unwrap_or(0.0);
        let classes = styles.iter().find(|style| style.name == *name).map(ModeStyle::classes).unwrap_or_default();
        let mut group = Group::new().set("class", classes).add(line((LEFT, y), (x.at(last), y), "lead"));
        for (slice, at) in arm.times.iter().enumerate() {
            let said = format!("{}: slice {} at {:.1} s", shortened(name, ARM_LETTERS), slice + 1, at);
            group = group.add(dot((x.at(*at), y), 2.5, "dot", &said));
        }
        marks = marks.add(text(8.0, y + 4.0, &shortened(name, ARM_LETTERS), "")).add(group).add(text(
            RIGHT + 8.0,
            y + 4.0,
            arm.end,
            if arm.is_alive { "h" } else { "t" },
        ));
        table.rows.push(vec![shown(name), arm.times.len().to_string(), format!("{last:.1}"), shown(&arm.why)]);
    }
    let axis = axis_name((LEFT + RIGHT) / 2.0, bottom, "seconds of the search");
    Some(Chart {
        title: "Slices of each arm, and what became of it".to_owned(),
        unit: "the arms with the most slices first".to_owned(),
        note: (more > 0).then(|| format!("{} had fewer slices.", counted(more, "more arm"))),
        svg: image(bottom + 38.0, marks.add(line((LEFT, bottom), (RIGHT, bottom), "axis")).add(axis)),
        table,
    })
}
