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
#[allow(missing_docs, reason = "the texts of the errors say it")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileRefusal {
    #[error("{0}")]
    Syntax(String),
    #[error("unknown key `{key}`; {}", instead_of_unknown(*nearest, known))]
    UnknownKey { key: String, nearest: Option<&'static str>, known: Vec<&'static str> },
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType { key: String, expected: &'static str, found: &'static str },
    #[error("`{key}` must be {expected}")]
    Value { key: String, expected: &'static str },
    #[error("`{key}` has more than {max} tables")]
    TooMany { key: &'static str, max: usize },
    #[error("`{key}` is missing")]
    Missing { key: &'static str },
    #[error(transparent)]
    Mode(ModeRefusal),
    #[error(transparent)]
    Contradiction(Contradiction),
}

fn instead_of_unknown(nearest: Option<&str>, known: &[&str]) -> String {
    match nearest {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the keys here are {}", known.join(", ")),
    }
}

/// Settings that contradict each other, or that have no effect.
#[allow(missing_docs, reason = "the texts of the errors say it")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Contradiction {
    #[error("{mode} is a mode of programs, not of queues: use `quell run {mode} -- COMMAND`")]
    ModeOfPrograms { mode: String },
    #[error("the mode of these queues has no thread: add `mode = \"threaded\"`, or threaded=1 to the mode")]
    NoThread,
    #[error("`{adaptive}` lets the driver choose `{given}`: remove one of them")]
    AdaptiveAndGiven { adaptive: &'static str, given: &'static str },
    #[error("queue {queue} is also in the queue group `{other}`, and both set `{key}`")]
    QueueTwice { queue: u32, other: String, key: &'static str },
    #[error("queue {queue} is not among the {channels} channels of this profile (numbered from 0)")]
    QueueBeyondChannels { queue: u32, channels: u32 },
    #[error("unknown RSS context `{label}`: add a table [device.NAME.rss.{label}]")]
    NoSuchContext { label: String },
    #[error(
        "packets that match no rule go to the main context by default: direct the rule to a queue or another context"
    )]
    RuleToMain,
    #[error("flow rules need the feature rx-ntuple-filter, which this profile turns off")]
    FlowRulesOff,
    #[error("deferral relies on GRO, which this profile turns off: leave rx-gro on, or use base")]
    DeferralWithoutGro,
    #[error("the flow rule `{other}` matches the same packets")]
    RuleTwice { other: String },
}
