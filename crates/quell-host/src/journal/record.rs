//! Format of a journal: one record per line, each with its own checksum. Pure: no file access.
//!
//! A line consists of the CRC-32 (IEEE) of the JSON text as eight hexadecimal digits, a space, the JSON text, and a
//! newline. The checksum detects truncated or edited lines. It does not protect against malice.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use quell_linux::ethtool::RssContextId;
use quell_linux::executable::FileId;
use quell_linux::io_uring_polling::RingPolling;
use quell_linux::proc::{ProcError, ProcRoot, ProcessIdentity};
use quell_linux::reuseport::ClassicInstruction;
use quell_linux::visible::counted;
use quell_linux::{CpuList, Ifindex, Pid};
use quell_mode::{EpollParams, NapiAttribute, PartialNapiSettings};

use super::purpose::Purpose;
use crate::devices::DeviceKey;
use crate::ownership::Claim;
use crate::plan;
use crate::settings::values::{SocketPolling, SocketValues};
use crate::snapshot::Protocol;

/// Format of the journals.
pub const FORMAT: &str = "quell-journal/1";

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// First line: the writer and its purpose.
    Begin(Begin),
    /// Written durably before the change is made.
    Intend {
        /// Sequence number of the change in this journal, from 0 without gaps.
        seq: u32,
        /// Intended change.
        change: RecordedChange,
    },
    /// Written after the change was made.
    Done {
        /// Sequence number of the change.
        seq: u32,
        /// Facts that are known only after the change.
        outcome: ChangeOutcome,
    },
    /// Written after the change was undone.
    Undone {
        /// Sequence number of the change.
        seq: u32,
        /// A process for which changes are made; written before the first change for it.
        undoing: UndoOutcome,
    },
    /// A process that the changes are for; written before the first change for it.
    Target(TargetProgram),
    /// Stalls of the queues do not end the changes.
    AcceptStalls,
    /// The changes persist as long as this process runs; it undoes them on SIGTERM.
    KeptBy(Keeper),
    /// All changes are made and persist after the writer exits, until they are reverted on request.
    Keep,
    /// All changes are made, but persist only if the user confirms them. A [`Record::Keep`] follows the confirmation.
    KeepIfConfirmed(Watchdog),
    /// Persistent changes are to be undone. From now on, any process that finds the journal undoes it.
    Release,
}

/// The process that undoes unconfirmed changes at a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Watchdog {
    /// Process ID.
    pub pid: u32,
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
    /// Process ID.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_time_ticks: u64,
}

impl Keeper {
    /// Identity of this process.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn this_process(proc: &ProcRoot) -> Result<Self, ProcError> {
        let identity = ProcessIdentity::of(proc, Pid::of_this_process())?;
        Ok(Self { pid: identity.pid.get().unsigned_abs(), start_time_ticks: identity.starttime.0 })
    }
}

/// A program for which changes are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TargetProgram {
    /// Process ID.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
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

/// The writer of a journal, and its purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Begin {
    /// [`FORMAT`] of the writer.
    pub format: String,
    /// Version of Quell that wrote the journal.
    pub version: String,
    /// `/proc/sys/kernel/random/boot_id`. After a reboot no kernel object is left to undo.
    pub boot_id: String,
    /// Process that began the journal. It undoes its changes on SIGTERM, and when it is done.
    pub owner: Keeper,
    /// Wall-clock seconds since 1970, for display.
    pub began_unix_s: u64,
    /// What the changes are for.
    pub purpose: Purpose,
}

/// A change of the host, with everything needed to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RecordedChange {
    /// A network namespace with a name in `/run/netns`. Undone by killing every process in it and removing the name;
    /// the kernel frees the namespace with its last user.
    NetworkNamespace {
        /// Name as shown by `ip netns`.
        name: String,
    },
    /// A veth pair. Undone by deleting the named end; the kernel deletes its peer too.
    VethPair {
        /// Namespace of the named end.
        namespace: String,
        /// Name of that end.
        link: String,
    },
    /// A process in its own session. Undone by killing every process of the session.
    Process {
        /// Command and arguments.
        command: Vec<String>,
    },
    /// Settings of a NAPI instance. An undo restores only values that are unchanged since; it frees the queue before
    /// and after.
    NapiSettings(NapiSettingsChange),
    /// Busy-poll parameters of an epoll. An undo restores them only if they are unchanged since; it frees the epoll's
    /// queues before and after.
    EpollParameters(EpollParameters),
    /// Busy-poll parameters that the preload library sets on each epoll of a program. An undo covers all epolls that
    /// the program and its descendants have at that time, as for [`Self::EpollParameters`].
    LaunchedEpolls(LaunchedEpolls),
    /// Filter of a reuseport group. Undone by detaching it through one of the original sockets of the group, if any is
    /// still open.
    ReuseportFilter(ReuseportFilter),
    /// Busy polling of a process's sockets. Undone on the sockets that still have the new setting, and on their
    /// accepted connections.
    SocketsPolling(SocketsPolling),
    /// Busy polling of an io_uring that did not busy poll before. Undone if the ring still has the new setting.
    RingPolling(RingPollingChange),
    /// CPU affinity of a thread. Undone if it is unchanged since.
    ThreadAffinity(ThreadAffinity),
    /// A host setting from a plan. An undo restores the parts that are unchanged since.
    HostSetting(HostSetting),
}

