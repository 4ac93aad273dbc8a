//! A value, or the reason why it is unknown: the attempt, the result, and the capability that would help. From the
//! reader to the output, it distinguishes absent values, missing support in the kernel or the driver, and missing
//! permission.

use quell_linux::capability::Capability;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A value, or the reason why it is unknown. In JSON, a known value appears unchanged, and an unknown one is
/// `{"unknown": {…}}`. `Reading<Option<T>>` is for objects that may not exist: `Known(None)` means that the object is
/// known to be absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Reading<T> {
    /// The value is unknown.
    Unknown(UnknownReading),
    /// The value.
    Known(T),
}

/// JSON form of an unknown value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnknownReading {
    /// Reason why it is unknown.
    pub unknown: Box<Unknown>,
}

/// Reason why a value is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Unknown {
    /// Class of the reason.
    pub reason: UnknownReason,
    /// What was attempted on which object, and the result, in the kernel's words where available.
    pub message: String,
}

/// Classes of reasons why a value is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum UnknownReason {
    /// It does not exist: no such file or object.
    Absent,
    /// This kernel does not report it.
    UnsupportedByKernel,
    /// The kernel supports the request, but the driver does not.
    UnsupportedByDriver,
    /// The caller may not read it.
    Denied {
        /// Capability that would help; absent if the kernel's check does not depend on a capability.
        needs: Option<Capability>,
    },
    /// Deliberately not read: out of scope, or too expensive.
    NotAsked,
    /// Another error; the text describes it.
    Failed,
}

impl<T> Reading<T> {
    pub fn unknown(reason: UnknownReason, message: impl Into<String>) -> Self {
        Self::Unknown(UnknownReading { unknown: Box::new(Unknown { reason, message: message.into() }) })
    }

    #[must_use]
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }

    #[must_use]
    pub fn why_unknown(&self) -> Option<&Unknown> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(reading) => Some(&reading.unknown),
        }
    }

    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Known(value) => Reading::Known(f(value)),
            Self::Unknown(reading) => Reading::Unknown(reading),
        }
    }
}

impl<T> Reading<Vec<T>> {
    /// Elements of a known list; empty for an unknown one.
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
    fn a_known_value_is_serialized_unchanged() {
        let reading = Reading::Known(Some(7_u64));
        assert_eq!(round_trip(&reading), ("7".to_owned(), reading));
    }

    #[test]
    fn known_to_be_absent_is_not_unknown() {
        let none: Reading<Option<u64>> = Reading::Known(None);
        assert_eq!(round_trip(&none), ("null".to_owned(), none));
        let unknown: Reading<Option<u64>> = Reading::unknown(UnknownReason::Absent, "read x: none");
        assert_eq!(round_trip(&unknown).1, unknown);
    }

    #[test]
    fn a_denied_value_names_the_missing_capability() {
        let needs = Some(Capability::SysPtrace);
        let unknown: Reading<u32> = Reading::unknown(UnknownReason::Denied { needs }, "list /proc/1/fd: no");
        let (text, read) = round_trip(&unknown);
        assert!(text.contains(r#""reason":{"denied":{"needs":"CAP_SYS_PTRACE"}}"#), "{text}");
        assert_eq!(read, unknown);
    }
}
