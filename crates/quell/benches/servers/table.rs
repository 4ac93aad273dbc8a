//! The trials as Markdown: one row per server. A row has the median and the range of each figure under each arm, and the
//! result of the switchback analysis against `base`. A missing value is a dash.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_experiment::{
    ContrastResult, ContrastVerdict, Criterion, ExperimentDesign, ExperimentRecord, Goal, SliceObservation,
    SliceRecord, Treatment, WhyUndecided, analyse,
};
use quell_linux::visible::counted;
use quell_stats::Spread;

use crate::program::Program;
use crate::trial::{Arm, Trial};

const ABSENT: &str = "–";
/// Name of the compared figure.
const FIGURE: &str = "figure";

/// The trials of one server by arm, one per round; absent if a trial failed.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// The trials.
    pub(crate) of: BTreeMap<Arm, Vec<Option<Trial>>>,
    /// Reasons of failed trials by arm; the last one of each.
    pub(crate) failed: BTreeMap<Arm, String>,
}

type FigureOf = fn(&Trial) -> Option<f64>;

impl Trials {
    fn values(&self, arm: Arm, figure: FigureOf) -> Vec<Option<f64>> {
        self.of.get(&arm).into_iter().flatten().map(|trial| trial.as_ref().and_then(figure)).collect()
    }

    fn spread(&self, arm: Arm, figure: FigureOf) -> Option<Spread> {
        Spread::of(self.values(arm, figure))
    }

    /// Converts the rounds to blocks of an experiment with one criterion.
    fn record(&self, figure: FigureOf) -> ExperimentRecord<()> {
        let treatment = |arm: Arm| Treatment { name: arm.name().to_owned(), setting: () };
        let criterion = Criterion::Metric { name: FIGURE.to_owned(), goal: Goal::Lowest };
        let treatments = [Arm::Attach, Arm::Run].map(treatment).to_vec();
        let values = Arm::ALL.map(|arm| self.values(arm, figure));
        let rounds = values.iter().map(Vec::len).max().unwrap_or(0);
        // The analysis runs once, after the last round.
        let design = ExperimentDesign {
            looks: 1,
            budget_ms: (rounds * values.len()) as u64,
            ..ExperimentDesign::new(treatment(Arm::Base), treatments, vec![criterion], 0)
        };
        let slice = |(round, arm): (usize, usize)| {
            let value = values[arm].get(round).copied().flatten();
            let slice = SliceObservation { spent_ms: 1.0, ..SliceObservation::default() };
            let observation = slice.with_metric(FIGURE, value);
            SliceRecord { block: round as u32, arm, observation }
        };
        let places = (0..rounds).flat_map(|round| (0..values.len()).map(move |arm| (round, arm)));
        ExperimentRecord { design, slices: places.map(slice).collect(), dropped: BTreeMap::new() }
    }

    fn against_base(&self, arm: Arm, figure: FigureOf) -> String {
        let analysis = analyse(&self.record(figure));
        let contrast = analysis.contrasts.iter().find(|contrast| contrast.treatment == arm.name());
        contrast.map_or_else(|| ABSENT.to_owned(), in_words)
    }

    /// Number of disturbed rounds of the arm with the most of them.
    pub(crate) fn disturbed_max(&self) -> usize {
        let disturbed = |trials: &Vec<Option<Trial>>| {
            trials.iter().flatten().filter(|trial| !trial.disturbances.is_empty()).count()
        };
        self.of.values().map(disturbed).max().unwrap_or(0)
    }

    fn works(&self, arm: Arm) -> String {
        let trials: Vec<&Trial> = self.of.get(&arm).into_iter().flatten().flatten().collect();
        if let (true, Some(why)) = (trials.is_empty(), self.failed.get(&arm)) {
            return format!("no: {}", why.lines().next().unwrap_or_default().replace('|', "\\|"));
        }
        let Some(trial) = trials.last() else { return ABSENT.to_owned() };
        let seen = trial.seen;
        let share = |set: usize, of: usize| format!("{set} of {of}");
        if seen.epolls == 0 {
            return "not observed".to_owned();
        }
        let mut lacking = Vec::new();
        if seen.epolls_set < seen.epolls {
            lacking.push(format!("{} epolls set", share(seen.epolls_set, seen.epolls)));
        }
        if seen.queues_set < seen.queues {
            lacking.push(format!("{} queues set", share(seen.queues_set, seen.queues)));
        }
        if seen.queues_of_one_epoll > 1 {
            lacking.push(format!("one epoll has connections of {} queues", seen.queues_of_one_epoll));
        }
        if seen.epolls > seen.queues {
            lacking.push(format!("{} on {}", counted(seen.epolls, "epoll"), counted(seen.queues, "queue")));
        }
        let failed: u64 = trials.iter().map(|trial| trial.found.failed).sum();
        if failed > 0 {
            lacking.push(format!("{failed} requests failed"));
        }
        if trials.iter().all(|trial| trial.polled_by_the_server == Some(0.0)) {
            lacking.push("the server never polled its queue".to_owned());
        }
        if trials.iter().all(|trial| trial.found_suspended == Some(0.0)) {
            lacking.push("its interrupt was never suspended".to_owned());
        }
        match lacking.is_empty() {
            true => "fully".to_owned(),
            false => format!("partly: {}", lacking.join(", ")),
        }
    }
}

