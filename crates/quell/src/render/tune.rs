//! Renders plans and results of `quell tune`.

use std::collections::BTreeMap;

use quell_experiment::RatioEstimate;
use quell_linux::shell;
use quell_linux::visible::{self, agree, counted};
use quell_mode::DeliveryMode;
use quell_report::words;
use quell_result::conclusion::WhyLonger;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::HostFacts;
use quell_result::tune::TuneFile;
use quell_subject::server::ServerCommand;
use quell_tune::{
    ArmReport, ArmState, NextTuneSlice, RefusedMode, TuneAnswer, TuneDirection, TunePhase, TunePlan, TuneResult, Tuner,
};

use super::experiment;
use super::number::ABSENT;
use super::terminal::Terminal;
use quell_cli::table::Grid;

const STANDING: usize = 8;

/// Legend of a column.
pub(super) const OF_THE_LIMIT: &str = "of the limit: the limited value in percent of its limit, above 100 % it misses";

/// Number of tried modes that the table of a result has.
const TRIED: usize = 20;

/// Lists goal, guards, modes, loads and limits of time. `of_time` qualifies the time, unless it is real.
#[must_use]
pub(crate) fn plan(plan: &TunePlan, of_time: &str) -> String {
    let base = DeliveryMode::default();
    let modes = plan.arms.iter().filter(|mode| **mode != base).map(ToString::to_string);
    let modes: Vec<String> = modes.collect();
    let against = match plan.present == base {
        true => format!("{}, the present setting", plan.name(base)),
        false => format!("{}, the present setting, and {}", plan.present, plan.name(base)),
    };
    let guards: Vec<String> = plan.guards.iter().map(ToString::to_string).collect();
    let never = if guards.is_empty() { "nothing (--never sets guards)".to_owned() } else { guards.join(", ") };
    let rest = if plan.space.is_some() { ", then those of the grid that can be the best" } else { "" };
    let as_long = if plan.slice_takes_ms.is_some() { ", as long as the commands run" } else { "" };
    let lines = [
        ("goal", plan.goal.to_string()),
        ("never", never),
        ("loads", plan.loads.join(", ")),
        ("tries", format!("{}{rest}", modes.join(", "))),
        ("against", against),
        (
            "time",
            format!(
                "slices of {} ms{as_long}, at most {} s{of_time}: a part to search, the rest to confirm the winner on fresh slices",
                plan.slice_and_settle_ms(),
                plan.budget_ms / 1_000
            ),
        ),
        ("seed", plan.seed.to_string()),
    ];
    let skips = skipped(plan).map(|text| ("skips", text));
    lines.into_iter().chain(skips).map(|(name, text)| wrapped(name, &visible::name(&text))).collect()
}

/// Kinds of mode that are not tried, by reason. `None` if all are tried.
pub(super) fn skipped(plan: &TunePlan) -> Option<String> {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for RefusedMode { kind, reason } in plan.space.iter().flat_map(|space| &space.refused) {
        match by_reason.iter_mut().find(|(other, _)| other == reason) {
            Some((_, kinds)) => kinds.push(kind),
            None => by_reason.push((reason, vec![kind])),
        }
    }
    let of_reason = by_reason.iter().map(|(reason, kinds)| format!("{} ({reason})", kinds.join(", ")));
    (!by_reason.is_empty()).then(|| of_reason.collect::<Vec<_>>().join("; "))
}

#[must_use]
pub(crate) fn server(command: &ServerCommand) -> String {
    match command {
        ServerCommand::Memcached { .. } => "memcached".to_owned(),
        ServerCommand::Other(words) => shell::command(words),
    }
}

#[must_use]
pub(crate) fn searched_on(subject: &SubjectFacts) -> String {
    experiment::subject(subject, &HostFacts::default()).lines().next().unwrap_or_default().to_owned()
}

fn wrapped(name: &str, text: &str) -> String {
    let first = format!("  {name:<8}");
    Terminal::of_stdout().fill(text, &first, "          ") + "\n"
}

