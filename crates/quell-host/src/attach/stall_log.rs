//! Keeps the record of the stalls that an owner has found: counts them, looks for the cause, and writes the record beside
//! the journal, where other commands find it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::clock::boottime_ns;
use tracing::{info, warn};

use super::stall::StallLook;
use crate::behavior;
use crate::findings::{Finding, examine_observed};
use crate::journal::{History, StallRecord};
use crate::snapshot::{SnapshotScope, take};

/// Shortest time between two searches for the cause, which take as much CPU time as a snapshot.
const CAUSE_EVERY: Duration = Duration::from_secs(60);
/// Shortest time between two writes of the record.
const WRITTEN_EVERY: Duration = Duration::from_secs(10);

/// Record of the stalls under one journal.
#[derive(Debug)]
pub struct StallLog {
    journal: PathBuf,
    record: StallRecord,
    written: Option<Instant>,
    searched: Option<Instant>,
}

impl StallLog {
    /// Begins the record for the journal at `journal`. Writes nothing.
    #[must_use]
    pub fn new(journal: PathBuf, history: &History) -> Self {
        let record = StallRecord {
            boot_id: history.begin.boot_id.clone(),
            purpose: history.begin.purpose.clone(),
            programs: history.targets.clone(),
            stalls: 0,
            last_boot_ns: 0,
            cause: None,
            taken_back: false,
        };
        Self { journal, record, written: None, searched: None }
    }

    /// Adds the stalls of a look, if there are any. Returns the cause as far as it is known.
    pub fn add(&mut self, look: &StallLook, programs: &BTreeSet<Pid>) -> Option<&str> {
        if look.freed.is_empty() {
            return None;
        }
        self.record.stalls += look.freed.len() as u64;
        self.record.last_boot_ns = boottime_ns();
        if self.searched.is_none_or(|at| at.elapsed() >= CAUSE_EVERY) {
            self.record.cause = cause(programs).or(self.record.cause.take());
            self.searched = Some(Instant::now());
            info!(cause = self.record.cause, "searched for the cause of the stall");
        }
        if self.written.is_none_or(|at| at.elapsed() >= WRITTEN_EVERY) {
            self.write();
        }
        self.record.cause.as_deref()
    }

    /// Records that the mode is taken back. To be called before the journal is reverted, which removes other records.
    pub fn take_back(mut self) -> StallRecord {
        self.record.taken_back = true;
        self.write();
        self.record
    }

    fn write(&mut self) {
        self.written = Some(Instant::now());
        // Without the record, the mode is taken back nevertheless.
        if let Err(error) = self.record.write(&self.journal) {
            warn!(%error, "could not write the record of stalls");
        }
    }
}

/// Cause that the rules find in the present state of the programs.
pub(super) fn cause(programs: &BTreeSet<Pid>) -> Option<String> {
    let scope = SnapshotScope { pids: programs.iter().copied().collect(), ..SnapshotScope::default() };
    let (snapshot, _) = take(&scope).ok()?;
    let behavior = behavior::observe(&snapshot, programs, true);
    let findings = examine_observed(&snapshot, None, &BTreeMap::new(), Some(&behavior)).findings;
    let Finding { id, title, seen, .. } = findings.into_iter().find(Finding::predicts_stall)?;
    Some(format!("{id}: {title}: {seen}"))
}
