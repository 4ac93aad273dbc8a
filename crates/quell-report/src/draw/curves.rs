//! Latency over the quantile, on an axis of nines: one line for each mode, with the band of resampled blocks.

use quell_cli::number::{ABSENT, short};
use quell_experiment::{LatencyCurvePoint, latency_curve};
use quell_result::figures;
use quell_stats::LatencyHistogram;
use svg::node::element::{Group, Path};

use super::{
    Chart, EndLabels, Grid, Nines, Plot, Scale, WIDTH, axis_name, below_axis, dot, image, label, line, path, shown,
    text, value_axis,
};
use crate::palette::ModeStyle;
use crate::part::Part;

const HEIGHT: f64 = 258.0;
const PLOT: Plot = Plot { left: 50.0, right: WIDTH - 132.0, top: 10.0, bottom: HEIGHT - 36.0 };
/// Number of requests above the last point of a curve.
const BEYOND_MIN: f64 = 5.0;
/// Widths of a digit and of a point at an axis, and the least gap between two numbers.
const DIGIT: f64 = 7.6;
const POINT: f64 = 3.8;
const GAP: f64 = 4.0;
/// Quantiles that a judge can print.
const PRINTED: [f64; 6] = [0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

/// Latencies of one mode.
pub(crate) struct LatencyCurve {
    style: ModeStyle,
    points: Vec<LatencyCurvePoint>,
    /// Whether they are a curve, or single quantiles that a judge printed.
    is_curve: bool,
}

impl LatencyCurve {
    /// Latencies of a mode in a part. `None` without any.
    pub(crate) fn of(part: &Part<'_>, mode: &str, style: &ModeStyle) -> Option<Self> {
        let record = &part.experiment.record;
        let curve = latency_curve(record, mode);
        let is_curve = !curve.is_empty();
        let printed = |quantile: f64| {
            let us = part.experiment.median(mode, &figures::printed_latency(quantile))?;
            let ns = (us * 1e3) as u64;
            Some(LatencyCurvePoint { quantile, ns, low_ns: ns, high_ns: ns })
        };
        let points = if is_curve { curve } else { PRINTED.into_iter().filter_map(printed).collect() };
        (!points.is_empty()).then(|| Self { style: style.clone(), points, is_curve })
    }

    /// Latencies of a histogram, without a band. `None` if it is empty.
    pub(crate) fn of_histogram(histogram: &LatencyHistogram, style: &ModeStyle) -> Option<Self> {
        let last = (histogram.count() as f64 / BEYOND_MIN).log10().max(0.0);
        let quantiles = (0..=(last * 8.0) as u32).map(|step| 1.0 - 10f64.powf(-f64::from(step) / 8.0));
        let point = |quantile: f64| {
            let ns = u64::try_from(histogram.quantile(quantile)?.as_nanos()).unwrap_or(u64::MAX);
            Some(LatencyCurvePoint { quantile, ns, low_ns: ns, high_ns: ns })
        };
        let points: Vec<LatencyCurvePoint> = quantiles.filter_map(point).collect();
        (!points.is_empty()).then(|| Self { style: style.clone(), points, is_curve: true })
    }

    /// The point at a quantile, or the nearest one below it.
    fn at(&self, quantile: f64) -> Option<&LatencyCurvePoint> {
        let found = self.points.iter().rev().find(|point| point.quantile <= quantile + 1e-9)?;
        let near = if self.is_curve { found.quantile + (1.0 - found.quantile) * 0.3 } else { found.quantile };
        (near + 1e-9 >= quantile).then_some(found)
    }
}

/// A latency that must not be exceeded at a quantile.
pub(crate) struct LimitLine {
    pub(crate) quantile: f64,
    pub(crate) us: f64,
    pub(crate) text: String,
}

/// Draws the latencies of a part. `None` without latencies.
pub(crate) fn chart(title: &str, curves: &[LatencyCurve], limits: &[LimitLine]) -> Option<Chart> {
    let plot = PLOT.with_names(curves.iter().map(|curve| curve.style.name.as_str()));
    let us = |ns: u64| ns as f64 / 1e3;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let values = points().flat_map(|point| [us(point.low_ns), us(point.ns), us(point.high_ns)]);
    let limited = limits.iter().map(|limit| limit.us);
    let y = Scale::over(values.chain(limited), plot.bottom, plot.top)?;
    let last = points().map(|point| point.quantile).fold(0.5, f64::max);
    let x = Nines::to(last, plot.left, plot.right);
    let marked: Vec<(f64, &str)> = x.marked().collect();
    let mut marks = value_axis(plot, &y);
    let named = named(&marked, &x);
    for (quantile, name) in &marked {
        let at = x.at(*quantile);
        marks = marks.add(line((at, plot.top), (at, plot.bottom), "grid"));
        if named.contains(name) {
            marks = marks.add(below_axis(at, plot.bottom, name));
        }
    }
    marks = marks.add(line((plot.left, plot.bottom), (plot.right, plot.bottom), "axis")).add(axis_name(
        (plot.left + plot.right) / 2.0,
        plot.bottom,
        "percentile",
    ));
    for curve in curves {
        let at = |ns: fn(&LatencyCurvePoint) -> u64| -> Vec<(f64, f64)> {
            curve.points.iter().map(|point| (x.at(point.quantile), y.at(us(ns(point))))).collect()
        };
        let mut group = Group::new().set("class", curve.style.classes());
        if curve.is_curve {
            let (low, mut outline) = (at(|point| point.low_ns), at(|point| point.high_ns));
            outline.extend(low.into_iter().rev());
            group = group
                .add(Path::new().set("class", "band").set("d", path(&outline) + "Z"))
                .add(Path::new().set("class", "curve").set("d", path(&at(|point| point.ns))));
        }
        for (quantile, name) in &marked {
            let Some(point) = curve.at(*quantile) else { continue };
            let said = format!("{}, p{name}: {}", label(&curve.style.name), value(point, curve.is_curve));
            let centre = (x.at(*quantile), y.at(us(point.ns)));
            group = group.add(dot(centre, if curve.is_curve { 2.5 } else { 4.0 }, "dot", &said));
        }
        marks = marks.add(group);
    }
    for limit in limits {
        let (at, across) = (y.at(limit.us), x.at(limit.quantile));
        marks = marks
            .add(line((plot.left, at), (plot.right, at), "limit"))
            .add(dot((across, at), 4.0, "ring", &limit.text))
            .add(text(plot.left + 4.0, at - 5.0, &limit.text, "t halo"));
    }
    let end = |curve: &LatencyCurve| {
        let last = curve.points.last()?;
        Some(((x.at(last.quantile), y.at(us(last.ns))), label(&curve.style.name), curve.style.classes()))
    };
    let labels = EndLabels { ends: curves.iter().filter_map(end).collect() };
    let table = table(curves, &marked);
    let are_curves = curves.iter().any(|curve| curve.is_curve);
    let note = (!are_curves).then(|| "The judge printed these quantiles only, so there is no curve.".to_owned());
    Some(Chart {
        title: title.to_owned(),
        unit: format!("latency in µs, {}", y.word()),
        note,
        svg: image(HEIGHT, marks.add(labels.draw(plot))),
        table,
    })
}

/// The marked quantiles whose names have room: those before the first one that has none, so that no name is missing
/// between others.
fn named<'a>(marked: &[(f64, &'a str)], x: &Nines) -> Vec<&'a str> {
    let mut free_from = f64::NEG_INFINITY;
    let has_room = |&&(quantile, name): &&(f64, &str)| {
        let width: f64 = name.chars().map(|letter| if letter == '.' { POINT } else { DIGIT }).sum();
        let from = x.at(quantile) - width / 2.0;
        let has_room = from >= free_from;
        free_from = from + width + GAP;
        has_room
    };
    marked.iter().take_while(has_room).map(|(_, name)| *name).collect()
}

