//! `napi_busy_loop`: the thread of an application, of a poller, or a NAPI thread with `threaded=2`, polls the queue.
//! Empty iterations are not simulated one by one. Their end is computed when an event occurs that an iteration would
//! notice.

use super::cpu::Context;
use super::poll::{GRO_NORMAL_BATCH, NAPI_POLL_WEIGHT};
use super::{BusyFor, BusyLoop, Next, Stage, World};
use crate::engine::{NEVER, Ns};

#[derive(Debug, Clone, Copy)]
pub(crate) struct BusyRequest {
    pub(crate) queue: usize,
    pub(crate) on_behalf: BusyFor,
    pub(crate) prefer: bool,
    pub(crate) budget: u32,
    /// Time limit in ns; 0 means one iteration.
    pub(crate) loop_ns: Ns,
}

/// Maximum duration of one part of a spin, in whole iterations.
fn longest_ns(round_ns: Ns) -> Ns {
    const PIECE_NS: Ns = 2_000_000;
    (PIECE_NS / round_ns).max(1) * round_ns
}

impl World {
    pub(crate) fn busy_begin(&mut self, thread: usize, request: BusyRequest) -> Next {
        let BusyRequest { queue, on_behalf, prefer, budget, loop_ns } = request;
        self.threads[thread].busy = Some(BusyLoop {
            queue,
            on_behalf,
            prefer,
            budget,
            loop_ns,
            began_ns: self.now_ns,
            owner: false,
            work: 0,
            backstop: false,
            restart: false,
        });
        self.busy_round(thread)
    }

    /// Runs one iteration. An iteration with packets is simulated, and an empty one starts a spin.
    fn busy_round(&mut self, thread: usize) -> Next {
        let Some(mut busy) = self.threads[thread].busy else { return Next::Block };
        let (cpu, round_ns) = (self.threads[thread].cpu, self.costs.busy_poll_ns);
        if !busy.owner {
            busy.owner = self.queues[busy.queue].napi.busy_poll_acquire(busy.prefer);
        }
        let (work, cost_ns) = if busy.owner { self.poll_begin(busy.queue, cpu, busy.budget) } else { (0, 0) };
        busy.work = work;
        self.threads[thread].busy = Some(busy);
        if work > 0 || busy.loop_ns == 0 {
            self.threads[thread].stage = Stage::BusyWork;
            return Next::Run(round_ns + cost_ns);
        }
        let rounds_ns = match busy.loop_ns {
            NEVER => NEVER,
            loop_ns => (busy.began_ns + loop_ns).saturating_sub(self.now_ns).max(1).div_ceil(round_ns) * round_ns,
        };
        self.spin(thread, round_ns, rounds_ns)
    }

    /// Fast-forwards iterations of `round_ns` for `for_ns`, or until [`poke`](Self::poke). A long spin has several
    /// parts, so that stale end events do not accumulate.
    pub(crate) fn spin(&mut self, thread: usize, round_ns: Ns, for_ns: Ns) -> Next {
        let state = &mut self.threads[thread];
        if state.stage != Stage::EventSpin {
            state.stage = Stage::BusySpin;
        }
        (state.spin_began_ns, state.spin_round_ns) = (self.now_ns, round_ns);
        match state.busy {
            Some(BusyLoop { queue, on_behalf, .. }) => {
                self.queue_spinners[queue].push(thread);
                if let BusyFor::Epoll(epoll) = on_behalf {
                    self.epoll_spinners[epoll].push(thread);
                }
            }
            None => self.epoll_spinners[state.call.epoll].push(thread),
        }
        if for_ns == NEVER { Next::Run(NEVER) } else { Next::Run(for_ns.min(longest_ns(round_ns))) }
    }

    /// Handles an event that a spinning thread notices at the start of its next iteration.
    pub(crate) fn poke(&mut self, thread: usize) {
        if !self.threads[thread].spinning() {
            return;
        }
        let (cpu, now_ns) = (self.threads[thread].cpu, self.now_ns);
        let running = self.cpus[cpu].current == Some(thread) && self.cpus[cpu].context == Context::Thread;
        if !running {
            self.threads[thread].left_ns = 0;
            return;
        }
        let state = &self.threads[thread];
        let left_ns = match now_ns.checked_sub(state.spin_began_ns) {
            Some(spent_ns) => spent_ns.next_multiple_of(state.spin_round_ns) - spent_ns,
            None => state.spin_began_ns - now_ns,
        };
        if self.cpus[cpu].segment_ends_ns > now_ns + left_ns {
            self.book_segment(cpu);
            self.cpus[cpu].interrupt(now_ns);
            self.run_segment(cpu, Context::Thread, left_ns);
        }
    }

