//! PIDs and TIDs in the caller's PID namespace. The kernel reuses them, and [`crate::proc::ProcessIdentity`] detects
//! reuse.

use std::fmt;
use std::num::{NonZeroI32, ParseIntError};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A process or thread id, from 1 to 2²² (`PID_MAX_LIMIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "i32", into = "i32")]
#[schemars(with = "i32")]
pub struct Pid(NonZeroI32);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid process ID `{text}`: expected a number from 1 to {max}", max = i32::MAX)]
pub struct PidParseError {
    text: String,
}

impl Pid {
    /// Creates an id. Returns `None` for zero and negative numbers.
    #[must_use]
    pub const fn new(value: i32) -> Option<Self> {
        match NonZeroI32::new(value) {
            Some(id) if id.get() > 0 => Some(Self(id)),
            _ => None,
        }
    }

    /// Creates an id from an unsigned netlink attribute. Returns `None` for zero and for values out of range.
    #[must_use]
    pub fn from_kernel(value: u32) -> Option<Self> {
        i32::try_from(value).ok().and_then(Self::new)
    }

    #[must_use]
    pub fn of_this_process() -> Self {
        Self::from_rustix(rustix::process::getpid())
    }

    #[must_use]
    pub fn of_this_thread() -> Self {
        Self::from_rustix(rustix::thread::gettid())
    }

    #[must_use]
    pub const fn get(self) -> i32 {
        self.0.get()
    }

    pub(crate) fn from_rustix(pid: rustix::process::Pid) -> Self {
        Self(pid.as_raw_nonzero())
    }

    pub(crate) fn as_rustix(self) -> rustix::process::Pid {
        // SAFETY: `Pid` holds a positive number, which is what rustix requires.
        unsafe { rustix::process::Pid::from_raw_unchecked(self.get()) }
    }
}

/// Sets the name of the calling thread, of which the kernel keeps 15 bytes. Other processes see it in `/proc`.
pub fn name_this_thread(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        // Fails only for an invalid pointer.
        let _ = rustix::thread::set_name(&name);
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<i32> for Pid {
    type Error = PidParseError;

    fn try_from(value: i32) -> Result<Self, Self::Error> {
        Self::new(value).ok_or_else(|| PidParseError { text: value.to_string() })
    }
}

impl From<Pid> for i32 {
    fn from(pid: Pid) -> Self {
        pid.get()
    }
}

impl FromStr for Pid {
    type Err = PidParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number: Result<i32, ParseIntError> = text.parse();
        number.ok().and_then(Self::new).ok_or_else(|| PidParseError { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_negative_numbers_are_not_pids() {
        assert_eq!(Pid::new(0), None);
        assert_eq!(Pid::new(-1), None);
        assert!("-7".parse::<Pid>().is_err());
    }

    #[test]
    fn the_main_thread_has_the_id_of_its_process() {
        assert_eq!(Pid::of_this_process().to_string(), std::process::id().to_string());
    }
}
