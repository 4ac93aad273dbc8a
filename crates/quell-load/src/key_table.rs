//! A memcached load's keys and their values. Both depend only on the seed, so a reader can verify any value.

use crate::random::{Purpose, Stream};
use crate::spec::KeyValues;

/// All keys in one allocation, and the position of each value in the pattern.
pub(crate) struct KeyTable {
    keys: Vec<u8>,
    /// End of each key in `keys`.
    ends: Vec<u32>,
    value_bytes: Vec<u32>,
    /// Bytes from which values are sliced.
    pattern: Vec<u8>,
}

/// Number of possible start positions of values in the pattern. It is prime, so that adjacent keys have different
/// values.
const VALUE_STARTS: u32 = 4093;

impl KeyTable {
    pub(crate) fn new(spec: &KeyValues, seed: u64) -> Self {
        let mut key_sizes = Stream::new(seed, Purpose::KeySizes, 0);
        let mut value_sizes = Stream::new(seed, Purpose::ValueSizes, 0);
        let key_min = spec.key_bytes_min();
        let mut table = Self {
            keys: Vec::new(),
            ends: Vec::with_capacity(spec.keys as usize),
            value_bytes: Vec::with_capacity(spec.keys as usize),
            pattern: Vec::new(),
        };
        for index in 0..spec.keys {
            let key_bytes = spec.key_bytes.size_at(key_sizes.unit(), key_min, KeyValues::KEY_BYTES_MAX);
            table.push_key(index, key_bytes as usize);
            table.value_bytes.push(spec.value_bytes.size_at(value_sizes.unit(), 1, KeyValues::VALUE_BYTES_MAX));
        }
        let longest = table.value_bytes.iter().copied().max().unwrap_or(0);
        table.pattern = pattern((longest + VALUE_STARTS) as usize);
        table
    }

    /// Appends a key: its number in decimal, padded with zeros.
    fn push_key(&mut self, index: u32, bytes: usize) {
        let number = index.to_string();
        self.keys.resize(self.keys.len() + bytes - number.len(), b'0');
        self.keys.extend_from_slice(number.as_bytes());
        self.ends.push(self.keys.len() as u32);
    }

    pub(crate) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    #[inline]
    pub(crate) fn key(&self, index: u32) -> &[u8] {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.keys[start as usize..self.ends[index] as usize]
    }

    #[inline]
    pub(crate) fn value(&self, index: u32) -> &[u8] {
        let start = (index % VALUE_STARTS) as usize;
        &self.pattern[start..start + self.value_bytes[index as usize] as usize]
    }
}

pub(crate) fn digits(number: u32) -> u32 {
    number.checked_ilog10().unwrap_or(0) + 1
}

/// Printable bytes without a short period, identical in every run. Values are slices of this pattern, and the responder
/// sends its start.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut stream = Stream::new(0, Purpose::ValueSizes, u32::MAX);
    (0..bytes).map(|_| b'!' + stream.below(94) as u8).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::distribution::Distribution;

    fn table() -> KeyTable {
        KeyTable::new(&KeyValues { keys: 5_000, ..KeyValues::facebook() }, 9)
    }

    #[test]
    fn keys_differ_and_are_as_long_as_the_protocol_allows() {
        let table = table();
        let keys: HashSet<&[u8]> = (0..table.len()).map(|index| table.key(index)).collect();
        assert_eq!(keys.len(), 5_000);
        assert!(keys.iter().all(|key| (4..=250).contains(&key.len())));
    }

    #[test]
    fn key_sizes_have_the_mean_of_their_distribution() {
        let table = table();
        let mean = table.keys.len() as f64 / f64::from(table.len());
        let expected = Distribution::FACEBOOK_KEYS.mean().unwrap();
        assert!((mean / expected - 1.0).abs() < 0.03, "{mean} {expected}");
    }

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let (one, other) = (table(), table());
        assert!((0..one.len()).all(|index| one.value(index) == other.value(index)));
        assert_ne!(one.value(0)[..1], one.value(1)[..1]);
    }
}
