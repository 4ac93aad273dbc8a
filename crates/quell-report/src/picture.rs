//! Draws a bench result as an SVG image: latency and CPU time of each mode, for each load. Closed loops are omitted, because
//! their latency follows from their throughput.

use quell_cli::number;
use quell_linux::visible;
use quell_load::OfferedLoad;
use quell_result::experiment::{ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::figures::{self, Work};
use svg::Document;
use svg::node::element::{Circle, Group, Line, Rectangle, Text};

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
const LABEL_WIDTH: f64 = 110.0;
const LATENCY_WIDTH: f64 = 420.0;
const GAP: f64 = 40.0;
const ROW_HEIGHT: f64 = 24.0;
const PANEL_HEAD: f64 = 62.0;

const INK: &str = "#24292f";
const FAINT: &str = "#d0d7de";
const GREY: &str = "#6e7781";
const BASE: &str = "#8c959f";
const MODE: &str = "#0969da";

struct Panel {
    heading: String,
    work: Work,
    rows: Vec<Bars>,
}

/// Latency and CPU time of one mode, in µs.
struct Bars {
    label: String,
    is_reference: bool,
    /// p50 and p99 of the latency, in µs.
    latency: Option<(f64, f64)>,
    cpu: Option<f64>,
}

/// Draws the image. Returns `None` if the result contains no latency except of a closed loop.
#[must_use]
pub fn draw(result: &ExperimentResult) -> Option<String> {
    let open = result.experiments.iter().filter(|experiment| experiment.load != Some(OfferedLoad::Max));
    let panel = |experiment: &LoadExperiment| {
        let analysis = experiment.analyse();
        let slices = &experiment.record.slices;
        let per_request = Work::Request.name(figures::CPU);
        let has_requests = slices.iter().any(|slice| slice.observation.metric(&per_request).is_some());
        let work = if has_requests { Work::Request } else { Work::Packet };
        let reference = &experiment.record.design.reference.name;
        let row = |label: &str| Bars {
            label: label.to_owned(),
            is_reference: label == reference,
            latency: experiment.latency_us(&analysis, label, 0.5).zip(experiment.latency_us(&analysis, label, 0.99)),
            cpu: experiment.median(label, &work.name(figures::CPU)),
        };
        let rows = experiment.treatment_names().map(row).collect();
        Panel { heading: heading(experiment.load, experiment.offered_per_s), work, rows }
    };
    assemble(&title(result), &open.map(panel).collect::<Vec<_>>())
}

fn title(result: &ExperimentResult) -> String {
    if let SubjectFacts::Model(model) = &result.subject {
        return format!("Delivery modes on the model of {}", model.profile);
    }
    let on = match &result.subject {
        SubjectFacts::Programs(programs) => programs.processes.first().map(|process| process.name.as_str()),
        SubjectFacts::Command(facts) => facts.command.first().map(String::as_str),
        _ => Some("a veth lab"),
    };
    let cpu = result.host.cpu_model.as_deref().unwrap_or("unknown processor");
    let on = visible::name(on.unwrap_or("programs"));
    format!("Delivery modes on {on}: Linux {}, {cpu}", result.host.kernel_release)
}

fn heading(load: Option<OfferedLoad>, offered_per_s: Option<f64>) -> String {
    let offered = offered_per_s.map(|per_s| format!(": {} requests/s offered", number::short(per_s)));
    match load {
        Some(load @ OfferedLoad::Percent(_)) => format!("{load} of base's maximum{}", offered.unwrap_or_default()),
        Some(load) => format!("{load} requests/s"),
        None => "the present load".to_owned(),
    }
}

fn assemble(title: &str, panels: &[Panel]) -> Option<String> {
    let rows = || panels.iter().flat_map(|panel| &panel.rows);
    let scale = LogScale::over(rows().filter_map(|row| row.latency))?;
    let cpu_max = rows().filter_map(|row| row.cpu).fold(0.0, f64::max);
    let mut drawn = Group::new();
    let mut top = MARGIN + 34.0;
    for panel in panels {
        drawn = drawn.add(draw_panel(panel, top, &scale, cpu_max));
        top += panel_height(panel);
    }
    let document = Document::new()
        .set("viewBox", (0.0, 0.0, WIDTH, top + MARGIN / 2.0))
        .set("font-family", "system-ui, sans-serif")
        .set("font-size", 13)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("rx", 8).set("fill", "#ffffff"))
        .add(text(MARGIN, MARGIN + 6.0, title, INK).set("font-size", 15).set("font-weight", 600))
        .add(drawn);
    Some(format!("{document}\n"))
}

fn panel_height(panel: &Panel) -> f64 {
    PANEL_HEAD + ROW_HEIGHT * panel.rows.len() as f64 + 14.0
}

