//! Journal files: creation, ownership and writing. The owner of a journal holds the lock on its file. The kernel
//! releases the lock when the owner dies, so ownership does not depend on process IDs. [`super::found`] finds journals
//! of other processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use quell_linux::file::reserve;
use quell_linux::own_file::check_creatable;
use quell_linux::proc::ProcRoot;

use super::error::{Attempt, JournalError};
use super::history::{History, Persistence};
use super::purpose::Purpose;
use super::record::{Begin, FORMAT, Keeper, Record};
use super::{stalls, trust};

pub(super) const EXTENSION: &str = "journal";
/// Extension of a journal that has no name yet: `<id>.<pid>.journal-new`.
pub(super) const TEMPORARY_EXTENSION: &str = "journal-new";
/// Prefix of the name of a reverted journal whose remaining changes wait for queues.
const WAITING: &str = "waiting-";
/// Bytes reserved per intended change, for the records of its outcome and undo.
const ROOM_PER_CHANGE: u64 = 512;
/// Bytes reserved at once, enough for many changes.
const ROOM_STEP: u64 = 64 << 10;

#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
}

/// A journal whose lock this process holds.
#[derive(Debug)]
pub struct OwnedJournal {
    path: PathBuf,
    file: File,
    history: History,
    /// Length of the complete lines on disk, in bytes.
    whole_bytes: u64,
    reserved_bytes: u64,
}

impl Journal {
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins a journal and takes ownership of it. The file gets its name only after it is locked and its first line is
    /// on disk. Other processes therefore never see it as abandoned.
    pub fn begin(&self, id: &str, purpose: Purpose, boot_id: &str) -> Result<OwnedJournal, JournalError> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let path = self.dir.join(format!("{id}.{EXTENSION}"));
        let failed = |source| JournalError { attempt: Attempt::Begin, path: path.clone(), source };
        let begin = Begin {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: boot_id.to_owned(),
            owner: Keeper::this_process(&ProcRoot::default()).map_err(|error| failed(io::Error::other(error)))?,
            started_unix_s: began,
            purpose,
        };
        let temporary = self.dir.join(format!("{id}.{}.{TEMPORARY_EXTENSION}", begin.owner.pid));
        self.create(&temporary, path.clone(), begin).map_err(failed)
    }

    /// Checks whether a journal could be begun, without changing anything.
    pub fn check_writable(&self) -> Result<(), JournalError> {
        let failed = |source| JournalError { attempt: Attempt::Begin, path: self.dir.clone(), source };
        if let Ok(metadata) = fs::metadata(&self.dir) {
            trust::check(&metadata).map_err(|why| failed(why.into()))?;
        }
        check_creatable(&self.dir).map_err(failed)
    }

    fn create(&self, temporary: &Path, path: PathBuf, begin: Begin) -> io::Result<OwnedJournal> {
        trust::make_directory(&self.dir)?;
        let file = create_locked(temporary)?;
        let mut owned =
            OwnedJournal { path, file, history: History::new(begin.clone()), whole_bytes: 0, reserved_bytes: 0 };
        let begun = owned.append(&[Record::Begin(begin)]);
        // Unlike a rename, a link does not replace a journal of the same name.
        let named = begun.and_then(|()| fs::hard_link(temporary, &owned.path));
        // Also after an error, so that no file without a name of its own is left behind.
        let removed = fs::remove_file(temporary);
        named.and(removed)?;
        // The name must survive a power failure too, and a sync of the file does not write the directory.
        File::open(&self.dir)?.sync_all()?;
        Ok(owned)
    }
}