/// A planned change, with its namespace and device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostSetting {
    /// `SO_NETNS_COOKIE` of the namespace.
    pub namespace_cookie: u64,
    /// Inode of the device's sysfs directory, which identifies the device after it was renamed or moved to another
    /// namespace. Absent if it could not be read, and for settings without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysfs_inode: Option<u64>,
    /// The setting, with its old and new value.
    pub setting: plan::PlannedChange,
}

/// A change of the settings of one NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiSettingsChange {
    /// `SO_NETNS_COOKIE` of the device's namespace.
    pub namespace_cookie: u64,
    /// Device name.
    pub device: String,
    /// Interface index in that namespace.
    pub ifindex: Ifindex,
    /// Inode of the device's sysfs directory, which identifies the device after it was renamed or moved to another
    /// namespace. Absent if it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysfs_inode: Option<u64>,
    /// NAPI ID. The kernel reuses an ID only after it has used all 2³² IDs.
    pub napi_id: u32,
    /// Index, from 0, among the device's instances ordered by ID. Identifies the successor of the instance if
    /// `rx_queue` is absent.
    pub place: u32,
    /// Receive queue of the instance. The instance that polls this queue later is its successor. Absent if the kernel
    /// does not report it and it cannot be inferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_queue: Option<u32>,
    /// Values before the change of the time `since_boot_ns`; absent if the kernel reported none.
    pub old: PartialNapiSettings,
    /// Values to set.
    pub new: PartialNapiSettings,
    /// Further values of the same fields, which an experiment sets later without another record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<PartialNapiSettings>,
    /// Time of setting in nanoseconds since boot, unique among the changes of one queue. The value of the latest change
    /// is in effect.
    pub set_at_boot_ns: u64,
    /// For each attribute, the time of the first change since another program has written it.
    pub since_boot_ns: BTreeMap<NapiAttribute, u64>,
    /// What the plan of a profile does to the queue; absent for changes without such a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_plan: Option<QueueInPlan>,
}

/// What a plan does to a queue, apart from its settings. Undoing the plan reverses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueInPlan {
    /// The queue stays.
    Stays,
    /// An earlier change recreates it, so that the driver resets its settings.
    IsRecreated,
    /// An earlier change creates it.
    IsCreated,
    /// An earlier change removes it.
    IsRemoved,
}

/// A change of the busy-poll parameters of one epoll.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EpollParameters {
    /// Process that owns the epoll.
    pub pid: u32,
    /// Start time of that process, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// File descriptor in that process. Descriptors are reused, so undo checks the parameters too: no program sets
    /// these exact values by chance.
    pub fd: i32,
    /// Parameters before the change of the time `since_boot_ns`.
    pub old: EpollParams,
    /// Parameters to set.
    pub new: EpollParams,
    /// Further parameters, which an experiment sets later without another record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<EpollParams>,
    /// Time of setting in nanoseconds since boot, unique among the changes of one epoll.
    pub set_at_boot_ns: u64,
    /// Time of the first change since another program has written the parameters.
    pub since_boot_ns: u64,
}

/// A descriptor of a process that is or was an epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpollPlace {
    pub(crate) pid: u32,
    pub(crate) start_time_ticks: u64,
    pub(crate) fd: i32,
}

/// All epolls of a launched program, including future ones. The kernel creates epolls without busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LaunchedEpolls {
    /// Process ID of the program.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// Parameters for each epoll.
    pub new: EpollParams,
}

/// A filter that selects the socket of a reuseport group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReuseportFilter {
    /// `SO_NETNS_COOKIE` of the sockets' namespace.
    pub namespace_cookie: u64,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Local address and port.
    pub local: SocketAddr,
    /// Socket inodes. Sockets that joined the group later have the filter too.
    pub sockets: Vec<u64>,
    /// Filter of the server to attach again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedFilter>,
}

/// A filter of the server that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplacedFilter {
    /// Classic BPF.
    Classic(Vec<ClassicInstruction>),
    /// An eBPF program.
    Pinned {
        /// ID of the program.
        id: u32,
        /// File of the BPF file system that keeps it loaded.
        path: PathBuf,
    },
}

