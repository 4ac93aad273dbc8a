//! A generator thread's housekeeping, once per millisecond: windows, late requests, and connections to reopen.

use std::sync::atomic::Ordering;

use crate::connection::{Connection, Pending, Socket, State};

use super::{Drive, ThreadState};

impl Drive<'_> {
    pub(super) fn keep_house(&mut self, now_ns: u64) {
        self.thread.answered.store(self.answered, Ordering::Relaxed);
        self.keep_windows(now_ns);
        self.give_up_late_ones(now_ns);
        if self.any_down && self.sending {
            self.any_down = false;
            for id in 0..self.thread.connections.len() as u32 {
                self.bring_up(id, now_ns);
            }
        }
        self.all_down = self.thread.connections.iter().all(|connection| connection.socket().is_none());
    }

    /// Counts requests that were not answered in time and drops their connections. Otherwise a late answer would be
    /// attributed to the next request.
    fn give_up_late_ones(&mut self, now_ns: u64) {
        for id in 0..self.thread.connections.len() as u32 {
            let connection = &mut self.thread.connections[id as usize];
            let timeout_ns = self.thread.response_timeout_ns;
            let is_late = |pending: &Pending| pending.sent_ns + timeout_ns <= now_ns;
            if !connection.pending.front().is_some_and(is_late) {
                continue;
            }
            let before = connection.pending.len();
            connection.pending.retain(|pending| !is_late(pending));
            let late = (before - connection.pending.len()) as u64;
            self.under_way -= late;
            self.tally.errors.timed_out += late;
            self.drop_connection(id, now_ns);
        }
    }

    fn bring_up(&mut self, id: u32, now_ns: u64) {
        let ThreadState { connections, transport, connect_timeout_ns, .. } = &mut *self.thread;
        let connection = &mut connections[id as usize];
        let retry = State::Down { retry_ns: now_ns + Connection::RETRY_NS };
        connection.state = match std::mem::replace(&mut connection.state, retry) {
            State::Up(socket) => State::Up(socket),
            State::Down { retry_ns } if retry_ns > now_ns => State::Down { retry_ns },
            State::Down { .. } => match Socket::start(*transport, connection.address) {
                Ok(socket) => State::Connecting { socket, give_up_ns: now_ns + *connect_timeout_ns },
                Err(_) => return self.count_failed_reconnect(),
            },
            State::Connecting { socket, give_up_ns } => match socket.is_established() {
                Ok(true) => return self.take_up(id, socket, now_ns),
                Ok(false) if now_ns < give_up_ns => State::Connecting { socket, give_up_ns },
                Ok(false) | Err(_) => return self.count_failed_reconnect(),
            },
        };
        self.any_down |= connection.socket().is_none();
    }

    fn count_failed_reconnect(&mut self) {
        self.tally.errors.reconnects_failed += 1;
        self.any_down = true;
    }

    fn take_up(&mut self, id: u32, socket: Socket, now_ns: u64) {
        if self.thread.finder.add(id, &socket).is_err() {
            return self.count_failed_reconnect();
        }
        self.thread.connections[id as usize].state = State::Up(socket);
        self.tally.errors.reconnected += 1;
        self.open_slots(id, now_ns);
    }
}
