//! Folds repetitions in an explanation. Equal adjacent steps become one step. A cycle of steps is shown once, with the
//! number of its repetitions and their duration.

use crate::Ns;

const CYCLE_MAX: usize = 8;
/// Minimum number of occurrences of a cycle that is folded.
const TIMES_MIN: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) at_ns: Ns,
    pub(super) lasts_ns: Option<Ns>,
    pub(super) text: String,
}

impl Step {
    fn ends_ns(&self) -> Ns {
        self.at_ns + self.lasts_ns.unwrap_or(0)
    }
}

/// Folds the repetitions in `steps`.
pub(super) fn fold(steps: Vec<Step>) -> Vec<Step> {
    let steps = merge_adjacent(steps);
    let mut folded = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let (length, times) = cycle(&steps[at..]);
        folded.extend_from_slice(&steps[at..at + length]);
        at += length * times;
        if times > 1 {
            let (first, last) = (&steps[at - length * (times - 1)], &steps[at - 1]);
            folded.push(Step { at_ns: first.at_ns, lasts_ns: None, text: again(length, times - 1, first, last) });
        }
    }
    folded
}

fn again(length: usize, times: usize, first: &Step, last: &Step) -> String {
    let us = (last.ends_ns() - first.at_ns) as f64 / 1e3;
    let long = if us < 1_000.0 { format!("{us:.1} µs") } else { format!("{:.2} ms", us / 1e3) };
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    format!("… these {length} steps again, {times}, for {long} …")
}

fn merge_adjacent(steps: Vec<Step>) -> Vec<Step> {
    let mut merged: Vec<(Step, usize)> = Vec::new();
    for step in steps {
        match merged.last_mut().filter(|(last, _)| last.text == step.text) {
            Some((last, times)) => {
                last.lasts_ns = last.lasts_ns.map(|_| step.ends_ns() - last.at_ns);
                *times += 1;
            }
            None => merged.push((step, 1)),
        }
    }
    let counted = |(step, times): (Step, usize)| match (times, step.lasts_ns) {
        (2.., None) => Step { text: format!("{} ({times} times)", step.text), ..step },
        _ => step,
    };
    merged.into_iter().map(counted).collect()
}

/// Length and number of occurrences of the cycle that starts at the first step and covers most steps.
fn cycle(steps: &[Step]) -> (usize, usize) {
    let times = |length: usize| {
        let cycle = &steps[..length];
        let same = |other: &&[Step]| other.iter().map(|step| &step.text).eq(cycle.iter().map(|step| &step.text));
        1 + steps[length..].chunks_exact(length).take_while(same).count()
    };
    (2..=CYCLE_MAX.min(steps.len()))
        .map(|length| (length, times(length)))
        .filter(|&(_, times)| times >= TIMES_MIN)
        .max_by_key(|&(length, times)| (length * times, CYCLE_MAX - length))
        .unwrap_or((1, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold_texts(texts: &str) -> Vec<String> {
        let step = |(index, text): (usize, char)| Step { at_ns: index as Ns, lasts_ns: None, text: text.to_string() };
        fold(texts.chars().enumerate().map(step).collect()).into_iter().map(|step| step.text).collect()
    }

    #[test]
    fn a_cycle_is_shown_once_and_counted() {
        assert_eq!(
            fold_texts("xabcabcabcy"),
            ["x", "a", "b", "c", "… these 3 steps again, 2 times, for 0.0 µs …", "y"]
        );
    }

    #[test]
    fn equal_neighbours_are_one_step() {
        assert_eq!(fold_texts("aaab"), ["a (3 times)", "b"]);
    }

    #[test]
    fn a_cycle_that_occurs_twice_is_shown_twice() {
        assert_eq!(fold_texts("ababc"), ["a", "b", "a", "b", "c"]);
    }
}
