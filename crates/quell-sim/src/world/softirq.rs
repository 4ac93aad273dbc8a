//! The NET_RX softirq. Each run of `net_rx_action` polls the poll list until its budget is used up. It is repeated within
//! limits (`handle_softirqs`), and then `ksoftirqd` takes over.

use super::cpu::{Context, SoftIrqRun};
use super::poll::{GRO_NORMAL_BATCH, NAPI_POLL_WEIGHT};
use super::{Stage, World};
use crate::engine::Ns;

/// `net.core.netdev_budget`: maximum number of packets in one round.
const ROUND_BUDGET: i64 = 300;
/// Default of `net.core.netdev_budget_usecs`, which is 2 jiffies.
const ROUND_JIFFIES: Ns = 2;
/// `MAX_SOFTIRQ_RESTART` of `kernel/softirq.c`.
const ROUNDS: u32 = 10;
/// `MAX_SOFTIRQ_TIME` of `kernel/softirq.c`: 2 ms.
const ALL_ROUNDS_NS: Ns = 2_000_000;

impl World {
    /// Continues or starts the softirq if one is pending. Returns whether it did.
    pub(crate) fn softirq_turn(&mut self, cpu: usize) -> bool {
        if self.cpus[cpu].softirq.is_none() {
            let state = &self.cpus[cpu];
            let disabled = state.current.is_some_and(|thread| self.threads[thread].bottom_halves_disabled());
            if state.poll_list.is_empty() || state.left_to_ksoftirqd || disabled {
                return false;
            }
            self.cpus[cpu].softirq = Some(self.first_round(cpu));
            if !self.next_poll(cpu) {
                return false;
            }
        }
        let left_ns = std::mem::take(&mut self.cpus[cpu].softirq_left_ns);
        self.run_segment(cpu, Context::SoftIrq, left_ns);
        true
    }

    fn first_round(&self, cpu: usize) -> SoftIrqRun {
        SoftIrqRun {
            began_ns: self.now_ns,
            round: 1,
            round_deadline_ns: self.now_ns + ROUND_JIFFIES * self.rules.jiffy_ns,
            budget: ROUND_BUDGET,
            round_left: self.cpus[cpu].poll_list.len(),
            polling: None,
        }
    }

    /// Polls the next instance or starts another round. Returns whether there was an instance.
    fn next_poll(&mut self, cpu: usize) -> bool {
        let Some(mut run) = self.cpus[cpu].softirq else { return false };
        let over = run.budget <= 0 || self.now_ns >= run.round_deadline_ns;
        if (run.round_left == 0 || over) && !self.next_round(cpu, &mut run) {
            self.cpus[cpu].softirq = None;
            return false;
        }
        let Some(queue) = self.cpus[cpu].poll_list.pop_front() else {
            self.cpus[cpu].softirq = None;
            return false;
        };
        let (work, cost_ns) = self.poll_begin(queue, cpu, GRO_NORMAL_BATCH);
        run.round_left -= 1;
        run.polling = Some((queue, work));
        self.cpus[cpu].softirq = Some(run);
        self.cpus[cpu].softirq_left_ns = self.costs.napi_poll_ns + cost_ns;
        true
    }

    /// Ends a round: starts another one, or leaves the rest to `ksoftirqd`.
    fn next_round(&mut self, cpu: usize, run: &mut SoftIrqRun) -> bool {
        let state = &mut self.cpus[cpu];
        if state.poll_list.is_empty() {
            return false;
        }
        let bounded = run.round < ROUNDS && self.now_ns < run.began_ns + ALL_ROUNDS_NS;
        if !bounded || state.need_resched {
            state.left_to_ksoftirqd = true;
            let ksoftirqd = state.ksoftirqd;
            self.wake(ksoftirqd, cpu);
            return false;
        }
        run.round += 1;
        run.budget = ROUND_BUDGET;
        run.round_deadline_ns = self.now_ns + ROUND_JIFFIES * self.rules.jiffy_ns;
        run.round_left = state.poll_list.len();
        true
    }

    /// Handles the end of a part of a poll: delivers its packets, and continues while the ring has packets and the
    /// weight permits it.
    pub(crate) fn softirq_segment_done(&mut self, cpu: usize) {
        let Some(run) = self.cpus[cpu].softirq else { return };
        let Some((queue, work)) = run.polling else { return };
        self.deliver(queue, cpu);
        if work < NAPI_POLL_WEIGHT && !self.queues[queue].ring.is_empty() {
            let (more, cost_ns) = self.poll_begin(queue, cpu, GRO_NORMAL_BATCH.min(NAPI_POLL_WEIGHT - work));
            if let Some(run) = &mut self.cpus[cpu].softirq {
                run.polling = Some((queue, work + more));
            }
            self.cpus[cpu].softirq_left_ns = cost_ns;
            return;
        }
        if let Some(run) = &mut self.cpus[cpu].softirq {
            run.polling = None;
            run.budget -= i64::from(work);
        }
        if self.finish_poll(queue, work, cpu) {
            self.cpus[cpu].poll_list.push_back(queue);
        }
        self.next_poll(cpu);
    }

    /// Runs `ksoftirqd`, which executes softirqs until none is pending.
    pub(crate) fn ksoftirqd_turn(&mut self, thread: usize) -> super::Next {
        let cpu = self.threads[thread].cpu;
        self.cpus[cpu].left_to_ksoftirqd = false;
        self.threads[thread].stage = Stage::Ksoftirqd;
        if self.cpus[cpu].poll_list.is_empty() { super::Next::Block } else { super::Next::Run(0) }
    }
}
