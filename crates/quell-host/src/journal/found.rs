//! Journals found on disk: listed without touching anything, or taken over from owners who are gone. What is in the
//! directory and is no journal of Quell's is never written to and never removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::{Attempt, JournalError, UnusableJournal};
use super::history::History;
use super::store::{EXTENSION, Journal, OwnedJournal, TEMPORARY_EXTENSION};

/// A journal found on disk by who means to act upon it.
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
    Unusable(UnusableJournal),
    /// It could not be read.
    Unreadable(JournalError),
}

/// A journal found on disk by who only looks.
#[derive(Debug)]
pub enum ListedJournal {
    /// Its owner is alive.
    Running {
        /// Where it is.
        path: PathBuf,
        /// Who that is; absent when it cannot be read just now.
        history: Option<History>,
    },
    /// Its owner is gone.
    Abandoned {
        /// Where it is.
        path: PathBuf,
        /// What it says.
        history: History,
    },
    /// Its owner is gone, and it cannot be acted upon.
    Unusable(UnusableJournal),
    /// It could not be read.
    Unreadable(JournalError),
}

/// The file of a journal, opened to be read while its owner writes it, and after that removed it.
#[derive(Debug)]
pub struct Witness(File);

impl Witness {
    /// What the journal says by now; a line that is just being written is not in it.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn history(&mut self) -> io::Result<History> {
        self.0.rewind()?;
        let bytes = read_whole(&self.0)?;
        History::parse(&String::from_utf8_lossy(&bytes)).map_err(io::Error::other)
    }
}

impl Journal {
    /// Opens the journal at `path` to see what becomes of it. `None`: there is none.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn witness(&self, path: &Path) -> Result<Option<Witness>, JournalError> {
        let opened = open_regular(path, OpenOptions::new().read(true));
        opened.map(|file| file.map(Witness)).map_err(|source| unreadable(path, source))
    }

    /// Every journal there is, in the order of their names. Those whose owners are gone come owned. What owners left who
    /// died before their journal had a name, and so before they changed anything, is removed by whoever may.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn files(&self) -> Result<Vec<JournalFile>, JournalError> {
        let paths = self.paths()?;
        for temporary in paths.iter().filter(|path| is_temporary(path)) {
            // Who may not remove it loses nothing by it.
            let _ = remove_if_abandoned(temporary);
        }
        let take = |path: &PathBuf| {
            take_over(path).unwrap_or_else(|source| Some(JournalFile::Unreadable(unreadable(path, source))))
        };
        Ok(paths.iter().filter(|path| is_journal(path)).filter_map(take).collect())
    }

    /// The journal at `path`, owned by the caller unless its owner is alive. `None`: there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn take(&self, path: &Path) -> Result<Option<JournalFile>, JournalError> {
        take_over(path).map_err(|source| unreadable(path, source))
    }

    /// The journal at `path`, once its owner let it go or died, however long that takes. `None`: it was removed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn take_when_abandoned(&self, path: &Path) -> Result<Option<JournalFile>, JournalError> {
        take_over_after(path, |file| file.lock().map(|()| true)).map_err(|source| unreadable(path, source))
    }

    /// Every journal there is, in the order of their names; nothing is written, removed or taken over. Needs the right
    /// to read only.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn list(&self) -> Result<Vec<ListedJournal>, JournalError> {
        let paths = self.paths()?;
        let look = |path: &PathBuf| {
            look_at(path).unwrap_or_else(|source| Some(ListedJournal::Unreadable(unreadable(path, source))))
        };
        Ok(paths.iter().filter(|path| is_journal(path)).filter_map(look).collect())
    }

    /// Whatever is in the directory, sorted.
    fn paths(&self) -> Result<Vec<PathBuf>, JournalError> {
        let fail = |source| JournalError { attempt: Attempt::List, path: self.dir().to_owned(), source };
        let entries = match fs::read_dir(self.dir()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(fail(source)),
        };
        let paths = entries.map(|entry| Ok(entry?.path()));
        let mut paths = paths.collect::<io::Result<Vec<_>>>().map_err(fail)?;
        paths.sort();
        Ok(paths)
    }
}

