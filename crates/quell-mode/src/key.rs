//! Settings that the text of a mode can override. They have the kernel's names. The module also defines the text form
//! of their values.

use std::fmt;

use crate::napi::{DEFER_HARD_IRQS_MAX, NapiAttribute, NapiSettings, Threaded};
use crate::poller::{PollerClass, PollerSettings};
use crate::refusal::ModeRefusal;
use crate::settings::{EpollParams, USECS_MAX};
use crate::timeout::{DurationError, parse_timeout_ns, timeout_text};

/// Highest number of a CPU (`CONFIG_NR_CPUS` is at most 8,192).
const CPU_MAX: u32 = 8_191;

/// A setting that the text of a mode can override.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SettingKey {
    /// `defer-hard-irqs` of the NAPI instance.
    DeferHardIrqs,
    /// `gro-flush-timeout` of the NAPI instance.
    GroFlushTimeout,
    /// `irq-suspend-timeout` of the NAPI instance.
    IrqSuspendTimeout,
    /// `threaded` of the NAPI instance.
    Threaded,
    /// `busy_poll_usecs` of the epoll.
    BusyPollUsecs,
    /// `busy_poll_budget` of the epoll.
    BusyPollBudget,
    /// `prefer_busy_poll` of the epoll.
    PreferBusyPoll,
    /// CPU of the first polling thread of Quell; `any` if the scheduler chooses.
    PollerCpu,
    /// Scheduling class of the polling threads of Quell.
    PollerClass,
}

impl SettingKey {
    /// All keys, in the order in which canonical text lists them.
    pub const ALL: [Self; 9] = [
        Self::DeferHardIrqs,
        Self::GroFlushTimeout,
        Self::IrqSuspendTimeout,
        Self::Threaded,
        Self::BusyPollUsecs,
        Self::BusyPollBudget,
        Self::PreferBusyPoll,
        Self::PollerCpu,
        Self::PollerClass,
    ];

    /// Name of the setting in the text of a mode.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DeferHardIrqs => NapiAttribute::DeferHardIrqs.name(),
            Self::GroFlushTimeout => NapiAttribute::GroFlushTimeout.name(),
            Self::IrqSuspendTimeout => NapiAttribute::IrqSuspendTimeout.name(),
            Self::Threaded => NapiAttribute::Threaded.name(),
            Self::BusyPollUsecs => "busy-poll-usecs",
            Self::BusyPollBudget => "busy-poll-budget",
            Self::PreferBusyPoll => "prefer-busy-poll",
            Self::PollerCpu => "poller-cpu",
            Self::PollerClass => "poller-class",
        }
    }

    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == word)
    }

    fn number(self, value: &str, max: u32) -> Result<u32, ModeRefusal> {
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.malformed(value, "a whole number"));
        }
        value.parse().ok().filter(|number| *number <= max).ok_or_else(|| self.too_large(value, u64::from(max)))
    }

    fn timeout_ns(self, value: &str) -> Result<u64, ModeRefusal> {
        parse_timeout_ns(value).map_err(|error| match error {
            DurationError::Malformed => {
                self.malformed(value, "a number of ns, or a number followed by ns, us, ms or s")
            }
            DurationError::TooLarge => self.too_large(value, u64::MAX),
        })
    }

    fn malformed(self, value: &str, expected: &'static str) -> ModeRefusal {
        ModeRefusal::ValueMalformed { key: self, value: value.to_owned(), expected }
    }

    fn too_large(self, value: &str, max: u64) -> ModeRefusal {
        ModeRefusal::ValueTooLarge { key: self, value: value.to_owned(), max }
    }
}

impl fmt::Display for SettingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// All settings of a mode that a [`SettingKey`] can select.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Settings {
    pub(crate) napi: NapiSettings,
    /// Busy-poll parameters of epolls; `None` if the mode leaves them unchanged.
    pub(crate) epoll: Option<EpollParams>,
    /// Polling threads of Quell; `None` if the mode has none.
    pub(crate) poller: Option<PollerSettings>,
}

impl Settings {
    /// Parses `value` into the setting `key`. `mode` names the mode in an error.
    pub(crate) fn set(&mut self, mode: &'static str, key: SettingKey, value: &str) -> Result<(), ModeRefusal> {
        let napi = &mut self.napi;
        let epoll = self.epoll.as_mut().ok_or(ModeRefusal::EpollNotUsed { mode, key });
        let poller = self.poller.as_mut().ok_or(ModeRefusal::PollerNotUsed { mode, key });
        match key {
            SettingKey::DeferHardIrqs => {
                napi.defer_hard_irqs = key.number(value, DEFER_HARD_IRQS_MAX)?;
            }
            SettingKey::GroFlushTimeout => napi.gro_flush_timeout_ns = key.timeout_ns(value)?,
            SettingKey::IrqSuspendTimeout => napi.irq_suspend_timeout_ns = key.timeout_ns(value)?,
            SettingKey::Threaded => {
                napi.threaded =
                    Threaded::from_kernel_value(key.number(value, 2)?).ok_or_else(|| key.too_large(value, 2))?;
            }
            SettingKey::BusyPollUsecs => epoll?.busy_poll_usecs = key.number(value, USECS_MAX)?,
            SettingKey::BusyPollBudget => {
                let max = u16::MAX;
                epoll?.busy_poll_budget =
                    u16::try_from(key.number(value, max.into())?).map_err(|_| key.too_large(value, max.into()))?;
            }
            SettingKey::PreferBusyPoll => epoll?.prefer_busy_poll = key.number(value, 1)? == 1,
            SettingKey::PollerCpu => {
                poller?.cpu = if value == "any" { None } else { Some(key.number(value, CPU_MAX)?) };
            }
            SettingKey::PollerClass => {
                poller?.class = PollerClass::parse(value).ok_or_else(|| key.malformed(value, PollerClass::EXPECTED))?;
            }
        }
        Ok(())
    }

    /// Value of `key` as text. `None` for a setting of epolls or pollers that the mode does not have.
    pub(crate) fn text_of(&self, key: SettingKey) -> Option<String> {
        let napi = &self.napi;
        match key {
            SettingKey::DeferHardIrqs => Some(napi.defer_hard_irqs.to_string()),
            SettingKey::GroFlushTimeout => Some(timeout_text(napi.gro_flush_timeout_ns)),
            SettingKey::IrqSuspendTimeout => Some(timeout_text(napi.irq_suspend_timeout_ns)),
            SettingKey::Threaded => Some(napi.threaded.kernel_value().to_string()),
            SettingKey::BusyPollUsecs => Some(self.epoll?.busy_poll_usecs.to_string()),
            SettingKey::BusyPollBudget => Some(self.epoll?.busy_poll_budget.to_string()),
            SettingKey::PreferBusyPoll => Some(u8::from(self.epoll?.prefer_busy_poll).to_string()),
            SettingKey::PollerCpu => Some(self.poller?.cpu_text()),
            SettingKey::PollerClass => Some(self.poller?.class.to_string()),
        }
    }
}
