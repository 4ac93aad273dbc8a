//! The last line of an output: what it means for the reader, and the next command.

use quell_report::words::Advice;

use super::terminal::Terminal;

#[must_use]
pub(crate) fn of_advice(advice: &Advice) -> String {
    line(&advice.text, advice.command.as_deref())
}

/// Formats the last line of an output. The command is on a line of its own, so that it can be copied.
#[must_use]
pub(crate) fn line(sentence: &str, command: Option<&str>) -> String {
    let colon = if command.is_some() { ":" } else { "" };
    let text = Terminal::of_stdout().fill(&format!("conclusion: {sentence}{colon}"), "", "  ");
    command.map_or_else(|| format!("{text}\n"), |command| format!("{text}\n  {command}\n"))
}
