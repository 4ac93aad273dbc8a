//! The list of stored results.

use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;

/// The list of `quell results`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ResultsList {
    /// `quell-results/1`.
    pub schema: String,
    pub directory: String,
    /// Stored results, the newest one first.
    pub results: Vec<ListedResult>,
}

impl Document for ResultsList {
    const SCHEMA: &'static str = "quell-results/1";
}

/// A file of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ListedResult {
    /// ID for `quell results show`: the name of the file without `.json`.
    pub id: String,
    /// Start of the measurement, in seconds since 1970-01-01 UTC. If the document does not state it, the time of the
    /// last change of the file. Absent if neither is known.
    pub started_unix_s: Option<u64>,
    /// What the document says.
    #[serde(flatten)]
    pub content: ListedContent,
}

/// What a file of the store says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum ListedContent {
    /// The file is a document.
    Read {
        /// Schema of the document.
        document: String,
        /// Subject and host, in one line.
        subject: String,
        /// Modes and loads, or the goal, in one line.
        question: String,
        /// Answer in one line.
        answer: String,
        /// What to do, for scripts. Absent unless programs or a command were measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<Box<Decision>>,
    },
    /// The file cannot be read, or is not a document of this version.
    Unreadable {
        /// The reason, in one line.
        reason: String,
    },
}

/// What a measurement decides: its last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Decision {
    pub kind: DecisionKind,
    /// Mode to use or to keep. Absent for `undo` and `undecided`.
    pub mode: Option<DeliveryMode>,
    /// The sentence that `quell bench` and `quell tune` print.
    pub text: String,
    /// The command below it. Absent without one.
    pub command: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionKind {
    /// The mode is better than what the programs have.
    Use,
    /// The same by the goal of a search; by other quantities the mode is worse by more than a quarter.
    UseForGoalOnly,
    /// No other mode is better.
    Keep,
    /// The attached mode is worse: the command detaches it.
    Undo,
    /// Measure again, as the text says.
    Undecided,
}
