//! Rules about programs that stall their own queue while its interrupt is masked: an object that stays ready, other events
//! or unread data at each wait, waits that never sleep, and sleep for a packet elsewhere. Commands refuse modes that would
//! cause these findings.

use std::time::Duration;

use super::fix::Fix;
use super::other_events::{OTHER_EVENTS, PARTIAL_READS, unread_events};
use super::text::{duration_text, time_text};
use super::{Node, Observation, Rule, Severity};
use crate::behavior::{Behavior, EpollWaits, ReadyCause, ReadyGroup, cause_in_snapshot, is_reported_by_each_wait};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Thread, WatchedFile, WatchedKind};
use quell_linux::visible::{counted, thousands};

pub(super) const RULES: &[&Rule] = &[&READY_OBJECT, &OTHER_EVENTS, &PARTIAL_READS, &ZERO_TIMEOUT, &BLOCKS];

/// Fewest calls for a judgement, and fewest if its threads are known to sleep elsewhere.
pub(super) const CALLS_MIN: u64 = 20;
const CALLS_OF_RESTING_MIN: u64 = 4;

static READY_OBJECT: Rule = Rule {
    id: "ready-object-holds-suspension",
    severity: Severity::Serious,
    title: "an object stays ready in an epoll that suspends interrupts",
    impact: "Every epoll_wait that reports the object re-arms the suspension without polling the device. Packets wait \
          while it is ready; irq-suspend-timeout does not help.",
    source: "fs/eventpoll.c, ep_poll and ep_send_events; measured: no network event in 2 s with a timeout of 20 ms, 0 \
             to 18 requests/s instead of 200 with a UDP socket registered for EPOLLOUT",
    explanation: "Detected if an epoll with prefer_busy_poll, on a queue with irq-suspend-timeout, watches an object \
                  that is ready in each of about 50 samples during 500 ms, and that each epoll_wait returns (neither \
                  EPOLLET nor EPOLLONESHOT): a socket registered for EPOLLOUT that can be written; a connection whose \
                  data the program does not read, or whose peer has closed; a listener with connections that are not \
                  accepted; an eventfd, pipe, timerfd, signalfd, pidfd, inotify, TUN or unix socket that nobody reads. \
                  States and queues of sockets come from sock_diag; poll(2) confirms a few of them. It is a warning if \
                  poll(2) must not be called, because net.core.busy_poll is set, and if no thread waited on the epoll \
                  during the samples; a note if the calls are farther apart than the timeout of the queue. A socket \
                  that a call read during the samples does not count; nor do data that a connection received within \
                  the last second, unless the epoll returned events at least twice for each of its files. Without \
                  samples, two snapshots show it: serious for a file, a warning for a socket. Also detected if, for 5 % of \
                  the time, the only thread of the epoll makes at least four calls for each read that return at once (10 \
                  µs): an object is ready for a part of the time. Not seen: registrations shorter than the interval \
                  between samples; errors and urgent data of sockets beyond the first 64 of an epoll; a file whose \
                  descriptors are all in other processes. Fix: by object, as doctor prints it.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: ready_object,
};

fn ready_object(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let suspending = query.epolls().filter(|epoll| query.suspends(epoll));
    let of = |epoll: &EpollContext<'_>| match query.behavior(epoll) {
        Some(behavior) => {
            let of = |one: &EpollContext<'_>| behavior.ready.get(&(one.process.pid, one.epoll.fd));
            let groups = query.descriptors(epoll).find_map(of).into_iter().flatten();
            let waits = waits_on(query, epoll, behavior);
            // A thread that was in the call already is stopped: a ready object would have ended the call.
            let is_waited_on = behavior.may_have_waited(waits);
            let frames = frames_between_timers(query, epoll, (&waits, behavior));
            let of = |group: &ReadyGroup| {
                let mut observation = of_ready_group(epoll, behavior, is_waited_on, group);
                if let Some(frames) = frames.as_ref().filter(|_| observation.severity == Severity::Serious) {
                    observation.severity = Severity::Note;
                    observation.observed.push_str(&format!("; {frames}"));
                }
                observation
            };
            let observations: Vec<Observation> = groups.map(of).collect();
            match observations.is_empty() {
                true => unread_events(epoll, behavior, &waits).into_iter().collect(),
                false => observations,
            }
        }
        None => of_snapshots(query, epoll),
    };
    suspending.flat_map(of).collect()
}

