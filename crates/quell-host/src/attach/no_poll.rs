//! Why no poll of a queue was by the programs of a mode. Decided from a snapshot, and said as unknown if the snapshot
//! does not show it. Pure.

use std::collections::BTreeSet;
use std::fmt;

use quell_linux::visible::{agree, counted};
use quell_linux::{NapiId, Pid};

use super::attached::AttachedMode;
use super::attachment::observe;
use super::mode_command::ModeCommand;
use super::receivers::accepts_for_others;
use crate::findings::sorting::one_queue_per_epoll;
use crate::findings::{Finding, Fix, UDP_ON_SEVERAL_QUEUES, one_queue_if_attached, queue_per_udp_socket, stalls};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Snapshot, SnapshotSocket};

pub(super) const SEE_HOW_IT_WAITS: &str =
    "see the other findings of `quell doctor` about how it waits; a mode that only defers does not depend on it";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPollCause {
    /// The programs have no TCP or UDP socket, or have exited.
    NoSocket,
    /// No program has an epoll that watches a TCP or UDP socket.
    NoEpoll,
    /// The epolls of the programs watch listening sockets. The connections are received without an epoll.
    ListenersOnly,
    /// No socket in an epoll of the programs has received from a queue.
    NoConnection,
    /// No epoll of the programs watches a socket of the queue, but other processes have sockets there.
    TrafficOfOthers {
        names: BTreeSet<String>,
    },
    /// An unconnected UDP socket polls the queue of its first datagram, and this is another one.
    OfFirstDatagram {
        polled: NapiId,
        /// Whether the kernel has no such queue any more, as after link down and up.
        is_gone: bool,
        /// How the socket can get one queue.
        advice: &'static str,
    },
    Moved {
        /// NAPI instances that they received from last.
        to: BTreeSet<NapiId>,
        /// Sets the mode of the programs again.
        again: Box<ModeCommand>,
    },
    /// A finding explains it: an object that stays ready, or a way of waiting that polls nothing.
    Found(Box<Finding>),
    /// An epoll with sockets of the queue does not busy poll.
    NotEnabled {
        epoll: NamedEpoll,
        /// Sets the mode of the programs again.
        again: Box<ModeCommand>,
    },
    /// Threads sleep in an epoll that watches the one with the sockets, and nobody sleeps in that one.
    WatchedByAnother {
        inner: NamedEpoll,
        /// File descriptor of the epoll that watches it.
        outer: i32,
    },
    /// No thread slept in the epoll at the time of the snapshot.
    NobodySleeps {
        epoll: NamedEpoll,
    },
    SeveralQueues {
        epoll: NamedEpoll,
        queues: usize,
        /// How its connections can be sorted by queue, or that they cannot.
        fix: Box<Fix>,
    },
    Unknown {
        seen: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedEpoll {
    fd: i32,
    process: String,
    pid: Pid,
}

impl NamedEpoll {
    fn of(epoll: &EpollContext<'_>) -> Self {
        Self { fd: epoll.epoll.fd, process: epoll.process.name.clone(), pid: epoll.process.pid }
    }
}

impl fmt::Display for NamedEpoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fd, process, pid } = self;
        write!(f, "epoll {fd} of {process} {pid}")
    }
}

/// Finds the cause for a queue. The mode lets the epolls of `programs` poll it, and none did. `before` is an earlier
/// snapshot, if available.
#[must_use]
pub fn no_poll_cause(now: &Snapshot, before: Option<&Snapshot>, programs: &BTreeSet<Pid>, napi: NapiId) -> NoPollCause {
    cause(&SnapshotQuery::new(now, before), programs, napi)
}

#[must_use]
pub fn no_poll_cause_now(before: Option<&Snapshot>, programs: &BTreeSet<Pid>, napi: NapiId) -> NoPollCause {
    match observe() {
        Ok(now) => no_poll_cause(&now, before, programs, napi),
        Err(error) => NoPollCause::Unknown { seen: error.to_string() },
    }
}