/// The figures of all servers.
pub(crate) fn markdown(all: &[(Program, Trials)]) -> String {
    let mut text = String::from(
        "| server | requests/s: base | p50, µs: base | attach | run | CPU/request, µs: base | attach | run |\n\
         | --- | --: | --: | --: | --: | --: | --: | --: |\n",
    );
    for (program, trials) in all {
        text.push_str(&row(*program, trials));
    }
    text
}

fn row(program: Program, trials: &Trials) -> String {
    let compared = |arm: Arm, figure: FigureOf| {
        let against = if arm == Arm::Base { String::new() } else { format!(", {}", trials.against_base(arm, figure)) };
        number(trials.spread(arm, figure)) + &against
    };
    let arms = [Arm::Base, Arm::Attach, Arm::Run];
    let rate = number(trials.spread(Arm::Base, |trial| Some(trial.found.per_s)));
    let latencies = arms.map(|arm| compared(arm, Trial::p50_us));
    let costs = arms.map(|arm| compared(arm, Trial::cpu_us_per_request));
    format!("| {} | {rate} | {} |\n", program.name(), [latencies, costs].concat().join(" | "))
}

/// Whether the mode works, and the polls by the server, with one queue and with several.
pub(crate) fn working(alone: &[(Program, Trials)], several: &[(Program, Trials)]) -> String {
    let mut text = String::from(
        "| server | one queue: attach | run | two queues: attach | run |\n| --- | --- | --- | --- | --- |\n",
    );
    let cells = |trials: Option<&Trials>| {
        [Arm::Attach, Arm::Run].map(|arm| {
            let Some(trials) = trials else { return ABSENT.to_owned() };
            format!("{}; {}", trials.works(arm), percent(trials.spread(arm, |trial| trial.polled_by_the_server)))
        })
    };
    for (program, trials) in alone {
        let with_several = several.iter().find(|(other, _)| other == program).map(|(_, trials)| trials);
        let cells = [cells(Some(trials)), cells(with_several)].concat().join(" | ");
        let _ = writeln!(text, "| {} | {cells} |", program.name());
    }
    text
}

/// Median, lowest and highest.
fn number(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max, .. }) = spread else { return ABSENT.to_owned() };
    let short = |value: f64| match value {
        value if value >= 1_000.0 => thousands(value),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    };
    format!("{} ({}–{})", short(median), short(min), short(max))
}

fn thousands(value: f64) -> String {
    format!("{:.1}K", value / 1e3)
}

fn percent(spread: Option<Spread>) -> String {
    spread.map_or_else(|| ABSENT.to_owned(), |spread| format!("{:.0} %", spread.median * 100.0))
}

/// Formats a ratio in percent, or as a factor if it is large.
fn change(ratio: f64) -> String {
    if ratio >= 3.0 {
        return format!("×{ratio:.1}");
    }
    format!("{:+.0} %", (ratio - 1.0) * 100.0).replace('-', "−")
}

fn in_words(contrast: &ContrastResult) -> String {
    let estimate = contrast.estimate.map(|estimate| {
        let high = estimate.high.map_or_else(|| "∞".to_owned(), change);
        format!("{} ({} to {high})", change(estimate.ratio), change(estimate.low))
    });
    match (contrast.verdict, estimate) {
        (ContrastVerdict::Better | ContrastVerdict::Worse, Some(estimate)) => format!("**{estimate}**"),
        (ContrastVerdict::NoDifferenceLargerThan { margin }, Some(estimate)) => {
            format!("same within {:.0} %: {estimate}", margin * 100.0)
        }
        (ContrastVerdict::Undecided { reason: WhyUndecided::ControlDiffers }, Some(estimate)) => {
            format!("base differs from itself: {estimate}")
        }
        (_, Some(estimate)) => format!("undecided: {estimate}"),
        (ContrastVerdict::Undecided { reason: WhyUndecided::TooFewBlocks { .. } }, None) => "too few rounds".to_owned(),
        (_, None) => ABSENT.to_owned(),
    }
}
