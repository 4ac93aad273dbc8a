//! The kernel's hexadecimal bitmap format, `%*pb`: groups of 32 bits, separated by commas, highest group first
//! (`ff,00000001`). CPU masks of queues and IRQs have this format, and so do the receive queues in `xps_rxqs`.

use std::collections::BTreeSet;

/// Upper limit (exclusive) of the bit numbers in a mask. It equals the highest CPU number that Quell accepts plus one.
const BITS_MAX: usize = crate::CPU_LIMIT as usize;

pub(crate) fn parse(text: &[u8]) -> Option<BTreeSet<u32>> {
    let digits: Vec<u32> = text
        .trim_ascii()
        .iter()
        .filter(|&&byte| byte != b',')
        .map(|&byte| char::from(byte).to_digit(16))
        .collect::<Option<_>>()?;
    if digits.is_empty() || digits.len() * 4 > BITS_MAX {
        return None;
    }
    let bits = digits.iter().rev().zip((0..).step_by(4));
    let set =
        bits.flat_map(|(digit, first)| (0..4).filter(move |bit| digit >> bit & 1 == 1).map(move |bit| first + bit));
    Some(set.collect())
}

/// Formats a mask without leading zeros; the empty mask is `0`.
pub(crate) fn format(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut words = vec![0_u32];
    for number in numbers {
        let word = number as usize / 32;
        if word >= words.len() {
            words.resize(word + 1, 0);
        }
        words[word] |= 1 << (number % 32);
    }
    let mut text = String::new();
    for (position, word) in words.iter().rev().enumerate() {
        text.push_str(&if position == 0 { format!("{word:x}") } else { format!(",{word:08x}") });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Option<Vec<u32>> {
        parse(text.as_bytes()).map(|set| set.into_iter().collect())
    }

    #[test]
    fn the_last_group_holds_the_lowest_bits() {
        assert_eq!(parsed("00000000,00000003\n"), Some(vec![0, 1]));
        assert_eq!(parsed("1,00000000"), Some(vec![32]));
        assert_eq!(parsed("0"), Some(vec![]));
    }

    #[test]
    fn an_invalid_mask_is_refused() {
        for text in ["", "\n", ",", "g", "0x3", "-1"] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_mask_has_the_format_of_the_kernel() {
        assert_eq!(format([0, 1]), "3");
        assert_eq!(format([32]), "1,00000000");
        assert_eq!(format([]), "0");
    }

    proptest! {
        #[test]
        fn a_formatted_mask_parses_to_the_same_numbers(numbers in prop::collection::btree_set(0..4096_u32, 0..40)) {
            prop_assert_eq!(parse(format(numbers.clone()).as_bytes()), Some(numbers));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
