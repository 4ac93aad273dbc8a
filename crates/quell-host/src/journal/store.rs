//! Journals as files: begun, owned, written. A journal is owned by whoever holds the lock on its file; the kernel drops
//! that lock when the owner dies, however it dies, so nobody has to guess whether a process id still means the same
//! process. Finding those of others is [`super::found`]'s.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use quell_linux::file::reserve;

use super::error::{Attempt, JournalError};
use super::history::{History, Stay};
use super::record::{Begin, FORMAT, Record};
use super::trust;

pub(super) const EXTENSION: &str = "journal";
/// Of a journal that has no name yet: `<id>.<pid>.journal-new`.
pub(super) const TEMPORARY_EXTENSION: &str = "journal-new";
/// What the name of a journal begins with that was reverted, and whose rest waits for queues.
const WAITING: &str = "waiting-";
/// Room for what is written of a change once it was intended: its outcome, and what undoing it came to.
const ROOM_PER_CHANGE: u64 = 512;
/// Room is reserved for many changes at once.
const ROOM_STEP: u64 = 64 << 10;

/// The directory that holds the journals of one host.
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
    /// The length of the lines that are wholly on disk.
    whole_bytes: u64,
    /// The length up to which the file has room on disk.
    reserved_bytes: u64,
}

impl Journal {
    /// The journals in `dir`, which need not exist yet.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins a journal and takes ownership of it. It appears under its name only when it is locked and its first
    /// line is on disk, so nobody can take it for an abandoned one.
    ///
    /// # Errors
    /// When the directory or the file cannot be made, usually for want of privilege.
    pub fn begin(&self, id: &str, purpose: &str, boot_id: &str) -> Result<OwnedJournal, JournalError> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let begin = Begin {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: boot_id.to_owned(),
            pid: std::process::id(),
            began_unix_s: began,
            purpose: purpose.to_owned(),
        };
        let path = self.dir.join(format!("{id}.{EXTENSION}"));
        let temporary = self.dir.join(format!("{id}.{}.{TEMPORARY_EXTENSION}", begin.pid));
        let begun = self.create(&temporary, path.clone(), begin);
        begun.map_err(|source| JournalError { attempt: Attempt::Begin, path, source })
    }

    fn create(&self, temporary: &Path, path: PathBuf, begin: Begin) -> io::Result<OwnedJournal> {
        trust::make_directory(&self.dir)?;
        let file = create_locked(temporary)?;
        let mut owned =
            OwnedJournal { path, file, history: History::new(begin.clone()), whole_bytes: 0, reserved_bytes: 0 };
        let begun = owned.append(&[Record::Begin(begin)]);
        // Unlike a rename, this does not replace a journal of the same name.
        let named = begun.and_then(|()| fs::hard_link(temporary, &owned.path));
        let removed = fs::remove_file(temporary);
        named.and(removed)?;
        File::open(&self.dir)?.sync_all()?;
        Ok(owned)
    }
}

impl OwnedJournal {
    /// A journal whose lock this process has just taken. What follows its whole lines, as a crash leaves it, is cut
    /// off: it would swallow the next record.
    pub(super) fn taken_over(path: PathBuf, file: File, history: History, whole_bytes: u64) -> io::Result<Self> {
        let mut owned = Self { path, file, history, whole_bytes, reserved_bytes: 0 };
        trust::close_file(&owned.file)?;
        owned.cut_off_torn_line()?;
        Ok(owned)
    }

    /// What it says so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record and returns when it is on disk. A change is intended only when there is room on disk to write down
    /// later that it was undone: a disk that fills up meanwhile does not keep that from being known.
    ///
    /// # Errors
    /// When it could not be written; then the change that it announces must not be made.
    ///
    /// # Panics
    /// When the record cannot follow upon those before it: an error in this crate.
    pub fn write(&mut self, record: Record) -> Result<(), JournalError> {
        self.write_all(vec![record])
    }

    /// As [`Self::write`], of several records of one kind, which reach the disk together.
    ///
    /// # Errors
    /// When they could not be written; none of them is in the journal then.
    ///
    /// # Panics
    /// When a record cannot follow upon those before it: an error in this crate.
    pub fn write_all(&mut self, records: Vec<Record>) -> Result<(), JournalError> {
        let attempt = match records.first() {
            None => return Ok(()),
            Some(Record::Begin(_)) => Attempt::Begin,
            Some(Record::Intend { .. }) => Attempt::WriteIntent,
            Some(Record::Done { .. }) => Attempt::WriteOutcome,
            Some(Record::Undone { .. }) => Attempt::WriteUndone,
            Some(Record::Target(_)) => Attempt::WriteTarget,
            Some(Record::Keep | Record::KeepIfConfirmed(_) | Record::KeptBy(_)) => Attempt::WriteKeep,
            Some(Record::Release) => Attempt::WriteRelease,
        };
        self.append(&records).map_err(|source| JournalError { attempt, path: self.path.clone(), source })?;
        for record in records {
            self.history.append(record).unwrap_or_else(|why| unreachable!("a record written by Quell: {why}"));
        }
        Ok(())
    }

