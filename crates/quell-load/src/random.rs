//! Independent random streams from one seed, one per purpose and thread. Drawing more numbers for one purpose does not
//! affect the others, and a run can be repeated from its seed.

use rand_core::Rng;
use rand_pcg::Pcg64;

/// Purpose of a stream. Its number determines the random numbers: never reuse or change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Purpose {
    KeySizes = 1,
    ValueSizes = 2,
    Arrivals = 3,
    KeyChoice = 4,
    GetOrSet = 5,
}

pub(crate) struct Stream(Pcg64);

impl Stream {
    pub(crate) fn new(seed: u64, purpose: Purpose, thread: u32) -> Self {
        let stream = u128::from(purpose as u32) << 32 | u128::from(thread);
        Self(Pcg64::new(u128::from(seed), stream))
    }

    /// Uniform in the open interval (0, 1): never 0 or 1, where some quantiles are infinite.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 52) as f64;
        ((self.0.next_u64() >> 12) as f64 + 0.5) * STEP
    }

    /// Uniform in `0..bound` (multiply and shift; the bias is below `bound` / 2⁶⁴). `bound` ≥ 1.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        let draw = || Stream::new(7, Purpose::Arrivals, 3).below(u64::MAX);
        assert_eq!(draw(), draw());
    }

    #[test]
    fn each_purpose_and_thread_has_its_own_stream() {
        let draw = |purpose, thread| Stream::new(7, purpose, thread).below(u64::MAX);
        assert_ne!(draw(Purpose::Arrivals, 0), draw(Purpose::KeyChoice, 0));
        assert_ne!(draw(Purpose::Arrivals, 0), draw(Purpose::Arrivals, 1));
    }

    #[test]
    fn unit_draws_are_uniform_and_never_0_or_1() {
        let mut stream = Stream::new(1, Purpose::Arrivals, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| stream.unit()).collect();
        assert!(draws.iter().all(|&draw| draw > 0.0 && draw < 1.0));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
