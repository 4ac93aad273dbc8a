//! Reads the settings of a queue in other journals. Attachments to two programs share the queues of a device. Each must
//! preserve the settings that the other needs. The last one to end restores the values from before the first.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::file::lock_within;
use quell_mode::PartialNapiSettings;

use super::error::{Attempt, JournalError};
use super::found::ListedJournal;
use super::record::{NapiSettingsChange, RecordedChange};
use super::store::Journal;

/// Time limit for another process to set or undo a queue, including the wait for a queue that nothing can poll.
const TURN_WITHIN: Duration = Duration::from_secs(60);

/// The other journals of this host.
#[derive(Debug)]
pub(crate) struct Others {
    journal: Journal,
    own: PathBuf,
    boot_id: String,
}

/// Lock on the journal directory. Only its holder reads or changes objects that several journals share.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "closing the file ends the lock")] File);

impl Others {
    /// The other journals of the same boot in the directory of the journal `own`.
    pub(crate) fn beside(own: &Path, boot_id: String) -> Self {
        let dir = own.parent().unwrap_or(Path::new("."));
        Self { journal: Journal::in_dir(dir), own: own.to_owned(), boot_id }
    }

    /// Waits for the lock, at most a minute, or until `stop` returns true.
    ///
    /// # Errors
    /// When the directory cannot be opened or locked; names the holder on timeout.
    pub(crate) fn turn(&self, stop: &mut dyn FnMut() -> bool) -> Result<Turn, JournalError> {
        let dir = self.journal.dir();
        let failed = |source| JournalError { attempt: Attempt::Turn, path: dir.to_owned(), source };
        let file = File::open(dir).map_err(failed)?;
        match lock_within(&file, TURN_WITHIN, stop).map_err(failed)? {
            true => Ok(Turn(file)),
            false => Err(JournalError::locked(Attempt::Turn, dir)),
        }
    }

    /// Settings of a change's queue in other journals that are not undone, in the order of setting. Includes dead
    /// owners, because their journals will be undone later.
    ///
    /// # Errors
    /// When the journals cannot be listed.
    pub(crate) fn claims(&self, queue: &NapiSettingsChange) -> Result<Claims, JournalError> {
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
                RecordedChange::NapiSettings(change) if change.is_of_the_queue_of(queue) => Some(change.clone()),
                _ => None,
            });
            let mut of_queue: Vec<NapiSettingsChange> = of_queue.collect();
            of_queue.reverse();
            claims.extend(of_queue);
        }
        Ok(Claims::in_the_order_of_setting(claims))
    }
}

/// Settings of one queue in other journals that are not undone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Vec<NapiSettingsChange>);

impl Claims {
    fn in_the_order_of_setting(mut claims: Vec<NapiSettingsChange>) -> Self {
        claims.sort_by_key(|change| change.set_at_boot_ns);
        Self(claims)
    }

    /// Whether the queue appears in no other journal.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Time stamp for a change made now: later than all of these, even with a coarse clock.
    pub(crate) fn next_boot_ns(&self, now_boot_ns: u64) -> u64 {
        let last = self.0.iter().map(|claim| claim.set_at_boot_ns).max();
        last.map_or(now_boot_ns, |last| now_boot_ns.max(last.saturating_add(1)))
    }

    /// Returns the values of the queue before the first of these changes.
    pub(crate) fn before_all(&self, current: &PartialNapiSettings) -> PartialNapiSettings {
        self.0.iter().rev().fold(*current, |values, claim| values.changed_by(&claim.old))
    }

    /// Returns the values to set when the change from `old` of these fields is undone: those of the latest other
    /// change.
    pub(crate) fn instead_of(&self, old: &PartialNapiSettings, fields: &PartialNapiSettings) -> PartialNapiSettings {
        self.0.iter().fold(*old, |values, claim| values.changed_by(&claim.new.where_present_in(fields)))
    }

    /// Removes values that another journal has set.
    pub(crate) fn without_theirs(&self, values: &PartialNapiSettings) -> PartialNapiSettings {
        self.0.iter().fold(*values, |values, claim| values.unlike(&claim.new))
    }

