//! A published experiment played in a lab, as text.

use quell_cli::table::Grid;
use quell_published::PublishedError;
use quell_report::words::{self, PublishedText};
use quell_result::published::PublishedRun;
use quell_result::published_xdp::PublishedXdpRun;

use super::terminal::Terminal;

/// Renders the rows of a run with the published ones beside them.
pub(crate) fn render(run: &PublishedRun) -> Result<String, PublishedError> {
    Ok(texts(words::published(run)?))
}

/// As [`render`], for the AF_XDP experiment.
pub(crate) fn render_xdp(run: &PublishedXdpRun) -> Result<String, PublishedError> {
    Ok(texts(words::published_xdp(run)?))
}

fn texts(parts: Vec<PublishedText>) -> String {
    let text = |part: PublishedText| match part {
        PublishedText::Statement(text) => prose(&text),
        PublishedText::Table { heading, rows } => grid(&heading, rows),
        PublishedText::Break => "\n".to_owned(),
    };
    parts.into_iter().map(text).collect()
}

fn prose(text: &str) -> String {
    let indent = if text.starts_with("  ") { "    " } else { "" };
    Terminal::of_stdout().fill(text, "", indent) + "\n"
}

fn grid(heading: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Grid::new(heading.iter().copied(), 2);
    rows.into_iter().for_each(|row| table.push(row));
    table.render(Terminal::of_stdout())
}
