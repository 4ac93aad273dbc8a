//! A delivery mode: a kind with its overrides, and its canonical text. A mode contains no contradictions.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::check;
use crate::key::{SettingKey, Settings};
use crate::kind::{ModeKind, PollUsecs};
use crate::napi::{DEFER_HARD_IRQS_MAX, NapiSettings, Threaded};
use crate::parse;
use crate::poller::PollerSettings;
use crate::refusal::ParseModeError;
use crate::requirement::Requirement;
use crate::settings::{EpollParams, ProgramWait, USECS_MAX};

/// How packets are delivered: the settings of NAPI instances, epolls and sockets, and changes to the program's waits.
///
/// The text form is a name, a number N if the name takes one, and overrides, for example
/// `suspend20,defer-hard-irqs=10`. N of `deferN` and `suspendN` is the gro-flush-timeout in µs, with up to three
/// decimals (`defer0.5` is 500 ns). N of `sockpollN` and `eventspinN` is a whole number of µs. A timeout in an override
/// is in ns, as in the kernel, unless it has a unit (`ns`, `us`, `ms`, `s`).
///
/// `Display` prints the canonical text. It has the overrides in the order of [`SettingKey::ALL`], without overrides
/// that equal the name's default. It parses to an equal mode, and equal modes have equal texts. A mode contains no
/// contradictions, but a kernel may not support it; see [`requirements`](Self::requirements).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryMode {
    kind: ModeKind,
    settings: Settings,
}

impl DeliveryMode {
    pub(crate) fn checked(kind: ModeKind, settings: Settings) -> Self {
        Self { kind, settings }
    }

    /// `base` with these settings. `None` if no mode has them, because they contradict each other or are out of range.
    fn with_settings(napi: NapiSettings, epoll: EpollParams) -> Option<Self> {
        let (kind, settings) = (ModeKind::Base, Settings { napi, epoll: Some(epoll), poller: None });
        let is_in_range = napi.defer_hard_irqs <= DEFER_HARD_IRQS_MAX && epoll.busy_poll_usecs <= USECS_MAX;
        (is_in_range && check::contradiction(kind, &settings).is_none()).then_some(Self { kind, settings })
    }

    /// The mode with these settings under its own name, such as `suspend20`, or else `base` with overrides. `None` if
    /// no mode has them, because they contradict each other or are out of range.
    #[must_use]
    pub fn recognised(napi: NapiSettings, epoll: EpollParams) -> Option<Self> {
        let timeout = NonZeroU64::new(napi.gro_flush_timeout_ns);
        let with_timeout = timeout.map(|gro_flush_timeout_ns| {
            [ModeKind::Defer { gro_flush_timeout_ns }, ModeKind::Suspend { gro_flush_timeout_ns }]
        });
        let fixed =
            [ModeKind::Base, ModeKind::NapiBusy, ModeKind::FullBusy, ModeKind::Threaded, ModeKind::ThreadedBusy];
        let has_settings = |mode: &Self| mode.napi() == napi && mode.epoll().unwrap_or_default() == epoll;
        let named = fixed.into_iter().chain(with_timeout.into_iter().flatten()).map(Self::from).find(has_settings);
        named.or_else(|| Self::with_settings(napi, epoll))
    }