pub(super) fn waits_on(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>, behavior: &Behavior) -> EpollWaits {
    let of = |one: &EpollContext<'_>| behavior.waits.get(&(one.process.pid, one.epoll.fd)).copied();
    query.descriptors(epoll).filter_map(of).fold(EpollWaits::default(), EpollWaits::and)
}

fn of_ready_group(
    epoll: &EpollContext<'_>,
    behavior: &Behavior,
    is_waited_on: bool,
    group: &ReadyGroup,
) -> Observation {
    let mut observed = match group.count {
        0 | 1 => of_cause(&group.cause, group.fd),
        count => format!("{}, and {} more like it", of_cause(&group.cause, group.fd), count - 1),
    };
    match group.unconfirmed {
        None => {
            let time = duration_text(behavior.observed);
            observed.push_str(&format!("; ready in each of {} in {time}", counted(behavior.samples, "sample")));
        }
        Some(why) => observed.push_str(&format!("; not confirmed: {why}")),
    }
    if !is_waited_on {
        observed.push_str(", in which no thread called epoll_wait: the program is stopped or busy, or waits elsewhere");
    }
    let severity = if group.unconfirmed.is_none() && is_waited_on { Severity::Serious } else { Severity::Warning };
    observation(epoll, severity, group.fd, observed, &group.cause)
}

/// Objects that were ready when the snapshots were taken. A program may be about to read them, so that one snapshot
/// shows only files, which a warning names.
fn of_snapshots(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for target in epoll.epoll.targets.known_elements().filter(|target| is_reported_by_each_wait(target.events)) {
        let then = target_before(query, epoll, target.fd);
        match &target.file {
            WatchedFile::Other { ready, kind } if ready.known() == Some(&true) => {
                let (severity, when) = match then {
                    Some(Before { was_ready: Some(true), .. }) => (Severity::Serious, "in both snapshots"),
                    Some(Before { was_ready: Some(false), .. }) => (Severity::Note, "in the second snapshot only"),
                    _ => (Severity::Warning, "when the snapshot was taken"),
                };
                let cause = ReadyCause::File(kind.clone());
                let observed = format!("{}; ready {when}", of_cause(&cause, target.fd));
                observations.push(observation(epoll, severity, target.fd, observed, &cause));
            }
            WatchedFile::Socket { inode } => {
                let cause = query.socket(*inode).and_then(|socket| cause_in_snapshot(target, socket));
                let was_there = |cause: &ReadyCause| then.is_some_and(|then| then.cause.as_ref() == Some(cause));
                let Some(cause) = cause.filter(was_there) else {
                    continue;
                };
                let observed = format!("{}; in both snapshots", of_cause(&cause, target.fd));
                observations.push(observation(epoll, Severity::Warning, target.fd, observed, &cause));
            }
            WatchedFile::Other { .. } => {}
        }
    }
    observations
}

struct Before {
    was_ready: Option<bool>,
    cause: Option<ReadyCause>,
}

fn target_before(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>, fd: i32) -> Option<Before> {
    let before = query.before()?;
    let process = before.same_process(epoll.process)?;
    let earlier = process.files.known()?.epolls.iter().find(|other| other.fd == epoll.epoll.fd)?;
    let target = earlier.targets.known()?.iter().find(|target| target.fd == fd)?;
    Some(match &target.file {
        WatchedFile::Other { ready, .. } => Before { was_ready: ready.known().copied(), cause: None },
        WatchedFile::Socket { inode } => {
            let socket = before.sockets.iter().find(|socket| socket.inode == *inode);
            Before { was_ready: None, cause: socket.and_then(|socket| cause_in_snapshot(target, socket)) }
        }
    })
}

fn observation(
    epoll: &EpollContext<'_>,
    severity: Severity,
    fd: i32,
    observed: String,
    cause: &ReadyCause,
) -> Observation {
    let mut nodes = epoll.nodes();
    nodes.push(Node::File { pid: epoll.process.pid, fd });
    Observation { severity, nodes, observed, fix: vec![Fix::advice(advice(cause))] }
}

