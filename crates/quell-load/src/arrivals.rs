//! Due times of the requests of one thread in an open loop.

use crate::distribution::Distribution;
use crate::random::Stream;

/// Arrival process of one thread. Its times do not depend on any answer.
pub(crate) struct Arrivals {
    gaps: Distribution,
    /// Factor that converts a drawn gap to nanoseconds.
    ns_per_unit: f64,
    mean_gap_ns: f64,
    stream: Stream,
    /// Next due time. It keeps the fraction, so rounding errors do not accumulate.
    due_ns: f64,
    origin_ns: u64,
}

impl Arrivals {
    /// Arrivals from `origin_ns` on at `rate_per_s`. The mean of `gaps` must be finite and above 0.
    pub(crate) fn new(gaps: Distribution, rate_per_s: f64, origin_ns: u64, stream: Stream) -> Self {
        let mean_gap_ns = 1e9 / rate_per_s;
        let ns_per_unit = mean_gap_ns / gaps.mean().unwrap_or(1.0);
        let mut arrivals = Self { gaps, ns_per_unit, mean_gap_ns, stream, due_ns: 0.0, origin_ns };
        arrivals.advance();
        arrivals
    }

    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.origin_ns + self.due_ns as u64
    }

    /// Advances to the next request. Some distributions can draw a negative gap, which counts as 0.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.due_ns += (self.gaps.quantile(self.stream.unit()) * self.ns_per_unit).max(0.0);
    }

    /// Estimated number of requests due between now and `end_ns`, from the mean gap.
    pub(crate) fn expected_until(&self, end_ns: u64) -> u64 {
        let left_ns = end_ns.saturating_sub(self.due_ns());
        (left_ns as f64 / self.mean_gap_ns).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    #[test]
    fn arrivals_keep_the_rate_for_every_gap_distribution() {
        for gaps in [Distribution::FACEBOOK_GAPS, Distribution::POISSON_GAPS, Distribution::fixed(3)] {
            let mut arrivals = Arrivals::new(gaps, 50_000.0, 1_000, Stream::new(5, Purpose::Arrivals, 0));
            (0..100_000).for_each(|_| arrivals.advance());
            let seconds = (arrivals.due_ns() - 1_000) as f64 / 1e9;
            assert!((seconds - 2.0).abs() < 0.04, "{gaps}: {seconds}");
        }
    }

    #[test]
    fn arrival_times_never_decrease() {
        let mut arrivals = Arrivals::new("gev:1,5,0".parse().unwrap(), 1e6, 0, Stream::new(5, Purpose::Arrivals, 0));
        for _ in 0..10_000 {
            let earlier = arrivals.due_ns();
            arrivals.advance();
            assert!(arrivals.due_ns() >= earlier);
        }
    }

    #[test]
    fn expected_arrivals_follow_from_the_rate() {
        let arrivals = Arrivals::new(Distribution::fixed(1), 1_000.0, 0, Stream::new(5, Purpose::Arrivals, 0));
        assert_eq!(arrivals.expected_until(1_000_000_000), 999);
        assert_eq!(arrivals.expected_until(0), 0);
    }
}