/// A change of busy polling of sockets of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketsPolling {
    /// Process that owned the sockets, for display.
    pub pid: u32,
    /// New setting.
    pub new: SocketPolling,
    /// The sockets, grouped by previous setting.
    pub sockets: Vec<SocketsAlike>,
}

/// Sockets with the same previous setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketsAlike {
    /// Whether these are listening sockets, whose connections inherit the setting.
    pub listens: bool,
    /// Previous setting.
    pub old: SocketValues,
    /// Socket inodes.
    pub inodes: Vec<u64>,
}

/// A change of busy polling of an io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RingPollingChange {
    /// Process that owns the ring.
    pub pid: u32,
    /// Start time of that process, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// File descriptor in that process. Descriptors are reused, so undo checks the setting of the ring too.
    pub fd: i32,
    /// New setting.
    pub new: RingPolling,
}

/// A change of a thread's CPU affinity. Threads that it starts inherit the affinity and are not restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ThreadAffinity {
    /// Process ID.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// Start time of the thread, in clock ticks since boot.
    pub thread_start_time_ticks: u64,
    /// Previous affinity.
    pub old: CpuList,
    /// New affinity.
    pub new: CpuList,
}

/// Outcome of undoing a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "undoing", content = "why", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UndoOutcome {
    /// The change was in place and was undone.
    Undone,
    /// Nothing was left to undo.
    AlreadyGone,
    /// A part was undone; the text gives the reason for the rest.
    InPart(String),
    /// Nothing was undone, because another program has changed the value since; the text gives the details.
    LeftAlone(String),
    /// Nothing was undone, because a newer owner has set the value; the text names it.
    Kept(String),
    /// The queue has no NAPI instance at present and may return with the new value. The change remains to be undone.
    Waits(String),
}

/// Facts that are known only after a change was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ChangeOutcome {
    /// No additional facts.
    Made,
    /// A namespace, with its unique number.
    NetworkNamespace {
        /// `SO_NETNS_COOKIE`; unique within one boot.
        cookie: u64,
    },
    /// A process. Its ID and start time together are unique within one boot.
    Process {
        /// Process ID, which is also its session ID.
        pid: u32,
        /// Start time, in clock ticks since boot (`/proc/PID/stat`, field 22).
        start_time_ticks: u64,
        /// Its executable file. Without this value the process is not killed. Absent if it could not be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        executable: Option<FileId>,
    },
    /// An RSS context, with the ID assigned by the driver.
    RssContext {
        /// Context ID.
        id: RssContextId,
    },
    /// A flow rule, with the location assigned by the driver.
    FlowRule {
        /// Rule location.
        location: u32,
    },
}

/// Prints the object and the new value on one line.
impl fmt::Display for RecordedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkNamespace { name } => write!(f, "network namespace {name}"),
            Self::VethPair { namespace, link } => write!(f, "veth pair {link} in {namespace}"),
            Self::Process { command } => write!(f, "process {}", command.join(" ")),
            Self::NapiSettings(change) => write!(f, "NAPI {} of {}: {}", change.napi_id, change.device, change.new),
            Self::HostSetting(change) => change.setting.text().fmt(f),
            Self::ReuseportFilter(change) => write!(f, "steering of connections to {}", change.local),
            Self::SocketsPolling(change) => {
                let sockets: usize = change.sockets.iter().map(|alike| alike.inodes.len()).sum();
                write!(f, "{} of process {}: {}", counted(sockets, "socket"), change.pid, change.new.values)
            }
            Self::RingPolling(change) => {
                write!(f, "io_uring {} of process {}: busy poll {} µs", change.fd, change.pid, change.new.busy_poll_us)
            }
            Self::ThreadAffinity(change) => {
                write!(f, "thread {} of process {}: CPUs {}", change.tid, change.pid, change.new)
            }
            Self::LaunchedEpolls(change) => {
                write!(f, "epolls of the launched process {}: {}", change.pid, change.new)
            }
            Self::EpollParameters(change) => {
                write!(f, "epoll {} of process {}: {}", change.fd, change.pid, change.new)
            }
        }
    }
}

impl NapiSettingsChange {
    /// Whether both concern the same queue: same NAPI instance, or same device and queue with a newer instance.
    pub(crate) fn is_of_the_queue_of(&self, other: &Self) -> bool {
        let queue = |change: &Self| change.rx_queue.map_or((None, Some(change.place)), |queue| (Some(queue), None));
        let same_device = self.sysfs_inode.is_some() && self.sysfs_inode == other.sysfs_inode;
        self.napi_id == other.napi_id || (same_device && queue(self) == queue(other))
    }

