//! The page: one HTML file without anything from a network, which holds what it shows.

mod embed;
mod experiment;
mod explanation;
mod facts;
mod load;
mod parts;
mod published;
mod recording;
mod several;
mod simulation;
mod tune;
mod xsk;

use maud::{Markup, PreEscaped, html};
use quell_linux::visible::counted;
use quell_published::PublishedError;
use quell_result::ResultDocument;

use crate::draw::shown;
use crate::palette;
use crate::part::Part;
use embed::Download;
use several::Compared;

pub use explanation::{ExplainedMode, busy_period_picture, explanation};

/// A document and the name that it has on the page.
#[derive(Debug)]
pub struct ReportSource {
    /// Name of its file or its ID.
    pub name: String,
    pub document: ResultDocument,
}

/// Why there is no page. The messages are one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    #[error("no result: name at least one")]
    NoSource,
    #[error("a report shows measurements, recordings, simulations and loads; {} is a {schema}", shown(name))]
    NotMeasured { name: String, schema: &'static str },
    #[error("{} has no slice, so there is nothing to show", shown(name))]
    Empty { name: String },
    #[error("the published figures cannot be read: {0}")]
    Published(#[source] PublishedError),
}

/// Sections of a document, before they are a page.
pub(crate) struct Body {
    /// Title of the window.
    title: String,
    /// What is above the first heading: the kind of document, time, version.
    kicker: String,
    content: Markup,
    downloads: Vec<Download>,
}

/// Size from which a page has no histograms of single slices in its embedded document.
const SIZE_MAX: usize = 1_000_000;

/// The page of these documents.
///
/// # Errors
/// When there is no document, or one that is no measurement.
pub fn page(sources: &[ReportSource]) -> Result<String, ReportError> {
    let body = match sources {
        [] => return Err(ReportError::NoSource),
        [source] => of_document(source, 1)?,
        _ => of_several(sources)?,
    };
    let whole = assembled(&body, false);
    Ok(if whole.len() > SIZE_MAX { assembled(&body, true) } else { whole })
}

/// Sections of a document whose answer has a heading of this level.
fn of_document(source: &ReportSource, level: u8) -> Result<Body, ReportError> {
    match &source.document {
        ResultDocument::Experiment(result) => experiment::body(source, result, level),
        ResultDocument::Tune(file) => Ok(tune::body(source, file, level)),
        ResultDocument::Published(run) => published::body(source, run, level),
        ResultDocument::PublishedXdp(run) => published::xdp_body(source, run, level),
        ResultDocument::Simulation(run) => simulation::body(source, &run.setup, &run.rows, level),
        ResultDocument::Sweep(sweep) => simulation::body(source, &sweep.header.setup, &sweep.rows, level),
        ResultDocument::Xsk(run) => xsk::body(source, run, level),
        ResultDocument::Recording(recording) => recording::body(source, recording, level),
        ResultDocument::Load(run) => load::body(source, run, level),
        ResultDocument::Clients(run) => load::of_clients(source, run, level),
        _ => Err(ReportError::NotMeasured { name: source.name.clone(), schema: source.document.kind().schema }),
    }
}

/// What experiments have in common, then each document.
fn of_several(sources: &[ReportSource]) -> Result<Body, ReportError> {
    let bodies = sources.iter().map(|source| of_document(source, 2)).collect::<Result<Vec<_>, _>>()?;
    let experiments = sources.iter().filter_map(|source| match &source.document {
        ResultDocument::Experiment(result) => {
            Some(Compared { name: source.name.clone(), result, parts: Part::of_result(result) })
        }
        _ => None,
    });
    let experiments: Vec<Compared<'_>> = experiments.collect();
    let title = counted(sources.len(), "result");
    let mut downloads = Vec::new();
    let content = html! {
        h1 { (title) ", compared" }
        @if experiments.len() > 1 { (several::content(&experiments)) }
        @for (source, body) in sources.iter().zip(&bodies) {
            article { p.kicker { b { (shown(&source.name)) } " · " (body.kicker) } (body.content) }
        }
    };
    bodies.into_iter().for_each(|body| downloads.extend(body.downloads));
    Ok(Body { title: format!("{title} – Quell"), kicker: "Quell report".to_owned(), content, downloads })
}

fn assembled(body: &Body, is_short: bool) -> String {
    let page = html! {
        (maud::DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (body.title) }
                style { (PreEscaped(palette::style_sheet())) (PreEscaped(include_str!("../../assets/page.css"))) }
            }
            body {
                header.top { p.kicker { (body.kicker) } }
                main {
                    (body.content)
                    @if !body.downloads.is_empty() { (embed::section(&body.downloads, is_short)) }
                }
                footer { p {
                    "Made by Quell " (env!("CARGO_PKG_VERSION")) ". The figures follow from the embedded documents; "
                    "intervals and verdicts are explained in docs/statistics.md."
                } }
                div #value role="status" hidden {}
                script { (PreEscaped(include_str!("../../assets/page.js"))) }
            }
        }
    };
    page.into_string()
}
