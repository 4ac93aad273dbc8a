//! Which sockets of a program are told to poll by themselves, from outside: all of them in a mode of sockets, and those of
//! AF_XDP in every mode in which the program polls, and with those its io_urings. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::Pid;
use quell_linux::io_uring_polling::RingPolling;
use quell_mode::{DeliveryMode, ModeKind};
use serde::Serialize;

use crate::findings::view::View;
use crate::picture::{Files, Process};
use crate::settings::values::{SocketPolling, SocketValues};

/// Packets a poll of an AF_XDP socket: as many as a softirq's (`NAPI_POLL_WEIGHT`).
const XDP_BUDGET: u16 = 64;

/// Sockets of a process that are to poll.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketsStep {
    /// Whose.
    pub pid: Pid,
    /// When that process started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The name of the process.
    pub process: String,
    /// They are AF_XDP sockets.
    pub xdp: bool,
    /// Those that do not poll so already, as far as that is known.
    pub sockets: Vec<SocketId>,
    /// As they are to poll.
    pub new: SocketPolling,
}

/// An io_uring that is to poll, if it may be told so and does not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RingStep {
    /// Whose.
    pub pid: Pid,
    /// When that process started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The name of the process.
    pub process: String,
    /// The ring's number there.
    pub fd: i32,
    /// As it is to poll.
    pub new: RingPolling,
}

/// A socket of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketId {
    /// Its number there.
    pub fd: i32,
    /// Its inode; absent of an AF_XDP socket, which no picture names.
    pub inode: Option<u64>,
}

/// The steps of one process.
pub(super) fn steps(view: &View<'_>, process: &Process, files: &Files, mode: &DeliveryMode) -> Vec<SocketsStep> {
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
            view.socket(inode).is_some_and(|socket| {
                socket.busy_poll_us.known() == Some(&busy_poll_us)
                    && socket.prefer_busy_poll.known() == Some(&prefer_busy_poll)
            })
        };
        let others = files.sockets.iter().filter(|held| !is_so(held.inode));
        step(false, others.map(|held| SocketId { fd: held.fd, inode: Some(held.inode) }).collect(), new)
    });
    let of_xdp = of_xdp_sockets(mode)
        .and_then(|new| step(true, files.xdp_sockets.iter().map(|&fd| SocketId { fd, inode: None }).collect(), new));
    of_inet.into_iter().chain(of_xdp).collect()
}

/// How TCP and UDP sockets poll in a mode, as those that the preload library of a launched program gives birth to; `None`
/// in one that is not theirs. The library also sets a budget of 64. From outside it stays as the program has it (8 if it
/// never set one): it cannot be read, so it could not be put back.
pub(super) fn of_inet_sockets(mode: &DeliveryMode) -> Option<SocketPolling> {
    let ModeKind::SockPoll { usecs, .. } = mode.kind() else { return None };
    Some(SocketPolling { values: SocketValues { busy_poll_us: usecs.get(), prefer_busy_poll: true }, budget: None })
}

/// The io_urings of one process that are to poll.
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
    let step = |&fd: &i32| RingStep {
        pid: process.pid,
        start_time_ticks: process.start_time_ticks,
        process: process.name.clone(),
        fd,
        new,
    };
    files.io_urings.iter().map(step).collect()
}

/// How AF_XDP sockets poll: they do so only when they prefer it (`xsk_no_wakeup` of `net/xdp/xsk.c`).
fn of_xdp_sockets(mode: &DeliveryMode) -> Option<SocketPolling> {
    let by_epoll = || mode.epoll().map(|epoll| epoll.busy_poll_usecs).filter(|&usecs| usecs > 0);
    let busy_poll_us = of_inet_sockets(mode).map(|inet| inet.values.busy_poll_us).or_else(by_epoll)?;
    let values = SocketValues { busy_poll_us, prefer_busy_poll: true };
    Some(SocketPolling { values, budget: Some(XDP_BUDGET) })
}

/// What was told to poll so far. What somebody else tells it later stays so.
#[derive(Debug, Default)]
pub(super) struct Told {
    sockets: BTreeSet<(Pid, u64, SocketId)>,
    /// Why a ring was left alone, if it was.
    rings: BTreeMap<(Pid, u64, i32), Option<String>>,
}

impl Told {
    pub(super) fn has_told(&self, step: &SocketsStep) -> bool {
        step.sockets.iter().all(|socket| self.sockets.contains(&(step.pid, step.start_time_ticks, *socket)))
    }

    /// Those sockets that were not told yet, and now are.
    pub(super) fn tell(&mut self, step: &SocketsStep) -> Vec<SocketId> {
        let key = |socket: &&SocketId| (step.pid, step.start_time_ticks, **socket);
        step.sockets.iter().filter(|socket| self.sockets.insert(key(socket))).copied().collect()
    }

    pub(super) fn has_tried(&self, step: &RingStep) -> bool {
        self.rings.contains_key(&(step.pid, step.start_time_ticks, step.fd))
    }

    /// Says whether the ring was told, or left alone.
    pub(super) fn tried(&mut self, step: &RingStep, left_alone: Option<String>) -> bool {
        let was_told = left_alone.is_none();
        self.rings.insert((step.pid, step.start_time_ticks, step.fd), left_alone);
        was_told
    }

    /// The rings that were left alone: of which process, their numbers there, and why.
    pub(super) fn left_alone(&self) -> impl Iterator<Item = (Pid, i32, &str)> {
        self.rings.iter().filter_map(|(&(pid, _, fd), why)| Some((pid, fd, why.as_deref()?)))
    }
}
