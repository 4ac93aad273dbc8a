//! Values over the time of a recording, a line for each of what is compared. Dashed lines are at the times of changes.

use quell_cli::number::{ABSENT, short};
use svg::node::element::{Group, Path};

use super::{
    Chart, EndLabels, Grid, Plot, Scale, WIDTH, axis_name, below_axis, dot, image, line, path, shown, tick, value_axis,
};
use crate::words::RecordedChange;

const HEIGHT: f64 = 218.0;
const PLOT: Plot = Plot { left: 50.0, right: WIDTH, top: 12.0, bottom: HEIGHT - 36.0 };

/// Values at all times; absent where they are unknown.
pub(crate) struct TimeLine {
    pub(crate) name: String,
    /// Kind of mode whose colour it has.
    pub(crate) accent: &'static str,
    /// Number of the kind of line.
    pub(crate) variant: usize,
    pub(crate) values: Vec<Option<f64>>,
}

impl TimeLine {
    fn classes(&self) -> String {
        format!("m-{} v{}", self.accent, self.variant)
    }
}

/// Title, unit and times of a chart: ends of the intervals in seconds.
pub(crate) struct TimeAxis<'a> {
    pub(crate) times_s: &'a [f64],
    pub(crate) changes: &'a [RecordedChange],
}

impl TimeAxis<'_> {
    /// Draws the lines that reach a hundredth of the largest value, on an axis from 0, or on a logarithmic one if they
    /// differ much and
    /// `can_be_log`. `None` without any.
    pub(crate) fn chart(&self, title: &str, unit: &str, lines: &[TimeLine], can_be_log: bool) -> Option<Chart> {
        let largest = |line: &TimeLine| {
            line.values.iter().flatten().copied().filter(|value| value.is_finite()).fold(0.0, f64::max)
        };
        let max = lines.iter().map(largest).fold(0.0, f64::max);
        let drawn: Vec<&TimeLine> = lines.iter().filter(|line| largest(line) > max / 100.0).collect();
        let plot = PLOT.with_names(drawn.iter().map(|line| line.name.as_str()));
        let values = || drawn.iter().flat_map(|line| &line.values).flatten().copied();
        let y = match can_be_log {
            true => Scale::over(values().filter(|value| *value > 0.0), plot.bottom, plot.top)?,
            false => {
                let max = values().filter(|value| value.is_finite() && *value < 1e15).reduce(f64::max)?;
                Scale::from_zero(max * 1.05, plot.bottom, plot.top)
            }
        };
        let end = self.times_s.last().copied().filter(|end| end.is_finite())?;
        let x = Scale::from_zero(end, plot.left, plot.right);
        let mut marks = value_axis(plot, &y);
        for value in x.ticks(5) {
            marks = marks.add(below_axis(x.at(value), plot.bottom, &tick(value)));
        }
        let middle = (plot.left + plot.right) / 2.0;
        marks = marks.add(line((plot.left, plot.bottom), (plot.right, plot.bottom), "axis")).add(axis_name(
            middle,
            plot.bottom,
            "seconds of the recording",
        ));
        for change in self.changes {
            let at = x.at(change.at_s);
            marks = marks.add(line((at, plot.top), (at, plot.bottom), "limit")).add(dot(
                (at, plot.top),
                3.0,
                "ring",
                &shown(&change.text),
            ));
        }
        let mut labels = EndLabels { ends: Vec::new() };
        for timeline in &drawn {
            let points: Vec<Option<(f64, f64)>> = (self.times_s.iter().zip(&timeline.values))
                .map(|(time, value)| Some((x.at(*time), y.at(value.filter(|value| value.is_finite())?))))
                .collect();
            let mut group = Group::new().set("class", timeline.classes());
            for known in points.split(Option::is_none) {
                let known: Vec<(f64, f64)> = known.iter().flatten().copied().collect();
                group = group.add(Path::new().set("class", "curve").set("d", path(&known)));
            }
            for ((point, time), value) in points.iter().zip(self.times_s).zip(&timeline.values) {
                if let (Some(centre), Some(value)) = (point, value) {
                    let said = format!("{} at {} s: {} {unit}", timeline.name, short(*time), short(*value));
                    group = group.add(dot(*centre, 1.0, "tip", &said));
                }
            }
            marks = marks.add(group);
            let last = points.iter().flatten().last();
            labels.ends.extend(last.map(|end| (*end, timeline.name.clone(), timeline.classes())));
        }
        Some(Chart {
            title: title.to_owned(),
            unit: format!("{unit}, {}", y.word()),
            note: None,
            svg: image(HEIGHT, marks.add(labels.draw(plot))),
            table: self.table(unit, lines),
        })
    }

    fn table(&self, unit: &str, lines: &[TimeLine]) -> Grid {
        let names = lines.iter().map(|line| format!("{}, {unit}", line.name));
        let mut grid = Grid::new(std::iter::once("end, s".to_owned()).chain(names));
        for (index, time) in self.times_s.iter().enumerate() {
            let cell = |line: &TimeLine| line.values[index].map_or_else(|| ABSENT.to_owned(), short);
            grid.rows.push(std::iter::once(short(*time)).chain(lines.iter().map(cell)).collect());
        }
        grid
    }
}