fn draw_panel(panel: &Panel, top: f64, scale: &LogScale, cpu_max: f64) -> Group {
    let rows_top = top + PANEL_HEAD;
    let rows_bottom = rows_top + ROW_HEIGHT * panel.rows.len() as f64;
    let mut group = Group::new()
        .add(text(MARGIN, top + 18.0, &panel.heading, INK).set("font-weight", 600))
        .add(text(latency_left(), top + 40.0, "latency, p50 to p99, µs (lower is better)", GREY))
        .add(text(cpu_left(), top + 40.0, &format!("CPU time per {}, µs", panel.work.word()), GREY));
    for tick in scale.ticks() {
        let x = scale.x(tick);
        group = group.add(line((x, rows_top - 6.0), (x, rows_bottom), FAINT, 1.0)).add(
            text(x, top + PANEL_HEAD - 9.0, &number::short(tick), GREY)
                .set("font-size", 11)
                .set("text-anchor", "middle"),
        );
    }
    for (index, row) in panel.rows.iter().enumerate() {
        group = group.add(row_marks(row, rows_top + ROW_HEIGHT * (index as f64 + 0.5), scale, cpu_max));
    }
    group
}

fn row_marks(row: &Bars, y: f64, scale: &LogScale, cpu_max: f64) -> Group {
    let colour = if row.is_reference { BASE } else { MODE };
    let mut group = Group::new().add(text(MARGIN, y + 4.0, &row.label, INK));
    if let Some((p50, p99)) = row.latency {
        let (from, to) = (scale.x(p50), scale.x(p99));
        group = group
            .add(line((from, y), (to, y), colour, 3.0))
            .add(Circle::new().set("cx", from).set("cy", y).set("r", 5).set("fill", colour))
            .add(line((to, y - 6.0), (to, y + 6.0), colour, 3.0))
            .add(
                text(to + 7.0, y + 4.0, &format!("{} to {}", number::short(p50), number::short(p99)), GREY)
                    .set("font-size", 11),
            );
    } else {
        group = group.add(text(latency_left(), y + 4.0, "no latency: too slow for the load, or not measured", GREY));
    }
    if let Some(cpu) = row.cpu {
        let width = (WIDTH - MARGIN - 50.0 - cpu_left()) * cpu / cpu_max;
        group = group
            .add(
                Rectangle::new()
                    .set("x", cpu_left())
                    .set("y", y - 7.0)
                    .set("width", width)
                    .set("height", 14)
                    .set("fill", colour),
            )
            .add(text(cpu_left() + width + 6.0, y + 4.0, &number::short(cpu), GREY));
    }
    group
}

fn latency_left() -> f64 {
    MARGIN + LABEL_WIDTH
}

fn cpu_left() -> f64 {
    latency_left() + LATENCY_WIDTH + GAP
}

/// Logarithmic x axis of the latency column, in µs.
struct LogScale {
    min: f64,
    max: f64,
}

impl LogScale {
    fn over(ranges: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let positive = ranges.filter(|(from, _)| *from > 0.0);
        let (min, max) = positive.fold((f64::INFINITY, 0.0_f64), |(min, max), (from, to)| (min.min(from), max.max(to)));
        (min < max).then(|| Self { min: min / 1.2, max: max * (max / min).powf(0.3).max(1.2) })
    }

    fn x(&self, value: f64) -> f64 {
        latency_left() + LATENCY_WIDTH * (value / self.min).ln() / (self.max / self.min).ln()
    }

    fn ticks(&self) -> Vec<f64> {
        let values = (0..9).flat_map(|decade| [1.0, 3.0].map(|digit| digit * 10f64.powi(decade)));
        values.filter(|value| (self.min..=self.max).contains(value)).collect()
    }
}

fn text(x: f64, y: f64, content: &str, fill: &str) -> Text {
    Text::new(content).set("x", round(x)).set("y", round(y)).set("fill", fill)
}

fn line(from: (f64, f64), to: (f64, f64), stroke: &str, width: f64) -> Line {
    let (x1, y1) = from;
    let (x2, y2) = to;
    Line::new()
        .set("x1", round(x1))
        .set("y1", round(y1))
        .set("x2", round(x2))
        .set("y2", round(y2))
        .set("stroke", stroke)
        .set("stroke-width", width)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> ExperimentResult {
        let text = include_str!("../../quell/tests/fixtures/result.json");
        serde_json::from_str(text).expect("the fixture is a result")
    }

    #[test]
    fn every_mode_of_an_open_load_has_a_row_and_a_closed_loop_has_none() {
        let chart = draw(&recorded()).expect("a chart");
        assert_eq!(chart.matches("suspend200").count(), 1, "{chart}");
        assert_eq!(chart.matches("requests/s offered").count(), 1);
    }

    #[test]
    fn the_latencies_that_a_judge_of_programs_printed_are_drawn() {
        let mut result = recorded();
        let experiment = result.experiments.first_mut().expect("an experiment");
        experiment.load = None;
        for slice in &mut experiment.record.slices {
            slice.observation.latency = None;
            slice.observation.metrics.extend([("p50-us".to_owned(), 101.0), ("p99-us".to_owned(), 909.0)]);
        }
        result.experiments.truncate(1);
        let chart = draw(&result).expect("a chart");
        assert!(chart.contains("the present load") && chart.contains("101 to 909"), "{chart}");
    }

    #[test]
    fn a_label_with_markup_is_escaped() {
        let mut result = recorded();
        result.experiments[0].record.design.treatments[0].name = "<script>alert(1)</script>".to_owned();
        let chart = draw(&result).expect("a chart");
        assert!(!chart.contains("<script>"), "{chart}");
    }

    #[test]
    fn a_result_without_an_open_load_has_no_picture() {
        let mut result = recorded();
        result.experiments.retain(|experiment| experiment.load == Some(OfferedLoad::Max));
        assert!(draw(&result).is_none());
    }
}
