//! The host as one picture: how packets get from each device's queues by NAPI instances and interrupts to CPUs, and which
//! thread of which process waits for them on which epoll. Plain values, read in one pass, that can be written to a file
//! and read back; nothing here judges or changes anything.
//!
//! ```text
//! device ── RX queue ── NAPI ── IRQ ── CPU            process ── thread ── epoll ── socket ── NAPI
//! ```
//!
//! Objects refer to each other by the kernel's own keys: `(namespace, ifindex)` a device, [`NapiId`] a NAPI (unique in
//! the whole host), the number an IRQ or a CPU, the inode a socket. [`Index`] finds them. A value that could not be had
//! is a [`Reading`] that says why, never a zero.

mod cpu;
mod device;
mod host;
mod index;
mod process;
mod queue;
mod read;
mod reading;
mod socket;

use quell_linux::Pid;
use quell_mode::Threaded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cpu::{Cpu, CpuCounters, Cpus, IdleState};
pub use device::{Device, DeviceDefaults, Lower};
pub use host::{Kernel, NetworkNamespace, Privileges, Scope, Service, Sysctls, Taken};
pub use index::{DeviceKey, Index};
pub use process::{Epoll, EpollWait, Files, HeldSocket, Process, Thread, WatchedFile, WatchedKind, WatchedTarget};
pub use queue::{Irq, Linked, Napi, RxQueue, SaidBy, TxQueue};
pub use read::{Cost, TakeError, take};
pub use reading::{Reading, Unknown, UnknownReading, Why};
pub use socket::{Protocol, Socket, SocketState};

#[cfg(doc)]
use quell_linux::NapiId;

/// The `schema` field of the pictures that this version writes and reads.
pub const SCHEMA: &str = "quell-picture/1";

/// A network namespace, or the whole host, as it was at one moment. Every list is in ascending order of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Picture {
    /// [`SCHEMA`].
    pub schema: String,
    /// When it was taken.
    pub taken: Taken,
    /// What was asked for; what is outside of it is not in the picture.
    pub scope: Scope,
    /// The kernel.
    pub kernel: Kernel,
    /// What the reader was allowed.
    pub privileges: Privileges,
    /// Settings that hold for the whole host.
    pub sysctls: Sysctls,
    /// Programs that run and set again what others set.
    pub services: Reading<Vec<Service>>,
    /// The network namespaces that were read, in ascending order of their inodes.
    pub namespaces: Vec<NetworkNamespace>,
    /// The CPUs.
    pub cpus: Cpus,
    /// The interrupts of the devices below.
    pub irqs: Reading<Vec<Irq>>,
    /// The network devices, by namespace and index.
    pub devices: Vec<Device>,
    /// The processes that have TCP, UDP or AF_XDP sockets, and those that were asked for.
    pub processes: Vec<Process>,
    /// Processes whose files the reader may not see, so that whether they have sockets is not known.
    pub hidden_processes: Vec<Pid>,
    /// The sockets of these processes, each once, by inode.
    pub sockets: Vec<Socket>,
}

/// A text that is no picture of this version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// It is a picture of another version, or something else altogether.
    #[error("its schema is {found:?}, and this version of Quell reads {SCHEMA:?}: take the picture again")]
    Schema {
        /// The `schema` field; absent when there is none.
        found: Option<String>,
    },
    /// It is not JSON, or not of the schema that it claims.
    #[error("no picture: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl Picture {
    /// Reads a picture back from its JSON.
    ///
    /// # Errors
    /// [`PictureError`], with line and column.
    pub fn parse(json: &[u8]) -> Result<Self, PictureError> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
        }
        let head: Head = serde_json::from_slice(json)?;
        if head.schema.as_deref() != Some(SCHEMA) {
            return Err(PictureError::Schema { found: head.schema });
        }
        Ok(serde_json::from_slice(json)?)
    }

    /// What finds the objects that others refer to.
    #[must_use]
    pub fn index(&self) -> Index<'_> {
        Index::new(self)
    }

    /// Why queues of this kernel cannot have this threading; `None` where they can, or where that is not known.
    pub(crate) fn refuses_threading(&self, wanted: Threaded) -> Option<&'static str> {
        let lacks = wanted == Threaded::BusyPoll && self.kernel.threaded_busy_poll.known() == Some(&false);
        lacks.then_some("threaded busy polling (threaded=2) needs Linux 6.19: napi-set of this kernel does not take it")
    }

    /// The JSON Schema of pictures.
    #[must_use]
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_of_another_version_is_refused_by_its_name() {
        let error = Picture::parse(br#"{"schema": "quell-picture/0", "cpus": 7}"#).unwrap_err();
        assert!(error.to_string().contains(r#"Some("quell-picture/0")"#), "{error}");
        assert!(matches!(Picture::parse(b"{}"), Err(PictureError::Schema { found: None })));
    }

    #[test]
    fn a_misspelt_field_is_an_error_with_its_place() {
        let text = format!("{{\"schema\": \"{SCHEMA}\",\n \"divices\": []}}");
        let error = Picture::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("divices") && error.contains("line 2"), "{error}");
    }
}
