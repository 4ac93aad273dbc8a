//! Errors in the text of a delivery mode, with their position.

use std::ops::Range;

use crate::key::SettingKey;
use crate::parse::{WITH_NUMBER, WORDS};

/// Why a text is not a valid delivery mode.
#[allow(missing_docs, reason = "the texts of the errors say it")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModeRefusal {
    #[error("a delivery mode is missing, such as base, defer200, fullbusy or suspend200")]
    Empty,
    #[error("unknown mode '{word}'; {}", known_modes(.nearest.as_deref()))]
    UnknownMode { word: String, nearest: Option<String> },
    #[error("{mode} needs a number of microseconds, such as {mode}200")]
    NumberMissing { mode: &'static str },
    #[error("{mode} takes no number; to override a setting, use for example {mode},defer-hard-irqs=10")]
    NumberNotTaken { mode: &'static str },
    #[error("'{number}' after {mode} is not {expected}")]
    NumberMalformed { mode: &'static str, number: String, expected: &'static str },
    #[error("{mode} with 0 microseconds has no effect; use a larger number, or base")]
    NumberZero { mode: &'static str },
    #[error("{number} after {mode} is above the kernel's limit of {max} microseconds")]
    NumberTooLarge {
        mode: &'static str,
        number: String,
        /// Largest valid number, in µs.
        max: u64,
    },
    #[error("'{word}' is a second mode, where one is meant; `quell bench` compares several")]
    SecondMode { word: String },
    #[error("unknown setting '{word}'{}", did_you_mean(*.nearest))]
    UnknownSetting { word: String, nearest: Option<&'static str> },
    #[error("{key} needs a value, as in {key}=1")]
    ValueMissing { key: SettingKey },
    #[error("{key} is {expected}, not '{value}'")]
    ValueMalformed { key: SettingKey, value: String, expected: &'static str },
    #[error("{value} is above the kernel's limit for {key}, {max}")]
    ValueTooLarge {
        key: SettingKey,
        value: String,
        /// Largest valid value; in ns for a timeout.
        max: u64,
    },
    #[error("{key} occurs twice; remove one of them")]
    GivenTwice { key: SettingKey },
    #[error("the number after {mode} is the gro-flush-timeout; change the number instead")]
    GroFlushTimeoutInName { mode: &'static str },
    #[error(
        "{mode} does not busy poll in epoll, so {key} would have no effect; epoll settings apply to \
         base, defer, napibusy, fullbusy and suspend"
    )]
    EpollNotUsed { mode: &'static str, key: SettingKey },
    #[error("{mode} has no polling threads of Quell, so {key} would have no effect; it applies to userbusy")]
    PollerNotUsed { mode: &'static str, key: SettingKey },
    #[error("{mode} implies {key} {value}; use another mode, or do not set {key}")]
    ContradictsName { mode: &'static str, key: SettingKey, value: &'static str },
    #[error(
        "suspension without deferral has no effect in the kernel: with irq-suspend-timeout set, \
         both defer-hard-irqs and gro-flush-timeout must be above 0"
    )]
    SuspensionWithoutDeferral,
    #[error(
        "suspension without prefer-busy-poll never happens: the kernel suspends only for an epoll \
         that has prefer-busy-poll=1"
    )]
    SuspensionWithoutPrefer,
    #[error(
        "threaded=2 busy polls without end and never enables the interrupt, so defer-hard-irqs and \
         gro-flush-timeout have nothing to defer; leave both at 0"
    )]
    ThreadedBusyPollWithDeferral,
    #[error(
        "threaded=2 owns the queue permanently, so epoll can never poll it; leave busy-poll-usecs \
         and prefer-busy-poll at 0"
    )]
    ThreadedBusyPollWithEpoll,
}

/// `modes: base, deferN, … (N in µs)`, after the nearest one.
fn known_modes(nearest: Option<&str>) -> String {
    let named = WORDS.map(|word| format!("{word}{}", if WITH_NUMBER.contains(&word) { "N" } else { "" }));
    let modes = nearest.map_or_else(|| "modes".to_owned(), |nearest| format!("did you mean {nearest}? Modes"));
    format!("{modes}: {} (N in µs)", named.join(", "))
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |word| format!("; did you mean {word}?"))
}

/// Error for a text that is not a delivery mode: the reason, and its position in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("delivery mode '{input}': {refusal}")]
pub struct ParseModeError {
    input: String,
    span: Range<usize>,
    refusal: ModeRefusal,
}

impl ParseModeError {
    pub(crate) fn new(input: &str, span: Range<usize>, refusal: ModeRefusal) -> Self {
        Self { input: input.to_owned(), span, refusal }
    }

    /// Why the text is invalid.
    #[must_use]
    pub fn refusal(&self) -> &ModeRefusal {
        &self.refusal
    }

    /// The whole text of the mode.
    #[must_use]
    pub fn input(&self) -> &str {
        &self.input
    }

    /// Range of bytes in [`input`](Self::input) that the error refers to. It consists of whole characters, and is empty
    /// if something is missing.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The input, and a second line with carets under [`span`](Self::span). Control characters are replaced by `?`, so
    /// that the input fits on one line.
    #[must_use]
    pub fn caret(&self) -> String {
        let shown: String = self.input.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let before = self.input[..self.span.start].chars().count();
        let marked = self.input[self.span.clone()].chars().count().max(1);
        format!("{shown}\n{}{}", " ".repeat(before), "^".repeat(marked))
    }
}
