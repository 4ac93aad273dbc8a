//! Renders plans, rankings and results of `quell tune`.

use std::collections::BTreeMap;

use comfy_table::CellAlignment;
use quell_experiment::RatioEstimate;
use quell_linux::visible::{self, agree, counted};
use quell_mode::DeliveryMode;
use quell_report::words;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::HostFacts;
use quell_result::tune::TuneFile;
use quell_subject::server::ServerCommand;
use quell_tune::{
    ArmReport, ArmState, NextTuneSlice, RankedMode, RefusedMode, TuneAnswer, TuneMetric, TunePhase, TunePlan,
    TuneResult, Tuner,
};

use super::experiment;
use super::number::ABSENT;
use super::terminal::Terminal;
use quell_cli::table::{align_numbers, new_table};

const ADVISED: usize = 12;
const STANDING: usize = 8;

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
fn skipped(plan: &TunePlan) -> Option<String> {
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
        ServerCommand::Other(words) => visible::name(&shell_words::join(words)).into_owned(),
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
    alive.sort_by(|a, b| worst_ratio(a).total_cmp(&worst_ratio(b)));
    let known = alive.iter().filter(|arm| arm.slices > 0).take(STANDING);
    std::iter::once(phase).chain(arm_table(tuner.plan(), known.copied(), false).lines().map(str::to_owned)).collect()
}

/// Ratio of the objective to the present setting at the load at which it is largest; NaN without values.
fn worst_ratio(arm: &ArmReport) -> f64 {
    arm.ratio.iter().flatten().copied().fold(f64::NAN, f64::max)
}

/// Table of arms: slices, ratio of the objective to the present setting at each load, limits.
fn arm_table<'a>(plan: &TunePlan, arms: impl Iterator<Item = &'a ArmReport>, with_state: bool) -> String {
    let ratio = plan.loads.iter().map(|load| format!("{} at {}", plan.goal.objective, visible::name(load)));
    let limit = (!plan.goal.limits.is_empty()).then(|| "of the limit".to_owned());
    let heading = ["mode", "slices"].map(str::to_owned).into_iter().chain(ratio).chain(limit.clone());
    let mut table = new_table();
    table.set_header(heading.chain(with_state.then(|| "state".to_owned())));
    for arm in arms {
        let ratio = arm.ratio.iter().map(|ratio| ratio.map_or(ABSENT.to_owned(), |ratio| format!("{ratio:.2}")));
        let of_limit = arm.limit_ratio.map_or(ABSENT.to_owned(), words::of_limit);
        let row = [plan.name(arm.mode), arm.slices.to_string()].into_iter().chain(ratio);
        let row = row.chain(limit.is_some().then_some(of_limit));
        table.add_row(row.chain(with_state.then(|| words::arm_state(&arm.state))));
    }
    align_numbers(&mut table, 1);
    if let Some(column) = table.column_iter_mut().last().filter(|_| with_state) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    table.trim_fmt()
}

#[must_use]
pub(crate) fn advice(host: &str, plan: &TunePlan, ranked: &[RankedMode], programs: &str) -> String {
    let heading = plan.loads.iter().map(|load| format!("{} at {load}", unit(&plan.goal.objective)));
    let limit = (!plan.goal.limits.is_empty()).then(|| "of the limit".to_owned());
    let mut table = new_table();
    table.set_header(std::iter::once("mode".to_owned()).chain(heading).chain(limit));
    let is_compared = |mode: &RankedMode| mode.mode == plan.present || mode.mode == DeliveryMode::default();
    let rest = ranked.iter().skip(ADVISED).filter(|mode| is_compared(mode));
    let shown: Vec<&RankedMode> = ranked.iter().take(ADVISED).chain(rest).collect();
    for mode in &shown {
        let objective =
            mode.objective.iter().map(|value| value.map_or(ABSENT.to_owned(), |value| format!("{value:.2}")));
        let limit = mode.limit_ratio.map(words::of_limit);
        let is_present = mode.mode == plan.present && plan.present != DeliveryMode::default();
        let name = format!("{}{}", plan.name(mode.mode), if is_present { " (present)" } else { "" });
        table.add_row(std::iter::once(name).chain(objective).chain(limit));
    }
    align_numbers(&mut table, 1);
    let is_unknown = |mode: &&RankedMode| mode.limit_ratio.is_some_and(f64::is_infinite);
    let unknown = ranked.iter().filter(is_unknown).count();
    let misses = ranked.iter().filter(|mode| !mode.meets_limits()).count() - unknown;
    let count = |count: usize, [one, many]: [&str; 2]| match count {
        0 => String::new(),
        count => format!("; {count} {}", agree(&count, one, many)),
    };
    let limits = [
        count(
            misses,
            ["misses a limit and is ranked after the others", "miss a limit and are ranked after the others"],
        ),
        count(unknown, ["has", "have"]),
    ]
    .concat();
    let limits = if unknown > 0 { limits + " too few requests in a slice to judge a limit (--slice)" } else { limits };
    let rest = shown.iter().skip(ADVISED).map(|mode| format!(" and {}", mode.mode)).collect::<String>();
    let all = match ranked.len() - shown.len() {
        0 => String::new(),
        _ => format!("; the best {ADVISED}{rest} are shown, --json lists all"),
    };
    let skipped = skipped(plan).map_or_else(String::new, |skipped| {
        let text = format!("not possible here: {}", visible::name(&skipped));
        format!("\n{}", Terminal::of_stdout().fill(&text, "", "  "))
    });
    let ranked_by = format!(
        "{} ranked by the model of {} for {}{limits}{all}:",
        counted(ranked.len(), "mode"),
        visible::name(host),
        visible::name(&plan.goal.to_string()),
    );
    format!(
        "{}\n\n{}\n{skipped}\n\
         The constants of the model are those of that host, not of this machine. Nothing was measured here.\n\
         The order shows what is worth trying first. It does not show what is best on this machine.\n\
         {}\n",
        Terminal::of_stdout().fill(&ranked_by, "", "  "),
        table.trim_fmt(),
        worth_measuring(plan, ranked, programs),
    )
}