    /// Claim on one attribute; `None` if the change does not concern it.
    pub(crate) fn claim(&self, attribute: NapiAttribute, made: bool) -> Option<Claim<u64>> {
        let since = *self.since_boot_ns.get(&attribute)?;
        let values = std::iter::once(&self.new).chain(&self.alternatives).filter_map(|values| values.get(attribute));
        let (at, before) = (self.set_at_boot_ns, self.old.get(attribute));
        Some(Claim { at, since, before, values: values.collect(), made })
    }

    pub(crate) fn device_key(&self) -> DeviceKey {
        let Self { namespace_cookie, ifindex, sysfs_inode, .. } = *self;
        DeviceKey { namespace_cookie, ifindex, sysfs_inode }
    }
}

impl EpollParameters {
    /// Records a claim on the epoll at `place`.
    pub(crate) fn new(place: EpollPlace, claim: Claim<EpollParams>) -> Self {
        let EpollPlace { pid, start_time_ticks, fd } = place;
        let Claim { at, since, before, values, .. } = claim;
        let old = before.unwrap_or_default();
        let new = values.first().copied().unwrap_or(old);
        let alternatives = values.get(1..).unwrap_or_default().to_vec();
        Self { pid, start_time_ticks, fd, old, new, alternatives, set_at_boot_ns: at, since_boot_ns: since }
    }

    pub(crate) fn place(&self) -> EpollPlace {
        EpollPlace { pid: self.pid, start_time_ticks: self.start_time_ticks, fd: self.fd }
    }

    pub(crate) fn claim(&self, made: bool) -> Claim<EpollParams> {
        let values = std::iter::once(self.new).chain(self.alternatives.iter().copied()).collect();
        Claim { at: self.set_at_boot_ns, since: self.since_boot_ns, before: Some(self.old), values, made }
    }
}

impl HostSetting {
    /// `None` for settings without a device.
    pub(crate) fn device_key(&self) -> Option<DeviceKey> {
        let device = self.setting.device()?;
        let Self { namespace_cookie, sysfs_inode, .. } = *self;
        Some(DeviceKey { namespace_cookie, ifindex: device.ifindex, sysfs_inode })
    }
}

/// Reason why a line of a journal is not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line does not start with eight hexadecimal digits and a space.
    #[error("it does not start with a checksum (eight hexadecimal digits and a space)")]
    NoChecksum,
    /// The checksum does not match the text.
    #[error("checksum mismatch: computed {found:08x}, recorded {written:08x} (truncated or edited)")]
    Checksum {
        /// Checksum of the text.
        found: u32,
        /// Checksum in the line.
        written: u32,
    },
    /// The text is intact, but this version does not know its contents.
    #[error("not supported by this version: {0}")]
    Unknown(String),
}

impl Record {
    /// Formats the record as a line with its newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_else(|error| unreachable!("records are plain data: {error}"));
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    }

    /// Parses a line without its newline.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn from_line(line: &str) -> Result<Self, LineError> {
        let (checksum, json) = line.split_once(' ').ok_or(LineError::NoChecksum)?;
        if checksum.len() != 8 || !checksum.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(LineError::NoChecksum);
        }
        let written = u32::from_str_radix(checksum, 16).map_err(|_| LineError::NoChecksum)?;
        let found = crc32fast::hash(json.as_bytes());
        if found != written {
            return Err(LineError::Checksum { found, written });
        }
        serde_json::from_str(json).map_err(|error| LineError::Unknown(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn begin(purpose: Purpose) -> Begin {
        Begin {
            format: FORMAT.to_owned(),
            version: "0.1.0".to_owned(),
            boot_id: "b".to_owned(),
            owner: Keeper { pid: 7, start_time_ticks: 8 },
            began_unix_s: 9,
            purpose,
        }
    }

    fn process() -> Record {
        Record::Done {
            seq: 3,
            outcome: ChangeOutcome::Process {
                pid: 77,
                start_time_ticks: 1234,
                executable: Some(FileId { device: 1, inode: 2 }),
            },
        }
    }

    #[test]
    fn a_written_record_is_read_back_unchanged() {
        let records = [
            process(),
            Record::Intend { seq: 0, change: RecordedChange::NetworkNamespace { name: "quell-1".into() } },
            Record::Intend { seq: 1, change: RecordedChange::Process { command: vec!["a b".into(), "\n\"".into()] } },
            Record::Undone { seq: 9, undoing: UndoOutcome::InPart("somebody's".into()) },
            Record::Target(TargetProgram { pid: 5, start_time_ticks: 6, name: "mem cached".into() }),
            Record::KeptBy(Keeper { pid: 7, start_time_ticks: 8 }),
        ];
        let mode = "suspend20,defer-hard-irqs=10".parse().unwrap();
        let purposes = [
            Purpose::Profile { name: "a in namespace b".into(), netns: None, content: None },
            Purpose::Profile { name: "a".into(), netns: Some("b".into()), content: Some(7) },
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
