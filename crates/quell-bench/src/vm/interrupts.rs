//! Counts of the vm lab per 1,000 requests, and the conditions that they must meet. Pure functions.

use std::collections::BTreeMap;

use quell_host::snapshot::Provenance;
use quell_mode::{EpollParams, NapiSettings, Nearest};
use quell_stats::Spread;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::features::Feature;
use crate::facts::Check;

/// The schema of [`InterruptResult`].
pub const SCHEMA: &str = "quell-interrupts/1";

/// Minimum number of receive-queue interrupts per 1,000 requests under `base`. With fewer, something else defers
/// interrupts.
const BASE_RX_MIN: f64 = 700.0;
/// Maximum number of receive-queue interrupts per 1,000 requests under suspension. With more, suspension has ended in
/// between.
const SUSPENSION_RX_MAX: f64 = 50.0;
/// Maximum number of timer interrupts under suspension, as a share of those under deferral.
const TIMER_SHARE_MAX: f64 = 1.0 / 3.0;
/// Maximum share of time that the emulator may wait for host CPUs. Above it, a trial measures the host and not the
/// guest's kernel. The emulator has three threads, so alone on two CPUs it waits up to a fifth of its time. `base` had
/// 698 interrupts per 1,000 requests at a share of 0.23, and 950 at 0.16.
const HOST_WAIT_SHARE_MAX: f64 = 0.22;

/// A result of the vm lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InterruptResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// The guest's kernel.
    pub kernel: String,
    /// Driver of its NICs. Absent if the kernel does not report it.
    pub driver: Option<String>,
    /// The interrupt of the server's receive queue.
    pub rx_irq: u32,
    /// Source of the interrupt number.
    #[serde(rename = "rx-irq-said-by")]
    pub rx_irq_provenance: Provenance,
    /// Features of this kernel and driver.
    pub features: Vec<Feature>,
    /// Description of the clients' load.
    pub load: String,
    /// Measurements, in order.
    pub trials: Vec<InterruptTrial>,
    /// Modes that cannot be set here.
    pub refused: BTreeMap<String, Refusal>,
}

/// Why a mode cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Refusal {
    /// Reason: the kernel's message, or the requirement of the mode.
    pub reason: String,
    /// Nearest alternative that this kernel accepts. It was set, verified and undone.
    pub nearest: Option<Nearest>,
}

/// One measurement of a mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InterruptTrial {
    /// The mode.
    pub mode: String,
    /// Index of the repeat, from 0.
    pub repeat: u32,
    /// Settings that the kernel reports.
    pub settings: SettingsReadBack,
    /// Requests answered in the measured time.
    pub answered: u64,
    /// Measured time, in ns of the guest.
    pub duration_ns: u64,
    /// Interrupts of the server's receive queue.
    pub rx_interrupts: Option<u64>,
    /// NET_RX softirqs on the server's CPU.
    pub net_rx_softirqs: Option<u64>,
    /// Timer interrupts of the server's CPU.
    pub timer_interrupts: Option<u64>,
    /// Share of the time of the emulator's runnable threads that they waited for a host CPU. Absent if the host does
    /// not report it.
    pub host_wait_share: Option<f64>,
}

/// Settings as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SettingsReadBack {
    /// Settings of each of the server's queues.
    pub napi: Vec<NapiSettings>,
    /// Busy-poll parameters of each worker's epoll.
    pub epoll: Vec<EpollParams>,
}

/// Counters of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Interrupts of the server's receive queue.
    RxInterrupts,
    /// NET_RX softirqs on the server's CPU.
    NetRxSoftirqs,
    /// Timer interrupts of the server's CPU.
    TimerInterrupts,
}

impl InterruptTrial {
    /// Whether the host kept the emulator waiting. Packets that would arrive one by one then arrive in batches, and
    /// batches need fewer interrupts.
    #[must_use]
    pub fn was_starved(&self) -> bool {
        self.host_wait_share.is_some_and(|share| share > HOST_WAIT_SHARE_MAX)
    }

    /// Value of a counter per 1,000 requests. Absent if the counter was not read or nothing was answered.
    #[must_use]
    pub fn per_thousand(&self, counted: Counted) -> Option<f64> {
        let count = match counted {
            Counted::RxInterrupts => self.rx_interrupts,
            Counted::NetRxSoftirqs => self.net_rx_softirqs,
            Counted::TimerInterrupts => self.timer_interrupts,
        };
        (self.answered > 0).then_some(count? as f64 * 1_000.0 / self.answered as f64)
    }

