//! The words for what a recording holds: each mark and each segment as a sentence, with the
//! mode's own values.

use quell_mode::{DeliveryMode, NapiSettings};
use quell_sim::{Moment, Ns, Trace};

use super::fold::Step;

/// Everything from `from_ns` on that is worth a sentence, in order.
pub(super) fn steps(trace: &Trace, mode: &DeliveryMode, from_ns: Ns) -> Vec<Step> {
    let mut teller = Teller { napi: mode.napi(), masked: false, polled_until_ns: 0, waiting: 0 };
    let told = trace.moments(0, Ns::MAX).into_iter().filter_map(|moment| {
        let text = teller.sentence(&moment)?;
        Some(Step { at_ns: moment.at_ns, lasts_ns: moment.lasts_ns, text })
    });
    told.filter(|step| step.at_ns >= from_ns).collect()
}

/// What has to be known of the past to tell the present.
struct Teller {
    napi: NapiSettings,
    /// The interrupt is masked.
    masked: bool,
    /// Packets on their way from the ring to their sockets.
    waiting: usize,
    /// The application's thread polls the queue until then.
    polled_until_ns: Ns,
}

impl Teller {
    fn sentence(&mut self, moment: &Moment) -> Option<String> {
        match moment.what {
            "packet" => self.waiting += 1,
            "delivered" => self.waiting = self.waiting.saturating_sub(1),
            "interrupt" => self.masked = true,
            "interrupt enabled" => self.masked = false,
            "busy poll" => self.polled_until_ns = moment.at_ns + moment.lasts_ns.unwrap_or(0),
            _ => {}
        }
        let NapiSettings { gro_flush_timeout_ns, irq_suspend_timeout_ns, .. } = self.napi;
        let (gro, suspend) = (time(gro_flush_timeout_ns), time(irq_suspend_timeout_ns));
        Some(match moment.what {
            "packet" => self.packet(moment.at_ns),
            "NIC interrupt" if self.waiting == 0 => "The NIC has sent the response, and interrupts the CPU.".to_owned(),
            "NIC interrupt" => "The NIC interrupts the CPU.".to_owned(),
            "interrupt" => {
                "The interrupt is handled: from now on it is masked, and a NAPI poll is scheduled.".to_owned()
            }
            "NAPI timer interrupt" => "The timer of the NAPI instance interrupts the CPU.".to_owned(),
            "timer" => "Nobody owns the instance: a poll is scheduled.".to_owned(),
            "timer lost" => "The instance is being polled already: the timer is lost.".to_owned(),
            "interrupt enabled" if self.napi.defers() => {
                format!("After {} polls that found nothing the interrupt is enabled again.", self.napi.defer_hard_irqs)
            }
            "interrupt enabled" => "The poll is complete and the interrupt is enabled again.".to_owned(),
            "delivered" => "The packet reaches its socket, and the epoll hears of it.".to_owned(),
            "suspended" => format!(
                "epoll_wait hands events over and puts the timer off by irq-suspend-timeout, {suspend}: interrupts are \
                 suspended while the server works."
            ),
            "resumed" => format!(
                "epoll_wait found nothing: suspension ends. One poll is scheduled, and deferral takes over with \
                 gro-flush-timeout, {gro}."
            ),
            "response" => "The response leaves.".to_owned(),
            "NET_RX softirq" => "The softirq polls the queue.".to_owned(),
            "NAPI thread" => "The queue's NAPI thread polls it.".to_owned(),
            "busy poll" => "The server's thread polls the queue itself, inside epoll_wait.".to_owned(),
            "final poll" => "On leaving the busy loop the thread polls once more, with a whole budget.".to_owned(),
            "waiting for events in a loop" => "The server calls epoll_wait with timeout 0 again and again.".to_owned(),
            "epoll_wait" => "The server's thread is in epoll_wait.".to_owned(),
            "application" => "The server works on a request.".to_owned(),
            "leaving idle" => "The CPU leaves its idle state.".to_owned(),
            "entering idle" => "Nothing is left to do: the CPU goes idle.".to_owned(),
            "ksoftirqd" => "ksoftirqd takes over what the softirq could not do in its bounds.".to_owned(),
            _ => return None,
        })
    }

    fn packet(&self, at_ns: Ns) -> String {
        let place = "A packet lands in the ring of the NIC";
        if at_ns < self.polled_until_ns {
            format!("{place}, while the server's thread polls it.")
        } else if self.masked {
            format!("{place}. Its interrupt is masked: it waits for the next poll.")
        } else {
            format!("{place}.")
        }
    }
}

/// A timeout in the largest unit that leaves it whole.
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
    fn timeouts_are_told_in_the_largest_unit_that_leaves_them_whole() {
        assert_eq!([20_000_000, 20_000, 1_500_000, 2_500].map(time), ["20 ms", "20 µs", "1500 µs", "2500 ns"]);
    }
}
