//! Programs of threads: servers and scripted applications. At the end of each step, a program returns its next step.

use super::busy_poll::BusyRequest;
use super::poll_loop::{PollLoop, Poller, Sender};
use super::script::Scripted;
use super::{BusyFor, Next, Stage, World};
use crate::engine::{NEVER, Ns};
use crate::mechanism::Link;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Forever,
    /// Timeout in ns; 0 returns immediately.
    AtMost(Ns),
}

/// A loop that waits for events before sleeping, without busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventLoop {
    /// Whether the loop is in `epoll_wait`. Otherwise the program calls `epoll_wait` repeatedly with timeout 0.
    pub(crate) in_kernel: bool,
    /// Time until the thread sleeps; [`NEVER`] if it does not sleep.
    pub(crate) for_ns: Ns,
}

/// An epoll event loop like that of memcached. It handles every event and then waits again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpollServer {
    pub(crate) epoll: usize,
    pub(crate) wait: Wait,
    /// `maxevents`, which doubles each time that a call returns as many events, as in libevent.
    pub(crate) max_events: usize,
    pub(crate) max_events_limit: usize,
    pub(crate) event_loop: Option<EventLoop>,
    /// Socket that the worker currently serves, and the number of its requests.
    pub(crate) serving: Option<(u32, u32)>,
    /// Queue whose counters include the calls of this worker.
    pub(crate) queue: usize,
}

/// A blocking receive loop on one socket, like that of netperf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecvServer {
    pub(crate) socket: u32,
    /// `SO_BUSY_POLL`, in ns.
    pub(crate) busy_poll_ns: Ns,
    pub(crate) prefer: bool,
    pub(crate) budget: u32,
    pub(crate) serving: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Program {
    EpollServer(EpollServer),
    RecvServer(RecvServer),
    PollLoop(PollLoop),
    Poller(Poller),
    Sender(Sender),
    Scripted(Scripted),
    NapiThread { queue: usize },
    Ksoftirqd,
}

impl World {
    /// Queue whose counters include the worker's `epoll_wait` calls.
    pub(crate) fn queue_of_worker(&self, thread: usize) -> Option<usize> {
        match &self.threads[thread].program {
            Program::EpollServer(server) => Some(server.queue),
            _ => None,
        }
    }

    pub(crate) fn program_step(&mut self, thread: usize) -> Next {
        match self.threads[thread].program {
            Program::EpollServer(server) => self.epoll_server_step(thread, server),
            Program::RecvServer(server) => self.recv_server_step(thread, server),
            Program::PollLoop(poll) => self.poll_loop_step(thread, poll),
            Program::Poller(poller) => self.poller_step(thread, poller),
            Program::Sender(sender) => self.sender_step(thread, sender),
            Program::Scripted(_) => self.scripted_step(thread),
            Program::NapiThread { .. } => self.napi_thread_turn(thread),
            Program::Ksoftirqd => self.ksoftirqd_turn(thread),
        }
    }

    fn epoll_server_step(&mut self, thread: usize, mut server: EpollServer) -> Next {
        if let Some((socket, requests)) = server.serving.take() {
            for _ in 0..requests {
                self.respond(socket, self.threads[thread].cpu);
            }
            self.sockets[socket as usize].in_service -= requests;
        }
        let returned = self.threads[thread].returned;
        while let Some(socket) = self.threads[thread].events.pop_front() {
            let state = &mut self.sockets[socket as usize];
            let (requests, parts) = (state.unserved(), std::mem::take(&mut state.parts));
            if requests == 0 && parts == 0 {
                continue;
            }
            state.in_service += requests;
            server.serving = Some((socket, requests));
            self.threads[thread].program = Program::EpollServer(server);
            self.threads[thread].stage = Stage::Program;
            let (cpu, contention) = (self.threads[thread].cpu, self.contention());
            let state = &mut self.sockets[socket as usize];
            state.served_on = Link::to(cpu);
            let (costs, rx_cpu) = (&self.costs, state.rx_cpu as usize);
            let crossing_ns =
                costs.crossing_ns(rx_cpu, cpu) + costs.contended_crossing_ns(rx_cpu, cpu, contention, returned);
            let requests_ns = u64::from(requests) * (costs.request_ns(returned) + crossing_ns);
            return Next::Run(requests_ns + costs.parts_ns(parts, requests));
        }
        if returned == server.max_events {
            server.max_events = (2 * server.max_events).min(server.max_events_limit);
        }
        self.threads[thread].program = Program::EpollServer(server);
        if let Some(EventLoop { in_kernel: false, for_ns }) = server.event_loop {
            self.threads[thread].call.epoll = server.epoll;
            if self.epolls[server.epoll].ready.is_empty() {
                self.threads[thread].spin_until_ns = self.now_ns.saturating_add(for_ns);
                return self.event_spin(thread, self.costs.user_loop_ns);
            }
        }
        self.epoll_server_waits(thread, server)
    }

    fn epoll_server_waits(&mut self, thread: usize, server: EpollServer) -> Next {
        let deadline_ns = match server.wait {
            Wait::Forever => NEVER,
            Wait::AtMost(ns) => self.now_ns + ns,
        };
        self.epoll_enter(thread, server.epoll, deadline_ns, server.max_events)
    }

