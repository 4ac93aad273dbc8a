//! Format of a journal: one record per line, each with its own checksum. Pure: no file access.
//!
//! A line consists of the CRC-32 (IEEE) of the JSON text as eight hexadecimal digits, a space, the JSON text, and a
//! newline. The checksum detects truncated or edited lines. It does not protect against malice.

use quell_linux::Pid;
use quell_linux::proc::{ProcError, ProcRoot, ProcessIdentity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::purpose::Purpose;
use crate::change::{Change, ChangeOutcome, UndoOutcome};

/// Raised whenever a name of a record or of a field changes.
pub const FORMAT: &str = "quell-journal/2";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// First line: the writer and its purpose.
    Begin(Begin),
    /// Written durably before the change is made.
    Intend {
        /// Sequence number of the change in this journal, from 0 without gaps.
        seq: u32,
        change: Change,
    },
    /// Written after the change was made.
    Done { seq: u32, outcome: ChangeOutcome },
    /// Written after the change was undone.
    Undone { seq: u32, undoing: UndoOutcome },
    /// A process that the changes are for; written before the first change for it.
    Target(TargetProgram),
    /// Stalls of the queues do not end the changes.
    AcceptStalls,
    /// The changes persist as long as this process runs; it undoes them on SIGTERM.
    MaintainedBy(Keeper),
    /// Like [`Record::MaintainedBy`], by a process that sets the values again when a driver recreates its queues.
    MaintainedByFollower(Keeper),
    /// All changes are made and persist after the writer exits, until they are reverted on request.
    Persist,
    /// All changes are made, but persist only if the user confirms them. A [`Record::Persist`] follows the confirmation.
    PersistIfConfirmed(Watchdog),
    /// Persistent changes are to be undone. From now on, any process that finds the journal undoes it.
    Release,
}

/// The process that undoes unconfirmed changes at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Watchdog {
    pub pid: Pid,
    /// Start time, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// Deadline for the confirmation, in wall-clock seconds since 1970. For display only; the watchdog uses a monotonic
    /// clock.
    pub deadline_unix_s: u64,
}

/// A process that maintains changes. It undoes them on SIGTERM, or when they are no longer needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Keeper {
    pub pid: Pid,
    pub start_time_ticks: u64,
}