fn of_cause(cause: &ReadyCause, fd: i32) -> String {
    match cause {
        ReadyCause::Writable => format!("socket {fd} is registered for EPOLLOUT and can be written"),
        ReadyCause::HalfClosed => format!("the peer of socket {fd} has closed, and the socket is still registered"),
        ReadyCause::Closed => format!("socket {fd} is closed by both sides, and still registered"),
        ReadyCause::Listener => format!("listener {fd} has connections that the program does not accept"),
        ReadyCause::Unread => format!("socket {fd} has data or errors that the program does not read"),
        ReadyCause::Urgent => format!("socket {fd} is registered for EPOLLPRI and has urgent data that is not read"),
        ReadyCause::File(kind) => format!("file {fd}, {}", kind_in_words(kind)),
        ReadyCause::WritableFile(kind) => {
            format!("file {fd}, {}, is registered for EPOLLOUT and can be written", kind_in_words(kind))
        }
        ReadyCause::HungUp(kind) => {
            format!("the other end of file {fd}, {}, is closed or never existed", kind_in_words(kind))
        }
    }
}

/// What the program has to do, or which modes it can have as it is.
fn advice(cause: &ReadyCause) -> String {
    let program = match cause {
        ReadyCause::Writable | ReadyCause::WritableFile(_) => {
            "register EPOLLOUT only while a write is incomplete, or with EPOLLET"
        }
        ReadyCause::HalfClosed | ReadyCause::Closed => "close or unregister connections that the peer has closed",
        ReadyCause::Listener => "accept until EAGAIN; if accept fails with EMFILE, raise its limit of open files",
        ReadyCause::Unread => "read the socket and its error queue until EAGAIN, or unregister it until it reads",
        ReadyCause::Urgent => "read urgent data with MSG_OOB, or not register EPOLLPRI",
        ReadyCause::HungUp(_) => "close or unregister it",
        ReadyCause::File(WatchedKind::Epoll) => "wait on it until it returns nothing",
        ReadyCause::File(WatchedKind::Named(name)) if name == "[pidfd]" => {
            "reap the process and close its pidfd, or watch it in another epoll"
        }
        ReadyCause::File(WatchedKind::Unnamed) => "unregister files (EPOLL_CTL_DEL) before it closes them",
        ReadyCause::File(_) => "read it until EAGAIN, or watch it in another epoll",
    };
    format!(
        "let the program {program}; or use a mode without suspension, such as defer20, if a measurement finds that it \
         pays"
    )
}

fn kind_in_words(kind: &WatchedKind) -> &str {
    match kind {
        WatchedKind::EventFd => "an eventfd",
        WatchedKind::TimerFd => "a timerfd",
        WatchedKind::SignalFd => "a signalfd",
        WatchedKind::Pipe => "a pipe",
        WatchedKind::Epoll => "another epoll",
        WatchedKind::OtherSocket => "a socket without a queue",
        WatchedKind::Named(name) if name == "[pidfd]" => "a pidfd",
        WatchedKind::Named(name) => name,
        WatchedKind::Unnamed => "a file without a descriptor",
    }
}

