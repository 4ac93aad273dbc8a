//! The line "so what" of a measurement or search as a sentence.

use quell_cli::number;
use quell_host::findings::time_text;
use quell_linux::visible::{self, agree, counted};
use quell_result::conclusion::{
    Conclusion, EstimatedGain, LoadRange, LoadSplit, OpenGain, QuantityChange, UndecidedCost, WhyKeep, WhyLonger,
    WorseMode,
};
use quell_tune::TuneEnd;

use super::{ALL_LOADS, advice, change, changes, quantity, range, search_end, undecided_costs};

/// The conclusion as a sentence without a full stop. `left_alone` are settings that a search did not restore.
#[must_use]
pub fn conclusion(conclusion: &Conclusion, left_alone: &[String]) -> String {
    match conclusion {
        Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients } => {
            let delay = conclusion.unmeasured_delay_ns().map(time_text);
            let unmeasured = match (*without_clients, conclusion.is_of_search(), &delay) {
                (false, ..) => "",
                (true, true, _) => LATENCY_NOT_IN_GOAL,
                (true, false, None) => LATENCY_UNMEASURED,
                (true, false, Some(delay)) => &format!(
                    "; latency was not measured, and the timer of {mode} can delay packets by up to {delay}: measure it \
                     (--latency) before you use {mode}"
                ),
            };
            let verb = match (&delay, conclusion.holds_for_its_goal_only()) {
                (Some(_), _) => "",
                (None, true) => "if nothing but this goal counts, use ",
                (None, false) => "use ",
            };
            let listed = |what: &str, list: String| if list.is_empty() { list } else { format!("{what}{list}") };
            let everywhere = if split.is_some() { "" } else { ALL_LOADS };
            let worse = listed("; worse: ", changes(costs, everywhere));
            let open = listed("; undecided: ", undecided_costs(undecided));
            if let Some(LoadSplit { pays, costs, there }) = split {
                let (saved, there) = (changes(saves, everywhere), changes(there, everywhere));
                return format!(
                    "{verb}{mode} {}: {saved}{worse}{open}; {} keep {instead_of} ({there}){unmeasured}",
                    range(pays),
                    range(costs)
                );
            }
            let better = listed(": ", changes(saves, everywhere));
            let no_cost = match costs.is_empty() && undecided.is_empty() {
                true if conclusion.is_of_search() && !without_clients => "; nothing in the goal got worse",
                true if !without_clients => "; no cost was measured",
                _ => unmeasured,
            };
            let limits =
                if *holds_limits { format!("; holds the limits, {instead_of} does not") } else { String::new() };
            format!("{verb}{mode} instead of {instead_of}{better}{worse}{open}{no_cost}{limits}")
        }
        Conclusion::Keep { mode, because, open, budget_ms, without_clients } => {
            let unmeasured = if *without_clients { LATENCY_UNMEASURED } else { "" };
            let condition = match because {
                WhyKeep::NotBeaten { .. } => "",
                _ if open.iter().all(|gain| gain.quantity.is_latency()) => "if latency is what you lack, ",
                _ => "if that is what you lack, ",
            };
            let longer = match budget_ms {
                Some(_) => format!(": {condition}measure longer"),
                None if matches!(because, WhyKeep::NotBeaten { .. }) => " and takes too long to decide".to_owned(),
                None => " after a long measurement".to_owned(),
            };
            let why = why_keep(because, open.is_empty());
            let open = open_gains(open).map(|open| format!("; {open}{longer}"));
            format!("keep {mode}{why}{unmeasured}{}", open.unwrap_or_default())
        }
        Conclusion::MeasureLonger { because, worse, open, .. } => why_longer(because, left_alone) + &known(worse, open),
        Conclusion::NotDecidable { mode, within_ms, because, worse, open } => {
            let (within, why) = (advice::budget(*within_ms), why_not_decidable(because, left_alone));
            format!("keep {mode}: not decidable here within {within}, because {why}{}", known(worse, open))
        }
    }
}

/// What is decided nevertheless, and what may be gained, each after a semicolon.
fn known(worse: &[WorseMode], open: &[OpenGain]) -> String {
    let open: Vec<OpenGain> = open.iter().filter(|gain| gain.best.is_some()).cloned().collect();
    let known = worse.iter().take(NAMED).map(worse_mode).chain(open_gains(&open));
    known.map(|known| format!("; {known}")).collect()
}

