//! The scheduler: wake-up, selection and preemption of threads. Real-time threads have precedence over fair threads.
//! Fair threads share a CPU by virtual run time. A floating thread is woken on an idle CPU if there is one.

use super::cpu::{Context, HardIrq};
use super::{Affinity, Class, Event, Next, RunState, Stage, World};
use crate::engine::Ns;

/// The scheduler's tick (`HZ` 1000).
const TICK_NS: Ns = 1_000_000;
/// Lead in virtual run time after which a fair thread is preempted (`base_slice_ns`).
const SLICE_NS: Ns = 3_000_000;

impl World {
    /// Makes a blocked thread runnable. The waker runs on `waker_cpu`.
    pub(crate) fn wake(&mut self, thread: usize, waker_cpu: usize) {
        if self.threads[thread].state != RunState::Blocked {
            return;
        }
        let cpu = self.cpu_for(thread, waker_cpu);
        let floor_ns = self.least_vruntime_ns(cpu).saturating_sub(SLICE_NS / 2);
        let state = &mut self.threads[thread];
        state.cpu = cpu;
        state.state = RunState::Runnable;
        state.vruntime_ns = state.vruntime_ns.max(floor_ns);
        state.sleep = state.sleep.wrapping_add(1);
        self.cpus[cpu].runnable.push(thread);
        self.check_preemption(cpu, thread);
        if !matches!(self.cpus[cpu].context, Context::HardIrq | Context::SoftIrq | Context::Deciding) {
            let wanted = self.cpus[cpu].need_resched || self.cpus[cpu].current.is_none();
            if wanted {
                self.raise_hardirq(cpu, HardIrq::Reschedule);
            }
        }
        self.start_ticking(cpu);
    }

    fn cpu_for(&self, thread: usize, waker_cpu: usize) -> usize {
        let state = &self.threads[thread];
        let free = |cpu: usize| self.cpus[cpu].current.is_none() && self.cpus[cpu].runnable.is_empty();
        if state.affinity == Affinity::Pinned || free(state.cpu) {
            return state.cpu;
        }
        if free(waker_cpu) {
            return waker_cpu;
        }
        (0..self.cpus.len()).find(|&cpu| free(cpu)).unwrap_or(state.cpu)
    }

    fn least_vruntime_ns(&self, cpu: usize) -> Ns {
        let state = &self.cpus[cpu];
        state
            .runnable
            .iter()
            .copied()
            .chain(state.current)
            .map(|thread| self.threads[thread].vruntime_ns)
            .min()
            .unwrap_or(0)
    }

    fn check_preemption(&mut self, cpu: usize, woken: usize) {
        let Some(current) = self.cpus[cpu].current else { return };
        let before = match (self.threads[woken].class, self.threads[current].class) {
            (Class::RealTime(mine), Class::RealTime(other)) => mine > other,
            (Class::RealTime(_), Class::Fair) => true,
            (Class::Fair, Class::RealTime(_)) => false,
            (Class::Fair, Class::Fair) => self.threads[woken].vruntime_ns < self.threads[current].vruntime_ns,
        };
        if before {
            self.cpus[cpu].need_resched = true;
            self.poke(current);
        }
    }

    /// Continues the current thread, selects another thread, or becomes idle.
    pub(crate) fn thread_turn(&mut self, cpu: usize) {
        if let Some(current) = self.cpus[cpu].current {
            if !self.cpus[cpu].need_resched || self.threads[current].bottom_halves_disabled() {
                return self.resume_thread(cpu, current, 0);
            }
            self.threads[current].state = RunState::Runnable;
            self.cpus[cpu].runnable.push(current);
            self.cpus[cpu].current = None;
        }
        self.cpus[cpu].need_resched = false;
        self.pull_if_idle(cpu);
        let Some(index) = self.next_index(cpu) else {
            return self.run_segment(cpu, Context::IdleEntry, self.costs.idle_entry_ns);
        };
        let thread = self.cpus[cpu].runnable.swap_remove(index);
        self.cpus[cpu].current = Some(thread);
        self.threads[thread].state = RunState::Running;
        let switched = self.cpus[cpu].last != Some(thread) || self.slept(thread);
        let switch_ns = if switched { self.costs.wake_ns } else { 0 };
        self.cpus[cpu].last = Some(thread);
        if !self.cpus[cpu].runnable.is_empty() {
            self.start_ticking(cpu);
        }
        self.resume_thread(cpu, thread, switch_ns);
    }

    /// Lets an idle CPU pull a waiting floating thread from another CPU (`sched_balance_newidle`).
    fn pull_if_idle(&mut self, cpu: usize) {
        if !self.cpus[cpu].runnable.is_empty() {
            return;
        }
        let waiting = |from: &usize| {
            let others = &self.cpus[*from].runnable;
            others.iter().position(|&thread| self.threads[thread].affinity == Affinity::Floating)
        };
        let Some((from, index)) = (0..self.cpus.len())
            .find_map(|from| self.cpus[from].current.and(waiting(&from)).map(|index| (from, index)))
        else {
            return;
        };
        let thread = self.cpus[from].runnable.swap_remove(index);
        self.threads[thread].cpu = cpu;
        self.cpus[cpu].runnable.push(thread);
    }

