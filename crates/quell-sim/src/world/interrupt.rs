//! Hard interrupts: delivery to a CPU, handlers of the NIC's vector and of timers, and the selection of the CPU's next
//! activity.

use super::cpu::{Context, HardIrq};
use super::{Event, Stage, World};
use crate::engine::{NEVER, Ns};
use crate::mechanism::Schedule;

impl World {
    pub(crate) fn run_segment(&mut self, cpu: usize, context: Context, ns: Ns) {
        let now_ns = self.now_ns;
        let state = &mut self.cpus[cpu];
        state.context = context;
        state.segment_began_ns = now_ns;
        state.generation = state.generation.wrapping_add(1);
        let generation = state.generation;
        if ns == NEVER {
            state.segment_ends_ns = NEVER;
            return;
        }
        state.segment_ends_ns = now_ns + ns;
        let cpu = cpu as u16;
        self.events.schedule(now_ns + ns, Event::SegmentEnd { cpu, generation });
    }

    /// Handles the end of a segment: applies its effect and continues with the next activity.
    pub(crate) fn segment_end(&mut self, cpu: usize, generation: u32) {
        if self.cpus[cpu].generation != generation {
            return;
        }
        self.book_segment(cpu);
        let state = &mut self.cpus[cpu];
        let context = std::mem::replace(&mut state.context, Context::Deciding);
        match context {
            Context::HardIrq => self.hardirq_handled(cpu),
            Context::SoftIrq => self.softirq_segment_done(cpu),
            Context::Thread => self.thread_segment_done(cpu),
            Context::IdleEntry => {
                self.cpus[cpu].context = Context::Halted;
                self.cpus[cpu].halted_since_ns = self.now_ns;
                return;
            }
            Context::IdleExit | Context::Halted | Context::Deciding => {}
        }
        self.dispatch(cpu);
    }

    /// Interrupts a CPU. An idle CPU leaves its idle state first.
    pub(crate) fn raise_hardirq(&mut self, cpu: usize, irq: HardIrq) {
        let now_ns = self.now_ns;
        let left_ns = match self.cpus[cpu].context {
            Context::HardIrq | Context::IdleExit | Context::Deciding => {
                self.cpus[cpu].irqs.push_back(irq);
                return;
            }
            _ => {
                self.book_segment(cpu);
                self.cpus[cpu].interrupt(now_ns)
            }
        };
        self.cpus[cpu].irqs.push_back(irq);
        match self.cpus[cpu].context {
            Context::Halted => return self.leave_idle(cpu, now_ns - self.cpus[cpu].halted_since_ns),
            Context::IdleEntry => return self.leave_idle(cpu, 0),
            Context::SoftIrq => self.cpus[cpu].softirq_left_ns = left_ns,
            _ => self.thread_interrupted(cpu, irq, left_ns),
        }
        self.cpus[cpu].context = Context::Deciding;
        self.dispatch(cpu);
    }

    fn thread_interrupted(&mut self, cpu: usize, irq: HardIrq, left_ns: Ns) {
        let Some(thread) = self.cpus[cpu].current else { return };
        self.book_spin(thread);
        let state = &mut self.threads[thread];
        state.left_ns = left_ns;
        if state.spinning() {
            let switching = state.spin_began_ns >= self.now_ns;
            let iteration_ns = if switching { 0 } else { state.spin_round_ns };
            state.spin_rest_ns = state.spin_began_ns + iteration_ns - self.now_ns;
        }
        if state.stage == Stage::Program && matches!(irq, HardIrq::Device(_) | HardIrq::NapiTimer(_)) {
            state.left_ns += self.costs.interference_ns;
        }
    }

    fn leave_idle(&mut self, cpu: usize, idle_ns: Ns) {
        let state = &mut self.cpus[cpu];
        let latency_ns = if idle_ns == 0 { 0 } else { self.costs.idle_latency_ns(state.expected_idle_ns) };
        state.expected_idle_ns = (3 * state.expected_idle_ns + idle_ns) / 4;
        // The CPU is halted in the first part of the exit. That part is not executed time, so the segment starts later.
        self.run_segment(cpu, Context::IdleExit, latency_ns + self.costs.idle_exit_ns);
        self.cpus[cpu].segment_began_ns += latency_ns;
    }

