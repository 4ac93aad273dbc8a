//! What a journal says: one record a line, each with a checksum of its own. Pure: nothing here reads or writes a file.
//!
//! A line is the CRC-32 (IEEE) of the JSON text as eight hexadecimal digits, a space, the JSON text, a newline. The
//! checksum tells a line that was cut off or edited from one that is whole; it is no protection against malice.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use quell_linux::ethtool::RssContextId;
use quell_linux::executable::FileId;
use quell_linux::io_uring_polling::RingPolling;
use quell_linux::{CpuList, Ifindex};

use crate::devices::DeviceKey;
use crate::picture::Protocol;
use crate::plan;
use crate::settings::values::{EpollValues, NapiValues, SocketPolling, SocketValues};

/// The format of the journals that this version writes.
pub const FORMAT: &str = "quell-journal/5";
/// The formats that this version reads. Format 4 lacks `set-at-boot-ns`, `ifindex`, `sysfs-inode` and `rx-queue` of
/// settings, and `executable` of processes.
pub const READABLE_FORMATS: [&str; 2] = ["quell-journal/4", FORMAT];

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// The first line: who changes the host, and why.
    Begin(Begin),
    /// Written, durably, before the change is made.
    Intend {
        /// The change's number within this journal, counted from 0 without gaps.
        seq: u32,
        /// What is about to be done.
        change: Change,
    },
    /// Written after the change was made.
    Done {
        /// The number of the change that was made.
        seq: u32,
        /// What is known only since it was made.
        outcome: Outcome,
    },
    /// Written after the change was undone.
    Undone {
        /// The number of the change that was undone.
        seq: u32,
        /// What was found when it was.
        undoing: Undoing,
    },
    /// A process for whose sake changes are made, written before the first of them.
    Target(Target),
    /// Written when what is changed is to stay as long as this process lives, which undoes it when it is told to.
    KeptBy(Keeper),
    /// Written when everything was made and is to stay when the writer ends, until somebody asks for it to be undone.
    Keep,
    /// Written when everything was made and is to stay only if somebody confirms it: a [`Record::Keep`] follows then.
    KeepIfConfirmed(Watchdog),
    /// Written when what was kept is to be undone: from here on it is to be undone by whoever finds it.
    Release,
}

/// The process that undoes what nobody confirms in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Watchdog {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// When it undoes everything, in wall-clock seconds since 1970, for people: it goes by a clock that nobody sets.
    pub deadline_unix_s: u64,
}

/// A process that keeps changes in place, and undoes them when it is told to end or when they are no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Keeper {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time_ticks: u64,
}

/// A program for whose sake the host is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Target {
    /// Its id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The name of its main thread, for people.
    pub name: String,
}

impl Target {
    /// Whether both are one process. Its name is the program's to change, by `exec` and `prctl`.
    #[must_use]
    pub fn is_same_process(&self, other: &Self) -> bool {
        (self.pid, self.start_time_ticks) == (other.pid, other.start_time_ticks)
    }
}

/// Who began a journal, where, and what for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Begin {
    /// [`FORMAT`] of the writer.
    pub format: String,
    /// The writer's version of Quell.
    pub version: String,
    /// `/proc/sys/kernel/random/boot_id`: after a reboot nothing that lived in the kernel is left to be undone.
    pub boot_id: String,
    /// The process that began the journal.
    pub pid: u32,
    /// Wall-clock seconds since 1970, for people.
    pub began_unix_s: u64,
    /// What the changes are for, in a few words: `lab`.
    pub purpose: String,
}

