//! The page of a published experiment that was played here: its rows beside the published ones, then its parts.

use maud::{Markup, html};
use quell_experiment::Criterion;
use quell_published::Experiment;
use quell_result::figures;
use quell_result::published::{PublishedRun, part_name};
use quell_result::published_xdp::PublishedXdpRun;

use super::embed::Download;
use super::{Body, ReportError, ReportSource, facts, parts};
use crate::draw::{Chart, Grid, effects, shown};
use crate::part::{self, Part};
use crate::words::{self, PublishedText};

pub(crate) fn body(source: &ReportSource, run: &PublishedRun, level: u8) -> Result<Body, ReportError> {
    let said = words::published(run).map_err(ReportError::Published)?;
    let below = level + 1;
    let measured = run.parts.iter().find_map(|part| part.result.as_ref());
    let when = measured.and_then(|result| facts::utc(result.started_unix_s)).unwrap_or_default();
    let parts: Vec<Part<'_>> = run
        .parts
        .iter()
        .flat_map(|part| {
            let name = part_name(part.transport, part.shape, part.message_bytes, part.load);
            let mut measured = part.result.as_ref().map_or_else(Vec::new, Part::of_result);
            measured.iter_mut().for_each(|part| {
                part.load.clone_from(&name);
                part.heading.clone_from(&name);
            });
            measured
        })
        .collect();
    let styles = part::styles(&parts);
    let requests = Criterion::Metric { name: figures::REQUESTS.to_owned(), goal: quell_experiment::Goal::Highest };
    let effects: Vec<Chart> = part::criteria_of(parts.iter())
        .iter()
        .filter(|criterion| **criterion == requests || parts.len() == 1)
        .filter_map(|criterion| effects::chart(criterion, &parts, &styles))
        .collect();
    let started = measured.map_or(0, |result| result.started_unix_s);
    let mut downloads = vec![Download::document(source)];
    downloads.extend(Download::latencies(source, &parts, started));
    Ok(Body {
        title: format!("Published experiment {} – Quell", run.experiment.letter()),
        kicker: format!("Quell bench --experiment {} · {when}", run.experiment.letter()),
        content: html! {
            section.answer {
                p.question { "Does this machine show what was published?" }
                (parts::heading(level, run.experiment.title()))
                (beside(&said))
            }
            @if !effects.is_empty() {
                (parts::section(below, "What each mode changes here", "", &parts::charts(&effects)))
            }
            @if let Some(result) = measured {
                (parts::section(below, "Where and how", "", &facts::machine(&result.host, &result.subject)))
            }
        },
        downloads,
    })
}

/// The page of the AF_XDP experiment, whose tables say everything.
pub(crate) fn xdp_body(source: &ReportSource, run: &PublishedXdpRun, level: u8) -> Result<Body, ReportError> {
    let said = words::published_xdp(run).map_err(ReportError::Published)?;
    let (letter, when) = (Experiment::C.letter(), facts::utc(run.started_unix_s).unwrap_or_default());
    Ok(Body {
        title: format!("Published experiment {letter} – Quell"),
        kicker: format!("Quell bench --experiment {letter} · {when}"),
        content: html! { section.answer {
            p.question { "Does this machine show what was published?" }
            (parts::heading(level, Experiment::C.title()))
            (beside(&said))
        } },
        downloads: vec![Download::document(source)],
    })
}

/// The statements and tables that the terminal has, too.
fn beside(said: &[PublishedText]) -> Markup {
    html! { @for part in said {
        @match part {
            PublishedText::Statement(text) => p.about { (facts::shown_long(text.trim())) },
            PublishedText::Table { heading, rows } => (parts::table(&grid(heading, rows), "here and published")),
            PublishedText::Break => {},
        }
    } }
}

fn grid(heading: &[&str], rows: &[Vec<String>]) -> Grid {
    let mut grid = Grid::new(heading.iter().copied());
    grid.rows = rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
    grid
}
