//! The ranking of `quell tune --advise`: the answer, a table, and the command that measures the best modes.

use quell_linux::shell;
use quell_linux::visible::{self, agree, counted};
use quell_mode::DeliveryMode;
use quell_report::words;
use quell_tune::{RUNS, RankedMode, RunRange, TuneGoal, TuneMetric, TunePlan, WhyNotMeasured, WorthMeasuring};

use super::number::ABSENT;
use super::terminal::Terminal;
use super::tune::{OF_THE_LIMIT, skipped};
use quell_cli::table::Grid;

/// Number of modes that the table has, besides `base` and the present setting.
const ADVISED: usize = 12;

#[must_use]
pub(crate) fn advice(host: &str, plan: &TunePlan, ranked: &[RankedMode], programs: &str) -> String {
    let is_compared = |mode: &RankedMode| mode.mode == plan.present || mode.mode == DeliveryMode::default();
    let rest = ranked.iter().skip(ADVISED).filter(|mode| is_compared(mode));
    let shown: Vec<&RankedMode> = ranked.iter().take(ADVISED).chain(rest).collect();
    let fill = |text: &str| Terminal::of_stdout().fill(text, "", "  ") + "\n";
    let missed = closest(plan, ranked).map_or_else(String::new, |text| fill(&text));
    let skipped = skipped(plan).map_or_else(String::new, |skipped| {
        format!("\n{}", fill(&format!("not possible here: {}", visible::name(&skipped))))
    });
    let same = match ranked.iter().any(|one| ranked.iter().filter(|other| other.rank == one.rank).count() > 1) {
        true => format!("Modes of one rank are the same within the model's spread: the range of {RUNS} seeds.\n"),
        false => String::new(),
    };
    let of_the_limit = match plan.goal.limits.is_empty() {
        true => String::new(),
        false => format!("\n{}", fill(OF_THE_LIMIT)),
    };
    format!(
        "{missed}{}\n{}{of_the_limit}{skipped}\n{same}\
         The constants of the model are those of that host, not of this machine. Nothing was measured here.\n\
         The order shows what is worth trying first. It does not show what is best on this machine.\n\
         {}\n",
        fill(&ranked_by(host, plan, ranked, &shown)),
        table(plan, &shown),
        next(plan, ranked, programs),
    )
}

/// The lowest reachable value of the limited quantity, if no mode holds the limits and the model can judge them.
fn closest(plan: &TunePlan, ranked: &[RankedMode]) -> Option<String> {
    let first_rank = ranked.first().filter(|first| !first.meets_limits())?.rank;
    let known = |one: &RankedMode| Some((one.limit_ratio.filter(|range| !range.is_unknown())?, one.mode));
    let of_first_rank: Vec<(RunRange, DeliveryMode)> =
        ranked.iter().filter(|one| one.rank == first_rank).filter_map(known).collect();
    let (range, mode) = *of_first_rank.iter().min_by(|(a, _), (b, _)| a.median.total_cmp(&b.median))?;
    let limits: Vec<String> = plan.goal.limits.iter().map(ToString::to_string).collect();
    let (lowest, of) = match &plan.goal.limits[..] {
        [limit] if !limit.relative => (format!("the lowest {}", limit.metric), ""),
        _ => ("the closest".to_owned(), " of a limit"),
    };
    let value = |ratio: f64| match &plan.goal.limits[..] {
        [limit] if !limit.relative => quantity(&limit.metric, ratio * limit.at_most),
        _ => words::of_limit(ratio),
    };
    let others = match of_first_rank.len() - 1 {
        0 => String::new(),
        count => format!("; {} the same within this range", counted(count, "mode") + agree(&count, " is", " are")),
    };
    Some(format!(
        "No mode holds {} at {} on the model: {lowest} is {}{of} ({} to {} with {RUNS} seeds), with {}{others}.",
        visible::name(&limits.join(", ")),
        visible::name(&plan.loads.join(", ")),
        value(range.median),
        value(range.lowest),
        value(range.highest),
        plan.name(mode),
    ))
}

