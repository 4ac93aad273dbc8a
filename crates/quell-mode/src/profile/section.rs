//! Reads a table of a profile. Opening a table rejects unknown keys. Reading a value rejects a wrong type, with its
//! position.

use super::error::{ProfileError, ProfileRefusal};
use super::keys::ProfileTable;
use super::place::{Place, Placed};
use super::queue_set::parse_numbers;
use super::tree::{Leaf, Node, Table, Value};
use crate::suggestion::nearest;

/// Maximum number of tables under one key. No host needs more devices, queue groups, RSS contexts or flow rules. The
/// limit bounds the time for checks that compare them with each other.
const TABLES_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy)]
pub(super) struct Section<'a> {
    table: &'a Table,
}

/// A table with a label.
#[derive(Debug, Clone, Copy)]
pub(super) struct Labelled<'a> {
    pub(super) label: &'a str,
    /// Position of the label.
    pub(super) place: &'a Place,
    pub(super) table: &'a Table,
}

impl<'a> Section<'a> {
    /// Opens a table whose valid keys are those of `known`.
    pub(super) fn new(table: &'a Table, known: &ProfileTable) -> Result<Self, ProfileError> {
        match table.iter().find(|(name, _)| !known.names().any(|key| key == *name)) {
            None => Ok(Self { table }),
            Some((name, entry)) => {
                let (key, nearest) = (name.to_owned(), nearest(name, known.names()));
                let refusal = ProfileRefusal::UnknownKey { key, nearest, known: known.names().collect() };
                Err(ProfileError::new(&entry.key, refusal))
            }
        }
    }

    fn leaf(&self, key: &str) -> Result<Option<&'a Leaf>, ProfileError> {
        match self.table.get(key).map(|entry| (&entry.key, &entry.node)) {
            None => Ok(None),
            Some((_, Node::Leaf(leaf))) => Ok(Some(leaf)),
            Some((place, Node::Table(_))) => {
                let refusal = ProfileRefusal::WrongType { key: key.to_owned(), expected: "a value", found: "a table" };
                Err(ProfileError::new(place, refusal))
            }
        }
    }

    /// Reads a value with `read`, which returns `None` if the type is wrong.
    fn value<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<Placed<T>>, ProfileError> {
        let Some(leaf) = self.leaf(key)? else { return Ok(None) };
        let value = read(&leaf.value).ok_or_else(|| leaf.wrong_type(key, expected))?;
        Ok(Some(Placed { value, place: leaf.place.clone() }))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<Placed<bool>>, ProfileError> {
        self.value(key, "true or false", |value| match value {
            Value::Boolean(value) => Some(*value),
            _ => None,
        })
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<Placed<u32>>, ProfileError> {
        self.number_as(key, "a whole number from 0 to 4294967295")
    }

    /// Reads a number; errors say that it must be `expected`.
    pub(super) fn number_as(&self, key: &str, expected: &'static str) -> Result<Option<Placed<u32>>, ProfileError> {
        let number = self.value(key, expected, |value| match value {
            Value::Integer(number) => Some(*number),
            _ => None,
        })?;
        let in_range = |placed: Placed<Option<i64>>| match placed.value.and_then(|number| u32::try_from(number).ok()) {
            Some(value) => Ok(Placed { value, place: placed.place }),
            None => Err(wrong(key, expected, &placed.place)),
        };
        number.map(in_range).transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<Placed<String>>, ProfileError> {
        self.value(key, "a text", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Reads a text and converts it with `parse`.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<Placed<T>>, ProfileError> {
        let Some(Placed { value: text, place }) = self.text(key)? else { return Ok(None) };
        let value = parse(&text).ok_or_else(|| wrong(key, expected, &place))?;
        Ok(Some(Placed { value, place }))
    }

    /// Reads numbers in their order: a single number, an array, or a text such as `0-3,8`.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Placed<Vec<u32>>>, ProfileError> {
        const EXPECTED: &str = "numbers, such as 3, [0, 1] or \"0-3,8\"";
        let numbers = self.value(key, EXPECTED, |value| match value {
            Value::Text(text) => Some(parse_numbers(text)),
            Value::Integer(number) => Some(number.and_then(|number| u32::try_from(number).ok()).map(|n| vec![n])),
            Value::Array(elements) => Some(elements.iter().map(element).collect()),
            _ => None,
        })?;
        let in_range = |placed: Placed<Option<Vec<u32>>>| match placed.value.filter(|numbers| !numbers.is_empty()) {
            Some(value) => Ok(Placed { value, place: placed.place }),
            None => Err(wrong(key, EXPECTED, &placed.place)),
        };
        numbers.map(in_range).transpose()
    }

    pub(super) fn table(&self, key: &'static str) -> Result<Option<&'a Table>, ProfileError> {
        match self.table.get(key).map(|entry| &entry.node) {
            None => Ok(None),
            Some(Node::Table(table)) => Ok(Some(table)),
            Some(Node::Leaf(leaf)) => Err(leaf.wrong_type(key, "a table")),
        }
    }

    /// The labelled tables within the table of this name.
    pub(super) fn tables(&self, key: &'static str) -> Result<Vec<Labelled<'a>>, ProfileError> {
        let Some(table) = self.table(key)? else { return Ok(Vec::new()) };
        if let Some((_, entry)) = table.iter().nth(TABLES_MAX) {
            return Err(ProfileError::new(&entry.key, ProfileRefusal::TooMany { key, max: TABLES_MAX }));
        }
        let labelled = table.iter().map(|(label, entry)| match &entry.node {
            Node::Table(table) => Ok(Labelled { label, place: &entry.key, table }),
            Node::Leaf(leaf) => Err(leaf.wrong_type(label, "a table; put the settings into a table with a label")),
        });
        labelled.collect()
    }

    /// Booleans of the table with this name. Its keys are names of the kernel, so they are not checked.
    pub(super) fn booleans(&self, key: &'static str) -> Result<Vec<(String, Placed<bool>)>, ProfileError> {
        let Some(table) = self.table(key)? else { return Ok(Vec::new()) };
        let read = |(name, leaf): (String, &Leaf)| match leaf.value {
            Value::Boolean(value) => Ok((name, Placed { value, place: leaf.place.clone() })),
            _ => Err(leaf.wrong_type(&name, "true or false")),
        };
        table.leaves().into_iter().map(read).collect()
    }
}

fn element(leaf: &Leaf) -> Option<u32> {
    match leaf.value {
        Value::Integer(number) => u32::try_from(number?).ok(),
        _ => None,
    }
}

pub(super) fn wrong(key: &str, expected: &'static str, place: &Place) -> ProfileError {
    ProfileError::new(place, ProfileRefusal::Value { key: key.to_owned(), expected })
}
