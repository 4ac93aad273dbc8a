//! Finds what the owners of a queue or an epoll have set, in all journals. `ownership` decides from it.

use std::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::file::lock_within;
use quell_linux::visible;
use quell_mode::{EpollParams, NapiAttribute, PartialNapiSettings};

use super::error::{Attempt, JournalError};
use super::found::ListedJournal;
use super::history::{Entry, History};
use super::record::TargetProgram;
use super::store::Journal;
use crate::change::{Change, EpollParameters, NapiSettingsChange};
use crate::ownership::{Claim, Claims};

/// Time limit for another process to set or undo a queue, including the wait for a queue that nothing can poll.
const TURN_WITHIN: Duration = Duration::from_secs(60);

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

    pub(crate) fn all(journal: &Journal, boot_id: String) -> Self {
        Self { journal: journal.clone(), own: PathBuf::new(), boot_id }
    }

    /// Waits for the lock, at most a minute, or until `stop` returns true.
    pub(crate) fn turn(&self, stop: &mut dyn FnMut() -> bool) -> Result<Turn, JournalError> {
        let dir = self.journal.dir();
        let failed = |source| JournalError { attempt: Attempt::Turn, path: dir.to_owned(), source };
        let file = File::open(dir).map_err(failed)?;
        match lock_within(&file, TURN_WITHIN, stop).map_err(failed)? {
            true => Ok(Turn(file)),
            false => Err(JournalError::locked(Attempt::Turn, dir)),
        }
    }

    /// Changes that `change_of` selects and that are not undone, of all owners of this boot: also of dead ones, because
    /// their journals will be undone later, and of the own journal `own` if there is one.
    fn owned<T>(
        &self,
        own: Option<&History>,
        change_of: impl Fn(&Change) -> Option<(u64, T)>,
    ) -> Result<Vec<Owned<T>>, JournalError> {
        let of_journal = |history: &History, owner: Owner, journal: &Path| -> Vec<Owned<T>> {
            let owned = |(_, entry): (u32, &Entry)| {
                let (at, change) = change_of(&entry.change)?;
                let (made, owner, journal) = (entry.outcome.is_some(), owner.clone(), journal.to_owned());
                Some(Owned { at, change, made, owner, journal })
            };
            history.pending().filter_map(owned).collect()
        };
        let mut owned = own.map_or(Vec::new(), |own| of_journal(own, Owner::ThisJournal, &self.own));
        for listed in self.journal.list_besides(&self.own)? {
            let (path, history, is_running) = match listed {
                ListedJournal::Running { path, history: Some(history) } => (path, history, true),
                ListedJournal::Abandoned { path, history } => (path, history, false),
                _ => continue,
            };
            if history.begin.boot_id == self.boot_id {
                let name = name_of_owner(&history);
                let serves_programs = is_running && history.begin.purpose.is_of_programs();
                let owner = if serves_programs { Owner::OfPrograms(name) } else { Owner::Other(name) };
                owned.extend(of_journal(&history, owner, &path));
            }
        }
        Ok(owned)
    }

    /// Name of another owner with a change that `concerns` selects.
    pub(crate) fn owner_of(&self, concerns: impl Fn(&Change) -> bool) -> Result<Option<String>, JournalError> {
        let owned = self.owned(None, |change| concerns(change).then_some((0, ())))?;
        Ok(newest_owner(&owned).map(ToOwned::to_owned))
    }

    pub(crate) fn of_queue(
        &self,
        queue: &NapiSettingsChange,
        own: Option<&History>,
    ) -> Result<QueueOwners, JournalError> {
        let of_queue = |change: &Change| match change {
            Change::NapiSettings(change) if change.is_of_the_queue_of(queue) => {
                Some((change.set_at_boot_ns, change.clone()))
            }
            _ => None,
        };
        Ok(QueueOwners(self.owned(own, of_queue)?))
    }

    /// Changes of queues of the device with this inode in sysfs.
    pub(crate) fn of_device(&self, sysfs_inode: u64) -> Result<Vec<NapiSettingsChange>, JournalError> {
        let of_device = |change: &Change| match change {
            Change::NapiSettings(change) if change.sysfs_inode == Some(sysfs_inode) => {
                Some((change.set_at_boot_ns, change.clone()))
            }
            _ => None,
        };
        Ok(self.owned(None, of_device)?.into_iter().map(|owned| owned.change).collect())
    }

    /// Whether an experiment switches one of these programs, or has died and is not reverted yet.
    pub(crate) fn measure(&self, programs: &[TargetProgram]) -> Result<bool, JournalError> {
        let measures = |history: &History| {
            let is_meant = |target: &TargetProgram| programs.iter().any(|program| program.is_same_process(target));
            history.begin.boot_id == self.boot_id
                && history.begin.purpose.is_experiment()
                && !history.only_waits()
                && history.targets.iter().any(is_meant)
        };
        Ok(self.journal.list_besides(&self.own)?.iter().any(|listed| match listed {
            ListedJournal::Running { history: Some(history), .. } | ListedJournal::Abandoned { history, .. } => {
                measures(history)
            }
            _ => false,
        }))
    }

    pub(crate) fn of_epolls(&self, own: Option<&History>) -> Result<Vec<Owned<EpollParameters>>, JournalError> {
        let of_epoll = |change: &Change| match change {
            Change::EpollParameters(change) => Some((change.set_at_boot_ns, change.clone())),
            _ => None,
        };
        self.owned(own, of_epoll)
    }
}

