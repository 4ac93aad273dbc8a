//! The store of results: a directory with one file for each. The ID of a result is the name of its file, so it stays as
//! long as the file does.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use quell_linux::output_file::OutputFile;
use quell_linux::process::is_root;
use quell_linux::{clock, own_file, visible};
use quell_mode::{did_you_mean, nearest};

use crate::{DocumentError, ResultDocument};

/// Directory of root.
const OF_ROOT: &str = "/var/lib/quell/results";
/// Environment variable that overrides the directory, for tests and for users.
const VARIABLE: &str = "QUELL_RESULTS_DIR";
/// Extension of result files, with the dot.
const EXTENSION: &str = ".json";
/// Of a file with a line of JSON per report, which the store never has.
const LINES_EXTENSION: &str = ".jsonl";
/// Size limit of a result; the snapshot of a host with 100,000 sockets fits.
pub const RESULT_MAX: u64 = 256 << 20;

/// Why a result cannot be stored or found. The messages are one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultStoreError {
    /// The directory of results cannot be created or written.
    #[error("cannot create results in {}: {source}; specify a file for the result", visible::path(directory))]
    NotCreatable {
        /// The directory.
        directory: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The directory of results cannot be read.
    #[error("cannot list the results in {}: {source}", visible::path(directory))]
    NotListed {
        /// The directory.
        directory: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No stored result has this ID.
    #[error(
        "no result {}{} in {}; `quell results` lists all",
        visible::name(id),
        did_you_mean(id, nearest.as_deref()),
        visible::path(directory)
    )]
    Unknown {
        /// The unknown ID.
        id: String,
        /// The directory.
        directory: PathBuf,
        /// The most similar ID. Absent if none is similar.
        nearest: Option<String>,
    },
    /// Several stored results begin with this ID.
    #[error("several results begin with {}: {}", visible::name(id), matches.join(", "))]
    Ambiguous {
        /// Beginning of the IDs.
        id: String,
        /// The IDs.
        matches: Vec<String>,
    },
}

/// Why a file is not a result. The messages are one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read, is not UTF-8, or is too large.
    #[error("could not read {}: {source}", visible::path(path))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the kernel, or the limit.
        source: io::Error,
    },
    /// The file is not a document of this version.
    #[error("{} is not a result: {source}", visible::path(path))]
    Document {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: DocumentError,
    },
}

impl ReadError {
    /// The reason without the path.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::File { source, .. } => source.to_string(),
            Self::Document { source, .. } => source.to_string(),
        }
    }
}

/// Reads the text of a file that Quell wrote, possibly on another host. A file without an end, such as `/dev/zero`, is
/// refused.
pub fn read_text(path: &Path) -> Result<String, ReadError> {
    own_file::read_text(path, RESULT_MAX).map_err(|source| ReadError::File { path: path.to_owned(), source })
}

/// Reads a document.
pub fn read(path: &Path) -> Result<ResultDocument, ReadError> {
    let text = read_text(path)?;
    ResultDocument::parse(&text).map_err(|source| ReadError::Document { path: path.to_owned(), source })
}

/// A stored result. It is not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResult {
    /// Name of the file without its extension.
    pub id: String,
    path: PathBuf,
}

impl StoredResult {
    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Time of the last change of the file, in seconds since 1970-01-01 UTC. `None` if it cannot be read.
    #[must_use]
    pub fn changed_unix_s(&self) -> Option<u64> {
        let changed = fs::metadata(&self.path).and_then(|metadata| metadata.modified()).ok()?;
        Some(changed.duration_since(UNIX_EPOCH).ok()?.as_secs())
    }

    /// Reads the result. A file that is not regular is refused without opening it: a pipe would block.
    pub fn read(&self) -> Result<ResultDocument, ReadError> {
        let refused = |source| ReadError::File { path: self.path.clone(), source };
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_file() => read(&self.path),
            Ok(_) => Err(refused(io::Error::other("not a regular file"))),
            Err(source) => Err(refused(source)),
        }
    }
}

/// The store of a user.
#[derive(Debug, Clone)]
pub struct ResultStore {
    directory: PathBuf,
}

