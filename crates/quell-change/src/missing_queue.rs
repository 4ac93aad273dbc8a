//! Why a queue has no NAPI instance at present, and the command that brings it back.

use std::fmt;

use quell_linux::ethtool::{Channels, Ethtool};
use quell_linux::netdev::{Netdev, QueueKind};
use quell_linux::netlink::NetlinkError;
use quell_linux::proc::ProcRoot;
use quell_linux::visible::counted;
use schemars::JsonSchema;
use serde::Serialize;

use crate::devices::FoundDevice;
use crate::namespaces;

/// A queue without a NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MissingQueue {
    pub cause: MissingCause,
    pub device: String,
    /// Command that brings the queue back, to run as root. Null if none is known.
    pub command: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MissingCause {
    /// It is in another network namespace than when the queue was set.
    Moved,
    LinkDown,
    /// A veth without GRO and without an XDP program has no NAPI instances.
    GroOff,
    /// The device has fewer receive queues in use than before.
    FewerQueues {
        queues: u32,
    },
    /// The kernel shows no reason.
    Unknown,
}

/// What the kernel reports about a device that lacks a NAPI instance. Absent values could not be read.
#[derive(Debug, Default)]
struct ObservedDevice {
    is_up: bool,
    is_veth: bool,
    has_xdp: Option<bool>,
    gro: Option<bool>,
    /// Number of receive queues in use.
    rx_queues: Option<u32>,
    /// Kind of channels whose number `ethtool -L` sets.
    channels: Option<&'static str>,
}

impl MissingQueue {
    /// For a device that is not in the namespace with this cookie any more.
    pub(crate) fn moved(device: &FoundDevice, from_cookie: u64, proc: &ProcRoot) -> Self {
        let name = &device.link.name;
        let home = namespaces::by_cookie(proc, from_cookie).ok().flatten().and_then(|home| namespaces::name_of(&home));
        let command = home.and_then(|home| {
            namespaces::command_in(&device.namespace, proc, &["ip", "link", "set", name, "netns", &home])
        });
        Self { cause: MissingCause::Moved, device: name.clone(), command }
    }

    /// The cause for receive queue `queue`, if its number is known, of a device that had `needed` receive queues in use.
    pub(crate) fn of(device: &FoundDevice, queue: Option<u32>, needed: u32, proc: &ProcRoot) -> Self {
        let observed = observe(device);
        let name = &device.link.name;
        let cause = decide(&observed, queue);
        let command = command(cause, name, &needed.to_string(), observed.channels)
            .and_then(|words| namespaces::command_in(&device.namespace, proc, &words));
        Self { cause, device: name.clone(), command }
    }

    /// The cause without the command.
    #[must_use]
    pub fn reason(&self) -> String {
        let device = &self.device;
        match self.cause {
            MissingCause::Moved => {
                format!("{device} was moved to another network namespace, so that programs here do not receive from it")
            }
            MissingCause::LinkDown => format!("the link {device} is down"),
            MissingCause::GroOff => format!("GRO is off on {device}, and a veth has no NAPI instance without it"),
            MissingCause::FewerQueues { queues } => {
                format!("{device} has only {} in use", counted(queues, "receive queue"))
            }
            MissingCause::Unknown => format!("the driver of {device} has no NAPI instance for it"),
        }
    }
}

fn observe(device: &FoundDevice) -> ObservedDevice {
    let FoundDevice { namespace, link } = device;
    let queues = || -> Result<u32, NetlinkError> {
        let queues = Netdev::open_in(namespace)?.queues(link.index)?;
        Ok(u32::try_from(queues.iter().filter(|queue| queue.kind == QueueKind::Rx).count()).unwrap_or(u32::MAX))
    };
    let mut ethtool = Ethtool::open_in(namespace).ok();
    ObservedDevice {
        is_up: link.is_up,
        is_veth: link.kind.as_deref() == Some("veth"),
        has_xdp: link.has_xdp,
        gro: ethtool.as_mut().and_then(|it| Some(it.features(link.index).ok()?.get("rx-gro")?.active)),
        rx_queues: queues().ok(),
        channels: ethtool.as_mut().and_then(|it| channels_of(&it.channels(link.index).ok()?)),
    }
}

