//! Describes each event and each segment of a trace in a sentence, with the values of the mode.

use quell_mode::{DeliveryMode, NapiSettings};

use super::fold::Step;
use crate::{Ns, TimelineEntry, Trace};

/// Steps of the trace from `from_ns` on, in order.
pub(super) fn steps(trace: &Trace, mode: &DeliveryMode, from_ns: Ns) -> Vec<Step> {
    let mut narrator = Narrator { napi: mode.napi(), masked: false, polled_until_ns: 0 };
    let steps = trace.timeline(0, Ns::MAX).into_iter().filter_map(|entry| {
        let text = narrator.sentence(&entry)?;
        Some(Step { at_ns: entry.at_ns, lasts_ns: entry.lasts_ns, text })
    });
    steps.filter(|step| step.at_ns >= from_ns).collect()
}

/// State after the previous steps, on which a sentence may depend.
struct Narrator {
    napi: NapiSettings,
    masked: bool,
    /// Time until which the application's thread polls the queue, in ns.
    polled_until_ns: Ns,
}

impl Narrator {
    fn sentence(&mut self, entry: &TimelineEntry) -> Option<String> {
        match entry.what {
            "interrupt" => self.masked = true,
            "interrupt enabled" => self.masked = false,
            "busy poll" => self.polled_until_ns = entry.at_ns + entry.lasts_ns.unwrap_or(0),
            _ => {}
        }
        let NapiSettings { gro_flush_timeout_ns, irq_suspend_timeout_ns, .. } = self.napi;
        let (gro, suspend) = (time(gro_flush_timeout_ns), time(irq_suspend_timeout_ns));
        Some(match entry.what {
            "packet" => self.packet(entry.at_ns),
            "NIC interrupt" if self.masked => {
                "The NIC interrupts the CPU for the other direction (responses sent, or packets received): this NIC masks only \
                 the direction that raised an interrupt."
                    .to_owned()
            }
            "NIC interrupt" => "The NIC interrupts the CPU, for packets received or responses sent.".to_owned(),
            "interrupt" => "The interrupt is handled: it is masked, and a NAPI poll is scheduled.".to_owned(),
            "NAPI timer interrupt" => "The NAPI instance's timer interrupts the CPU.".to_owned(),
            "timer" => "The NAPI instance is free: a poll is scheduled.".to_owned(),
            "timer lost" => "The NAPI instance is already being polled, so the timer has no effect.".to_owned(),
            "interrupt enabled" if self.napi.defers() => {
                format!("After {} empty polls the interrupt is enabled again.", self.napi.defer_hard_irqs)
            }
            "interrupt enabled" => "The poll is complete and the interrupt is enabled again.".to_owned(),
            "delivered" => "The packet reaches its socket, which becomes ready in the epoll.".to_owned(),
            "suspended" => format!(
                "epoll_wait returns events and sets the timer to irq-suspend-timeout, {suspend}: interrupts are suspended \
                 while the server works."
            ),
            "resumed" => format!(
                "epoll_wait finds no events: suspension ends. One poll is scheduled, and deferral takes over with \
                 gro-flush-timeout, {gro}."
            ),
            "response" => "The server sends the response.".to_owned(),
            "NET_RX softirq" => "NET_RX softirq polls the queue.".to_owned(),
            "NAPI thread" => "The queue's NAPI thread polls it.".to_owned(),
            "polling thread" => "Quell's thread polls the queue.".to_owned(),
            "busy poll" => "The server's thread busy polls the queue in epoll_wait.".to_owned(),
            "final poll" => {
                "Before it leaves the busy-poll loop, the thread polls once more with the full budget.".to_owned()
            }
            "waiting for events in a loop" => "The server calls epoll_wait with timeout 0 repeatedly.".to_owned(),
            "epoll_wait" => "The server's thread is in epoll_wait.".to_owned(),
            "application" => "The server works on a request.".to_owned(),
            "leaving idle" => "The CPU leaves its idle state.".to_owned(),
            "entering idle" => "No work is left: the CPU becomes idle.".to_owned(),
            "ksoftirqd" => "ksoftirqd takes over packets that exceed the limits of a softirq.".to_owned(),
            _ => return None,
        })
    }

    fn packet(&self, at_ns: Ns) -> String {
        let place = "A packet arrives in the NIC's ring";
        if at_ns < self.polled_until_ns {
            format!("{place} while the server's thread polls it.")
        } else if self.masked {
            format!("{place}. The interrupt is masked, so it waits for the next poll.")
        } else {
            format!("{place}.")
        }
    }
}

/// Formats a timeout with the largest unit that gives a whole number.
fn time(ns: u64) -> String {
    match ns {
        ns if ns >= 1_000_000 && ns.is_multiple_of(1_000_000) => format!("{} ms", ns / 1_000_000),
        ns if ns >= 1_000 && ns.is_multiple_of(1_000) => format!("{} µs", ns / 1_000),
        ns => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_the_largest_unit_that_gives_a_whole_number() {
        assert_eq!([20_000_000, 20_000, 1_500_000, 2_500].map(time), ["20 ms", "20 µs", "1500 µs", "2500 ns"]);
    }
}
