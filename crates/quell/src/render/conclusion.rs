//! The last line of a result: what it means for the reader, and the next command.

use quell_linux::visible;
use quell_load::OfferedLoad;
use quell_result::conclusion::{Conclusion, LoadRange, LoadSplit, Quantity, QuantityChange, WhyKeep, WhyLonger};
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::{PRESENT, ProgramsFacts};
use quell_result::tune::TuneFile;

use super::number;
use super::terminal::Terminal;
use super::{experiment, tune};

/// Formats the last line of an output. The command is on a line of its own, so that it can be copied.
#[must_use]
pub(crate) fn line(sentence: &str, command: Option<&str>) -> String {
    let colon = if command.is_some() { ":" } else { "" };
    let text = Terminal::of_stdout().fill(&format!("conclusion: {sentence}{colon}"), "", "  ");
    command.map_or_else(|| format!("{text}\n"), |command| format!("{text}\n  {command}\n"))
}

#[must_use]
pub(crate) fn of_experiment(result: &ExperimentResult) -> String {
    let Some(conclusion) = result.conclusion() else { return String::new() };
    let modes = result.experiments.first().map(|first| {
        // The attached mode is a row of the next result, too.
        experiment::treatments(first).filter(|mode| *mode != PRESENT).collect::<Vec<_>>().join(",")
    });
    let measure = |pids: &str| format!("quell bench --pid {pids} --modes {}", modes.unwrap_or_default());
    of(&conclusion, &result.subject, measure, &[])
}

#[must_use]
pub(crate) fn of_tune(file: &TuneFile) -> String {
    let goal = shell_words::quote(&file.search.plan.goal.to_string()).into_owned();
    let measure = |pids: &str| format!("quell tune --pid {pids} --goal {goal}");
    of(&file.conclusion(), &file.subject, measure, &file.left_alone)
}

fn of(
    conclusion: &Conclusion,
    subject: &SubjectFacts,
    measure: impl FnOnce(&str) -> String,
    left_alone: &[String],
) -> String {
    let said = sentence(conclusion, left_alone);
    match (conclusion, subject) {
        (Conclusion::Use { mode, .. }, SubjectFacts::Programs(facts)) if facts.attached == Some(*mode) => {
            line(&format!("{said}. It is attached already"), None)
        }
        (Conclusion::Use { mode, .. }, SubjectFacts::Programs(facts)) => {
            let pids = pids(facts, " ");
            let detach = if facts.attached.is_some() { format!("quell detach {pids} && ") } else { String::new() };
            line(&said, Some(&format!("{detach}quell attach {mode}{} {pids}", placement_options(subject))))
        }
        (Conclusion::Use { mode, .. }, SubjectFacts::Command(facts)) => {
            let (placement, command) = (placement_options(subject), experiment::command_line(&facts.command));
            line(&said, Some(&format!("quell run {mode}{placement} -- {command}")))
        }
        (Conclusion::Use { mode, instead_of, .. }, _) => {
            let measured = format!("{said}. Before you use it, measure it on your server");
            line(&measured, Some(&format!("quell bench --pid PID --modes {instead_of},{mode}")))
        }
        (Conclusion::MeasureLonger { budget_ms: Some(budget_ms), .. }, SubjectFacts::Programs(facts)) => {
            let again = commands_of(facts)
                .into_iter()
                .map(|(option, words)| format!(" {option} {}", shell_words::quote(&experiment::command_line(&words))));
            let measure = measure(&pids(facts, ","));
            let command = format!("{measure}{}{}", placement_options(subject), again.collect::<String>());
            line(&said, Some(&format!("{command} --budget {}", budget(*budget_ms))))
        }
        (Conclusion::MeasureLonger { budget_ms: Some(budget_ms), .. }, _) => {
            line(&format!("{said}: run the command again with --budget {}", budget(*budget_ms)), None)
        }
        _ => line(&said, None),
    }
}

