//! What is known of the reader of standard output: how wide a terminal is, and whether colours help.

use std::io::IsTerminal as _;

use terminal_size::{Width, terminal_size_of};

/// How wide prose is set where nobody knows the width.
const PROSE_COLUMNS: usize = 100;
/// Narrower than this, prose is not set.
const PROSE_COLUMNS_MIN: usize = 40;

/// The reader of standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    /// Columns of the terminal; absent when it is a file or a pipe, which have no width.
    pub(crate) columns: Option<usize>,
    /// Colours help: a terminal, and `NO_COLOR` is not set.
    pub(crate) colour: bool,
}

impl Terminal {
    /// Whoever reads standard output now.
    #[must_use]
    pub(crate) fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        let is_terminal = stdout.is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let columns = is_terminal.then(|| terminal_size_of(&stdout)).flatten();
        Self { columns: columns.map(|(Width(columns), _)| columns.into()), colour: is_terminal && wanted }
    }

    /// Whether lines of so many columns stay whole.
    #[must_use]
    pub(crate) fn fits(self, columns: usize) -> bool {
        self.columns.is_none_or(|width| columns <= width)
    }

    /// How wide prose is to be set.
    #[must_use]
    pub(crate) fn prose_columns(self) -> usize {
        self.columns.unwrap_or(PROSE_COLUMNS).clamp(PROSE_COLUMNS_MIN, PROSE_COLUMNS)
    }
}
