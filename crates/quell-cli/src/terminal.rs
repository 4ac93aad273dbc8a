//! Properties of standard output: width and color support.

use std::io::IsTerminal as _;

use terminal_size::{Width, terminal_size_of};

/// Width of prose if the terminal's width is unknown; also its maximum.
const PROSE_COLUMNS: usize = 100;
const PROSE_COLUMNS_MIN: usize = 40;

#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Number of columns; absent for files and pipes.
    pub columns: Option<usize>,
    /// Whether to use colors: on a terminal without `NO_COLOR`.
    pub colour: bool,
}

impl Terminal {
    #[must_use]
    pub fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        let is_terminal = stdout.is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let columns = is_terminal.then(|| terminal_size_of(&stdout)).flatten();
        Self { columns: columns.map(|(Width(columns), _)| columns.into()), colour: is_terminal && wanted }
    }

    #[must_use]
    pub fn fits(self, columns: usize) -> bool {
        self.columns.is_none_or(|width| columns <= width)
    }

    #[must_use]
    pub fn prose_columns(self) -> usize {
        self.columns.unwrap_or(PROSE_COLUMNS).clamp(PROSE_COLUMNS_MIN, PROSE_COLUMNS)
    }
}