impl ResultStore {
    /// The store of this user: `$QUELL_RESULTS_DIR`, `/var/lib/quell/results` for root, otherwise `quell` in
    /// `$XDG_STATE_HOME` or `~/.local/state`.
    #[must_use]
    pub fn of_user() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let of_state = || {
            let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
            state.map_or_else(|| PathBuf::from("."), |state| state.join("quell"))
        };
        let of_account = || if is_root() { OF_ROOT.into() } else { of_state() };
        Self { directory: variable(VARIABLE).unwrap_or_else(of_account) }
    }

    /// The store in this directory.
    #[must_use]
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Directory of the files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the file for a new result of `command`: `named`, or a new file of the store. Creates the directory.
    pub fn new_file(&self, named: Option<&PathBuf>, command: &str) -> Result<OutputFile, ResultStoreError> {
        if let Some(file) = named {
            return Ok(OutputFile::named(file.clone(), "the result"));
        }
        // Only this user may write to it, regardless of the umask.
        let created = DirBuilder::new().recursive(true).mode(0o755).create(&self.directory);
        created.map_err(|source| self.not_creatable(&self.directory, source))?;
        let id = format!("{command}-{}", compact_utc(clock::realtime_ns() / 1_000_000_000));
        let others = (2..).map(|number| format!("{id}-{number}"));
        let paths = std::iter::once(id.clone()).chain(others).map(|id| self.path_of(&id));
        let path = paths.into_iter().find(|path| fs::symlink_metadata(path).is_err());
        Ok(OutputFile::by_default(path.unwrap_or_else(|| self.path_of(&id)), "the result"))
    }

    /// Checks whether [`Self::new_file`] would succeed, without creating anything.
    pub fn check_creatable(&self, named: Option<&PathBuf>) -> Result<(), ResultStoreError> {
        let directory = named.map_or(Some(&*self.directory), |file| file.parent());
        let check =
            |directory| own_file::check_creatable(directory).map_err(|error| self.not_creatable(directory, error));
        directory.map_or(Ok(()), check)
    }

    /// Argument with which `quell results show` finds the file again: its ID if it is in the store, otherwise its path.
    #[must_use]
    pub fn argument_for(&self, file: &Path) -> String {
        let is_stored = file.parent() == Some(&self.directory);
        match file.file_name().and_then(|name| id_of(name.to_str()?)).filter(|_| is_stored) {
            Some(id) => id.to_owned(),
            None => {
                let path = file.to_string_lossy();
                if is_path(&path) { path.into_owned() } else { format!("./{path}") }
            }
        }
    }

    /// Stored results in the order of their IDs. An absent directory has none. Files whose name is no ID are left out.
    pub fn list(&self) -> Result<Vec<StoredResult>, ResultStoreError> {
        let failed = |source| ResultStoreError::NotListed { directory: self.directory.clone(), source };
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut stored = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            if let Some(id) = name.to_str().and_then(id_of) {
                stored.push(StoredResult { id: id.to_owned(), path: self.path_of(id) });
            }
        }
        stored.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(stored)
    }

    /// Finds the result with this ID, or the only one whose ID begins with it.
    pub fn find(&self, id: &str) -> Result<StoredResult, ResultStoreError> {
        let stored = self.list()?;
        if let Some(exact) = stored.iter().find(|one| one.id == id) {
            return Ok(exact.clone());
        }
        let matching: Vec<&StoredResult> =
            stored.iter().filter(|one| one.id.starts_with(id) && !id.is_empty()).collect();
        match matching[..] {
            [one] => Ok(one.clone()),
            [] => Err(ResultStoreError::Unknown {
                id: id.to_owned(),
                directory: self.directory.clone(),
                nearest: nearest(id, stored.iter().map(|one| &*one.id)).map(str::to_owned),
            }),
            _ => {
                let matches = matching.iter().map(|one| one.id.clone()).collect();
                Err(ResultStoreError::Ambiguous { id: id.to_owned(), matches })
            }
        }
    }

    fn path_of(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}{EXTENSION}"))
    }

    fn not_creatable(&self, directory: &Path, source: io::Error) -> ResultStoreError {
        ResultStoreError::NotCreatable { directory: directory.to_owned(), source }
    }
}

/// Whether an argument of `quell results show` is the path of a file, not an ID.
#[must_use]
pub fn is_path(argument: &str) -> bool {
    argument.contains('/') || argument.ends_with(EXTENSION) || argument.ends_with(LINES_EXTENSION)
}

/// ID of a file with this name. `None` if it is no name of a result: an ID can be pasted into a shell and printed.
fn id_of(name: &str) -> Option<&str> {
    let id = name.strip_suffix(EXTENSION)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (id.starts_with(|first: char| first.is_ascii_alphanumeric()) && id.bytes().all(is_plain)).then_some(id)
}

/// First second of the year 10000, which RFC 3339 cannot express.
const BEYOND_CALENDAR_UNIX_S: u64 = 253_402_300_800;

/// `2026-11-25T18:04:05Z`. `None` beyond the year 9999.
fn rfc3339(unix_s: u64) -> Option<String> {
    let time = (unix_s < BEYOND_CALENDAR_UNIX_S).then(|| UNIX_EPOCH + Duration::from_secs(unix_s))?;
    Some(humantime::format_rfc3339_seconds(time).to_string())
}

