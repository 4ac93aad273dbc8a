//! The page of `quell sim explain`: one request and one busy period under each mode, side by side.

use maud::{Markup, html};
use quell_cli::number::{ABSENT, short};
use quell_linux::visible::counted;
use quell_mode::DeliveryMode;
use quell_sim::explain::{Explanation, RecordedStory, Sentence};

use super::{Body, assembled, parts};
use crate::draw::timeline::{self, CaseSummary, RecordedCase};
use crate::draw::{Chart, Grid, shown};

/// A mode with its explanation and the runs behind it.
#[derive(Debug)]
pub struct ExplainedMode {
    pub explanation: Explanation,
    pub story: RecordedStory,
}

/// The page for these modes.
#[must_use]
pub fn explanation(modes: &[ExplainedMode]) -> String {
    let names: Vec<String> = modes.iter().map(|mode| mode.explanation.mode.to_string()).collect();
    let host = modes.first().map_or("", |mode| mode.explanation.host.as_str());
    let title = format!("How packets are delivered under {}", joined(&names));
    let body = Body {
        title: format!("{title} – Quell"),
        kicker: format!("Quell sim explain · model of {} · times are virtual", shown(host)),
        content: html! {
            section.answer {
                (parts::heading(1, &title))
                p.lede { (comparison(modes)) }
                (parts::table(&summaries(modes), "figures of the busy period"))
            }
            (parts::section(2, "A busy period", BUSY, &parts::charts(&charts(modes, |story| &story.busy_period))))
            (parts::section(2, "One request on an idle host", ONE, &parts::charts(&charts(modes, |story| &story.one_request))))
            (parts::section(2, "Step by step", "", &html! { @for mode in modes { (steps(&mode.explanation)) } }))
        },
        downloads: Vec::new(),
    };
    assembled(&body, false)
}

const BUSY: &str = "Nine requests arrive faster than the server answers them, and one more when it is idle again. From top to \
                    bottom: where each packet waits; who has the one CPU, with the time that it takes up to the dotted line, the \
                    last response of the nine; whether the NIC may interrupt; which timer of the NAPI instance is armed.";
const ONE: &str = "The server sleeps, and one request arrives.";

/// Draws the cases of all modes over the same time.
fn charts(modes: &[ExplainedMode], case: impl Fn(&RecordedStory) -> &quell_sim::Trace) -> Vec<Chart> {
    let cases: Vec<RecordedCase<'_>> = modes.iter().map(|mode| recorded(mode, case(&mode.story))).collect();
    let end_us = timeline::length_us(&cases);
    cases.iter().map(|case| timeline::chart(case, end_us)).collect()
}

fn recorded<'a>(mode: &ExplainedMode, trace: &'a quell_sim::Trace) -> RecordedCase<'a> {
    RecordedCase { mode: mode.explanation.mode, trace, first_ns: mode.story.first_ns }
}

fn busy(modes: &[ExplainedMode]) -> Vec<(DeliveryMode, CaseSummary)> {
    let of_mode =
        |mode: &ExplainedMode| Some((mode.explanation.mode, recorded(mode, &mode.story.busy_period).summary()?));
    modes.iter().filter_map(of_mode).collect()
}

/// What each mode makes of the busy period, in words.
fn comparison(modes: &[ExplainedMode]) -> String {
    let one = |(mode, summary): (DeliveryMode, CaseSummary)| {
        let later =
            summary.later_us.map_or_else(String::new, |us| format!(", and the later one within {} µs", short(us)));
        format!(
            "{mode} answers all nine within {} µs and {}{later}",
            short(summary.burst_us),
            counted(summary.interrupts, "interrupt")
        )
    };
    let said: Vec<String> = busy(modes).into_iter().map(one).collect();
    format!("Nine requests arrive together, and one later, when the server is idle again. {}.", said.join("; "))
}

fn summaries(modes: &[ExplainedMode]) -> Grid {
    let mut grid = Grid::new([
        "mode",
        "delivery of packets",
        "all nine, µs",
        "the later one, µs",
        "interrupts",
        "CPU outside the server, µs",
    ]);
    for (mode, summary) in busy(modes) {
        grid.rows.push(vec![
            mode.to_string(),
            mode.kind().description().replace(" us ", " µs "),
            short(summary.burst_us),
            summary.later_us.map_or_else(|| ABSENT.to_owned(), short),
            summary.interrupts.to_string(),
            short(summary.overhead_us()),
        ]);
    }
    grid
}

fn steps(explanation: &Explanation) -> Markup {
    let table = |sentences: &[Sentence]| {
        let mut grid = Grid::new(["at µs", "for µs", "step"]);
        grid.rows = sentences
            .iter()
            .map(|step| {
                let lasts = step.lasts_us.map_or_else(String::new, |us| format!("{us:.2}"));
                vec![format!("{:.2}", step.at_us), lasts, shown(&step.text)]
            })
            .collect();
        grid
    };
    let mode = explanation.mode.to_string();
    html! {
        details { summary { (mode) ": one request" } (parts::table(&table(&explanation.one_request), "one request")) }
        details { summary { (mode) ": a busy period" } (parts::table(&table(&explanation.busy_period), "busy period")) }
    }
}

fn joined(names: &[String]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.join(""),
    }
}

/// A picture of the busy period under these modes, without a page around it.
#[must_use]
pub fn busy_period_picture(modes: &[ExplainedMode]) -> String {
    let cases: Vec<RecordedCase<'_>> = modes.iter().map(|mode| recorded(mode, &mode.story.busy_period)).collect();
    timeline::picture(&cases, timeline::length_us(&cases))
}