fn ranked_by(host: &str, plan: &TunePlan, ranked: &[RankedMode], shown: &[&RankedMode]) -> String {
    let is_unknown = |mode: &&RankedMode| mode.limit_ratio.is_some_and(|range| range.is_unknown());
    let unknown = ranked.iter().filter(is_unknown).count();
    let misses = ranked.iter().filter(|mode| !mode.meets_limits()).count() - unknown;
    let none_holds = misses + unknown == ranked.len();
    let missed = match misses {
        0 => String::new(),
        _ if none_holds => ", by how far they miss a limit".to_owned(),
        count => {
            let are = agree(&count, "misses a limit and is", "miss a limit and are");
            format!("; {count} {are} ranked after the others")
        }
    };
    let unknown = match unknown {
        0 => String::new(),
        count => {
            let have = agree(&count, "has", "have");
            format!("; {count} {have} too few requests in a slice to judge a limit (--slice)")
        }
    };
    let rest = shown.iter().skip(ADVISED).map(|mode| format!(" and {}", mode.mode)).collect::<String>();
    let all = match ranked.len() - shown.len() {
        0 => String::new(),
        _ => format!("; the best {ADVISED}{rest} are shown, --json lists all"),
    };
    format!(
        "{} ranked by the model of {} for {}{missed}{unknown}{all}:",
        counted(ranked.len(), "mode"),
        visible::name(host),
        visible::name(&plan.goal.to_string()),
    )
}

fn table(plan: &TunePlan, shown: &[&RankedMode]) -> String {
    let heading = plan.loads.iter().map(|load| format!("{} at {}", unit(&plan.goal.objective), visible::name(load)));
    let limit = (!plan.goal.limits.is_empty()).then(|| "of the limit".to_owned());
    let mut table = Grid::new(["mode", "rank"].map(str::to_owned).into_iter().chain(heading).chain(limit), 1);
    for mode in shown {
        let objective =
            mode.objective.iter().map(|value| value.map_or(ABSENT.to_owned(), |value| format!("{value:.2}")));
        let limit = mode.limit_ratio.map(|range| words::of_limit(range.median));
        let is_present = mode.mode == plan.present && plan.present != DeliveryMode::default();
        let name = format!("{}{}", plan.name(mode.mode), if is_present { " (present)" } else { "" });
        table.push([name, mode.rank.to_string()].into_iter().chain(objective).chain(limit));
    }
    table.render(Terminal::of_stdout())
}

/// The command that measures what is worth it, what it leaves out, and the way out if no mode holds the limits.
fn next(plan: &TunePlan, ranked: &[RankedMode], programs: &str) -> String {
    let WorthMeasuring { modes, left_out } = plan.worth_measuring(ranked);
    let left_out: Vec<String> = left_out
        .into_iter()
        .map(|(mode, why)| match why {
            WhyNotMeasured::NeedsLaunch => format!("{mode} (only `quell run` can set it)"),
            WhyNotMeasured::PollsAtAnyLoad => {
                format!("{mode} (up to a whole CPU per worker or queue, also at low load)")
            }
        })
        .collect();
    let left_out = match left_out.is_empty() {
        true => String::new(),
        false => format!("Left out below: {}.\n", left_out.join(", ")),
    };
    let looser = looser_goal(plan, ranked);
    if modes.is_empty() {
        let none = match ranked.iter().any(RankedMode::meets_limits) {
            true => "The model knows no other mode that is worth measuring at these loads.",
            false if looser.is_some() => "The model knows no other mode to measure at these loads.",
            false => "The model knows no mode that holds the limits at these loads.",
        };
        return left_out + none;
    }
    let polls: Vec<String> = modes.iter().filter(|mode| mode.polls_at_any_load()).map(ToString::to_string).collect();
    let polls = match polls.len() {
        0 => String::new(),
        count => {
            let use_up = agree(&count, "uses", "use");
            format!("{} {use_up} up to a whole CPU per worker or queue, also at low load.\n", polls.join(" and "))
        }
    };
    let names: Vec<String> = std::iter::once(&plan.present).chain(&modes).map(ToString::to_string).collect();
    let them = if looser.is_some() { "the closest modes" } else { "them" };
    let looser =
        looser.map_or_else(String::new, |goal| format!("\nor ask for less: --goal {}", shell::word(&goal.to_string())));
    let (compares, judge) = match names_latency(&plan.goal) {
        true => ("; COMMAND measures latency (docs/bench.md)", " --latency COMMAND"),
        false => ("", ""),
    };
    format!(
        "{left_out}{polls}next: measure {them} where the server runs{compares}:\n  quell bench {programs} --modes \
         {}{judge}{looser}",
        names.join(",")
    )
}