fn decide(device: &ObservedDevice, queue: Option<u32>) -> MissingCause {
    match (device.rx_queues, queue) {
        _ if !device.is_up => MissingCause::LinkDown,
        _ if device.is_veth && device.has_xdp == Some(false) && device.gro == Some(false) => MissingCause::GroOff,
        (Some(queues), Some(queue)) if queue >= queues => MissingCause::FewerQueues { queues },
        _ => MissingCause::Unknown,
    }
}

/// Words of the command that removes the cause, if one is known.
fn command<'a>(
    cause: MissingCause,
    device: &'a str,
    needed: &'a str,
    channels: Option<&'static str>,
) -> Option<Vec<&'a str>> {
    match cause {
        MissingCause::LinkDown => Some(vec!["ip", "link", "set", device, "up"]),
        MissingCause::GroOff => Some(vec!["ethtool", "-K", device, "gro", "on"]),
        MissingCause::FewerQueues { .. } => Some(vec!["ethtool", "-L", device, channels?, needed]),
        MissingCause::Moved | MissingCause::Unknown => None,
    }
}

/// veth has separate channels, most hardware combined ones.
fn channels_of(channels: &Channels) -> Option<&'static str> {
    let has = |max: Option<u32>| max.is_some_and(|max| max > 0);
    match (has(channels.combined_max), has(channels.rx_max)) {
        (true, _) => Some("combined"),
        (false, true) => Some("rx"),
        (false, false) => None,
    }
}

/// The cause, which ends with the command.
impl fmt::Display for MissingQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())?;
        self.command.as_ref().map_or(Ok(()), |command| write!(f, ": `{command}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn veth() -> ObservedDevice {
        ObservedDevice {
            is_up: true,
            is_veth: true,
            has_xdp: Some(false),
            gro: Some(true),
            rx_queues: Some(2),
            channels: Some("rx"),
        }
    }

    fn words(device: &ObservedDevice, queue: u32) -> (MissingCause, String) {
        let cause = decide(device, Some(queue));
        (cause, command(cause, "eth0", "2", device.channels).unwrap_or_default().join(" "))
    }

    #[test]
    fn each_reason_why_a_queue_is_missing_has_the_command_that_brings_it_back() {
        let down = ObservedDevice { is_up: false, gro: Some(false), rx_queues: Some(1), ..veth() };
        assert_eq!(words(&down, 1), (MissingCause::LinkDown, "ip link set eth0 up".to_owned()));
        let gro_off = ObservedDevice { gro: Some(false), ..veth() };
        assert_eq!(words(&gro_off, 1), (MissingCause::GroOff, "ethtool -K eth0 gro on".to_owned()));
        let fewer = ObservedDevice { rx_queues: Some(1), ..veth() };
        let cause = MissingCause::FewerQueues { queues: 1 };
        assert_eq!(words(&fewer, 1), (cause, "ethtool -L eth0 rx 2".to_owned()));
        let hardware = ObservedDevice { is_veth: false, channels: Some("combined"), rx_queues: Some(1), ..veth() };
        assert_eq!(words(&hardware, 1), (cause, "ethtool -L eth0 combined 2".to_owned()));
    }

    #[test]
    fn a_queue_that_is_missing_for_no_visible_reason_has_no_command() {
        assert_eq!(words(&veth(), 1), (MissingCause::Unknown, String::new()));
        let with_xdp = ObservedDevice { gro: Some(false), has_xdp: Some(true), ..veth() };
        assert_eq!(words(&with_xdp, 1).0, MissingCause::Unknown, "the XDP program keeps its NAPI instances");
        let hardware = ObservedDevice { is_veth: false, gro: Some(false), ..veth() };
        assert_eq!(words(&hardware, 1).0, MissingCause::Unknown, "only a veth needs GRO for them");
        let unread = ObservedDevice { rx_queues: None, gro: None, ..veth() };
        assert_eq!(words(&unread, 1).0, MissingCause::Unknown, "absent is not zero");
    }
}
