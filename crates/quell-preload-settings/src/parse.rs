//! From text to settings, strictly: what is not known, or given twice, or out of range, makes the whole text worth
//! nothing, for half of the settings could be worse than none.

use core::fmt;
use core::str::FromStr;

use crate::text::word;
use crate::{BusyPoll, PreloadSettings, Ranged, VERSION, Wait};

/// A text that tells the library nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseError {
    /// Which part, counted from 0, where commas separate them.
    pub part: usize,
    /// Why.
    pub reason: Reason,
}

/// What is wrong with a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The text does not begin with [`VERSION`].
    Version,
    /// No setting has this name, or the name has no value.
    Unknown,
    /// It was given before, or what excludes it was.
    Twice,
    /// The value is none of this setting's.
    Value,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "another version",
            Self::Unknown => "an unknown setting",
            Self::Twice => "a setting that was given before, or excludes one that was",
            Self::Value => "a value that the setting cannot have",
        })
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "settings of the preload library: {} in part {}", self.reason, self.part)
    }
}

impl core::error::Error for ParseError {}

impl FromStr for PreloadSettings {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut settings = Self::default();
        for (part, item) in text.split(',').enumerate() {
            let read = if part == 0 { version(item) } else { settings.take(item) };
            read.map_err(|reason| ParseError { part, reason })?;
        }
        Ok(settings)
    }
}

fn version(item: &str) -> Result<(), Reason> {
    if item == VERSION { Ok(()) } else { Err(Reason::Version) }
}

impl PreloadSettings {
    fn take(&mut self, item: &str) -> Result<(), Reason> {
        let (name, value) = item.split_once('=').ok_or(Reason::Unknown)?;
        match name {
            word::EPOLL => set(&mut self.epoll, busy_poll(value)),
            word::SOCKETS => set(&mut self.sockets, busy_poll(value)),
            word::ZERO_WAITS if self.timed_zero_waits => Err(Reason::Twice),
            word::ZERO_WAITS if value != word::TIMED => Err(Reason::Value),
            word::ZERO_WAITS => {
                self.timed_zero_waits = true;
                Ok(())
            }
            word::WAIT_AT_MOST_MS => self.set_wait(ranged(value).map(Wait::AtMost)),
            word::SPIN_USECS => self.set_wait(ranged(value).map(Wait::SpinBeforeSleep)),
            word::EVENTS_MAX => set(&mut self.events_max, ranged(value)),
            _ => Err(Reason::Unknown),
        }
    }

    fn set_wait(&mut self, wait: Option<Wait>) -> Result<(), Reason> {
        if self.wait != Wait::AsWritten {
            return Err(Reason::Twice);
        }
        self.wait = wait.ok_or(Reason::Value)?;
        Ok(())
    }
}

fn set<T>(slot: &mut Option<T>, value: Option<T>) -> Result<(), Reason> {
    if slot.is_some() {
        return Err(Reason::Twice);
    }
    *slot = Some(value.ok_or(Reason::Value)?);
    Ok(())
}

/// `usecs/budget/prefer`.
fn busy_poll(value: &str) -> Option<BusyPoll> {
    let (usecs, rest) = value.split_once('/')?;
    let (budget, prefer) = rest.split_once('/')?;
    let prefer = match prefer {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    BusyPoll::new(number(usecs)?, u16::try_from(number(budget)?).ok()?, prefer)
}

fn ranged<const MIN: u32, const MAX: u32>(value: &str) -> Option<Ranged<MIN, MAX>> {
    Ranged::new(number(value)?)
}

/// Digits alone: the standard library would take a sign too.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
