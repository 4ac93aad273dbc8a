//! Checks that the interrupt counts measured in a guest are plausible. All functions are pure.

use std::collections::BTreeSet;

use quell_experiment::SliceRecord;
use quell_mode::{DeliveryMode, Threaded};
use quell_stats::Spread;

use crate::experiment::LoadExperiment;
use crate::facts::Check;
use crate::figures::{IRQS, TIMER_IRQS, Work};

/// Minimum number of RX interrupts per 1,000 requests under `base`. A lower number shows that interrupts are deferred
/// by something other than the mode.
const BASE_RX_MIN: f64 = 700.0;
/// Maximum number of RX interrupts per 1,000 requests under suspension. A higher number shows that suspension ended
/// during the slice.
const SUSPENSION_RX_MAX: f64 = 50.0;
/// Maximum ratio of the timer interrupts under suspension to those under deferral.
const TIMER_SHARE_MAX: f64 = 1.0 / 3.0;
/// Maximum share of time that the emulator may wait for host CPUs. Above it, the counts depend on the host. On two
/// otherwise idle CPUs, the emulator's three threads wait for up to 20 %. With a share of 0.23, `base` had 698
/// interrupts per 1,000 requests, and with 0.16 it had 950.
const HOST_WAIT_SHARE_MAX: f64 = 0.22;

/// How packets are delivered under a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Interrupts,
    Deferral,
    Suspension,
    Other,
}

fn delivery(mode: &DeliveryMode) -> Delivery {
    let (napi, epoll) = (mode.napi(), mode.epoll().unwrap_or_default());
    let suspends = napi.defers() && napi.irq_suspend_timeout_ns > 0 && epoll.prefer_busy_poll;
    match (epoll.busy_poll_usecs > 0 || napi.threaded != Threaded::Off, napi.defers(), suspends) {
        (true, ..) => Delivery::Other,
        (_, true, true) => Delivery::Suspension,
        (_, true, false) => Delivery::Deferral,
        (_, false, _) => Delivery::Interrupts,
    }
}

/// Returns whether the emulator waited too long for host CPUs. Packets then arrive in batches, which need fewer
/// interrupts.
fn was_starved(slice: &SliceRecord) -> bool {
    slice.observation.foreign_cpu.is_some_and(|share| share > HOST_WAIT_SHARE_MAX)
}

/// Returns the slices in which the emulator did not wait too long for host CPUs. If an arm has no such slice, all of
/// its slices are returned.
pub fn sound_slices<S>(experiment: &LoadExperiment<S>) -> impl Iterator<Item = &SliceRecord> + Clone {
    let slices = &experiment.record.slices;
    let sound: BTreeSet<usize> = slices.iter().filter(|slice| !was_starved(slice)).map(|slice| slice.arm).collect();
    slices.iter().filter(move |slice| !was_starved(slice) || !sound.contains(&slice.arm))
}

/// Returns the largest share of time that the emulator waited in these slices, if it exceeds the limit.
#[must_use]
pub fn starved_by<S>(experiment: &LoadExperiment<S>) -> Option<f64> {
    let starved = sound_slices(experiment).filter(|slice| was_starved(slice));
    starved.filter_map(|slice| slice.observation.foreign_cpu).reduce(f64::max)
}

/// Checks the median counts of the measured modes. There must be many interrupts under `base` and almost none under
/// suspension. Suspension must need fewer timer interrupts than deferral. Medians tolerate single slices in which the
/// host delayed the emulator.
#[must_use]
pub fn checks(experiment: &LoadExperiment) -> Vec<Check> {
    let design = &experiment.record.design;
    let of = |wanted: Delivery, cost: &str| {
        let metric = Work::Request.name(cost);
        let has = |slice: &&SliceRecord| {
            design.treatment(slice.arm).is_some_and(|treatment| delivery(&treatment.setting) == wanted)
        };
        let per_thousand = |slice: &SliceRecord| slice.observation.metric(&metric).map(|count| count * 1e3);
        let slices = sound_slices(experiment).filter(has);
        Spread::of(slices.map(per_thousand)).filter(|spread| spread.absent == 0)
    };
    let mut checks = Vec::new();
    if let Some(rx) = of(Delivery::Interrupts, IRQS) {
        checks.push(Check {
            claim: format!("more than {BASE_RX_MIN} RX interrupts per 1,000 requests under base"),
            observed: seen(rx),
            holds: rx.median > BASE_RX_MIN,
        });
    }
    if let Some(rx) = of(Delivery::Suspension, IRQS) {
        checks.push(Check {
            claim: format!("fewer than {SUSPENSION_RX_MAX} RX interrupts per 1,000 requests under suspension"),
            observed: seen(rx),
            holds: rx.median < SUSPENSION_RX_MAX,
        });
    }
    let timers = |delivery| of(delivery, TIMER_IRQS);
    if let (Some(suspension), Some(deferral)) = (timers(Delivery::Suspension), timers(Delivery::Deferral)) {
        checks.push(Check {
            claim: "suspension needs less than a third of deferral's timer interrupts".to_owned(),
            observed: format!("suspension {}, deferral {} per 1,000 requests", seen(suspension), seen(deferral)),
            holds: suspension.median < deferral.median * TIMER_SHARE_MAX,
        });
    }
    checks
}

