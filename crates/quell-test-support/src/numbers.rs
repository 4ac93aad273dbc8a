//! Numbers of random sequences, which a seed repeats.

/// A small linear congruential generator.
#[derive(Debug)]
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub fn usize_below(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.usize_below(choices.len())]
    }
}

pub fn number_of_variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}
