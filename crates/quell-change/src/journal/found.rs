//! Journals on disk. They are listed without any change, or taken over from dead owners. Other files in the directory
//! are never written or removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::file::{lock_unless_interrupted, lock_within, try_lock};
use quell_linux::signal::Interruption;

use super::error::{Attempt, JournalError, UnusableJournal};
use super::history::{History, HistoryError, Persistence};
use super::store::{EXTENSION, Journal, OwnedJournal, TEMPORARY_EXTENSION};
use super::trust;

/// Time limit for readers of a journal, which hold its shared lock only while they read.
const READERS_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for a process to release a journal that it does not own, for example during an undo. Also applies to an
/// owner after a signal.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum JournalFile {
    Running {
        path: PathBuf,
        /// Contents; absent when it cannot be read at the moment.
        history: Option<History>,
    },
    /// Its owner is dead. The caller owns the journal now.
    Abandoned(OwnedJournal),
    Unusable(UnusableJournal),
    Unreadable(JournalError),
}

#[derive(Debug)]
pub enum ListedJournal {
    Running { path: PathBuf, history: Option<History> },
    Abandoned { path: PathBuf, history: History },
    Unusable(UnusableJournal),
    Unreadable(JournalError),
}

impl ListedJournal {
    /// Its file; absent if the directory cannot be read.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Running { path, .. } | Self::Abandoned { path, .. } => Some(path),
            Self::Unusable(unusable) => Some(&unusable.path),
            Self::Unreadable(_) => None,
        }
    }
}

/// An open journal file. It can be read while its owner writes it, and after its owner has removed it.
#[derive(Debug)]
pub struct Witness(File);

impl Witness {
    /// Current contents, without a line that is still being written.
    pub fn history(&mut self) -> io::Result<History> {
        self.0.rewind()?;
        let bytes = read_whole(&self.0)?;
        History::salvage(&String::from_utf8_lossy(&bytes)).map(|(history, _)| history).map_err(io::Error::other)
    }

    pub fn is_kept(&mut self) -> bool {
        let is_kept = |history: History| {
            matches!(history.persistence, Persistence::MaintainedBy(_))
                && history.entries.iter().all(|entry| entry.undone.is_none())
        };
        self.is_removed().is_ok_and(|removed| !removed) && self.history().is_ok_and(is_kept)
    }

    /// Whether its owner has removed it, which means that nothing remains to be undone.
    pub fn is_removed(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.nlink() == 0)
    }
}

/// A partly unreadable journal, owned by the caller.
#[derive(Debug)]
pub struct DamagedJournal {
    pub whole: Option<OwnedJournal>,
    pub unreadable: Vec<HistoryError>,
    path: PathBuf,
    _file: File,
}

impl DamagedJournal {
    pub fn remove(self) -> Result<(), JournalError> {
        let Self { path, .. } = self;
        fs::remove_file(&path).map_err(|source| JournalError { attempt: Attempt::Remove, path, source })
    }
}

impl Journal {
    /// Opens the journal at `path` to observe its progress. Returns `None` if it does not exist.
    pub fn witness(&self, path: &Path) -> Result<Option<Witness>, JournalError> {
        let opened = open_regular(path, OpenOptions::new().read(true));
        opened.map(|file| file.map(Witness)).map_err(|source| unreadable(path, source))
    }

    /// Returns every journal, ordered by name. Takes over those of dead owners, after waiting for their readers. If
    /// permissions allow it, removes unnamed journals of owners that died before they changed anything.
    pub fn files(&self) -> Result<Vec<JournalFile>, JournalError> {
        let paths = self.paths()?;
        // A directory with other files keeps its permissions. Undoing does not depend on them.
        let _ = trust::close_directory(self.dir());
        for temporary in paths.iter().filter(|path| is_temporary(path)) {
            // Failure is harmless, and normal for a user without permission.
            let _ = remove_if_abandoned(temporary);
        }
        let take = |path: &PathBuf| {
            take_over(path, &own_or_leave)
                .unwrap_or_else(|source| Some(JournalFile::Unreadable(unreadable(path, source))))
        };
        Ok(paths.iter().filter(|path| is_journal(path)).filter_map(take).collect())
    }

