//! The keys of a memcached load and the value that belongs to each: both functions of the seed
//! alone, so that whoever reads a value can tell whether it is the right one.

use crate::random::{Purpose, Stream};
use crate::spec::Memcached;

/// All keys in one piece of memory, and where each value lies in the pattern.
pub(crate) struct KeyTable {
    keys: Vec<u8>,
    /// Where each key ends in `keys`.
    ends: Vec<u32>,
    value_bytes: Vec<u32>,
    /// What values are cut from.
    pattern: Vec<u8>,
}

/// Values start at one of so many places of the pattern; a prime, so that neighbours differ.
const VALUE_STARTS: u32 = 4093;

impl KeyTable {
    pub(crate) fn new(spec: &Memcached, seed: u64) -> Self {
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
            let key_bytes = spec.key_bytes.size_at(key_sizes.unit(), key_min, Memcached::KEY_BYTES_MAX);
            table.push_key(index, key_bytes as usize);
            table.value_bytes.push(spec.value_bytes.size_at(value_sizes.unit(), 1, Memcached::VALUE_BYTES_MAX));
        }
        let longest = table.value_bytes.iter().copied().max().unwrap_or(0);
        table.pattern = pattern((longest + VALUE_STARTS) as usize);
        table
    }

    /// A key is its number in decimal, filled up with zeros in front.
    fn push_key(&mut self, index: u32, bytes: usize) {
        let number = index.to_string();
        self.keys.resize(self.keys.len() + bytes - number.len(), b'0');
        self.keys.extend_from_slice(number.as_bytes());
        self.ends.push(self.keys.len() as u32);
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The key number `index`, below [`KeyTable::len`].
    #[inline]
    pub(crate) fn key(&self, index: u32) -> &[u8] {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.keys[start as usize..self.ends[index] as usize]
    }

    /// The value of key number `index`, below [`KeyTable::len`].
    #[inline]
    pub(crate) fn value(&self, index: u32) -> &[u8] {
        let start = (index % VALUE_STARTS) as usize;
        &self.pattern[start..start + self.value_bytes[index as usize] as usize]
    }
}

/// How many decimal digits `number` has.
pub(crate) fn digits(number: u32) -> u32 {
    number.checked_ilog10().unwrap_or(0) + 1
}

/// Printable bytes without a short period, the same in every run: values are cut from it, and the
/// responder answers with its beginning.
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
        KeyTable::new(&Memcached { keys: 5_000, ..Memcached::facebook() }, 9)
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
