//! The hot loop of one generator thread: it sends due requests, receives answers, and records both. It neither
//! allocates nor locks. An open loop reads the clock once per send and once per receive. A closed loop reads it once
//! per receive and uses the same time as the send time of the connection's next request.
//!
//! # Reasons for this design
//!
//! `docs/results/generator.md` has the measurements; `benches/generator_limit` repeats them.
//!
//! - A closed loop answers each response with the connection's next request at once, as mutilate, wrk and
//!   memtier_benchmark do. If it read all ready connections first, the generator would be faster, because the kernel's
//!   receive and send paths stay in the caches. But the server would receive batches that independent clients do not
//!   send, and the modes would be compared under traffic shaped by the generator. That order is an option
//!   ([`Pace::ClosedBatched`]).
//! - An edge-triggered `epoll_wait` is as fast as a level-triggered one, and as fast as non-blocking receives without
//!   epoll, oldest request first. With `SO_PREFER_BUSY_POLL` and deferral on the client's NAPI, such receives are a
//!   third faster, because they avoid interrupts and NAPI thread wake-ups.
//! - Busy polling in `epoll_wait` with a timeout of 1 ns is no faster: each call that finds nothing clears the epoll's
//!   NAPI ID. Timeouts in `epoll_wait` cost 2 %, so a ticker is used instead.
//! - `SO_PREFER_BUSY_POLL` without deferral on the client's NAPI does not avoid the wake-ups of the NAPI thread. A
//!   closed loop is slower than with an epoll, so busy polling is enabled only with deferral.
//! - The clock: `clock_gettime` takes 33 to 47 ns, `rdtsc` 20 to 31, `rdtscp` 23 to 37. A self-calibrated clock would
//!   save 1 % of the CPU cost of a request, but would need code to track drift. Reading the clock once for all answers
//!   of one `epoll_wait` would save as much, but would date answers too early when they arrive in pieces. Neither is
//!   implemented.
//!
//! The design is therefore: edge-triggered epoll that sleeps in a closed loop and spins in an open loop; receives that
//! busy poll if the client's NAPIs are deferred.

mod finder;
mod send_order;
mod upkeep;
mod windows;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quell_linux::clock::monotonic_ns;

use crate::arrivals::Arrivals;
use crate::connection::{Connection, Pending, Socket};
use crate::report::Tally;
use crate::requests::{Content, Request, Source};
use crate::response::{Answer, Parsed};
use crate::spec::Transport;

pub(crate) use finder::Finder;
use finder::TICK_TOKEN;
pub(crate) use windows::{NO_WINDOW, WindowNotice, WindowOrder, WindowPort, WindowStage};

/// Interval between checks outside the hot path: cancellation, lost connections, timeouts, windows.
const HOUSEKEEPING_NS: u64 = 1_000_000;

/// How many times the longest-waiting connection is checked before the next one is.
const TRIES_AT_FRONT: u32 = 3;

pub(crate) enum Pace {
    Open(Arrivals),
    /// Closed loop: each response is followed by the next request of its connection at once.
    Closed,
    /// Closed loop: all available responses are read before the next requests are sent.
    ClosedBatched,
}

pub(crate) struct Plan {
    pub(crate) pace: Pace,
    pub(crate) source: Source,
    pub(crate) start_ns: u64,
    /// The measured window. Without `port`, nothing is sent after it ends.
    pub(crate) window_ns: Range<u64>,
    /// Receives the orders for further windows, if the load keeps running.
    pub(crate) port: Option<WindowPort>,
    pub(crate) stop_at_error: bool,
}

/// State that a thread keeps between runs.
pub(crate) struct ThreadState {
    pub(crate) connections: Vec<Connection>,
    pub(crate) finder: Finder,
    pub(crate) content: Arc<Content>,
    pub(crate) depth: u32,
    pub(crate) connect_timeout_ns: u64,
    pub(crate) response_timeout_ns: u64,
    /// Receive buffer, larger than any datagram.
    pub(crate) buffer: Box<[u8]>,
    pub(crate) out: Vec<u8>,
    pub(crate) transport: Transport,
    pub(crate) cancel: Arc<AtomicBool>,
    /// Number of answers so far, shared for progress reports.
    pub(crate) answered: Arc<AtomicU64>,
}

struct Slot {
    connection: u32,
    incarnation: u32,
    freed_ns: u64,
}

/// Batched closed loop: `count` free request slots on a connection.
#[derive(Clone, Copy)]
struct Room {
    connection: u32,
    incarnation: u32,
    count: usize,
}

