//! Whether suspended interrupts would stall a server, by what it was observed to do without.

use std::collections::BTreeSet;

use quell_linux::Pid;
use schemars::JsonSchema;
use serde::Serialize;

use crate::attach::consequences::consequences_observed;
use crate::attach::{AttachRequest, EpollsSetBy, plan};
use crate::behavior::Behavior;
use crate::findings::Finding;
use crate::snapshot::query::{EpollContext, SnapshotQuery};

/// What was observed about a server without a mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Suspension {
    /// Nothing that would stall it.
    NoStallSeen,
    /// Modes that suspend interrupts would stall it.
    WouldStall { finding: &'static str, observed: String },
}

impl Suspension {
    /// Absent if those of these processes that receive in epolls were not observed, and if none does.
    pub(super) fn of(query: &SnapshotQuery<'_>, pids: &BTreeSet<Pid>, behavior: Option<&Behavior>) -> Option<Self> {
        let receives = |epoll: &&EpollContext<'_>| pids.contains(&epoll.process.pid) && !epoll.by_napi.is_empty();
        let receiving: BTreeSet<Pid> = query.epolls().filter(receives).map(|epoll| epoll.process.pid).collect();
        let is_observed = |behavior: &&Behavior| receiving.is_subset(&behavior.programs) && !receiving.is_empty();
        let behavior = behavior.filter(is_observed)?;
        let mode = "suspend200".parse().ok()?;
        let plan = plan(query.now, query.before, pids, &AttachRequest { mode, epolls: EpollsSetBy::Attachment });
        let findings = consequences_observed(query.now, query.before, &plan, Some(behavior));
        let stall = findings.into_iter().find(Finding::predicts_stall);
        Some(stall.map_or(Self::NoStallSeen, |stall| Self::WouldStall { finding: stall.id, observed: stall.observed }))
    }
}
