//! The text of a document of any kind.

use quell_conformance::suite;
use quell_result::ResultDocument;

use super::show_tree::{self, Style};
use super::terminal::Terminal;
use super::{conformance, experiment, load_report, published, results, sim_rows, top, tune};
use crate::exit::Failure;

/// Renders a document as its command does. `details` adds absolute figures of an experiment, and equal queues of a
/// snapshot.
///
/// # Errors
/// When the document refers to published data or scenarios that this version does not have.
pub(crate) fn render(document: &ResultDocument, details: bool, terminal: Terminal) -> Result<String, Failure> {
    Ok(match document {
        ResultDocument::Experiment(result) if details => experiment::render(result) + &experiment::details(result),
        ResultDocument::Experiment(result) => experiment::render(result),
        ResultDocument::Tune(file) => tune::render(file),
        ResultDocument::Published(run) => published::render(run).map_err(Failure::usage)?,
        ResultDocument::Load(run) => load_report::render(&run.report),
        ResultDocument::Clients(run) => run.table(),
        ResultDocument::Simulation(run) => sim_rows::render(&run.setup, &run.rows, terminal),
        ResultDocument::Sweep(sweep) => sim_rows::render(&sweep.header.setup, &sweep.rows, terminal),
        ResultDocument::Top(report) => top::text(report),
        ResultDocument::Snapshot(snapshot) => show_tree::tree(snapshot, Style { terminal, details }),
        ResultDocument::Conformance(report) => {
            conformance::render(report, &suite::all().map_err(Failure::usage)?, terminal)
        }
        ResultDocument::List(list) => results::render(list, terminal),
        _ => return Err(Failure::usage(format!("{} has no text: use -j", document.kind().schema))),
    })
}
