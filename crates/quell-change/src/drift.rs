//! Finds settings of a journal that no longer have the applied value, and applies those of profiles again. Flow rules,
//! RSS contexts, sockets, io_urings and reuseport filters are not compared.

use std::collections::BTreeSet;
use std::path::Path;

use quell_linux::proc::ProcRoot;

use crate::change::{Change, CompareError, Comparison, Drift, Present};
use crate::journal::claims::Others;
use crate::journal::{Entry, History};
use crate::missing_queue::MissingQueue;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    pub drifted: Vec<Drift>,
    /// Settings that the driver has reset, and that the follower of the programs sets again.
    pub being_set_again: Vec<Drift>,
    /// Number of settings whose device or network namespace is gone.
    pub gone: usize,
    /// Number of settings in `drifted` whose network namespace cannot be entered, so that their value is unknown.
    pub out_of_sight: usize,
    /// Why none of the queues with settings exists. Absent if one does, or if the owner sets it again.
    pub without_queues: Option<MissingQueue>,
}

impl Condition {
    /// Number of settings that have another value now. Those of queues that do not exist at present have none.
    #[must_use]
    pub fn changed(&self) -> usize {
        self.drifted.iter().filter(|drift| drift.now.is_some()).count()
    }

    /// Adds a setting, once: a journal lists a queue twice if an attachment has set it twice, as after the driver has
    /// recreated it.
    fn add(known: &mut Vec<Drift>, drift: Drift) {
        let key = |drift: &Drift| Some((drift.device.clone(), drift.queue?, drift.missing.clone()?));
        let queue = key(&drift);
        if !known.iter().any(|other| *other == drift || (queue.is_some() && key(other) == queue)) {
            known.push(drift);
        }
    }
}

/// Reads the current state of the settings in the journal at `path`. A value that another journal has set since does
/// not count as drift.
pub fn condition(path: &Path, history: &History) -> Result<Condition, CompareError> {
    let mut condition = Condition::default();
    let mut queues = BTreeSet::new();
    compare(path, history, |entry, _, comparison| {
        if let Change::NapiSettings(change) = &entry.change {
            queues.insert(change.queue());
        }
        let drift = match comparison {
            Comparison::Same => None,
            Comparison::Differs(drift) => Some(drift),
            Comparison::BeingSetAgain(drift) => {
                Condition::add(&mut condition.being_set_again, drift);
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
        drift.into_iter().for_each(|drift| Condition::add(&mut condition.drifted, drift));
        Ok(())
    })?;
    let missing = condition.drifted.iter().filter_map(|drift| drift.missing.as_ref());
    condition.without_queues = missing.clone().next().filter(|_| missing.count() == queues.len()).cloned();
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
