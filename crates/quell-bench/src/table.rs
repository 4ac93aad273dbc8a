//! The table of a bench run, and what can be said from it: pure functions of the result file, so that `--show` prints
//! tomorrow what was printed today. Of a trial that was measured again only the last attempt counts.

use std::collections::BTreeMap;

use quell_stats::{Choice, Goal, PairedRatios, Resolution, Series, Spread, Verdict, best, compare, compromise};

use crate::disturbance::is_saturated;
use crate::figure::Figure;
use crate::offered_load::OfferedLoad;
use crate::result::{BenchResult, Trial};

/// The rows of one load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadTable {
    /// The load.
    pub load: OfferedLoad,
    /// Requests per second that were offered, over the repeats; absent in a closed loop.
    pub offered_per_s: Option<Spread>,
    /// A row a mode, in the order of the plan.
    pub rows: Vec<Row>,
}

/// One mode under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What the mode is called.
    pub label: String,
    /// Index of the mode in the plan.
    pub mode: usize,
    /// Each figure over the repeats; a figure without a value in any of them is missing.
    pub cells: BTreeMap<Figure, Spread>,
    /// How many of the trials that count are marked as disturbed.
    pub disturbed: usize,
}

/// Which trials a finding is from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scope {
    /// All loads but the closed loop together: each pair is of one load and one repeat.
    OpenLoads,
    /// One load.
    Load(OfferedLoad),
}

/// What paired comparison says about one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What was looked for.
    pub question: Question,
    /// The best, those that cannot be told from it, and those without a value: labels of modes.
    pub choice: Choice<String>,
    /// The best compared with `base`; absent when `base` is the best or was not measured.
    pub against_base: Option<Verdict>,
    /// What `base` and `base` differed by; absent when that is not known.
    pub resolution: Option<Resolution>,
    /// How many of the pairs of the best with `base` hold a disturbed trial.
    pub disturbed_pairs: usize,
}

/// What a user wants to know of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// The most requests per second.
    Throughput,
    /// The lowest median latency.
    MedianLatency,
    /// The lowest 99th percentile of latency.
    TailLatency,
    /// The least CPU time per request.
    Cpu,
    /// The smallest product of 99th percentile and CPU time per request: half the latency makes up for twice the CPU.
    Compromise,
}

impl Question {
    /// What is asked of these trials: throughput only where the server is the limit, latency only where it is not, for a
    /// closed loop's latency is its throughput in other words.
    fn within(scope: Scope) -> &'static [Self] {
        match scope {
            Scope::Load(OfferedLoad::Max) => &[Self::Throughput, Self::Cpu],
            _ => &[Self::MedianLatency, Self::TailLatency, Self::Cpu, Self::Compromise],
        }
    }

    fn goal(self) -> Goal {
        match self {
            Self::Throughput => Goal::Highest,
            _ => Goal::Lowest,
        }
    }
}

impl BenchResult {
    /// The trial that counts for a cell and repeat: of its attempts the one with the fewest disturbances, of equal ones
    /// the first.
    #[must_use]
    pub fn trial(&self, load: usize, mode: usize, repeat: u32) -> Option<&Trial> {
        let wanted = |trial: &&Trial| (trial.id.load, trial.id.mode, trial.id.repeat) == (load, mode, repeat);
        self.trials.iter().filter(wanted).min_by_key(|trial| (trial.disturbances.len(), trial.attempt))
    }

    /// Every trial that counts, in the order in which they were run.
    #[must_use]
    pub fn trials_that_count(&self) -> Vec<&Trial> {
        let counts = |trial: &&Trial| {
            self.trial(trial.id.load, trial.id.mode, trial.id.repeat).is_some_and(|last| last.attempt == trial.attempt)
        };
        self.trials.iter().filter(counts).collect()
    }

    /// The value of a figure in each repeat of a cell.
    #[must_use]
    pub fn series(&self, load: usize, mode: usize, figure: Figure) -> Vec<Option<f64>> {
        let value = |repeat| figure.of(self.trial(load, mode, repeat)?);
        (0..self.plan.repeats).map(value).collect()
    }

    /// The whole table, load by load.
    #[must_use]
    pub fn tables(&self) -> Vec<LoadTable> {
        (0..self.plan.loads.len()).map(|load| self.table(load)).collect()
    }

    fn table(&self, load: usize) -> LoadTable {
        let measured = |mode: &usize| (0..self.plan.repeats).any(|repeat| self.trial(load, *mode, repeat).is_some());
        let rows: Vec<Row> = (0..self.plan.modes.len()).filter(measured).map(|mode| self.row(load, mode)).collect();
        let offered = self.trials.iter().filter(|trial| trial.id.load == load && trial.offered_per_s.is_some());
        let offered_per_s = Spread::of(offered.map(|trial| trial.offered_per_s));
        LoadTable { load: self.plan.loads[load], offered_per_s, rows }
    }

