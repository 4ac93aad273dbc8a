//! Errors in the text of a delivery mode, with their position.

use std::ops::Range;

use crate::key::SettingKey;

/// Why a text is not a valid delivery mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModeRefusal {
    /// A mode is missing.
    #[error("a delivery mode is missing, such as base, defer200, fullbusy or suspend200")]
    Empty,
    /// The name of the mode is unknown.
    #[error("unknown mode '{word}'{}", did_you_mean(.nearest.as_deref()))]
    UnknownMode {
        /// Word that was used as the name, without trailing digits.
        word: String,
        /// Most similar name, with the number if the mode takes one; `None` if no name is similar.
        nearest: Option<String>,
    },
    /// The mode needs a number N, which is missing.
    #[error("{mode} needs a number of microseconds, such as {mode}200")]
    NumberMissing {
        /// Name of the mode.
        mode: &'static str,
    },
    /// The mode takes no number.
    #[error("{mode} takes no number; to override a setting, use for example {mode},defer-hard-irqs=10")]
    NumberNotTaken {
        /// Name of the mode.
        mode: &'static str,
    },
    /// The number N in the mode's name is malformed.
    #[error("'{number}' after {mode} is not {expected}")]
    NumberMalformed {
        /// Name of the mode.
        mode: &'static str,
        /// Text that was used as the number.
        number: String,
        /// Description of a valid N.
        expected: &'static str,
    },
    /// The number N in the mode's name is 0.
    #[error("{mode} with 0 microseconds has no effect; use a larger number, or base")]
    NumberZero {
        /// Name of the mode.
        mode: &'static str,
    },
    /// The number N exceeds the kernel's limit.
    #[error("{number} after {mode} is above the kernel's limit of {max} microseconds")]
    NumberTooLarge {
        /// Name of the mode.
        mode: &'static str,
        /// Number as given.
        number: String,
        /// Largest valid number, in µs.
        max: u64,
    },
    /// The name of the overridden setting is unknown.
    #[error("unknown setting '{word}'{}", did_you_mean(*.nearest))]
    UnknownSetting {
        /// Word that was used as the name of a setting.
        word: String,
        /// Most similar name; `None` if no name is similar.
        nearest: Option<&'static str>,
    },
    /// An override has no value.
    #[error("{key} needs a value, as in {key}=1")]
    ValueMissing {
        /// Name of the setting.
        key: SettingKey,
    },
    /// The value does not have the setting's type.
    #[error("{key} is {expected}, not '{value}'")]
    ValueMalformed {
        /// Name of the setting.
        key: SettingKey,
        /// Value as given.
        value: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// The value exceeds the kernel's limit.
    #[error("{value} is above the kernel's limit for {key}, {max}")]
    ValueTooLarge {
        /// Name of the setting.
        key: SettingKey,
        /// Value as given.
        value: String,
        /// Largest valid value; in ns for a timeout.
        max: u64,
    },
    /// An override occurs twice.
    #[error("{key} occurs twice; remove one of them")]
    GivenTwice {
        /// Name of the setting.
        key: SettingKey,
    },
    /// An override of gro-flush-timeout contradicts the number N of `deferN` or `suspendN`.
    #[error("the number after {mode} is the gro-flush-timeout; change the number instead")]
    GroFlushTimeoutInName {
        /// Name of the mode.
        mode: &'static str,
    },
    /// An override changes an epoll setting, but the mode does not busy poll in epoll.
    #[error(
        "{mode} does not busy poll in epoll, so {key} would have no effect; epoll settings apply to \
         base, defer, napibusy, fullbusy and suspend"
    )]
    EpollNotUsed {
        /// Name of the mode.
        mode: &'static str,
        /// Name of the setting.
        key: SettingKey,
    },
    /// An override contradicts the name of the mode.
    #[error("{mode} implies {key} {value}; use another mode, or do not set {key}")]
    ContradictsName {
        /// Name of the mode.
        mode: &'static str,
        /// Name of the setting.
        key: SettingKey,
        /// Value that the name requires.
        value: &'static str,
    },
    /// IRQ suspension is set without deferral.
    #[error(
        "suspension without deferral has no effect in the kernel: with irq-suspend-timeout set, \
         both defer-hard-irqs and gro-flush-timeout must be above 0"
    )]
    SuspensionWithoutDeferral,
    /// IRQ suspension is set without `prefer-busy-poll`, which it needs.
    #[error(
        "suspension without prefer-busy-poll never happens: the kernel suspends only for an epoll \
         that has prefer-busy-poll=1"
    )]
    SuspensionWithoutPrefer,
    /// Deferral is set with `threaded=2`, which never enables interrupts.
    #[error(
        "threaded=2 busy polls without end and never enables the interrupt, so defer-hard-irqs and \
         gro-flush-timeout have nothing to defer; leave both at 0"
    )]
    ThreadedBusyPollWithDeferral,
    /// Busy polling in epoll is set with `threaded=2`, which owns the queue permanently.
    #[error(
        "threaded=2 owns the queue permanently, so epoll can never poll it; leave busy-poll-usecs \
         and prefer-busy-poll at 0"
    )]
    ThreadedBusyPollWithEpoll,
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