static ZERO_TIMEOUT: Rule = Rule {
    id: "waits-with-timeout-zero",
    severity: Severity::Serious,
    title: "calls that do not sleep leave the queue of an epoll unpolled",
    impact: "An epoll_wait that returns events without sleeping leaves the interrupt masked and does not poll the device. \
          Packets wait up to irq-suspend-timeout, or without suspension up to gro-flush-timeout.",
    source: "fs/eventpoll.c, ep_poll; measured: median latency 0.07 ms to 10.7 ms with an inner epoll, 20,000 \
             requests/s to 863 with threads that call in turn, under suspend20; 0.04 ms to 3.4 ms with an inner epoll \
             under fullbusy",
    explanation: "Detected if an epoll with prefer_busy_poll, on a queue with irq-suspend-timeout, or an epoll that \
                  busy-polls a queue with a gro-flush-timeout of at least 1 ms, was waited on at least 20 times in 500 \
                  ms (4 times if another epoll watches it), at least 99 % of the calls had timeout 0, no thread slept \
                  in it in a tenth of the samples, and one of these is true: another epoll watches it; its threads \
                  sleep in poll, select or io_uring_enter; its threads sleep elsewhere for most of the time (then 4 \
                  calls suffice, too; a note if they are farther apart than the timeout of the queue); most of the \
                  calls returned nothing. Calls with longer timeouts count, too, if at most 1 % of them slept and the \
                  program sleeps in an outer epoll, or in a poll of this one. Otherwise, and with fewer calls, it is \
                  unknown: a warning. Also detected if its only thread makes calls with longer timeouts, but for \
                  each at least 20 with timeout 0 that return nothing: packets that arrive during this spin wait for \
                  its end; a warning if it takes less than 1 ms. The calls are counted at the tracepoints sys_enter \
                  and sys_exit, which needs CAP_BPF and CAP_PERFMON; without them, Quell samples in which calls \
                  threads sleep. Two snapshots from files show only that a thread was running or waiting for a CPU at \
                  least 90 % of the time, for fewer than 1,000 packets per second, and never slept in epoll_wait: a \
                  warning, because what it spins on is not visible. Fix: a mode without busy polling; or quell run, \
                  which turns timeout 0 into a short wait under suspension, unless the program spins, or calls \
                  only when the epoll has events.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: zero_timeout,
};

/// One sleeping call in so many is as good as none.
const FEW: u64 = 100;

const RUN_OR_DEFER: &str = "start the program with `quell run`, which turns timeout 0 into a short wait, or use a mode \
                            without suspension, such as defer20; keep either if a measurement finds that it pays";

const SLEEP_OR_DEFER: &str = "use a mode in which the epoll does not poll, such as defer20, if a measurement finds that \
                              it pays, or let the program sleep in the epoll that has the connections";

fn zero_timeout(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let waits_long = |epoll: &EpollContext<'_>| query.longest_unpolled_ns(epoll).is_some_and(|ns| ns >= LONG_NS);
    let polling = query.epolls().filter(|epoll| query.suspends(epoll) || waits_long(epoll));
    let of = |epoll: &EpollContext<'_>| {
        let mut nodes = epoll.nodes();
        let (severity, observed, advice) = match query.behavior(epoll) {
            Some(behavior) => {
                let waits = waits_on(query, epoll, behavior);
                let (severity, observed) = of_waits(query, epoll, behavior, &waits)?;
                (severity, observed, advice_of_waits(query, epoll, behavior, &waits))
            }
            None => {
                let (thread, observed) = of_spinning(query, epoll)?;
                nodes.push(Node::from(thread));
                (Severity::Warning, observed, SLEEP_OR_DEFER)
            }
        };
        Some(Observation { severity, nodes, observed, fix: vec![Fix::advice(advice)] })
    };
    polling.filter_map(of).collect()
}

/// A call with a short wait ends the suspension only if it finds no events. A program that sleeps elsewhere makes such a
/// call only if it calls until the epoll has no events. In a program that spins, such a call makes the epoll forget its
/// queue, and packets wait for the timer.
fn advice_of_waits(
    query: &SnapshotQuery<'_>,
    epoll: &EpollContext<'_>,
    behavior: &Behavior,
    waits: &EpollWaits,
) -> &'static str {
    const EMPTY_ONE_OF: u64 = 4;
    if behavior.not_counted.is_none() && waits.calls() == 0 {
        return "look again at a lower load: without calls then, too, the program receives elsewhere, and only modes that \
                need no epoll work";
    }
    let is_called_if_ready = query.outer(epoll).is_some() || waits.polled > 0 || waits.sleeping_elsewhere > 0;
    let spins =
        spin_before_wait(behavior, waits).is_some() || !is_called_if_ready && !sleeps_elsewhere(behavior, waits);
    let is_drained = behavior.not_counted.is_none()
        && waits.zero_empty * EMPTY_ONE_OF >= waits.zero
        && waits.sleeping * FEW <= waits.zero;
    match query.suspends(epoll) && !spins && (is_drained || !is_called_if_ready) {
        true => RUN_OR_DEFER,
        false => SLEEP_OR_DEFER,
    }
}

