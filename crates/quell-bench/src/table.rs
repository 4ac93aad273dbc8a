//! The result table and the findings of a bench run. Pure functions of the result file, so `--show` prints the same
//! output at any later time. Only one attempt of a repeated trial counts.

use std::collections::BTreeMap;

use quell_stats::{Choice, Goal, PairedRatios, Resolution, Series, Spread, Verdict, best, compare, compromise};

use crate::disturbance::is_saturated;
use crate::metric::Metric;
use crate::offered_load::OfferedLoad;
use crate::result::{BenchResult, Trial};

/// Rows of one load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadTable {
    /// Offered load.
    pub load: OfferedLoad,
    /// Offered requests per second over the repeats. Absent in a closed loop.
    pub offered_per_s: Option<Spread>,
    /// One row per mode, in plan order.
    pub rows: Vec<Row>,
}

/// Results of one mode under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Label of the mode.
    pub label: String,
    /// Index of the mode in the plan.
    pub mode: usize,
    /// Each value over the repeats. Values without a result in any repeat are missing.
    pub cells: BTreeMap<Metric, Spread>,
    /// Number of counted trials that are marked as disturbed.
    pub disturbed: usize,
}

/// Trials that a finding is based on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scope {
    /// All open-loop loads together. Each compared pair has the same load and repeat.
    OpenLoads,
    /// One load.
    Load(OfferedLoad),
}

/// Result of a paired comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Criterion of the comparison.
    pub question: Question,
    /// Labels of the best mode, of the modes without a significant difference from it, and of the modes without a
    /// value.
    pub choice: Choice<String>,
    /// The best mode compared with `base`. Absent if `base` is the best or was not measured.
    pub against_base: Option<Verdict>,
    /// Difference between the two `base` entries. Absent if it is unknown.
    pub resolution: Option<Resolution>,
    /// Number of pairs of the best mode and `base` with a disturbed trial.
    pub disturbed_pairs: usize,
}

/// A question that the table answers.
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
    /// Smallest product of p99 latency and CPU time per request: half the latency offsets twice the CPU time.
    Compromise,
}

impl Question {
    /// Questions that apply to these trials. Throughput applies only if the server is the limit. Latency applies only
    /// if it is not: in a closed loop, latency restates throughput.
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
    /// The attempt that counts for a cell and repeat: the one with the fewest disturbances, or the first of equals.
    #[must_use]
    pub fn trial(&self, load: usize, mode: usize, repeat: u32) -> Option<&Trial> {
        let wanted = |trial: &&Trial| (trial.id.load, trial.id.mode, trial.id.repeat) == (load, mode, repeat);
        self.trials.iter().filter(wanted).min_by_key(|trial| (trial.disturbances.len(), trial.attempt))
    }

    /// Every trial that counts, in execution order.
    #[must_use]
    pub fn trials_that_count(&self) -> Vec<&Trial> {
        let counts = |trial: &&Trial| {
            self.trial(trial.id.load, trial.id.mode, trial.id.repeat).is_some_and(|last| last.attempt == trial.attempt)
        };
        self.trials.iter().filter(counts).collect()
    }

    /// Value of a column in each repeat of a cell.
    #[must_use]
    pub fn series(&self, load: usize, mode: usize, figure: Metric) -> Vec<Option<f64>> {
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
            cells: Metric::ALL.into_iter().filter_map(spread).collect(),
            disturbed: trials.filter(|trial| !trial.disturbances.is_empty()).count(),
        }
    }

    /// All findings: first over all open loads together, then for each load.
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

    /// Ratios of a mode's values to those of `base` at the same load and repeat. Ratios allow ranking across loads of
    /// different size, and they cancel the drift of the machine's speed.
    fn against(&self, base: usize, mode: usize, loads: &[usize], question: Question) -> Vec<Option<f64>> {
        let ratios = |&load: &usize| {
            let pairs = self.answers(load, mode, question).into_iter().zip(self.answers(load, base, question));
            pairs.map(|(value, base)| Some(value? / base.filter(|base| *base > 0.0)?)).collect::<Vec<_>>()
        };
        loads.iter().flat_map(ratios).collect()
    }

    /// Excludes modes under which the server was slower than a rate, because their latencies are lower bounds. `base`
    /// is always compared: a mode that beats a lower bound beats `base`.
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
        let series = |figure: Metric| -> Vec<Option<f64>> {
            let value = |repeat| figure.at_least(self.trial(load, mode, repeat)?);
            (0..self.plan.repeats).map(value).collect()
        };
        match question {
            Question::Throughput => series(Metric::Qps),
            Question::MedianLatency => series(Metric::P50),
            Question::TailLatency => series(Metric::P99),
            Question::Cpu => series(Metric::CpuPerRequest),
            Question::Compromise => compromise(&series(Metric::P99), &series(Metric::CpuPerRequest)),
        }
    }
}