    /// Waits for events in iterations of `round_ns` until the loop ends.
    pub(crate) fn event_spin(&mut self, thread: usize, round_ns: Ns) -> Next {
        let state = &mut self.threads[thread];
        state.stage = Stage::EventSpin;
        let for_ns = state.spin_until_ns.saturating_sub(self.now_ns);
        self.spin(thread, round_ns, for_ns)
    }

    /// Time that `epoll_wait` loops for events before the thread sleeps; `None` if it does not loop.
    pub(crate) fn event_loop_in_kernel(&self, thread: usize) -> Option<Ns> {
        match &self.threads[thread].program {
            Program::EpollServer(EpollServer { event_loop: Some(EventLoop { in_kernel: true, for_ns }), .. }) => {
                Some(*for_ns)
            }
            _ => None,
        }
    }

    /// Handles the end of the loop for events, because there are events or it is time to sleep.
    pub(crate) fn event_spin_done(&mut self, thread: usize) -> Next {
        self.stop_spinning(thread);
        let in_kernel = self.event_loop_in_kernel(thread).is_some();
        let state = &self.threads[thread];
        if self.now_ns < state.spin_until_ns && self.epolls[state.call.epoll].ready.is_empty() {
            let round_ns = if in_kernel { self.costs.kernel_loop_ns } else { self.costs.user_loop_ns };
            return self.event_spin(thread, round_ns);
        }
        if in_kernel {
            return self.epoll_after_event_loop(thread);
        }
        match self.threads[thread].program {
            Program::EpollServer(server) => self.epoll_server_waits(thread, server),
            _ => Next::Block,
        }
    }

    fn recv_server_step(&mut self, thread: usize, mut server: RecvServer) -> Next {
        if std::mem::take(&mut server.serving) {
            self.threads[thread].program = Program::RecvServer(server);
            self.respond(server.socket, self.threads[thread].cpu);
        }
        self.recv_check(thread)
    }

    /// `recv`: returns data, busy polls the socket's queue, or sleeps.
    pub(crate) fn recv_check(&mut self, thread: usize) -> Next {
        let Program::RecvServer(mut server) = self.threads[thread].program else {
            return self.scripted_receive(thread);
        };
        let socket = &self.sockets[server.socket as usize];
        if socket.readable() {
            let crossing_ns = self.recv_crossing_ns(thread, server.socket);
            server.serving = true;
            self.threads[thread].program = Program::RecvServer(server);
            self.threads[thread].stage = Stage::Program;
            return Next::Run(self.costs.recv_ns + self.costs.request_ns(1) + crossing_ns);
        }
        match socket.napi.get().filter(|_| server.busy_poll_ns > 0) {
            Some(queue) => self.busy_begin(
                thread,
                BusyRequest {
                    queue,
                    on_behalf: BusyFor::Socket(server.socket),
                    prefer: server.prefer,
                    budget: server.budget,
                    loop_ns: server.busy_poll_ns,
                },
            ),
            None => self.recv_sleep(thread),
        }
    }

    /// Cost of cache lines that another CPU holds, because it received the packet, or handled an interrupt for it while
    /// this CPU polled.
    fn recv_crossing_ns(&self, thread: usize, socket: u32) -> Ns {
        let (state, cpu) = (&self.sockets[socket as usize], self.threads[thread].cpu);
        let rx_cpu = state.rx_cpu as usize;
        let arrived_ns = state.received.front().map_or(0, |sent_ns| sent_ns + self.traffic.one_way_ns());
        let irq_cpu = state.napi.get().map(|queue| &self.queues[queue]).filter(|rx| rx.vector.fired_ns() >= arrived_ns);
        let toucher = if rx_cpu == cpu { irq_cpu.map_or(cpu, |rx| rx.irq_cpu) } else { rx_cpu };
        self.costs.crossing_ns(toucher, cpu)
    }

    pub(crate) fn recv_sleep(&mut self, thread: usize) -> Next {
        self.threads[thread].stage = Stage::RecvSleep;
        Next::Block
    }

    pub(crate) fn socket_after_busy(&mut self, thread: usize, socket: u32) -> Next {
        if self.sockets[socket as usize].readable() { self.recv_check(thread) } else { self.recv_sleep(thread) }
    }

    pub(crate) fn respond(&mut self, socket: u32, cpu: usize) {
        let state = &mut self.sockets[socket as usize];
        let Some(sent_ns) = state.received.pop_front() else { return };
        let Some(queue) = state.napi.get() else { return };
        let tx_queue = self.tx_queue_of_cpu.get(cpu).copied().unwrap_or(queue);
        self.answer(queue, tx_queue, socket, sent_ns);
    }

    /// Sends the response to a request of `queue` on `tx_queue`.
    pub(crate) fn answer(&mut self, queue: usize, tx_queue: usize, socket: u32, sent_ns: Ns) {
        let now_ns = self.now_ns;
        self.mark(queue, "response");
        self.counters[queue].responses += 1;
        let tx = &mut self.queues[tx_queue];
        tx.tx_completions += 1;
        tx.vector.transmitted(now_ns, 1);
        self.answered(socket, sent_ns);
        self.vector_changed(tx_queue);
    }
}