/// `unless p99 −88 % under suspend200 is worth cpu +55 %`.
pub(super) fn trade_off(
    mode: &str,
    saves: &[QuantityChange],
    costs: &[QuantityChange],
    undecided: &[UndecidedCost],
) -> String {
    let (saved, cost) = (changes(saves, ALL_LOADS), changes(costs, ALL_LOADS));
    let open = match undecided_costs(undecided) {
        open if open.is_empty() => open,
        open => format!(", and perhaps {open}"),
    };
    format!("unless {saved} under {} is worth {cost}{open}", visible::name(mode))
}

fn why_not_decidable(because: &WhyLonger, left_alone: &[String]) -> String {
    match because {
        WhyLonger::Unsteady => "something else changed between the slices".to_owned(),
        WhyLonger::TooFewBlocks { disturbed } => format!("too few blocks are left: {disturbed} were disturbed"),
        WhyLonger::TooFewRequests { .. } => "too few requests were measured".to_owned(),
        WhyLonger::TooWide => "the slices vary more than the modes differ".to_owned(),
        WhyLonger::Search(TuneEnd::BudgetSpent) => {
            "that is too short to compare a mode with the present setting on fresh slices".to_owned()
        }
        WhyLonger::Incomplete
        | WhyLonger::OtherPrograms { .. }
        | WhyLonger::NotSteered
        | WhyLonger::NotTheirs
        | WhyLonger::Search(_) => why_longer(because, left_alone),
    }
}

fn why_longer(because: &WhyLonger, left_alone: &[String]) -> String {
    match because {
        WhyLonger::Incomplete => "no answer: the measurement is incomplete".to_owned(),
        WhyLonger::Unsteady => {
            "measure longer, or under a steadier load, because something else changed between the slices".to_owned()
        }
        WhyLonger::TooFewBlocks { disturbed: 0 } => "measure longer, because too few blocks were measured".to_owned(),
        WhyLonger::TooFewBlocks { disturbed } => {
            format!("measure longer, because too few blocks were measured: {disturbed} more were disturbed")
        }
        WhyLonger::TooFewRequests { closed_loop: false } => {
            "measure longer, or under more load, because too little was measured".to_owned()
        }
        WhyLonger::TooFewRequests { closed_loop: true } => {
            "measure longer, because too few requests were measured, although the clients sent all they could"
                .to_owned()
        }
        WhyLonger::OtherPrograms { latency_helps } => {
            let latency = if *latency_helps { ", or compare latencies (--latency)" } else { "" };
            format!(
                "not decidable while other programs use most of the busy time of the server's CPUs: run clients, --load and \
                 --latency on another machine, end the others, or give the server CPUs of its own; then measure again{latency}"
            )
        }
        WhyLonger::NotSteered => format!("no answer for steered connections, because {NOT_STEERED}"),
        WhyLonger::NotTheirs => {
            "no answer: what was measured was not for these programs, which used less than 1 µs of CPU time for each packet \
             or request: measure while clients send requests to them, and with a judge that measures them"
                .to_owned()
        }
        WhyLonger::TooWide => "measure longer, because the slices vary more than the modes differ".to_owned(),
        WhyLonger::Search(end) => format!("no answer: {}", search_end(end, left_alone)),
    }
}

/// Why connections that were to be steered were not.
pub const NOT_STEERED: &str = "the measured ones are from before the filter, or came to another queue after timeouts \
     (TcpTimeoutRehash in `nstat` of the clients), and stay until the clients reconnect";

/// Number of modes, and of quantities, that a sentence names.
const NAMED: usize = 3;

/// `suspend20 costs CPU/packet ×6.04`.
pub(crate) fn worse_mode(WorseMode { mode, costs }: &WorseMode) -> String {
    format!("{} costs {}", visible::name(mode), changes(costs, ALL_LOADS))
}

/// `p99-us (suspend20 −40 %) and p50-us are undecided`. `None` without any.
fn open_gains(open: &[OpenGain]) -> Option<String> {
    let one = |OpenGain { quantity: of, best }: &OpenGain| {
        let estimate = |EstimatedGain { mode, ratio, load }: &EstimatedGain| {
            let load = load.map_or_else(String::new, |load| format!(" {}", range(&LoadRange::At(vec![load]))));
            format!(" ({} {}{load})", visible::name(mode), change(*ratio))
        };
        quantity(of) + &best.as_ref().map(estimate).unwrap_or_default()
    };
    let mut named: Vec<String> = open.iter().take(NAMED).map(one).collect();
    if open.len() > NAMED {
        named.push(counted(open.len() - NAMED, "other quantity"));
    }
    let (last, others) = named.split_last()?;
    Some(match others {
        [] => format!("{last} is undecided"),
        others => format!("{} and {last} are undecided", others.join(", ")),
    })
}

