//! What `quell status` says about modes that were reverted: stalls, and settings that are left.

use std::fmt;
use std::path::Path;

use quell_change::journal::{History, Purpose, StallRecord, TargetProgram};
use quell_change::recovery::waiting_settings;
use schemars::JsonSchema;
use serde::Serialize;

use super::{span, stall_cause, to_programs, unix_s};
use crate::journals::name_of;
use crate::output::on_one_line;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct StallReport {
    pub(super) purpose: Purpose,
    /// Name of the journal, by which `quell revert` forgets these stalls.
    pub(super) journal_name: String,
    pub(super) programs: Vec<TargetProgram>,
    pub(super) stalls: u64,
    pub(super) last_unix_s: u64,
    /// Null if the rules found none.
    pub(super) cause: Option<String>,
    pub(super) reverted: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct LeftBehind {
    #[serde(flatten)]
    pub(super) purpose: Purpose,
    /// Name of the journal, by which `quell revert` selects it.
    pub(super) journal_name: String,
    pub(super) programs: Vec<TargetProgram>,
}

/// Settings of a reverted journal that wait because their queues were missing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct WaitingReport {
    /// Name of the journal, by which `quell revert` selects it.
    pub(super) journal_name: String,
    pub(super) purpose: Purpose,
    pub(super) programs: Vec<TargetProgram>,
    pub(super) settings: Vec<String>,
}

impl From<StallRecord> for StallReport {
    fn from(record: StallRecord) -> Self {
        let last_unix_s = unix_s().saturating_sub(record.age().as_secs());
        let StallRecord { purpose, journal_name, programs, stalls, cause, reverted, .. } = record;
        Self { purpose, journal_name, programs, stalls, last_unix_s, cause, reverted }
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { purpose, journal_name, programs, stalls, last_unix_s, cause, reverted } = self;
        let ago = span(unix_s().abs_diff(*last_unix_s));
        let of = on_one_line(&format!("{purpose}{} ({journal_name})", to_programs(programs)));
        let times = if *stalls == 1 { "once".to_owned() } else { format!("{stalls} times") };
        let what = if *reverted { "reverted: its queues stalled" } else { "suspect: its queues stalled" };
        writeln!(f, "{of}: {what} {times}, the last time {ago} ago")?;
        let pids = programs.iter().map(|program| program.pid);
        writeln!(f, "  {}", on_one_line(&stall_cause(cause.as_deref(), pids)))
    }
}

impl LeftBehind {
    pub(super) fn of(path: &Path, history: &History) -> Self {
        let (purpose, programs) = (history.begin.purpose.clone(), history.targets.clone());
        Self { purpose, journal_name: name_of(path), programs }
    }
}

impl WaitingReport {
    pub(super) fn of(path: &Path, history: &History) -> Self {
        Self {
            journal_name: name_of(path),
            purpose: history.begin.purpose.clone(),
            programs: history.targets.clone(),
            settings: waiting_settings(history),
        }
    }
}
