//! The last line of an output: what it means for the reader, and the next command.

use quell_report::words::Advice;

const PROSE_COLUMNS: usize = 100;

#[must_use]
pub(crate) fn of_advice(advice: &Advice) -> String {
    line(&advice.text, advice.command.as_deref())
}

/// Formats the last line of an output. The command is on a line of its own, so that it can be copied.
#[must_use]
pub(crate) fn line(sentence: &str, command: Option<&str>) -> String {
    let wrap = textwrap::Options::new(PROSE_COLUMNS)
        .subsequent_indent("  ")
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let colon = if command.is_some() { ":" } else { "" };
    let text = textwrap::fill(&format!("conclusion: {sentence}{colon}"), wrap);
    command.map_or_else(|| format!("{text}\n"), |command| format!("{text}\n  {command}\n"))
}
