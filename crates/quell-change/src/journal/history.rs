//! Interprets a journal: which changes were begun, made and undone, and which remain to be undone, in which order.
//! Pure: it parses text and never opens a file.

use quell_linux::NapiId;

use super::purpose::Purpose;
use super::record::{Begin, FORMAT, Keeper, LineError, Record, TargetProgram, Watchdog};
use crate::change::{Change, ChangeOutcome, HostSetting, PlannedChange, UndoOutcome};
use crate::reuseport_group::Protocol;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    pub begin: Begin,
    /// Processes for which the changes were made; empty for changes of the whole host.
    pub targets: Vec<TargetProgram>,
    /// Changes in the order in which they were begun. Unreadable lines leave gaps in the numbers.
    pub entries: Vec<Entry>,
    pub persistence: Persistence,
    pub accepts_stalls: bool,
    /// Whether the process that maintains the changes follows the programs (`attach --follow`).
    pub maintained_by_follower: bool,
    /// Whether the last line is incomplete, as after a crash. Such a line has no effect.
    pub cut_off: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// As long as the owner of the journal runs.
    WithOwner,
    UntilConfirmed(Watchdog),
    MaintainedBy(Keeper),
    /// Until reverted on request, or the next boot.
    UntilReverted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub seq: u32,
    pub change: Change,
    /// Outcome. Absent when the writer died in between; the change may or may not have been made.
    pub outcome: Option<ChangeOutcome>,
    /// Outcome of undoing it; absent if that was not attempted.
    pub undone: Option<UndoOutcome>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    #[error("the first line is incomplete: its writer died before changing anything")]
    Empty,
    #[error("line 1 does not name the writer")]
    NoBegin,
    #[error("its format is {found:?}, but this version reads only {FORMAT:?}: use the version of Quell that wrote it")]
    Format { found: String },
    #[error("line {line} is damaged: {source}")]
    Damaged { line: usize, source: LineError },
    #[error("line {line} contradicts earlier lines: {why}")]
    OutOfOrder { line: usize, why: &'static str },
}

impl History {
    /// Parses the text of a journal. Ignores a last line without a newline.
    pub fn parse(text: &str) -> Result<Self, HistoryError> {
        match Self::salvage(text)? {
            (history, unreadable) if unreadable.is_empty() => Ok(history),
            (_, mut unreadable) => Err(unreadable.swap_remove(0)),
        }
    }

