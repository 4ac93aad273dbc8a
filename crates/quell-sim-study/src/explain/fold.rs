//! What repeats is told once: equal neighbours become one step, and a cycle of several steps is
//! followed by how often it comes again and until when.

use quell_sim::Ns;

/// The longest cycle that is looked for.
const CYCLE_MAX: usize = 8;
/// A cycle of several steps is folded from so many times on.
const TIMES_MIN: usize = 3;

/// A step of a story.
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

/// The same story with repetitions folded.
pub(super) fn fold(steps: Vec<Step>) -> Vec<Step> {
    let steps = neighbours(steps);
    let mut told = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let (length, times) = cycle(&steps[at..]);
        told.extend_from_slice(&steps[at..at + length]);
        at += length * times;
        if times > 1 {
            let (first, last) = (&steps[at - length * (times - 1)], &steps[at - 1]);
            told.push(Step { at_ns: first.at_ns, lasts_ns: None, text: again(length, times - 1, first, last) });
        }
    }
    told
}

fn again(length: usize, times: usize, first: &Step, last: &Step) -> String {
    let us = (last.ends_ns() - first.at_ns) as f64 / 1e3;
    let long = if us < 1_000.0 { format!("{us:.1} µs") } else { format!("{:.2} ms", us / 1e3) };
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    format!("… these {length} steps again, {times}, for {long} …")
}

/// Equal neighbours as one, with their number.
fn neighbours(steps: Vec<Step>) -> Vec<Step> {
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

/// The length of the cycle that covers most from the first step on, and how often it comes.
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

    fn folded(texts: &str) -> Vec<String> {
        let step = |(index, text): (usize, char)| Step { at_ns: index as Ns, lasts_ns: None, text: text.to_string() };
        fold(texts.chars().enumerate().map(step).collect()).into_iter().map(|step| step.text).collect()
    }

    #[test]
    fn a_cycle_is_told_once_and_counted() {
        assert_eq!(folded("xabcabcabcy"), ["x", "a", "b", "c", "… these 3 steps again, 2 times, for 0.0 µs …", "y"]);
    }

    #[test]
    fn equal_neighbours_are_one_step() {
        assert_eq!(folded("aaab"), ["a (3 times)", "b"]);
    }

    #[test]
    fn what_comes_twice_is_told_twice() {
        assert_eq!(folded("ababc"), ["a", "b", "a", "b", "c"]);
    }
}
