//! Draws a bench result as an SVG image: latency and CPU time of each mode, for each load. Closed loops are omitted, because
//! their latency follows from their throughput.

use quell_cli::number;
use quell_linux::visible;
use quell_load::OfferedLoad;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::figures::{self, Work};
use svg::node::element::Group;

use crate::draw::{Scale, anchored, dot, label, line, names_width, rectangle, standalone, text};
use crate::palette::ModeStyle;
use crate::part::{self, Part};
use crate::words;

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
const LATENCY_WIDTH: f64 = 420.0;
const GAP: f64 = 40.0;
const ROW_HEIGHT: f64 = 24.0;
const PANEL_HEAD: f64 = 62.0;

struct Panel {
    heading: String,
    work: Work,
    rows: Vec<Bars>,
}

/// Latency and CPU time of one mode, in µs.
struct Bars {
    style: ModeStyle,
    /// p50 and p99 of the latency, in µs.
    latency: Option<(f64, f64)>,
    cpu: Option<f64>,
}

/// Draws the image. Returns `None` if the result contains no latency except of a closed loop.
#[must_use]
pub fn draw(result: &ExperimentResult) -> Option<String> {
    let parts = Part::of_result(result);
    let styles = part::styles(&parts);
    let panel = |part: &Part<'_>| {
        let work = part.work();
        let has = |style: &&ModeStyle| part.experiment.treatment_names().any(|name| name == style.name);
        let row = |style: &ModeStyle| Bars {
            style: style.clone(),
            latency: part.latency_us(&style.name, 0.5).zip(part.latency_us(&style.name, 0.99)),
            cpu: part.experiment.median(&style.name, &work.name(figures::CPU)),
        };
        let rows = styles.iter().filter(has).map(row).collect();
        Panel { heading: heading(part.experiment.load, part.experiment.offered_per_s), work, rows }
    };
    let open = parts.iter().filter(|part| !part.is_closed_loop());
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
        Some(load) => words::load_name(load),
        None => "the present load".to_owned(),
    }
}

fn assemble(title: &str, panels: &[Panel]) -> Option<String> {
    let rows = || panels.iter().flat_map(|panel| &panel.rows);
    let ends = rows().filter_map(|row| row.latency).flat_map(|(p50, p99)| [p50, p99]);
    let ends: Vec<f64> = ends.filter(|us| us.is_finite() && *us > 0.0).collect();
    let (min, max) = (ends.iter().copied().reduce(f64::min)?, ends.iter().copied().reduce(f64::max)?);
    (min < max).then_some(())?;
    // The numbers beside the lines need room.
    let room = (max / min).powf(0.3).max(1.2);
    let left = MARGIN + 14.0 + names_width(rows().map(|row| row.style.name.as_str()));
    let scale = Scale::of_ratios(min / 1.2, max * room, left, left + LATENCY_WIDTH);
    let cpu_max = rows().filter_map(|row| row.cpu).fold(0.0, f64::max);
    let mut drawn = Group::new().add(text(MARGIN, MARGIN + 6.0, title, "h"));
    let mut top = MARGIN + 34.0;
    for panel in panels {
        drawn = drawn.add(draw_panel(panel, (left, top), &scale, cpu_max));
        top += panel_height(panel);
    }
    Some(standalone(WIDTH, top + MARGIN / 2.0, drawn))
}

fn panel_height(panel: &Panel) -> f64 {
    PANEL_HEAD + ROW_HEIGHT * panel.rows.len() as f64 + 14.0
}

fn draw_panel(panel: &Panel, (left, top): (f64, f64), scale: &Scale, cpu_max: f64) -> Group {
    let rows_top = top + PANEL_HEAD;
    let rows_bottom = rows_top + ROW_HEIGHT * panel.rows.len() as f64;
    let mut group = Group::new()
        .add(text(MARGIN, top + 18.0, &panel.heading, "h"))
        .add(text(left, top + 40.0, "latency, p50 to p99, µs (lower is better)", "t"))
        .add(text(cpu_left(left), top + 40.0, &format!("CPU time per {}, µs", panel.work.word()), "t"));
    for tick in scale.ticks(8) {
        let x = scale.at(tick);
        group = group
            .add(line((x, rows_top - 6.0), (x, rows_bottom), "grid"))
            .add(anchored(text(x, top + PANEL_HEAD - 9.0, &number::short(tick), "t"), "middle"));
    }
    for (index, row) in panel.rows.iter().enumerate() {
        group = group.add(row_marks(row, (left, rows_top + ROW_HEIGHT * (index as f64 + 0.5)), scale, cpu_max));
    }
    group
}

fn row_marks(row: &Bars, (left, y): (f64, f64), scale: &Scale, cpu_max: f64) -> Group {
    let name = label(&row.style.name);
    let mut group = Group::new().set("class", row.style.classes()).add(text(MARGIN, y + 4.0, &name, ""));
    if let Some((p50, p99)) = row.latency {
        let (from, to) = (scale.at(p50), scale.at(p99));
        let said = format!("{} to {}", number::short(p50), number::short(p99));
        group = group
            .add(line((from, y), (to, y), "thick"))
            .add(dot((from, y), 5.0, "dot", &format!("{name}: {said} µs")))
            .add(line((to, y - 6.0), (to, y + 6.0), "thick"))
            .add(text(to + 7.0, y + 4.0, &said, "t"));
    } else {
        group = group.add(text(left, y + 4.0, "no latency: too slow for the load, or not measured", "t"));
    }
    if let Some(cpu) = row.cpu {
        let from = cpu_left(left);
        let to = from + (WIDTH - MARGIN - 50.0 - from) * cpu / cpu_max;
        let number = text(to + 6.0, y + 4.0, &number::short(cpu), "t");
        group = group.add(rectangle((from, y - 7.0), (to, y + 7.0), "bar")).add(number);
    }
    group
}

/// Left end of the CPU times, beside latencies that begin at `latency_left`.
fn cpu_left(latency_left: f64) -> f64 {
    latency_left + LATENCY_WIDTH + GAP
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
        assert_eq!(chart.matches("\nsuspend200\n").count(), 1, "{chart}");
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