/// Options with which connections were steered and workers pinned, each after a space.
pub(crate) fn placement_options(subject: &SubjectFacts) -> String {
    let options = match subject {
        SubjectFacts::Programs(facts) => facts.placement.as_ref().map_or(&[][..], |placement| &placement.options),
        SubjectFacts::Command(facts) => &facts.placement,
        _ => &[],
    };
    options.iter().map(|option| format!(" {option}")).collect()
}

fn pids(facts: &ProgramsFacts, separator: &str) -> String {
    facts.processes.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(separator)
}

/// Options of the command that made the result, with their commands.
fn commands_of(facts: &ProgramsFacts) -> Vec<(&'static str, Vec<String>)> {
    let given = [
        ("--load", facts.load.clone()),
        ("--latency", facts.latency.clone()),
        ("--beside-latency", facts.beside.clone()),
        ("--clients", facts.clients.as_ref().map(|clients| clients.command.clone())),
    ];
    given.into_iter().filter_map(|(option, words)| Some((option, words?))).collect()
}

pub(super) fn budget(ms: u64) -> String {
    let s = ms.div_ceil(1_000);
    if s.is_multiple_of(60) { format!("{}m", s / 60) } else { format!("{s}s") }
}

/// The conclusion as a sentence without a full stop. `left_alone` are settings that a search did not restore.
#[must_use]
pub(crate) fn sentence(conclusion: &Conclusion, left_alone: &[String]) -> String {
    match conclusion {
        Conclusion::Use { mode, instead_of, saves, costs, holds_limits, split } => {
            let worse = if costs.is_empty() { String::new() } else { format!("; worse: {}", changes(costs, saves)) };
            if let Some(LoadSplit { pays, costs, there }) = split {
                let (saved, there) = (changes(saves, &[]), changes(there, &[]));
                return format!(
                    "use {mode} {}: {saved}{worse}; {} keep {instead_of} ({there})",
                    range(pays),
                    range(costs)
                );
            }
            let better = if saves.is_empty() { String::new() } else { format!(": better: {}", changes(saves, costs)) };
            let no_cost = if costs.is_empty() { "; no cost was measured" } else { "" };
            let limits =
                if *holds_limits { format!("; holds the limits, {instead_of} does not") } else { String::new() };
            format!("use {mode} instead of {instead_of}{better}{worse}{no_cost}{limits}")
        }
        Conclusion::Keep { mode, because } => format!("keep {mode}, {}", why_keep(because)),
        Conclusion::MeasureLonger { because, .. } => match because {
            WhyLonger::Incomplete => "no answer: the measurement is incomplete".to_owned(),
            WhyLonger::Unsteady => {
                "measure longer, or under a steadier load, because something else changed between the slices".to_owned()
            }
            WhyLonger::TooFewRequests => {
                "measure longer, or under more load, because too little was measured".to_owned()
            }
            WhyLonger::OtherPrograms => {
                "measure again when other programs no longer use most of the server's CPUs, or compare latencies \
                 (--latency)"
                    .to_owned()
            }
            WhyLonger::TooWide => "measure longer, because the slices vary more than the modes differ".to_owned(),
            WhyLonger::Search(end) => format!("no answer: {}", tune::end(end, left_alone)),
        },
    }
}

fn why_keep(because: &WhyKeep) -> String {
    match because {
        WhyKeep::NothingToGain { margin, busy } => {
            let busy =
                busy.filter(|busy| busy.is_finite()).map(|busy| format!("; its CPUs are {:.0} % busy", busy * 100.0));
            format!(
                "because there is nothing to gain at this load: no mode differs by more than {} %{}",
                number::plain(margin * 100.0),
                busy.unwrap_or_default()
            )
        }
        WhyKeep::OthersAreWorse => "because every other mode is worse".to_owned(),
        WhyKeep::TradeOff { mode, saves, costs } => {
            format!("unless {} under {} is worth {}", changes(saves, costs), visible::name(mode), changes(costs, saves))
        }
        WhyKeep::NotBeaten => "because the search found no better mode".to_owned(),
    }
}