const LATENCY_UNMEASURED: &str = "; latency was not measured (--latency)";
const LATENCY_NOT_IN_GOAL: &str =
    "; latency is not in the goal and can be worse (a limit: p99<=1.1x; programs and commands need --latency for it)";

/// Follows the name of the mode that is kept. `is_decided`: no other one may be better.
fn why_keep(because: &WhyKeep, is_decided: bool) -> String {
    match because {
        WhyKeep::NothingToGain { margin, busy } => {
            let busy =
                busy.filter(|busy| busy.is_finite()).map(|busy| format!("; its CPUs are {:.0} % busy", busy * 100.0));
            format!(
                ", because there is nothing to gain at this load: no mode is better by more than {} %{}",
                number::plain(margin * 100.0),
                busy.unwrap_or_default()
            )
        }
        WhyKeep::OthersAreWorse { modes, latency_withheld } => {
            let withheld = match latency_withheld {
                true => {
                    "; latency was not compared, because other programs used most of the server's CPUs: measure latency \
                     when the CPUs are free"
                }
                false => "",
            };
            every_other_is_worse(modes) + withheld
        }
        WhyKeep::SeriousFinding { mode, saves, finding } => format!(
            ", because {}, which saves {}, causes a serious finding: {finding} (`quell doctor --explain {finding}`)",
            visible::name(mode),
            changes(saves, ALL_LOADS)
        ),
        WhyKeep::TradeOff { mode, saves, costs, undecided } => {
            format!(", {}", trade_off(mode, saves, costs, undecided))
        }
        WhyKeep::PlacementCosts { options, mode, saves, costs } => {
            let options = visible::name(options);
            let placed = format!("{mode} with {options}");
            let unless = match saves.is_empty() {
                true => format!("{placed} costs {}", changes(costs, ALL_LOADS)),
                false => trade_off(&placed, saves, costs, &[]),
            };
            format!(" without {options}: {unless}")
        }
        WhyKeep::NotBeaten { failed: 0, left: 0 } if is_decided => ", because no other mode is better".to_owned(),
        WhyKeep::NotBeaten { failed: 0, left } if is_decided => format!(
            ", because the search found no better mode; {} that it did not exclude {} not tried, or not compared on fresh \
             slices",
            counted(*left, "mode"),
            agree(left, "was", "were")
        ),
        WhyKeep::NotBeaten { failed: 0, .. } => ", because the search confirmed no better mode".to_owned(),
        WhyKeep::NotBeaten { failed, .. } => format!(
            ", because the search {} no better mode among those that it could measure; {} failed, as shown above",
            if is_decided { "found" } else { "confirmed" },
            counted(*failed, "mode")
        ),
    }
}

fn every_other_is_worse(modes: &[WorseMode]) -> String {
    if let [one] = modes {
        return format!(": {}", worse_mode(one));
    }
    let mut by: Vec<String> = Vec::new();
    for name in modes.iter().flat_map(|one| &one.costs).map(|change| quantity(&change.quantity)) {
        if !by.contains(&name) {
            by.push(name);
        }
    }
    format!(", because every other mode is worse by {}", by.join(" or "))
}

#[cfg(test)]
mod tests {
    use quell_experiment::Criterion;
    use quell_load::OfferedLoad;
    use quell_mode::DeliveryMode;
    use quell_result::conclusion::{Quantity, QuantityChange};
    use quell_tune::TuneMetric;

    use super::*;

    fn cpu(ratio: f64, load: OfferedLoad) -> QuantityChange {
        let quantity = Quantity::Metric(TuneMetric::Cpu);
        QuantityChange { quantity, low: ratio, high: ratio, loads: vec![load], is_everywhere: true }
    }

