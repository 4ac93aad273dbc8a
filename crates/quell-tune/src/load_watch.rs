//! Notices that the load of a subject has vanished or changed much during a search, so that slices before and after
//! cannot be compared.

use quell_experiment::SliceObservation;

use crate::goal::TuneMetric;

/// Number of slices of the present setting that are compared with the first ones. Their median is not the rate of one
/// disturbed slice.
const COMPARED: usize = 3;
/// Number of consecutive slices without any request or packet, in any mode, after which the load counts as vanished.
const EMPTY_SLICES: u32 = 5;
/// Limits of the ratio of the rate to the first rate. A load that doubles is outside. A busy machine can halve the rate of
/// a closed loop.
const RATIO: std::ops::RangeInclusive<f64> = 0.3..=1.75;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LoadChange {
    /// Rate in the first slices of the present setting, per second. `None` if no slice had a request or packet.
    pub(crate) from_per_s: Option<f64>,
    pub(crate) to_per_s: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct LoadWatch {
    present: Vec<Vec<f64>>,
    /// Last rate above 0 in any mode, at any load.
    last: Option<f64>,
    empty: u32,
}

impl LoadWatch {
    pub(crate) fn new(loads: usize) -> Self {
        Self { present: vec![Vec::new(); loads], last: None, empty: 0 }
    }

    /// Records a slice at the load with this index. The rate of other modes than the present one depends on the mode if
    /// the load is a closed loop, so only its absence counts.
    pub(crate) fn record(&mut self, load: usize, is_present: bool, slice: &SliceObservation) -> Option<LoadChange> {
        // Packets first: requests can be those of a command that measures latency beside the load.
        let rate = slice.metric("packets-per-s").or_else(|| TuneMetric::Requests.value(slice))?;
        self.empty = if rate > 0.0 { 0 } else { self.empty + 1 };
        let rates = self.present.get_mut(load)?;
        if is_present && rate > 0.0 {
            rates.push(rate);
        }
        let from_per_s = rates.get(..COMPARED).map(median);
        if self.empty >= EMPTY_SLICES {
            return Some(LoadChange { from_per_s: from_per_s.or(self.last), to_per_s: 0.0 });
        }
        self.last = Some(rate).filter(|rate| *rate > 0.0).or(self.last);
        let from_per_s = from_per_s?;
        let to_per_s = median(rates.get(COMPARED..)?.last_chunk::<COMPARED>()?);
        (!RATIO.contains(&(to_per_s / from_per_s))).then_some(LoadChange { from_per_s: Some(from_per_s), to_per_s })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Change that slices of the present setting with these rates show, and the slice that shows it.
    fn change(rates: &[f64]) -> Option<(usize, LoadChange)> {
        let mut watch = LoadWatch::new(1);
        let slice = |rate| SliceObservation::default().with_metric("requests-per-s", Some(rate));
        rates.iter().enumerate().find_map(|(at, rate)| Some((at, watch.record(0, true, &slice(*rate))?)))
    }

    #[test]
    fn a_load_that_doubles_is_noticed_after_two_slices() {
        let (at, change) =
            change(&[100.0, 101.0, 99.0, 100.0, 200.0, 200.0, 200.0]).unwrap_or_else(|| panic!("no change"));
        assert_eq!((at, change), (5, LoadChange { from_per_s: Some(100.0), to_per_s: 200.0 }));
    }

    #[test]
    fn a_load_that_vanishes_is_noticed_in_any_mode() {
        let mut watch = LoadWatch::new(1);
        let slice = |rate| SliceObservation::default().with_metric("packets-per-s", Some(rate));
        assert!((0..3).all(|_| watch.record(0, true, &slice(50.0)).is_none()));
        let noticed = (0..9).position(|_| watch.record(0, false, &slice(0.0)).is_some());
        assert_eq!(noticed, Some(4));
    }

    #[test]
    fn a_load_that_vanishes_before_the_present_setting_was_measured_is_noticed() {
        let mut watch = LoadWatch::new(2);
        let slice = |rate| SliceObservation::default().with_metric("packets-per-s", Some(rate));
        assert_eq!(watch.record(0, true, &slice(50.0)), None);
        assert_eq!(watch.record(1, false, &slice(90.0)), None);
        let noticed = (0..9).find_map(|at| Some((at, watch.record(at % 2, false, &slice(0.0))?)));
        assert_eq!(noticed, Some((4, LoadChange { from_per_s: Some(90.0), to_per_s: 0.0 })));
    }

    #[test]
    fn a_load_that_never_came_has_no_rate() {
        let mut watch = LoadWatch::new(1);
        let slice = SliceObservation::default().with_metric("packets-per-s", Some(0.0));
        let noticed = (0..9).find_map(|at| Some((at, watch.record(0, at == 0, &slice)?)));
        assert_eq!(noticed, Some((4, LoadChange { from_per_s: None, to_per_s: 0.0 })));
    }

    #[test]
    fn a_disturbed_slice_and_an_unknown_rate_are_not_a_change() {
        assert_eq!(change(&[100.0, 100.0, 100.0, 100.0, 9.0, 100.0, 300.0, 101.0]), None);
        let mut watch = LoadWatch::new(1);
        assert!((0..20).all(|_| watch.record(0, true, &SliceObservation::default()).is_none()));
    }

    #[test]
    fn each_load_has_its_own_rate() {
        let mut watch = LoadWatch::new(2);
        let slice = |rate| SliceObservation::default().with_metric("requests-per-s", Some(rate));
        assert!((0..20).all(|at| watch.record(at % 2, true, &slice([10.0, 90.0][at % 2])).is_none()));
    }
}
