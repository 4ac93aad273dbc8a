//! Why modes are not the answer of a search that look better than it, or led it.

use quell_cli::number::{ABSENT, short};
use quell_linux::visible::{self, agree, counted};
use quell_mode::DeliveryMode;
use quell_tune::{Confirmation, Rival, TuneAnswer, TuneResult, WhyNotChosen};

use super::{arm_state, budget, change, change_with_interval};

/// Number of modes in a line, and of lines about undecided modes, after which others are only counted.
const NAMED: usize = 3;
const NOT_SHOWN: &str = "was not shown to hold all limits and to answer all requests in time";

/// One line for each mode that led the search and is not the answer.
#[must_use]
pub fn refuted(result: &TuneResult) -> Vec<String> {
    let reason = |holds: bool| if holds { "was not better on fresh slices" } else { NOT_SHOWN };
    let line = |one: &Confirmation| format!("{} led the search, but {}", one.mode, reason(one.meets_limits));
    let is_undecided = |one: &Confirmation| {
        result.rivals.iter().any(|rival| rival.mode == one.mode && rival.open_budget_ms().is_some())
    };
    result.confirmations.iter().filter(|one| !is_undecided(one)).map(line).collect()
}

/// Why the modes are not the answer that look better than it, in lines.
#[must_use]
pub fn rivals(result: &TuneResult) -> Vec<String> {
    let answer = result.answer.mode().unwrap_or(result.plan.present);
    // The lines about refuted modes have these.
    let is_said = |rival: &&Rival| {
        result.answer == TuneAnswer::NoSettingBetter && result.confirmations.iter().any(|one| one.mode == rival.mode)
    };
    let (open, closed): (Vec<&Rival>, Vec<&Rival>) = result
        .rivals
        .iter()
        .filter(|rival| rival.open_budget_ms().is_some() || !is_said(rival))
        .partition(|rival| rival.open_budget_ms().is_some());
    let mut lines: Vec<String> = open.iter().take(NAMED).map(|rival| open_rival(result, rival, answer)).collect();
    if open.len() > NAMED {
        let more = open.len() - NAMED;
        let (modes, look) = (counted(more, "other mode"), agree(&more, "looks", "look"));
        lines.push(format!("{modes} {look} better, too, and {} not decided", agree(&more, "is", "are")));
    }
    let mut by_reason: Vec<(String, Vec<String>)> = Vec::new();
    for rival in closed {
        let (reason, mode) = (closed_reason(&rival.why), rival.mode.to_string());
        match by_reason.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, modes)) => modes.push(mode),
            None => by_reason.push((reason, vec![mode])),
        }
    }
    for (reason, modes) in by_reason {
        let more = modes.len().saturating_sub(NAMED);
        let others = if more > 0 { format!(" and {}", counted(more, "other")) } else { String::new() };
        let named = modes[..modes.len() - more].join("; ");
        lines.push(format!("looks better, but {reason}: {named}{others}"));
    }
    lines
}

fn open_rival(result: &TuneResult, rival: &Rival, answer: DeliveryMode) -> String {
    let interval = rival.interval.and_then(|of| Some(change_with_interval(of.ratio, of.low, of.high?)));
    let change = interval.unwrap_or_else(|| change(rival.ratio()));
    let what = match rival.why {
        WhyNotChosen::NotCompared { .. } => format!("not compared on fresh slices in {:.0} s", result.spent_ms / 1e3),
        _ => format!("not decided in {:.0} s", result.spent_ms / 1e3),
    };
    let remedy = match rival.open_budget_ms().flatten() {
        Some(ms) => format!("--budget {} probably decides it", budget(ms)),
        None => "an hour is probably not enough".to_owned(),
    };
    let metric = result.plan.goal.objective.to_string();
    let metric = visible::name(&metric);
    let exceeds = result.limit_ratio(rival.mode).filter(|ratio| ratio.is_finite() && *ratio > 1.0);
    let limit = exceeds.map_or_else(String::new, |ratio| format!(" (at {} of the limit)", of_limit(ratio)));
    format!("{} looks better than {answer}, {metric} {change}{limit}: {what}; {remedy}", rival.mode)
}

/// Share of a limit, as a factor from 2 on; a dash if it is unknown.
#[must_use]
pub fn of_limit(ratio: f64) -> String {
    match ratio {
        ratio if !ratio.is_finite() => ABSENT.to_owned(),
        ratio if ratio >= 2.0 => format!("×{}", short(ratio)),
        ratio => format!("{:.0} %", ratio * 100.0),
    }
}

fn closed_reason(why: &WhyNotChosen) -> String {
    match why {
        WhyNotChosen::Excluded { state } => arm_state(state),
        WhyNotChosen::LimitInDoubt { limit } => format!("probably misses {}", visible::name(limit)),
        WhyNotChosen::LimitsNotShown => NOT_SHOWN.to_owned(),
        WhyNotChosen::NotBetter => "its slices do not show a gain of 3 %".to_owned(),
        WhyNotChosen::Undecided { .. } | WhyNotChosen::NotCompared { .. } => "not decided".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_experiment::RatioEstimate;
    use quell_tune::{ArmReport, ArmState, TuneEnd, TunePlan, TuneSpace};

    #[test]
    fn every_mode_that_looks_better_than_the_answer_has_its_reason() {
        let mode = |text: &str| text.parse::<DeliveryMode>().unwrap();
        let interval = RatioEstimate { ratio: 0.88, low: 0.73, high: Some(1.03), blocks: 20 };
        let rival = |name: &str, interval, why| Rival { mode: mode(name), looks: 0.88, interval, why };
        let misses = || WhyNotChosen::Excluded { state: ArmState::MissesLimit { limit: "p99<=300us".to_owned() } };
        let goal = "least cpu".parse().unwrap();
        let result = TuneResult {
            plan: TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), 1),
            arms: vec![ArmReport {
                mode: mode("suspend160"),
                state: ArmState::Alive,
                slices: 5,
                ratio: Vec::new(),
                limit_ratio: Some(1.28),
            }],
            slices: Vec::new(),
            confirmations: Vec::new(),
            answer: TuneAnswer::Better { mode: mode("napibusy"), gain: Vec::new(), against_base: Vec::new() },
            rivals: vec![
                rival("suspend40", Some(interval), WhyNotChosen::Undecided { budget_ms: Some(100_000) }),
                rival("suspend160", Some(interval), WhyNotChosen::NotCompared { budget_ms: Some(100_000) }),
                rival("defer640", None, misses()),
                rival("defer160", None, misses()),
            ],
            preferred: Vec::new(),
            end: TuneEnd::BudgetSpent,
            spent_ms: 60_000.0,
        };
        assert_eq!(
            rivals(&result),
            [
                "suspend40 looks better than napibusy, cpu −12 % (−27 to +3.0): not decided in 60 s; --budget 100s \
                 probably decides it",
                "suspend160 looks better than napibusy, cpu −12 % (−27 to +3.0) (at 128 % of the limit): not compared \
                 on fresh slices in 60 s; --budget 100s probably decides it",
                "looks better, but misses p99<=300us: defer640; defer160"
            ]
        );
    }
}
