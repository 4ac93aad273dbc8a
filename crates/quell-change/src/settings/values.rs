//! Values of settings as the journal stores them, in the kernel's terms and units. Pure.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketValues {
    /// Duration in microseconds for which a blocking receive polls before it sleeps (`SO_BUSY_POLL`).
    pub busy_poll_us: u32,
    /// Whether busy polling of the socket takes precedence over softirqs (`SO_PREFER_BUSY_POLL`).
    pub prefer_busy_poll: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketPolling {
    pub values: SocketValues,
    /// Packets per poll (`SO_BUSY_POLL_BUDGET`), which the kernel does not report. Absent: unchanged, 8 by default.
    /// Sockets that busy polled before keep their own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u16>,
}

impl SocketValues {
    /// Whether the socket busy polls, or prefers busy polling by others.
    #[must_use]
    pub fn polls(&self) -> bool {
        self.busy_poll_us > 0 || self.prefer_busy_poll
    }
}

impl fmt::Display for SocketValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "busy-poll {} µs, prefer {}", self.busy_poll_us, u8::from(self.prefer_busy_poll))
    }
}
