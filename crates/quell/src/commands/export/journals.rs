//! Drift of applied profiles, and journals of killed runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_change::drift::condition;
use quell_change::journal::{Journal, ListedJournal};
use quell_change::persistent::{self, PersistState, Persistent};
use quell_change::recovery;
use quell_linux::clock;

use crate::journals::boot_id;

/// The journals are read after this many times the CPU time of the previous reading: at most 0.5 % of one CPU.
const PAUSE_PER_CPU_TIME: u32 = 200;

/// What the journals say. Values that cannot be read are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JournalState {
    pub(super) drifted: BTreeMap<String, usize>,
    /// Number of journals of killed runs that wait to be restored.
    pub(super) left_behind: Option<usize>,
    /// Number of modes that were reverted because their queues stalled.
    pub(super) reverted: Option<usize>,
}

#[derive(Debug)]
pub(super) struct JournalReader {
    journal: Journal,
    next: Instant,
}

impl JournalReader {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, next: Instant::now() }
    }

    /// The present state. `None` if it is too early to read it again.
    pub(super) fn read(&mut self) -> Option<JournalState> {
        if Instant::now() < self.next {
            return None;
        }
        let before_ns = clock::process_cpu_ns();
        let state = JournalState {
            drifted: drifted(&self.journal),
            left_behind: left_behind(&self.journal),
            reverted: reverted_after_stall(&self.journal),
        };
        self.next = Instant::now() + Duration::from_nanos(clock::process_cpu_ns() - before_ns) * PAUSE_PER_CPU_TIME;
        Some(state)
    }
}

/// Profiles of the same name, in different network namespaces, are counted together.
fn drifted(journal: &Journal) -> BTreeMap<String, usize> {
    let mut sums: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for applied in persistent::list(journal).unwrap_or_default() {
        let is_applied = matches!(applied.state, PersistState::UntilReverted | PersistState::Unconfirmed(_));
        let Some(profile) = applied.history.begin.purpose.profile().filter(|_| is_applied) else { continue };
        let sum = sums.entry(profile.to_owned()).or_insert(Some(0));
        *sum = sum.zip(drifted_of(&applied)).map(|(sum, count)| sum + count);
    }
    sums.into_iter().filter_map(|(profile, sum)| Some((profile, sum?))).collect()
}

fn drifted_of(applied: &Persistent) -> Option<usize> {
    let condition = condition(&applied.path, &applied.history).ok()?;
    (condition.out_of_sight == 0).then_some(condition.drifted.len())
}

fn left_behind(journal: &Journal) -> Option<usize> {
    if journal.list().ok()?.iter().any(|listed| matches!(listed, ListedJournal::Unreadable(_))) {
        return None;
    }
    let left = recovery::left_behind(journal).ok()?;
    Some(left.iter().filter(|(_, history)| !history.only_waits()).count())
}

fn reverted_after_stall(journal: &Journal) -> Option<usize> {
    let stalls = journal.stall_records(&boot_id().ok()?).ok()?;
    Some(stalls.iter().filter(|record| record.reverted).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_change::journal::Purpose;

    #[test]
    fn a_journal_that_its_owner_has_left_is_counted_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        assert_eq!(left_behind(&journal), Some(0));
        let owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        assert_eq!(left_behind(&journal), Some(0), "its owner runs");
        drop(owned);
        assert_eq!(left_behind(&journal), Some(1));
    }

    #[test]
    fn journals_that_cannot_be_listed_have_no_number() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let journal = Journal::in_dir(file.path());
        assert_eq!((left_behind(&journal), drifted(&journal).len()), (None, 0));
    }
}