/// Current state of a search: its phase, and what is known of the best modes that are alive.
#[must_use]
pub(crate) fn standing(tuner: &Tuner) -> Vec<String> {
    let arms = tuner.arms();
    let mut alive: Vec<&ArmReport> = arms.iter().filter(|arm| arm.state == ArmState::Alive).collect();
    let phase = match tuner.next_slice() {
        Some(NextTuneSlice { phase: TunePhase::Confirm, mode, .. }) => {
            format!("confirming on fresh slices, now {mode}")
        }
        _ => {
            let tried = arms.iter().filter(|arm| arm.slices > 0).count();
            format!("searching: {tried} of {} tried, {} can be the best", counted(arms.len(), "mode"), alive.len())
        }
    };
    alive.sort_by(|a, b| shortfall(tuner.plan(), a).total_cmp(&shortfall(tuner.plan(), b)));
    let known = alive.iter().filter(|arm| arm.slices > 0).take(STANDING);
    std::iter::once(phase)
        .chain(arm_table(tuner.plan(), known.copied(), false, Terminal::of_stderr()).lines().map(str::to_owned))
        .collect()
}

/// By which factor the objective is worse than under the present setting, at the worst load; NaN without values.
fn shortfall(plan: &TunePlan, arm: &ArmReport) -> f64 {
    let factor = |ratio: &f64| match plan.goal.direction {
        TuneDirection::Lowest => *ratio,
        TuneDirection::Highest => 1.0 / ratio,
    };
    arm.ratio.iter().flatten().map(factor).fold(f64::NAN, f64::max)
}

/// Table of arms: slices, ratio of the objective to the present setting at each load, limits.
fn arm_table<'a>(
    plan: &TunePlan,
    arms: impl Iterator<Item = &'a ArmReport>,
    with_state: bool,
    terminal: Terminal,
) -> String {
    let ratio = plan.loads.iter().map(|load| format!("{} at {}", plan.goal.objective, visible::name(load)));
    let limit = (!plan.goal.limits.is_empty()).then(|| "of the limit".to_owned());
    let heading = ["mode", "slices"].map(str::to_owned).into_iter().chain(ratio).chain(limit.clone());
    let numbers = 2 + plan.loads.len() + usize::from(limit.is_some());
    let heading = heading.chain(with_state.then(|| "state".to_owned()));
    let mut table = Grid::new(heading, 1).with_numbers(1..numbers);
    for arm in arms {
        let ratio = arm.ratio.iter().map(|ratio| ratio.map_or(ABSENT.to_owned(), |ratio| format!("{ratio:.2}")));
        let of_limit = arm.limit_ratio.map_or(ABSENT.to_owned(), words::of_limit);
        let row = [plan.name(arm.mode), arm.slices.to_string()].into_iter().chain(ratio);
        let row = row.chain(limit.is_some().then_some(of_limit));
        table.push(row.chain(with_state.then(|| words::arm_state(&arm.state))));
    }
    table.render(terminal)
}

#[must_use]
pub(crate) fn render(file: &TuneFile, with_details: bool) -> String {
    let result = &file.search;
    let plan = &result.plan;
    let mut out = match &file.not_a_measurement {
        Some(why) => format!("NOT A MEASUREMENT: {}\n", visible::name(why)),
        None => String::new(),
    };
    // What its filters and pins cost decided against the mode.
    let placed = match file.found() {
        None if result.answer.mode().is_some() => {
            format!(" with{} as well", visible::name(&words::placement_options(&file.subject)))
        }
        _ => String::new(),
    };
    let answered = match file.why_withheld() {
        Some(WhyLonger::NotSteered) => format!("no answer: {}\n", words::NOT_STEERED),
        Some(_) => format!("no answer: {}\n", words::most_by_others(file.other_programs.as_deref())),
        None => answer(result, &file.left_alone, &placed) + &others(&words::rivals(result)),
    };
    out.push_str(&format!("{}\n{answered}\n", experiment::subject(&file.subject, &file.host)));
    out.push_str(&format!(
        "goal: {}; {:.0} s of slices at {}; seed {}\n",
        visible::name(&plan.goal.to_string()),
        result.spent_ms / 1e3,
        visible::name(&plan.loads.join(", ")),
        plan.seed
    ));
    out.push_str(&preferred(result));
    let heading = format!(
        "Search: {} as a ratio to that of {}, the present setting; {}the first slices only rank, they prove nothing.",
        plan.goal.objective,
        plan.name(plan.present),
        if plan.goal.limits.is_empty() { String::new() } else { format!("{OF_THE_LIMIT}; ") },
    );
    let heading = Terminal::of_stdout().fill(&heading, "", "  ");
    out.push_str(&format!("\n{heading}\n\n{}", searched(result)));
    if let Some(skipped) = skipped(plan) {
        let text = format!("not tried: {}", visible::name(&skipped));
        out.push_str(&format!("\n{}\n", Terminal::of_stdout().fill(&text, "", "  ")));
    }
    if with_details {
        out.push_str(&experiment::reported(file.settings.iter()));
    }
    out + "\n" + &super::conclusion::of_advice(&words::search_advice(file))
}

