//! `epoll_wait`, step by step as in `ep_poll` of `fs/eventpoll.c`: events, busy-poll loop, resumption and sleep. It
//! suspends interrupts when it returns events.

use super::busy_poll::BusyRequest;
use super::{BusyFor, Event, Next, RunState, Stage, World};
use crate::engine::{NEVER, Ns};
use crate::mechanism::Schedule;

impl World {
    /// Handles the end of a thread's segment: continues with the thread's next step.
    pub(crate) fn advance(&mut self, thread: usize) -> Next {
        match self.threads[thread].stage {
            Stage::Program | Stage::ClockSpin | Stage::RingSpin => self.program_step(thread),
            Stage::EpollEntry | Stage::EpollSleep => self.epoll_check(thread),
            Stage::EpollSend => self.epoll_send(thread),
            Stage::BusyWork => self.busy_work_done(thread),
            Stage::BusySpin => self.busy_spin_done(thread),
            Stage::FinalPoll => self.final_poll_done(thread),
            Stage::Resume => self.epoll_sleep(thread),
            Stage::EventSpin => self.event_spin_done(thread),
            Stage::RecvSleep => self.recv_check(thread),
            Stage::NapiThread => self.napi_thread_turn(thread),
            Stage::NapiThreadWork => self.napi_thread_done(thread),
            Stage::Ksoftirqd => self.ksoftirqd_turn(thread),
        }
    }

    pub(crate) fn epoll_enter(&mut self, thread: usize, epoll: usize, deadline_ns: Ns, max_events: usize) -> Next {
        let state = &mut self.threads[thread];
        state.call = super::EpollCall { epoll, deadline_ns, max_events };
        state.stage = Stage::EpollEntry;
        state.returned = 0;
        Next::Run(self.costs.epoll_wait_ns)
    }

    fn epoll_check(&mut self, thread: usize) -> Next {
        let call = self.threads[thread].call;
        let examined = self.epolls[call.epoll].ready.len().min(call.max_events) as u64;
        if examined == 0 {
            return self.epoll_nothing(thread);
        }
        self.threads[thread].stage = Stage::EpollSend;
        Next::Run(examined * self.costs.epoll_event_ns)
    }

    /// `ep_send_events`: returns at most `maxevents` ready descriptors. Level-triggered descriptors stay in the ready
    /// list, so that the next call examines them again.
    fn epoll_send(&mut self, thread: usize) -> Next {
        let call = self.threads[thread].call;
        for _ in 0..self.epolls[call.epoll].ready.len() {
            if self.threads[thread].events.len() == call.max_events {
                break;
            }
            let Some(socket) = self.epolls[call.epoll].ready.pop_front() else { break };
            let readable = self.descriptor_ready(socket);
            let state = &mut self.sockets[socket as usize];
            state.listed = readable && !state.edge_triggered;
            if state.listed {
                self.epolls[call.epoll].ready.push_back(socket);
            }
            if readable {
                self.threads[thread].events.push_back(socket);
            }
        }
        let returned = self.threads[thread].events.len();
        if returned == 0 {
            return self.epoll_nothing(thread);
        }
        let state = &mut self.threads[thread];
        (state.returned, state.batch) = (returned, returned);
        self.epoll_suspend(call.epoll, self.threads[thread].cpu);
        if let Some(queue) = self.queue_of_worker(thread) {
            self.counters[queue].epoll_waits += 1;
            self.counters[queue].epoll_events += returned as u64;
        }
        self.epoll_return(thread)
    }

    fn epoll_return(&mut self, thread: usize) -> Next {
        self.threads[thread].stage = Stage::Program;
        self.program_step(thread)
    }

    /// `ep_suspend_napi_irqs`: sets the timer to `irq-suspend-timeout`, because events are returned.
    fn epoll_suspend(&mut self, epoll: usize, cpu: usize) {
        let context = &self.epolls[epoll];
        let Some(queue) = context.napi.filter(|_| context.settings.prefer_busy_poll) else { return };
        if let Some(timeout_ns) = self.queues[queue].napi.suspend_timeout_ns() {
            self.counters[queue].suspensions += 1;
            self.mark(queue, "suspended");
            self.arm_timer(queue, timeout_ns, cpu);
        }
    }