    /// Counts the iterations of a spin up to now, and restarts the spin.
    pub(crate) fn book_spin(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        if !state.spinning() {
            return;
        }
        let rounds = (self.now_ns - state.spin_began_ns.min(self.now_ns)) / state.spin_round_ns;
        state.spin_began_ns += rounds * state.spin_round_ns;
        if let Some(BusyLoop { queue, owner: true, .. }) = state.busy {
            let counters = &mut self.counters[queue];
            counters.polls += rounds;
            counters.busy_polls += rounds;
            counters.empty_polls += rounds;
            if rounds > 0 {
                self.queues[queue].waits.masked_since_ns = Some(state.spin_began_ns);
            }
        }
    }

    pub(crate) fn drop_spin_books(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        if state.spinning() {
            let rounds = (self.now_ns - state.spin_began_ns.min(self.now_ns)) / state.spin_round_ns;
            state.spin_began_ns += rounds * state.spin_round_ns;
        }
    }

    pub(crate) fn busy_spin_done(&mut self, thread: usize) -> Next {
        self.book_spin(thread);
        self.stop_spinning(thread);
        self.busy_check(thread)
    }

    pub(crate) fn stop_spinning(&mut self, thread: usize) {
        if let Some(BusyLoop { queue, .. }) = self.threads[thread].busy {
            self.queue_spinners[queue].retain(|&spinner| spinner != thread);
        }
        if let Some(spinners) = self.epoll_spinners.get_mut(self.threads[thread].call.epoll) {
            spinners.retain(|&spinner| spinner != thread);
        }
    }

    /// Handles the end of a poll with packets, or of a part of it.
    pub(crate) fn busy_work_done(&mut self, thread: usize) -> Next {
        let Some(mut busy) = self.threads[thread].busy else { return Next::Block };
        if !busy.owner {
            return self.busy_check(thread);
        }
        let cpu = self.threads[thread].cpu;
        self.deliver(busy.queue, cpu);
        if let Some(cost_ns) = self.poll_more(&mut busy, cpu) {
            self.threads[thread].busy = Some(busy);
            return Next::Run(cost_ns);
        }
        self.count_poll(busy.queue, busy.work, busy.budget);
        self.counters[busy.queue].busy_polls += 1;
        self.counters[busy.queue].busy_poll_packets += u64::from(busy.work);
        self.busy_check(thread)
    }

    /// Takes packets that arrived during the current poll, up to its budget.
    fn poll_more(&mut self, busy: &mut BusyLoop, cpu: usize) -> Option<Ns> {
        if busy.work >= busy.budget || self.queues[busy.queue].ring.is_empty() {
            return None;
        }
        let (more, cost_ns) = self.poll_begin(busy.queue, cpu, busy.budget - busy.work);
        busy.work += more;
        Some(cost_ns)
    }

    fn ready(&self, on_behalf: BusyFor) -> bool {
        match on_behalf {
            BusyFor::Epoll(epoll) => !self.epolls[epoll].ready.is_empty(),
            BusyFor::Socket(socket) => self.sockets[socket as usize].readable(),
            BusyFor::Time | BusyFor::Thread => false,
        }
    }

    /// Checks after an iteration whether the loop ends (`loop_end`, `need_resched`).
    fn busy_check(&mut self, thread: usize) -> Next {
        let Some(mut busy) = self.threads[thread].busy else { return Next::Block };
        let cpu = self.threads[thread].cpu;
        let endless = busy.on_behalf == BusyFor::Thread;
        if endless && self.cpus[cpu].need_resched {
            // After `cond_resched`, the loop still owns the instance.
            return self.spin(thread, self.costs.busy_poll_ns, 0);
        }
        let over = !endless && (self.ready(busy.on_behalf) || self.now_ns - busy.began_ns >= busy.loop_ns);
        busy.restart = !over && self.cpus[cpu].need_resched;
        self.threads[thread].busy = Some(busy);
        if over || busy.restart { self.busy_stop(thread) } else { self.busy_round(thread) }
    }

