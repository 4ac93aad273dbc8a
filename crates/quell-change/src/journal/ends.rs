//! The last ends of applied modes and profiles, with time and cause. One file beside the journals, for `quell status`. It
//! decides nothing, so errors of writing it are ignored.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use quell_linux::clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::history::History;
use super::purpose::Purpose;
use super::record::TargetProgram;
use super::store::{Journal, create_locked};
use super::trust;

/// Its name has the form of files of journals, so that the directory can be closed to others.
const NAME: &str = "ends.journal-history";
const TEMPORARY_NAME: &str = "ends.journal-history-new";
const ENDS_MAX: usize = 20;
const PROGRAMS_MAX: usize = 4;
const BYTES_MAX: usize = 64 << 10;

/// End of an applied mode or profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EndRecord {
    pub purpose: Purpose,
    /// The first of its programs.
    pub programs: Vec<TargetProgram>,
    pub ended_unix_s: u64,
    /// Who ended it, and why.
    pub by: String,
}

impl EndRecord {
    /// The end, now, of what a journal has applied. `None` for labs and experiments.
    #[must_use]
    pub fn of(history: &History, by: &str) -> Option<Self> {
        let purpose = history.begin.purpose.clone();
        matches!(purpose, Purpose::Profile { .. } | Purpose::Attachment { .. } | Purpose::Launch { .. }).then(|| Self {
            purpose,
            programs: history.targets.iter().take(PROGRAMS_MAX).cloned().collect(),
            ended_unix_s: clock::realtime_ns() / 1_000_000_000,
            by: by.to_owned(),
        })
    }

    /// Whether the keeper or the poller ended it without being asked, while its programs ran.
    #[must_use]
    pub fn is_unasked(&self) -> bool {
        self.by.starts_with("its ") && !self.by.ends_with(": the programs exited")
    }
}

impl Journal {
    /// The last ends, the newest one last. Empty if they cannot be read, or if others may have written them.
    #[must_use]
    pub fn ends(&self) -> Vec<EndRecord> {
        read(self.dir())
    }

    /// Adds an end, and forgets the oldest ones.
    pub fn add_end(&self, end: EndRecord) {
        let mut lines: Vec<String> =
            read(self.dir()).iter().chain([&end]).filter_map(|end| serde_json::to_string(end).ok()).collect();
        while lines.len() > ENDS_MAX
            || (lines.len() > 1 && lines.iter().map(|line| line.len() + 1).sum::<usize>() > BYTES_MAX)
        {
            lines.remove(0);
        }
        let _ = write(self.dir(), &(lines.join("\n") + "\n"));
    }
}

/// Adds the end of the journal at `path`. See [`EndRecord::of`].
pub(crate) fn add(path: &Path, history: &History, by: &str) {
    if let (Some(dir), Some(end)) = (path.parent(), EndRecord::of(history, by)) {
        Journal::in_dir(dir).add_end(end);
    }
}

fn write(dir: &Path, text: &str) -> io::Result<()> {
    let temporary = dir.join(TEMPORARY_NAME);
    // Of a process that was killed.
    let _ = fs::remove_file(&temporary);
    let mut file = create_locked(&temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&temporary, dir.join(NAME))
}

fn read(dir: &Path) -> Vec<EndRecord> {
    let path = dir.join(NAME);
    let is_trusted = |metadata: &fs::Metadata| metadata.is_file() && trust::check(metadata).is_ok();
    if !fs::symlink_metadata(&path).is_ok_and(|metadata| is_trusted(&metadata)) {
        return Vec::new();
    }
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(BYTES_MAX as u64 + 1).read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn an_end_is_unasked_unless_a_user_or_the_exit_of_the_programs_caused_it() {
        let is_unasked = |by: &str| EndRecord { by: by.to_owned(), ..end("one", 7) }.is_unasked();
        assert!(is_unasked("its keeper: its queues stalled") && is_unasked("its poller: its keeper was killed"));
        assert!(!is_unasked("its keeper: the programs exited") && !is_unasked("`quell revert`"));
    }

    fn end(name: &str, ended_unix_s: u64) -> EndRecord {
        let purpose = Purpose::Profile { name: name.to_owned(), netns: None, content: 7 };
        EndRecord { purpose, programs: Vec::new(), ended_unix_s, by: "`quell revert`".to_owned() }
    }

    #[test]
    fn the_last_ends_are_kept_in_order_and_their_file_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        assert_eq!(journal.ends(), []);
        for number in 0..30 {
            journal.add_end(end("web", number));
        }
        let times: Vec<u64> = journal.ends().iter().map(|end| end.ended_unix_s).collect();
        assert_eq!(times, (10..30).collect::<Vec<_>>());
        for number in 30..40 {
            journal.add_end(end(&"x".repeat(BYTES_MAX / 3), number));
        }
        assert!(fs::metadata(dir.path().join(NAME)).unwrap().len() <= BYTES_MAX as u64);
        assert_eq!(journal.ends().last().unwrap().ended_unix_s, 39);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_hostile_name_stays_within_its_record() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let hostile = end("a\n{}\u{1b}[2J", 1);
        journal.add_end(hostile.clone());
        journal.add_end(end("b", 2));
        assert_eq!(journal.ends(), [hostile, end("b", 2)]);
    }

    #[test]
    fn a_file_that_others_can_write_or_a_link_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        journal.add_end(end("a", 1));
        let file = dir.path().join(NAME);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(journal.ends(), []);
        fs::rename(&file, dir.path().join("elsewhere")).unwrap();
        symlink(dir.path().join("elsewhere"), &file).unwrap();
        assert_eq!(journal.ends(), []);
    }

    #[test]
    fn damaged_lines_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        journal.add_end(end("a", 1));
        let mut text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        text.push_str("{\n\u{0}\n");
        fs::write(dir.path().join(NAME), text).unwrap();
        assert_eq!(journal.ends(), [end("a", 1)]);
    }
}