    fn row(&self, load: usize, mode: usize) -> Row {
        let spread = |figure| Some((figure, Spread::of(self.series(load, mode, figure))?));
        let trials = (0..self.plan.repeats).filter_map(|repeat| self.trial(load, mode, repeat));
        Row {
            label: self.plan.modes[mode].label.clone(),
            mode,
            cells: Figure::ALL.into_iter().filter_map(spread).collect(),
            disturbed: trials.filter(|trial| !trial.disturbances.is_empty()).count(),
        }
    }

    /// What can be said: over all open loads together, then load by load.
    #[must_use]
    pub fn findings(&self) -> Vec<(Scope, Vec<Finding>)> {
        let open: Vec<usize> =
            (0..self.plan.loads.len()).filter(|&load| self.plan.loads[load] != OfferedLoad::Max).collect();
        let together = (open.len() > 1).then_some((Scope::OpenLoads, open));
        let each = (0..self.plan.loads.len()).map(|load| (Scope::Load(self.plan.loads[load]), vec![load]));
        let scopes = together.into_iter().chain(each);
        let asked = |(scope, loads): (Scope, Vec<usize>)| {
            let questions = Question::within(scope).iter();
            (scope, questions.filter_map(|&question| self.finding(&loads, question)).collect())
        };
        scopes.map(asked).collect()
    }

    fn finding(&self, loads: &[usize], question: Question) -> Option<Finding> {
        let base = self.plan.base()?;
        let against_itself = self.against(base, base, loads, question);
        let identical =
            PairedRatios::new(&against_itself, &self.against(base, self.plan.control()?, loads, question)).ok()?;
        let eligible = |&mode: &usize| !self.plan.modes[mode].control && !self.is_saturated(mode, loads);
        let modes: Vec<usize> = (0..self.plan.modes.len()).filter(eligible).collect();
        let values: Vec<Vec<Option<f64>>> =
            modes.iter().map(|&mode| self.against(base, mode, loads, question)).collect();
        let series: Vec<Series<'_, usize>> =
            modes.iter().zip(&values).map(|(&label, values)| Series { label, values }).collect();
        let choice = best(question.goal(), &series, &identical).ok()??;
        let winner = series.iter().find(|one| one.label == choice.winner)?;
        let against_base = match choice.winner == base {
            true => None,
            false => Some(compare(&PairedRatios::new(&against_itself, winner.values).ok()?, &identical)),
        };
        Some(Finding {
            question,
            against_base,
            resolution: Resolution::of(&identical, against_itself.len()),
            disturbed_pairs: self.disturbed_pairs(base, choice.winner, loads),
            choice: self.named(choice),
        })
    }

    /// A mode's answers as ratios to those of `base` in the same load and repeat, so that loads of different sizes can
    /// be ranked together and the drift of the machine's speed falls out.
    fn against(&self, base: usize, mode: usize, loads: &[usize], question: Question) -> Vec<Option<f64>> {
        let ratios = |&load: &usize| {
            let pairs = self.answers(load, mode, question).into_iter().zip(self.answers(load, base, question));
            pairs.map(|(value, base)| Some(value? / base.filter(|base| *base > 0.0)?)).collect::<Vec<_>>()
        };
        loads.iter().flat_map(ratios).collect()
    }

    /// A mode under which the server was slower than a rate does not compete: its latencies are lower bounds. `base` is
    /// compared with all the same, for what beats a lower bound beats `base`.
    fn is_saturated(&self, mode: usize, loads: &[usize]) -> bool {
        let cells = loads.iter().flat_map(|&load| (0..self.plan.repeats).map(move |repeat| (load, repeat)));
        cells.filter_map(|(load, repeat)| self.trial(load, mode, repeat)).any(|trial| is_saturated(&trial.load))
    }

    fn disturbed_pairs(&self, base: usize, mode: usize, loads: &[usize]) -> usize {
        let disturbed = |load: usize, mode: usize, repeat: u32| {
            self.trial(load, mode, repeat).is_some_and(|trial| !trial.disturbances.is_empty())
        };
        let cells = loads.iter().flat_map(|&load| (0..self.plan.repeats).map(move |repeat| (load, repeat)));
        cells.filter(|&(load, repeat)| disturbed(load, base, repeat) || disturbed(load, mode, repeat)).count()
    }

    fn named(&self, choice: Choice<usize>) -> Choice<String> {
        let name = |mode: usize| self.plan.modes[mode].label.clone();
        Choice {
            winner: name(choice.winner),
            not_distinguishable: choice.not_distinguishable.into_iter().map(name).collect(),
            without_value: choice.without_value.into_iter().map(name).collect(),
        }
    }

    fn answers(&self, load: usize, mode: usize, question: Question) -> Vec<Option<f64>> {
        let series = |figure: Figure| -> Vec<Option<f64>> {
            let value = |repeat| figure.at_least(self.trial(load, mode, repeat)?);
            (0..self.plan.repeats).map(value).collect()
        };
        match question {
            Question::Throughput => series(Figure::Qps),
            Question::MedianLatency => series(Figure::P50),
            Question::TailLatency => series(Figure::P99),
            Question::Cpu => series(Figure::CpuPerRequest),
            Question::Compromise => compromise(&series(Figure::P99), &series(Figure::CpuPerRequest)),
        }
    }
}