    /// Takes over the journal at `path` if its owner is dead. Returns `None` if it does not exist.
    pub fn take(&self, path: &Path) -> Result<Option<JournalFile>, JournalError> {
        take_over(path, &own_or_leave).map_err(|source| unreadable(path, source))
    }

    /// Like [`Self::take`], but waits up to ten seconds for the lock, because a process that undoes the journal removes
    /// it soon.
    pub(crate) fn take_from_strangers(&self, path: &Path) -> Result<Option<JournalFile>, JournalError> {
        let own = |file: &File| lock_within(file, RELEASED_WITHIN, &mut || false);
        take_over(path, &own).map_err(|source| unreadable(path, source))
    }

    /// Waits without a time limit until the owner of the journal at `path` releases it or dies, and takes it over.
    /// After a signal, waits ten seconds at most. Returns `None` if it was removed.
    pub fn take_when_abandoned(
        &self,
        path: &Path,
        interruption: &Interruption,
    ) -> Result<Option<JournalFile>, JournalError> {
        let own = |file: &File| lock_unless_interrupted(file, interruption, RELEASED_WITHIN);
        match take_over(path, &own).map_err(|source| unreadable(path, source))? {
            Some(JournalFile::Running { .. }) => Err(JournalError::locked(Attempt::Lock, path)),
            taken => Ok(taken),
        }
    }

    /// Takes over the partly unreadable journal at `path`, to undo its readable lines. Returns `None` if it does not
    /// exist or is intact.
    pub fn take_damaged(&self, path: &Path) -> Result<Option<DamagedJournal>, JournalError> {
        let failed = |source| unreadable(path, source);
        let Some((file, bytes)) = open_to_own(path, &own_or_leave).map_err(failed)? else { return Ok(None) };
        let Some(file) = file else { return Err(JournalError::locked(Attempt::Lock, path)) };
        let (whole, unreadable) = match History::salvage(&String::from_utf8_lossy(&bytes)) {
            Ok((_, unreadable)) if unreadable.is_empty() => return Ok(None),
            Ok((history, unreadable)) => (Some(history), unreadable),
            Err(why @ HistoryError::Format { .. }) => return Err(failed(io::Error::other(why))),
            Err(why) => (None, vec![why]),
        };
        let own = |history| OwnedJournal::taken_over(path.to_owned(), file.try_clone()?, history, whole_bytes(&bytes));
        let whole = whole.map(own).transpose().map_err(failed)?;
        Ok(Some(DamagedJournal { whole, unreadable, path: path.to_owned(), _file: file }))
    }

    /// Lists every journal, ordered by name, without writing or locking any. Needs only read permission.
    pub fn list(&self) -> Result<Vec<ListedJournal>, JournalError> {
        self.list_besides(Path::new(""))
    }

    /// Like [`Self::list`], without the journal at this path.
    pub(crate) fn list_besides(&self, own: &Path) -> Result<Vec<ListedJournal>, JournalError> {
        let paths = self.paths()?;
        let look = |path: &PathBuf| {
            look_at(path).unwrap_or_else(|source| Some(ListedJournal::Unreadable(unreadable(path, source))))
        };
        Ok(paths.iter().filter(|path| is_journal(path) && *path != own).filter_map(look).collect())
    }

    pub(super) fn paths(&self) -> Result<Vec<PathBuf>, JournalError> {
        let list = || -> io::Result<Vec<PathBuf>> {
            trust::check(&fs::metadata(self.dir())?)?;
            let mut paths = fs::read_dir(self.dir())?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
            paths.sort();
            Ok(paths)
        };
        match list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(|source| self.not_listed(source)),
        }
    }

    fn not_listed(&self, source: io::Error) -> JournalError {
        JournalError { attempt: Attempt::List, path: self.dir().to_owned(), source }
    }
}