fn names_latency(goal: &TuneGoal) -> bool {
    let metrics = goal.limits.iter().map(|limit| &limit.metric);
    metrics.chain([&goal.objective]).any(|metric| matches!(metric, TuneMetric::Latency { .. }))
}

/// The goal with limits that the closest mode holds on the model, if no mode holds the present ones.
fn looser_goal(plan: &TunePlan, ranked: &[RankedMode]) -> Option<TuneGoal> {
    let first = ranked.first().filter(|first| !first.meets_limits())?;
    let range = first.limit_ratio.filter(|range| !range.is_unknown())?;
    let mut goal = plan.goal.clone();
    goal.limits.iter_mut().for_each(|limit| limit.at_most = rounded_up(limit.at_most * range.highest));
    Some(goal)
}

/// The next number with two digits.
fn rounded_up(value: f64) -> f64 {
    let digits = 1 - value.log10().floor() as i32;
    let factor = 10_f64.powi(digits.abs());
    if digits < 0 { (value / factor).ceil() * factor } else { (value * factor).ceil() / factor }
}

fn quantity(metric: &TuneMetric, value: f64) -> String {
    match metric {
        TuneMetric::Latency { .. } => format!("{value:.0} µs"),
        TuneMetric::Cpu => format!("{value:.2} µs/request"),
        _ => format!("{value:.2}"),
    }
}

