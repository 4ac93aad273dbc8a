//! Why a text is no delivery mode, and where in the text the reason stands.

use std::ops::Range;

use crate::key::SettingKey;

/// Why a text is no delivery mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing where a mode should be.
    #[error("a delivery mode is missing, such as base, defer200, fullbusy or suspend200")]
    Empty,
    /// The name is none of the vocabulary's.
    #[error("no mode is called '{word}'{}", did_you_mean(*.nearest))]
    UnknownMode {
        /// What stands where the name should, without digits that follow.
        word: String,
        /// The nearest name, if one is near.
        nearest: Option<&'static str>,
    },
    /// A name that takes N came without.
    #[error("{mode} needs a number of microseconds, such as {mode}200")]
    NumberMissing {
        /// The name.
        mode: &'static str,
    },
    /// A name that takes no N came with one.
    #[error("{mode} takes no number; settings are overridden as in {mode},defer-hard-irqs=10")]
    NumberNotTaken {
        /// The name.
        mode: &'static str,
    },
    /// N is no number that the name takes.
    #[error("'{number}' after {mode} is not {expected}")]
    NumberMalformed {
        /// The name.
        mode: &'static str,
        /// What stands where N should.
        number: String,
        /// What N should be.
        expected: &'static str,
    },
    /// N is 0.
    #[error("{mode} with 0 microseconds has no effect; give more, or base")]
    NumberZero {
        /// The name.
        mode: &'static str,
    },
    /// N is beyond what the kernel takes.
    #[error("{number} after {mode} is above the kernel's limit of {max} microseconds")]
    NumberTooLarge {
        /// The name.
        mode: &'static str,
        /// N as written.
        number: String,
        /// The largest N.
        max: u64,
    },
    /// An override of something that is no setting.
    #[error("no setting is called '{word}'{}", did_you_mean(*.nearest))]
    UnknownSetting {
        /// What stands where the setting's name should.
        word: String,
        /// The nearest name, if one is near.
        nearest: Option<&'static str>,
    },
    /// An override without a value.
    #[error("{key} needs a value, as in {key}=1")]
    ValueMissing {
        /// The setting.
        key: SettingKey,
    },
    /// `own-cpu` with a value.
    #[error("own-cpu takes no value")]
    OwnCpuTakesNoValue,
    /// A value that is not of the setting's type.
    #[error("{key} is {expected}, not '{value}'")]
    ValueMalformed {
        /// The setting.
        key: SettingKey,
        /// The value as written.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A value beyond what the kernel takes.
    #[error("{value} is above the kernel's limit for {key}, {max}")]
    ValueTooLarge {
        /// The setting.
        key: SettingKey,
        /// The value as written.
        value: String,
        /// The largest value, in ns for a timeout.
        max: u64,
    },
    /// One setting twice.
    #[error("{word} is given twice; keep one")]
    GivenTwice {
        /// The setting, or `own-cpu`.
        word: &'static str,
    },
    /// N of `deferN` and `suspendN` is the gro-flush-timeout, and an override says otherwise.
    #[error("the number after {mode} is the gro-flush-timeout; change the number instead")]
    GroFlushTimeoutInName {
        /// The name.
        mode: &'static str,
    },
    /// `own-cpu` with another mode than `sockpollN`.
    #[error("{mode} does not poll sockets: own-cpu goes with sockpoll only")]
    OwnCpuWithoutSockPoll {
        /// The name.
        mode: &'static str,
    },
    /// A setting of epoll in a mode that does not poll by epoll.
    #[error(
        "{mode} does not poll by epoll, {key} would do nothing; epoll's settings go with base, \
         defer, napibusy, fullbusy and suspend"
    )]
    EpollNotUsed {
        /// The name.
        mode: &'static str,
        /// The setting.
        key: SettingKey,
    },
    /// An override takes away what the name stands for.
    #[error("{mode} means {key} {value}; name another mode or leave {key} as it is")]
    ContradictsName {
        /// The name.
        mode: &'static str,
        /// The setting.
        key: SettingKey,
        /// What it has to be.
        value: &'static str,
    },
    /// IRQ suspension where interrupts are not deferred.
    #[error(
        "suspension without deferral has no effect in the kernel: with irq-suspend-timeout set, \
         both defer-hard-irqs and gro-flush-timeout must be above 0"
    )]
    SuspensionWithoutDeferral,
    /// IRQ suspension without what triggers it.
    #[error(
        "suspension without prefer-busy-poll never happens: the kernel suspends only for an epoll \
         that has prefer-busy-poll=1"
    )]
    SuspensionWithoutPrefer,
    /// Deferral of interrupts that are never enabled.
    #[error(
        "threaded=2 polls without end and never enables the interrupt: there is nothing that \
         defer-hard-irqs and gro-flush-timeout could defer"
    )]
    ThreadedBusyPollWithDeferral,
    /// Two that want to own one queue for ever.
    #[error(
        "threaded=2 owns the queue without end, epoll could never poll it: leave busy-poll-usecs \
         and prefer-busy-poll at 0"
    )]
    ThreadedBusyPollWithEpoll,
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |word| format!("; did you mean {word}?"))
}

/// A text that is no delivery mode: the reason, and where in the text it stands.
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

    /// Why.
    #[must_use]
    pub fn refusal(&self) -> &Refusal {
        &self.refusal
    }

    /// The text that was to be a mode.
    #[must_use]
    pub fn input(&self) -> &str {
        &self.input
    }

    /// The bytes of [`input`](Self::input) that the reason is about, always whole characters;
    /// empty where something is missing.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The input and, in a second line, carets under the place; control characters are shown as
    /// `?`, so that the two lines stay two.
    #[must_use]
    pub fn caret(&self) -> String {
        let shown: String = self.input.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let before = self.input[..self.span.start].chars().count();
        let marked = self.input[self.span.clone()].chars().count().max(1);
        format!("{shown}\n{}{}", " ".repeat(before), "^".repeat(marked))
    }
}
