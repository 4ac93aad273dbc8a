//! Purpose of a journal: which command makes its changes, with which mode or profile.

use std::fmt;

use quell_linux::visible;
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Purpose {
    /// A profile of a network namespace (`quell apply`).
    Profile {
        name: String,
        /// Name of the network namespace; null for the caller's.
        netns: Option<String>,
        /// CRC-32 of the texts of the files.
        content: u32,
    },
    /// A mode for running programs (`quell attach`, `quell tune --keep`).
    Attachment { mode: DeliveryMode },
    /// A mode for a program that Quell starts (`quell run`).
    Launch { mode: DeliveryMode },
    /// Programs that are switched between modes to compare them (`quell bench`).
    Experiment,
    /// Programs that are switched between modes to find the best one (`quell tune`).
    Search,
    /// Network namespaces for measurements and tests, with the programs in them.
    Lab,
    Command {
        /// Its part: `server`, `load` or `clients`.
        role: String,
    },
}

impl Purpose {
    #[must_use]
    pub fn mode(&self) -> Option<DeliveryMode> {
        match self {
            Self::Attachment { mode } | Self::Launch { mode } => Some(*mode),
            _ => None,
        }
    }

    #[must_use]
    pub fn profile(&self) -> Option<&str> {
        match self {
            Self::Profile { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether programs are switched between modes.
    #[must_use]
    pub fn is_experiment(&self) -> bool {
        matches!(self, Self::Experiment | Self::Search)
    }

    /// Whether the changes concern programs that run without Quell, or that `quell run` started.
    #[must_use]
    pub fn is_of_programs(&self) -> bool {
        matches!(self, Self::Attachment { .. } | Self::Launch { .. } | Self::Experiment | Self::Search)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile { name, netns: None, .. } => write!(f, "profile {name}"),
            Self::Profile { name, netns: Some(netns), .. } => {
                write!(f, "profile {name} in namespace {}", visible::name(netns))
            }
            Self::Attachment { mode } => write!(f, "attach {mode}"),
            Self::Launch { mode } => write!(f, "run {mode}"),
            Self::Experiment => f.write_str("experiment"),
            Self::Search => f.write_str("search for a mode"),
            Self::Lab => f.write_str("lab"),
            Self::Command { role } => write!(f, "{role} of an experiment"),
        }
    }
}
