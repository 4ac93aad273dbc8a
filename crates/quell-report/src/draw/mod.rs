//! Charts: an SVG image with the table behind it. Every text in an image is short, every mark says its value.

pub(crate) mod curves;
pub(crate) mod effects;
pub(crate) mod loads;
pub(crate) mod over_time;
pub(crate) mod race;
mod scale;
pub(crate) mod slices;
pub(crate) mod timeline;

use quell_linux::visible;
use svg::Document;
use svg::node::element::{Circle, Group, Line, Path, Rectangle, Style, Text, Title};

use crate::palette::style_sheet;
use crate::words::TextTable;

pub(crate) use scale::{Nines, Scale, compact, tick};

/// Width of a chart that stands beside others, in px. Its text is legible at 320 px.
pub(crate) const WIDTH: f64 = 400.0;
/// Number of letters of a name in a chart: those of `base (threadedbusy) again`.
const NAME_LETTERS: usize = 25;
/// Width of a letter of a name, in px.
const LETTER: f64 = 7.0;
/// Least width of a column of names, in px.
const NAMES_MIN: f64 = 96.0;
/// Number of letters of a name in a table or a sentence.
const TEXT_LETTERS: usize = 160;

/// A chart: one idea, with a unit.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Quantity and unit of its axes.
    pub(crate) unit: String,
    /// What a mark means that does not explain itself.
    pub(crate) note: Option<String>,
    pub(crate) svg: String,
    pub(crate) table: Grid,
}

/// A table. The first column has names.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    pub(crate) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }
}

impl From<&TextTable> for Grid {
    fn from(table: &TextTable) -> Self {
        let mut grid = Self::new(table.head.iter().copied());
        grid.rows = table.rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
        grid
    }
}

/// A text of another source for tables and sentences: without control characters, and not endless.
pub(crate) fn shown(text: &str) -> String {
    shortened(text, TEXT_LETTERS)
}

/// A name of another source for a chart.
pub(crate) fn label(text: &str) -> String {
    shortened(text, NAME_LETTERS)
}

/// Width of a column with these names, in px.
pub(crate) fn names_width<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    let letters = names.map(|name| label(name).chars().count()).max().unwrap_or(0);
    (letters as f64 * LETTER).max(NAMES_MIN)
}

fn shortened(text: &str, letters: usize) -> String {
    // Only the beginning is escaped: a name may have megabytes.
    let start: String = text.chars().take(letters + 1).collect();
    let start = visible::name(&start);
    match start.chars().count() {
        count if count <= letters => start.into_owned(),
        _ => start.chars().take(letters - 1).chain(['…']).collect(),
    }
}

/// Rectangle between the axes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plot {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Plot {
    /// The same with room for these names at the right; see [`EndLabels`].
    pub(crate) fn with_names<'a>(self, names: impl Iterator<Item = &'a str>) -> Self {
        Self { right: WIDTH - END_LABEL - names_width(names) - 6.0, ..self }
    }
}

/// Finishes an image of this height.
pub(crate) fn image(height: f64, marks: Group) -> String {
    let document = Document::new().set("class", "chart").set("viewBox", (0, 0, WIDTH, height.ceil()));
    document.add(marks).to_string()
}

/// Finishes an image that stands alone: with its style sheet, on a sheet.
pub(crate) fn standalone(width: f64, height: f64, marks: Group) -> String {
    let sheet = Rectangle::new().set("width", "100%").set("height", "100%").set("rx", 8).set("class", "sheet");
    let document = Document::new()
        .set("class", "chart")
        .set("viewBox", (0, 0, width.ceil(), height.ceil()))
        .add(Style::new(style_sheet()))
        .add(sheet)
        .add(marks);
    format!("{document}\n")
}

pub(crate) fn text(x: f64, y: f64, content: &str, class: &str) -> Text {
    Text::new(content).set("x", round(x)).set("y", round(y)).set("class", class)
}

pub(crate) fn anchored(text: Text, anchor: &str) -> Text {
    text.set("text-anchor", anchor)
}

/// Number or name below an axis at the height `bottom`.
pub(crate) fn below_axis(x: f64, bottom: f64, name: &str) -> Text {
    anchored(text(x, bottom + 15.0, name, "t"), "middle")
}

/// What an axis at the height `bottom` shows, below its numbers.
pub(crate) fn axis_name(x: f64, bottom: f64, name: &str) -> Text {
    anchored(text(x, bottom + 31.0, name, "t"), "middle")
}