pub(crate) struct Drive<'a> {
    thread: &'a mut ThreadState,
    plan: Plan,
    tally: Tally,
    free: VecDeque<Slot>,
    /// Batched closed loop: connections with free slots. The slots are used after all available answers have been read.
    room: Vec<Room>,
    under_way: u64,
    any_down: bool,
    /// No connection is established: there is nothing to send and nothing to receive until one is.
    all_down: bool,
    sending: bool,
    /// Requests due at this time or later are not sent.
    end_ns: u64,
    answered: u64,
    misses_at_front: u32,
    exhausted: bool,
}

impl<'a> Drive<'a> {
    pub(crate) fn new(thread: &'a mut ThreadState, plan: Plan) -> Self {
        let slots = thread.connections.len() * thread.depth as usize;
        Self {
            free: VecDeque::with_capacity(slots),
            room: Vec::with_capacity(slots),
            any_down: thread.connections.iter().any(|connection| connection.socket().is_none()),
            all_down: false,
            thread,
            end_ns: plan.window_ns.end,
            plan,
            tally: Tally::default(),
            under_way: 0,
            sending: true,
            answered: 0,
            misses_at_front: 0,
            exhausted: false,
        }
    }

    pub(crate) fn run(mut self) -> io::Result<Tally> {
        // Spins, because all threads begin at one time, and a wake-up from a sleep would be late by more than a gap of
        // a high rate.
        while monotonic_ns() < self.plan.start_ns && !self.is_cancelled() {
            std::hint::spin_loop();
        }
        for id in 0..self.thread.connections.len() as u32 {
            self.open_slots(id, monotonic_ns());
        }
        self.use_room();
        self.go_until(self.end_ns)?;
        self.sending = false;
        if let Pace::Open(arrivals) = &self.plan.pace
            && !self.is_cancelled()
        {
            self.tally.never_sent = arrivals.expected_until(self.end_ns);
        }
        self.go_until(monotonic_ns() + self.thread.response_timeout_ns)?;
        self.give_up_unanswered();
        Ok(self.tally)
    }

    fn go_until(&mut self, end_ns: u64) -> io::Result<()> {
        let mut housekeeping_ns = 0;
        loop {
            let now_ns = monotonic_ns();
            // Everything that may be some milliseconds late happens here, so that a round is only: send, look, answer.
            if now_ns >= housekeeping_ns {
                if self.is_cancelled() || (self.plan.stop_at_error && !self.tally.errors.is_empty()) {
                    return Ok(());
                }
                self.keep_house(now_ns);
                housekeeping_ns = self.next_housekeeping_ns(now_ns);
            }
            let nothing_left = self.under_way == 0 && (!self.sending || self.exhausted);
            if now_ns >= end_ns || nothing_left {
                return Ok(());
            }
            if self.all_down {
                std::thread::sleep(Duration::from_nanos(HOUSEKEEPING_NS));
                continue;
            }
            self.send_due(now_ns);
            self.look_for_answers()?;
        }
    }

    fn is_cancelled(&self) -> bool {
        self.thread.cancel.load(Ordering::Relaxed)
    }

    /// Open loop: sends every due request while a connection is free.
    #[inline]
    fn send_due(&mut self, mut now_ns: u64) {
        loop {
            let Pace::Open(arrivals) = &self.plan.pace else { return };
            let due_ns = arrivals.due_ns();
            if due_ns > now_ns || !self.sending || due_ns >= self.end_ns {
                return;
            }
            // Without a free connection the request stays due. Its latency counts from `due_ns`, so the time that it
            // waits here is part of it, and a slow server cannot slow the arrivals down unnoticed.
            let Some(slot) = self.take_slot() else { return };
            if let Pace::Open(arrivals) = &mut self.plan.pace {
                arrivals.advance();
            }
            if self.plan.window_ns.contains(&due_ns) {
                // Late is only what the generator adds. A connection that was busy at `due_ns` is the delay of the
                // server.
                self.tally.lateness.record(now_ns.saturating_sub(due_ns.max(slot.freed_ns)));
                self.tally.waited_for_connection += u64::from(slot.freed_ns > due_ns);
            }
            self.send(slot.connection, 1, due_ns, now_ns);
            now_ns = monotonic_ns();
        }
    }

    #[inline]
    fn take_slot(&mut self) -> Option<Slot> {
        loop {
            let slot = self.free.pop_front()?;
            // Slots of a lost connection are skipped here, because removing them when it is lost would search the whole
            // queue.
            if self.thread.connections[slot.connection as usize].incarnation == slot.incarnation {
                return Some(slot);
            }
        }
    }