    fn slept(&self, thread: usize) -> bool {
        matches!(self.threads[thread].stage, Stage::EpollSleep | Stage::RecvSleep | Stage::NapiThread)
    }

    fn next_index(&self, cpu: usize) -> Option<usize> {
        let order = |&(_, &thread): &(usize, &usize)| {
            let state = &self.threads[thread];
            match state.class {
                Class::RealTime(priority) => (0, u64::from(u8::MAX - priority), thread),
                Class::Fair => (1, state.vruntime_ns, thread),
            }
        };
        self.cpus[cpu].runnable.iter().enumerate().min_by_key(order).map(|(index, _)| index)
    }

    fn resume_thread(&mut self, cpu: usize, thread: usize, switch_ns: Ns) {
        let mut left_ns = std::mem::take(&mut self.threads[thread].left_ns);
        if self.threads[thread].stage == Stage::ClockSpin {
            left_ns = self.threads[thread].call.deadline_ns.saturating_sub(self.now_ns);
        }
        let state = &mut self.threads[thread];
        if state.spinning() {
            state.spin_began_ns = self.now_ns + switch_ns + std::mem::take(&mut state.spin_rest_ns);
        }
        self.run_segment(cpu, Context::Thread, left_ns.saturating_add(switch_ns));
    }

    /// Accounts the current segment, including virtual run time. A softirq is charged to the thread that it
    /// interrupts, as without `CONFIG_IRQ_TIME_ACCOUNTING`.
    pub(crate) fn book_segment(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let (began_ns, context) = (state.segment_began_ns, state.context);
        let spent_ns = self.now_ns.saturating_sub(began_ns);
        self.utilisation.record(context, spent_ns);
        if let (Context::Thread | Context::SoftIrq, Some(thread)) = (context, state.current) {
            self.threads[thread].vruntime_ns += spent_ns;
        }
        if let Some(trace) = &mut self.trace {
            let thread = self.cpus[cpu].current.map(|thread| (thread, &self.threads[thread]));
            trace.segment(cpu, &self.cpus[cpu], thread, self.now_ns);
        }
        self.cpus[cpu].account(self.now_ns);
    }

    /// Handles the end of a thread's segment: the thread continues or sleeps.
    pub(crate) fn thread_segment_done(&mut self, cpu: usize) {
        let Some(thread) = self.cpus[cpu].current else { return };
        match self.advance(thread) {
            Next::Run(ns) => self.threads[thread].left_ns = ns,
            Next::Block => {
                self.threads[thread].state = RunState::Blocked;
                self.cpus[cpu].current = None;
            }
        }
    }

    fn start_ticking(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        if state.current.is_some() && !state.ticking {
            state.ticking = true;
            self.events.schedule(self.now_ns + TICK_NS, Event::Tick { cpu: cpu as u16 });
        }
    }

    pub(crate) fn tick_event(&mut self, cpu: usize) {
        self.cpus[cpu].ticking = false;
        if !self.cpus[cpu].runnable.is_empty() {
            self.raise_hardirq(cpu, HardIrq::Tick);
        }
    }

    pub(crate) fn tick(&mut self, cpu: usize) {
        let Some(current) = self.cpus[cpu].current else { return };
        if self.threads[current].class == Class::Fair {
            let least_ns =
                self.cpus[cpu].runnable.iter().map(|&thread| self.threads[thread].vruntime_ns).min().unwrap_or(Ns::MAX);
            if least_ns.saturating_add(SLICE_NS / 2) < self.threads[current].vruntime_ns {
                self.cpus[cpu].need_resched = true;
                self.poke(current);
            }
        }
        self.start_ticking(cpu);
    }
}

impl World {
    pub(crate) fn add_cpu(&mut self) -> usize {
        let cpu = self.cpus.len();
        let ksoftirqd = self.add_thread(super::Program::Ksoftirqd, Stage::Ksoftirqd, cpu, Class::Fair);
        self.cpus.push(super::cpu::Cpu::new(ksoftirqd));
        cpu
    }

    pub(crate) fn add_thread(&mut self, program: super::Program, stage: Stage, cpu: usize, class: Class) -> usize {
        let mut thread = super::Thread::new(program, stage, cpu);
        thread.class = class;
        self.threads.push(thread);
        self.threads.len() - 1
    }

    pub(crate) fn start_thread(&mut self, thread: usize) {
        let cpu = self.threads[thread].cpu;
        self.threads[thread].state = RunState::Runnable;
        self.cpus[cpu].runnable.push(thread);
    }
}