fn unit(metric: &TuneMetric) -> String {
    match metric {
        TuneMetric::Latency { .. } => format!("{metric} µs"),
        TuneMetric::Cpu => "CPU µs/request".to_owned(),
        TuneMetric::Requests => "requests/s".to_owned(),
        _ => metric.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_tune::{RefusedMode, TuneSpace};

    fn mode(text: &str) -> DeliveryMode {
        text.parse().unwrap_or_else(|why| panic!("{why}"))
    }

    fn plan(goal: &str) -> TunePlan {
        let goal = goal.parse().unwrap_or_else(|why| panic!("{why}"));
        TunePlan::new(goal, DeliveryMode::default(), TuneSpace::default(), 1)
    }

    fn one(text: &str, rank: usize, limit_ratio: Option<f64>) -> RankedMode {
        let range = |value: f64| RunRange { lowest: value * 0.9, median: value, highest: value * 1.1 };
        RankedMode {
            mode: mode(text),
            rank,
            objective: vec![Some(1.0)],
            limit_ratio: limit_ratio.map(range),
            cost: range(1.0),
        }
    }

    #[test]
    fn advice_says_how_many_modes_are_shown_and_which_kinds_are_not_possible() {
        let refused = RefusedMode { kind: "suspend".to_owned(), reason: "needs Linux 6.13".to_owned() };
        let plan = TunePlan { space: Some(TuneSpace { refused: vec![refused] }), ..plan("least cpu") };
        let ranked = |limit_ratio| {
            let defer = (1..20).map(|at| one(&format!("defer{at}"), at, limit_ratio));
            defer.chain([one("base", 20, limit_ratio)]).collect::<Vec<_>>()
        };
        let text = advice("a host", &plan, &ranked(None), "--pid 1").replace("\n  ", " ");
        assert!(text.starts_with("20 modes ranked by"), "{text}");
        assert!(text.contains("the best 12 and base are shown, --json lists all"), "{text}");
        assert!(text.contains("not possible here: suspend (needs Linux 6.13)\n"), "{text}");
        assert!(!text.contains("the same within"), "{text}");
        let mut one_unknown = ranked(Some(0.5));
        one_unknown[3].limit_ratio = RunRange::of([f64::INFINITY]);
        let text = advice("a host", &plan, &one_unknown, "--pid 1").replace("\n  ", " ");
        assert!(text.contains("; 1 has too few requests in a slice"), "{text}");
    }

    #[test]
    fn the_modes_of_the_best_rank_are_measured_and_none_that_is_ranked_after_the_present_one() {
        let ranked = [
            one("fullbusy", 1, None),
            one("suspend50", 2, None),
            one("suspend20", 3, None),
            one("eventspin20", 3, None),
            one("defer100", 3, None),
            one("base", 6, None),
            one("threaded", 7, None),
        ];
        let lowest = next(&plan("lowest p99"), &ranked, "--pid 1");
        assert!(
            lowest.ends_with("\n  quell bench --pid 1 --modes base,fullbusy,suspend50,defer100 --latency COMMAND"),
            "{lowest}"
        );
        assert!(lowest.contains("COMMAND measures latency"), "{lowest}");
        assert!(lowest.contains("fullbusy uses up to a whole CPU"), "{lowest}");
        assert!(lowest.starts_with("Left out below: eventspin20 (only `quell run` can set it).\n"), "{lowest}");
        let least = next(&plan("least cpu"), &ranked, "--pid 1");
        assert!(least.ends_with(" --modes base,suspend50,defer100"), "{least}");
        assert!(
            least.starts_with("Left out below: fullbusy (up to a whole CPU per worker or queue, also at low load)"),
            "{least}"
        );
        let none = next(&plan("lowest p99"), &ranked[5..], "--pid 1");
        assert_eq!(none, "The model knows no other mode that is worth measuring at these loads.");
    }

    #[test]
    fn if_no_mode_holds_the_limit_the_first_line_says_what_is_reachable_and_the_last_ones_what_to_do() {
        let plan = plan("p99<=300us, least cpu");
        let ranked = [one("suspend10", 1, Some(1.4)), one("fullbusy", 1, Some(1.5)), one("base", 3, Some(2.5))];
        let text = advice("a host", &plan, &ranked, "--pid 1").replace("\n  ", " ");
        assert!(
            text.starts_with(
                "No mode holds p99<=300us at present on the model: the lowest p99 is 420 µs (378 µs to 462 µs with 3 seeds), \
                 with suspend10; 1 mode is the same within this range.\n3 modes ranked by the model of a host for p99<=300us, \
                 least cpu, by how far they miss a limit:"
            ),
            "{text}"
        );
        assert!(text.contains("Modes of one rank are the same within the model's spread"), "{text}");
        assert!(text.contains("quell bench --pid 1 --modes base,suspend10,fullbusy --latency COMMAND\n"), "{text}");
        assert!(text.ends_with("or ask for less: --goal 'p99<=470us, least cpu'\n"), "{text}");
    }

    #[test]
    fn limits_that_the_model_cannot_judge_have_no_reachable_value() {
        let plan = plan("p99<=300us, least cpu");
        let text = advice("a host", &plan, &[one("base", 1, Some(f64::INFINITY))], "--pid 1");
        assert!(text.starts_with("1 mode ranked by"), "{text}");
        assert!(text.ends_with("The model knows no mode that holds the limits at these loads.\n"), "{text}");
    }

    #[test]
    fn a_looser_limit_has_two_digits() {
        for (value, rounded) in [(462.0, 470.0), (0.123, 0.13), (1.0, 1.0), (9.91, 10.0), (12_345.0, 13_000.0)] {
            assert!((rounded_up(value) - rounded).abs() < 1e-9, "{value}: {}", rounded_up(value));
        }
    }
}