    /// Like [`Self::parse`], but skips unusable lines and returns their errors. A change without its intent record is
    /// missing from the result. A change without its undo record is undone again, which is harmless. Fails if the first
    /// line cannot be read. The other lines are useless without its boot ID.
    pub fn salvage(text: &str) -> Result<(Self, Vec<HistoryError>), HistoryError> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let cut_off = !text.is_empty() && !text.ends_with('\n');
        let mut lines = whole.lines().enumerate().map(|(index, line)| (index + 1, line));
        let Some((_, first)) = lines.next() else { return Err(HistoryError::Empty) };
        let begin = parse_begin(first)?;
        let mut history = Self { cut_off, ..Self::new(begin) };
        let mut unreadable = Vec::new();
        for (line, text) in lines {
            match Record::from_line(text) {
                Err(source) => unreadable.push(HistoryError::Damaged { line, source }),
                Ok(record) => {
                    let out_of_order = |why| HistoryError::OutOfOrder { line, why };
                    unreadable.extend(history.append(record).map_err(out_of_order).err());
                }
            }
        }
        Ok((history, unreadable))
    }

    #[must_use]
    pub fn new(begin: Begin) -> Self {
        Self {
            begin,
            targets: Vec::new(),
            entries: Vec::new(),
            persistence: Persistence::WithOwner,
            accepts_stalls: false,
            maintained_by_follower: false,
            cut_off: false,
        }
    }

    #[must_use]
    pub fn next_seq(&self) -> u32 {
        self.entries.last().map_or(0, |last| last.seq.saturating_add(1))
    }

    /// Appends a record. Fails if the record contradicts earlier records; the text names the contradiction. A change is
    /// appended anyway if the only fault is a missing earlier change.
    pub fn append(&mut self, record: Record) -> Result<(), &'static str> {
        match record {
            Record::Begin(_) => Err("the journal has a second begin record"),
            Record::Intend { seq, change } => {
                if matches!(change, Change::HostSetting(HostSetting { setting: PlannedChange::Napi(_), .. })) {
                    return Err("the settings of a queue are recorded as another kind of change");
                }
                let next = self.next_seq();
                if seq < next {
                    return Err("the sequence numbers of the changes do not ascend");
                }
                self.entries.push(Entry { seq, change, outcome: None, undone: None });
                if seq == next { Ok(()) } else { Err("an earlier change is missing") }
            }
            Record::Done { seq, outcome } => {
                let entry = self.entry(seq)?;
                if entry.outcome.is_some() {
                    return Err("the change was already made");
                }
                entry.outcome = Some(outcome);
                Ok(())
            }
            Record::Undone { seq, undoing } => {
                self.entry(seq)?.undone = Some(undoing);
                Ok(())
            }
            Record::Target(target) => {
                // A process that left a cgroup and came back is recorded again.
                match self.targets.iter_mut().find(|known| known.is_same_process(&target)) {
                    Some(known) => known.name = target.name,
                    None => self.targets.push(target),
                }
                Ok(())
            }
            Record::AcceptStalls => {
                self.accepts_stalls = true;
                Ok(())
            }
            Record::MaintainedBy(keeper) => {
                self.maintained_by_follower = false;
                self.set_persistence(Persistence::MaintainedBy(keeper))
            }
            Record::MaintainedByFollower(keeper) => {
                self.maintained_by_follower = true;
                self.set_persistence(Persistence::MaintainedBy(keeper))
            }
            Record::Persist => self.set_persistence(Persistence::UntilReverted),
            Record::PersistIfConfirmed(watchdog) => self.set_persistence(Persistence::UntilConfirmed(watchdog)),
            Record::Release => {
                self.persistence = Persistence::WithOwner;
                Ok(())
            }
        }
    }

    /// Changes that remain to be undone, the last one first, with their sequence numbers.
    pub fn pending(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.iter().rev().filter(|entry| entry.is_pending()).map(|entry| (entry.seq, entry))
    }

    /// Whether it was reverted, and all remaining changes wait for queues that do not exist at present.
    #[must_use]
    pub fn only_waits(&self) -> bool {
        let waits = |(_, entry): (u32, &Entry)| matches!(entry.undone, Some(UndoOutcome::Waits(_)));
        self.pending().next().is_some() && self.pending().all(waits)
    }

    /// Whether it has a change of this NAPI instance, undone or not.
    #[must_use]
    pub fn has_queue(&self, napi: NapiId) -> bool {
        let is_of_it = |change: &Change| matches!(change, Change::NapiSettings(change) if change.napi_id == napi.get());
        self.entries.iter().any(|entry| is_of_it(&entry.change))
    }

    #[must_use]
    pub fn steers(&self) -> bool {
        self.pending().any(|(_, entry)| matches!(entry.change, Change::ReuseportFilter(_)))
    }

    #[must_use]
    pub fn steers_udp(&self) -> bool {
        let is_udp =
            |change: &Change| matches!(change, Change::ReuseportFilter(filter) if filter.protocol == Protocol::Udp);
        self.pending().any(|(_, entry)| is_udp(&entry.change))
    }

    #[must_use]
    pub fn pins(&self) -> bool {
        self.pending().any(|(_, entry)| matches!(entry.change, Change::ThreadAffinity(_)))
    }

    /// Whether its owner sets the values again when a driver recreates the queues. `quell run` does so, too. A keeper
    /// reverts the changes when such an owner dies.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.maintained_by_follower || matches!(self.begin.purpose, Purpose::Launch { .. })
    }

    fn set_persistence(&mut self, persistence: Persistence) -> Result<(), &'static str> {
        if self.persistence == Persistence::UntilReverted {
            return Err("the changes are already marked as persistent");
        }
        self.persistence = persistence;
        Ok(())
    }

    fn entry(&mut self, seq: u32) -> Result<&mut Entry, &'static str> {
        let place = self.entries.binary_search_by_key(&seq, |entry| entry.seq);
        place.map(|place| &mut self.entries[place]).map_err(|_| "it refers to a change without an intent record")
    }
}

impl Entry {
    #[must_use]
    pub fn is_pending(&self) -> bool {
        matches!(self.undone, None | Some(UndoOutcome::Waits(_)))
    }
}

