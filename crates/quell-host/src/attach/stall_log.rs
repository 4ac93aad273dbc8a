//! Keeps the record of the stalls that an owner has found: counts them, looks for the cause, and writes the record beside
//! the journal, where other commands find it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quell_change::journal::{History, StallRecord};
use quell_linux::Pid;
use quell_linux::clock::boottime_ns;
use tracing::{info, warn};

use super::attachment::observe;
use super::stall::StallLook;
use crate::behavior;
use crate::findings::{Finding, examine_observed, starved_program};
use crate::snapshot::{SnapshotScope, take};

/// Shortest time between two searches for the cause, which take the CPU time of up to three snapshots.
const CAUSE_EVERY: Duration = Duration::from_secs(60);
/// Number of searches that are made at once if they find nothing: an object can be ready for a part of the time only.
const SEARCHES_AT_ONCE: u32 = 3;
/// Shortest time between two writes of the record.
const WRITTEN_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct StallLog {
    journal: PathBuf,
    record: StallRecord,
    persists: bool,
    written: Option<Instant>,
    searched: Option<Instant>,
    searches: u32,
    search: Option<CauseSearch>,
}

impl StallLog {
    /// Begins the record for the journal at `journal`. Writes nothing.
    #[must_use]
    pub fn new(journal: PathBuf, history: &History) -> Self {
        let record = StallRecord {
            journal_name: String::new(),
            boot_id: history.begin.boot_id.clone(),
            purpose: history.begin.purpose.clone(),
            programs: history.targets.clone(),
            stalls: 0,
            last_boot_ns: 0,
            cause: None,
            reverted: false,
        };
        Self { journal, record, persists: false, written: None, searched: None, searches: 0, search: None }
    }

    /// Adds the stalls of a look, if there are any. To be called after each look. Begins a search for their cause. Returns
    /// whether a search has ended.
    pub fn add(&mut self, look: &StallLook, programs: &BTreeSet<Pid>) -> bool {
        self.add_and_search(look, || CauseSearch::begin(programs))
    }

    fn add_and_search(&mut self, look: &StallLook, search: impl FnOnce() -> CauseSearch) -> bool {
        let ended = self.search.take_if(|search| search.is_over());
        let has_ended = ended.is_some();
        let found = ended.and_then(CauseSearch::end);
        let is_new = found.is_some() && found != self.record.cause;
        self.record.cause = found.or(self.record.cause.take());
        let has_stalled = !look.freed.is_empty();
        if has_stalled {
            self.record.stalls += look.freed.len() as u64;
            self.record.last_boot_ns = boottime_ns();
            self.persists |= look.persists;
            let searches_at_once = self.record.cause.is_none() && self.searches < SEARCHES_AT_ONCE;
            let is_due = searches_at_once || self.searched.is_none_or(|at| at.elapsed() >= CAUSE_EVERY);
            if is_due && self.search.is_none() {
                self.searched = Some(Instant::now());
                self.searches += 1;
                self.search = Some(search());
            }
        }
        if is_new || has_stalled && self.written.is_none_or(|at| at.elapsed() >= WRITTEN_EVERY) {
            self.write();
        }
        has_ended
    }

    /// Cause of the stalls, unless it is unknown; absent while it is searched for.
    #[must_use]
    pub fn cause(&self) -> Option<Option<&str>> {
        self.search.is_none().then_some(self.record.cause.as_deref())
    }

    /// Whether stalls are so frequent that the mode must be reverted. Waits for the cause, which cannot be found without
    /// the mode.
    #[must_use]
    pub fn must_end(&self) -> bool {
        self.persists && self.search.is_none()
    }

    /// Records that the mode is reverted. To be called before the journal is reverted, which removes other records.
    pub fn record_revert(mut self) -> StallRecord {
        self.record.reverted = true;
        self.write();
        self.record
    }

    fn write(&mut self) {
        self.written = Some(Instant::now());
        // Without the record, the mode is reverted nevertheless.
        if let Err(error) = self.record.write(&self.journal) {
            warn!(%error, "could not write the record of stalls");
        }
    }
}

/// Search for the cause of a stall. It runs in its own thread, because the queues stall again before it is over.
#[derive(Debug)]
pub(super) struct CauseSearch(Option<JoinHandle<Option<String>>>);

impl CauseSearch {
    pub(super) fn begin(programs: &BTreeSet<Pid>) -> Self {
        let programs = programs.clone();
        Self::by(move || {
            let cause = cause(&programs);
            info!(cause, "searched for the cause of the stall");
            cause
        })
    }

    fn by(search: impl FnOnce() -> Option<String> + Send + 'static) -> Self {
        let thread = thread::Builder::new().name("cause".to_owned()).spawn(search);
        Self(thread.inspect_err(|error| warn!(%error, "could not search for the cause of the stall")).ok())
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub(super) fn end(self) -> Option<String> {
        // A panic of the thread was reported when it happened.
        self.0?.join().ok().flatten()
    }
}

fn cause(programs: &BTreeSet<Pid>) -> Option<String> {
    // Of the whole host, to find the user of a CPU that the program does not get.
    let before = observe().ok()?;
    let scope = SnapshotScope { pids: programs.iter().copied().collect(), ..SnapshotScope::default() };
    let (snapshot, _) = take(&scope).ok()?;
    let behavior = behavior::observe(&snapshot, programs, true);
    let findings = examine_observed(&snapshot, None, &BTreeMap::new(), Some(&behavior)).findings;
    match findings.into_iter().find(Finding::predicts_stall) {
        Some(Finding { id, title, observed, .. }) => Some(format!("{id}: {title}: {observed}")),
        None => starved_program(&observe().ok()?, &before, programs),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::attach::stall::Stalled;
    use quell_change::journal::{Journal, Purpose};
    use quell_change::resume::Freed;
    use quell_linux::NapiId;
    use quell_test_support::wait_until;

    fn stall(persists: bool) -> StallLook {
        let napi = NapiId::from_kernel(8_193).unwrap();
        let stalled = Stalled { napi, unpolled: Duration::from_secs(1), packets: 1, freed: Freed::ThroughIoUring };
        StallLook { freed: vec![stalled], persists }
    }

    #[test]
    fn stalls_are_counted_and_the_mode_stays_while_their_cause_is_searched_for() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let file =
            journal.begin("attach-1", Purpose::Attachment { mode: "suspend20".parse().unwrap() }, "boot").unwrap();
        let mut log = StallLog::new(file.path().to_owned(), file.history());
        let (found, search) = mpsc::channel();
        let mut search = Some(search);
        let mut add = |log: &mut StallLog, look: &StallLook| {
            log.add_and_search(look, || {
                let search = search.take().unwrap();
                CauseSearch::by(move || search.recv().ok())
            });
        };
        add(&mut log, &stall(false));
        add(&mut log, &stall(true));
        assert_eq!(log.record.stalls, 2);
        assert_eq!((log.cause(), log.must_end()), (None, false));
        found.send("a file stays ready".to_owned()).unwrap();
        wait_until(|| {
            add(&mut log, &StallLook::default());
            if log.must_end() { Ok(()) } else { Err("the search goes on".to_owned()) }
        });
        assert_eq!(log.cause(), Some(Some("a file stays ready")));
    }
}
