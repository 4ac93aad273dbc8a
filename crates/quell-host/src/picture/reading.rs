//! A value that was read, or the reason why it was not: what was tried, what came back, and which privilege would show
//! it. It keeps what is absent, what the kernel or the driver lacks and what the caller may not see apart, from the
//! reader to the screen. Reading itself is elsewhere.

use quell_linux::capability::Capability;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A value as it was read, or why it is unknown. In JSON a known value stands for itself, and an unknown one is
/// `{"unknown": {…}}`. `Reading<Option<T>>` is for things that may not be there: `Known(None)` is the knowledge that
/// there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Reading<T> {
    /// It could not be had.
    Unknown(UnknownReading),
    /// What was read.
    Known(T),
}

/// The JSON form of a value that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnknownReading {
    /// Why it is not.
    pub unknown: Box<Unknown>,
}

/// Why a value is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Unknown {
    /// The class of reason.
    pub why: Why,
    /// What was tried, on what, and what came back, in the kernel's words where it has some.
    pub said: String,
}

/// The classes of reason why a value is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Why {
    /// There is no such thing here: no file, no object of that name or number.
    Absent,
    /// This kernel has no way to tell.
    UnsupportedByKernel,
    /// The kernel asks the driver, and the driver does not tell.
    UnsupportedByDriver,
    /// The caller may not see it.
    Denied {
        /// What would show it; absent when the kernel's rule is not one of a capability.
        needs: Option<Capability>,
    },
    /// It was left out on purpose: outside of what was asked for, or too dear.
    NotAsked,
    /// Something else went wrong; the words say what.
    Failed,
}

impl<T> Reading<T> {
    /// A reading that did not succeed.
    pub fn unknown(why: Why, said: impl Into<String>) -> Self {
        Self::Unknown(UnknownReading { unknown: Box::new(Unknown { why, said: said.into() }) })
    }

    /// The value, where it is known.
    #[must_use]
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }

    /// Why it is not known, where it is not.
    #[must_use]
    pub fn why_unknown(&self) -> Option<&Unknown> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(reading) => Some(&reading.unknown),
        }
    }

    /// The same reading of what `f` makes of the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Known(value) => Reading::Known(f(value)),
            Self::Unknown(reading) => Reading::Unknown(reading),
        }
    }
}

impl<T> Reading<Vec<T>> {
    /// The elements that are known: none of a list that is unknown.
    pub fn known_elements(&self) -> std::slice::Iter<'_, T> {
        self.known().map_or(&[][..], Vec::as_slice).iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T>(reading: &Reading<T>) -> (String, Reading<T>)
    where
        T: Serialize + for<'de> Deserialize<'de>,
    {
        let text = serde_json::to_string(reading).unwrap();
        let read = serde_json::from_str(&text).unwrap();
        (text, read)
    }

    #[test]
    fn a_known_value_stands_for_itself() {
        let reading = Reading::Known(Some(7_u64));
        assert_eq!(round_trip(&reading), ("7".to_owned(), reading));
    }

    #[test]
    fn knowing_that_there_is_none_is_not_unknown() {
        let none: Reading<Option<u64>> = Reading::Known(None);
        assert_eq!(round_trip(&none), ("null".to_owned(), none));
        let unknown: Reading<Option<u64>> = Reading::unknown(Why::Absent, "read x: none");
        assert_eq!(round_trip(&unknown).1, unknown);
    }

    #[test]
    fn what_is_denied_names_the_capability_that_would_show_it() {
        let needs = Some(Capability::SysPtrace);
        let unknown: Reading<u32> = Reading::unknown(Why::Denied { needs }, "list /proc/1/fd: no");
        let (text, read) = round_trip(&unknown);
        assert!(text.contains(r#""why":{"denied":{"needs":"CAP_SYS_PTRACE"}}"#), "{text}");
        assert_eq!(read, unknown);
    }
}
