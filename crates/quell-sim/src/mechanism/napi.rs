//! A NAPI instance: state bits, deferral counter and timer, and the transitions of `net/core/dev.c`
//! (`napi_schedule_prep`, `napi_complete_done`, `napi_watchdog`, start and end of `napi_busy_loop`). Polls
//! and their costs are simulated in `world`.

use quell_mode::{NapiSettings, Threaded};

use crate::engine::Ns;

/// State bits of a NAPI instance, named as in `enum napi_state` (without `NAPI_STATE_`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NapiState {
    /// The instance is scheduled: a poller owns it.
    pub sched: bool,
    /// A poll was requested while another poller owned the instance.
    pub missed: bool,
    /// The owner is a busy-poll loop, so `napi_complete_done` has no effect.
    pub in_busy_poll: bool,
    /// A busy poller wants the instance, so the owner should release it.
    pub prefer_busy_poll: bool,
}

/// Result of a request for a poll (`napi_schedule_prep`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// The caller now owns the instance and must schedule its poll.
    Taken,
    /// The instance already has an owner, so `MISSED` is set.
    Missed,
}

/// Result of the completion of a poll below its budget (`napi_complete_done`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The completion had no effect, because a busy-poll loop owns the instance.
    Refused,
    /// `MISSED` was set. The instance keeps its owner and is polled again, without a timer.
    Again,
    /// The instance was released. The interrupt stays masked, and the timer is armed.
    Deferred {
        /// Timeout of the timer, which is `gro-flush-timeout`.
        timeout_ns: Ns,
    },
    /// The instance was released and the interrupt enabled. Packets held by GRO may also need the timer.
    InterruptEnabled {
        /// Timeout of the timer, which is `gro-flush-timeout`, if GRO holds packets.
        timeout_ns: Option<Ns>,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Napi {
    pub(crate) settings: NapiSettings,
    pub(crate) state: NapiState,
    /// `defer_hard_irqs_count`: remaining number of empty polls before the interrupt is enabled.
    pub(crate) defer_hard_irqs_count: u32,
    /// Time at which the timer fires. An event of a moved or stopped timer is stale, and is recognized by its time.
    pub(crate) timer_at_ns: Option<Ns>,
}

impl Napi {
    pub(crate) fn new(settings: NapiSettings) -> Self {
        Self { settings, state: NapiState::default(), defer_hard_irqs_count: 0, timer_at_ns: None }
    }

    pub(crate) fn threaded(&self) -> bool {
        self.settings.threaded != Threaded::Off
    }

    /// Requests a poll, on behalf of an interrupt or a resumption.
    pub(crate) fn schedule_prep(&mut self) -> Schedule {
        if self.state.sched {
            self.state.missed = true;
            return Schedule::Missed;
        }
        self.state.sched = true;
        Schedule::Taken
    }

    /// Handles the timer (`napi_watchdog`). Returns whether the instance was free. If so, it now has an owner and must
    /// be polled. Otherwise the timer has no effect, because the kernel does not set `MISSED`.
    pub(crate) fn watchdog(&mut self) -> bool {
        self.timer_at_ns = None;
        if self.state.sched {
            return false;
        }
        self.state.sched = true;
        self.state.prefer_busy_poll = false;
        true
    }

    /// Completes a poll of `work` packets (`napi_complete_done`). `held` tells whether GRO holds packets.
    pub(crate) fn complete_done(&mut self, work: u32, held: bool) -> Completion {
        if self.state.in_busy_poll {
            return Completion::Refused;
        }
        let gro_flush_timeout = Some(self.settings.gro_flush_timeout_ns).filter(|&ns| ns > 0);
        let mut timeout_ns = None;
        if work > 0 {
            timeout_ns = gro_flush_timeout.filter(|_| held);
            self.defer_hard_irqs_count = self.settings.defer_hard_irqs;
        }
        let mut deferred = false;
        if self.defer_hard_irqs_count > 0 {
            self.defer_hard_irqs_count -= 1;
            timeout_ns = gro_flush_timeout;
            deferred = timeout_ns.is_some();
        }
        self.state.prefer_busy_poll = false;
        if std::mem::take(&mut self.state.missed) {
            return Completion::Again;
        }
        self.state.sched = false;
        match timeout_ns {
            Some(timeout_ns) if deferred => Completion::Deferred { timeout_ns },
            _ => Completion::InterruptEnabled { timeout_ns },
        }
    }

    /// Tries to acquire the instance for a busy-poll loop. If this fails and the loop prefers busy polling, the owner
    /// is asked to release the instance.
    pub(crate) fn busy_poll_acquire(&mut self, prefer: bool) -> bool {
        if self.state.sched {
            self.state.prefer_busy_poll |= prefer;
            return false;
        }
        self.state.sched = true;
        self.state.in_busy_poll = true;
        true
    }

    /// Ends a busy-poll loop (`busy_poll_stop` before its final poll). Returns the timeout of the timer that serves as
    /// a backstop. `None` without preferred busy polling or without deferral.
    pub(crate) fn busy_poll_stop(&mut self, prefer: bool) -> Option<Ns> {
        self.state.missed = false;
        self.state.in_busy_poll = false;
        if !prefer {
            return None;
        }
        self.defer_hard_irqs_count = self.settings.defer_hard_irqs;
        self.settings.defers().then_some(self.settings.gro_flush_timeout_ns)
    }

    /// Timeout of the timer after `epoll_wait` returned events (`napi_suspend_irqs`). `None` without suspension.
    pub(crate) fn suspend_timeout_ns(&self) -> Option<Ns> {
        Some(self.settings.irq_suspend_timeout_ns).filter(|&ns| ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFERRED: NapiSettings = NapiSettings {
        defer_hard_irqs: 2,
        gro_flush_timeout_ns: 20_000,
        irq_suspend_timeout_ns: 0,
        threaded: Threaded::Off,
    };

    fn owned(settings: NapiSettings) -> Napi {
        let mut napi = Napi::new(settings);
        assert_eq!(napi.schedule_prep(), Schedule::Taken);
        napi
    }

    #[test]
    fn without_deferral_completion_enables_the_interrupt() {
        let mut napi = owned(NapiSettings::default());
        assert_eq!(napi.complete_done(3, false), Completion::InterruptEnabled { timeout_ns: None });
        assert!(!napi.state.sched);
    }

    #[test]
    fn after_the_configured_number_of_empty_polls_deferral_enables_the_interrupt() {
        let mut napi = owned(DEFERRED);
        assert_eq!(napi.complete_done(1, false), Completion::Deferred { timeout_ns: 20_000 });
        for expected in [Completion::Deferred { timeout_ns: 20_000 }, Completion::InterruptEnabled { timeout_ns: None }]
        {
            assert!(napi.watchdog());
            assert_eq!(napi.complete_done(0, false), expected);
        }
    }

    #[test]
    fn deferral_needs_both_values() {
        for settings in
            [NapiSettings { defer_hard_irqs: 0, ..DEFERRED }, NapiSettings { gro_flush_timeout_ns: 0, ..DEFERRED }]
        {
            assert_eq!(owned(settings).complete_done(1, false), Completion::InterruptEnabled { timeout_ns: None });
        }
    }

    #[test]
    fn packets_held_by_gro_arm_the_timer_in_addition_to_the_interrupt() {
        let mut napi = owned(NapiSettings { defer_hard_irqs: 0, ..DEFERRED });
        assert_eq!(napi.complete_done(1, true), Completion::InterruptEnabled { timeout_ns: Some(20_000) });
    }

    #[test]
    fn missed_keeps_the_instance_owned_and_arms_no_timer() {
        let mut napi = owned(DEFERRED);
        assert_eq!(napi.schedule_prep(), Schedule::Missed);
        assert_eq!(napi.complete_done(1, false), Completion::Again);
        assert!(napi.state.sched && !napi.state.missed);
    }

    #[test]
    fn a_timer_that_fires_while_the_instance_is_owned_has_no_effect() {
        let mut napi = owned(DEFERRED);
        assert!(!napi.watchdog());
        assert!(!napi.state.missed);
    }

    #[test]
    fn completion_is_refused_during_a_busy_poll_loop() {
        let mut napi = Napi::new(DEFERRED);
        assert!(napi.busy_poll_acquire(true));
        assert_eq!(napi.complete_done(1, false), Completion::Refused);
    }

    #[test]
    fn a_busy_poller_asks_the_owner_to_release_the_instance() {
        let mut napi = owned(DEFERRED);
        assert!(!napi.busy_poll_acquire(false));
        assert!(!napi.state.prefer_busy_poll);
        assert!(!napi.busy_poll_acquire(true));
        assert!(napi.state.prefer_busy_poll);
    }

    #[test]
    fn the_end_of_a_busy_poll_loop_arms_the_timer_only_with_prefer_and_deferral() {
        let end = |settings, prefer| {
            let mut napi = Napi::new(settings);
            napi.busy_poll_acquire(prefer);
            napi.busy_poll_stop(prefer)
        };
        assert_eq!(end(DEFERRED, true), Some(20_000));
        assert_eq!(end(DEFERRED, false), None);
        assert_eq!(end(NapiSettings::default(), true), None);
    }
}
