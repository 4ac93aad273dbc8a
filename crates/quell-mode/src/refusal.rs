//! Errors of parsing a delivery mode, with their position in the text.

use std::ops::Range;

use crate::key::SettingKey;

/// Why a text is not a delivery mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A mode is missing.
    #[error("a delivery mode is missing, such as base, defer200, fullbusy or suspend200")]
    Empty,
    /// Unknown name.
    #[error("unknown mode '{word}'{}", did_you_mean(*.nearest))]
    UnknownMode {
        /// Word in place of the name, without digits that follow.
        word: String,
        /// Most similar name.
        nearest: Option<&'static str>,
    },
    /// N is missing.
    #[error("{mode} needs a number of microseconds, such as {mode}200")]
    NumberMissing {
        /// The name.
        mode: &'static str,
    },
    /// The name takes no N.
    #[error("{mode} takes no number; settings are overridden as in {mode},defer-hard-irqs=10")]
    NumberNotTaken {
        /// The name.
        mode: &'static str,
    },
    /// N is malformed.
    #[error("'{number}' after {mode} is not {expected}")]
    NumberMalformed {
        /// The name.
        mode: &'static str,
        /// Text in place of N.
        number: String,
        /// Description of a valid N.
        expected: &'static str,
    },
    /// N is 0.
    #[error("{mode} with 0 microseconds has no effect; give more, or base")]
    NumberZero {
        /// The name.
        mode: &'static str,
    },
    /// N is above the kernel's limit.
    #[error("{number} after {mode} is above the kernel's limit of {max} microseconds")]
    NumberTooLarge {
        /// The name.
        mode: &'static str,
        /// N as given.
        number: String,
        /// Largest N, in µs.
        max: u64,
    },
    /// Override of an unknown setting.
    #[error("unknown setting '{word}'{}", did_you_mean(*.nearest))]
    UnknownSetting {
        /// Word in place of the setting's name.
        word: String,
        /// Most similar name.
        nearest: Option<&'static str>,
    },
    /// Override without a value.
    #[error("{key} needs a value, as in {key}=1")]
    ValueMissing {
        /// The setting.
        key: SettingKey,
    },
    /// The value is not of the setting's type.
    #[error("{key} is {expected}, not '{value}'")]
    ValueMalformed {
        /// The setting.
        key: SettingKey,
        /// Value as given.
        value: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// The value is above the kernel's limit.
    #[error("{value} is above the kernel's limit for {key}, {max}")]
    ValueTooLarge {
        /// The setting.
        key: SettingKey,
        /// Value as given.
        value: String,
        /// Largest value, in ns for a timeout.
        max: u64,
    },
    /// A setting is given twice.
    #[error("{key} is given twice; keep one")]
    GivenTwice {
        /// The setting.
        key: SettingKey,
    },
    /// An override contradicts N of `deferN` or `suspendN`, which is the gro-flush-timeout.
    #[error("the number after {mode} is the gro-flush-timeout; change the number instead")]
    GroFlushTimeoutInName {
        /// The name.
        mode: &'static str,
    },
    /// Override of an epoll setting in a mode that does not busy poll in epoll.
    #[error(
        "{mode} does not busy poll in epoll, so {key} would have no effect; epoll settings apply to \
         base, defer, napibusy, fullbusy and suspend"
    )]
    EpollNotUsed {
        /// The name.
        mode: &'static str,
        /// The setting.
        key: SettingKey,
    },
    /// An override contradicts the name.
    #[error("{mode} implies {key} {value}; use another mode, or do not set {key}")]
    ContradictsName {
        /// The name.
        mode: &'static str,
        /// The setting.
        key: SettingKey,
        /// Value that the name requires.
        value: &'static str,
    },
    /// IRQ suspension without deferral.
    #[error(
        "suspension without deferral has no effect in the kernel: with irq-suspend-timeout set, \
         both defer-hard-irqs and gro-flush-timeout must be above 0"
    )]
    SuspensionWithoutDeferral,
    /// IRQ suspension without `prefer-busy-poll`, which triggers it.
    #[error(
        "suspension without prefer-busy-poll never happens: the kernel suspends only for an epoll \
         that has prefer-busy-poll=1"
    )]
    SuspensionWithoutPrefer,
    /// Deferral with `threaded=2`, which never enables interrupts.
    #[error(
        "threaded=2 busy polls without end and never enables the interrupt, so defer-hard-irqs and \
         gro-flush-timeout have nothing to defer; leave both at 0"
    )]
    ThreadedBusyPollWithDeferral,
    /// Busy polling in epoll with `threaded=2`, which owns the queue permanently.
    #[error(
        "threaded=2 owns the queue permanently, so epoll can never poll it; leave busy-poll-usecs \
         and prefer-busy-poll at 0"
    )]
    ThreadedBusyPollWithEpoll,
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |word| format!("; did you mean {word}?"))
}

/// A text that is not a delivery mode: the reason, and its position in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("delivery mode '{input}': {refusal}")]
pub struct ParseModeError {
    input: String,
    span: Range<usize>,
    refusal: Refusal,
}

impl ParseModeError {
    pub(crate) fn new(input: &str, span: Range<usize>, refusal: Refusal) -> Self {
        Self { input: input.to_owned(), span, refusal }
    }

    /// Reason.
    #[must_use]
    pub fn refusal(&self) -> &Refusal {
        &self.refusal
    }

    /// The whole text.
    #[must_use]
    pub fn input(&self) -> &str {
        &self.input
    }

    /// Bytes of [`input`](Self::input) that the reason is about: whole characters, empty where something
    /// is missing.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The input, and a second line with carets under [`span`](Self::span). Control characters are
    /// replaced by `?`, so that the input stays one line.
    #[must_use]
    pub fn caret(&self) -> String {
        let shown: String = self.input.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let before = self.input[..self.span.start].chars().count();
        let marked = self.input[self.span.clone()].chars().count().max(1);
        format!("{shown}\n{}{}", " ".repeat(before), "^".repeat(marked))
    }
}