/// Whether the threads of an epoll slept elsewhere for most of the time.
fn sleeps_elsewhere(behavior: &Behavior, waits: &EpollWaits) -> bool {
    waits.busy * 2 < behavior.waits_observed
}

/// Judges calls with timeouts above 0 that never sleep, because the program sleeps elsewhere until the epoll has events.
/// A saturated program does not sleep at all.
fn of_ready_waits(waits: &EpollWaits, outer: Option<&EpollContext<'_>>, time: &str) -> Option<(Severity, String)> {
    let calls = waits.calls();
    if calls < CALLS_OF_RESTING_MIN || waits.slept.saturating_mul(FEW) > calls {
        return None;
    }
    let (severity, sleeps) = match outer {
        Some(outer) => (Severity::Serious, format!("the program sleeps in epoll {}, which watches it", outer.epoll.fd)),
        None if waits.polled > 0 => (Severity::Serious, "the program sleeps in poll, which watches it".to_owned()),
        None if waits.sleeping_elsewhere > 0 => {
            let elsewhere = "its threads sleep in poll, select or io_uring_enter; whether that watches it is unknown";
            (Severity::Warning, elsewhere.to_owned())
        }
        None => return None,
    };
    Some((
        severity,
        format!("{} of {} in {time} slept; {sleeps}", thousands(&waits.slept.to_string()), counted(calls, "call")),
    ))
}

/// Judges the waits on an epoll; `None` if threads sleep in it.
fn of_waits(
    query: &SnapshotQuery<'_>,
    epoll: &EpollContext<'_>,
    behavior: &Behavior,
    waits: &EpollWaits,
) -> Option<(Severity, String)> {
    let time = duration_text(behavior.waits_observed);
    if let Some(spin) = spin_before_wait(behavior, waits) {
        let severity = if spin < Duration::from_nanos(LONG_NS) { Severity::Warning } else { Severity::Serious };
        let empty = thousands(&waits.zero_empty.to_string());
        let (others, spins) = (counted(waits.sleeping, "call"), duration_text(spin));
        let observed = format!(
            "in {time}, {empty} calls had timeout 0 and returned nothing, and {others} had a longer timeout: a thread spins \
             for up to {spins} before it waits"
        );
        return Some((severity, observed));
    }
    let sleeps_there = waits.is_slept_in || (behavior.not_counted.is_some() && waits.sleeping > 0);
    if !epoll.waiters.is_empty() || sleeps_there {
        return None;
    }
    let outer = query.outer(epoll);
    if let Some(why) = &behavior.not_counted {
        let observed = format!("in none of {} in {time} did a thread sleep in it", counted(behavior.samples, "sample"));
        let sleeps_in = |outer: &&EpollContext<'_>| behavior.waits.contains_key(&(outer.process.pid, outer.epoll.fd));
        return Some(match outer.filter(sleeps_in) {
            Some(outer) => {
                (Severity::Serious, format!("{observed}, but in epoll {}, which watches it", outer.epoll.fd))
            }
            None => (Severity::Warning, format!("{observed}; whether it is waited on is unknown: {why}")),
        });
    }
    if waits.sleeping.saturating_mul(FEW) > waits.zero {
        return of_ready_waits(waits, outer, &time);
    }
    let sleeps_elsewhere = sleeps_elsewhere(behavior, waits);
    if waits.zero < if outer.is_some() || sleeps_elsewhere { CALLS_OF_RESTING_MIN } else { CALLS_MIN } {
        let why = match waits.calls() {
            0 => {
                "its threads receive elsewhere, as in recv(2), or handle events of one call for longer, as under overload"
            }
            _ => "too few to tell whether a thread sleeps in it",
        };
        return Some((Severity::Warning, format!("{} in {time}: {why}", counted(waits.zero, "call"))));
    }
    let calls = match waits.sleeping {
        0 => format!("all {} in {time} had timeout 0", counted(waits.zero, "call")),
        _ => format!(
            "{} of {} in {time} had timeout 0",
            thousands(&waits.zero.to_string()),
            counted(waits.calls(), "call")
        ),
    };
    Some(match cause_of_zero((waits, sleeps_elsewhere), outer, &calls) {
        ZeroCause::Frames(observed) => match frames_between_timers(query, epoll, (waits, behavior)) {
            Some(frames) => (Severity::Note, format!("{observed}; {frames}")),
            None => (Severity::Serious, observed),
        },
        ZeroCause::Serious(observed) => (Severity::Serious, observed),
        ZeroCause::Unknown(observed) => (Severity::Warning, observed),
    })
}