    /// Returns the values that belong to other programs. Excludes values of these journals and values from before Quell,
    /// because a driver that recreates a queue resets it to the latter.
    pub(crate) fn of_strangers(
        &self,
        values: &PartialNapiSettings,
        before_quell: &PartialNapiSettings,
    ) -> PartialNapiSettings {
        self.without_theirs(&values.unlike(before_quell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_linux::Ifindex;

    fn suspend(timeout_ns: u64) -> PartialNapiSettings {
        PartialNapiSettings { irq_suspend_timeout_ns: Some(timeout_ns), ..PartialNapiSettings::default() }
    }

    fn claim(old: u64, new: u64) -> NapiSettingsChange {
        NapiSettingsChange {
            namespace_cookie: 1,
            device: "eth0".into(),
            ifindex: Ifindex::new(2).unwrap(),
            sysfs_inode: Some(5),
            napi_id: 9,
            place: 0,
            rx_queue: Some(0),
            old: suspend(old),
            new: suspend(new),
            alternatives: Vec::new(),
            set_at_boot_ns: 1,
        }
    }

    fn set_at(boot_ns: u64, change: NapiSettingsChange) -> NapiSettingsChange {
        NapiSettingsChange { set_at_boot_ns: boot_ns, ..change }
    }

    #[test]
    fn the_value_that_was_set_last_is_in_effect() {
        let first = set_at(100, claim(0, 20));
        let second = set_at(101, claim(0, 30));
        let claims = Claims::in_the_order_of_setting(vec![second, first]);
        assert_eq!(claims.instead_of(&suspend(0), &suspend(50)), suspend(30));
    }

    #[test]
    fn two_changes_of_one_queue_have_different_times() {
        assert_eq!(Claims::default().next_boot_ns(100), 100);
        let claims = Claims(vec![claim(0, 10), set_at(100, claim(0, 20))]);
        assert_eq!((claims.next_boot_ns(100), claims.next_boot_ns(200)), (101, 200));
    }

    #[test]
    fn the_values_before_all_changes_are_those_that_the_first_change_found() {
        let claims = Claims(vec![claim(0, 20), claim(0, 30)]);
        assert_eq!(claims.before_all(&suspend(30)), suspend(0));
        assert_eq!(Claims::default().before_all(&suspend(30)), suspend(30));
    }

    #[test]
    fn the_first_journal_to_end_leaves_the_values_of_the_others() {
        let others = Claims(vec![claim(0, 20), claim(0, 30)]);
        assert_eq!(others.instead_of(&suspend(0), &suspend(50)), suspend(30));
        assert_eq!(Claims::default().instead_of(&suspend(0), &suspend(50)), suspend(0));
    }

    #[test]
    fn a_queue_is_recognised_after_its_napi_id_and_name_changed() {
        let change = claim(0, 20);
        let renamed_and_made_again = NapiSettingsChange { device: "lan0".into(), napi_id: 12, ..change.clone() };
        assert!(renamed_and_made_again.is_of_the_queue_of(&change));
        let other_queue = NapiSettingsChange { napi_id: 12, place: 1, rx_queue: Some(1), ..change.clone() };
        assert!(!other_queue.is_of_the_queue_of(&change));
        let other_device = NapiSettingsChange { napi_id: 12, sysfs_inode: Some(6), ..change.clone() };
        assert!(!other_device.is_of_the_queue_of(&change));
        let unidentified = NapiSettingsChange { sysfs_inode: None, ..renamed_and_made_again };
        assert!(!unidentified.is_of_the_queue_of(&change));
    }

    #[test]
    fn values_of_other_journals_do_not_belong_to_other_programs() {
        let others = Claims(vec![claim(0, 20)]);
        assert!(others.without_theirs(&suspend(20)).is_empty());
        assert_eq!(others.without_theirs(&suspend(21)), suspend(21));
        assert_eq!(others.of_strangers(&suspend(21), &suspend(0)), suspend(21));
    }

    #[test]
    fn a_value_that_a_driver_reset_does_not_belong_to_other_programs() {
        let others = Claims(vec![claim(0, 20)]);
        assert!(others.of_strangers(&suspend(0), &suspend(0)).is_empty());
    }
}
