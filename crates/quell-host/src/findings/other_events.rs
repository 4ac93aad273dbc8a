//! Rules about calls of `epoll_wait` that return events which no queue delivers, or that the program does not read, or
//! reads in parts: such a call does not poll the queue.

use std::time::Duration;

use quell_linux::visible::{counted, thousands};

use super::fix::Fix;
use super::queues::strace_of_waits;
use super::stalls::{CALLS_MIN, waits_on};
use super::text::duration_text;
use super::{Observation, Rule, Severity};
use crate::behavior::{Behavior, EpollWaits, is_reported_by_each_wait};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{SnapshotSocket, SocketState, WatchedFile, WatchedTarget};

pub(super) static OTHER_EVENTS: Rule = Rule {
    id: "other-events-hold-suspension",
    severity: Severity::Serious,
    title: "events that no queue delivers keep an epoll from polling",
    impact: "An epoll_wait that finds such an event re-arms the suspension and does not poll the device. If each call finds \
          one, packets wait until the program has nothing else to do; irq-suspend-timeout does not help.",
    source: "fs/eventpoll.c, ep_poll and ep_set_busy_poll_napi_id; measured with three local clients of a saturated \
             server: packets of others waited for up to 436 ms under suspend200",
    explanation: "Detected if an epoll with prefer_busy_poll, on a queue with irq-suspend-timeout, was waited on at least \
                  20 times in 500 ms, at most 5 % of the calls slept, and its threads read files without a queue about \
                  as often: connections that were accepted from local clients or arrive without a NAPI instance, pipes, \
                  eventfds, unix sockets. Reads of connections that the program itself opened, and of files, are often \
                  answers to requests from the queue, which end without them; they count if they are nine tenths of all \
                  reads. The calls are counted as for waits-with-timeout-zero; without the capabilities, nothing is \
                  detected. Fix: a mode without suspension, or another process that serves local clients.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: other_events,
};

pub(super) static PARTIAL_READS: Rule = Rule {
    id: "partial-reads-hold-suspension",
    severity: Severity::Serious,
    title: "data that reads leave in connections keep an epoll from polling",
    impact: "An epoll_wait that reports the rest of the data re-arms the suspension and does not poll the device. Packets \
          wait until the program has read all data of all its connections.",
    source: "fs/eventpoll.c, ep_poll and ep_send_events; measured with a server that reads 16 of 64 bytes for each event \
             and takes 300 µs for a batch: p50 1.9 ms to 2.6 ms under suspend200",
    explanation: "Detected if an epoll with prefer_busy_poll, on a queue with irq-suspend-timeout, watches TCP connections \
                  without EPOLLET, at least 20 calls in 500 ms began after a read that left data in its connection, and \
                  handling the events before these takes at least 0.5 ms for each other call. A server that handles \
                  events faster loses little. The calls are counted as for waits-with-timeout-zero; without the \
                  capabilities, nothing is detected. Fix: read until EAGAIN, or with a larger buffer; a mode without \
                  suspension.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: partial_reads,
};

/// Shortest time of partial reading, for each other call, that delays packets noticeably.
const PARTIAL_READING_MIN: Duration = Duration::from_micros(500);

fn partial_reads(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |epoll: &EpollContext<'_>| {
        let behavior = query.behavior(epoll).filter(|behavior| behavior.not_counted.is_none())?;
        let is_reported_again = |target: &WatchedTarget| {
            let WatchedFile::Socket { inode } = target.file else { return false };
            let is_connection = |socket: &SnapshotSocket| socket.state == SocketState::Established;
            is_reported_by_each_wait(target.events) && query.socket(inode).is_some_and(is_connection)
        };
        let waits = waits_on(query, epoll, behavior);
        if !hold_suspension(&waits) || !epoll.epoll.targets.known_elements().any(is_reported_again) {
            return None;
        }
        let time = duration_text(behavior.waits_observed);
        let (partial, calls) = (thousands(&waits.after_partial_read.to_string()), counted(waits.calls(), "call"));
        Some(Observation {
            severity: Severity::Serious,
            nodes: epoll.nodes(),
            observed: format!(
                "in {time}, {partial} of {calls} began after a read that left data in its connection: these return at once \
                 and poll nothing"
            ),
            fix: vec![Fix::advice(
                "let the program read until EAGAIN, or with a larger buffer; or use a mode without suspension, such as \
                 defer20, if a measurement finds that it pays",
            )],
        })
    };
    query.epolls().filter(|epoll| query.suspends(epoll)).filter_map(of).collect()
}

