//! Why a text is no profile: what is wrong, and where.

use super::place::Place;
use crate::refusal::Refusal;

/// A text that is no profile. Displayed with its place; [`ProfileError::caret`] shows the line.
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

    /// Where.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What.
    #[must_use]
    pub fn refusal(&self) -> &ProfileRefusal {
        &self.refusal
    }

    /// The line and, below it, carets under the place.
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

/// What is wrong with a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileRefusal {
    /// It is no TOML.
    #[error("{0}")]
    Syntax(String),
    /// A key that no profile has.
    #[error("no key is called `{key}` here{}", nearest.map_or_else(String::new, |near| format!("; did you mean `{near}`?")))]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest one that there is, if one is near.
        nearest: Option<&'static str>,
    },
    /// A value of another type.
    #[error("`{key}` is {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A value of the right type that makes no sense.
    #[error("`{key}` is {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// More tables under one key than any host needs.
    #[error("`{key}` has more than {max} tables")]
    TooMany {
        /// The key.
        key: &'static str,
        /// The most that it may have.
        max: usize,
    },
    /// A key that must be there.
    #[error("`{key}` is missing")]
    Missing {
        /// The key, or the keys of which one must be there.
        key: &'static str,
    },
    /// A delivery mode that is none.
    #[error(transparent)]
    Mode(Refusal),
    /// Two things that cannot both be.
    #[error(transparent)]
    Contradiction(Contradiction),
}

/// Two things in a profile that cannot both be, or one that cannot have an effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    /// A mode that is a matter of the program alone.
    #[error("{mode} is set on a program's sockets, not on a queue: use `quell run {mode} -- COMMAND`")]
    ModeOfPrograms {
        /// The mode.
        mode: String,
    },
    /// A thread is placed where none is.
    #[error("the mode of these queues has no thread: add `mode = \"threaded\"`, or threaded=1 to the mode")]
    NoThread,
    /// The driver is to choose a delay that is given.
    #[error("`{adaptive}` lets the driver choose `{given}` itself: leave one of them out")]
    AdaptiveAndGiven {
        /// The key that leaves it to the driver.
        adaptive: &'static str,
        /// The key that gives it.
        given: &'static str,
    },
    /// Two groups give a queue the same setting.
    #[error("queue {queue} is also in the queue group `{other}`, and both give it `{key}`")]
    QueueTwice {
        /// The queue.
        queue: u32,
        /// The other group.
        other: String,
        /// What both give.
        key: &'static str,
    },
    /// A queue beyond the channels that the same profile asks for.
    #[error("queue {queue} is not among the {channels} channels that this profile asks for (they count from 0)")]
    QueueBeyondChannels {
        /// The queue.
        queue: u32,
        /// How many channels.
        channels: u32,
    },
    /// A flow rule leads to a context that is not there.
    #[error("no RSS context is called `{label}` here: add a table [device.NAME.rss.{label}]")]
    NoSuchContext {
        /// The label.
        label: String,
    },
    /// A flow rule leads to the main context, where packets go anyway.
    #[error("packets that no rule matches go to the main context anyway: lead the rule to a queue or another context")]
    RuleToMain,
    /// Flow rules on a device that is not to have them.
    #[error("flow rules need the feature rx-ntuple-filter, which this profile turns off")]
    FlowRulesOff,
    /// GRO is off where deferral relies on it.
    #[error("deferral holds packets back for GRO, which this profile turns off: leave rx-gro on, or use base")]
    DeferralWithoutGro,
    /// Two rules for the same packets.
    #[error("the flow rule `{other}` matches the same packets")]
    RuleTwice {
        /// The other rule.
        other: String,
    },
}
