//! Journals as files: begun, owned, found again. A journal is owned by whoever holds the lock on its file; the kernel
//! drops that lock when the owner dies, however it dies, so nobody has to guess whether a process id still means the
//! same process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::history::{History, HistoryError};
use super::record::{Begin, FORMAT, Record};

const EXTENSION: &str = "journal";

/// The directory that holds the journals of one host.
#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
}

/// A journal found on disk.
#[derive(Debug)]
pub enum JournalFile {
    /// Its owner is alive.
    Running {
        /// Where it is.
        path: PathBuf,
        /// Who that is; absent when it cannot be read just now.
        history: Option<History>,
    },
    /// Its owner is gone; it is now owned by the caller.
    Abandoned(OwnedJournal),
    /// Its owner is gone, and it cannot be acted upon.
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why.
        why: HistoryError,
    },
}

/// A journal whose lock this process holds.
#[derive(Debug)]
pub struct OwnedJournal {
    path: PathBuf,
    file: File,
    history: History,
}

/// Why a journal could not be read or written. Nothing was changed on the host.
#[derive(Debug, thiserror::Error)]
#[error("could not {attempt} the journal {}: {source}; every change is written down there before it is made, so nothing was changed", path.display())]
pub struct JournalError {
    /// What was tried: `create`.
    pub attempt: &'static str,
    /// On which file or directory.
    pub path: PathBuf,
    /// What came back.
    pub source: io::Error,
}

impl Journal {
    /// The journals in `dir`, which need not exist yet.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
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
        let unnamed = self.dir.join(format!(".{id}.{}", std::process::id()));
        let fail = |attempt, path: &Path| {
            let path = path.to_owned();
            move |source| JournalError { attempt, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.dir)
            .map_err(fail("make the directory of", &self.dir))?;
        let mut file = create_unnamed(&unnamed).map_err(fail("create", &unnamed))?;
        write_durably(&mut file, &Record::Begin(begin.clone())).map_err(fail("write", &unnamed))?;
        // Unlike a rename, this does not replace a journal of the same name.
        std::fs::hard_link(&unnamed, &path).map_err(fail("name", &path))?;
        std::fs::remove_file(&unnamed).map_err(fail("remove the unnamed entry of", &unnamed))?;
        sync_dir(&self.dir).map_err(fail("make durable", &self.dir))?;
        Ok(OwnedJournal { path, file, history: History::new(begin) })
    }

    /// Every journal there is, in the order of their names. Those whose owners are gone come owned. What owners left who
    /// died before their journal had a name, and so before they changed anything, is removed by whoever may.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn files(&self) -> Result<Vec<JournalFile>, JournalError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(JournalError { attempt: "list", path: self.dir.clone(), source }),
        };
        let named = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION);
        let (mut paths, others): (Vec<PathBuf>, Vec<PathBuf>) =
            entries.flatten().map(|entry| entry.path()).partition(named);
        for unnamed in others.iter().filter(|path| is_unnamed(path)) {
            // Who may not remove it loses nothing by it.
            let _ = remove_if_abandoned(unnamed);
        }
        paths.sort();
        let mut found = Vec::new();
        for path in paths {
            let look = look_at(&path).map_err(|source| JournalError { attempt: "read", path, source })?;
            found.extend(look);
        }
        Ok(found)
    }
}

impl OwnedJournal {
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

    /// Adds a record and returns when it is on disk.
    ///
    /// # Errors
    /// When it could not be written; then the change that it announces must not be made.
    ///
    /// # Panics
    /// When the record cannot follow upon those before it: an error in this crate.
    pub fn write(&mut self, record: Record) -> Result<(), JournalError> {
        write_durably(&mut self.file, &record).map_err(|source| JournalError {
            attempt: "write",
            path: self.path.clone(),
            source,
        })?;
        self.history.append(record).unwrap_or_else(|why| unreachable!("a record written by Quell: {why}"));
        Ok(())
    }

    /// Removes it, for nothing that it speaks of is left to be undone.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| JournalError {
            attempt: "remove",
            path: self.path.clone(),
            source,
        })
    }
}