impl OwnedJournal {
    /// A journal whose lock this process has just taken. Truncates an incomplete last line, as after a crash, because
    /// it would corrupt the next record.
    pub(super) fn taken_over(path: PathBuf, file: File, history: History, whole_bytes: u64) -> io::Result<Self> {
        let mut owned = Self { path, file, history, whole_bytes, reserved_bytes: 0 };
        trust::close_file(&owned.file)?;
        owned.cut_off_torn_line()?;
        Ok(owned)
    }

    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record and returns when it is on disk. For an intended change, also reserves space for the records of
    /// its undo, which can then be recorded even if the disk fills up. On an error the announced change must not be
    /// made. Panics if the record contradicts earlier records, which is a bug in this crate.
    pub fn write(&mut self, record: Record) -> Result<(), JournalError> {
        self.write_all(vec![record])
    }

    /// Like [`Self::write`], for several records of one kind, with a single sync. On an error the journal contains none
    /// of them. Panics as [`Self::write`].
    pub fn write_all(&mut self, records: Vec<Record>) -> Result<(), JournalError> {
        let attempt = match records.first() {
            None => return Ok(()),
            Some(Record::Begin(_)) => Attempt::Begin,
            Some(Record::Intend { .. }) => Attempt::WriteIntent,
            Some(Record::Done { .. }) => Attempt::WriteOutcome,
            Some(Record::Undone { .. }) => Attempt::WriteUndone,
            Some(Record::Target(_)) => Attempt::WriteTarget,
            Some(
                Record::Persist
                | Record::PersistIfConfirmed(_)
                | Record::MaintainedBy(_)
                | Record::MaintainedByFollower(_)
                | Record::AcceptStalls,
            ) => Attempt::WriteKeep,
            Some(Record::Release) => Attempt::WriteRelease,
        };
        self.append(&records).map_err(|source| JournalError { attempt, path: self.path.clone(), source })?;
        for record in records {
            self.history.append(record).unwrap_or_else(|why| unreachable!("a record written by Quell: {why}"));
        }
        Ok(())
    }

    pub fn remove(self) -> Result<(), JournalError> {
        stalls::forget_live(&self.path);
        fs::remove_file(&self.path).map_err(|source| JournalError {
            attempt: Attempt::Remove,
            path: self.path.clone(),
            source,
        })
    }

    /// Renames the journal to a name reserved for waiting changes, so that it does not block a new journal.
    pub(crate) fn set_aside(mut self) -> Result<(), JournalError> {
        if self.history.persistence != Persistence::WithOwner {
            self.write(Record::Release)?;
        }
        if file_name(&self.path).starts_with(WAITING) {
            return Ok(());
        }
        stalls::forget_live(&self.path);
        // Unlike a rename, a link does not replace a journal of the same name.
        let link = |number: u32| {
            let aside = self.path.with_file_name(format!("{WAITING}{number}-{}", file_name(&self.path)));
            match fs::hard_link(&self.path, &aside) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                linked => Some(linked),
            }
        };
        let linked = (0..).find_map(link).unwrap_or(Ok(()));
        let renamed = linked.and_then(|()| fs::remove_file(&self.path));
        renamed.map_err(|source| JournalError { attempt: Attempt::SetAside, path: self.path.clone(), source })
    }

    fn append(&mut self, records: &[Record]) -> io::Result<()> {
        // Truncates the remains of an earlier write that failed.
        self.cut_off_torn_line()?;
        let lines: String = records.iter().map(Record::to_line).collect();
        let intended = records.iter().filter(|record| matches!(record, Record::Intend { .. })).count();
        if intended > 0 {
            self.reserve_room(lines.len() as u64, intended as u64)?;
        }
        // `sync_data` also writes the length of the file, without which the kernel would not read the new lines back.
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.whole_bytes += lines.len() as u64,
            Err(_) => {
                // If this fails too, the next write tries again.
                let _ = self.cut_off_torn_line();
            }
        }
        written
    }

    fn reserve_room(&mut self, lines_bytes: u64, intended: u64) -> io::Result<()> {
        let changes = self.history.entries.len() as u64 + intended;
        let needed = self.whole_bytes + lines_bytes + changes * ROOM_PER_CHANGE;
        // A full disk must be noticed before a change is made, not while it is undone: then the undo could not be
        // recorded, and the next process would repeat it.
        if needed > self.reserved_bytes {
            let more = needed + ROOM_STEP;
            self.reserved_bytes = match reserve(&self.file, more) {
                Ok(()) => more,
                // The disk is almost full: reserve only the space that is needed now.
                Err(_) => reserve(&self.file, needed).map(|()| needed)?,
            };
        }
        Ok(())
    }

    fn cut_off_torn_line(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.whole_bytes {
            self.file.set_len(self.whole_bytes)?;
            // Truncation also frees the reserved space.
            self.reserved_bytes = 0;
        }
        Ok(())
    }
}

