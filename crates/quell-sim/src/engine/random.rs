//! Random numbers, with one stream per purpose. All streams come from the run's seed. One purpose can draw more numbers
//! without changing the others. Powers are computed by `libm`, whose results are the same on every machine.

use rand_core::Rng as _;
use rand_pcg::Pcg32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Times at which connections send requests.
    Arrivals = 1,
    /// Delays in the network and the client.
    Client = 3,
    /// Distribution of connections over queues.
    Imbalance = 4,
    /// Initial CPU of each worker.
    Placement = 5,
    Sizes = 6,
}

#[derive(Debug, Clone)]
pub(crate) struct RandomStream(Pcg32);

impl RandomStream {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        let mut generator = Pcg32::new(seed ^ 0x9e37_79b9_7f4a_7c15, purpose as u64);
        generator.next_u32();
        Self(generator)
    }

    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        f64::from(self.0.next_u32()) * (1.0 / 4_294_967_296.0)
    }

    /// Draws an integer from a uniform distribution over 0 to `bound` − 1. The result is 0 if `bound` is 0.
    #[inline]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// Draws from a generalized Pareto distribution that starts at 0, with `scale` and `shape` (not 0). The mean is
    /// `scale / (1 - shape)`.
    #[inline]
    pub(crate) fn generalised_pareto(&mut self, scale: f64, shape: f64) -> f64 {
        scale * (libm::pow(1.0 - self.unit(), -shape) - 1.0) / shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_by_purpose_and_repeat() {
        let draw = |purpose| {
            let mut stream = RandomStream::new(7, purpose);
            [stream.unit(), stream.unit()]
        };
        assert_eq!(draw(Purpose::Arrivals), draw(Purpose::Arrivals));
        assert_ne!(draw(Purpose::Arrivals), draw(Purpose::Client));
    }

    #[test]
    fn the_mean_is_that_of_the_distribution() {
        let mut stream = RandomStream::new(1, Purpose::Arrivals);
        let n = 200_000;
        let mean: f64 = (0..n).map(|_| stream.generalised_pareto(0.845_029, 0.154_971)).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }
}
