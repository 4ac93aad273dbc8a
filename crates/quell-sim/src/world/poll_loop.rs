//! Programs that poll instead of sleeping: those of `xsk_rr`, a loop over the receive ring and a sender with a fixed
//! rate, and a thread that only polls a queue. A kick is one `recvfrom` call, which polls the queue once.

use super::busy_poll::BusyRequest;
use super::{BusyFor, Event, Next, Program, Stage, World};
use crate::engine::{NEVER, Ns};
use crate::mechanism::{Packet, PacketKind, budget};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) queue: u16,
    pub(crate) socket: u32,
}

/// Phase of a loop over the receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollPhase {
    /// The loop checks its receive ring.
    Look,
    /// The loop took a packet that was sent at this time.
    Taken(Ns),
    /// The loop finished its work on the packet that was sent at this time.
    Worked(Ns),
    /// The loop entered `recvfrom`.
    Kick,
}

/// A loop over the receive ring of one socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollLoop {
    pub(crate) socket: u32,
    /// Whether the loop kicks if the ring is empty. Otherwise another thread polls.
    pub(crate) kicks: bool,
    /// Time by the clock that the loop spends on each packet, in ns.
    pub(crate) delay_ns: Ns,
    /// Receiver of the replies. Absent for the client, which records the latency of received packets.
    pub(crate) reply_to: Option<Peer>,
    pub(crate) phase: PollPhase,
}

/// A thread that only polls a queue with system calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Poller {
    pub(crate) queue: usize,
    /// Time of the polls of one call, in ns; 0 means one poll.
    pub(crate) loop_ns: Ns,
    pub(crate) entered: bool,
}

/// A thread that sends when a period has passed since it began to send the last packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) socket: u32,
    pub(crate) peer: Peer,
    /// Whether `sendto` polls.
    pub(crate) kicks: bool,
    pub(crate) period_ns: f64,
    pub(crate) due_ns: f64,
    pub(crate) phase: SendPhase,
}

/// Phase of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendPhase {
    /// The sender waits for the time of its next packet.
    Wait,
    /// The sender entered `sendto` for a packet with this timestamp. The call may poll before it transmits.
    Enter(Ns),
    /// The sender transmits a packet with this timestamp.
    Transmit(Ns),
}

impl World {
    pub(crate) fn poll_loop_step(&mut self, thread: usize, mut poll: PollLoop) -> Next {
        let state = &mut self.threads[thread];
        state.stage = Stage::Program;
        let next = match poll.phase {
            PollPhase::Look => match self.sockets[poll.socket as usize].received.pop_front() {
                Some(sent_ns) => {
                    poll.phase = PollPhase::Taken(sent_ns);
                    let rx_cpu = self.sockets[poll.socket as usize].rx_cpu as usize;
                    Next::Run(self.costs.ring_ns + self.costs.crossing_ns(rx_cpu, state.cpu))
                }
                None if poll.kicks => {
                    poll.phase = PollPhase::Kick;
                    Next::Run(self.costs.recv_ns)
                }
                None => {
                    state.stage = Stage::RingSpin;
                    (state.spin_began_ns, state.spin_round_ns) = (self.now_ns, self.costs.ring_ns);
                    Next::Run(NEVER)
                }
            },
            PollPhase::Taken(sent_ns) => {
                poll.phase = PollPhase::Worked(sent_ns);
                if poll.reply_to.is_some() {
                    Next::Run(self.costs.request_ns(1))
                } else {
                    self.traffic.record(sent_ns, self.now_ns);
                    (state.stage, state.call.deadline_ns) = (Stage::ClockSpin, self.now_ns + poll.delay_ns);
                    Next::Run(poll.delay_ns)
                }
            }
            PollPhase::Worked(sent_ns) => {
                if let Some((queue, peer)) = self.sockets[poll.socket as usize].napi.get().zip(poll.reply_to) {
                    self.transmit(queue, peer, sent_ns);
                }
                poll.phase = PollPhase::Look;
                Next::Run(self.costs.ring_ns)
            }
            PollPhase::Kick => {
                poll.phase = PollPhase::Look;
                self.threads[thread].program = Program::PollLoop(poll);
                return self.kick(thread, poll.socket);
            }
        };
        self.threads[thread].program = Program::PollLoop(poll);
        next
    }

    fn kick(&mut self, thread: usize, socket: u32) -> Next {
        match self.sockets[socket as usize].napi.get() {
            Some(queue) => self.poll_for(thread, queue, 0),
            None => Next::Run(self.costs.ring_ns),
        }
    }

    fn poll_for(&mut self, thread: usize, queue: usize, loop_ns: Ns) -> Next {
        let on_behalf = BusyFor::Time;
        self.busy_begin(thread, BusyRequest { queue, on_behalf, prefer: true, budget: budget(0), loop_ns })
    }

    pub(crate) fn poller_step(&mut self, thread: usize, mut poller: Poller) -> Next {
        self.threads[thread].stage = Stage::Program;
        poller.entered = !poller.entered;
        self.threads[thread].program = Program::Poller(poller);
        if poller.entered { Next::Run(self.costs.recv_ns) } else { self.poll_for(thread, poller.queue, poller.loop_ns) }
    }

    pub(crate) fn sender_step(&mut self, thread: usize, mut sender: Sender) -> Next {
        self.threads[thread].stage = Stage::Program;
        let due_ns = sender.due_ns as Ns;
        let next = match sender.phase {
            SendPhase::Wait if self.now_ns < due_ns => {
                let state = &mut self.threads[thread];
                state.stage = Stage::ClockSpin;
                state.call.deadline_ns = due_ns;
                return Next::Run(due_ns - self.now_ns);
            }
            SendPhase::Wait => {
                sender.phase = SendPhase::Enter(self.now_ns);
                sender.due_ns = sender.due_ns.max(self.now_ns as f64) + sender.period_ns;
                Next::Run(self.costs.recv_ns)
            }
            SendPhase::Enter(stamp_ns) => {
                sender.phase = SendPhase::Transmit(stamp_ns);
                self.threads[thread].program = Program::Sender(sender);
                return if sender.kicks { self.kick(thread, sender.socket) } else { Next::Run(0) };
            }
            SendPhase::Transmit(stamp_ns) => {
                sender.phase = SendPhase::Wait;
                if let Some(queue) = self.sockets[sender.socket as usize].napi.get() {
                    self.transmit(queue, sender.peer, stamp_ns);
                }
                Next::Run(0)
            }
        };
        self.threads[thread].program = Program::Sender(sender);
        next
    }

    /// Transmits a packet on `queue` to another host. The completion uses the same vector.
    fn transmit(&mut self, queue: usize, peer: Peer, sent_ns: Ns) {
        let now_ns = self.now_ns;
        let packet = Packet { socket: peer.socket, kind: PacketKind::Request, sent_ns };
        self.events.schedule(now_ns + self.traffic.one_way_ns(), Event::arrival(peer.queue, packet));
        let rx = &mut self.queues[queue];
        rx.tx_completions += 1;
        rx.vector.transmitted(now_ns, 1);
        self.vector_changed(queue);
    }
}