/// A change to the host, described well enough to be undone by somebody who knows nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// A network namespace with a name in `/run/netns`. Undone by ending every process that lives in it and taking the
    /// name away; the kernel frees the namespace with its last user.
    NetworkNamespace {
        /// The name as `ip netns` shows it.
        name: String,
    },
    /// A veth pair. Undone by deleting the end named here; the kernel deletes the other with it.
    VethPair {
        /// The name of the namespace that holds the end named next.
        namespace: String,
        /// The name of that end.
        link: String,
    },
    /// A process in a session of its own. Undone by ending every process of that session.
    Process {
        /// The command and its arguments.
        command: Vec<String>,
    },
    /// Settings of a NAPI instance. Undone by setting back what still has the new value, with its queue freed before
    /// and after.
    NapiSettings(NapiSettings),
    /// Busy-poll parameters of an epoll of a process. Undone by setting them back if they are still the new ones, with
    /// its queues freed before and after.
    EpollParameters(EpollParameters),
    /// Busy-poll parameters that a program's preload library gives each of its epolls. Undone from outside, for the epolls
    /// that the program and its descendants have then, as [`Self::EpollParameters`] is.
    LaunchedEpolls(LaunchedEpolls),
    /// The filter of a reuseport group. Undone by taking it off while a socket of the group as it was then is there.
    ReuseportFilter(ReuseportFilter),
    /// Busy polling of sockets of a process. Undone by setting those back that still poll so, and what they accepted.
    SocketsPolling(SocketsPolling),
    /// An io_uring of a process that is told to busy poll, which it did not. Undone if it still polls as it was told.
    RingPolling(RingPollingChange),
    /// The CPUs of a thread of a process. Undone by putting them back if they are still those that it was bound to.
    ThreadAffinity(ThreadAffinity),
    /// A setting of the host that a plan changed. Undone by setting it back as far as it is still what was set.
    HostSetting(HostSetting),
}

/// A change of a plan, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostSetting {
    /// `SO_NETNS_COOKIE` of the namespace.
    pub namespace_cookie: u64,
    /// The inode of the device's directory in sysfs, by which the device is found again under another name or in another
    /// namespace; absent where it could not be read, and for what is not of a
    /// device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysfs_inode: Option<u64>,
    /// What is set there, from what to what.
    pub setting: plan::Change,
}

/// A change of settings of one NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiSettings {
    /// `SO_NETNS_COOKIE` of the device's namespace.
    pub namespace_cookie: u64,
    /// The device's name.
    pub device: String,
    /// The device's number in that namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<Ifindex>,
    /// The inode of the device's directory in sysfs, by which the device is found again under another name or in another
    /// namespace; absent where it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysfs_inode: Option<u64>,
    /// The instance's id, which no other has until all ids, 2³² of them, have been given out.
    pub napi_id: u32,
    /// Its place, from 0, among the device's instances in the order of their ids: what takes its place takes the queue,
    /// where `rx_queue` is absent.
    pub place: u32,
    /// The receive queue that it polls: the instance that polls this queue later is its successor. Absent where the
    /// kernel does not say and nothing else does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_queue: Option<u32>,
    /// What is changed, as it was; absent is what the kernel did not report.
    pub old: NapiValues,
    /// What is changed, as it is to be.
    pub new: NapiValues,
    /// Nanoseconds since boot when it was set, unique among the changes of one queue: the value of the latest change
    /// holds. Format 4 has none: such a change is older than all that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_at_boot_ns: Option<u64>,
}

/// A change of the busy-poll parameters of one epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EpollParameters {
    /// The process that has it open.
    pub pid: u32,
    /// When that process started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The epoll's number there. Numbers are given out again; what tells the epoll from a later one is that it has the
    /// new parameters, which no program gives itself by chance.
    pub fd: i32,
    /// The parameters as they were.
    pub old: EpollValues,
    /// The parameters as they are to be.
    pub new: EpollValues,
}

/// Epolls of a launched program, those that it has yet to make included. The kernel makes them without busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LaunchedEpolls {
    /// The program.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The parameters that each epoll gets.
    pub new: EpollValues,
}

/// A filter that picks the socket of a reuseport group. Whatever filter the group had before is gone with it: the kernel
/// does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReuseportFilter {
    /// `SO_NETNS_COOKIE` of the namespace of the sockets.
    pub namespace_cookie: u64,
    /// What they speak.
    pub protocol: Protocol,
    /// Their address and port.
    pub local: SocketAddr,
    /// Their inodes. Others of the same address may have joined the group since, and have the filter too.
    pub sockets: Vec<u64>,
}

