//! Properties of standard output and standard error: width and color support; text wrapped for them.

use std::io::{self, IsTerminal as _};

use terminal_size::{Height, Width, terminal_size_of};
use textwrap::WordSplitter;
use textwrap::core::display_width;

/// Width of prose in files and pipes if `COLUMNS` is not set; the maximum on a terminal.
const PROSE_COLUMNS: usize = 100;
const PROSE_COLUMNS_MIN: usize = 40;

#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Number of columns; absent for files and pipes.
    pub columns: Option<usize>,
    /// Whether to use colors: on a terminal without `NO_COLOR`.
    pub colour: bool,
    /// Number of columns of prose in files and pipes.
    pub prose: usize,
}

impl Terminal {
    /// A pipe, without `COLUMNS` in the environment.
    pub const PIPE: Self = Self { columns: None, colour: false, prose: PROSE_COLUMNS };

    /// A terminal of `columns`, without colors.
    #[must_use]
    pub const fn of_columns(columns: usize) -> Self {
        Self { columns: Some(columns), ..Self::PIPE }
    }

    #[must_use]
    pub fn of_stdout() -> Self {
        let stdout = io::stdout();
        Self::of(stdout.is_terminal(), || terminal_size_of(&stdout))
    }

    #[must_use]
    pub fn of_stderr() -> Self {
        let stderr = io::stderr();
        Self::of(stderr.is_terminal(), || terminal_size_of(&stderr))
    }

    /// The width is that of `COLUMNS`, if it is set, or of the terminal. In files and pipes `COLUMNS` is for prose only.
    fn of(is_terminal: bool, size: impl FnOnce() -> Option<(Width, Height)>) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
        let seen = || size().map(|(Width(columns), _)| columns.into());
        Self {
            columns: is_terminal.then(|| set.or_else(seen)).flatten(),
            colour: is_terminal && wanted,
            prose: set.unwrap_or(PROSE_COLUMNS),
        }
    }

    #[must_use]
    pub fn fits(self, columns: usize) -> bool {
        self.columns.is_none_or(|width| columns <= width)
    }

    #[must_use]
    pub fn prose_columns(self) -> usize {
        let columns = self.columns.map_or(self.prose, |columns| columns.min(PROSE_COLUMNS));
        columns.max(PROSE_COLUMNS_MIN)
    }

    /// Fills lines of prose: the first one begins with `first`, the others with `rest`.
    #[must_use]
    pub fn fill(self, text: &str, first: &str, rest: &str) -> String {
        fill(self.prose_columns(), text, first, rest)
    }

    /// Wraps the lines that are wider than the terminal, each with an indentation below its own. Commands that are lines
    /// of their own stay whole, so that they can be copied. Files and pipes get all lines as they are.
    #[must_use]
    pub fn wrap(self, text: &str) -> String {
        let Some(columns) = self.columns else { return text.to_owned() };
        let columns = columns.max(PROSE_COLUMNS_MIN);
        let line = |line: &str| {
            let content = line.trim_start();
            let is_command = content.starts_with("quell ") || content.contains("$ ");
            if display_width(line) <= columns || is_command {
                return line.to_owned();
            }
            let indent = &line[..line.len() - content.len()];
            fill(columns, content, indent, &format!("{indent}  "))
        };
        text.split('\n').map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Wraps between words only: names contain hyphens. A number stays with its `%`, and a command between backticks is on
/// one line, however long, so that it can be copied.
fn fill(columns: usize, text: &str, first: &str, rest: &str) -> String {
    let options = textwrap::Options::new(columns).initial_indent(first).subsequent_indent(rest).break_words(false);
    let part = |(index, part): (usize, &str)| if index % 2 == 1 { part.replace(' ', JOIN) } else { part.to_owned() };
    // An odd backtick begins no command.
    let (closed, open) = match text.matches('`').count() % 2 {
        0 => (text, ""),
        _ => text.split_at(text.rfind('`').unwrap_or_default()),
    };
    let joined = closed.split('`').enumerate().map(part).collect::<Vec<_>>().join("`") + open;
    let joined = joined.replace(" %", &format!("{JOIN}%"));
    textwrap::fill(&joined, options.word_splitter(WordSplitter::NoHyphenation)).replace(JOIN, " ")
}

/// A space that is no place for a line end.
const JOIN: &str = "\u{a0}";

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Terminal = Terminal::of_columns(40);

    #[test]
    fn long_lines_are_wrapped_between_words_and_commands_are_not() {
        let text = "short\n  a line of words with defer-hard-irqs and gro-flush-timeout\n  quell bench --pid 812 --modes base,suspend20,fullbusy\n";
        let wrapped = "short\n  a line of words with defer-hard-irqs\n    and gro-flush-timeout\n  quell bench --pid 812 --modes base,suspend20,fullbusy\n";
        assert_eq!(NARROW.wrap(text), wrapped);
        assert_eq!(Terminal { columns: None, ..NARROW }.wrap(text), text, "a pipe");
    }

    #[test]
    fn a_command_between_backticks_is_never_broken() {
        let text = "fix: sort new connections by queue: `quell attach MODE 31011 --steer --pin --follow`; it lasts";
        let filled =
            "fix: sort new connections by queue:\n  `quell attach MODE 31011 --steer --pin --follow`;\n  it lasts";
        assert_eq!(NARROW.fill(text, "", "  "), filled);
        let odd = "the character ` is one word of this line of words";
        assert_eq!(NARROW.fill(odd, "", ""), "the character ` is one word of this line\nof words");
    }

    #[test]
    fn a_number_stays_with_its_percent_sign() {
        let text = "use suspend200: better: p50 by some −42 %";
        assert_eq!(NARROW.fill(text, "", "  "), "use suspend200: better: p50 by some\n  −42 %");
    }
}
