//! Scenarios: what an application does step by step, and what is changed from outside at given
//! moments, for conformance tests and `explain`. The steps are those that a real program could
//! take on a real kernel.

use quell_mode::{EpollSettings, NapiSettings};

use super::{Next, Program, Stage, World};
use crate::engine::{NEVER, Ns};
use crate::mechanism::Packet;

/// One step of a scripted application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `epoll_wait` with a timeout; absent: for ever. What it returns is written down.
    Wait {
        /// `maxevents`.
        max_events: usize,
        /// In ns; 0 returns at once.
        timeout_ns: Option<Ns>,
    },
    /// Reads everything from the sockets that the last wait returned.
    ReadAll,
    /// Works for so long without system calls.
    Work(Ns),
    /// `EPIOCSPARAMS` on its epoll.
    SetEpoll(EpollSettings),
    /// Closes the last reference to its epoll.
    CloseEpoll,
    /// Goes back to the first step.
    Repeat,
}

/// A change from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScriptAction {
    /// A packet reaches the NIC.
    Packet { queue: usize, packet: Packet },
    /// `napi-set` on a queue.
    SetNapi { queue: usize, settings: NapiSettings },
    /// `EPIOCSPARAMS` from outside.
    SetEpoll { epoll: usize, settings: EpollSettings },
    /// A descriptor without NAPI becomes ready and stays so.
    AlwaysReady { socket: u32 },
}

impl World {
    pub(crate) fn scripted(&mut self, index: usize) {
        match self.script[index] {
            ScriptAction::Packet { queue, packet } => self.packet_arrives(queue, packet),
            ScriptAction::SetNapi { queue, settings } => self.queues[queue].napi.settings = settings,
            ScriptAction::SetEpoll { epoll, settings } => self.epolls[epoll].settings = settings,
            ScriptAction::AlwaysReady { socket } => {
                self.sockets[socket as usize].always_ready = true;
                let cpu = 0;
                self.became_ready(socket, cpu);
            }
        }
    }

    /// The next step of a scripted application.
    pub(crate) fn scripted_step(&mut self, thread: usize) -> Next {
        let now_ns = self.now_ns;
        let returned = self.threads[thread].returned;
        self.threads[thread].stage = Stage::Program;
        let Program::Scripted(scripted) = &mut self.threads[thread].program else { return Next::Block };
        if std::mem::take(&mut scripted.waiting) {
            scripted.waits.push((now_ns, returned));
        }
        let epoll = scripted.epoll;
        let Some(&step) = scripted.steps.get(scripted.at) else { return Next::Block };
        scripted.at += 1;
        match step {
            Step::Wait { max_events, timeout_ns } => {
                scripted.waiting = true;
                let deadline_ns = timeout_ns.map_or(NEVER, |ns| now_ns + ns);
                self.threads[thread].events.clear();
                self.epoll_enter(thread, epoll, deadline_ns, max_events)
            }
            Step::ReadAll => {
                while let Some(socket) = self.threads[thread].events.pop_front() {
                    let received = std::mem::take(&mut self.sockets[socket as usize].received);
                    self.traffic.read.extend(received.into_iter().map(|sent_ns| (now_ns, sent_ns)));
                }
                Next::Run(0)
            }
            Step::Work(ns) => Next::Run(ns),
            Step::SetEpoll(settings) => {
                self.epolls[epoll].settings = settings;
                Next::Run(0)
            }
            Step::CloseEpoll => {
                self.epoll_close(epoll, self.threads[thread].cpu);
                Next::Run(0)
            }
            Step::Repeat => {
                scripted.at = 0;
                Next::Run(0)
            }
        }
    }
}