    /// Parses modes that are separated by commas, each with its overrides. `base,suspend20,defer-hard-irqs=10,fullbusy`
    /// consists of three modes. An item with a `=` belongs to the mode before it.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, ParseModeError> {
        parse::modes(text)
    }

    /// Kind of the mode, with N.
    #[must_use]
    pub fn kind(&self) -> ModeKind {
        self.kind
    }

    /// Name of the mode with N, but without overrides, for example `suspend20`.
    #[must_use]
    pub fn name(&self) -> String {
        Name(self.kind).to_string()
    }

    /// Description of the mode in one line, for tables and help.
    #[must_use]
    pub fn description(&self) -> &'static str {
        self.kind.description()
    }

    /// Settings of each NAPI instance that serves the program.
    #[must_use]
    pub fn napi(&self) -> NapiSettings {
        self.settings.napi
    }

    /// Busy-poll parameters of every epoll of the program. `None` if the mode does not change them.
    #[must_use]
    pub fn epoll(&self) -> Option<EpollParams> {
        self.settings.epoll
    }

    /// Threads of Quell that poll the queues. `None` if the mode has none.
    #[must_use]
    pub fn poller(&self) -> Option<PollerSettings> {
        self.settings.poller
    }

    /// Whether someone polls the queues without end, or while the program waits: CPU time is used at any load, up to a
    /// whole CPU.
    #[must_use]
    pub fn polls_at_any_load(&self) -> bool {
        let spins = self.epoll().is_some_and(|epoll| epoll.busy_poll_usecs > 0);
        spins || self.napi().threaded == Threaded::BusyPoll || self.poller().is_some()
    }

    /// The mode with a gro-flush-timeout of at most `ns`, which must not be 0, unless its name has the timeout.
    #[must_use]
    pub fn with_timer_at_most(mut self, ns: NonZeroU64) -> Self {
        if self.kind.gro_flush_timeout_in_name().is_none() {
            let timeout = &mut self.settings.napi.gro_flush_timeout_ns;
            *timeout = (*timeout).min(ns.get());
        }
        self
    }

    /// `SO_BUSY_POLL` of the program's sockets; `None` if the mode leaves sockets unchanged.
    #[must_use]
    pub fn socket_busy_poll(&self) -> Option<PollUsecs> {
        match self.kind {
            ModeKind::SockPoll { usecs, .. } => Some(usecs),
            _ => None,
        }
    }

    /// How the mode changes the program's own waits.
    #[must_use]
    pub fn program_wait(&self) -> ProgramWait {
        self.kind.program_wait()
    }

    /// Settings that the kernel accepts but that do not have the effect that their names suggest. Print them as
    /// warnings.
    #[must_use]
    pub fn concerns(&self) -> Vec<check::Concern> {
        check::concerns(&self.settings)
    }

    /// What the mode requires from the kernel, the host and the program. Check this before any change.
    #[must_use]
    pub fn requirements(&self) -> Vec<Requirement> {
        Requirement::of(self)
    }

    /// Settings that differ from the name's defaults, in canonical order.
    fn overrides(&self) -> impl Iterator<Item = (SettingKey, String)> + '_ {
        let named = self.kind.settings();
        SettingKey::ALL.into_iter().filter_map(move |key| {
            let value = self.settings.text_of(key)?;
            (named.text_of(key)? != value).then_some((key, value))
        })
    }
}

impl Default for DeliveryMode {
    /// `base`, the kernel's default.
    fn default() -> Self {
        ModeKind::Base.into()
    }
}

impl From<ModeKind> for DeliveryMode {
    fn from(kind: ModeKind) -> Self {
        Self { kind, settings: kind.settings() }
    }
}

struct Name(ModeKind);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.word())?;
        match self.0 {
            ModeKind::Defer { gro_flush_timeout_ns: ns } | ModeKind::Suspend { gro_flush_timeout_ns: ns } => {
                write_usecs(f, ns.get())
            }
            ModeKind::SockPoll { usecs } | ModeKind::EventSpin { usecs } => write!(f, "{}", usecs.get()),
            _ => Ok(()),
        }
    }
}

/// Formats `ns` in µs with as many decimals as needed, at most three.
fn write_usecs(f: &mut fmt::Formatter<'_>, ns: u64) -> fmt::Result {
    write!(f, "{}", ns / 1000)?;
    match ns % 1000 {
        0 => Ok(()),
        rest => write!(f, ".{}", format!("{rest:03}").trim_end_matches('0')),
    }
}

impl fmt::Display for DeliveryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.name();
        for (key, value) in self.overrides() {
            text.push_str(&format!(",{key}={value}"));
        }
        f.pad(&text)
    }
}

impl FromStr for DeliveryMode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::mode(text)
    }
}

impl serde::Serialize for DeliveryMode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for DeliveryMode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for DeliveryMode {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DeliveryMode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A delivery mode in canonical form, such as suspend20 or \
                            suspend20,defer-hard-irqs=10",
            "examples": ["base", "defer200", "suspend20,defer-hard-irqs=10", "sockpoll50"]
        })
    }
}