    /// Requests answered per second. It only hints at the order of the modes, because emulation has its own costs.
    #[must_use]
    pub fn requests_per_s(&self) -> f64 {
        self.answered as f64 * 1e9 / self.duration_ns as f64
    }

    fn delivery(&self) -> Delivery {
        let defers = !self.settings.napi.is_empty() && self.settings.napi.iter().all(|napi| napi.defers());
        let suspends = defers
            && self.settings.napi.iter().all(|napi| napi.irq_suspend_timeout_ns > 0)
            && self.settings.epoll.iter().any(|epoll| epoll.prefer_busy_poll);
        let polls = self.settings.epoll.iter().any(|epoll| epoll.busy_poll_usecs > 0)
            || self.settings.napi.iter().any(|napi| napi.threaded.kernel_value() > 0);
        match (polls, defers, suspends) {
            (true, ..) => Delivery::Other,
            (_, true, true) => Delivery::Suspension,
            (_, true, false) => Delivery::Deferral,
            (_, false, _) => Delivery::Interrupts,
        }
    }
}

/// Classification of the settings that the kernel reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Interrupts,
    Deferral,
    Suspension,
    Other,
}

impl InterruptResult {
    /// JSON Schema of the result.
    #[must_use]
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// Measured modes, in the order of their first trial.
    #[must_use]
    pub fn modes(&self) -> Vec<&str> {
        let mut modes: Vec<&str> = Vec::new();
        for trial in &self.trials {
            if !modes.contains(&trial.mode.as_str()) {
                modes.push(&trial.mode);
            }
        }
        modes
    }

    /// Valid trials: those in which the host did not keep the emulator waiting. If a mode has no such trial, all of its
    /// trials count.
    pub fn sound_trials(&self) -> impl Iterator<Item = &InterruptTrial> + Clone {
        let has_sound = |mode: &str| self.trials.iter().any(|trial| trial.mode == mode && !trial.was_starved());
        self.trials.iter().filter(move |trial| !trial.was_starved() || !has_sound(&trial.mode))
    }

    /// Largest share of waiting among the valid trials, if it is above the limit.
    #[must_use]
    pub fn starved_by(&self) -> Option<f64> {
        let starved = self.sound_trials().filter(|trial| trial.was_starved());
        starved.filter_map(|trial| trial.host_wait_share).reduce(f64::max)
    }

    /// Lowest and highest value of a counter per 1,000 requests over the valid trials of a mode. Absent if one of these
    /// trials has no value.
    #[must_use]
    pub fn range(&self, mode: &str, counted: Counted) -> Option<(f64, f64)> {
        range(self.sound_trials().filter(|trial| trial.mode == mode).map(|trial| trial.per_thousand(counted)))
    }

    /// Checks the medians of the valid trials, for the modes that were measured. Interrupts must arrive under `base`
    /// and almost never under suspension. Suspension must work without the timer that deferral depends on. Medians are
    /// used because the host can delay the emulator briefly without starving a whole trial.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let of = |delivery, counted| {
            let trials = self.sound_trials().filter(move |trial| trial.delivery() == delivery);
            Spread::of(trials.map(move |trial| trial.per_thousand(counted))).filter(|spread| spread.absent == 0)
        };
        let mut checks = Vec::new();
        if let Some(rx) = of(Delivery::Interrupts, Counted::RxInterrupts) {
            checks.push(Check {
                claim: format!("interrupts deliver the packets of base: more than {BASE_RX_MIN} per 1,000 requests"),
                seen: seen(rx),
                holds: rx.median > BASE_RX_MIN,
            });
        }
        if let Some(rx) = of(Delivery::Suspension, Counted::RxInterrupts) {
            checks.push(Check {
                claim: format!("suspension silences them: fewer than {SUSPENSION_RX_MAX} per 1,000 requests"),
                seen: seen(rx),
                holds: rx.median < SUSPENSION_RX_MAX,
            });
        }
        let timers = |delivery| of(delivery, Counted::TimerInterrupts);
        if let (Some(suspension), Some(deferral)) = (timers(Delivery::Suspension), timers(Delivery::Deferral)) {
            checks.push(Check {
                claim: "suspension takes fewer than a third of deferral's timer interrupts".to_owned(),
                seen: format!("{}, and {}, per 1,000 requests", seen(suspension), seen(deferral)),
                holds: suspension.median < deferral.median * TIMER_SHARE_MAX,
            });
        }
        checks
    }
}