fn unreadable(path: &Path, source: io::Error) -> JournalError {
    JournalError { attempt: Attempt::Read, path: path.to_owned(), source }
}

fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Whether the name has the form `<id>.<pid>.journal-new`.
fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(TEMPORARY_EXTENSION)?.strip_suffix('.'));
    stem.and_then(|stem| stem.rsplit_once('.')).is_some_and(|(id, pid)| {
        !id.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) && pid.parse::<u32>().is_ok()
    })
}

fn remove_if_abandoned(temporary: &Path) -> io::Result<()> {
    let Some(file) = open_regular(temporary, OpenOptions::new().read(true))? else { return Ok(()) };
    if try_lock(&file)? { fs::remove_file(temporary) } else { Ok(()) }
}

/// Opens a regular file without following links. Returns `None` if it is gone, or if Quell cannot have written it. A
/// file that others may have written is an error.
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
    trust::check(&opened)?;
    let same = (opened.dev(), opened.ino()) == (named.dev(), named.ino());
    Ok(same.then_some(file))
}

fn shared(attempt: Result<(), TryLockError>) -> io::Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the owner's lock if no owner holds it.
fn own_or_leave(file: &File) -> io::Result<bool> {
    if try_lock(file)? {
        return Ok(true);
    }
    // Processes that list journals hold a shared lock while they read. If the shared lock can be taken here too, no
    // owner holds the file, and it is worth waiting for those readers.
    Ok(shared(file.try_lock_shared())? && lock_within(file, READERS_WITHIN, &mut || false)?)
}

type Own<'a> = dyn Fn(&File) -> io::Result<bool> + 'a;

/// Returns the contents, and the file if its lock was taken. Returns `None` if its owner removed or renamed it in the
/// meantime, or if it is not a regular file. The name can be that of another journal then.
fn open_to_own(path: &Path, own: &Own<'_>) -> io::Result<Option<(Option<File>, Vec<u8>)>> {
    let Some(file) = open_regular(path, OpenOptions::new().read(true).append(true))? else { return Ok(None) };
    let abandoned = own(&file)?;
    let bytes = read_whole(&file)?;
    // The lock belongs to the file, not to its name. While this process waited for it, the owner can have removed or
    // renamed the file, and another journal can have the name now.
    if abandoned && !is_at(path, &file)? {
        return Ok(None);
    }
    Ok(Some((abandoned.then_some(file), bytes)))
}

fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (file.metadata()?.dev(), file.metadata()?.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns `None` if its owner removed it in the meantime, or if it is not a regular file.
fn take_over(path: &Path, own: &Own<'_>) -> io::Result<Option<JournalFile>> {
    let Some((file, bytes)) = open_to_own(path, own)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let path = path.to_owned();
    let Some(file) = file else {
        return Ok(Some(JournalFile::Running { path, history: of_whole_lines(&text) }));
    };
    Ok(Some(match History::parse(&text) {
        Ok(history) => JournalFile::Abandoned(OwnedJournal::taken_over(path, file, history, whole_bytes(&bytes))?),
        Err(why) => JournalFile::Unusable(UnusableJournal { path, why }),
    }))
}

/// Uses the readable lines only; the running owner knows the contents of the others.
fn of_whole_lines(text: &str) -> Option<History> {
    History::salvage(text).ok().map(|(history, _)| history)
}

/// Returns `None` if its owner removed it in the meantime, or if it is not a regular file.
fn look_at(path: &Path) -> io::Result<Option<ListedJournal>> {
    let Some(file) = open_regular(path, OpenOptions::new().read(true))? else { return Ok(None) };
    let abandoned = shared(file.try_lock_shared())?;
    let bytes = read_whole(&file)?;
    let removed = file.metadata()?.nlink() == 0;
    drop(file);
    if removed {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes);
    let path = path.to_owned();
    Ok(Some(match (abandoned, History::parse(&text)) {
        (false, _) => ListedJournal::Running { path, history: of_whole_lines(&text) },
        (true, Ok(history)) => ListedJournal::Abandoned { path, history },
        (true, Err(why)) => ListedJournal::Unusable(UnusableJournal { path, why }),
    }))
}

fn read_whole(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Length of the complete lines, in bytes.
fn whole_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::super::purpose::Purpose;
    use super::super::record::Record;
    use super::super::store::create_locked;
    use super::*;
    use crate::change::Change;
    use crate::change::CreatedNamespace;
    use quell_test_support::{Lacks, skip};
    use std::sync::mpsc;
    use std::time::Duration;

    fn namespace(seq: u32) -> Record {
        Record::Intend { seq, change: Change::NetworkNamespace(CreatedNamespace { name: "quell-x".into() }) }
    }

    fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let paths = Journal::in_dir(dir).paths().unwrap();
        paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
    }

    /// An abandoned journal with an incomplete last line.
    fn torn(journal: &Journal) -> PathBuf {
        let owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        let path = owned.path().to_owned();
        drop(owned);
        let mut text = fs::read(&path).unwrap();
        text.extend(b"0000");
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_journal_is_running_while_its_owner_lives_and_abandoned_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path().join("deep/journal"));
        let mut owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
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
    fn a_journal_that_was_set_aside_is_gone_for_those_who_waited_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        let path = owned.path().to_owned();
        let waited_for = File::open(&path).unwrap();
        assert!(is_at(&path, &waited_for).unwrap());
        owned.set_aside().unwrap();
        assert!(!is_at(&path, &waited_for).unwrap());
        let _next = journal.begin("a", Purpose::Lab, "boot").unwrap();
        assert!(!is_at(&path, &waited_for).unwrap(), "the name belongs to another journal");
    }

    #[test]
    fn an_unnamed_journal_is_removed_if_its_owner_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, alive) = (dir.path().join("a.1.journal-new"), dir.path().join("b.2.journal-new"));
        // Unlocked rather than closed, because a child process of another test may have inherited the file.
        create_locked(&dead).unwrap().unlock().unwrap();
        let _owner = create_locked(&alive).unwrap();
        assert!(Journal::in_dir(dir.path()).files().unwrap().is_empty());
        assert_eq!((dead.exists(), alive.exists()), (false, true));
    }

    #[test]
    fn a_file_that_is_not_a_journal_survives_unchanged() {
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
    fn taking_over_waits_for_readers() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let reader = File::open(torn(&journal)).unwrap();
        reader.lock_shared().unwrap();
        let (sender, receiver) = mpsc::channel();
        let taking = std::thread::spawn(move || sender.send(journal.files().unwrap()).unwrap());
        assert!(
            receiver.recv_timeout(Duration::from_millis(50)).is_err(),
            "a reader does not count as a running owner"
        );
        drop(reader);
        assert!(matches!(receiver.recv().unwrap()[..], [JournalFile::Abandoned(_)]));
        taking.join().unwrap();
    }

    #[test]
    fn an_incomplete_line_does_not_corrupt_the_next_one() {
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
    fn an_edited_journal_is_unusable_and_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let mut owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        owned.write(namespace(0)).unwrap();
        drop(owned);
        let path = dir.path().join("a.journal");
        let edited = fs::read_to_string(&path).unwrap().replace("quell-x", "eth0");
        fs::write(&path, &edited).unwrap();
        let files = journal.files().unwrap();
        let [JournalFile::Unusable(unusable)] = &files[..] else { panic!("{files:?}") };
        assert!(matches!(unusable.why, HistoryError::Damaged { line: 2, .. }));
        assert!(unusable.to_string().contains("`quell revert`"), "{unusable}");
        assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn open_to(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn others_can_neither_read_nor_lock_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path().join("deep/journal"));
        let owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        assert_eq!((mode(journal.dir()), mode(owned.path())), (0o700, 0o600));
    }

    #[test]
    fn permissions_of_other_users_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let path = torn(&journal);
        open_to(dir.path(), 0o755);
        open_to(&path, 0o644);
        assert!(matches!(journal.files().unwrap()[..], [JournalFile::Abandoned(_)]));
        assert_eq!((mode(dir.path()), mode(&path)), (0o700, 0o600));
    }

    #[test]
    fn a_directory_with_other_files_is_refused_and_keeps_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes"), "mine").unwrap();
        open_to(dir.path(), 0o755);
        let error = Journal::in_dir(dir.path()).begin("a", Purpose::Lab, "boot").unwrap_err();
        // It may be /etc.
        assert!(error.to_string().contains("set QUELL_JOURNAL_DIR to a directory that only Quell uses"), "{error}");
        assert_eq!(mode(dir.path()), 0o755);
        open_to(dir.path(), 0o1777);
        let error = Journal::in_dir(dir.path()).list().unwrap_err().to_string();
        assert!(error.contains("set QUELL_JOURNAL_DIR to") && !error.contains("remove it"), "{error}");
    }

    #[test]
    fn a_journal_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let path = torn(&journal);
        open_to(&path, 0o666);
        assert!(
            matches!(&journal.files().unwrap()[..], [JournalFile::Unreadable(error)] if error.to_string().contains("0666"))
        );
        assert!(matches!(journal.list().unwrap()[..], [ListedJournal::Unreadable(_)]));
        assert!(journal.take(&path).is_err() && journal.witness(&path).is_err());
        open_to(&path, 0o600);
        open_to(dir.path(), 0o777);
        assert!(
            journal.files().is_err() && journal.list().is_err() && journal.begin("b", Purpose::Lab, "boot").is_err()
        );
    }

    #[test]
    fn a_journal_of_another_user_is_refused() {
        // Not `nobody`, which may run this test.
        const OTHER_USER: u32 = 65_533;
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let path = torn(&journal);
        if let Err(error) = std::os::unix::fs::chown(&path, Some(OTHER_USER), None) {
            return skip(Lacks::Root, format_args!("only root can change the owner of a file: {error}"));
        }
        assert!(
            matches!(&journal.files().unwrap()[..], [JournalFile::Unreadable(error)] if error.to_string().contains("user 65533"))
        );
        std::os::unix::fs::chown(dir.path(), Some(OTHER_USER), None).unwrap();
        assert!(journal.files().is_err() && journal.list().is_err());
    }

    #[test]
    fn the_readable_lines_of_a_damaged_journal_can_be_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let mut owned = journal.begin("a", Purpose::Lab, "boot").unwrap();
        (0..2).for_each(|seq| owned.write(namespace(seq)).unwrap());
        let path = owned.path().to_owned();
        assert!(journal.take_damaged(&path).unwrap_err().is_locked(), "its owner lives");
        drop(owned);
        assert!(journal.take_damaged(&path).unwrap().is_none(), "it is intact");
        let edited = fs::read_to_string(&path).unwrap().replacen("quell-x", "eth0", 1);
        fs::write(&path, edited).unwrap();
        let damaged = journal.take_damaged(&path).unwrap().unwrap();
        let pending: Vec<u32> = damaged.whole.as_ref().unwrap().history().pending().map(|(seq, _)| seq).collect();
        assert_eq!(pending, [1]);
        assert!(matches!(damaged.unreadable[0], HistoryError::Damaged { line: 2, .. }));
        damaged.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_missing_directory_contains_no_journals() {
        assert!(Journal::in_dir("/nonexistent/journal").files().unwrap().is_empty());
        assert!(Journal::in_dir("/nonexistent/journal").list().unwrap().is_empty());
    }
}
