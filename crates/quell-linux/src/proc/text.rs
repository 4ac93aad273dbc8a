//! Common parts of the /proc parsers: numbered lines, fields separated by white space, numbers, and an error with a
//! position.

use std::str::FromStr;

use thiserror::Error;

/// Error for a file with invalid content: the position, and the expected and actual content.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: expected {expected}, found `{found}`")]
pub struct Malformed {
    /// Line number, from 1.
    pub line: usize,
    pub expected: &'static str,
    /// Actual content, truncated, with unprintable characters escaped.
    pub found: String,
}

const FOUND_MAX: usize = 60;

/// A line of a file and its number, from 1.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) number: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Line<'a> {
    pub(crate) fn fields(self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
    }

    pub(crate) fn malformed(self, expected: &'static str, found: &[u8]) -> Malformed {
        Malformed { line: self.number, expected, found: found[..found.len().min(FOUND_MAX)].escape_ascii().to_string() }
    }

    pub(crate) fn number<T: FromStr>(self, field: &[u8], expected: &'static str) -> Result<T, Malformed> {
        number(field).ok_or_else(|| self.malformed(expected, field))
    }

    pub(crate) fn next_number<'f, T: FromStr>(
        self,
        fields: &mut impl Iterator<Item = &'f [u8]>,
        expected: &'static str,
    ) -> Result<T, Malformed> {
        self.number(fields.next().unwrap_or_default(), expected)
    }
}

/// Lines of a file, without line breaks. A line break at the end of the file does not start another line.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let content = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let some = !content.is_empty();
    content
        .split(|&byte| byte == b'\n')
        .filter(move |_| some)
        .enumerate()
        .map(|(index, bytes)| Line { number: index + 1, bytes })
}

/// First line of a file; it may be empty.
pub(crate) fn first_line(bytes: &[u8]) -> Line<'_> {
    lines(bytes).next().unwrap_or(Line { number: 1, bytes: b"" })
}

/// Parses a decimal number in the kernel's format.
pub(crate) fn number<T: FromStr>(field: &[u8]) -> Option<T> {
    if field.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok()
}