/// The command that measures the modes that are worth it.
fn worth_measuring(plan: &TunePlan, ranked: &[RankedMode], programs: &str) -> String {
    let best = plan.worth_measuring(ranked);
    if best.is_empty() {
        let of_present = ranked.iter().find(|one| one.mode == plan.present).and_then(|one| one.limit_ratio);
        let of_present = of_present.filter(|ratio| ratio.is_finite());
        return match (ranked.iter().any(RankedMode::meets_limits), of_present) {
            (true, _) => "The model knows no other mode that is worth measuring at these loads.".to_owned(),
            (false, None) => "The model knows no mode that holds the limits at these loads.".to_owned(),
            (false, Some(ratio)) => format!(
                "By the model, no mode holds the limits at these loads; {}, the present one, is at {} of a limit.",
                plan.present,
                words::of_limit(ratio)
            ),
        };
    }
    let polls: Vec<String> = best.iter().filter(|mode| mode.polls_at_any_load()).map(ToString::to_string).collect();
    let polls = match polls.len() {
        0 => String::new(),
        count => format!(
            "{} {} a whole CPU per worker or queue at any load.\n",
            polls.join(" and "),
            agree(&count, "uses", "use")
        ),
    };
    let names: Vec<String> = std::iter::once(&plan.present).chain(&best).map(ToString::to_string).collect();
    format!("{polls}next: measure them where the server runs: quell bench {programs} --modes {}", names.join(","))
}

fn unit(metric: &TuneMetric) -> String {
    match metric {
        TuneMetric::Latency { .. } => format!("{metric} µs"),
        TuneMetric::Cpu => "CPU µs/request".to_owned(),
        TuneMetric::Requests => "requests/s".to_owned(),
        _ => metric.to_string(),
    }
}