pub(crate) fn line(from: (f64, f64), to: (f64, f64), class: &str) -> Line {
    let ((x1, y1), (x2, y2)) = (from, to);
    Line::new().set("x1", round(x1)).set("y1", round(y1)).set("x2", round(x2)).set("y2", round(y2)).set("class", class)
}

pub(crate) fn rectangle(from: (f64, f64), to: (f64, f64), class: &str) -> Rectangle {
    let ((left, top), (right, bottom)) = (from, to);
    Rectangle::new()
        .set("x", round(left))
        .set("y", round(top))
        .set("width", round((right - left).max(0.0)))
        .set("height", round((bottom - top).max(0.0)))
        .set("class", class)
}

/// A dot that says its value to a pointer and, with the script of the page, to the keyboard.
pub(crate) fn dot((x, y): (f64, f64), radius: f64, class: &str, value: &str) -> Circle {
    Circle::new().set("cx", round(x)).set("cy", round(y)).set("r", radius).set("class", class).add(Title::new(value))
}

pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Horizontal lines with their values at the left.
pub(crate) fn value_axis(plot: Plot, scale: &Scale) -> Group {
    let one = |group: Group, value: &f64| {
        let y = scale.at(*value);
        let number = anchored(text(plot.left - 6.0, y + 4.0, &tick(*value), "t"), "end");
        group.add(line((plot.left, y), (plot.right, y), "grid")).add(number)
    };
    scale.ticks(6).iter().fold(Group::new(), one)
}

/// Names beside the ends of lines, moved apart, with a line from each end to its name.
pub(crate) struct EndLabels {
    /// Where a line ends, its name and its classes.
    pub(crate) ends: Vec<((f64, f64), String, String)>,
}

const LABEL_HEIGHT: f64 = 15.0;
/// Distance of a name from the plot, in px.
const END_LABEL: f64 = 30.0;

impl EndLabels {
    pub(crate) fn draw(mut self, plot: Plot) -> Group {
        self.ends.sort_by(|((_, one), ..), ((_, other), ..)| one.total_cmp(other));
        let mut at: Vec<f64> = self.ends.iter().map(|((_, y), ..)| *y).collect();
        for index in 1..at.len() {
            at[index] = at[index].max(at[index - 1] + LABEL_HEIGHT);
        }
        let mut below = plot.bottom + LABEL_HEIGHT / 2.0;
        for y in at.iter_mut().rev() {
            *y = y.min(below);
            below = *y - LABEL_HEIGHT;
        }
        let x = plot.right + 12.0;
        self.ends.iter().zip(at).fold(Group::new(), |group, ((end, name, classes), y)| {
            let one = Group::new()
                .set("class", classes.as_str())
                .add(line(*end, (x - 2.0, y), "lead"))
                .add(Path::new().set("class", "curve").set("d", path(&[(x, y), (x + 14.0, y)])))
                .add(text(plot.right + END_LABEL, y + 4.0, name, ""));
            group.add(one)
        })
    }
}

/// A path through points.
pub(crate) fn path(points: &[(f64, f64)]) -> String {
    let step = |(index, (x, y)): (usize, &(f64, f64))| {
        format!("{}{} {}", if index == 0 { "M" } else { "L" }, round(*x), round(*y))
    };
    points.iter().enumerate().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_chart_is_short_and_has_no_control_characters() {
        assert_eq!(label("suspend200"), "suspend200");
        assert_eq!(label(&"x".repeat(10_000)), format!("{}…", "x".repeat(24)));
        assert_eq!(label("a\u{1b}[2J"), "a\\u{1b}[2J");
    }

    #[test]
    fn the_longest_name_of_a_reference_is_not_cut_and_has_room() {
        let name = "base (threadedbusy) again";
        assert_eq!(label(name), name);
        let plot = Plot { left: 50.0, right: 0.0, top: 0.0, bottom: 0.0 };
        let [short, long] = ["base", name].map(|name| plot.with_names([name].into_iter()).right);
        assert!(long < short && long > 150.0, "{long} {short}");
    }

    #[test]
    fn labels_of_ends_do_not_overlap_and_stay_in_the_plot() {
        let plot = Plot { left: 0.0, right: 100.0, top: 0.0, bottom: 100.0 };
        let end = |y: f64| ((100.0, y), "a".to_owned(), String::new());
        let svg = EndLabels { ends: vec![end(97.0), end(98.0), end(99.0), end(10.0)] }.draw(plot).to_string();
        let mut at: Vec<f64> = svg
            .split("<text")
            .skip(1)
            .map(|text| text.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        at.sort_by(f64::total_cmp);
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_HEIGHT), "{at:?}");
        assert!(at[3] <= plot.bottom + LABEL_HEIGHT, "{at:?}");
    }
}
