//! Positions of values in profile files, for errors and for the description of changes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A profile file: its name for messages, and its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    inner: Arc<SourceText>,
}

#[derive(PartialEq, Eq)]
struct SourceText {
    name: String,
    text: String,
}

impl Source {
    /// Creates a source from a name and a text. It does not read a file.
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { inner: Arc::new(SourceText { name: name.into(), text: text.into() }) }
    }

    /// Name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Text of the file.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.inner.text
    }

    pub(super) fn place(&self, span: Range<usize>) -> Place {
        let start = self.boundary(span.start);
        let end = self.boundary(span.end).max(start);
        Place { source: self.clone(), span: start..end }
    }

    /// Start of the character that contains this byte.
    fn boundary(&self, byte: usize) -> usize {
        let text = self.text();
        (0..=byte.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.name())
    }
}

/// A position in a file. It is displayed with line and column, for example `memcached.toml:12:5`.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    source: Source,
    span: Range<usize>,
}

impl Place {
    /// File that contains the position.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Line number, from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.before().matches('\n').count() + 1
    }

    /// Column in characters, from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        self.before_in_line().chars().count() + 1
    }

    /// The line of the file that has the error, with carets below the error.
    #[must_use]
    pub fn caret(&self) -> String {
        let text = self.source.text();
        let line_start = self.span.start - self.before_in_line().len();
        let line = text[line_start..].lines().next().unwrap_or_default();
        let marked = text[self.span.clone()].lines().next().unwrap_or_default().chars().count().max(1);
        // Tabs are not replaced by spaces, so that the carets are aligned.
        let indent: String = self.before_in_line().chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        format!("{line}\n{indent}{}", "^".repeat(marked))
    }

    /// A part of the text at this position, as a range of bytes.
    pub(super) fn part(&self, part: Range<usize>) -> Self {
        self.source.place(self.span.start + part.start..self.span.start + part.end)
    }

    /// Text at this position.
    pub(super) fn written(&self) -> &str {
        &self.source.text()[self.span.clone()]
    }

    fn before(&self) -> &str {
        &self.source.text()[..self.span.start]
    }

    fn before_in_line(&self) -> &str {
        self.before().rsplit('\n').next().unwrap_or_default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.source.name(), self.line(), self.column())
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}

/// A value with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value itself.
    pub value: T,
    /// Position of the value.
    pub place: Place,
}