/// A change of how sockets of one process poll.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketsPolling {
    /// The process that had them open, for people.
    pub pid: u32,
    /// As they are to poll.
    pub new: SocketPolling,
    /// The sockets.
    pub sockets: Vec<SocketsAlike>,
}

/// Sockets that polled alike before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SocketsAlike {
    /// They wait for connections, which inherit how they poll.
    pub listens: bool,
    /// As they polled.
    pub old: SocketValues,
    /// Their inodes.
    pub inodes: Vec<u64>,
}

/// An io_uring that is told to busy poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RingPollingChange {
    /// The process that has it open.
    pub pid: u32,
    /// When that process started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The ring's number there. Numbers are given out again; what tells the ring from a later one is that it polls so.
    pub fd: i32,
    /// As it is to poll.
    pub new: RingPolling,
}

/// A thread that is bound to CPUs. Threads that it starts are bound as it is, and are not put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ThreadAffinity {
    /// Its process.
    pub pid: u32,
    /// Its own number.
    pub tid: u32,
    /// When the thread started, in clock ticks since boot.
    pub thread_start_time_ticks: u64,
    /// The CPUs that it might run on.
    pub old: CpuList,
    /// Those that it is bound to.
    pub new: CpuList,
}

/// What undoing a change came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "undoing", content = "why", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Undoing {
    /// It was there and is undone.
    Undone,
    /// There was nothing left to be undone.
    AlreadyGone,
    /// A part is undone; the rest was left alone for this reason. In format 4 also where nothing was undone.
    InPart(String),
    /// Nothing was undone, for this reason: somebody else has changed it since.
    LeftAlone(String),
    /// Its queue has no NAPI instance now, and may come back with the value that was set. It is still to be undone.
    Waits(String),
}

/// What is known about a change only after it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Outcome {
    /// The change left nothing to be remembered.
    Made,
    /// A namespace, by the number that tells it from a later one of the same name.
    NetworkNamespace {
        /// `SO_NETNS_COOKIE`; the kernel gives it to no other namespace of the same boot.
        cookie: u64,
    },
    /// A process, by the two numbers that together are never used again in one boot.
    Process {
        /// Its id, which is also its session's.
        pid: u32,
        /// When it started, in clock ticks since boot (`/proc/PID/stat`, field 22).
        start_time_ticks: u64,
        /// The file that it executes, without which the process is not ended. Absent in format 4.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        executable: Option<FileId>,
    },
    /// An RSS context, by the number that the driver gave it.
    RssContext {
        /// The number.
        id: RssContextId,
    },
    /// A flow rule, by the place that the driver gave it.
    FlowRule {
        /// The place.
        location: u32,
    },
}

impl NapiSettings {
    /// Whether both are about one queue: by its NAPI instance, or by device and queue where the instance is another one
    /// since.
    pub(crate) fn is_of_the_queue_of(&self, other: &Self) -> bool {
        let queue = |change: &Self| change.rx_queue.map_or((None, Some(change.place)), |queue| (Some(queue), None));
        let same_device = self.sysfs_inode.is_some() && self.sysfs_inode == other.sysfs_inode;
        self.napi_id == other.napi_id || (same_device && queue(self) == queue(other))
    }

    pub(crate) fn device_key(&self) -> DeviceKey<'_> {
        let Self { namespace_cookie, ifindex, sysfs_inode, .. } = *self;
        DeviceKey { namespace_cookie, ifindex, name: &self.device, sysfs_inode }
    }
}

impl HostSetting {
    /// `None` for what is not of a device.
    pub(crate) fn device_key(&self) -> Option<DeviceKey<'_>> {
        let device = self.setting.device()?;
        let Self { namespace_cookie, sysfs_inode, .. } = *self;
        Some(DeviceKey { namespace_cookie, ifindex: Some(device.ifindex), name: &device.name, sysfs_inode })
    }
}