    /// Sends `count` requests on a connection with one system call.
    #[inline]
    fn send(&mut self, id: u32, count: usize, due_ns: u64, sent_ns: u64) {
        let ThreadState { connections, out, content, finder, .. } = &mut *self.thread;
        let connection = &mut connections[id as usize];
        out.clear();
        for _ in 0..count {
            let Some(request) = self.plan.source.next() else {
                self.exhausted = true;
                break;
            };
            content.write(request, out);
            connection.pending.push_back(Pending { request, due_ns, sent_ns });
            self.under_way += 1;
            self.tally.sent += u64::from(self.plan.window_ns.contains(&due_ns));
        }
        if let Finder::BusyPoll(queue) = finder
            && !connection.queued
            && !connection.pending.is_empty()
        {
            connection.queued = true;
            queue.push_back(id);
        }
        if !out.is_empty() && connection.send(out).is_err() {
            self.lose(id, sent_ns);
        }
    }

    #[inline]
    fn look_for_answers(&mut self) -> io::Result<()> {
        match &mut self.thread.finder {
            Finder::Epoll { epoll, .. } => {
                // An open loop must not sleep: its next request can be due before the next answer. A closed loop has
                // nothing to do until one arrives.
                let spins = self.sending && matches!(self.plan.pace, Pace::Open(_));
                epoll.wait(spins.then_some(Duration::ZERO))?;
                self.take_ready();
                self.use_room();
            }
            Finder::BusyPoll(queue) => {
                let Some(id) = queue.pop_front() else {
                    self.use_room();
                    std::hint::spin_loop();
                    return Ok(());
                };
                self.thread.connections[id as usize].queued = false;
                let found = self.take_answers(id);
                self.queue_again(id, found);
                if !found {
                    self.use_room();
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn take_ready(&mut self) {
        let mut index = 0;
        while let Finder::Epoll { epoll, ticker } = &self.thread.finder
            && let Some(ready) = epoll.get(index)
        {
            index += 1;
            if ready.token == TICK_TOKEN {
                // The ticker was reported as ready, so the read cannot fail. An open loop needs no tick.
                let _ = ticker.take();
                continue;
            }
            let id = ready.token as u32;
            self.take_answers(id);
            // A short read ends the first call before it sees the end of the stream, and an edge-triggered epoll does
            // not report it again.
            if ready.hung_up {
                self.take_answers(id);
            }
        }
    }

    /// Busy polling: moves a connection without an answer to the end of the queue after several checks. It is not moved
    /// at once, because answers arrive nearly in the order of the requests.
    fn queue_again(&mut self, id: u32, found: bool) {
        let ThreadState { connections, finder: Finder::BusyPoll(queue), .. } = &mut *self.thread else { return };
        let connection = &mut connections[id as usize];
        self.misses_at_front = if found { 0 } else { self.misses_at_front + 1 };
        if connection.queued || connection.pending.is_empty() {
            return;
        }
        connection.queued = true;
        if found || self.misses_at_front >= TRIES_AT_FRONT {
            self.misses_at_front = 0;
            queue.push_back(id);
        } else {
            queue.push_front(id);
        }
    }

    /// Reads a connection until it is empty. Returns whether it had data.
    #[inline]
    fn take_answers(&mut self, id: u32) -> bool {
        let mut found = false;
        loop {
            let ThreadState { connections, buffer, .. } = &mut *self.thread;
            let connection = &mut connections[id as usize];
            let Some(socket) = connection.socket() else { return found };
            let received = socket.receive(buffer);
            match received {
                Ok(0) => {
                    self.lose(id, monotonic_ns());
                    return true;
                }
                Ok(length) => {
                    found = true;
                    // A short read has emptied the socket: this saves the call that would only return EAGAIN.
                    let more = length == buffer.len();
                    self.take(id, length, monotonic_ns());
                    if !more {
                        return found;
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    if connection.has_rest() && connection.send_rest().is_err() {
                        self.lose(id, monotonic_ns());
                    }
                    return found;
                }
                Err(_) => {
                    self.lose(id, monotonic_ns());
                    return true;
                }
            }
        }
    }

    #[inline]
    fn take(&mut self, id: u32, length: usize, now_ns: u64) {
        let ThreadState { connections, buffer, content, .. } = &mut *self.thread;
        let connection = &mut connections[id as usize];
        let is_datagram = connection.socket().is_some_and(|socket| socket.is_datagram());
        let before = connection.pending.len();
        let (pending, tally, window) = (&mut connection.pending, &mut self.tally, &self.plan.window_ns);
        let received = &buffer[..length.min(buffer.len())];
        let mut is_last = false;
        let understood = connection.reader.feed(received, |bytes| {
            let Some(&front) = pending.front() else { return Parsed::Malformed };
            let parsed = content.parse(front.request, bytes);
            if let Parsed::Complete { answer, .. } | Parsed::Last { answer, .. } = parsed {
                pending.pop_front();
                record(tally, window, front, answer, now_ns);
            }
            is_last |= matches!(parsed, Parsed::Last { .. });
            parsed
        });
        let freed = before - connection.pending.len();
        connection.has_answered |= freed > 0;
        self.under_way -= freed as u64;
        self.answered += freed as u64;
        if !understood || (is_datagram && connection.reader.is_amid()) {
            self.tally.errors.malformed += 1;
            return self.drop_connection(id, now_ns);
        }
        if is_last {
            // The next request needs another connection.
            return self.drop_until(id, now_ns);
        }
        self.reuse(id, freed, now_ns);
    }

    /// Uses `count` slots of a connection that became free at `now_ns`. A closed loop sends the next requests with one
    /// system call. They are due at `now_ns`, or when they are sent if the loop sends in batches. An open loop sends
    /// the next request when it is due.
    #[inline]
    fn reuse(&mut self, id: u32, count: usize, now_ns: u64) {
        if count == 0 {
            return;
        }
        let incarnation = self.thread.connections[id as usize].incarnation;
        match self.plan.pace {
            Pace::Closed if self.sending => self.send(id, count, now_ns, now_ns),
            Pace::Closed => {}
            Pace::ClosedBatched => self.room.push(Room { connection: id, incarnation, count }),
            Pace::Open(_) => {
                for _ in 0..count {
                    self.free.push_back(Slot { connection: id, incarnation, freed_ns: now_ns });
                }
                self.send_due(now_ns);
            }
        }
    }

    /// Batched closed loop: sends on all connections with free slots. Reading all answers before sending keeps the
    /// kernel's receive and send paths in the caches. The server receives a batch, which independent clients would not
    /// send.
    fn use_room(&mut self) {
        let mut index = 0;
        while let Some(&Room { connection, incarnation, count }) = self.room.get(index) {
            index += 1;
            if self.sending && self.thread.connections[connection as usize].incarnation == incarnation {
                let now_ns = monotonic_ns();
                self.send(connection, count, now_ns, now_ns);
            }
        }
        self.room.clear();
    }

    fn open_slots(&mut self, id: u32, now_ns: u64) {
        if self.thread.connections[id as usize].socket().is_some() {
            self.reuse(id, self.thread.depth as usize, now_ns);
        }
    }

    fn lose(&mut self, id: u32, now_ns: u64) {
        self.tally.errors.connections_lost += 1;
        let connection = &self.thread.connections[id as usize];
        // Servers such as nginx close a connection after a number of requests, and expect another one.
        let is_between_answers = connection.has_answered && !connection.reader.is_amid();
        self.drop_until(id, if is_between_answers { now_ns } else { now_ns + Connection::RETRY_NS });
    }

    /// Drops a connection after a wrong or a missing answer. A datagram socket is replaced at once: no server has to
    /// accept it.
    fn drop_connection(&mut self, id: u32, now_ns: u64) {
        let is_datagram = self.thread.connections[id as usize].socket().is_some_and(Socket::is_datagram);
        self.drop_until(id, if is_datagram { now_ns } else { now_ns + Connection::RETRY_NS });
    }

    fn drop_until(&mut self, id: u32, retry_ns: u64) {
        let lost = self.thread.connections[id as usize].drop_socket(retry_ns);
        self.under_way -= lost;
        self.tally.errors.requests_lost += lost;
        self.any_down = true;
    }

    /// Drops the outstanding requests. The next run reopens their connections.
    fn give_up_unanswered(&mut self) {
        // A run that is cancelled does not wait for responses.
        if !self.is_cancelled() {
            self.tally.unanswered = self.unanswered_in_window();
        }
        for connection in &mut self.thread.connections {
            connection.queued = false;
            if !connection.pending.is_empty() {
                connection.drop_socket(0);
            }
        }
        if let Finder::BusyPoll(queue) = &mut self.thread.finder {
            queue.clear();
        }
    }
}

#[inline]
fn record(tally: &mut Tally, window_ns: &Range<u64>, pending: Pending, answer: Answer, now_ns: u64) {
    match answer {
        Answer::WrongContent => tally.errors.wrong_content += 1,
        Answer::ServerError => tally.errors.server_errors += 1,
        Answer::Right | Answer::Miss => {
            // Throughput counts answers by their arrival, latency by the time when the request was due: otherwise slow
            // requests at the end of the window would be missing from its latencies.
            tally.answered_in_window += u64::from(window_ns.contains(&now_ns));
            if !window_ns.contains(&pending.due_ns) {
                return;
            }
            tally.latency.record(now_ns - pending.due_ns);
            tally.latency_from_send.record(now_ns - pending.sent_ns);
            match (pending.request, answer) {
                (Request::Get(_), Answer::Right) => tally.hits += 1,
                (Request::Get(_), _) => tally.misses += 1,
                _ => {}
            }
        }
    }
}
