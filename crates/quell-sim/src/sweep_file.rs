//! Files that list the points of a sweep. Each line has modes, loads and optionally seeds, in the syntax of
//! [`modes`] and [`Loads`]; `#` starts a comment. The points of a line are all combinations:
//!
//! ```text
//! # modes              loads        seeds
//! base,suspend10..200  10%..100%    1..5
//! defer200             600K
//! ```

use quell_mode::{DeliveryMode, Load};

use crate::run::RunError;
use crate::sweep::{BaseMaximum, Loads, LoadsError, ModesError, Point, Setup, modes};

const SEEDS_MAX: u64 = 1_000_000;

/// Why a sweep file is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SweepFileError {
    /// A line is invalid.
    #[error("line {line}: {why}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Why it is invalid.
        why: SweepLineError,
    },
    /// The file has no points.
    #[error("it has no points; a line is `MODES LOADS [SEEDS]`, such as `base,suspend10..200 10%..100% 1..5`")]
    Empty,
}

/// Why a line of a sweep file is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SweepLineError {
    /// The number of fields is wrong.
    #[error("expected `MODES LOADS [SEEDS]`, such as `base,suspend10..200 10%..100% 1..5`")]
    Fields,
    /// The modes are invalid.
    #[error(transparent)]
    Modes(#[from] ModesError),
    /// The loads are invalid.
    #[error(transparent)]
    Loads(#[from] LoadsError),
    /// The seeds are invalid.
    #[error("invalid seeds `{0}`: expected a number such as 7, or at most a million, such as 1..5")]
    Seeds(String),
}

/// A line of a sweep file, with loads of the type `L`.
#[derive(Debug, Clone, PartialEq)]
struct Block<L> {
    modes: Vec<DeliveryMode>,
    loads: L,
    first_seed: u64,
    seeds: u64,
}

/// A sweep file. Loads in percent are not yet converted to rates.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepFile(Vec<Block<Loads>>);

impl std::str::FromStr for SweepFile {
    type Err = SweepFileError;

    fn from_str(text: &str) -> Result<Self, SweepFileError> {
        let mut blocks = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default();
            if !content.trim().is_empty() {
                let refused = |why| SweepFileError::Line { line: index + 1, why };
                blocks.push(Block::parse(content).map_err(refused)?);
            }
        }
        if blocks.is_empty() { Err(SweepFileError::Empty) } else { Ok(Self(blocks)) }
    }
}

impl Block<Loads> {
    fn parse(line: &str) -> Result<Self, SweepLineError> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (mode, load, seed) = match fields[..] {
            [mode, load] => (mode, load, "1"),
            [mode, load, seed] => (mode, load, seed),
            _ => return Err(SweepLineError::Fields),
        };
        let (first_seed, last_seed) = seed_range(seed).ok_or_else(|| SweepLineError::Seeds(seed.to_owned()))?;
        Ok(Self { modes: modes(mode)?, loads: load.parse()?, first_seed, seeds: last_seed - first_seed + 1 })
    }
}

fn seed_range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    (first <= last && last - first < SEEDS_MAX).then_some((first, last))
}

impl SweepFile {
    /// Converts the loads to rates. If some are percentages, it first simulates the maximum throughput of `base` with seed 1.
    ///
    /// # Errors
    ///
    /// When that run is not possible.
    pub fn resolve(self, setup: &Setup) -> Result<SweepPoints, RunError> {
        let mut maximum = BaseMaximum::new(setup, 1);
        let resolved = |block: Block<Loads>| {
            let Block { modes, loads, first_seed, seeds } = block;
            Ok(Block { modes, loads: loads.rates(&mut maximum)?, first_seed, seeds })
        };
        self.0.into_iter().map(resolved).collect::<Result<_, _>>().map(SweepPoints)
    }
}

/// Points of a sweep file. They are computed on demand, so their number does not take memory.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPoints(Vec<Block<Vec<Load>>>);

impl Block<Vec<Load>> {
    fn len(&self) -> usize {
        self.modes.len() * self.loads.len() * self.seeds as usize
    }

    fn point(&self, index: usize) -> Point {
        let (index, seed) = (index / self.seeds as usize, self.first_seed + index as u64 % self.seeds);
        Point { mode: self.modes[index / self.loads.len()], load: self.loads[index % self.loads.len()], seed }
    }
}

impl SweepPoints {
    /// Number of points.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a sweep file has at least one point")]
    pub fn len(&self) -> usize {
        self.0.iter().map(Block::len).sum()
    }

    /// The point at `index`, in the order of the lines; within a line by mode, load and seed.
    #[must_use]
    pub fn get(&self, mut index: usize) -> Option<Point> {
        for block in &self.0 {
            if index < block.len() {
                return Some(block.point(index));
            }
            index -= block.len();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostProfile;

    fn points(text: &str) -> Vec<String> {
        let setup = Setup::new(HostProfile::shipped("epyc7662-cx5").expect("it ships"));
        let points = text.parse::<SweepFile>().expect("a sweep").resolve(&setup).expect("no percentages");
        let point = |index| points.get(index).expect("it is within the sweep");
        let all = (0..points.len()).map(point).map(|point| format!("{} {} {}", point.mode, point.load, point.seed));
        assert_eq!(points.get(points.len()), None);
        all.collect()
    }

    #[test]
    fn a_line_stands_for_all_combinations_of_its_modes_loads_and_seeds() {
        let expected =
            ["base 100K 2", "base 100K 3", "base max 2", "base max 3", "suspend20 100K 2", "suspend20 100K 3"];
        assert_eq!(points("base,suspend20 100K,max 2..3")[..6], expected);
        assert_eq!(points("# comment\n\nbase 100K # 1\n defer20\tmax 9 \n"), ["base 100K 1", "defer20 max 9"]);
    }

    #[test]
    fn an_invalid_line_is_named_with_its_number_and_an_example() {
        for (text, said) in [
            ("base 100K\nbase", "line 2: expected `MODES LOADS"),
            ("base 100K 3..1", "line 1: invalid seeds `3..1`"),
            ("base fast", "line 1: invalid load `fast`"),
            ("sleepy 100K", "line 1: "),
            ("# nothing\n", "no points"),
        ] {
            let error = text.parse::<SweepFile>().expect_err(text).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