/// `20261125-180405`, in UTC.
fn compact_utc(unix_s: u64) -> String {
    let time = rfc3339(unix_s).unwrap_or_else(|| unix_s.to_string());
    time.trim_end_matches('Z').replace(['-', ':'], "").replace('T', "-")
}

/// `2026-11-25 18:04`, in UTC. `None` beyond the year 9999.
#[must_use]
pub fn utc(unix_s: u64) -> Option<String> {
    let time = rfc3339(unix_s)?;
    let (date, time_of_day) = time.split_once('T')?;
    Some(format!("{date} {}", time_of_day.get(..5)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn store_with(names: &[&str]) -> (tempfile::TempDir, ResultStore) {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(directory.path().join(name), "{}").unwrap();
        }
        let store = ResultStore::at(directory.path().to_owned());
        (directory, store)
    }

    #[test]
    fn an_absent_directory_has_no_results() {
        assert_eq!(ResultStore::at("/nonexistent/quell".into()).list().unwrap(), []);
    }

    #[test]
    fn a_result_is_found_by_its_id_or_a_unique_beginning() {
        let (_directory, store) = store_with(&["bench-1.json", "bench-12.json", "tune-7.json"]);
        let found = |id: &str| store.find(id).map(|stored| stored.id);
        assert_eq!(found("bench-1").unwrap(), "bench-1");
        assert_eq!(found("tu").unwrap(), "tune-7");
        let ResultStoreError::Ambiguous { matches, .. } = found("bench").unwrap_err() else { panic!() };
        assert_eq!(matches, ["bench-1", "bench-12"]);
    }

    #[test]
    fn an_unknown_id_is_refused_with_the_nearest() {
        let (_directory, store) = store_with(&["bench-20261125-180405.json", "tune-20261125-180405.json"]);
        let nearest = |id: &str| match store.find(id).unwrap_err() {
            ResultStoreError::Unknown { nearest, .. } => nearest,
            other => panic!("{other}"),
        };
        assert_eq!(nearest("bench-20261125-180504").as_deref(), Some("bench-20261125-180405"));
        assert_eq!((nearest("xyz"), nearest("")), (None, None));
    }

    #[test]
    fn names_that_a_shell_or_a_terminal_interprets_are_no_ids() {
        let names = ["ok.json", ".hidden.json", "-x.json", "$(id).json", "a b.json", "\u{1b}[2J.json", "notes.txt"];
        let (_directory, store) = store_with(&names);
        assert_eq!(store.list().unwrap().into_iter().map(|one| one.id).collect::<Vec<_>>(), ["ok"]);
    }

    #[test]
    fn a_pipe_in_the_directory_is_not_opened() {
        let (directory, store) = store_with(&[]);
        let made = Command::new("mkfifo").arg(directory.path().join("pipe.json")).status().unwrap();
        assert!(made.success());
        assert_eq!(store.find("pipe").unwrap().read().unwrap_err().reason(), "not a regular file");
    }

    #[test]
    fn results_of_the_same_second_have_different_files() {
        let (_directory, store) = store_with(&[]);
        let files: Vec<PathBuf> = (0..3)
            .map(|_| {
                let file = store.new_file(None, "bench").unwrap();
                file.write("{}").unwrap();
                file.path().to_owned()
            })
            .collect();
        assert_eq!(store.list().unwrap().len(), 3, "{files:?}");
    }

    #[test]
    fn the_argument_for_a_file_is_its_id_only_in_the_store() {
        let store = ResultStore::at("/results".into());
        let argument = |file: &str| store.argument_for(Path::new(file));
        assert_eq!(argument("/results/bench-1.json"), "bench-1");
        for path in ["/elsewhere/bench-1.json", "bench-1.json", "minute.jsonl", "/dev/null"] {
            assert_eq!((argument(path).as_str(), is_path(path)), (path, true));
        }
        assert!(is_path(&argument("result")));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0).as_deref(), Some("1970-01-01 00:00"));
        assert_eq!(utc(951_868_799).as_deref(), Some("2000-02-29 23:59"));
        assert_eq!(utc(4_107_542_400).as_deref(), Some("2100-03-01 00:00"));
        assert_eq!(utc(BEYOND_CALENDAR_UNIX_S - 1).as_deref(), Some("9999-12-31 23:59"));
        assert_eq!((utc(BEYOND_CALENDAR_UNIX_S), utc(u64::MAX)), (None, None));
        assert_eq!(compact_utc(1_795_629_845), "20261125-180405");
    }
}
