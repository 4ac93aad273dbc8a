//! Plans busy polling of sockets and io_urings. Socket modes cover all sockets of a program. Every polling mode covers
//! its AF_XDP sockets and its io_urings with sockets. Pure.

use std::collections::BTreeSet;

use quell_change::settings::socket::SocketId;
use quell_change::settings::values::{SocketPolling, SocketValues};
use quell_linux::Pid;
use quell_linux::io_uring_polling::RingPolling;
use quell_mode::{DeliveryMode, ModeKind, NAPI_POLL_WEIGHT};
use schemars::JsonSchema;
use serde::Serialize;

use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Files, Process, SnapshotXdpSocket};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SocketsStep {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub process: String,
    pub xdp: bool,
    /// Sockets to set. Sockets that are known to have the setting are left out.
    pub sockets: Vec<SocketId>,
    pub new: SocketPolling,
}

/// An io_uring to be set to busy polling. Setting it fails harmlessly if its settings are locked or it already busy
/// polls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RingStep {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub process: String,
    pub fd: i32,
    pub new: RingPolling,
}

pub(super) fn steps(
    query: &SnapshotQuery<'_>,
    process: &Process,
    files: &Files,
    mode: &DeliveryMode,
) -> Vec<SocketsStep> {
    let step = |xdp, sockets: Vec<SocketId>, new| {
        let step = SocketsStep {
            pid: process.pid,
            start_time_ticks: process.start_time_ticks,
            process: process.name.clone(),
            xdp,
            sockets,
            new,
        };
        (!step.sockets.is_empty()).then_some(step)
    };
    let of_inet = of_inet_sockets(mode).and_then(|new| {
        let is_so = |inode| {
            let SocketValues { busy_poll_us, prefer_busy_poll } = new.values;
            query.socket(inode).is_some_and(|socket| {
                socket.busy_poll_us.known() == Some(&busy_poll_us)
                    && socket.prefer_busy_poll.known() == Some(&prefer_busy_poll)
            })
        };
        let others = files.sockets.iter().filter(|held| !is_so(held.inode));
        step(false, others.map(|held| SocketId { fd: held.fd, inode: Some(held.inode) }).collect(), new)
    });
    let of_xdp = of_xdp_sockets(mode).and_then(|new| {
        let unable: BTreeSet<i32> = without_napi(files).map(|socket| socket.fd).collect();
        let able = files.xdp_sockets.iter().filter(|fd| !unable.contains(fd));
        step(true, able.map(|&fd| SocketId { fd, inode: None }).collect(), new)
    });
    of_inet.into_iter().chain(of_xdp).collect()
}

/// Busy polling of TCP and UDP sockets in a mode, equal to the setting of the preload library; `None` in other modes.
/// The library also sets a budget of [`NAPI_POLL_WEIGHT`]. An attachment leaves the budget unchanged (default 8),
/// because it cannot read the budget and could not restore it.
pub(super) fn of_inet_sockets(mode: &DeliveryMode) -> Option<SocketPolling> {
    let ModeKind::SockPoll { usecs, .. } = mode.kind() else { return None };
    Some(SocketPolling { values: SocketValues { busy_poll_us: usecs.get(), prefer_busy_poll: true }, budget: None })
}

/// The io_urings of one process that get busy polling: those that may receive from sockets.
pub(super) fn rings(process: &Process, files: &Files, mode: &DeliveryMode) -> Vec<RingStep> {
    let by_epoll = || {
        let epoll = mode.epoll().filter(|epoll| epoll.busy_poll_usecs > 0)?;
        Some(RingPolling { busy_poll_us: epoll.busy_poll_usecs, prefer_busy_poll: epoll.prefer_busy_poll })
    };
    let by_sockets = of_inet_sockets(mode).map(|SocketPolling { values, .. }| RingPolling {
        busy_poll_us: values.busy_poll_us,
        prefer_busy_poll: values.prefer_busy_poll,
    });
    let Some(new) = by_sockets.or_else(by_epoll) else { return Vec::new() };
    let step = |fd: i32| RingStep {
        pid: process.pid,
        start_time_ticks: process.start_time_ticks,
        process: process.name.clone(),
        fd,
        new,
    };
    files.receiving_rings().map(step).collect()
}

/// AF_XDP sockets without a NAPI ID, on which busy polling polls nothing.
pub(super) fn without_napi(files: &Files) -> impl Iterator<Item = &SnapshotXdpSocket> {
    files.xdp_details.iter().filter(|socket| socket.napi.is_none())
}

/// Busy polling of AF_XDP sockets. They need `SO_PREFER_BUSY_POLL` (`xsk_no_wakeup` in `net/xdp/xsk.c`).
pub(super) fn of_xdp_sockets(mode: &DeliveryMode) -> Option<SocketPolling> {
    let by_epoll = || mode.epoll().map(|epoll| epoll.busy_poll_usecs).filter(|&usecs| usecs > 0);
    let busy_poll_us = of_inet_sockets(mode).map(|inet| inet.values.busy_poll_us).or_else(by_epoll)?;
    let values = SocketValues { busy_poll_us, prefer_busy_poll: true };
    Some(SocketPolling { values, budget: Some(NAPI_POLL_WEIGHT) })
}
