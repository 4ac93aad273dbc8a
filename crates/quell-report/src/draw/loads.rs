//! What a mode costs and gives at each load: latency against throughput, and CPU time.

use quell_cli::number::{ABSENT, short};
use quell_experiment::Criterion;
use quell_result::figures;
use svg::node::element::{Group, Path};

use super::{
    Chart, EndLabels, Grid, Plot, Scale, WIDTH, anchored, axis_name, below_axis, compact, dot, image, label, line,
    names_width, path, rectangle, shown, text, tick, value_axis,
};
use crate::palette::ModeStyle;
use crate::part::{Part, slice_value};
use crate::words;

const HEIGHT: f64 = 258.0;
const PLOT: Plot = Plot { left: 50.0, right: WIDTH, top: 10.0, bottom: HEIGHT - 36.0 };

/// Throughput and another quantity of one mode at one load.
pub(crate) struct LoadPoint {
    pub(crate) load: String,
    pub(crate) per_s: f64,
    pub(crate) value: f64,
}

/// Draws a latency quantile against throughput. Closed loops are omitted, because their latency follows from their
/// throughput. `None` with fewer than two loads.
pub(crate) fn latency(quantile: f64, parts: &[Part<'_>], styles: &[ModeStyle]) -> Option<Chart> {
    let value = |part: &Part<'_>, mode: &str| part.latency_us(mode, quantile).filter(|_| !part.is_closed_loop());
    let name = words::criterion(&Criterion::Latency { quantile });
    over_throughput(&name, "latency", "µs", lines(parts, styles, value))
}

/// Draws CPU time per request against throughput; with one load, a bar for each mode.
pub(crate) fn cpu(parts: &[Part<'_>], styles: &[ModeStyle]) -> Option<Chart> {
    let work = parts.first()?.work();
    let value = |part: &Part<'_>, mode: &str| part.experiment.median(mode, &work.name(figures::CPU));
    let name = format!("CPU time per {}", work.word());
    let drawn = over_throughput(&name, "median of the slices", "µs", lines(parts, styles, value));
    drawn.or_else(|| cpu_bars(parts, styles))
}

fn lines<'a>(
    parts: &[Part<'_>],
    styles: &'a [ModeStyle],
    value: impl Fn(&Part<'_>, &str) -> Option<f64>,
) -> Vec<(&'a ModeStyle, Vec<LoadPoint>)> {
    let point = |part: &Part<'_>, mode: &str| {
        let per_s = part.experiment.median(mode, figures::REQUESTS)?;
        Some(LoadPoint { load: label(&part.load), per_s, value: value(part, mode)? })
    };
    let of_mode = |mode: &str| parts.iter().filter_map(|part| point(part, mode)).collect();
    styles.iter().map(|style| (style, of_mode(&style.name))).collect()
}

/// Draws a quantity with its unit against throughput, a line for each mode. `None` with fewer than two loads.
pub(crate) fn over_throughput(
    name: &str,
    about: &str,
    unit: &str,
    lines: Vec<(&ModeStyle, Vec<LoadPoint>)>,
) -> Option<Chart> {
    let mut lines: Vec<_> = lines.into_iter().filter(|(_, points)| points.len() > 1).collect();
    for (_, points) in &mut lines {
        points.retain(|point| point.per_s.is_finite() && point.value.is_finite());
        points.sort_by(|one, other| one.per_s.total_cmp(&other.per_s));
    }
    let plot = PLOT.with_names(lines.iter().map(|(style, _)| style.name.as_str()));
    let all = || lines.iter().flat_map(|(_, points)| points);
    let y = Scale::over(all().map(|point| point.value), plot.bottom, plot.top)?;
    let per_s_max = all().map(|point| point.per_s).fold(0.0, f64::max);
    let x = Scale::from_zero(per_s_max * 1.04, plot.left, plot.right);
    let mut marks = value_axis(plot, &y);
    for value in x.ticks(4) {
        marks = marks.add(below_axis(x.at(value), plot.bottom, &compact(value)));
    }
    let middle = (plot.left + plot.right) / 2.0;
    marks = marks.add(line((plot.left, plot.bottom), (plot.right, plot.bottom), "axis")).add(axis_name(
        middle,
        plot.bottom,
        "requests/s answered",
    ));
    let mut table = Grid::new(["mode", "load", "requests/s", &format!("{name}, {unit}")]);
    let mut labels = EndLabels { ends: Vec::new() };
    for (style, points) in &lines {
        let at: Vec<(f64, f64)> = points.iter().map(|point| (x.at(point.per_s), y.at(point.value))).collect();
        let mut group = Group::new().set("class", style.classes());
        group = group.add(Path::new().set("class", "curve").set("d", path(&at)));
        for (point, centre) in points.iter().zip(&at) {
            let (per_s, value) = (short(point.per_s), short(point.value));
            let said = format!("{} at {}: {per_s} requests/s, {name} {value} {unit}", label(&style.name), point.load);
            group = group.add(dot(*centre, 3.0, "dot", &said));
            table.rows.push(vec![shown(&style.name), point.load.clone(), per_s, value]);
        }
        marks = marks.add(group);
        labels.ends.extend(at.last().map(|end| (*end, label(&style.name), style.classes())));
    }
    Some(Chart {
        title: format!("{name} against throughput"),
        unit: format!("{about} in {unit}, {}", y.word()),
        note: None,
        svg: image(HEIGHT, marks.add(labels.draw(plot))),
        table,
    })
}

const ROW: f64 = 20.0;
const RIGHT: f64 = WIDTH - 62.0;

/// A mode, and the lower end, the middle and the upper end of its values.
pub(crate) type Bar<'a> = (&'a ModeStyle, [f64; 3]);

/// Texts of a chart of bars.
pub(crate) struct BarChart<'a> {
    pub(crate) title: &'a str,
    pub(crate) about: &'a str,
    pub(crate) unit: &'a str,
    /// What the ends of the thin lines are. Absent without such lines.
    pub(crate) spread: Option<&'a str>,
}

