//! The changes of a host. Planners produce them, a [`Transaction`](crate::transaction::Transaction) records and makes
//! them, and everything that reads a journal knows them as [`Change`] only: `kind` has what it asks, and each kind
//! answers beside its record in [`crate::settings`].

mod kind;
mod outcome;
mod planned;
pub(crate) mod text;

use std::fmt;

use quell_linux::proc::ProcRoot;
use serde::{Deserialize, Serialize};

use crate::settings::SettingsError;
pub use crate::settings::affinity::ThreadAffinity;
pub use crate::settings::epoll::EpollParameters;
pub use crate::settings::host::HostSetting;
pub use crate::settings::launched::LaunchedEpolls;
pub use crate::settings::napi::{NapiSettingsChange, QueueInPlan};
pub use crate::settings::objects::{CreatedNamespace, CreatedVethPair, StartedProcess};
pub use crate::settings::reuseport::{ReplacedFilter, ReuseportFilter};
pub use crate::settings::ring::RingPollingChange;
pub use crate::settings::socket::{SocketsAlike, SocketsPolling};

pub use kind::{CompareError, Drift};
pub(crate) use kind::{Comparison, Kind, Present, Undo, UndoOrder, identity, unless_out_of_sight};
pub use outcome::{ChangeOutcome, UndoOutcome};
pub(crate) use planned::RANK_OF_QUEUES;
pub use planned::{ChannelCounts, ContextRef, DeviceId, Diff, PlannedChange, PlannedQueue, RingSizes, RuleAction};
pub use text::ChangeText;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    NetworkNamespace(CreatedNamespace),
    VethPair(CreatedVethPair),
    Process(StartedProcess),
    /// Settings of a NAPI instance. An undo restores only values that are unchanged since; it frees the queue before
    /// and after.
    NapiSettings(NapiSettingsChange),
    /// Busy-poll parameters of an epoll. An undo restores them only if they are unchanged since; it frees the epoll's
    /// queues before and after.
    EpollParameters(EpollParameters),
    /// Busy-poll parameters that the preload library sets on each epoll of a program. An undo covers all epolls that
    /// the program and its descendants have at that time.
    LaunchedEpolls(LaunchedEpolls),
    /// Filter of a reuseport group. Undone by detaching it through one of the original sockets of the group, if any is
    /// still open.
    ReuseportFilter(ReuseportFilter),
    /// Busy polling of a process's sockets. Undone on the sockets that still have the new setting, and on their
    /// accepted connections.
    SocketsPolling(SocketsPolling),
    /// Busy polling of an io_uring that did not busy poll before. Undone if the ring still has the new setting.
    RingPolling(RingPollingChange),
    /// CPU affinity of a thread. Undone if it is unchanged since.
    ThreadAffinity(ThreadAffinity),
    /// A host setting from a plan. An undo restores the parts that are unchanged since.
    HostSetting(HostSetting),
}

impl Change {
    pub(crate) fn kind(&self) -> &dyn Kind {
        match self {
            Self::NetworkNamespace(change) => change,
            Self::VethPair(change) => change,
            Self::Process(change) => change,
            Self::NapiSettings(change) => change,
            Self::EpollParameters(change) => change,
            Self::LaunchedEpolls(change) => change,
            Self::ReuseportFilter(change) => change,
            Self::SocketsPolling(change) => change,
            Self::RingPolling(change) => change,
            Self::ThreadAffinity(change) => change,
            Self::HostSetting(change) => change,
        }
    }

    /// `SO_NETNS_COOKIE` of the namespace of a setting; absent for objects of programs.
    #[must_use]
    pub fn namespace_cookie(&self) -> Option<u64> {
        self.kind().namespace_cookie()
    }

    pub fn exists(&self, proc: &ProcRoot) -> Result<bool, SettingsError> {
        self.kind().exists(proc)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}