/// Whether calls after partial reads keep the program from polling for [`PARTIAL_READING_MIN`].
fn hold_suspension(waits: &EpollWaits) -> bool {
    let others = waits.calls().saturating_sub(waits.after_partial_read).max(1);
    waits.after_partial_read >= CALLS_MIN && waits.partial_reading.div_f64(others as f64) >= PARTIAL_READING_MIN
}

/// Share of calls that find an event of another source, if each does: its read may be in a later call.
const NEARLY_ALL: f64 = 0.9;
const NEARLY_NONE: f64 = 0.05;

fn other_events(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |epoll: &EpollContext<'_>| {
        let behavior = query.behavior(epoll).filter(|behavior| behavior.not_counted.is_none())?;
        let ready = |one: &EpollContext<'_>| behavior.ready.contains_key(&(one.process.pid, one.epoll.fd));
        if query.descriptors(epoll).any(ready) {
            return None;
        }
        let events = of_other_events(&waits_on(query, epoll, behavior))?;
        let time = duration_text(behavior.waits_observed);
        Some(Observation {
            severity: Severity::Serious,
            nodes: epoll.nodes(),
            observed: format!("in {time}, {events}"),
            fix: vec![Fix::advice(
                "use a mode without suspension, such as defer20, if a measurement finds that it pays, or another process \
                 that serves local clients",
            )],
        })
    };
    query.epolls().filter(|epoll| query.suspends(epoll)).filter_map(of).collect()
}

/// How a program without sleep receives events from sources other than its queues at each call.
fn of_other_events(waits: &EpollWaits) -> Option<String> {
    let calls = waits.calls();
    if calls < CALLS_MIN || waits.slept as f64 > calls as f64 * NEARLY_NONE {
        return None;
    }
    let is_at_each_call = |reads: u64| reads as f64 >= calls as f64 * NEARLY_ALL;
    let all = waits.read_of_others.saturating_add(waits.read_of_queues);
    let (reads, of) = match waits {
        waits if is_at_each_call(waits.read_of_accepted) => {
            (waits.read_of_accepted, "accepted connections without a queue, such as those of local clients")
        }
        waits if is_at_each_call(waits.read_of_others) && waits.read_of_others as f64 >= all as f64 * NEARLY_ALL => {
            (waits.read_of_others, "files without a queue")
        }
        _ => return None,
    };
    let (slept, calls) = (waits.slept, counted(calls, "call"));
    let of_queues = counted(waits.read_of_queues, "read");
    Some(format!(
        "{slept} of {calls} slept, with {} of {of} and {of_queues} of sockets of queues",
        counted(reads, "read")
    ))
}

/// Calls that returned without sleep, for each that read something, from which the others returned what nobody read.
const CALLS_PER_READ: u64 = 4;
/// Longest time of a call and what follows it, if nothing was done about its events.
const CALL_WITHOUT_WORK: Duration = Duration::from_micros(10);
/// Part of the time from which it matters.
const UNREAD_PART: f64 = 0.05;

/// Calls that returned events which nobody read: an object is ready for a part of the time. A program that handles events
/// takes longer for a call, also if it only writes.
pub(super) fn unread_events(epoll: &EpollContext<'_>, behavior: &Behavior, waits: &EpollWaits) -> Option<Observation> {
    let (calls, time) = unread_calls(behavior, waits)?;
    let (during, returned, time) =
        (duration_text(behavior.waits_observed), counted(calls, "call"), duration_text(time));
    let reads = counted(waits.reads(), "read");
    let strace = strace_of_waits(&epoll.process.pid.to_string());
    Some(Observation {
        severity: Severity::Serious,
        nodes: epoll.nodes(),
        observed: format!(
            "in {during}, {returned} returned without sleep, with {reads}: an object was ready for up to {time}, and was not \
             read"
        ),
        fix: vec![Fix::advice(format!(
            "let the program read what is ready, or unregister it until it does; `{strace}` shows which object it is; or \
             use a mode without suspension, such as defer20, if a measurement finds that it pays"
        ))],
    })
}

