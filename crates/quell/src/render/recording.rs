//! A recording of `quell top` in words.

use quell_linux::visible;
use quell_report::words::{self, RecordedChange, TextTable};
use quell_result::top::TopRecording;

use super::experiment::titled_table;
use super::number::short;

/// Renders who polled, how long packets can have waited, and what changed. Details are the settings.
#[must_use]
pub(crate) fn render(recording: &TopRecording, with_details: bool) -> String {
    let said = words::recording_summary(recording);
    let host = words::host(&recording.header.host);
    let mut out = format!("{}\n{}\n{host}\n", said.headline, said.statements.join("\n"));
    let settings = if with_details { &said.settings[..] } else { &[] };
    let tables = [&said.queues, &said.programs].into_iter().chain(settings);
    out.extend(tables.filter(|table: &&TextTable| !table.rows.is_empty()).map(titled_table));
    if !said.changes.is_empty() {
        let change =
            |change: &RecordedChange| format!("{:>8} s  {}\n", short(change.at_s), visible::name(&change.text));
        out.push_str(&format!("\nChanges\n{}", said.changes.iter().map(change).collect::<String>()));
    }
    out
}