pub(crate) fn cause(query: &SnapshotQuery<'_>, programs: &BTreeSet<Pid>, napi: NapiId) -> NoPollCause {
    let mut processes = query.now.processes.iter().filter(|process| programs.contains(&process.pid)).peekable();
    if processes.peek().is_none() {
        return NoPollCause::NoSocket;
    }
    if !processes.any(|process| process.files.known().is_some()) {
        return NoPollCause::Unknown { seen: "the programs' files could not be read".to_owned() };
    }
    let own: Vec<&EpollContext<'_>> =
        query.epolls_by_descriptor.iter().filter(|one| programs.contains(&one.process.pid)).collect();
    if !own.iter().any(|epoll| epoll.sockets().next().is_some()) {
        let polled = polled_instead(query, programs, napi);
        return polled.unwrap_or(NoPollCause::NoEpoll);
    }
    let here: Vec<&EpollContext<'_>> = own.iter().filter(|epoll| epoll.by_napi.contains_key(&napi)).copied().collect();
    let Some(first) = here.first() else { return elsewhere(query, &own, programs, napi) };
    let is_here = |finding: &Finding| here.iter().any(|epoll| finding.nodes.contains(&epoll.node()));
    if let Some(found) = stalls(query).into_iter().find(|finding| finding.predicts_stall() && is_here(finding)) {
        // What an unconnected UDP socket polls instead says more than that several queues deliver to it.
        let instead = polled_instead(query, programs, napi).filter(|_| found.id == UDP_ON_SEVERAL_QUEUES);
        return instead.unwrap_or_else(|| NoPollCause::Found(Box::new(found)));
    }
    if let Some(epoll) = here.iter().find(|epoll| epoll.params.is_some() && !epoll.polls()) {
        let again = Box::new(ModeCommand::of_programs(None, programs, query.now));
        return NoPollCause::NotEnabled { epoll: NamedEpoll::of(epoll), again };
    }
    let are_threads_known = |epoll: &EpollContext<'_>| {
        let threads = epoll.process.threads.known();
        threads.is_some_and(|threads| threads.iter().any(|thread| thread.epoll_wait.known().is_some()))
    };
    if let Some(epoll) = here.iter().find(|epoll| epoll.waiters.is_empty() && are_threads_known(epoll)) {
        return unslept(query, epoll);
    }
    if let Some(polled) = polled_instead(query, programs, napi) {
        return polled;
    }
    if let Some(epoll) = here.iter().find(|epoll| epoll.by_napi.len() > 1) {
        return NoPollCause::SeveralQueues {
            epoll: NamedEpoll::of(epoll),
            queues: epoll.by_napi.len(),
            fix: Box::new(one_queue_per_epoll(query, epoll)),
        };
    }
    let sockets = first.by_napi.get(&napi).map_or(0, Vec::len);
    NoPollCause::Unknown {
        seen: format!(
            "{} watches {} of the queue, and {} in it",
            NamedEpoll::of(first),
            counted(sockets, "socket"),
            match first.waiters.len() {
                0 => "whether a thread sleeps is unknown".to_owned(),
                threads => format!("{} {}", counted(threads, "thread"), agree(&threads, "sleeps", "sleep")),
            }
        ),
    }
}