/// Fewest calls with timeout 0 that return nothing, for each that would wait, from which a thread spins before it waits.
const EMPTY_PER_WAIT: u64 = 20;
/// Shortest such spin that matters.
const SPIN_MIN: Duration = Duration::from_micros(50);

/// Mean time for which the only thread of an epoll calls with timeout 0, and handles events, before it waits, and so polls.
/// Another thread could poll in that time.
fn spin_before_wait(behavior: &Behavior, waits: &EpollWaits) -> Option<Duration> {
    let is_spin = behavior.not_counted.is_none()
        && waits.threads == 1
        && waits.sleeping >= CALLS_OF_RESTING_MIN
        && waits.zero_empty >= waits.sleeping.saturating_mul(EMPTY_PER_WAIT);
    let spin = waits.busy.div_f64(waits.sleeping.max(1) as f64);
    (is_spin && spin >= SPIN_MIN).then_some(spin)
}

/// Text about calls that do not poll and are farther apart than the timer of the queue. The timer then polls before the
/// next call, so the mode does not delay packets.
fn frames_between_timers(
    query: &SnapshotQuery<'_>,
    epoll: &EpollContext<'_>,
    (waits, behavior): (&EpollWaits, &Behavior),
) -> Option<String> {
    let calls = waits.calls();
    if behavior.not_counted.is_some() || calls < CALLS_OF_RESTING_MIN {
        return None;
    }
    let every = behavior.waits_observed.div_f64(calls as f64);
    let timeout = query.longest_unpolled_ns(epoll).map(Duration::from_nanos).filter(|timeout| *timeout < every)?;
    let [every, timeout] = [every, timeout].map(duration_text);
    Some(format!("the calls are {every} apart, and packets wait for up to {timeout}"))
}

/// Why calls have timeout 0, in words.
enum ZeroCause {
    /// The thread sleeps elsewhere for a fixed time.
    Frames(String),
    Serious(String),
    Unknown(String),
}

fn cause_of_zero(
    (waits, sleeps_elsewhere): (&EpollWaits, bool),
    outer: Option<&EpollContext<'_>>,
    calls: &str,
) -> ZeroCause {
    if let Some(outer) = outer {
        let observed = format!("{calls}; the program sleeps in epoll {}, which watches it", outer.epoll.fd);
        return ZeroCause::Serious(observed);
    }
    if waits.polled > 0 {
        return ZeroCause::Serious(format!("{calls}; the program sleeps in poll, which watches it"));
    }
    if waits.sleeping_elsewhere > 0 && waits.zero_empty * 2 < waits.zero {
        return ZeroCause::Serious(format!("{calls}; their threads sleep in poll, select or io_uring_enter instead"));
    }
    if sleeps_elsewhere {
        let threads = counted(waits.threads as usize, "thread");
        return ZeroCause::Frames(format!("{calls}; {threads} slept elsewhere for most of the time"));
    }
    if waits.zero_empty * 2 >= waits.zero {
        let empty = format!("{} returned nothing", thousands(&waits.zero_empty.to_string()));
        return ZeroCause::Serious(match waits.threads {
            0 | 1 => format!("{calls}, and {empty}: the thread spins"),
            threads => format!("{calls}, and {empty}: {threads} threads call in turn"),
        });
    }
    ZeroCause::Unknown(format!("{calls} and most returned events; whether a thread sleeps in it when idle is unknown"))
}