fn unreadable(path: &Path, source: io::Error) -> JournalError {
    JournalError { attempt: Attempt::Read, path: path.to_owned(), source }
}

fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// `<id>.<pid>.journal-new`, and nothing else.
fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(TEMPORARY_EXTENSION)?.strip_suffix('.'));
    stem.and_then(|stem| stem.rsplit_once('.')).is_some_and(|(id, pid)| {
        !id.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) && pid.parse::<u32>().is_ok()
    })
}

fn remove_if_abandoned(temporary: &Path) -> io::Result<()> {
    let Some(file) = open_regular(temporary, OpenOptions::new().read(true))? else { return Ok(()) };
    if held(file.try_lock())? { fs::remove_file(temporary) } else { Ok(()) }
}

/// `None`: it is gone, or nothing that Quell would have written: no link is followed.
fn open_regular(path: &Path, options: &OpenOptions) -> io::Result<Option<File>> {
    let named = match fs::symlink_metadata(path) {
        Ok(named) if named.is_file() => named,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let opened = file.metadata()?;
    let same = (opened.dev(), opened.ino()) == (named.dev(), named.ino());
    Ok(same.then_some(file))
}

fn held(attempt: Result<(), TryLockError>) -> io::Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the lock that an owner holds, unless one does.
fn own(file: &File) -> io::Result<bool> {
    if held(file.try_lock())? {
        return Ok(true);
    }
    // Who only lists journals shares the lock while reading; whoever can share it too waits for that moment's end.
    if !held(file.try_lock_shared())? {
        return Ok(false);
    }
    file.lock()?;
    Ok(true)
}

/// `None`: it was removed by its owner while we looked, or is no regular file.
fn take_over(path: &Path) -> io::Result<Option<JournalFile>> {
    take_over_after(path, own)
}

/// As [`take_over`], with another way to the lock.
fn take_over_after(path: &Path, own: impl FnOnce(&File) -> io::Result<bool>) -> io::Result<Option<JournalFile>> {
    let Some(file) = open_regular(path, OpenOptions::new().read(true).append(true))? else { return Ok(None) };
    let abandoned = own(&file)?;
    let bytes = read_whole(&file)?;
    let parsed = History::parse(&String::from_utf8_lossy(&bytes));
    let path = path.to_owned();
    if !abandoned {
        return Ok(Some(JournalFile::Running { path, history: parsed.ok() }));
    }
    if file.metadata()?.nlink() == 0 {
        return Ok(None);
    }
    Ok(Some(match parsed {
        Ok(history) => JournalFile::Abandoned(OwnedJournal::taken_over(path, file, history, whole_bytes(&bytes))?),
        Err(why) => JournalFile::Unusable(UnusableJournal { path, why }),
    }))
}

/// `None`: it was removed by its owner while we looked, or is no regular file.
fn look_at(path: &Path) -> io::Result<Option<ListedJournal>> {
    let Some(file) = open_regular(path, OpenOptions::new().read(true))? else { return Ok(None) };
    let abandoned = held(file.try_lock_shared())?;
    let bytes = read_whole(&file)?;
    let removed = file.metadata()?.nlink() == 0;
    drop(file);
    if removed {
        return Ok(None);
    }
    let parsed = History::parse(&String::from_utf8_lossy(&bytes));
    let path = path.to_owned();
    Ok(Some(match (abandoned, parsed) {
        (false, parsed) => ListedJournal::Running { path, history: parsed.ok() },
        (true, Ok(history)) => ListedJournal::Abandoned { path, history },
        (true, Err(why)) => ListedJournal::Unusable(UnusableJournal { path, why }),
    }))
}

fn read_whole(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The length of the lines that were not cut off.
fn whole_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::super::history::HistoryError;
    use super::super::record::{Change, Record};
    use super::super::store::create_locked;
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn namespace(seq: u32) -> Record {
        Record::Intend { seq, change: Change::NetworkNamespace { name: "quell-x".into() } }
    }

    /// The bytes of every file in a directory, by name.
    fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let paths = Journal::in_dir(dir).paths().unwrap();
        paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
    }

    /// An abandoned journal whose last line was cut off.
    fn torn(journal: &Journal) -> PathBuf {
        let owned = journal.begin("a", "lab", "boot").unwrap();
        let path = owned.path().to_owned();
        drop(owned);
        let mut text = fs::read(&path).unwrap();
        text.extend(b"0000");
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_journal_whose_owner_lives_is_running_and_one_whose_owner_is_gone_is_abandoned() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path().join("deep/journal"));
        let mut owned = journal.begin("a", "lab", "boot").unwrap();
        owned.write(namespace(0)).unwrap();
        assert!(matches!(journal.files().unwrap()[..], [JournalFile::Running { history: Some(_), .. }]));
        assert!(matches!(journal.list().unwrap()[..], [ListedJournal::Running { history: Some(_), .. }]));
        drop(owned);
        assert!(matches!(journal.list().unwrap()[..], [ListedJournal::Abandoned { .. }]));
        let files = journal.files().unwrap();
        let [JournalFile::Abandoned(found)] = &files[..] else { panic!("{files:?}") };
        assert_eq!(found.history().pending().count(), 1);
    }

    #[test]
    fn what_was_left_by_an_owner_who_died_before_naming_it_is_removed_and_what_is_being_written_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, alive) = (dir.path().join("a.1.journal-new"), dir.path().join("b.2.journal-new"));
        drop(create_locked(&dead).unwrap());
        let _owner = create_locked(&alive).unwrap();
        assert!(Journal::in_dir(dir.path()).files().unwrap().is_empty());
        assert_eq!((dead.exists(), alive.exists()), (false, true));
    }

    #[test]
    fn what_is_no_journal_survives_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let foreign =
            [".profile", ".a.1", "x.journal", "y.journal", "x.journal-new", "x.-1.journal-new", ".1.journal-new"];
        for name in foreign {
            fs::write(dir.path().join(name), if name == "y.journal" { "my\ndiary" } else { "mine" }).unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join(".profile"), dir.path().join("z.journal")).unwrap();
        std::os::unix::fs::symlink(dir.path().join(".profile"), dir.path().join("z.1.journal-new")).unwrap();
        fs::create_dir(dir.path().join("w.journal")).unwrap();
        let before = contents(dir.path());
        let journal = Journal::in_dir(dir.path());
        assert!(matches!(journal.files().unwrap()[..], [JournalFile::Unusable(_), JournalFile::Unusable(_)]));
        assert!(matches!(journal.list().unwrap()[..], [ListedJournal::Unusable(_), ListedJournal::Unusable(_)]));
        assert_eq!(contents(dir.path()), before);
    }

    #[test]
    fn listing_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        torn(&journal);
        drop(create_locked(&dir.path().join("a.1.journal-new")).unwrap());
        let before = contents(dir.path());
        assert!(matches!(journal.list().unwrap()[..], [ListedJournal::Abandoned { .. }]));
        assert_eq!(contents(dir.path()), before);
    }

    #[test]
    fn taking_over_waits_for_who_only_reads() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let reader = File::open(torn(&journal)).unwrap();
        reader.lock_shared().unwrap();
        let (sender, receiver) = mpsc::channel();
        let taking = std::thread::spawn(move || sender.send(journal.files().unwrap()).unwrap());
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err(), "it is not taken for a running one");
        drop(reader);
        assert!(matches!(receiver.recv().unwrap()[..], [JournalFile::Abandoned(_)]));
        taking.join().unwrap();
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_swallow_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        torn(&journal);
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
        let edited = fs::read_to_string(&path).unwrap().replace("quell-x", "eth0");
        fs::write(&path, &edited).unwrap();
        let files = journal.files().unwrap();
        let [JournalFile::Unusable(unusable)] = &files[..] else { panic!("{files:?}") };
        assert!(matches!(unusable.why, HistoryError::Damaged { line: 2, .. }));
        assert!(unusable.to_string().contains("remove the file"), "{unusable}");
        assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    }

    #[test]
    fn a_host_without_journals_has_none() {
        assert!(Journal::in_dir("/nonexistent/journal").files().unwrap().is_empty());
        assert!(Journal::in_dir("/nonexistent/journal").list().unwrap().is_empty());
    }
}