    /// Handles a check without events. It returns if the timeout is 0 or expired, busy polls a known NAPI instance, or
    /// sleeps.
    pub(crate) fn epoll_nothing(&mut self, thread: usize) -> Next {
        let call = self.threads[thread].call;
        if call.deadline_ns <= self.now_ns {
            self.threads[thread].returned = 0;
            return self.epoll_return(thread);
        }
        let epoll = &self.epolls[call.epoll];
        let sysctl = self.rules.sysctl_busy_poll_usecs;
        match epoll.napi.filter(|_| epoll.busy_loop_on(sysctl)) {
            Some(queue) => {
                let request = BusyRequest {
                    queue,
                    on_behalf: BusyFor::Epoll(call.epoll),
                    prefer: epoll.settings.prefer_busy_poll,
                    budget: epoll.budget(),
                    loop_ns: epoll.loop_ns(sysctl),
                };
                self.busy_begin(thread, request)
            }
            None => match self.event_loop_in_kernel(thread) {
                Some(for_ns) => {
                    self.threads[thread].spin_until_ns = self.now_ns.saturating_add(for_ns);
                    self.event_spin(thread, self.costs.kernel_loop_ns)
                }
                None => self.epoll_sleep(thread),
            },
        }
    }

    pub(crate) fn epoll_after_event_loop(&mut self, thread: usize) -> Next {
        let epoll = self.threads[thread].call.epoll;
        if self.epolls[epoll].ready.is_empty() { self.epoll_sleep(thread) } else { self.epoll_check(thread) }
    }

    /// Handles the end of the busy-poll loop in `epoll_wait`: continues with events, or with resumption and sleep.
    pub(crate) fn epoll_after_busy(&mut self, thread: usize, epoll: usize, queue: usize) -> Next {
        if !self.epolls[epoll].ready.is_empty() {
            return self.epoll_check(thread);
        }
        if self.epolls[epoll].settings.prefer_busy_poll {
            self.resume_irqs(queue, self.threads[thread].cpu);
        }
        self.epolls[epoll].napi = None;
        // If resumption scheduled a softirq, it runs before the thread sleeps.
        self.threads[thread].stage = Stage::Resume;
        Next::Run(0)
    }

    /// `napi_resume_irqs`: schedules one poll, which returns the queue to deferral.
    pub(crate) fn resume_irqs(&mut self, queue: usize, cpu: usize) {
        if self.queues[queue].napi.suspend_timeout_ns().is_none() {
            return;
        }
        self.mark(queue, "resumed");
        if self.queues[queue].napi.schedule_prep() == Schedule::Taken {
            self.napi_run(queue, cpu);
        }
    }

    fn epoll_sleep(&mut self, thread: usize) -> Next {
        let call = self.threads[thread].call;
        if !self.epolls[call.epoll].ready.is_empty() {
            return self.epoll_check(thread);
        }
        self.epolls[call.epoll].waiters.push_back(thread);
        let state = &mut self.threads[thread];
        state.stage = Stage::EpollSleep;
        if call.deadline_ns != NEVER {
            let (thread, sleep) = (thread as u16, state.sleep);
            // The busy-poll loop may have lasted longer than the timeout.
            let at_ns = call.deadline_ns.max(self.now_ns);
            self.events.schedule(at_ns, Event::Timeout { thread, sleep });
        }
        Next::Block
    }

    pub(crate) fn timeout_event(&mut self, thread: usize, sleep: u32) {
        let state = &self.threads[thread];
        if state.state == RunState::Blocked && state.sleep == sleep {
            let cpu = state.cpu;
            self.raise_hardirq(cpu, super::HardIrq::Timeout { thread, sleep });
        }
    }

    pub(crate) fn sleep_over(&mut self, thread: usize, sleep: u32) {
        let state = &self.threads[thread];
        if state.state != RunState::Blocked || state.sleep != sleep {
            return;
        }
        let (epoll, cpu) = (state.call.epoll, state.cpu);
        if let Some(epoll) = self.epolls.get_mut(epoll) {
            epoll.waiters.retain(|&waiter| waiter != thread);
        }
        self.wake(thread, cpu);
    }

    /// Drops a reference to an epoll. Dropping the last one resumes the interrupts of a known NAPI instance.
    pub(crate) fn epoll_close(&mut self, epoll: usize, cpu: usize) {
        let context = &mut self.epolls[epoll];
        context.references = context.references.saturating_sub(1);
        if context.references > 0 {
            return;
        }
        let queue = context.napi.take().filter(|_| context.settings.prefer_busy_poll);
        if let Some(queue) = queue {
            self.resume_irqs(queue, cpu);
        }
    }
}