fn seen(spread: Spread) -> String {
    let Spread { median, min, max, .. } = spread;
    let decimals = if max < 10.0 { 1 } else { 0 };
    format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::ExperimentResult;
    use quell_experiment::SliceObservation;

    const BASE: usize = 0;
    const DEFER: usize = 2;
    const SUSPEND: usize = 3;

    fn recorded() -> ExperimentResult {
        serde_json::from_str(include_str!("../../quell/tests/fixtures/interrupts.json")).unwrap()
    }

    /// A slice with the given numbers of RX interrupts and timer interrupts per 1,000 requests.
    fn slice(arm: usize, rx: f64, timer: f64) -> SliceRecord {
        let observation = SliceObservation { foreign_cpu: Some(0.1), ..SliceObservation::default() }
            .with_metric(&Work::Request.name(IRQS), Some(rx / 1e3))
            .with_metric(&Work::Request.name(TIMER_IRQS), Some(timer / 1e3));
        SliceRecord { block: 0, arm, observation }
    }

    /// An experiment with the recorded modes (base, defer20, suspend20) and the given slices.
    fn experiment(slices: Vec<SliceRecord>) -> LoadExperiment {
        let mut experiment = recorded().experiments.remove(0);
        experiment.record.slices = slices;
        experiment
    }

    fn hold(slices: &[SliceRecord]) -> Vec<bool> {
        checks(&experiment(slices.to_vec())).iter().map(|check| check.holds).collect()
    }

    #[test]
    fn results_measured_by_hand_pass() {
        let slices = [slice(BASE, 900.0, 120.0), slice(DEFER, 25.0, 3_300.0), slice(SUSPEND, 1.0, 125.0)];
        assert_eq!(hold(&slices), [true, true, true]);
    }

    #[test]
    fn the_median_of_a_modes_slices_must_pass() {
        let good = [slice(BASE, 900.0, 120.0), slice(DEFER, 5.0, 3_300.0), slice(SUSPEND, 1.0, 125.0)];
        let bad = [slice(BASE, 650.0, 120.0), slice(SUSPEND, 60.0, 1_150.0)];
        assert_eq!(hold(&[&good[..], &good, &bad].concat()), [true, true, true]);
        assert_eq!(hold(&[&good[..], &bad, &bad].concat()), [false, false, false]);
    }

    #[test]
    fn a_starved_slice_is_ignored_if_its_mode_has_another_slice() {
        let mut starved = slice(BASE, 450.0, 120.0);
        starved.observation.foreign_cpu = Some(0.5);
        let both = [starved.clone(), slice(BASE, 900.0, 120.0)];
        assert_eq!((hold(&both), starved_by(&experiment(both.to_vec()))), (vec![true], None));
        let alone = experiment(vec![starved]);
        assert_eq!((hold(&alone.record.slices), starved_by(&alone)), (vec![false], Some(0.5)));
    }

    #[test]
    fn unmeasured_modes_are_not_checked() {
        assert_eq!(hold(&[slice(DEFER, 0.0, 0.0)]), [] as [bool; 0]);
        assert_eq!(hold(&[slice(SUSPEND, 1.0, 125.0)]), [true]);
    }

    #[test]
    fn a_count_that_was_not_read_is_absent_not_zero() {
        let unread = SliceRecord { observation: SliceObservation::default(), ..slice(SUSPEND, 0.0, 0.0) };
        assert!(checks(&experiment(vec![unread])).is_empty());
    }

    #[test]
    fn modes_are_classified_by_their_settings() {
        let of = |mode: &str| delivery(&mode.parse().unwrap());
        let modes = ["base", "defer20", "suspend20", "fullbusy", "threaded"].map(of);
        let (interrupts, deferral, suspension) = (Delivery::Interrupts, Delivery::Deferral, Delivery::Suspension);
        assert_eq!(modes, [interrupts, deferral, suspension, Delivery::Other, Delivery::Other]);
    }
}
