//! The last line of an output: what it means for the reader, and the next command.

use std::fmt;

use quell_report::words::Advice;
use schemars::JsonSchema;
use serde::Serialize;

use super::terminal::Terminal;

/// The last line of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LastLine {
    /// Sentence without a full stop.
    pub(crate) text: String,
    /// The next command. Absent without one.
    pub(crate) command: Option<String>,
}

impl LastLine {
    pub(crate) fn new(text: &str, command: Option<&str>) -> Self {
        Self { text: text.to_owned(), command: command.map(str::to_owned) }
    }
}

impl fmt::Display for LastLine {
    /// The command is on a line of its own, so that it can be copied.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.command.is_some() { ":" } else { "" };
        writeln!(f, "{}", Terminal::of_stdout().fill(&format!("conclusion: {}{colon}", self.text), "", "  "))?;
        self.command.iter().try_for_each(|command| writeln!(f, "  {command}"))
    }
}

#[must_use]
pub(crate) fn of_advice(advice: &Advice) -> String {
    LastLine::new(&advice.text, advice.command.as_deref()).to_string()
}