/// Table of the modes that were tried, those first that can be the best, and what became of the others.
fn searched(result: &TuneResult) -> String {
    let is_alive = |arm: &&ArmReport| arm.state == ArmState::Alive;
    let (mut tried, others): (Vec<&ArmReport>, Vec<&ArmReport>) = result.arms.iter().partition(|arm| arm.slices > 0);
    let shortfall = |arm| shortfall(&result.plan, arm);
    tried.sort_by(|a, b| is_alive(b).cmp(&is_alive(a)).then(shortfall(a).total_cmp(&shortfall(b))));
    let mut out = arm_table(&result.plan, tried.iter().take(TRIED).copied(), true, Terminal::of_stdout());
    let mut excluded: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let is_excluded =
        |arm: &&&ArmReport| matches!(arm.state, ArmState::ViolatedGuard { .. } | ArmState::NotSettable { .. });
    for arm in tried.iter().skip(TRIED).chain(&others).filter(is_excluded) {
        excluded.entry(words::arm_state(&arm.state)).or_default().push(arm.mode.to_string());
    }
    let mut lines: Vec<String> =
        excluded.into_iter().map(|(state, modes)| format!("{state}: {}", modes.join(", "))).collect();
    if tried.len() > TRIED {
        let more = tried.len() - TRIED;
        let (modes, were) = (counted(more, "more mode"), agree(&more, "was", "were"));
        lines.push(format!("{modes} {were} tried; the result file has all slices"));
    }
    let untried = others.iter().filter(|arm| !is_excluded(arm)).count();
    if untried > 0 {
        let alive = others.iter().filter(|arm| is_alive(arm)).count();
        lines.push(format!(
            "{} of the grid {} not tried; by what the others show, {} of them {} worse or {} a limit",
            counted(untried, "more mode"),
            agree(&untried, "was", "were"),
            untried - alive,
            agree(&(untried - alive), "is", "are"),
            agree(&(untried - alive), "misses", "miss")
        ));
    }
    for line in lines {
        out.push_str(&format!("\n{}\n", Terminal::of_stdout().fill(&line, "", "  ")));
    }
    out
}

/// `placed` says what the present setting has as well as the mode.
fn answer(result: &TuneResult, left_alone: &[String], placed: &str) -> String {
    let objective = &result.plan.goal.objective;
    let against = |gain: &[Option<RatioEstimate>], other: &str| -> String {
        let of_load = gain.iter().zip(&result.plan.loads).map(|(gain, load)| {
            let gain = gain.as_ref().map_or_else(|| "unknown".to_owned(), estimate);
            format!("  {objective} relative to {other} at {}: {gain}\n", visible::name(load))
        });
        of_load.collect()
    };
    let (present, base) = (result.plan.name(result.plan.present), result.plan.name(DeliveryMode::default()));
    match &result.answer {
        TuneAnswer::Better { mode, gain, against_base } => format!(
            "{mode} is better than {present}{placed}; confirmed on fresh slices, with 95 % confidence:\n{}{}",
            against(gain, &present),
            against(against_base, &base)
        ),
        TuneAnswer::HoldsLimits { mode, gain, against_base } => format!(
            "{mode} holds all limits, and {present}{placed} does not, on fresh slices; intervals have 95 % confidence:\n{}{}",
            against(gain, &present),
            against(against_base, &base)
        ),
        TuneAnswer::NoSettingBetter => {
            let of_present = result.arms.first().and_then(|arm| arm.limit_ratio).filter(|ratio| *ratio > 1.0);
            let misses = of_present.map_or_else(String::new, |ratio| {
                format!(
                    "  {present} does not hold all limits either: in a typical slice, {} of a limit\n",
                    words::of_limit(ratio)
                )
            });
            let left = abandoned(result);
            let compared = if left.is_empty() { "" } else { "; some could not be compared" };
            let refuted = others(&words::refuted(result));
            let is_open = result.rivals.iter().any(|rival| rival.open_budget_ms().is_some());
            let found = if is_open { "confirmed to be" } else { "found that is" };
            format!(
                "no setting was {found} better here than {present}, the present one{compared}\n{misses}{left}{refuted}"
            )
        }
        TuneAnswer::None => format!("no answer: {}\n", words::search_end(&result.end, left_alone)),
    }
}