/// Why a line of a journal is not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line does not begin with eight hexadecimal digits and a space.
    #[error("it does not begin with a checksum of eight hexadecimal digits and a space")]
    NoChecksum,
    /// The text is not the one that was written.
    #[error("its checksum is {found:08x}, and the one written down with it {written:08x}: it was cut off or edited")]
    Checksum {
        /// What the text adds up to.
        found: u32,
        /// What the line says that it adds up to.
        written: u32,
    },
    /// The text is whole, but this version does not know what it says.
    #[error("this version does not understand it: {0}")]
    Unknown(String),
}

impl Record {
    /// The line that stands for this record, with its newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_else(|error| unreachable!("records are plain data: {error}"));
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    }

    /// Reads a line without its newline.
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

    fn process() -> Record {
        Record::Done {
            seq: 3,
            outcome: Outcome::Process {
                pid: 77,
                start_time_ticks: 1234,
                executable: Some(FileId { device: 1, inode: 2 }),
            },
        }
    }

    #[test]
    fn a_line_reads_back_as_the_record_that_was_written() {
        let records = [
            process(),
            Record::Intend { seq: 0, change: Change::NetworkNamespace { name: "quell-1".into() } },
            Record::Intend { seq: 1, change: Change::Process { command: vec!["a b".into(), "\n\"".into()] } },
            Record::Undone { seq: 9, undoing: Undoing::InPart("somebody's".into()) },
            Record::Target(Target { pid: 5, start_time_ticks: 6, name: "mem cached".into() }),
            Record::KeptBy(Keeper { pid: 7, start_time_ticks: 8 }),
        ];
        for record in records {
            let line = record.to_line();
            assert_eq!(line.matches('\n').count(), 1, "one record, one line");
            assert_eq!(Record::from_line(line.trim_end_matches('\n')), Ok(record));
        }
    }

    #[test]
    fn records_of_format_4_are_read() {
        let outcome = r#"{"record":"done","seq":3,"outcome":{"outcome":"process","pid":77,"start_time_ticks":1234}}"#;
        let queue = r#"{"record":"intend","seq":0,"change":{"change":"napi-settings","namespace-cookie":1,
            "device":"eth0","napi-id":9,"place":0,"old":{"irq-suspend-timeout":0},
            "new":{"irq-suspend-timeout":20000000}}}"#;
        let read = |json: &str| Record::from_line(&format!("{:08x} {json}", crc32fast::hash(json.as_bytes())));
        let process = Outcome::Process { pid: 77, start_time_ticks: 1234, executable: None };
        assert_eq!(read(outcome), Ok(Record::Done { seq: 3, outcome: process }));
        let Ok(Record::Intend { change: Change::NapiSettings(change), .. }) = read(queue) else { panic!("{queue}") };
        assert_eq!((change.napi_id, change.set_at_boot_ns), (9, None));
    }

    #[test]
    fn a_record_of_a_later_version_is_told_from_a_damaged_one() {
        let json = r#"{"record":"teleported","seq":1}"#;
        let line = format!("{:08x} {json}", crc32fast::hash(json.as_bytes()));
        assert!(matches!(Record::from_line(&line), Err(LineError::Unknown(_))));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_but_never_a_panic(text in ".{0,200}") {
            let _ = Record::from_line(&text);
        }

        #[test]
        fn every_line_that_is_cut_off_is_recognised(cut in 0usize..80) {
            let line = process().to_line();
            let line = line.trim_end_matches('\n');
            let cut = cut.min(line.len() - 1);
            prop_assert!(Record::from_line(&line[..cut]).is_err());
        }

        #[test]
        fn every_single_changed_byte_is_recognised(at in 0usize..80, byte in 0x20u8..0x7f) {
            let mut line = process().to_line().trim_end_matches('\n').as_bytes().to_vec();
            let at = at.min(line.len() - 1);
            prop_assume!(!line[at].eq_ignore_ascii_case(&byte));
            line[at] = byte;
            prop_assert!(Record::from_line(std::str::from_utf8(&line).unwrap()).is_err());
        }
    }
}
