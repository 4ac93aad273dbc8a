//! A position in a scenario file, printed as by compilers: file, line, column, the line itself and a caret below the
//! error.

use std::ops::Range;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}\n{margin} |\n{line} | {text}\n{margin} | {caret}", margin = " ".repeat(line.to_string().len()))]
pub struct FileError {
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    pub message: String,
    pub text: String,
    pub caret: String,
}

impl FileError {
    #[must_use]
    pub fn new(file: &str, content: &str, span: Range<usize>, message: String) -> Self {
        let start = floor(content, span.start);
        let line_start = content[..start].rfind('\n').map_or(0, |at| at + 1);
        let text = content[line_start..].lines().next().unwrap_or_default();
        let before = content[line_start..start].chars().count();
        let end = floor(content, span.end).clamp(start, line_start + text.len().max(start - line_start));
        let width = content[start..end].chars().count().max(1);
        Self {
            file: file.to_owned(),
            line: content[..line_start].matches('\n').count() + 1,
            column: before + 1,
            message,
            text: text.to_owned(),
            caret: format!("{}{}", " ".repeat(before), "^".repeat(width)),
        }
    }
}

/// Nearest character boundary at or before `at`.
fn floor(content: &str, at: usize) -> usize {
    let at = at.min(content.len());
    (0..=at).rev().find(|&at| content.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_caret_marks_the_position() {
        let error = FileError::new("x.toml", "a = 1\nto = \"b\"\n", 11..14, "no".into());
        assert_eq!(error.to_string(), "x.toml:2:6: no\n  |\n2 | to = \"b\"\n  |      ^^^");
    }

    proptest! {
        #[test]
        fn any_span_of_any_text_has_a_place(text in "(?s).{0,40}", start in 0usize..60, length in 0usize..20) {
            let error = FileError::new("x", &text, start..start + length, String::new());
            prop_assert!(error.line >= 1 && error.caret.contains('^'));
        }
    }
}