static BLOCKS: Rule = Rule {
    id: "blocks-on-polled-queue",
    severity: Severity::Serious,
    title: "a thread sleeps for a packet of the queue that it has to poll",
    impact: "While a thread handles the events of one epoll_wait, nobody polls its queue. A call that sleeps for a packet \
          of this queue ends after irq-suspend-timeout, or without suspension after gro-flush-timeout.",
    source: "fs/eventpoll.c, ep_suspend_napi_irqs; net/core/dev.c, busy_poll_stop; measured with a synchronous query \
             of a database for each request: median latency 0.13 ms to 40 ms under suspend20, 0.06 ms to 77 ms under \
             fullbusy",
    explanation: "Detected if threads that receive events from an epoll slept at least 4 times in 500 ms outside of \
                  it, in recv, send, connect or poll, for TCP or UDP sockets of a queue of this epoll, and the epoll \
                  suspends the interrupt, or polls the queue while it is deferred: a query of a database or a name \
                  server for each request, or a long answer that is sent by blocking calls. A warning if these \
                  timeouts are below 1 ms. The calls are counted as for waits-with-timeout-zero; without the \
                  capabilities, nothing is detected. Of a poll, the first 4 files are examined; those of select are \
                  not. Fix: a mode without busy polling, another queue for these sockets, or a program that waits for \
                  them in the epoll, too.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: blocks,
};

/// Delay of a packet from which a program counts as stalled.
const LONG_NS: u64 = 1_000_000;

fn blocks(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |epoll: &EpollContext<'_>| {
        let behavior = query.behavior(epoll)?;
        let of = |one: &EpollContext<'_>| behavior.blocked.get(&(one.process.pid, one.epoll.fd));
        let blocked = query.descriptors(epoll).filter_map(of).flatten();
        let delayed = blocked.filter_map(|(&napi, &calls)| Some((calls, query.unpolled_ns(epoll, napi)?)));
        let (calls, longest_ns) =
            delayed.fold((0, 0), |(calls, longest), (more, ns)| (calls + more, u64::max(longest, ns)));
        (calls >= CALLS_OF_RESTING_MIN).then(|| Observation {
            severity: if longest_ns < LONG_NS { Severity::Warning } else { Severity::Serious },
            nodes: epoll.nodes(),
            observed: format!(
                "{} in {}, a thread slept for a socket of this queue between two calls of epoll_wait, for up to {} each \
                 in this mode",
                counted(calls, "time"),
                duration_text(behavior.waits_observed),
                time_text(longest_ns)
            ),
            fix: vec![Fix::advice(
                "use a mode in which the epoll does not poll, such as defer20, if a measurement finds that it pays; or \
                 another queue for these sockets, or a program that waits for them in the epoll, too",
            )],
        })
    };
    query.epolls().filter_map(of).collect()
}

/// Share of the time for which a thread that spins can run.
const SPINNING: f64 = 0.9;
const FEW_PER_S: u128 = 1_000;

/// A thread of the epoll's program that never sleeps although few packets arrive.
fn of_spinning<'a>(query: &SnapshotQuery<'a>, epoll: &EpollContext<'a>) -> Option<(&'a Thread, String)> {
    if !epoll.waiters.is_empty() {
        return None;
    }
    let interval_ns = query.interval_ns()?;
    let (device, napi) = epoll.by_napi.keys().filter_map(|&id| query.napi(id)).find(|(_, napi)| napi.suspends())?;
    let packets = query.queue_packets(device, napi.id)?;
    if u128::from(packets) * 1_000_000_000 >= FEW_PER_S * u128::from(interval_ns) {
        return None;
    }
    let share_of = |thread: &'a Thread| {
        let asleep_elsewhere = matches!(thread.epoll_wait.known(), Some(Some(_)));
        query.runnable_share(epoll.process, thread).filter(|_| !asleep_elsewhere).map(|share| (thread, share))
    };
    let mut shares = epoll.process.threads.known()?.iter().filter_map(share_of);
    let (thread, share) = shares.find(|(_, share)| *share >= SPINNING)?;
    let (time, packets) = (time_text(interval_ns), counted(packets, "packet"));
    Some((thread, format!("a thread was runnable for {:.0} % of {time}, for {packets}", share * 100.0)))
}