/// The number of those calls, and the time that they took. Of several threads that share an epoll, one can return what another
/// is about to read.
fn unread_calls(behavior: &Behavior, waits: &EpollWaits) -> Option<(u64, Duration)> {
    let without_sleep = waits.sleeping.saturating_sub(waits.slept).min(waits.returned);
    let is_shared = waits.threads > 1;
    if is_shared
        || behavior.not_counted.is_some()
        || without_sleep < CALLS_MIN.max(waits.reads().saturating_mul(CALLS_PER_READ))
    {
        return None;
    }
    let each = waits.busy.div_f64(waits.calls() as f64);
    let time = each.mul_f64(without_sleep as f64);
    let is_long = time >= behavior.waits_observed.mul_f64(UNREAD_PART);
    (each <= CALL_WITHOUT_WORK && is_long).then_some((without_sleep, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_return_at_once_and_read_nothing_show_an_object_that_is_ready_for_a_part_of_the_time() {
        let behavior = Behavior { waits_observed: Duration::from_millis(500), ..Behavior::default() };
        let held = EpollWaits {
            sleeping: 60_300,
            slept: 300,
            returned: 60_200,
            busy: Duration::from_millis(240),
            read_of_queues: 300,
            threads: 1,
            ..EpollWaits::default()
        };
        let found = |waits: EpollWaits| unread_calls(&behavior, &waits).is_some();
        assert!(found(held));
        assert!(!found(EpollWaits { read_of_queues: 30_000, ..held }), "a saturated server reads what is ready");
        assert!(!found(EpollWaits { read_elsewhere: 60_000, ..held }), "other threads read");
        assert!(!found(EpollWaits { threads: 2, ..held }), "another thread is about to read");
        assert!(!found(EpollWaits { busy: Duration::from_millis(5), ..held }), "for 1 % of the time");
        let writes = EpollWaits { sleeping: 10_300, returned: 10_200, ..held };
        assert!(!found(writes), "24 µs for a call: it writes");
        let uncounted = Behavior { not_counted: Some("needs CAP_BPF".to_owned()), ..behavior.clone() };
        assert!(unread_calls(&uncounted, &held).is_none());
    }

    #[test]
    fn partial_reads_matter_if_they_keep_a_program_from_polling_for_long() {
        let slow = EpollWaits {
            sleeping: 1_300,
            after_partial_read: 900,
            partial_reading: Duration::from_millis(330),
            ..EpollWaits::default()
        };
        assert!(hold_suspension(&slow));
        let fast = EpollWaits { partial_reading: Duration::from_millis(18), ..slow };
        assert!(!hold_suspension(&fast));
        let few = EpollWaits { sleeping: 25, after_partial_read: 15, ..slow };
        assert!(!hold_suspension(&few), "some large requests");
    }

    #[test]
    fn other_events_hold_the_suspension_if_each_call_finds_one_and_the_queue_does_not_cause_them() {
        let saturated = EpollWaits { sleeping: 400, slept: 4, ..EpollWaits::default() };
        let with = |of_queues, of_others, of_accepted| {
            let reads = EpollWaits {
                read_of_queues: of_queues,
                read_of_others: of_others,
                read_of_accepted: of_accepted,
                ..saturated
            };
            of_other_events(&reads)
        };
        assert!(with(900, 500, 500).is_some(), "local clients");
        assert!(with(20, 500, 0).is_some(), "an eventfd");
        assert_eq!(with(450, 500, 0), None, "a proxy whose upstream is local");
        assert_eq!(with(900, 100, 100), None, "some calls find none");
        let sleeps = EpollWaits { slept: 40, read_of_others: 500, read_of_accepted: 500, ..saturated };
        assert_eq!(of_other_events(&sleeps), None, "calls that sleep poll");
    }
}