impl Keeper {
    pub fn this_process(proc: &ProcRoot) -> Result<Self, ProcError> {
        let identity = ProcessIdentity::of(proc, Pid::of_this_process())?;
        Ok(Self { pid: identity.pid, start_time_ticks: identity.starttime.0 })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TargetProgram {
    pub pid: Pid,
    pub start_time_ticks: u64,
    /// Name of its main thread, for display.
    pub name: String,
}

impl TargetProgram {
    /// Whether both are the same process. Ignores the name, because `exec` and `prctl` change it.
    #[must_use]
    pub fn is_same_process(&self, other: &Self) -> bool {
        (self.pid, self.start_time_ticks) == (other.pid, other.start_time_ticks)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Begin {
    pub format: String,
    pub version: String,
    /// `/proc/sys/kernel/random/boot_id`. After a reboot no kernel object is left to undo.
    pub boot_id: String,
    /// Process that began the journal. It undoes its changes on SIGTERM, and when it is done.
    pub owner: Keeper,
    /// Wall-clock seconds since 1970, for display.
    pub started_unix_s: u64,
    pub purpose: Purpose,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error("it does not start with a checksum (eight hexadecimal digits and a space)")]
    NoChecksum,
    #[error("checksum mismatch: computed {found:08x}, recorded {written:08x} (truncated or edited)")]
    Checksum { found: u32, written: u32 },
    #[error("not supported by this version: {0}")]
    Unknown(String),
}

impl Record {
    #[must_use]
    pub fn to_line(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_else(|error| unreachable!("records are plain data: {error}"));
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    }

    pub fn from_line(line: &str) -> Result<Self, LineError> {
        serde_json::from_str(json_of(line)?).map_err(|error| LineError::Unknown(error.to_string()))
    }

    /// The format that the first line of a journal states, also one with fields that this version does not know.
    pub fn format_of(line: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct AnyBegin {
            format: String,
        }
        serde_json::from_str(json_of(line).ok()?).ok().map(|AnyBegin { format }| format)
    }
}

/// The JSON text of a line whose checksum holds.
fn json_of(line: &str) -> Result<&str, LineError> {
    let (checksum, json) = line.split_once(' ').ok_or(LineError::NoChecksum)?;
    if checksum.len() != 8 || !checksum.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(LineError::NoChecksum);
    }
    let written = u32::from_str_radix(checksum, 16).map_err(|_| LineError::NoChecksum)?;
    let found = crc32fast::hash(json.as_bytes());
    match found == written {
        true => Ok(json),
        false => Err(LineError::Checksum { found, written }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{CreatedNamespace, StartedProcess};
    use proptest::prelude::*;
    use quell_linux::executable::FileId;

    fn begin(purpose: Purpose) -> Begin {
        Begin {
            format: FORMAT.to_owned(),
            version: "0.1.0".to_owned(),
            boot_id: "b".to_owned(),
            owner: Keeper { pid: Pid::new(7).unwrap(), start_time_ticks: 8 },
            started_unix_s: 9,
            purpose,
        }
    }

    fn process() -> Record {
        Record::Done {
            seq: 3,
            outcome: ChangeOutcome::Process {
                pid: Pid::new(77).unwrap(),
                start_time_ticks: 1234,
                executable: Some(FileId { device: 1, inode: 2 }),
            },
        }
    }

    #[test]
    fn a_written_record_is_read_back_unchanged() {
        let records = [
            process(),
            Record::Intend { seq: 0, change: Change::NetworkNamespace(CreatedNamespace { name: "quell-1".into() }) },
            Record::Intend {
                seq: 1,
                change: Change::Process(StartedProcess { command: vec!["a b".into(), "\n\"".into()] }),
            },
            Record::Undone { seq: 9, undoing: UndoOutcome::Partial("somebody's".into()) },
            Record::Target(TargetProgram { pid: Pid::new(5).unwrap(), start_time_ticks: 6, name: "mem cached".into() }),
            Record::MaintainedBy(Keeper { pid: Pid::new(7).unwrap(), start_time_ticks: 8 }),
            Record::MaintainedByFollower(Keeper { pid: Pid::new(7).unwrap(), start_time_ticks: 8 }),
        ];
        let mode = "suspend20,defer-hard-irqs=10".parse().unwrap();
        let purposes = [
            Purpose::Profile { name: "a in namespace b".into(), netns: None, content: 0 },
            Purpose::Profile { name: "a".into(), netns: Some("b".into()), content: 7 },
            Purpose::Attachment { mode },
            Purpose::Launch { mode },
            Purpose::Search,
            Purpose::Command { role: "load".into() },
        ];
        let records = records.into_iter().chain(purposes.map(|purpose| Record::Begin(begin(purpose))));
        for record in records {
            let line = record.to_line();
            assert_eq!(line.matches('\n').count(), 1, "one record, one line");
            assert_eq!(Record::from_line(line.trim_end_matches('\n')), Ok(record));
        }
    }

    #[test]
    fn a_record_of_a_later_version_is_distinguished_from_a_damaged_one() {
        let json = r#"{"record":"teleported","seq":1}"#;
        let line = format!("{:08x} {json}", crc32fast::hash(json.as_bytes()));
        assert!(matches!(Record::from_line(&line), Err(LineError::Unknown(_))));
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in ".{0,200}") {
            let _ = Record::from_line(&text);
        }

        #[test]
        fn every_truncated_line_is_detected(cut in 0usize..80) {
            let line = process().to_line();
            let line = line.trim_end_matches('\n');
            let cut = cut.min(line.len() - 1);
            prop_assert!(Record::from_line(&line[..cut]).is_err());
        }

        #[test]
        fn every_changed_byte_is_detected(at in 0usize..80, byte in 0x20u8..0x7f) {
            let mut line = process().to_line().trim_end_matches('\n').as_bytes().to_vec();
            let at = at.min(line.len() - 1);
            prop_assume!(!line[at].eq_ignore_ascii_case(&byte));
            line[at] = byte;
            prop_assert!(Record::from_line(std::str::from_utf8(&line).unwrap()).is_err());
        }
    }
}