fn elsewhere(
    query: &SnapshotQuery<'_>,
    own: &[&EpollContext<'_>],
    programs: &BTreeSet<Pid>,
    napi: NapiId,
) -> NoPollCause {
    let others = query.now.processes.iter().filter(|process| !programs.contains(&process.pid));
    let there =
        others.filter(|process| process.files.known().is_some_and(|files| query.napis_of(files).contains(&napi)));
    let names: BTreeSet<String> = there.map(|process| process.name.clone()).collect();
    if !names.is_empty() {
        return NoPollCause::TrafficOfOthers { names };
    }
    let to: BTreeSet<NapiId> = own.iter().flat_map(|epoll| epoll.by_napi.keys().copied()).collect();
    match to.is_empty() {
        true if accepts_for_others(query, programs) => NoPollCause::ListenersOnly,
        true => NoPollCause::NoConnection,
        false => NoPollCause::Moved { to, again: Box::new(ModeCommand::of_programs(None, programs, query.now)) },
    }
}

/// The cause if an unconnected UDP socket of the programs polls another queue, by itself or in an epoll, although this one
/// can deliver to it, too.
fn polled_instead(query: &SnapshotQuery<'_>, programs: &BTreeSet<Pid>, napi: NapiId) -> Option<NoPollCause> {
    let own = query.now.processes.iter().filter(|process| programs.contains(&process.pid));
    let held = own.filter_map(|process| process.files.known()).flat_map(|files| &files.sockets);
    let polls = |socket: &SnapshotSocket| {
        let in_epoll = || {
            let polling = query.epolls().filter(|epoll| epoll.polls());
            polling.flat_map(EpollContext::sockets).any(|inode| inode == socket.inode)
        };
        socket.busy_poll_us.known().is_some_and(|&us| us > 0) || in_epoll()
    };
    let is_meant = |socket: &&SnapshotSocket| {
        socket.records_first_napi() && query.queues_of(socket).contains(&napi) && polls(socket)
    };
    let mut sockets = held.filter_map(|held| query.socket(held.inode)).filter(is_meant);
    sockets.find_map(|socket| {
        let polled = (*socket.napi.known()?).filter(|&first| first != napi)?;
        let is_gone = query.napi(polled).is_none();
        let advice = if is_gone { RESTART } else { queue_per_udp_socket(query, socket) };
        Some(NoPollCause::OfFirstDatagram { polled, is_gone, advice })
    })
}

const RESTART: &str = "restart the program, whose sockets keep their first queue";

/// The cause if no thread sleeps in an epoll.
fn unslept(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> NoPollCause {
    match query.outer(epoll) {
        Some(outer) => NoPollCause::WatchedByAnother { inner: NamedEpoll::of(epoll), outer: outer.epoll.fd },
        None => NoPollCause::NobodySleeps { epoll: NamedEpoll::of(epoll) },
    }
}

impl NoPollCause {
    /// Whether the mode has nothing to do on the queue, so that missing polls are no evidence against it.
    #[must_use]
    pub fn is_none_of_the_programs(&self) -> bool {
        matches!(self, Self::NoSocket | Self::NoConnection | Self::TrafficOfOthers { .. })
    }

    /// Whether it explains packets that wait in a queue whose programs run. A thread that is not asleep may be at work,
    /// which is no cause.
    pub(crate) fn explains_stall(&self) -> bool {
        matches!(
            self,
            Self::Found(_) | Self::WatchedByAnother { .. } | Self::SeveralQueues { .. } | Self::OfFirstDatagram { .. }
        )
    }

    /// The cause for a program that has a mode, with a fix that is not refused.
    #[must_use]
    pub fn if_attached(self, attached: &AttachedMode) -> Self {
        let placed =
            |again: Box<ModeCommand>| Box::new(again.placed(attached.steers, attached.pins).if_attached(attached));
        match self {
            Self::Moved { to, again } => Self::Moved { to, again: placed(again) },
            Self::NotEnabled { epoll, again } => Self::NotEnabled { epoll, again: placed(again) },
            Self::OfFirstDatagram { polled, is_gone, .. } if attached.steers => {
                Self::OfFirstDatagram { polled, is_gone, advice: RESTART }
            }
            Self::SeveralQueues { epoll, queues, fix } => {
                Self::SeveralQueues { epoll, queues, fix: Box::new(one_queue_if_attached(*fix, attached)) }
            }
            other => other,
        }
    }

    #[must_use]
    pub fn fix(&self) -> Option<Fix> {
        let text = match self {
            Self::NoEpoll | Self::ListenersOnly => {
                "choose a mode that only defers, such as defer20, if a measurement finds that it pays"
            }
            Self::NoSocket | Self::NoConnection | Self::TrafficOfOthers { .. } | Self::Unknown { .. } => return None,
            Self::Found(finding) => return finding.fix.first().cloned(),
            Self::Moved { again, .. } | Self::NotEnabled { again, .. } => {
                return Some(Fix::Mode {
                    first: "set the mode again:".to_owned(),
                    command: again.as_ref().clone(),
                    otherwise: None,
                });
            }
            Self::WatchedByAnother { .. } | Self::NobodySleeps { .. } => SEE_HOW_IT_WAITS,
            Self::SeveralQueues { fix, .. } => return Some(fix.as_ref().clone()),
            Self::OfFirstDatagram { advice, .. } => {
                return Some(Fix::advice(format!("{advice}, or use userbusy, which polls all queues")));
            }
        };
        Some(Fix::advice(text))
    }
}

impl fmt::Display for NoPollCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSocket => f.write_str("the programs have no TCP or UDP socket"),
            Self::NoEpoll => f.write_str("no epoll of the program watches a network socket, and only an epoll polls"),
            Self::ListenersOnly => f.write_str(
                "the epolls of the program watch listening sockets only; its connections are received without an epoll",
            ),
            Self::NoConnection => f.write_str(
                "no socket in an epoll of the programs has received from a queue: the packets may be those of others",
            ),
            Self::TrafficOfOthers { names } => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                write!(f, "the program has no socket on this queue; {} has", names.join(", "))
            }
            Self::OfFirstDatagram { polled, is_gone: true, .. } => {
                write!(
                    f,
                    "an unconnected UDP socket polls the queue of its first datagram (NAPI {polled}), which is gone"
                )
            }
            Self::OfFirstDatagram { polled, .. } => write!(
                f,
                "an unconnected UDP socket receives from several queues, and polls only that of its first datagram \
                 (NAPI {polled})"
            ),
            Self::Moved { to, .. } => {
                let to: Vec<String> = to.iter().map(ToString::to_string).collect();
                write!(f, "the program's sockets receive from NAPI {} now", to.join(", "))
            }
            Self::Found(finding) => write!(f, "{}: {}", finding.id, finding.observed),
            Self::NotEnabled { epoll, .. } => write!(f, "{epoll} does not busy poll"),
            Self::WatchedByAnother { inner, outer } => {
                write!(f, "nobody slept in {inner}, which has the connections; epoll {outer} watches it")
            }
            Self::NobodySleeps { epoll } => {
                write!(f, "no thread slept in {epoll} when it was inspected, and only a thread that sleeps there polls")
            }
            Self::SeveralQueues { epoll, queues, .. } => {
                write!(f, "{epoll} has sockets on {queues} queues and polls only that of the socket ready last")
            }
            Self::Unknown { seen } => write!(f, "the cause is unknown: {seen}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_sampler::QueueSample;

    use super::*;
    use crate::attach::effect::{EffectOnQueue, ModeVerdict, suspension_of};

    #[test]
    fn a_program_that_has_its_next_events_at_each_call_is_no_evidence_against_the_mode() {
        let verdict = |worked_ns| {
            let mut sample = QueueSample { packets: 300, ..QueueSample::default() };
            sample.polls.timer = 5_000;
            let seen = EffectOnQueue {
                programs_cpu_ns: Some(900_000_000),
                programs_worked_ns: Some(worked_ns),
                ..EffectOnQueue::of(NapiId::from_kernel(9_000).unwrap(), 1_000_000_000, &sample)
            };
            let epoll = NamedEpoll { fd: 5, process: "app".to_owned(), pid: Pid::of_this_process() };
            suspension_of(&seen, 20_000_000, || NoPollCause::NobodySleeps { epoll }).0
        };
        let ModeVerdict::CannotTell(why) = verdict(900_000_000) else { panic!("it works for longer than it waits") };
        assert!(why.ends_with("; it works for 3 ms of CPU time per packet"), "{why}");
        assert!(matches!(verdict(90_000_000), ModeVerdict::NotInEffect(_)), "0.3 ms per packet");
    }
}
