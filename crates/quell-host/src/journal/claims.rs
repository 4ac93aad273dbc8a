//! What other journals say of a queue: two programs that are attached to share the queues of their device, and each of
//! them is to find, and to leave, what the other needs. Whoever ends last puts back what there was before the first.

use std::fs::File;
use std::path::{Path, PathBuf};

use quell_linux::NapiId;

use super::error::{Attempt, JournalError};
use super::found::ListedJournal;
use super::record::{Change, NapiSettings};
use super::store::Journal;
use crate::settings::values::NapiValues;

/// The journals beside one's own.
#[derive(Debug)]
pub(crate) struct Others {
    journal: Journal,
    own: PathBuf,
    boot_id: String,
}

/// While it lives nobody else who asks for it looks at or changes what several journals speak of.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "closing the file ends the lock")] File);

impl Others {
    /// Those beside the journal at `own`, of the same boot.
    pub(crate) fn beside(own: &Path, boot_id: String) -> Self {
        let dir = own.parent().unwrap_or(Path::new("."));
        Self { journal: Journal::in_dir(dir), own: own.to_owned(), boot_id }
    }

    /// Waits until nobody else has it.
    ///
    /// # Errors
    /// When the directory cannot be opened or locked.
    pub(crate) fn turn(&self) -> Result<Turn, JournalError> {
        let dir = self.journal.dir();
        let lock = || {
            let file = File::open(dir)?;
            file.lock()?;
            Ok(Turn(file))
        };
        lock().map_err(|source| JournalError { attempt: Attempt::List, path: dir.to_owned(), source })
    }

    /// The settings that they made of a queue and have not undone, whether or not their owners live: who died will be
    /// undone by whoever comes next. In the order of their beginning.
    ///
    /// # Errors
    /// When the journals cannot be listed.
    pub(crate) fn claims(&self, napi: NapiId) -> Result<Claims, JournalError> {
        let mut claims = Vec::new();
        for listed in self.journal.list()? {
            let (path, history) = match listed {
                ListedJournal::Running { path, history: Some(history) }
                | ListedJournal::Abandoned { path, history } => (path, history),
                _ => continue,
            };
            if path == self.own || history.begin.boot_id != self.boot_id {
                continue;
            }
            let of_queue = history.pending().filter_map(|(_, entry)| match &entry.change {
                Change::NapiSettings(change) if change.napi_id == napi.get() => Some(change.clone()),
                _ => None,
            });
            let mut of_queue: Vec<NapiSettings> = of_queue.collect();
            of_queue.reverse();
            claims.extend(of_queue.into_iter().map(|change| (history.begin.began_unix_s, change)));
        }
        claims.sort_by_key(|(began_unix_s, _)| *began_unix_s);
        Ok(Claims(claims.into_iter().map(|(_, change)| change).collect()))
    }
}

/// What others have set on one queue and not undone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Vec<NapiSettings>);

impl Claims {
    /// The values that the queue had before the first of them.
    pub(crate) fn before_all(&self, current: &NapiValues) -> NapiValues {
        self.0.iter().rev().fold(*current, |values, claim| values.changed_by(&claim.old))
    }

    /// What the queue is to have when a change of these fields from `old` is undone: what the last of the others wants.
    pub(crate) fn instead_of(&self, old: &NapiValues, fields: &NapiValues) -> NapiValues {
        self.0.iter().fold(*old, |values, claim| values.changed_by(&claim.new.where_present_in(fields)))
    }

    /// Those of the values that none of the others has set.
    pub(crate) fn without_theirs(&self, values: &NapiValues) -> NapiValues {
        self.0.iter().fold(*values, |values, claim| values.unlike(&claim.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspend(timeout_ns: u64) -> NapiValues {
        NapiValues { irq_suspend_timeout_ns: Some(timeout_ns), ..NapiValues::default() }
    }

    fn claim(old: u64, new: u64) -> NapiSettings {
        NapiSettings {
            namespace_cookie: 1,
            device: "eth0".into(),
            napi_id: 9,
            place: 0,
            old: suspend(old),
            new: suspend(new),
        }
    }

    #[test]
    fn what_there_was_before_is_what_the_first_of_all_found() {
        let claims = Claims(vec![claim(0, 20), claim(0, 30)]);
        assert_eq!(claims.before_all(&suspend(30)), suspend(0));
        assert_eq!(Claims::default().before_all(&suspend(30)), suspend(30));
    }

    #[test]
    fn who_ends_first_leaves_what_the_others_want() {
        let others = Claims(vec![claim(0, 20), claim(0, 30)]);
        assert_eq!(others.instead_of(&suspend(0), &suspend(50)), suspend(30));
        assert_eq!(Claims::default().instead_of(&suspend(0), &suspend(50)), suspend(0));
    }

    #[test]
    fn values_that_others_have_set_are_no_strangers() {
        let others = Claims(vec![claim(0, 20)]);
        assert!(others.without_theirs(&suspend(20)).is_empty());
        assert_eq!(others.without_theirs(&suspend(21)), suspend(21));
    }
}
