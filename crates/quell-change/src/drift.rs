//! Finds settings of a journal that no longer have the applied value, and applies those of profiles again. Flow rules,
//! RSS contexts, sockets, io_urings and reuseport filters are not compared.

use std::path::Path;

use quell_linux::proc::ProcRoot;

use crate::change::{CompareError, Comparison, Drift, Present};
use crate::journal::claims::Others;
use crate::journal::{Entry, History};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    pub drifted: Vec<Drift>,
    /// Settings that the driver has reset, and that the follower of the programs sets again.
    pub being_set_again: Vec<Drift>,
    /// Number of settings whose device or network namespace is gone.
    pub gone: usize,
    /// Number of settings in `drifted` whose network namespace cannot be entered, so that their value is unknown.
    pub out_of_sight: usize,
}

impl Condition {
    /// Number of settings that have another value now. Those of queues that do not exist at present have none.
    #[must_use]
    pub fn changed(&self) -> usize {
        self.drifted.iter().filter(|drift| drift.now.is_some()).count()
    }
}

/// Reads the current state of the settings in the journal at `path`. A value that another journal has set since does
/// not count as drift.
pub fn condition(path: &Path, history: &History) -> Result<Condition, CompareError> {
    let mut condition = Condition::default();
    compare(path, history, |_, _, comparison| {
        let drift = match comparison {
            Comparison::Same => None,
            Comparison::Differs(drift) => Some(drift),
            Comparison::BeingSetAgain(drift) => {
                if !condition.being_set_again.contains(&drift) {
                    condition.being_set_again.push(drift);
                }
                None
            }
            Comparison::Gone => {
                condition.gone += 1;
                None
            }
            Comparison::OutOfSight(drift) => {
                condition.out_of_sight += usize::from(drift.is_some());
                drift
            }
        };
        // A journal lists a queue twice if an attachment has set it twice.
        condition.drifted.extend(drift.filter(|drift| !condition.drifted.contains(drift)));
        Ok(())
    })?;
    Ok(condition)
}

/// Applies the drifted settings of the profile in the journal at `path` again, if their objects exist. Returns the
/// state before. It records nothing, because the journal already holds the values from before the profile.
pub fn reassert(path: &Path, history: &History) -> Result<Condition, CompareError> {
    let before = condition(path, history)?;
    compare(path, history, |entry, present, comparison| match comparison {
        Comparison::Differs(drift) if drift.now.is_some() => entry.change.kind().make_again(present),
        _ => Ok(()),
    })?;
    Ok(before)
}

/// Compares the pending changes of a journal, in the order in which they were applied.
fn compare(
    path: &Path,
    history: &History,
    mut heed: impl FnMut(&Entry, &Present<'_>, Comparison) -> Result<(), CompareError>,
) -> Result<(), CompareError> {
    let proc = ProcRoot::default();
    let others = Others::beside(path, proc.boot_id()?.to_string());
    let epolls = others.of_epolls(Some(history))?;
    let present = Present { proc: &proc, others: &others, history, epolls: &epolls };
    for entry in history.entries.iter().filter(|entry| entry.is_pending()) {
        let comparison = entry.change.kind().compare(&present)?;
        heed(entry, &present, comparison)?;
    }
    Ok(())
}