fn value(point: &LatencyCurvePoint, has_band: bool) -> String {
    let [ns, low, high] = [point.ns, point.low_ns, point.high_ns].map(|ns| short(ns as f64 / 1e3));
    if has_band { format!("{ns} µs ({low} to {high})") } else { format!("{ns} µs") }
}

fn table(curves: &[LatencyCurve], marked: &[(f64, &str)]) -> Grid {
    let mut grid =
        Grid::new(std::iter::once("mode".to_owned()).chain(marked.iter().map(|(_, name)| format!("p{name}"))));
    for curve in curves {
        let of = |(quantile, _): &(f64, &str)| {
            curve.at(*quantile).map_or_else(|| ABSENT.to_owned(), |point| value(point, curve.is_curve))
        };
        grid.rows.push(std::iter::once(shown(&curve.style.name)).chain(marked.iter().map(of)).collect());
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_percentile_is_left_out_between_others() {
        for last in [0.999, 0.9999, 0.99999, 0.999_996, 0.999_999] {
            let x = Nines::to(last, PLOT.left, PLOT.right);
            let marked: Vec<(f64, &str)> = x.marked().collect();
            let named = named(&marked, &x);
            assert!(named.iter().zip(&marked).all(|(name, (_, other))| name == other), "{last}: {named:?}");
            assert!(last > 0.99999 || named.len() == marked.len(), "{last}: {named:?}");
        }
    }
}
