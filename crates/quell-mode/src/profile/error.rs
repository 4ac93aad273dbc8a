//! Errors in profiles, with their position.

use super::place::Place;
use crate::refusal::Refusal;

/// An invalid profile. `Display` includes the position; [`ProfileError::caret`] shows the line.
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

    /// Position.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Error.
    #[must_use]
    pub fn refusal(&self) -> &ProfileRefusal {
        &self.refusal
    }

    /// The line, and below it carets under the position.
    #[must_use]
    pub fn caret(&self) -> String {
        self.place.caret()
    }
}

/// Keys and values of a file of others are quoted in it.
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
    /// Unknown key.
    #[error("unknown key `{key}`{}", nearest.map_or_else(String::new, |near| format!("; did you mean `{near}`?")))]
    UnknownKey {
        /// The key.
        key: String,
        /// Most similar known key.
        nearest: Option<&'static str>,
    },
    /// A value of the wrong type.
    #[error("`{key}` is {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// Description of a valid value.
        expected: &'static str,
        /// Type of the value.
        found: &'static str,
    },
    /// An invalid value of the right type.
    #[error("`{key}` is {expected}")]
    Value {
        /// The key.
        key: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// More tables under one key than any host needs.
    #[error("`{key}` has more than {max} tables")]
    TooMany {
        /// The key.
        key: &'static str,
        /// Most tables.
        max: usize,
    },
    /// A required key is missing.
    #[error("`{key}` is missing")]
    Missing {
        /// The key, or the keys of which one is required.
        key: &'static str,
    },
    /// An invalid delivery mode.
    #[error(transparent)]
    Mode(Refusal),
    /// A contradiction.
    #[error(transparent)]
    Contradiction(Contradiction),
}

/// Settings that contradict each other, or that have no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// A mode that applies to programs only.
    #[error("{mode} is set on a program's sockets, not on a queue: use `quell run {mode} -- COMMAND`")]
    ModeOfPrograms {
        /// The mode.
        mode: String,
    },
    /// CPUs or scheduling of a NAPI thread that the mode does not have.
    #[error("the mode of these queues has no thread: add `mode = \"threaded\"`, or threaded=1 to the mode")]
    NoThread,
    /// A delay is set although the driver adapts it.
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
        /// The queue.
        queue: u32,
        /// The other group.
        other: String,
        /// The key.
        key: &'static str,
    },
    /// A queue above the channel count of the same profile.
    #[error("queue {queue} is not among the {channels} channels of this profile (numbered from 0)")]
    QueueBeyondChannels {
        /// The queue.
        queue: u32,
        /// Number of channels.
        channels: u32,
    },
    /// A flow rule refers to an unknown RSS context.
    #[error("unknown RSS context `{label}`: add a table [device.NAME.rss.{label}]")]
    NoSuchContext {
        /// The label.
        label: String,
    },
    /// A flow rule refers to the main context, where packets go by default.
    #[error(
        "packets that match no rule go to the main context by default: direct the rule to a queue or another context"
    )]
    RuleToMain,
    /// Flow rules on a device whose filters the profile turns off.
    #[error("flow rules need the feature rx-ntuple-filter, which this profile turns off")]
    FlowRulesOff,
    /// Deferral without GRO.
    #[error("deferral relies on GRO, which this profile turns off: leave rx-gro on, or use base")]
    DeferralWithoutGro,
    /// Two rules for the same packets.
    #[error("the flow rule `{other}` matches the same packets")]
    RuleTwice {
        /// The other rule.
        other: String,
    },
}