fn abandoned(result: &TuneResult) -> String {
    let mut by_guard: BTreeMap<&str, usize> = BTreeMap::new();
    for arm in &result.arms {
        if let ArmState::ViolatedGuard { guard } = &arm.state {
            *by_guard.entry(guard).or_default() += 1;
        }
    }
    let line = |(guard, count): (&str, usize)| {
        let (modes, were) = (counted(count, "mode"), agree(&count, "was", "were"));
        format!("  {modes} {were} abandoned after the first slice that violated {}\n", visible::name(guard))
    };
    by_guard.into_iter().map(line).collect()
}

/// Why other modes are not the answer.
fn others(lines: &[String]) -> String {
    lines.iter().map(|line| Terminal::of_stdout().fill(line, "  ", "    ") + "\n").collect()
}

fn estimate(of: &RatioEstimate) -> String {
    let high = of.high.map_or_else(|| "unknown".to_owned(), |high| format!("{high:.2}"));
    format!("{:.2} ({:.2} to {high})", of.ratio, of.low)
}

fn preferred(result: &TuneResult) -> String {
    let of_load = result.plan.loads.iter().zip(&result.preferred).filter_map(|(load, mode)| Some((load, (*mode)?)));
    let of_load: Vec<String> = of_load.map(|(load, mode)| format!("{mode} at {}", visible::name(load))).collect();
    if of_load.len() < 2 {
        return String::new();
    }
    format!("each load alone would prefer (not confirmed): {}\n", of_load.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_experiment::SliceFlag;
    use quell_mode::DeliveryMode;
    use quell_result::Document as _;
    use quell_result::facts::OtherProgramFacts;
    use quell_tune::TuneEnd;
    use quell_tune::TuneSpace;

    #[test]
    fn a_plan_names_the_kinds_of_mode_that_it_skips_with_the_reason() {
        let refused = |kind: &str, reason: &str| RefusedMode { kind: kind.to_owned(), reason: reason.to_owned() };
        let refused =
            vec![refused("suspend", "stalls"), refused("fullbusy", "needs run"), refused("eventspin", "needs run")];
        let goal = "least cpu".parse().unwrap_or_else(|why| panic!("{why}"));
        let text = plan(&TunePlan::new(goal, DeliveryMode::default(), TuneSpace { refused }, 1), "");
        assert!(text.contains("  skips   suspend (stalls); fullbusy, eventspin (needs run)\n"), "{text}");
        assert!(!text.contains("eventspin20"), "{text}");
    }

    /// Result of a search in which no mode was better; the modes after `base` have these states.
    fn without_better(states: Vec<ArmState>) -> TuneResult {
        let goal = "least cpu".parse().unwrap_or_else(|why| panic!("{why}"));
        let arm =
            |state| ArmReport { mode: DeliveryMode::default(), state, slices: 1, ratio: Vec::new(), limit_ratio: None };
        TuneResult {
            plan: TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), 1),
            arms: std::iter::once(ArmState::Alive).chain(states).map(arm).collect(),
            slices: Vec::new(),
            confirmations: Vec::new(),
            answer: TuneAnswer::NoSettingBetter,
            rivals: Vec::new(),
            preferred: Vec::new(),
            end: TuneEnd::Interrupted,
            spent_ms: 0.0,
        }
    }

    #[test]
    fn a_search_that_other_programs_disturbed_names_them_and_has_no_answer_and_no_longer_budget() {
        let fixture = include_str!("../../tests/fixtures/tune.json");
        let mut file = TuneFile::from_json(fixture).unwrap_or_else(|why| panic!("{why}"));
        file.search.answer = TuneAnswer::NoSettingBetter;
        assert!(render(&file, false).contains("no setting"));
        for slice in &mut file.search.slices {
            slice.observation.flags.extend([SliceFlag::ForeignCpu, SliceFlag::NoIdleCpu]);
        }
        for slice in
            file.search.confirmations.iter_mut().flat_map(|of| &mut of.experiments).flat_map(|of| &mut of.slices)
        {
            slice.observation.flags.extend([SliceFlag::ForeignCpu, SliceFlag::NoIdleCpu]);
        }
        let text = render(&file, false).replace("\n  ", " ");
        assert!(text.contains("no answer: other programs used most of") && !text.contains("no setting"), "{text}");
        assert!(text.contains("not decidable while other programs use most of"), "{text}");
        assert!(!text.contains("probably decides it"), "{text}");
        file.other_programs = Some(vec![OtherProgramFacts {
            pid: 812,
            name: "stress\n".to_owned(),
            cpus: 1.5,
            has_exited: false,
            is_of_measurement: false,
        }]);
        let text = render(&file, false).replace("\n  ", " ");
        assert!(text.contains(r"time of the server's CPUs (stress\n 812: 150 % of a CPU)"), "{text}");
    }

    #[test]
    fn the_best_mode_comes_first_if_the_most_is_wanted_too() {
        for (goal, first) in [("least cpu", "defer20"), ("most requests", "suspend20")] {
            let mut result = without_better(vec![ArmState::Alive, ArmState::Alive]);
            result.plan.goal = goal.parse().unwrap_or_else(|why| panic!("{why}"));
            result.plan.loads = vec!["live".to_owned()];
            for (arm, (mode, ratio)) in
                result.arms.iter_mut().zip([("base", 1.0), ("suspend20", 1.2), ("defer20", 0.8)])
            {
                arm.mode = mode.parse().unwrap_or_else(|why| panic!("{why}"));
                arm.ratio = vec![Some(ratio)];
            }
            let table = searched(&result);
            assert_eq!(table.lines().nth(1).and_then(|row| row.split_whitespace().next()), Some(first), "{table}");
        }
    }

    #[test]
    fn base_is_named_with_the_mode_that_it_leaves_set() {
        let mut result = without_better(vec![ArmState::Alive]);
        result.plan.base_is = Some("threaded".parse().unwrap_or_else(|why| panic!("{why}")));
        assert!(plan(&result.plan, "").contains("base (threaded), the present setting"), "{}", plan(&result.plan, ""));
        assert!(
            answer(&result, &[], "").contains("than base (threaded), the present one"),
            "{}",
            answer(&result, &[], "")
        );
        assert!(searched(&result).contains("base (threaded) "), "{}", searched(&result));
    }

    #[test]
    fn a_mode_that_a_guard_excluded_is_not_said_to_be_no_better() {
        let guard = |guard: &str| ArmState::ViolatedGuard { guard: guard.to_owned() };
        let worse = || ArmState::Worse { than: DeliveryMode::default() };
        let none = "no setting was found that is better here than base, the present one\n";
        assert_eq!(answer(&without_better(vec![worse(), worse()]), &[], ""), none);
        assert_eq!(
            answer(&without_better(vec![guard("drops>10"), worse()]), &[], ""),
            "no setting was found that is better here than base, the present one; some could not be compared\n  1 mode \
             was abandoned after the first slice that violated drops>10\n"
        );
        let all = answer(&without_better(vec![guard("drops>10"), guard("drops>10"), guard("p99>1ms")]), &[], "");
        assert!(all.contains("  2 modes were abandoned") && all.contains("  1 mode was abandoned"), "{all}");
    }
}