fn seen(spread: Spread) -> String {
    let Spread { median, min, max, .. } = spread;
    let decimals = if max < 10.0 { 1 } else { 0 };
    format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
}

fn range(figures: impl Iterator<Item = Option<f64>>) -> Option<(f64, f64)> {
    let figures: Vec<f64> = figures.collect::<Option<_>>()?;
    let lowest = figures.iter().copied().reduce(f64::min)?;
    Some((lowest, figures.iter().copied().reduce(f64::max)?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use quell_mode::DeliveryMode;

    pub(in super::super) fn trial(mode: &str, repeat: u32, rx: u64, timer: u64) -> InterruptTrial {
        let parsed: DeliveryMode = mode.parse().unwrap();
        InterruptTrial {
            mode: mode.to_owned(),
            repeat,
            settings: SettingsReadBack { napi: vec![parsed.napi()], epoll: vec![parsed.epoll().unwrap()] },
            answered: 2_000,
            duration_ns: 1_000_000_000,
            rx_interrupts: Some(rx),
            net_rx_softirqs: None,
            timer_interrupts: Some(timer),
            host_wait_share: Some(0.1),
        }
    }

    pub(in super::super) fn result(trials: Vec<InterruptTrial>) -> InterruptResult {
        InterruptResult {
            schema: SCHEMA.to_owned(),
            kernel: "7.3".to_owned(),
            driver: None,
            rx_irq: 24,
            rx_irq_provenance: Provenance::Name,
            features: Vec::new(),
            load: String::new(),
            trials,
            refused: BTreeMap::new(),
        }
    }

    fn hold(result: &InterruptResult) -> Vec<bool> {
        result.checks().iter().map(|check| check.holds).collect()
    }

    #[test]
    fn results_measured_by_hand_pass() {
        let seen =
            result(vec![trial("base", 0, 1_800, 240), trial("defer20", 0, 50, 6_600), trial("suspend20", 0, 2, 250)]);
        assert_eq!(hold(&seen), [true, true, true]);
    }

    #[test]
    fn the_median_of_a_modes_trials_must_pass() {
        let mut trials =
            vec![trial("base", 0, 1_800, 240), trial("suspend20", 0, 2, 250), trial("defer20", 0, 9, 6_600)];
        let bad = |repeat| [trial("base", repeat, 1_300, 240), trial("suspend20", repeat, 120, 2_300)];
        trials.extend([trial("base", 1, 1_900, 240), trial("suspend20", 1, 4, 250)]);
        trials.extend(bad(2));
        assert_eq!(hold(&result(trials.clone())), [true, true, true]);
        trials.extend(bad(3).into_iter().chain(bad(4)));
        assert_eq!(hold(&result(trials)), [false, false, false]);
    }

    #[test]
    fn a_starved_trial_does_not_count_if_there_is_another() {
        let starved = |trial| InterruptTrial { host_wait_share: Some(0.5), ..trial };
        let mut seen = result(vec![starved(trial("base", 0, 900, 240)), trial("base", 1, 1_800, 240)]);
        assert_eq!((hold(&seen), seen.starved_by()), (vec![true], None));
        assert_eq!(seen.range("base", Counted::RxInterrupts), Some((900.0, 900.0)));
        seen.trials.pop();
        assert_eq!((hold(&seen), seen.starved_by()), (vec![false], Some(0.5)));
    }

    #[test]
    fn unmeasured_modes_are_not_checked() {
        assert_eq!(hold(&result(vec![trial("fullbusy", 0, 0, 0)])), [] as [bool; 0]);
        assert_eq!(hold(&result(vec![trial("suspend20", 0, 2, 250)])), [true]);
    }

    #[test]
    fn an_unread_count_is_absent_not_zero() {
        let mut unread = trial("suspend20", 0, 0, 0);
        unread.rx_interrupts = None;
        let seen = result(vec![unread]);
        assert_eq!(seen.range("suspend20", Counted::RxInterrupts), None);
        assert!(seen.checks().is_empty());
    }
}