impl Drop for OwnedJournal {
    /// Unlocks explicitly. If another thread is starting a child process, the child shares the open file and would hold
    /// the lock until it calls exec or exits.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(super) fn create_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        trust::set_permissions(&file)?;
        file.lock()?;
        // A process that cleans up abandoned files may have removed the file between the two calls.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Change;
    use crate::change::StartedProcess;
    use quell_test_support::{Lacks, skip};
    use std::process::Command;

    fn process(seq: u32, command: &str) -> Record {
        Record::Intend { seq, change: Change::Process(StartedProcess { command: vec![command.to_owned()] }) }
    }

    #[test]
    fn a_journal_that_was_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        journal.begin("a", Purpose::Lab, "boot").unwrap().remove().unwrap();
        assert!(journal.files().unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_journal_does_not_replace_another_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let _first = journal.begin("a", Purpose::Lab, "boot").unwrap();
        assert_eq!(journal.begin("a", Purpose::Lab, "boot").unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn remains_of_a_failed_write_do_not_corrupt_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut owned = Journal::in_dir(dir.path()).begin("a", Purpose::Lab, "boot").unwrap();
        owned.file.write_all(b"0000").unwrap();
        owned.write(process(0, "sleep")).unwrap();
        let written = History::parse(&fs::read_to_string(owned.path()).unwrap()).unwrap();
        assert_eq!(written, *owned.history());
    }

    const LIMITED: &str = "QUELL_TEST_FILE_SIZE_IS_LIMITED";

    /// Runs the test below in a process with a file size limit of 600 bytes.
    #[test]
    fn a_record_that_does_not_fit_is_truncated() {
        if std::env::var_os(LIMITED).is_some() {
            return write_more_than_fits();
        }
        let this_test = std::thread::current().name().unwrap().to_owned();
        let limited = Command::new("env")
            .args(["--ignore-signal=XFSZ", "prlimit", "--fsize=600"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", &this_test, "--test-threads=1", "--nocapture"])
            .env(LIMITED, "1")
            .output();
        match limited {
            Err(error) => skip(Lacks::Tool("env"), format_args!("no env: {error}")),
            Ok(output) if output.status.code().is_some_and(|code| (125..=127).contains(&code)) => {
                skip(Lacks::KernelFeature, String::from_utf8_lossy(&output.stderr));
            }
            Ok(output) => assert!(output.status.success(), "{output:?}"),
        }
    }

    fn write_more_than_fits() {
        let dir = tempfile::tempdir().unwrap();
        let mut owned = Journal::in_dir(dir.path()).begin("a", Purpose::Lab, "boot").unwrap();
        let before = fs::read(owned.path()).unwrap();
        let error = owned.write(process(0, &"x".repeat(600))).unwrap_err();
        assert_eq!((error.attempt, error.source.kind()), (Attempt::WriteIntent, io::ErrorKind::FileTooLarge));
        assert_eq!(fs::read(owned.path()).unwrap(), before);
        owned.write(process(0, "short")).unwrap();
        let written = History::parse(&fs::read_to_string(owned.path()).unwrap()).unwrap();
        assert_eq!(written.entries.len(), 1);
    }
}