    /// Removes it, for nothing that it speaks of is left to be undone.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        fs::remove_file(&self.path).map_err(|source| JournalError {
            attempt: Attempt::Remove,
            path: self.path.clone(),
            source,
        })
    }

    /// Gives it a name that no journal of another purpose has, for what is left in it waits, and nobody is to wait with it.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub(crate) fn set_aside(mut self) -> Result<(), JournalError> {
        if self.history.stay != Stay::WithOwner {
            self.write(Record::Release)?;
        }
        if file_name(&self.path).starts_with(WAITING) {
            return Ok(());
        }
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
        // What an earlier failure left and could not cut off itself.
        self.cut_off_torn_line()?;
        let lines: String = records.iter().map(Record::to_line).collect();
        let intended = records.iter().filter(|record| matches!(record, Record::Intend { .. })).count();
        if intended > 0 {
            self.reserve_room(lines.len() as u64, intended as u64)?;
        }
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.whole_bytes += lines.len() as u64,
            Err(_) => {
                // Tried again before the next record.
                let _ = self.cut_off_torn_line();
            }
        }
        written
    }

    fn reserve_room(&mut self, lines_bytes: u64, intended: u64) -> io::Result<()> {
        let changes = self.history.entries.len() as u64 + intended;
        let needed = self.whole_bytes + lines_bytes + changes * ROOM_PER_CHANGE;
        if needed > self.reserved_bytes {
            let more = needed + ROOM_STEP;
            self.reserved_bytes = match reserve(&self.file, more) {
                Ok(()) => more,
                // Almost full: what is needed now may still be there.
                Err(_) => reserve(&self.file, needed).map(|()| needed)?,
            };
        }
        Ok(())
    }

    fn cut_off_torn_line(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.whole_bytes {
            self.file.set_len(self.whole_bytes)?;
            // Cutting a file off gives back its reserved room too.
            self.reserved_bytes = 0;
        }
        Ok(())
    }
}

impl Drop for OwnedJournal {
    /// The lock ends now, and not only when a child has ended or executed that another thread is just starting: until then
    /// it has this file open too.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A new file at `path`, locked.
pub(super) fn create_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        trust::set_permissions(&file)?;
        file.lock()?;
        // Whoever looked for abandoned ones between the two calls took it for one.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Change;
    use super::*;
    use quell_test_support::{Lacks, skip};
    use std::process::Command;

    fn process(seq: u32, command: &str) -> Record {
        Record::Intend { seq, change: Change::Process { command: vec![command.to_owned()] } }
    }

    #[test]
    fn a_journal_that_was_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        journal.begin("a", "lab", "boot").unwrap().remove().unwrap();
        assert!(journal.files().unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_journal_does_not_replace_another_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let _first = journal.begin("a", "lab", "boot").unwrap();
        assert_eq!(journal.begin("a", "lab", "boot").unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn what_a_failed_write_left_does_not_swallow_the_next_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut owned = Journal::in_dir(dir.path()).begin("a", "lab", "boot").unwrap();
        owned.file.write_all(b"0000").unwrap();
        owned.write(process(0, "sleep")).unwrap();
        let written = History::parse(&fs::read_to_string(owned.path()).unwrap()).unwrap();
        assert_eq!(written, *owned.history());
    }

    const LIMITED: &str = "QUELL_TEST_FILE_SIZE_IS_LIMITED";

    /// Runs itself again in a process whose files may have 600 bytes and no more.
    #[test]
    fn a_record_that_did_not_fit_is_cut_off_again() {
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
        let mut owned = Journal::in_dir(dir.path()).begin("a", "lab", "boot").unwrap();
        let before = fs::read(owned.path()).unwrap();
        let error = owned.write(process(0, &"x".repeat(600))).unwrap_err();
        assert_eq!((error.attempt, error.source.kind()), (Attempt::WriteIntent, io::ErrorKind::FileTooLarge));
        assert_eq!(fs::read(owned.path()).unwrap(), before);
        owned.write(process(0, "short")).unwrap();
        let written = History::parse(&fs::read_to_string(owned.path()).unwrap()).unwrap();
        assert_eq!(written.entries.len(), 1);
    }
}
