//! What making and undoing a change have found out.

use quell_linux::Pid;
use quell_linux::ethtool::RssContextId;
use quell_linux::executable::FileId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "undoing", content = "reason", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UndoOutcome {
    Undone,
    AlreadyGone,
    Partial(String),
    /// Nothing was undone, because another program has changed the value since; the text gives the details.
    LeftAlone(String),
    /// Nothing was undone, because a newer owner has set the value; the text names it.
    Superseded(String),
    /// The queue has no NAPI instance at present and may return with the new value. The change remains to be undone.
    Waits(String),
}

/// Facts that are known only after a change was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ChangeOutcome {
    Made,
    NetworkNamespace {
        /// `SO_NETNS_COOKIE`; unique within one boot.
        cookie: u64,
    },
    /// A process. Its ID and start time together are unique within one boot.
    Process {
        /// Process ID, which is also its session ID.
        pid: Pid,
        /// Start time, in clock ticks since boot (`/proc/PID/stat`, field 22).
        start_time_ticks: u64,
        /// Its executable file. Without this value the process is not killed. Absent if it could not be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        executable: Option<FileId>,
    },
    RssContext {
        id: RssContextId,
    },
    FlowRule {
        location: u32,
    },
}
