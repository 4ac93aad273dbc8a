//! Errors in profiles. Every error has a position.

use super::place::Place;
use crate::refusal::ModeRefusal;

/// An invalid profile. `Display` includes the position, and [`ProfileError::caret`] shows the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {}", on_one_line(refusal))]
pub struct ProfileError {
    place: Place,
    refusal: Box<ProfileRefusal>,
}

impl ProfileError {
    pub(super) fn new(place: &Place, refusal: ProfileRefusal) -> Self {
        Self { place: place.clone(), refusal: Box::new(refusal) }
    }

    /// Position of the error.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Kind of the error.
    #[must_use]
    pub fn refusal(&self) -> &ProfileRefusal {
        &self.refusal
    }

    /// The line with the error, and carets below the position.
    #[must_use]
    pub fn caret(&self) -> String {
        self.place.caret()
    }
}

/// Formats an error on one line. It may quote keys and values from the profile, which may contain line breaks.
fn on_one_line(refusal: &ProfileRefusal) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    refusal.to_string().chars().map(escaped).collect()
}

/// An error in a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileRefusal {
    /// Invalid TOML.
    #[error("{0}")]
    Syntax(String),
    /// The table does not have this key.
    #[error("unknown key `{key}`{}", nearest.map_or_else(String::new, |near| format!("; did you mean `{near}`?")))]
    UnknownKey {
        /// Name of the key.
        key: String,
        /// Most similar known key; `None` if no key is similar.
        nearest: Option<&'static str>,
    },
    /// The value has the wrong type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// Name of the key.
        key: String,
        /// Description of a valid value.
        expected: &'static str,
        /// Type of the value.
        found: &'static str,
    },
    /// The value has the right type, but is invalid.
    #[error("`{key}` must be {expected}")]
    Value {
        /// Name of the key.
        key: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// There are more tables under one key than any host needs.
    #[error("`{key}` has more than {max} tables")]
    TooMany {
        /// Name of the key.
        key: &'static str,
        /// Maximum number of tables.
        max: usize,
    },
    /// A required key is missing.
    #[error("`{key}` is missing")]
    Missing {
        /// Name of the key, or the keys of which one is required.
        key: &'static str,
    },
    /// An invalid delivery mode.
    #[error(transparent)]
    Mode(ModeRefusal),
    /// Two settings contradict each other.
    #[error(transparent)]
    Contradiction(Contradiction),
}

/// Settings that contradict each other, or that have no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// The mode applies to programs only.
    #[error("{mode} is a mode of programs, not of queues: use `quell run {mode} -- COMMAND`")]
    ModeOfPrograms {
        /// Text of the mode.
        mode: String,
    },
    /// The mode has no NAPI thread, so CPUs or scheduling of the thread cannot be set.
    #[error("the mode of these queues has no thread: add `mode = \"threaded\"`, or threaded=1 to the mode")]
    NoThread,
    /// A delay is set although the driver adapts it to the load.
    #[error("`{adaptive}` lets the driver choose `{given}`: remove one of them")]
    AdaptiveAndGiven {
        /// The key that enables adaptation.
        adaptive: &'static str,
        /// The key that sets the delay.
        given: &'static str,
    },
    /// Two groups set the same key of a queue.
    #[error("queue {queue} is also in the queue group `{other}`, and both set `{key}`")]
    QueueTwice {
        /// Number of the queue.
        queue: u32,
        /// Label of the other group.
        other: String,
        /// Name of the key.
        key: &'static str,
    },
    /// A queue number exceeds the channel count in the same profile.
    #[error("queue {queue} is not among the {channels} channels of this profile (numbered from 0)")]
    QueueBeyondChannels {
        /// Number of the queue.
        queue: u32,
        /// Number of channels.
        channels: u32,
    },
    /// A flow rule refers to an unknown RSS context.
    #[error("unknown RSS context `{label}`: add a table [device.NAME.rss.{label}]")]
    NoSuchContext {
        /// Label of the RSS context.
        label: String,
    },
    /// A flow rule refers to the main RSS context, which receives packets by default.
    #[error(
        "packets that match no rule go to the main context by default: direct the rule to a queue or another context"
    )]
    RuleToMain,
    /// The device has flow rules, but the profile turns their feature off.
    #[error("flow rules need the feature rx-ntuple-filter, which this profile turns off")]
    FlowRulesOff,
    /// Interrupts are deferred although the profile turns GRO off.
    #[error("deferral relies on GRO, which this profile turns off: leave rx-gro on, or use base")]
    DeferralWithoutGro,
    /// Two flow rules match the same packets.
    #[error("the flow rule `{other}` matches the same packets")]
    RuleTwice {
        /// Label of the other rule.
        other: String,
    },
}
