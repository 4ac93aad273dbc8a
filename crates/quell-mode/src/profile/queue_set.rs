//! Sets of queues, and parsing of numbers in the kernel's list notation.

/// Upper limit (exclusive) of the numbers in a list. It is higher than any queue or CPU number.
const NUMBER_LIMIT: u32 = 65_536;

/// A set of queues of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueSet {
    /// All queues.
    All,
    /// These queues, in ascending order without duplicates.
    These(Vec<u32>),
}

impl QueueSet {
    pub(super) fn of(mut numbers: Vec<u32>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        Self::These(numbers)
    }

    /// Queue numbers on a device with `count` queues, in ascending order. Listed queues that the device lacks are
    /// included.
    #[must_use]
    pub fn of_device(&self, count: u32) -> Vec<u32> {
        match self {
            Self::All => (0..count).collect(),
            Self::These(queues) => queues.clone(),
        }
    }
}

/// Parses numbers in a text such as `0-3,8`, in the order of the text. `None` if the text is not a list of numbers.
pub(super) fn parse_numbers(text: &str) -> Option<Vec<u32>> {
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse::<u32>().ok()).flatten().filter(|number| *number < NUMBER_LIMIT)
    };
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return None;
        }
        numbers.extend(first..=last);
        if numbers.len() > NUMBER_LIMIT as usize {
            return None;
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order() {
        assert_eq!(parse_numbers("8, 0-2"), Some(vec![8, 0, 1, 2]));
        for text in ["", "3-1", "1,,2", "+1", "0-4294967295", "a", "0-65535,0-65535"] {
            assert_eq!(parse_numbers(text), None, "{text:?}");
        }
    }

    #[test]
    fn all_queues_means_every_queue_of_the_device() {
        assert_eq!(QueueSet::All.of_device(3), [0, 1, 2]);
        assert_eq!(QueueSet::of(vec![5, 1, 5]).of_device(3), [1, 5]);
    }
}
