//! A NAPI instance: its state bits, deferral counter and timer, and the transitions of
//! `net/core/dev.c` between them (`napi_schedule_prep`, `napi_complete_done`, `napi_watchdog`, the
//! beginning and the end of `napi_busy_loop`). It decides; it polls nothing and costs nothing.

use quell_mode::{NapiSettings, Threaded};

use crate::engine::Ns;

/// The state bits of one instance, as `enum napi_state` has them (without `NAPI_STATE_`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NapiState {
    /// Somebody owns the poll.
    pub sched: bool,
    /// It was asked for while owned.
    pub missed: bool,
    /// The owner is a busy poll loop: nothing completes meanwhile.
    pub in_busy_poll: bool,
    /// A busy poller would rather poll itself: the owner is to let go.
    pub prefer_busy_poll: bool,
}

/// What came of asking for a poll (`napi_schedule_prep`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// The asker owns it now, and has to get it run.
    Taken,
    /// It is owned already; `MISSED` remembers the wish.
    Missed,
}

/// What a poll below its budget comes to (`napi_complete_done`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Refused: a busy poll loop owns the instance.
    Refused,
    /// `MISSED` was set: it stays owned and is to be run again; no timer.
    Again,
    /// Released, the interrupt stays masked, the timer fires after so long.
    Deferred {
        /// `gro-flush-timeout`.
        timeout_ns: Ns,
    },
    /// Released, the interrupt is to be enabled; packets held in GRO may need the timer as well.
    InterruptEnabled {
        /// `gro-flush-timeout`, where packets are held.
        timeout_ns: Option<Ns>,
    },
}

/// One NAPI instance.
#[derive(Debug, Clone)]
pub(crate) struct Napi {
    pub(crate) settings: NapiSettings,
    pub(crate) state: NapiState,
    /// `defer_hard_irqs_count`: how many more polls that find nothing go by without an interrupt.
    pub(crate) defer_hard_irqs_count: u32,
    /// When the timer fires. A timer that was moved or stopped leaves a stale event behind, which
    /// is told by its moment.
    pub(crate) timer_at_ns: Option<Ns>,
}

impl Napi {
    pub(crate) fn new(settings: NapiSettings) -> Self {
        Self { settings, state: NapiState::default(), defer_hard_irqs_count: 0, timer_at_ns: None }
    }

    /// Whether its own kernel thread polls it.
    pub(crate) fn threaded(&self) -> bool {
        self.settings.threaded != Threaded::Off
    }

    /// An interrupt, or a resumption, asks for a poll.
    pub(crate) fn schedule_prep(&mut self) -> Schedule {
        if self.state.sched {
            self.state.missed = true;
            return Schedule::Missed;
        }
        self.state.sched = true;
        Schedule::Taken
    }

    /// The timer fires: true when nobody owned the instance, which is owned now and to be run;
    /// otherwise the firing is lost (`napi_watchdog`, which does not set `MISSED`).
    pub(crate) fn watchdog(&mut self) -> bool {
        self.timer_at_ns = None;
        if self.state.sched {
            return false;
        }
        self.state.sched = true;
        self.state.prefer_busy_poll = false;
        true
    }

    /// A poll that found `work` packets is over (`napi_complete_done`); `held` says whether GRO
    /// holds packets.
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

    /// A busy poll loop tries to own the instance; when it cannot and prefers busy polling, the
    /// owner is told to let go.
    pub(crate) fn busy_poll_acquire(&mut self, prefer: bool) -> bool {
        if self.state.sched {
            self.state.prefer_busy_poll |= prefer;
            return false;
        }
        self.state.sched = true;
        self.state.in_busy_poll = true;
        true
    }

    /// A busy poll loop ends (`busy_poll_stop` before its final poll). The timeout is what the
    /// timer is to be armed with as the backstop; absent without prefer or without deferral.
    pub(crate) fn busy_poll_stop(&mut self, prefer: bool) -> Option<Ns> {
        self.state.missed = false;
        self.state.in_busy_poll = false;
        if !prefer {
            return None;
        }
        self.defer_hard_irqs_count = self.settings.defer_hard_irqs;
        self.settings.defers().then_some(self.settings.gro_flush_timeout_ns)
    }

    /// `epoll_wait` handed events over: how long the timer is put off (`napi_suspend_irqs`).
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
    fn deferral_counts_empty_polls_down_and_gives_the_interrupt_back() {
        let mut napi = owned(DEFERRED);
        assert_eq!(napi.complete_done(1, false), Completion::Deferred { timeout_ns: 20_000 });
        for expected in [Completion::Deferred { timeout_ns: 20_000 }, Completion::InterruptEnabled { timeout_ns: None }]
        {
            assert!(napi.watchdog());
            assert_eq!(napi.complete_done(0, false), expected);
        }
    }

    #[test]
    fn both_deferral_values_are_needed() {
        for settings in
            [NapiSettings { defer_hard_irqs: 0, ..DEFERRED }, NapiSettings { gro_flush_timeout_ns: 0, ..DEFERRED }]
        {
            assert_eq!(owned(settings).complete_done(1, false), Completion::InterruptEnabled { timeout_ns: None });
        }
    }

    #[test]
    fn packets_held_in_gro_arm_the_timer_beside_the_interrupt() {
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
    fn a_timer_that_fires_while_the_poll_is_owned_is_lost() {
        let mut napi = owned(DEFERRED);
        assert!(!napi.watchdog());
        assert!(!napi.state.missed);
    }

    #[test]
    fn nothing_completes_during_a_busy_poll_loop() {
        let mut napi = Napi::new(DEFERRED);
        assert!(napi.busy_poll_acquire(true));
        assert_eq!(napi.complete_done(1, false), Completion::Refused);
    }

    #[test]
    fn a_busy_poller_that_comes_second_asks_the_owner_to_let_go() {
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
