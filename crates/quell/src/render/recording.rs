//! A recording of `quell top` in words.

use quell_linux::visible;
use quell_report::words::{self, RecordedChange, TextTable};
use quell_result::top::TopRecording;

use super::experiment::titled_table;
use super::number::short;
use super::terminal::Terminal;

/// Renders who polled, how long packets can have waited, and what changed. Details are the settings.
#[must_use]
pub(crate) fn render(recording: &TopRecording, with_details: bool, terminal: Terminal) -> String {
    let said = words::recording_summary(recording);
    let host = words::host(&recording.header.host);
    let mut out = format!("{}\n{}\n{host}\n", said.headline, said.statements.join("\n"));
    let settings = if with_details { &said.settings[..] } else { &[] };
    let tables = said.queues.iter().chain([&said.programs]).chain(settings);
    out.extend(tables.filter(|table: &&TextTable| !table.rows.is_empty()).map(titled_table));
    let change = |change: &RecordedChange| {
        let text = format!("{} s  {}", short(change.at_s), visible::name(&change.text));
        terminal.fill(&text, "  ", "    ") + "\n"
    };
    if !said.changes.is_empty() {
        out.push_str("\nChanges\n");
        out.extend(said.changes.iter().map(change));
    }
    out
}