    /// `busy_poll_stop`: arms the timer as a backstop, and starts the final poll.
    fn busy_stop(&mut self, thread: usize) -> Next {
        let Some(mut busy) = self.threads[thread].busy else { return Next::Block };
        if !busy.owner {
            return self.after_busy(thread);
        }
        let cpu = self.threads[thread].cpu;
        let backstop_ns = self.queues[busy.queue].napi.busy_poll_stop(busy.prefer);
        busy.backstop = backstop_ns.is_some();
        if let Some(timeout_ns) = backstop_ns {
            self.arm_timer(busy.queue, timeout_ns, cpu);
        }
        if !self.rules.final_poll {
            self.threads[thread].busy = Some(busy);
            self.let_go(busy, cpu);
            return self.after_busy(thread);
        }
        let (work, cost_ns) = self.poll_begin(busy.queue, cpu, busy.budget);
        busy.work = work;
        self.threads[thread].busy = Some(busy);
        self.threads[thread].stage = Stage::FinalPoll;
        let arming_ns = if busy.backstop { self.costs.busy_stop_ns } else { 0 };
        Next::Run(self.costs.busy_poll_ns + arming_ns + cost_ns)
    }

    pub(crate) fn final_poll_done(&mut self, thread: usize) -> Next {
        let Some(mut busy) = self.threads[thread].busy else { return Next::Block };
        let cpu = self.threads[thread].cpu;
        self.deliver(busy.queue, cpu);
        if let Some(cost_ns) = self.poll_more(&mut busy, cpu) {
            self.threads[thread].busy = Some(busy);
            return Next::Run(cost_ns);
        }
        self.count_poll(busy.queue, busy.work, busy.budget);
        self.counters[busy.queue].busy_polls += 1;
        self.counters[busy.queue].final_polls += 1;
        if busy.work == busy.budget {
            self.let_go(busy, cpu);
        } else if self.complete(busy.queue, busy.work, cpu) {
            self.napi_run(busy.queue, cpu);
        }
        self.after_busy(thread)
    }

    /// `__busy_poll_stop`: releases the instance with the timer as a backstop, or hands it to the softirq.
    fn let_go(&mut self, busy: BusyLoop, cpu: usize) {
        if busy.backstop {
            self.flush_held(busy.queue, cpu, false);
            self.queues[busy.queue].napi.state.sched = false;
            self.released(busy.queue);
        } else {
            self.napi_run(busy.queue, cpu);
        }
    }

    fn after_busy(&mut self, thread: usize) -> Next {
        let Some(mut busy) = self.threads[thread].busy else { return Next::Block };
        if busy.restart {
            busy.owner = false;
            self.threads[thread].busy = Some(busy);
            return self.spin(thread, self.costs.busy_poll_ns, 0);
        }
        self.threads[thread].busy = None;
        match busy.on_behalf {
            BusyFor::Epoll(epoll) => self.epoll_after_busy(thread, epoll, busy.queue),
            BusyFor::Socket(socket) => self.socket_after_busy(thread, socket),
            BusyFor::Time => self.program_step(thread),
            BusyFor::Thread => Next::Block,
        }
    }

    /// Runs a NAPI thread (`napi_threaded_poll_loop`).
    pub(crate) fn napi_thread_turn(&mut self, thread: usize) -> Next {
        let super::Program::NapiThread { queue } = self.threads[thread].program else { return Next::Block };
        self.threads[thread].stage = Stage::NapiThread;
        if self.queues[queue].napi.settings.threaded == quell_mode::Threaded::BusyPoll {
            let on_behalf = BusyFor::Thread;
            self.queues[queue].napi.state.sched = false;
            let request = BusyRequest { queue, on_behalf, prefer: false, budget: NAPI_POLL_WEIGHT, loop_ns: NEVER };
            return self.busy_begin(thread, request);
        }
        if !self.queues[queue].napi.state.sched {
            return Next::Block;
        }
        let (work, cost_ns) = self.poll_begin(queue, self.threads[thread].cpu, GRO_NORMAL_BATCH);
        self.threads[thread].returned = work as usize;
        self.threads[thread].stage = Stage::NapiThreadWork;
        Next::Run(self.costs.napi_poll_ns + cost_ns)
    }

    pub(crate) fn napi_thread_done(&mut self, thread: usize) -> Next {
        let super::Program::NapiThread { queue } = self.threads[thread].program else { return Next::Block };
        let cpu = self.threads[thread].cpu;
        self.deliver(queue, cpu);
        let work = self.threads[thread].returned as u32;
        if work < NAPI_POLL_WEIGHT && !self.queues[queue].ring.is_empty() {
            let (more, cost_ns) = self.poll_begin(queue, cpu, GRO_NORMAL_BATCH.min(NAPI_POLL_WEIGHT - work));
            self.threads[thread].returned += more as usize;
            return Next::Run(cost_ns);
        }
        self.threads[thread].stage = Stage::NapiThread;
        if self.finish_poll(queue, work, cpu) { Next::Run(0) } else { Next::Block }
    }
}