/// Lists changes. A quantity that changes in `opposite`, too, has its loads.
fn changes(changes: &[QuantityChange], opposite: &[QuantityChange]) -> String {
    let one = |change: &QuantityChange| {
        let name = match &change.quantity {
            Quantity::Criterion(criterion) => experiment::name(criterion),
            Quantity::Metric(metric) => visible::name(&metric.to_string()).into_owned(),
        };
        let [low, high] = [change.low, change.high].map(experiment::change);
        let change_text = if low == high { format!("{name} {low}") } else { format!("{name} {low} to {high}") };
        match opposite.iter().any(|other| other.quantity == change.quantity) && !change.loads.is_empty() {
            true => format!("{change_text} {}", range(&LoadRange::At(change.loads.clone()))),
            false => change_text,
        }
    };
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn range(range: &LoadRange) -> String {
    match range {
        LoadRange::From(OfferedLoad::Max) | LoadRange::UpTo(OfferedLoad::Max) => at(OfferedLoad::Max),
        LoadRange::From(load) => format!("from {} on", load_name(*load)),
        LoadRange::UpTo(load) => format!("up to {}", load_name(*load)),
        LoadRange::At(loads) => loads.iter().copied().map(at).collect::<Vec<_>>().join(" and "),
    }
}

fn at(load: OfferedLoad) -> String {
    match load {
        OfferedLoad::Max => "in a closed loop".to_owned(),
        load => format!("at {}", load_name(load)),
    }
}

fn load_name(load: OfferedLoad) -> String {
    match load {
        OfferedLoad::Rate(per_s) => format!("{} requests/s", number::short(per_s)),
        OfferedLoad::Percent(percent) => format!("{} % of the maximum", number::plain(percent)),
        OfferedLoad::Max => "the maximum".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(ratio: f64, load: OfferedLoad) -> QuantityChange {
        let quantity = Quantity::Metric(quell_tune::TuneMetric::Cpu);
        QuantityChange { quantity, low: ratio, high: ratio, loads: vec![load] }
    }

    fn used(saves: QuantityChange, costs: Option<QuantityChange>, split: Option<LoadSplit>) -> String {
        let (mode, instead_of) = ("suspend20".parse().unwrap(), "base".parse().unwrap());
        let (saves, costs) = (vec![saves], costs.into_iter().collect());
        sentence(&Conclusion::Use { mode, instead_of, saves, costs, holds_limits: false, split }, &[])
    }

    #[test]
    fn a_mode_that_pays_at_some_loads_is_named_with_them() {
        let [low, high] = [20e3, 200e3].map(OfferedLoad::Rate);
        let of = |pays, costs| LoadSplit { pays, costs, there: vec![cpu(1.15, low)] };
        assert_eq!(
            used(cpu(0.7, high), None, Some(of(LoadRange::From(high), LoadRange::UpTo(low)))),
            "use suspend20 from 200,000 requests/s on: cpu −30 %; up to 20,000 requests/s keep base (cpu +15 %)"
        );
        let named = of(LoadRange::At(vec![OfferedLoad::Percent(50.0), OfferedLoad::Max]), LoadRange::At(vec![low]));
        assert_eq!(
            used(cpu(0.7, high), None, Some(named)),
            "use suspend20 at 50 % of the maximum and in a closed loop: cpu −30 %; at 20,000 requests/s keep base (cpu \
             +15 %)"
        );
    }

    #[test]
    fn a_quantity_that_changes_both_ways_has_its_loads() {
        let [low, high] = [20e3, 200e3].map(OfferedLoad::Rate);
        assert_eq!(
            used(cpu(0.7, high), Some(cpu(1.05, low)), None),
            "use suspend20 instead of base: better: cpu −30 % at 200,000 requests/s; worse: cpu +5.0 % at 20,000 \
             requests/s"
        );
    }
}