#[must_use]
pub(crate) fn render(file: &TuneFile, with_details: bool) -> String {
    let TuneFile { search: result, left_alone, .. } = file;
    let plan = &result.plan;
    let mut out = match &file.not_a_measurement {
        Some(why) => format!("NOT A MEASUREMENT: {}\n", visible::name(why)),
        None => String::new(),
    };
    out.push_str(&format!(
        "{}\n{}{}\n",
        experiment::subject(&file.subject, &file.host),
        answer(result, left_alone),
        others(&words::rivals(result))
    ));
    out.push_str(&format!(
        "goal: {}; {:.0} s of slices at {}; seed {}\n",
        visible::name(&plan.goal.to_string()),
        result.spent_ms / 1e3,
        visible::name(&plan.loads.join(", ")),
        plan.seed
    ));
    out.push_str(&preferred(result));
    out.push_str(&format!(
        "\nSearch: {} relative to {}, the present setting; the first slices only rank, they prove nothing.\n\n{}",
        plan.goal.objective,
        plan.name(plan.present),
        searched(result)
    ));
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
    tried.sort_by(|a, b| is_alive(b).cmp(&is_alive(a)).then(worst_ratio(a).total_cmp(&worst_ratio(b))));
    let mut out = arm_table(&result.plan, tried.iter().take(TRIED).copied(), true) + "\n";
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

fn answer(result: &TuneResult, left_alone: &[String]) -> String {
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
            "{mode} is better than {present}; confirmed on fresh slices, with 95 % confidence:\n{}{}",
            against(gain, &present),
            against(against_base, &base)
        ),
        TuneAnswer::HoldsLimits { mode, gain, against_base } => format!(
            "{mode} holds all limits, and {present} does not, on fresh slices; intervals have 95 % confidence:\n{}{}",
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
            let compared = if left.is_empty() { "" } else { " that could be compared" };
            let refuted = others(&words::refuted(result));
            format!("no setting{compared} is better here than {present}, the present one\n{misses}{left}{refuted}")
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
    use quell_mode::DeliveryMode;
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
    fn advice_says_how_many_modes_are_shown_and_which_kinds_are_not_possible() {
        let refused = RefusedMode { kind: "suspend".to_owned(), reason: "needs Linux 6.13".to_owned() };
        let space = TuneSpace { refused: vec![refused] };
        let plan = TunePlan { space: Some(space), ..without_better(Vec::new()).plan };
        let mode = |at: usize| match at {
            0 => DeliveryMode::default(),
            at => format!("defer{at}").parse().unwrap_or_else(|why| panic!("{why}")),
        };
        let ranked = |limit_ratio| {
            let one = |at: usize| {
                let cost = if at == 0 { 9.0 } else { at as f64 / 10.0 };
                RankedMode { mode: mode(at), objective: vec![Some(cost)], limit_ratio, cost }
            };
            (1..20).chain([0]).map(one).collect::<Vec<_>>()
        };
        let text = advice("a host", &plan, &ranked(None), "--pid 1").replace("\n  ", " ");
        assert!(text.starts_with("20 modes ranked by"), "{text}");
        assert!(text.contains("the best 12 and base are shown, --json lists all"), "{text}");
        assert!(text.contains("not possible here: suspend (needs Linux 6.13)\n"), "{text}");
        let mut one_unknown = ranked(Some(0.5));
        one_unknown[3].limit_ratio = Some(f64::INFINITY);
        let text = advice("a host", &plan, &one_unknown, "--pid 1").replace("\n  ", " ");
        assert!(text.contains("; 1 has too few requests in a slice"), "{text}");
    }

    #[test]
    fn suspension_is_measured_first_and_modes_that_poll_at_any_load_last_or_not_at_all() {
        let mode = |text: &str| text.parse::<DeliveryMode>().unwrap_or_else(|why| panic!("{why}"));
        let one = |text: &str| RankedMode { mode: mode(text), objective: Vec::new(), limit_ratio: None, cost: 1.0 };
        let ranked = ["fullbusy", "suspend50", "suspend20", "base", "defer100", "threadedbusy"].map(one);
        let next = |goal: &str| {
            let goal = goal.parse().unwrap_or_else(|why| panic!("{why}"));
            let plan = TunePlan { goal, ..without_better(Vec::new()).plan };
            worth_measuring(&plan, &ranked, "--pid 1")
        };
        let lowest = next("lowest p99");
        assert!(lowest.ends_with("--modes base,suspend50,defer100,fullbusy"), "{lowest}");
        assert!(lowest.starts_with("fullbusy uses a whole CPU"), "{lowest}");
        assert!(next("least cpu").ends_with("--modes base,suspend50,defer100"), "{}", next("least cpu"));
    }

    #[test]
    fn the_advice_does_not_claim_that_the_present_mode_holds_limits_that_all_modes_miss() {
        let mode = |text: &str| text.parse::<DeliveryMode>().unwrap_or_else(|why| panic!("{why}"));
        let plan = TunePlan { present: mode("threaded"), ..without_better(Vec::new()).plan };
        let said = |present: f64, other: f64| {
            let one = |text: &str, ratio| RankedMode {
                mode: mode(text),
                objective: Vec::new(),
                limit_ratio: Some(ratio),
                cost: 1.0,
            };
            worth_measuring(&plan, &[one("suspend20", other), one("threaded", present)], "--pid 1")
        };
        assert!(said(3.96, 4.5).ends_with("; threaded, the present one, is at ×3.96 of a limit."));
        assert_eq!(said(f64::INFINITY, 4.5), "The model knows no mode that holds the limits at these loads.");
        assert_eq!(said(0.5, 4.5), "The model knows no other mode that is worth measuring at these loads.");
    }

    #[test]
    fn base_is_named_with_the_mode_that_it_leaves_set() {
        let mut result = without_better(vec![ArmState::Alive]);
        result.plan.base_is = Some("threaded".parse().unwrap_or_else(|why| panic!("{why}")));
        assert!(plan(&result.plan, "").contains("base (threaded), the present setting"), "{}", plan(&result.plan, ""));
        assert!(answer(&result, &[]).contains("than base (threaded), the present one"), "{}", answer(&result, &[]));
        assert!(searched(&result).contains("base (threaded) "), "{}", searched(&result));
    }

    #[test]
    fn a_mode_that_a_guard_excluded_is_not_said_to_be_no_better() {
        let guard = |guard: &str| ArmState::ViolatedGuard { guard: guard.to_owned() };
        let worse = || ArmState::Worse { than: DeliveryMode::default() };
        let none = "no setting is better here than base, the present one\n";
        assert_eq!(answer(&without_better(vec![worse(), worse()]), &[]), none);
        assert_eq!(
            answer(&without_better(vec![guard("drops>10"), worse()]), &[]),
            "no setting that could be compared is better here than base, the present one\n  1 mode was abandoned after \
             the first slice that violated drops>10\n"
        );
        let all = answer(&without_better(vec![guard("drops>10"), guard("drops>10"), guard("p99>1ms")]), &[]);
        assert!(all.contains("  2 modes were abandoned") && all.contains("  1 mode was abandoned"), "{all}");
    }
}