    /// Continues with the most urgent work: interrupts first, then softirqs, then threads.
    pub(crate) fn dispatch(&mut self, cpu: usize) {
        if let Some(&irq) = self.cpus[cpu].irqs.front() {
            let cost_ns = match irq {
                HardIrq::Device(_) if self.cpus[cpu].current.is_none() => self.costs.device_irq_ns,
                HardIrq::Device(_) => self.costs.device_irq_ns + self.costs.preempting_irq_ns,
                HardIrq::NapiTimer(_) | HardIrq::Timeout { .. } | HardIrq::Tick => self.costs.timer_irq_ns,
                HardIrq::Reschedule => 0,
            };
            return self.run_segment(cpu, Context::HardIrq, cost_ns);
        }
        if self.softirq_turn(cpu) {
            return;
        }
        self.thread_turn(cpu);
    }

    fn hardirq_handled(&mut self, cpu: usize) {
        let Some(irq) = self.cpus[cpu].irqs.pop_front() else { return };
        self.cpus[cpu].left_to_ksoftirqd = false;
        match irq {
            HardIrq::Device(queue) => {
                self.mark(queue, "interrupt");
                if self.queues[queue].napi.schedule_prep() == Schedule::Taken {
                    self.napi_run(queue, cpu);
                }
            }
            HardIrq::NapiTimer(queue) => self.napi_watchdog(cpu, queue),
            HardIrq::Timeout { thread, sleep } => self.sleep_over(thread, sleep),
            HardIrq::Reschedule => {}
            HardIrq::Tick => self.tick(cpu),
        }
    }

    fn napi_watchdog(&mut self, cpu: usize, queue: usize) {
        self.counters[queue].timer_irqs += 1;
        if self.queues[queue].napi.watchdog() {
            self.mark(queue, "timer");
            self.napi_run(queue, cpu);
        } else {
            self.mark(queue, "timer lost");
            self.counters[queue].lost_timers += 1;
        }
    }

    /// Runs a scheduled poll, in the softirq on `cpu` or in the NAPI thread.
    pub(crate) fn napi_run(&mut self, queue: usize, cpu: usize) {
        match self.queues[queue].thread {
            Some(thread) if self.queues[queue].napi.threaded() => self.wake(thread, cpu),
            _ => self.cpus[cpu].poll_list.push_back(queue),
        }
    }

    /// Handles a change in the state of a vector: raises or reschedules its interrupt.
    pub(crate) fn vector_changed(&mut self, queue: usize) {
        let now_ns = self.now_ns;
        let rx = &mut self.queues[queue];
        let due_ns = rx.vector.due_ns();
        if due_ns <= now_ns {
            rx.vector.fire(now_ns);
            let cpu = rx.irq_cpu;
            self.counters[queue].irqs += 1;
            self.raise_hardirq(cpu, HardIrq::Device(queue));
        } else if due_ns < rx.vector_event_ns {
            rx.vector_event_ns = due_ns;
            self.events.schedule(due_ns, Event::Vector { queue: queue as u16 });
        }
    }

    pub(crate) fn vector_event(&mut self, queue: usize) {
        let rx = &mut self.queues[queue];
        if rx.vector_event_ns == self.now_ns {
            rx.vector_event_ns = NEVER;
            self.vector_changed(queue);
        }
    }

    /// Arms or moves the timer of an instance. The timer fires on `cpu` (`HRTIMER_MODE_REL_PINNED`).
    pub(crate) fn arm_timer(&mut self, queue: usize, after_ns: Ns, cpu: usize) {
        let at_ns = self.now_ns.saturating_add(after_ns);
        let rx = &mut self.queues[queue];
        rx.napi.timer_at_ns = Some(at_ns);
        rx.timer_cpu = cpu;
        if at_ns < rx.timer_event_ns {
            rx.timer_event_ns = at_ns;
            self.events.schedule(at_ns, Event::NapiTimer { queue: queue as u16 });
        }
    }

    pub(crate) fn napi_timer_event(&mut self, queue: usize) {
        let now_ns = self.now_ns;
        let rx = &mut self.queues[queue];
        if rx.timer_event_ns != now_ns {
            return;
        }
        rx.timer_event_ns = NEVER;
        match rx.napi.timer_at_ns {
            Some(at_ns) if at_ns <= now_ns => {
                rx.napi.timer_at_ns = None;
                let cpu = rx.timer_cpu;
                self.raise_hardirq(cpu, HardIrq::NapiTimer(queue));
            }
            Some(at_ns) => {
                rx.timer_event_ns = at_ns;
                self.events.schedule(at_ns, Event::NapiTimer { queue: queue as u16 });
            }
            None => {}
        }
    }
}