fn parse_begin(first: &str) -> Result<Begin, HistoryError> {
    // Another format has other fields: it is not damaged.
    if let Some(found) = Record::format_of(first).filter(|format| format != FORMAT) {
        return Err(HistoryError::Format { found });
    }
    match Record::from_line(first) {
        Ok(Record::Begin(begin)) => Ok(begin),
        Ok(_) => Err(HistoryError::NoBegin),
        Err(source) => Err(HistoryError::Damaged { line: 1, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::CreatedNamespace;
    use proptest::prelude::*;
    use quell_linux::Pid;

    fn begin() -> Begin {
        Begin {
            format: FORMAT.into(),
            version: "0.1.0".into(),
            boot_id: "b".into(),
            owner: Keeper { pid: Pid::new(1).unwrap(), start_time_ticks: 5 },
            started_unix_s: 0,
            purpose: Purpose::Lab,
        }
    }

    #[test]
    fn a_journal_of_another_format_is_not_damaged_whatever_its_fields_are() {
        let json = r#"{"record":"begin","format":"quell-journal/1","version":"0.2.0","boot-id":"b","began-unix-s":0}"#;
        let line = format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        let found = "quell-journal/1".to_owned();
        assert_eq!(History::parse(&line), Err(HistoryError::Format { found }));
    }

    fn intend(seq: u32) -> Record {
        Record::Intend { seq, change: Change::NetworkNamespace(CreatedNamespace { name: format!("ns{seq}") }) }
    }

    fn made(seq: u32) -> Record {
        Record::Done { seq, outcome: ChangeOutcome::Made }
    }

    fn undone(seq: u32) -> Record {
        Record::Undone { seq, undoing: UndoOutcome::Undone }
    }

    fn text(records: &[Record]) -> String {
        std::iter::once(&Record::Begin(begin())).chain(records).map(Record::to_line).collect()
    }

    #[test]
    fn pending_changes_are_listed_last_change_first() {
        let history = History::parse(&text(&[intend(0), made(0), intend(1), made(1), intend(2), undone(1)]));
        let pending: Vec<u32> = history.unwrap().pending().map(|(seq, _)| seq).collect();
        assert_eq!(pending, [2, 0]);
    }

    #[test]
    fn an_intended_change_without_an_outcome_is_pending() {
        let history = History::parse(&text(&[intend(0)])).unwrap();
        assert_eq!(history.pending().next().unwrap().1.outcome, None);
    }

    #[test]
    fn a_damaged_line_makes_the_journal_unusable() {
        let damaged = text(&[intend(0), made(0), intend(1)]).replacen("ns0", "ns7", 1);
        assert!(matches!(History::parse(&damaged), Err(HistoryError::Damaged { line: 2, .. })));
    }

    #[test]
    fn the_readable_lines_of_a_damaged_journal_are_read() {
        let records = [intend(0), made(0), intend(1), made(1), intend(2), made(2), undone(2), Record::Persist];
        let seqs = |history: &History| history.pending().map(|(seq, _)| seq).collect::<Vec<u32>>();
        let without = |line: usize| {
            let mut lines: Vec<String> = text(&records).lines().map(ToOwned::to_owned).collect();
            lines[line - 1] = "00000000 {}".into();
            History::salvage(&(lines.join("\n") + "\n"))
        };
        let (history, unreadable) = without(4).unwrap();
        assert_eq!((seqs(&history), unreadable.len()), (vec![0], 3), "an intent record is lost, with its outcome");
        let (history, unreadable) = without(5).unwrap();
        assert_eq!((seqs(&history), unreadable.len()), (vec![1, 0], 1), "an outcome record is lost");
        let (history, _) = without(8).unwrap();
        assert_eq!(seqs(&history), [2, 1, 0], "an undo record is lost");
        assert_eq!(without(9).unwrap().0.persistence, Persistence::WithOwner);
        assert!(matches!(without(1), Err(HistoryError::Damaged { line: 1, .. })));
    }

    #[test]
    fn contradicting_records_are_refused() {
        for records in [vec![intend(1)], vec![made(0)], vec![intend(0), made(0), made(0)]] {
            assert!(matches!(History::parse(&text(&records)), Err(HistoryError::OutOfOrder { .. })));
        }
    }

    #[test]
    fn the_error_names_an_unknown_format() {
        let other = Record::Begin(Begin { format: "quell-journal/9".into(), ..begin() }).to_line();
        assert_eq!(History::parse(&other), Err(HistoryError::Format { found: "quell-journal/9".into() }));
    }

    #[test]
    fn a_change_that_waits_for_its_queue_is_pending() {
        let waits = |seq| Record::Undone { seq, undoing: UndoOutcome::Waits("link down".into()) };
        let history = |records: &[Record]| History::parse(&text(records)).unwrap();
        assert!(!history(&[intend(0), intend(1), waits(1)]).only_waits(), "change 0 was not tried");
        assert!(!history(&[intend(0), undone(0)]).only_waits(), "no change is left");
        let waiting = history(&[intend(0), intend(1), waits(1), undone(0)]);
        assert!(waiting.only_waits());
        assert_eq!(waiting.pending().map(|(seq, _)| seq).collect::<Vec<_>>(), [1]);
        assert_eq!(history(&[intend(0), waits(0), undone(0)]).pending().count(), 0, "its queue came back");
    }

    #[test]
    fn a_process_that_was_renamed_is_one_target() {
        let target =
            |pid, name: &str| TargetProgram { pid: Pid::new(pid).unwrap(), start_time_ticks: 9, name: name.into() };
        let records = [("sh", 7), ("worker", 8), ("server", 7)].map(|(name, pid)| Record::Target(target(pid, name)));
        let history = History::parse(&text(&records)).unwrap();
        assert_eq!(history.targets, [target(7, "server"), target(8, "worker")]);
    }

    #[test]
    fn persistent_changes_stay_until_they_are_released() {
        let persistence = |records: &[Record]| History::parse(&text(records)).map(|history| history.persistence);
        let watchdog = Watchdog { pid: Pid::new(7).unwrap(), start_time_ticks: 1, deadline_unix_s: 2 };
        assert_eq!(persistence(&[intend(0), made(0)]), Ok(Persistence::WithOwner));
        assert_eq!(
            persistence(&[intend(0), made(0), Record::PersistIfConfirmed(watchdog)]),
            Ok(Persistence::UntilConfirmed(watchdog))
        );
        assert_eq!(
            persistence(&[Record::PersistIfConfirmed(watchdog), Record::Persist]),
            Ok(Persistence::UntilReverted)
        );
        assert_eq!(persistence(&[Record::Persist, Record::Release]), Ok(Persistence::WithOwner));
        let keeper = Keeper { pid: Pid::new(7).unwrap(), start_time_ticks: 1 };
        assert_eq!(persistence(&[Record::MaintainedBy(keeper), intend(0)]), Ok(Persistence::MaintainedBy(keeper)));
        let followed = |records: &[Record]| History::parse(&text(records)).is_ok_and(|history| history.is_followed());
        let (by_follower, by_keeper) = (Record::MaintainedByFollower(keeper), Record::MaintainedBy(keeper));
        assert_eq!(persistence(std::slice::from_ref(&by_follower)), Ok(Persistence::MaintainedBy(keeper)));
        assert!(followed(&[by_keeper.clone(), by_follower.clone()]));
        assert!(!followed(&[by_follower, by_keeper]), "the follower has left it to the keeper");
        assert!(matches!(
            persistence(&[Record::Persist, Record::Persist]),
            Err(HistoryError::OutOfOrder { line: 3, .. })
        ));
    }

    proptest! {
        #[test]
        fn complete_lines_survive_a_crash_at_any_byte(cut in 0usize..600) {
            let whole = text(&[intend(0), made(0), intend(1), made(1), intend(2), made(2)]);
            let cut = cut.min(whole.len());
            let kept_lines = whole[..cut].matches('\n').count();
            match History::parse(&whole[..cut]) {
                Err(error) => prop_assert_eq!((error, kept_lines), (HistoryError::Empty, 0)),
                Ok(history) => {
                    prop_assert_eq!(history.entries.len(), kept_lines / 2);
                    prop_assert_eq!(history.cut_off, !whole[..cut].ends_with('\n'));
                }
            }
        }

        #[test]
        fn no_text_causes_a_panic(text in "(.|\n){0,300}") {
            let _ = History::parse(&text);
        }
    }
}
