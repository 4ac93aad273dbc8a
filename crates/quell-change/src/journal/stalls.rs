//! Records of stalled queues. The owner of a mode writes one beside its journal, as `<id>.journal-stalls`. If the mode was
//! reverted, the record outlives the journal, so that `quell status` can report it.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::clock::boottime_ns;
use serde::{Deserialize, Serialize};

use super::error::JournalError;
use super::purpose::Purpose;
use super::record::TargetProgram;
use super::store::{Journal, create_locked};
use super::trust;

const EXTENSION: &str = "journal-stalls";
const TEMPORARY_EXTENSION: &str = "journal-stalls-new";
/// Age from which a record is no longer reported.
const REPORTED_FOR: Duration = Duration::from_secs(7 * 24 * 3_600);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StallRecord {
    /// Name of its journal, by which `quell revert` forgets it; empty in a record that was not read.
    #[serde(skip)]
    pub journal_name: String,
    pub boot_id: String,
    pub purpose: Purpose,
    pub programs: Vec<TargetProgram>,
    pub stalls: u64,
    /// Time of the last one, in nanoseconds since boot.
    pub last_boot_ns: u64,
    /// Cause that the rules of `quell doctor` found; absent if they found none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    pub reverted: bool,
}

impl StallRecord {
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_nanos(boottime_ns().saturating_sub(self.last_boot_ns))
    }

    pub fn write(&self, journal: &Path) -> io::Result<()> {
        let temporary = journal.with_extension(TEMPORARY_EXTENSION);
        // Of a process that was killed.
        let _ = fs::remove_file(&temporary);
        let mut file = create_locked(&temporary)?;
        serde_json::to_writer(&file, self)?;
        file.write_all(b"\n")?;
        fs::rename(&temporary, journal.with_extension(EXTENSION))
    }
}

impl Journal {
    /// Records of this boot, ordered by name, at most seven days old. Skips those that cannot be read.
    pub fn stall_records(&self, boot_id: &str) -> Result<Vec<StallRecord>, JournalError> {
        Ok(self.read_stall_records(boot_id)?.into_iter().map(|(_, record)| record).collect())
    }

    /// Removes the records to which `is_over` applies, which it returns, and all that are no longer reported.
    pub fn forget_stalls(
        &self,
        boot_id: &str,
        is_over: impl Fn(&StallRecord) -> bool,
    ) -> Result<Vec<StallRecord>, JournalError> {
        let (over, kept): (Vec<_>, Vec<_>) =
            self.read_stall_records(boot_id)?.into_iter().partition(|(_, record)| is_over(record));
        let is_kept = |path: &PathBuf| kept.iter().any(|(other, _)| other == path);
        for path in self.paths()?.into_iter().filter(|path| is_record(path) && !is_kept(path)) {
            // An unwritable record is reported again, which is harmless.
            let _ = fs::remove_file(path);
        }
        Ok(over.into_iter().map(|(_, record)| record).collect())
    }

    fn read_stall_records(&self, boot_id: &str) -> Result<Vec<(PathBuf, StallRecord)>, JournalError> {
        let paths = self.paths()?.into_iter().filter(|path| is_record(path));
        let is_reported = |record: &StallRecord| record.boot_id == boot_id && record.age() <= REPORTED_FOR;
        Ok(paths.filter_map(|path| read(&path).filter(is_reported).map(|record| (path, record))).collect())
    }
}

pub(super) fn forget_live(journal: &Path) {
    let path = journal.with_extension(EXTENSION);
    if read(&path).is_some_and(|record| !record.reverted) {
        let _ = fs::remove_file(path);
    }
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// A file that others may have written is skipped, because its text reaches a terminal.
fn read(path: &Path) -> Option<StallRecord> {
    trust::check(&fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?).ok()?;
    let record: StallRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    Some(StallRecord { journal_name: path.file_stem()?.to_string_lossy().into_owned(), ..record })
}

#[cfg(test)]
mod tests {
    use quell_linux::Pid;

    use super::*;

    fn attach_suspend20() -> Purpose {
        Purpose::Attachment { mode: "suspend20".parse().unwrap() }
    }

    fn record(pid: i32, reverted: bool) -> StallRecord {
        StallRecord {
            journal_name: format!("attach-{pid}"),
            boot_id: "b".to_owned(),
            purpose: attach_suspend20(),
            programs: vec![TargetProgram {
                pid: Pid::new(pid).unwrap(),
                start_time_ticks: 1,
                name: "server".to_owned(),
            }],
            stalls: 3,
            last_boot_ns: boottime_ns(),
            cause: None,
            reverted,
        }
    }

    #[test]
    fn only_the_record_of_a_mode_that_was_taken_back_outlives_its_journal() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path().join("journal"));
        for (pid, reverted) in [(1, true), (2, false)] {
            let owned = journal.begin(&format!("attach-{pid}"), attach_suspend20(), "b").unwrap();
            let record = record(pid, reverted);
            record.write(owned.path()).unwrap();
            assert!(journal.stall_records("b").unwrap().contains(&record));
            owned.remove().unwrap();
        }
        let left = journal.stall_records("b").unwrap();
        assert_eq!(left.iter().map(|record| record.programs[0].pid.get()).collect::<Vec<_>>(), [1]);
        assert_eq!(journal.list().unwrap().len(), 0, "a record is no journal");
    }

    #[test]
    fn a_record_is_forgotten_on_request_and_after_a_boot() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path().join("journal"));
        let paths = [1, 2].map(|pid| {
            let owned = journal.begin(&format!("attach-{pid}"), Purpose::Lab, "b").unwrap();
            let path = owned.path().to_owned();
            owned.remove().unwrap();
            path
        });
        record(1, true).write(&paths[0]).unwrap();
        record(2, true).write(&paths[1]).unwrap();
        assert_eq!(journal.stall_records("b").unwrap().len(), 2);
        assert_eq!(journal.stall_records("another").unwrap(), []);
        let forgotten = journal.forget_stalls("b", |record| record.programs[0].pid.get() == 1).unwrap();
        assert_eq!(forgotten.iter().map(|record| record.journal_name.as_str()).collect::<Vec<_>>(), ["attach-1"]);
        assert_eq!(journal.stall_records("b").unwrap().len(), 1);
        assert_eq!(fs::read_dir(dir.path().join("journal")).unwrap().count(), 1);
    }
}