#[derive(Debug, Clone)]
pub struct Owned<T> {
    /// Time of setting, in nanoseconds since boot.
    at: u64,
    pub(crate) change: T,
    made: bool,
    owner: Owner,
    journal: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Owner {
    ThisJournal,
    /// A running owner that changes the host for certain programs, with its name.
    OfPrograms(String),
    Other(String),
}

impl<T> Owned<T> {
    pub(crate) fn has_one_of(&self, journals: &[PathBuf]) -> bool {
        journals.contains(&self.journal)
    }

    pub(crate) fn is_of_another_journal(&self) -> bool {
        self.owner != Owner::ThisJournal
    }

    /// Whether it matters when a change of the own journal, made at this time, ends. Later changes of that journal
    /// ended before.
    pub(crate) fn matters_to_end_of(&self, at: u64) -> bool {
        self.is_of_another_journal() || self.at < at
    }
}

impl Owned<EpollParameters> {
    /// Name of the owner, if it is an experiment.
    pub(crate) fn experiment(&self) -> Option<&str> {
        match &self.owner {
            Owner::OfPrograms(name) if !self.change.alternatives.is_empty() => Some(name),
            _ => None,
        }
    }

    pub(crate) fn claim(&self) -> Claim<EpollParams> {
        self.change.claim(self.made)
    }
}

/// Name of the owner of the newest change, if it has another journal.
pub(crate) fn newest_owner<'a, T: 'a>(owned: impl IntoIterator<Item = &'a Owned<T>>) -> Option<&'a str> {
    match &owned.into_iter().max_by_key(|owned| owned.at)?.owner {
        Owner::ThisJournal => None,
        Owner::OfPrograms(name) | Owner::Other(name) => Some(name),
    }
}

pub(crate) fn name_of_owner(history: &History) -> String {
    let program = history.targets.first().map(|target| format!(" ({} {})", visible::name(&target.name), target.pid));
    format!("{}{}", history.begin.purpose, program.unwrap_or_default())
}

/// Time stamp for a change made now, later than these, even with a coarse clock.
pub(crate) fn next_boot_ns<T>(owned: &[Owned<T>], now_boot_ns: u64) -> u64 {
    let last = owned.iter().map(|owned| owned.at).max();
    last.map_or(now_boot_ns, |last| now_boot_ns.max(last.saturating_add(1)))
}

#[derive(Debug, Clone, Default)]
pub(crate) struct QueueOwners(Vec<Owned<NapiSettingsChange>>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnersRefuse {
    #[error("{owner} switches the settings of this queue; wait for its end, or end it with `quell detach`")]
    Experiment { owner: String },
    #[error("{owner} has set it, and would lose its mode: end it first (`quell status` lists it); nothing was changed")]
    ServesPrograms { owner: String },
    /// The new values would end what another owner needs.
    #[error(
        "{owner} has {needs} on this queue, which the new values ({new}) would end; detach it first, or choose a \
         mode that keeps this"
    )]
    TakesEffect { owner: String, needs: &'static str, new: PartialNapiSettings },
    #[error("{owner} has {needs} on this queue, which would be removed; detach it first, or keep the queue")]
    Removal { owner: String, needs: &'static str },
}

impl QueueOwners {
    /// Owners with other journals: whether they serve programs, their journal, their change, and whether it was made.
    #[cfg(test)]
    pub(crate) fn of_test(changes: impl IntoIterator<Item = (bool, PathBuf, NapiSettingsChange, bool)>) -> Self {
        let owned = |(serves_programs, journal, change, made): (bool, PathBuf, NapiSettingsChange, bool)| {
            let owner = if serves_programs { Owner::OfPrograms } else { Owner::Other };
            let (at, owner) = (change.set_at_boot_ns, owner("attach suspend20".to_owned()));
            Owned { at, change, made, owner, journal }
        };
        Self(changes.into_iter().map(owned).collect())
    }

    /// Those other than this change of the own journal.
    pub(crate) fn besides(mut self, change: &NapiSettingsChange) -> Self {
        self.0.retain(|owned| owned.is_of_another_journal() || owned.at != change.set_at_boot_ns);
        self
    }

    /// The newest change in one of these journals, and whether it was made. Removes it.
    pub(crate) fn take_newest_of(&mut self, journals: &[PathBuf]) -> Option<(NapiSettingsChange, bool)> {
        let of_them = self.0.iter().enumerate().filter(|(_, owned)| owned.has_one_of(journals));
        let (newest, _) = of_them.max_by_key(|(_, owned)| owned.at)?;
        let Owned { change, made, .. } = self.0.swap_remove(newest);
        Some((change, made))
    }

    pub(crate) fn of(&self, attribute: NapiAttribute) -> Claims<u64> {
        Claims::new(self.0.iter().filter_map(|owned| owned.change.claim(attribute, owned.made)))
    }

    /// The owners that matter when this change of the own journal ends.
    pub(crate) fn at_end_of(mut self, change: &NapiSettingsChange) -> Self {
        self.0.retain(|owned| owned.matters_to_end_of(change.set_at_boot_ns));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Value of an attribute that the newest owner has in force, if it has another journal. `now` is the state of the
    /// queue; without an instance, the owner's value is in force as soon as there is one.
    pub(crate) fn in_force(&self, attribute: NapiAttribute, now: Option<&PartialNapiSettings>) -> Option<u64> {
        let claim = |owned: &Owned<NapiSettingsChange>| owned.change.claim(attribute, owned.made);
        let made = self.0.iter().filter(|owned| owned.made && claim(owned).is_some());
        let newest = made.max_by_key(|owned| owned.at).filter(|newest| newest.is_of_another_journal())?;
        let values = claim(newest)?.values;
        match now {
            Some(now) => now.get(attribute).filter(|now| values.contains(now)),
            None => values.first().copied().filter(|_| values.len() == 1),
        }
    }

    /// Name of the newest one, if it has another journal.
    pub(crate) fn newest(&self) -> Option<&str> {
        newest_owner(&self.0)
    }

    /// Name of one that changes the host for certain programs, unless its journal is one of `measured`.
    pub(crate) fn of_programs_besides(&self, measured: &[PathBuf]) -> Option<&str> {
        self.0.iter().find_map(|owned| match &owned.owner {
            Owner::OfPrograms(name) if !measured.contains(&owned.journal) => Some(name.as_str()),
            _ => None,
        })
    }

    pub(crate) fn next_boot_ns(&self, now_boot_ns: u64) -> u64 {
        next_boot_ns(&self.0, now_boot_ns)
    }

    /// Whether the owners of programs permit a queue with the values `now` to change to `new`, or to be removed.
    pub(crate) fn permit(
        &self,
        now: &PartialNapiSettings,
        new: Option<&PartialNapiSettings>,
    ) -> Result<(), OwnersRefuse> {
        let after = new.map_or(PartialNapiSettings::NONE, |new| now.changed_by(new));
        let mut newest_first: Vec<&Owned<NapiSettingsChange>> = self.0.iter().collect();
        newest_first.sort_by_key(|owned| Reverse(owned.at));
        // Values without the owners that came later: what only these need is theirs.
        let mut below = *now;
        for Owned { change, owner, .. } in newest_first {
            let wanted = below.changed_by(&change.new);
            below = below.changed_by(&change.old);
            let Owner::OfPrograms(name) = owner else { continue };
            // An experiment attributes what it measures to its own values, so no other owner may set any value of the
            // queue.
            if !change.alternatives.is_empty() {
                return Err(OwnersRefuse::Experiment { owner: name.clone() });
            }
            if let Some(needs) = is_lost(&wanted, &after) {
                let owner = name.clone();
                return Err(match new {
                    Some(new) => OwnersRefuse::TakesEffect { owner, needs, new: *new },
                    None => OwnersRefuse::Removal { owner, needs },
                });
            }
        }
        Ok(())
    }
}

/// What a mode with the values `wanted` lacks under the values `after`.
fn is_lost(wanted: &PartialNapiSettings, after: &PartialNapiSettings) -> Option<&'static str> {
    let suspends = |values: &PartialNapiSettings| values.defers() && values.irq_suspend_timeout_ns > Some(0);
    let polls_in_thread = |values: &PartialNapiSettings| values.get(NapiAttribute::Threaded).unwrap_or(0);
    match () {
        () if suspends(wanted) && !suspends(after) => Some("interrupt suspension"),
        () if wanted.defers() && !after.defers() => Some("deferred interrupts"),
        () if polls_in_thread(wanted) > 0 && polls_in_thread(after) != polls_in_thread(wanted) => Some("a NAPI thread"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use quell_linux::Ifindex;

    fn suspend(timeout_ns: u64) -> PartialNapiSettings {
        PartialNapiSettings { irq_suspend_timeout_ns: Some(timeout_ns), ..PartialNapiSettings::NONE }
    }

    fn change(set_at_boot_ns: u64, new: PartialNapiSettings) -> NapiSettingsChange {
        NapiSettingsChange {
            namespace_cookie: 1,
            device: "eth0".into(),
            ifindex: Ifindex::new(2).unwrap(),
            sysfs_inode: Some(5),
            napi_id: 9,
            place: 0,
            rx_queue: Some(0),
            old: suspend(0),
            new,
            alternatives: Vec::new(),
            set_at_boot_ns,
            since_boot_ns: BTreeMap::from([(NapiAttribute::IrqSuspendTimeout, set_at_boot_ns)]),
            in_plan: None,
        }
    }

    fn owners(changes: impl IntoIterator<Item = NapiSettingsChange>) -> QueueOwners {
        QueueOwners::of_test(changes.into_iter().map(|change| (true, PathBuf::new(), change, true)))
    }

    #[test]
    fn two_changes_of_one_queue_have_different_times() {
        assert_eq!(QueueOwners::default().next_boot_ns(100), 100);
        let owners = owners([change(90, suspend(10)), change(100, suspend(20))]);
        assert_eq!((owners.next_boot_ns(100), owners.next_boot_ns(200)), (101, 200));
    }

    #[test]
    fn a_queue_is_recognised_after_its_napi_id_and_name_changed() {
        let change = change(1, suspend(20));
        let renamed_and_made_again = NapiSettingsChange { device: "lan0".into(), napi_id: 12, ..change.clone() };
        assert!(renamed_and_made_again.is_of_the_queue_of(&change));
        let other_queue = NapiSettingsChange { napi_id: 12, place: 1, rx_queue: Some(1), ..change.clone() };
        assert!(!other_queue.is_of_the_queue_of(&change));
        let other_device = NapiSettingsChange { napi_id: 12, sysfs_inode: Some(6), ..change.clone() };
        assert!(!other_device.is_of_the_queue_of(&change));
        let unidentified = NapiSettingsChange { sysfs_inode: None, ..renamed_and_made_again };
        assert!(!unidentified.is_of_the_queue_of(&change));
    }

    fn settings(defer: u32, gro_ns: u64, suspend_ns: u64, threaded: u64) -> PartialNapiSettings {
        use NapiAttribute::{DeferHardIrqs, GroFlushTimeout, IrqSuspendTimeout, Threaded};
        let values = [
            (DeferHardIrqs, defer.into()),
            (GroFlushTimeout, gro_ns),
            (IrqSuspendTimeout, suspend_ns),
            (Threaded, threaded),
        ];
        values.into_iter().collect()
    }

    #[test]
    fn a_new_owner_may_change_values_but_not_end_what_a_program_needs() {
        let (base, defer, suspend) =
            (settings(0, 0, 0, 0), settings(100, 50_000, 0, 0), settings(100, 20_000, 20_000_000, 0));
        let thread = settings(0, 0, 0, 1);
        let permitted = |lower: PartialNapiSettings, new: PartialNapiSettings| {
            owners([change(1, lower)]).permit(&lower, Some(&new)).map_err(|refused| refused.to_string())
        };
        for (lower, new) in [(base, suspend), (defer, suspend), (suspend, settings(10, 1_000, 1_000_000, 0))] {
            assert_eq!(permitted(lower, new), Ok(()));
        }
        for (lower, new, needs) in [
            (suspend, defer, "interrupt suspension"),
            (suspend, settings(0, 20_000, 20_000_000, 0), "interrupt suspension"),
            (defer, base, "deferred interrupts"),
            (thread, suspend, "a NAPI thread"),
        ] {
            assert!(permitted(lower, new).unwrap_err().contains(needs), "{lower} under {new}");
        }
    }

    #[test]
    fn a_refusal_names_the_owner_that_needs_what_the_new_values_would_end() {
        let (defer, suspend) = (settings(100, 50_000, 0, 0), settings(100, 50_000, 20_000_000, 0));
        let deferring = NapiSettingsChange {
            new: PartialNapiSettings { irq_suspend_timeout_ns: None, threaded: None, ..defer },
            old: PartialNapiSettings { irq_suspend_timeout_ns: None, threaded: None, ..settings(0, 0, 0, 0) },
            ..change(1, defer)
        };
        let suspending = NapiSettingsChange { old: defer, ..change(2, suspend) };
        let mut owners = owners([deferring, suspending]);
        owners.0[0].owner = Owner::OfPrograms("attach defer50".to_owned());
        let refused = |new| owners.permit(&suspend, Some(&new)).map_err(|refused| refused.to_string()).unwrap_err();
        assert!(refused(defer).starts_with("attach suspend20 has interrupt suspension"), "{}", refused(defer));
        owners.0.truncate(1);
        let refused =
            owners.permit(&defer, Some(&settings(0, 0, 0, 0))).map_err(|refused| refused.to_string()).unwrap_err();
        assert!(refused.starts_with("attach defer50 has deferred interrupts"), "{refused}");
    }

    #[test]
    fn a_profile_below_permits_everything() {
        let mut owners = owners([change(1, settings(100, 50_000, 0, 0))]);
        owners.0[0].owner = Owner::Other("profile a".to_owned());
        assert_eq!(owners.permit(&settings(100, 50_000, 0, 0), Some(&settings(0, 0, 0, 0))), Ok(()));
    }

    #[test]
    fn a_queue_under_an_experiment_is_not_set() {
        let experiment = NapiSettingsChange { alternatives: vec![suspend(30)], ..change(1, suspend(20)) };
        let refused = owners([experiment]).permit(&suspend(0), Some(&suspend(20)));
        assert!(matches!(refused, Err(OwnersRefuse::Experiment { .. })));
    }
}
