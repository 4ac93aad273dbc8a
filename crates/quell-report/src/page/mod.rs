//! The page: one HTML file without anything from a network, which holds what it shows.

mod embed;
mod experiment;
mod facts;
mod parts;

use maud::{Markup, PreEscaped, html};
use quell_result::ResultDocument;

use crate::draw::shown;
use crate::palette;
use embed::Download;

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
    #[error("a report shows measurements, simulations and loads; {} is a {schema}", shown(name))]
    NotMeasured { name: String, schema: &'static str },
    #[error("{} has no slice, so there is nothing to show", shown(name))]
    Empty { name: String },
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
        [source] => of_document(source)?,
        _ => return Err(ReportError::NoSource),
    };
    let whole = assembled(&body, false);
    Ok(if whole.len() > SIZE_MAX { assembled(&body, true) } else { whole })
}

fn of_document(source: &ReportSource) -> Result<Body, ReportError> {
    match &source.document {
        ResultDocument::Experiment(result) => experiment::body(source, result),
        _ => Err(ReportError::NotMeasured { name: source.name.clone(), schema: source.document.kind().schema }),
    }
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
                    (embed::section(&body.downloads, is_short))
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