    fn used(saves: QuantityChange, costs: Option<QuantityChange>, split: Option<LoadSplit>) -> String {
        let (mode, instead_of) = ("suspend20".parse().unwrap(), "base".parse().unwrap());
        let (saves, costs, undecided) = (vec![saves], costs.into_iter().collect(), Vec::new());
        let (holds_limits, without_clients) = (false, false);
        conclusion(
            &Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients },
            &[],
        )
    }

    #[test]
    fn a_search_that_decided_to_keep_the_present_mode_differs_from_one_that_decided_nothing() {
        let said_with = |left, open: &[f64], budget_ms| {
            let gain = |ratio: &f64| OpenGain {
                quantity: Quantity::Metric(TuneMetric::Cpu),
                best: Some(EstimatedGain { mode: "suspend40".to_owned(), ratio: *ratio, load: None }),
            };
            let open = open.iter().map(gain).collect();
            let (mode, because) = (quell_mode::DeliveryMode::default(), WhyKeep::NotBeaten { failed: 0, left });
            conclusion(&Conclusion::Keep { mode, because, open, budget_ms, without_clients: false }, &[])
        };
        let said = |open: &[f64], budget_ms| said_with(0, open, budget_ms);
        let untried = "keep base, because the search found no better mode; 2 modes that it did not exclude were not \
                       tried, or not compared on fresh slices";
        assert_eq!(said_with(2, &[], None), untried);
        assert_eq!(said(&[], None), "keep base, because no other mode is better");
        let undecided = "keep base, because the search confirmed no better mode; cpu (suspend40 −12 %) is undecided";
        assert_eq!(said(&[0.88], Some(100_000)), format!("{undecided}: measure longer"));
        assert_eq!(said(&[0.88], None), format!("{undecided} and takes too long to decide"));
    }

    #[test]
    fn a_mode_that_is_not_worth_its_filters_and_pins_is_not_to_be_used_with_them() {
        let mode: DeliveryMode = "suspend160".parse().unwrap();
        let (saved, cost) = (vec![cpu(0.5, OfferedLoad::Max)], vec![cpu(3.1, OfferedLoad::Max)]);
        let kept = |because| {
            let (open, budget_ms, without_clients) = (Vec::new(), None, false);
            let mode = DeliveryMode::default();
            conclusion(&Conclusion::Keep { mode, because, open, budget_ms, without_clients }, &[])
        };
        let placed = |saves| {
            let options = "--steer --pin".to_owned();
            kept(WhyKeep::PlacementCosts { options, mode, saves, costs: cost.clone() })
        };
        let without = "keep base without --steer --pin:";
        assert_eq!(placed(Vec::new()), format!("{without} suspend160 with --steer --pin costs cpu ×3.10"));
        let unless = "unless cpu −50 % under suspend160 with --steer --pin is worth cpu ×3.10";
        assert_eq!(placed(saved.clone()), format!("{without} {unless}"));
        let quantity = Quantity::Criterion(Criterion::Latency { quantile: 0.5 });
        let undecided = vec![UndecidedCost { quantity, ratio: Some(2.72), load: None }];
        let (mode, costs) = (mode.to_string(), cost.clone());
        assert!(
            kept(WhyKeep::TradeOff { mode, saves: saved, costs, undecided })
                .ends_with("under suspend160 is worth cpu ×3.10, and perhaps p50 ×2.72")
        );
    }

    #[test]
    fn a_conclusion_without_latency_says_so_and_names_what_was_compared() {
        let mode: quell_mode::DeliveryMode = "base".parse().unwrap();
        let kept = |because, without_clients| {
            conclusion(&Conclusion::Keep { mode, because, open: Vec::new(), budget_ms: None, without_clients }, &[])
        };
        let modes = ["suspend20", "fullbusy"].map(worse_by_cpu).to_vec();
        assert_eq!(
            kept(WhyKeep::OthersAreWorse { modes, latency_withheld: false }, true),
            "keep base, because every other mode is worse by cpu; latency was not measured (--latency)"
        );
        let equal = WhyKeep::NothingToGain { margin: 0.05, busy: None };
        assert!(kept(equal.clone(), true).ends_with("5 %; latency was not measured (--latency)"));
        assert!(kept(equal, false).ends_with("5 %"));
        let (saves, costs, undecided) = (vec![cpu(0.7, OfferedLoad::Max)], Vec::new(), Vec::new());
        let (instead_of, holds_limits, split, without_clients) = (mode, false, None, true);
        let used = Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients };
        assert!(conclusion(&used, &[]).ends_with(&format!("cpu −30 %{LATENCY_NOT_IN_GOAL}")));
    }

    fn worse_by_cpu(mode: &str) -> WorseMode {
        WorseMode { mode: mode.to_owned(), costs: vec![cpu(6.04, OfferedLoad::Max)] }
    }

    fn open(quantile: f64, best: Option<(&str, f64)>) -> OpenGain {
        let best = best.map(|(mode, ratio)| EstimatedGain { mode: mode.to_owned(), ratio, load: None });
        OpenGain { quantity: Quantity::Criterion(Criterion::Latency { quantile }), best }
    }

    #[test]
    fn a_mode_that_is_kept_has_what_others_cost_and_what_they_may_save_nevertheless() {
        let kept = |open, is_short: bool| {
            let (modes, budget_ms) = (vec![worse_by_cpu("suspend20")], is_short.then_some(1));
            let because = WhyKeep::OthersAreWorse { modes, latency_withheld: false };
            let mode = DeliveryMode::default();
            let kept = Conclusion::Keep { mode, because, open, budget_ms, without_clients: false };
            conclusion(&kept, &[])
        };
        assert_eq!(
            kept(vec![open(0.99, Some(("suspend20", 0.6))), open(0.5, None)], true),
            "keep base: suspend20 costs cpu ×6.04; p99 (suspend20 −40 %) and p50 are undecided: if latency is what you \
             lack, measure longer"
        );
        assert_eq!(
            kept(vec![open(0.5, None)], false),
            "keep base: suspend20 costs cpu ×6.04; p50 is undecided after a long measurement"
        );
        assert_eq!(kept(Vec::new(), true), "keep base: suspend20 costs cpu ×6.04");
        let modes = ["suspend20", "fullbusy"].map(worse_by_cpu).to_vec();
        assert_eq!(
            why_keep(&WhyKeep::OthersAreWorse { modes, latency_withheld: true }, true),
            ", because every other mode is worse by cpu; latency was not compared, because other programs used most of \
             the server's CPUs: measure latency when the CPUs are free"
        );
    }

    #[test]
    fn a_result_that_has_to_be_measured_longer_has_what_is_decided_and_the_estimates_of_gains() {
        let (because, worse) = (WhyLonger::TooWide, vec![worse_by_cpu("suspend20")]);
        let open = vec![open(0.99, Some(("suspend200", 0.6))), open(0.5, None)];
        let (mode, within_ms) = (DeliveryMode::default(), 480_000);
        let (of, with) = (worse.clone(), open.clone());
        let ended = Conclusion::NotDecidable { mode, within_ms, because: because.clone(), worse: of, open: with };
        assert_eq!(
            conclusion(&ended, &[]),
            "keep base: not decidable here within 8m, because the slices vary more than the modes differ; suspend20 \
             costs cpu ×6.04; p99 (suspend200 −40 %) is undecided"
        );
        let longer = Conclusion::MeasureLonger { because, worse, open, budget_ms: Some(1) };
        assert_eq!(
            conclusion(&longer, &[]),
            "measure longer, because the slices vary more than the modes differ; suspend20 costs cpu ×6.04; p99 \
             (suspend200 −40 %) is undecided"
        );
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
            "use suspend20 at 50% and max: cpu −30 %; at 20,000 requests/s keep base (cpu +15 %)"
        );
    }

    #[test]
    fn figures_have_their_loads_where_there_are_several_and_what_may_cost_is_listed() {
        let [low, high] = [20e3, 200e3].map(OfferedLoad::Rate);
        let at_one = |ratio, load| QuantityChange { is_everywhere: false, ..cpu(ratio, load) };
        let p50 = Quantity::Criterion(Criterion::Latency { quantile: 0.5 });
        let loads = vec![OfferedLoad::Percent(50.0), OfferedLoad::Max];
        let everywhere =
            QuantityChange { quantity: p50, low: 0.58, high: 0.7, loads: loads.clone(), is_everywhere: true };
        let open = |quantity: &Quantity, ratio, load| UndecidedCost { quantity: quantity.clone(), ratio, load };
        let (cpu_at_max, p99) = (at_one(0.77, OfferedLoad::Max), Criterion::Latency { quantile: 0.99 });
        let undecided = vec![
            open(&cpu_at_max.quantity, Some(1.025), Some(loads[0])),
            open(&Quantity::Criterion(p99), None, Some(loads[1])),
        ];
        let (saves, costs, holds_limits, split, without_clients) =
            (vec![everywhere, cpu_at_max], Vec::new(), false, None, false);
        let (mode, instead_of) = ("suspend50".parse().unwrap(), "base".parse().unwrap());
        assert_eq!(
            conclusion(
                &Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits, split, without_clients },
                &[]
            ),
            "use suspend50 instead of base: p50 −42 % to −30 % at all loads, cpu −23 % at max; undecided: cpu \
             +2.5 % at 50%, p99 at max"
        );
        assert_eq!(
            used(at_one(0.7, high), Some(at_one(1.05, low)), None),
            "use suspend20 instead of base: cpu −30 % at 200,000 requests/s; worse: cpu +5.0 % at 20,000 \
             requests/s"
        );
        let traded = used(at_one(0.7, high), Some(at_one(3.06, low)), None);
        assert!(traded.starts_with("if nothing but this goal counts, use suspend20 instead of base: cpu"), "{traded}");
    }
}
