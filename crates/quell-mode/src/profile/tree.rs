//! The text of a profile as a tree of tables and leaves with positions. Trees can be merged key by key.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::error::{ProfileError, ProfileRefusal};
use super::place::{Place, Source};

/// A table of the profile, with its position.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Position of the key.
    pub(super) key: Place,
    pub(super) node: Node,
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    Table(Table),
    Leaf(Leaf),
}

/// A value other than a table.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    /// An integer; `None` if it exceeds 64 bits.
    Integer(Option<i64>),
    Boolean(bool),
    Array(Vec<Leaf>),
    /// A value of a type that no key accepts, with the name of the type.
    Other(&'static str),
}

pub(super) fn parse(source: &Source) -> Result<Table, ProfileError> {
    let root = DeTable::parse(source.text()).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        ProfileError::new(&source.place(span), ProfileRefusal::Syntax(error.message().to_owned()))
    })?;
    table(source, root.get_ref())
}

/// Converts a table. Keys appear in one-line messages, so a key with a control character is rejected.
fn table(source: &Source, entries: &DeTable<'_>) -> Result<Table, ProfileError> {
    let entries = entries.iter().map(|(key, value)| {
        let place = source.place(key.span());
        if key.get_ref().contains(char::is_control) {
            let refusal =
                ProfileRefusal::Value { key: key.get_ref().to_string(), expected: "a key without control characters" };
            return Err(ProfileError::new(&place, refusal));
        }
        let node = match value.get_ref() {
            DeValue::Table(entries) => Node::Table(table(source, entries)?),
            leaf_value => Node::Leaf(leaf(source, leaf_value, source.place(value.span()))),
        };
        Ok((key.get_ref().to_string(), Entry { key: place, node }))
    });
    Ok(Table { entries: entries.collect::<Result<_, _>>()? })
}

fn leaf(source: &Source, value: &DeValue<'_>, place: Place) -> Leaf {
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Array(elements) => {
            let elements = elements.iter();
            Value::Array(elements.map(|e| leaf(source, e.get_ref(), source.place(e.span()))).collect())
        }
        DeValue::Table(_) => Value::Other("a table"),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
    };
    Leaf { place, value }
}

impl Table {
    /// Merges another tree into this one. Tables are merged; other values are replaced.
    pub(super) fn cover_with(&mut self, upper: Self) {
        for (name, entry) in upper.entries {
            match (self.entries.get_mut(&name), entry) {
                (Some(Entry { key, node: Node::Table(lower) }), Entry { key: new_key, node: Node::Table(upper) }) => {
                    *key = new_key;
                    lower.cover_with(upper);
                }
                (_, entry) => {
                    self.entries.insert(name, entry);
                }
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// All leaves, with their full names joined by dots.
    pub(super) fn leaves(&self) -> Vec<(String, &Leaf)> {
        let mut found = Vec::new();
        for (name, entry) in self.iter() {
            match &entry.node {
                Node::Leaf(leaf) => found.push((name.to_owned(), leaf)),
                Node::Table(table) => {
                    let below = table.leaves().into_iter();
                    found.extend(below.map(|(rest, leaf)| (format!("{name}.{rest}"), leaf)));
                }
            }
        }
        found
    }
}

impl Leaf {
    pub(super) fn wrong_type(&self, key: &str, expected: &'static str) -> ProfileError {
        let refusal = ProfileRefusal::WrongType { key: key.to_owned(), expected, found: self.value.type_name() };
        ProfileError::new(&self.place, refusal)
    }

    /// Converts the value to the text for a sysctl.
    pub(super) fn as_sysctl(&self) -> Option<String> {
        match &self.value {
            Value::Text(text)
                if !text.is_empty() && !text.contains(|letter: char| letter.is_control() && letter != '\t') =>
            {
                Some(text.clone())
            }
            Value::Integer(Some(number)) => Some(number.to_string()),
            _ => None,
        }
    }
}

impl Value {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Integer(Some(_)) => "a number",
            Self::Integer(None) => "a number beyond 64 bits",
            Self::Boolean(_) => "true or false",
            Self::Array(_) => "an array",
            Self::Other(name) => name,
        }
    }
}