/// Draws the CPU time per request, or per packet, at each load: the median of the slices, and their middle half.
fn cpu_bars(parts: &[Part<'_>], styles: &[ModeStyle]) -> Option<Chart> {
    let work = parts.first()?.work();
    let criterion = work.cpu();
    let quartiles = |part: &Part<'_>, mode: &str| {
        let arms = part.experiment.arms_of(mode);
        let slices = part.experiment.record.slices.iter().filter(|slice| arms.contains(&slice.arm));
        let mut values: Vec<f64> = slices.filter_map(|slice| slice_value(&slice.observation, &criterion)).collect();
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values.get(((values.len().max(1) - 1) as f64 * share).round() as usize).copied();
        Some([at(0.25)?, part.experiment.median(mode, &work.name(figures::CPU))?, at(0.75)?])
    };
    let of_part = |part: &Part<'_>| {
        let rows = styles.iter().filter_map(|style| Some((style, quartiles(part, &style.name)?)));
        (part.load.clone(), rows.collect())
    };
    let groups: Vec<(String, Vec<Bar<'_>>)> = parts.iter().map(of_part).collect();
    let title = format!("CPU time per {}", work.word());
    let spread = Some("middle half of the slices");
    bars(&BarChart { title: &title, about: "median of the slices", unit: "µs", spread }, &groups)
}

/// Draws a bar for each mode at each load. `None` without values above 0.
pub(crate) fn bars(chart: &BarChart<'_>, groups: &[(String, Vec<Bar<'_>>)]) -> Option<Chart> {
    let BarChart { title, about, unit, spread } = chart;
    let values = groups.iter().flat_map(|(_, rows)| rows).flat_map(|(_, values)| values);
    let max = values.copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    (max > 0.0).then_some(())?;
    let names = groups.iter().flat_map(|(_, rows)| rows).map(|(style, _)| style.name.as_str());
    let left = 16.0 + names_width(names);
    let x = Scale::from_zero(max * 1.05, left, RIGHT);
    let (mut marks, mut y) = (Group::new(), 8.0);
    let head = ["load".to_owned(), "mode".to_owned(), format!("{title}, {unit}")];
    let mut table = Grid::new(head.into_iter().chain(spread.map(ToString::to_string)));
    for (load, rows) in groups.iter().filter(|(_, rows)| !rows.is_empty()) {
        marks = marks.add(text(0.0, y + 14.0, &format!("at {}", label(load)), "h"));
        y += ROW;
        for (style, [low, middle, high]) in rows {
            let centre = y + ROW / 2.0;
            let ends = format!("{} to {}", short(*low), short(*high));
            let said_spread = spread.map_or_else(String::new, |spread| format!(", {spread} {ends}"));
            let said = format!("{}: {} {unit}{said_spread}", label(&style.name), short(*middle));
            let bar = rectangle((left, centre - 5.0), (x.at(*middle), centre + 5.0), "bar mark");
            let mut group = Group::new()
                .set("class", style.classes())
                .add(text(8.0, y + 14.0, &label(&style.name), ""))
                .add(bar.add(svg::node::element::Title::new(said)))
                .add(text(RIGHT + 8.0, y + 14.0, &short(*middle), ""));
            if spread.is_some() {
                group = group.add(line((x.at(*low), centre), (x.at(*high), centre), "whisker"));
            }
            marks = marks.add(group);
            let cells = [shown(load), shown(&style.name), short(*middle)];
            table.rows.push(cells.into_iter().chain(spread.map(|_| ends)).collect());
            y += ROW;
        }
    }
    let mut grid = Group::new();
    for value in x.ticks(5) {
        grid = grid
            .add(line((x.at(value), 8.0), (x.at(value), y), "grid"))
            .add(anchored(text(x.at(value), y + 15.0, &tick(value), "t"), "middle"));
    }
    grid = grid.add(anchored(text((left + RIGHT) / 2.0, y + 31.0, unit, "t"), "middle"));
    Some(Chart {
        title: (*title).to_owned(),
        unit: format!("{about} in {unit}"),
        note: spread.map(|spread| format!("The thin line is the {spread}.")),
        svg: image(y + 38.0, Group::new().add(grid).add(marks)),
        table,
    })
}

/// A number in a table or beside a mark, or that it is absent.
pub(crate) fn cell(value: Option<f64>) -> String {
    let number = |value: f64| if value >= 100_000.0 { compact(value) } else { short(value) };
    value.filter(|value| value.is_finite()).map_or_else(|| ABSENT.to_owned(), number)
}