/// A new file at `path`, locked.
fn create_unnamed(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        file.lock()?;
        // Whoever looked for abandoned ones between the two calls took it for one.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

fn is_unnamed(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn remove_if_abandoned(unnamed: &Path) -> io::Result<()> {
    let file = File::open(unnamed)?;
    match file.try_lock() {
        Ok(()) => std::fs::remove_file(unnamed),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// `None`: it was removed by its owner while we looked, or nothing was ever done under it.
fn look_at(path: &Path) -> io::Result<Option<JournalFile>> {
    let mut file = match OpenOptions::new().read(true).append(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let running = match file.try_lock() {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(error)) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let parsed = History::parse(&String::from_utf8_lossy(&bytes));
    if running {
        return Ok(Some(JournalFile::Running { path: path.to_owned(), history: parsed.ok() }));
    }
    if file.metadata()?.nlink() == 0 {
        return Ok(None);
    }
    match parsed {
        Ok(history) => {
            drop_torn_line(&file, &bytes)?;
            Ok(Some(JournalFile::Abandoned(OwnedJournal { path: path.to_owned(), file, history })))
        }
        Err(why) => Ok(Some(JournalFile::Unusable { path: path.to_owned(), why })),
    }
}

/// A line that a crash cut off would swallow the next one written.
fn drop_torn_line(file: &File, bytes: &[u8]) -> io::Result<()> {
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    if whole < bytes.len() { file.set_len(whole as u64) } else { Ok(()) }
}

fn write_durably(file: &mut File, record: &Record) -> io::Result<()> {
    file.write_all(record.to_line().as_bytes())?;
    file.sync_data()
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::record::Change;
    use super::*;

    fn namespace(seq: u32) -> Record {
        Record::Intend { seq, change: Change::NetworkNamespace { name: "quell-x".into() } }
    }

    #[test]
    fn a_journal_whose_owner_lives_is_running_and_one_whose_owner_is_gone_is_abandoned() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path().join("deep/journal"));
        let mut owned = journal.begin("a", "lab", "boot").unwrap();
        owned.write(namespace(0)).unwrap();
        assert!(matches!(journal.files().unwrap()[..], [JournalFile::Running { history: Some(_), .. }]));
        drop(owned);
        let files = journal.files().unwrap();
        let [JournalFile::Abandoned(found)] = &files[..] else { panic!("{files:?}") };
        assert_eq!(found.history().pending().count(), 1);
    }

    #[test]
    fn a_journal_that_was_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        journal.begin("a", "lab", "boot").unwrap().remove().unwrap();
        assert!(journal.files().unwrap().is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn what_was_left_by_an_owner_who_died_before_naming_it_is_removed_and_what_is_being_written_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, alive) = (dir.path().join(".a.1"), dir.path().join(".b.2"));
        drop(create_unnamed(&dead).unwrap());
        let _owner = create_unnamed(&alive).unwrap();
        assert!(Journal::in_dir(dir.path()).files().unwrap().is_empty());
        assert_eq!((dead.exists(), alive.exists()), (false, true));
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_swallow_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let mut owned = journal.begin("a", "lab", "boot").unwrap();
        owned.file.write_all(b"0000").unwrap();
        drop(owned);
        let JournalFile::Abandoned(mut found) = journal.files().unwrap().remove(0) else { panic!() };
        assert!(found.history().cut_off);
        found.write(namespace(0)).unwrap();
        drop(found);
        let JournalFile::Abandoned(again) = journal.files().unwrap().remove(0) else { panic!() };
        assert_eq!(again.history().entries.len(), 1);
    }

    #[test]
    fn an_edited_journal_is_unusable_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let mut owned = journal.begin("a", "lab", "boot").unwrap();
        owned.write(namespace(0)).unwrap();
        drop(owned);
        let path = dir.path().join("a.journal");
        let edited = std::fs::read_to_string(&path).unwrap().replace("quell-x", "eth0");
        std::fs::write(&path, &edited).unwrap();
        assert!(matches!(
            journal.files().unwrap()[..],
            [JournalFile::Unusable { why: HistoryError::Damaged { line: 2, .. }, .. }]
        ));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
    }

    #[test]
    fn a_journal_does_not_replace_another_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let _first = journal.begin("a", "lab", "boot").unwrap();
        assert_eq!(journal.begin("a", "lab", "boot").unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_host_without_journals_has_none() {
        assert!(Journal::in_dir("/nonexistent/journal").files().unwrap().is_empty());
    }
}
