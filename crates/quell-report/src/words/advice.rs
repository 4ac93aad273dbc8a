//! What a result advises: the conclusion in words, and the next command.

use quell_host::attach::affected_processes::PacketDelay;
use quell_host::attach::mode_command::entered;
use quell_host::findings::{WITHOUT_NAPI_ID, time_text};
use quell_linux::shell;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::ResultDocument;
use quell_result::conclusion::{Conclusion, Quantity, QuantityChange, WhyKeep, WhyLonger, WorseMode};
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::{PlacementFacts, ProgramsFacts};
use quell_result::list::{Decision, DecisionKind};
use quell_result::tune::TuneFile;
use quell_tune::TuneGoal;

use super::changes;
use super::conclusion::{trade_off, worse_mode};
use crate::words;

/// A sentence without a full stop, and the command that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    pub text: String,
    pub command: Option<String>,
    /// Whether the command undoes what was attached during the measurement.
    pub undoes: bool,
}

fn advice(text: &str, command: Option<&str>) -> Advice {
    Advice { text: text.to_owned(), command: command.map(str::to_owned), undoes: false }
}

/// What a result advises. `None` without a question about modes.
#[must_use]
pub fn advice_of(document: &ResultDocument) -> Option<Advice> {
    Some(concluded(document)?.1)
}

/// The conclusion of a result and what it advises. The analysis of its slices is made once.
fn concluded(document: &ResultDocument) -> Option<(Conclusion, Advice)> {
    let conclusion = conclusion_of(document)?;
    let advice = match document {
        ResultDocument::Experiment(result) => of_experiment(result, &conclusion),
        ResultDocument::Tune(file) => of_search(file, &conclusion),
        _ => return None,
    };
    Some((conclusion, advice))
}

fn conclusion_of(document: &ResultDocument) -> Option<Conclusion> {
    match document {
        ResultDocument::Experiment(result) => result.conclusion(),
        ResultDocument::Tune(file) => Some(file.conclusion()),
        _ => None,
    }
}

/// What a result decides about the programs, or the command, that it measured. `None` for other subjects.
#[must_use]
pub fn decision_of(document: &ResultDocument) -> Option<Decision> {
    let subject = match document {
        ResultDocument::Experiment(result) => &result.subject,
        ResultDocument::Tune(file) => &file.subject,
        _ => return None,
    };
    let attached = match subject {
        SubjectFacts::Programs(facts) => facts.attached,
        SubjectFacts::Command(_) => None,
        _ => return None,
    };
    let (conclusion, advice) = concluded(document)?;
    let (kind, mode) = decided(&conclusion, attached, advice.undoes);
    Some(Decision { kind, mode, text: advice.text, command: advice.command })
}

fn decided(
    conclusion: &Conclusion,
    attached: Option<DeliveryMode>,
    undoes: bool,
) -> (DecisionKind, Option<DeliveryMode>) {
    match conclusion {
        _ if undoes => (DecisionKind::Undo, None),
        Conclusion::Use { mode, .. } if attached == Some(*mode) => (DecisionKind::Keep, Some(*mode)),
        Conclusion::Use { .. } if conclusion.unmeasured_delay_ns().is_some() => (DecisionKind::Undecided, None),
        Conclusion::Use { mode, .. } if conclusion.holds_for_its_goal_only() => {
            (DecisionKind::UseForGoalOnly, Some(*mode))
        }
        Conclusion::Use { mode, .. } => (DecisionKind::Use, Some(*mode)),
        Conclusion::Keep { mode, .. } => (DecisionKind::Keep, Some(*mode)),
        Conclusion::MeasureLonger { .. } | Conclusion::NotDecidable { .. } => (DecisionKind::Undecided, None),
    }
}

/// By what the result found a mode worse than the one that it keeps: `suspend20 costs cpu ×6.04`. `None` if it does not.
#[must_use]
pub fn cost_of(document: &ResultDocument, mode: &DeliveryMode) -> Option<String> {
    let costs = match conclusion_of(document)? {
        Conclusion::Keep { because: WhyKeep::OthersAreWorse { modes, .. }, .. } => {
            modes.into_iter().find(|one| one.mode == mode.to_string())?
        }
        Conclusion::Keep { because: WhyKeep::TradeOff { mode: one, costs, .. }, .. } if one == mode.to_string() => {
            WorseMode { mode: one, costs }
        }
        Conclusion::Keep { because: WhyKeep::PlacementCosts { mode: one, costs, .. }, .. } if one == *mode => {
            WorseMode { mode: mode.to_string(), costs }
        }
        Conclusion::NotDecidable { worse, .. } => worse.into_iter().find(|one| one.mode == mode.to_string())?,
        _ => return None,
    };
    Some(worse_mode(&costs))
}

/// What speaks against the answer of a result; see [`quell_host::servers::EarlierMeasurement::reservation`].
#[must_use]
pub fn reservation_of(document: &ResultDocument) -> Option<String> {
    let conclusion = conclusion_of(document)?;
    let although = if conclusion.holds_for_its_goal_only() { "for its goal alone: it" } else { "although it" };
    let (mode, costs, without_clients) = match conclusion {
        Conclusion::Use { mode, costs, without_clients, .. } => (mode, costs, without_clients),
        Conclusion::Keep { because: WhyKeep::TradeOff { mode, saves, costs, undecided }, .. } => {
            return Some(trade_off(&mode, &saves, &costs, &undecided));
        }
        Conclusion::Keep { because: WhyKeep::PlacementCosts { options, mode, saves, costs }, .. } => {
            let mode = format!("{mode} with {options}");
            return Some(match saves.is_empty() {
                true => format!("because {}", worse_mode(&WorseMode { mode, costs })),
                false => trade_off(&mode, &saves, &costs, &[]),
            });
        }
        Conclusion::Keep { .. } => {
            let ResultDocument::Tune(file) = document else { return None };
            return Some(format!("for the goal \"{}\"", file.search.plan.goal));
        }
        _ => return None,
    };
    let judged = |subject: &SubjectFacts| matches!(subject, SubjectFacts::Programs(facts) if facts.latency.is_some());
    let is_unjudged = matches!(document, ResultDocument::Tune(file) if !judged(&file.subject));
    if !costs.is_empty() {
        return Some(format!("{although} costs {}", changes(&costs, "")));
    }
    let delay = PacketDelay::of_mode(&mode).filter(|_| without_clients && is_unjudged)?;
    let timer = time_text(delay.gro_flush_timeout_ns);
    Some(format!("{although} costs latency, which was not measured: its timer can delay packets by up to {timer}"))
}

/// What an experiment advises. `None` if it measures no times, or is empty.
#[must_use]
pub fn experiment_advice(result: &ExperimentResult) -> Option<Advice> {
    Some(of_experiment(result, &result.conclusion()?))
}

fn of_experiment(result: &ExperimentResult, conclusion: &Conclusion) -> Advice {
    let again = |longer_ms: Option<u64>| {
        let sufficient_ms = || result.sufficient_budget_ms().unwrap_or_else(|| result.budget_ms());
        words::repeat_experiment(result, Some(longer_ms.unwrap_or_else(sufficient_ms)))
    };
    of(conclusion, &result.subject, again, &[])
}

/// What a search advises.
#[must_use]
pub fn search_advice(file: &TuneFile) -> Advice {
    of_search(file, &file.conclusion())
}

fn of_search(file: &TuneFile, conclusion: &Conclusion) -> Advice {
    let again = |longer_ms: Option<u64>| words::repeat_search(file, longer_ms.or_else(|| file.sufficient_budget_ms()));
    let mut advice = of(conclusion, &file.subject, again, &file.left_alone);
    if let Conclusion::Use { costs, .. } = conclusion {
        advice.text.push_str(&unlimited(costs, &file.search.plan.goal));
    }
    advice
}

/// That the goal of a search does not limit what its answer costs, and a goal that does. Empty without costs, and if the goal
/// has limits of its own for them.
fn unlimited(costs: &[QuantityChange], goal: &TuneGoal) -> String {
    let metric = |change: &QuantityChange| match &change.quantity {
        Quantity::Metric(metric) if !goal.metrics().any(|one| one == metric) => Some(metric.to_string()),
        _ => None,
    };
    let mut names: Vec<String> = costs.iter().filter(|change| change.low > 1.0).filter_map(metric).collect();
    names.dedup();
    if names.is_empty() {
        return String::new();
    }
    let limits: String = names.iter().map(|name| format!("{name}<=1.1x, ")).collect();
    format!(" (the goal does not limit {}; --goal \"{limits}{goal}\" does)", names.join(" and "))
}

/// Said of a recommended mode if the clients had no rate.
const AT_MAXIMUM: &str = "; this holds at the maximum, because the clients sent as fast as the server answered: at a lower \
                          rate it can be otherwise (`quell load --rate`, wrk2 -R)";

/// `again` is the command that measures again, with this budget in ms, or with the same one, if that can conclude.
fn of(
    conclusion: &Conclusion,
    subject: &SubjectFacts,
    again: impl FnOnce(Option<u64>) -> String,
    left_alone: &[String],
) -> Advice {
    let mut shown = conclusion.clone();
    if let SubjectFacts::Programs(facts) = subject
        && let Some(attached) = facts.attached.map(|attached| subject.present(attached))
    {
        if let Some(undo) = undo_of_worse(attached, conclusion, facts) {
            let placement = facts.placement.as_ref().filter(|placement| placement.is_by_attachment());
            let placed = match placement.map(PlacementFacts::pins) {
                Some(true) => " with its filters and pins",
                Some(false) => " with its filters",
                None => "",
            };
            let kept = match &mut shown {
                Conclusion::MeasureLonger { worse, .. } => {
                    let its = worse
                        .extract_if(.., |one| is_attached(one, attached))
                        .map(|one| worse_mode(&WorseMode { mode: "it".to_owned(), ..one }));
                    format!(": {}; the others: ", its.collect::<Vec<_>>().join("; "))
                }
                _ => ", and ".to_owned(),
            };
            let first = match conclusion {
                Conclusion::Keep { open, budget_ms: Some(ms), .. } if !open.is_empty() => {
                    format!(" first (`{}`)", again(Some(*ms)))
                }
                _ => String::new(),
            };
            let text = format!("undo {attached}{placed}{kept}{}{first}", words::conclusion(&shown, left_alone));
            return Advice { undoes: true, ..advice(&text, Some(&undo)) };
        }
        if let Conclusion::NotDecidable { mode, .. } = &mut shown {
            *mode = attached;
        }
    }
    let mut said = words::conclusion(&shown, left_alone);
    if let Conclusion::Use { mode, .. } = conclusion
        && let Some(finding) = subject.serious_finding(*mode)
    {
        said.push_str(&format!("; it causes a serious finding: {finding} (`quell doctor --explain {finding}`)"));
    }
    if matches!(conclusion, Conclusion::Use { .. }) && subject.has_command_in_closed_loop() {
        said.push_str(AT_MAXIMUM);
    }
    if matches!(conclusion, Conclusion::Use { .. }) && subject.has_unmeasured_placement() {
        let options = subject.placement().join(" ");
        let options = visible::name(&options);
        said.push_str(&format!("; all modes had {options}: --latency shows whether they help"));
    }
    if let Some(problem) = subject.problems().iter().find(|problem| problem.id == WITHOUT_NAPI_ID) {
        let observed = visible::name(&problem.observed);
        said.push_str(&format!(
            "; {observed}, where no mode has an effect: fix this first (`quell doctor --explain {WITHOUT_NAPI_ID}`), then \
             measure again"
        ));
    }
    match (conclusion, subject) {
        (Conclusion::Use { .. }, SubjectFacts::Programs(_) | SubjectFacts::Command(_))
            if conclusion.unmeasured_delay_ns().is_some() =>
        {
            advice(&said, Some(&again(None).replacen("quell bench", "quell bench --latency COMMAND", 1)))
        }
        (Conclusion::Use { mode, .. }, SubjectFacts::Programs(facts)) if facts.attached == Some(*mode) => {
            advice(&format!("{said}. It is attached already"), None)
        }
        (Conclusion::Use { mode, .. }, SubjectFacts::Programs(facts))
            if *mode == DeliveryMode::default() && facts.attached.is_some() && subject.placement().is_empty() =>
        {
            advice(&said, Some(&format!("quell detach {}", joined(facts.attached_pids()))))
        }
        (Conclusion::Use { mode, .. }, SubjectFacts::Programs(facts)) => {
            let (detach, placement, pids) =
                (detach_first(facts), placement_options(subject), joined(facts.named_pids()));
            // Where the load has ended with the measurement, a queue can be without connections until clients come.
            let follow = if placement.is_empty() && subject.own_load().is_none() { "" } else { " --follow" };
            advice(&said, Some(&format!("{detach}quell attach {mode}{placement}{follow} {pids}")))
        }
        (Conclusion::Use { mode, .. }, SubjectFacts::Command(facts)) => {
            let (placement, command) = (placement_options(subject), shell::command(&facts.command));
            let run = format!("quell run {mode}{placement} -- {command}");
            advice(&said, Some(&entered(facts.netns.as_deref(), &run)))
        }
        (Conclusion::Use { mode, instead_of, .. }, _) => {
            let measured = format!("{said}. Before you use it, measure it on your server");
            advice(&measured, Some(&format!("quell bench --pid PID --modes {instead_of},{mode}")))
        }
        (Conclusion::MeasureLonger { because: WhyLonger::NotSteered, .. }, SubjectFacts::Programs(facts))
            if facts.placement.as_ref().is_some_and(PlacementFacts::is_by_attachment) =>
        {
            advice(&format!("{said}. Let them reconnect, and run this command again"), Some(&again(None)))
        }
        (Conclusion::MeasureLonger { because: WhyLonger::NotSteered, .. }, SubjectFacts::Programs(facts)) => {
            said.push_str(&format!(
                ". Steer them with the command below, which follows them until it ends; let the clients reconnect; then \
                 measure again (`{}`)",
                again(None)
            ));
            let (pids, mode) = (joined(facts.named_pids()), facts.attached.unwrap_or_default());
            let (detach, placement) = (detach_first(facts), placement_options(subject));
            advice(&said, Some(&format!("{detach}quell attach {mode}{placement} --follow {pids}")))
        }
        (Conclusion::Keep { .. } | Conclusion::NotDecidable { .. }, SubjectFacts::Programs(facts))
            if !facts.helpful_placement.is_empty() =>
        {
            let options = facts.helpful_placement.join(" ");
            let unsorted = "this holds for unsorted connections only, because an epoll receives from several queues";
            let sort = format!("{options} sorts the connections of clients that reconnect");
            advice(&format!("{said}; {unsorted}. {sort}"), Some(&format!("{} {options}", again(None))))
        }
        (Conclusion::MeasureLonger { budget_ms: Some(ms), .. } | Conclusion::Keep { budget_ms: Some(ms), .. }, _) => {
            advice(&said, Some(&again(Some(*ms))))
        }
        (
            Conclusion::MeasureLonger { because: WhyLonger::OtherPrograms { .. }, .. }
            | Conclusion::Keep { because: WhyKeep::OthersAreWorse { latency_withheld: true, .. }, .. },
            _,
        ) => advice(&said, Some(&again(None))),
        _ => advice(&said, None),
    }
}

/// Options with which connections were steered and workers pinned, each after a space.
#[must_use]
pub fn placement_options(subject: &SubjectFacts) -> String {
    subject.placement().iter().map(|option| format!(" {option}")).collect()
}

fn joined(pids: impl IntoIterator<Item = u32>) -> String {
    pids.into_iter().map(|pid| pid.to_string()).collect::<Vec<_>>().join(" ")
}

/// Command that has to come before another attachment. Empty without one.
fn detach_first(facts: &ProgramsFacts) -> String {
    match facts.attached {
        Some(_) => format!("quell detach {} && ", joined(facts.attached_pids())),
        None => String::new(),
    }
}

/// Command that undoes the attached mode, if the conclusion keeps another one and has not left the attached one open. Its
/// placement is undone with it: whether this helps without the mode was not measured.
fn undo_of_worse(attached: DeliveryMode, conclusion: &Conclusion, facts: &ProgramsFacts) -> Option<String> {
    let is_worse = |worse: &[WorseMode]| worse.iter().any(|one| is_attached(one, attached));
    let goes = match conclusion {
        Conclusion::Keep { mode, .. } => *mode != attached,
        Conclusion::NotDecidable { mode, worse, .. } => *mode != attached && is_worse(worse),
        Conclusion::MeasureLonger { worse, .. } => attached != DeliveryMode::default() && is_worse(worse),
        _ => false,
    };
    goes.then(|| format!("quell detach {}", joined(facts.attached_pids())))
}

/// Whether it is the mode that was attached during the measurement.
fn is_attached(one: &WorseMode, attached: DeliveryMode) -> bool {
    one.mode == attached.to_string()
}

/// A time as an option takes it.
#[must_use]
pub fn budget(ms: u64) -> String {
    let s = ms.div_ceil(1_000);
    if s.is_multiple_of(60) { format!("{}m", s / 60) } else { format!("{s}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_result::conclusion::{EstimatedGain, OpenGain};
    use quell_tune::TuneMetric;

    fn recorded() -> ExperimentResult {
        let text = include_str!("../../../quell/tests/fixtures/result.json");
        serde_json::from_str(text).expect("the fixture is a result")
    }

    #[test]
    fn a_mode_that_is_kept_without_latency_has_the_command_that_measures_it() {
        let because = |latency_withheld| WhyKeep::OthersAreWorse { modes: Vec::new(), latency_withheld };
        let command = |latency_withheld| {
            let (mode, because) = (quell_mode::DeliveryMode::default(), because(latency_withheld));
            let kept = Conclusion::Keep { mode, because, open: Vec::new(), budget_ms: None, without_clients: false };
            of(&kept, &recorded().subject, |_| "quell bench".to_owned(), &[]).command
        };
        assert_eq!((command(true).as_deref(), command(false)), (Some("quell bench"), None));
    }

    fn used(mode: DeliveryMode, instead_of: DeliveryMode, without_clients: bool) -> Conclusion {
        let (saves, costs, undecided) = (Vec::new(), Vec::new(), Vec::new());
        Conclusion::Use { mode, instead_of, saves, costs, undecided, holds_limits: false, split: None, without_clients }
    }

    #[test]
    fn a_decision_for_scripts_is_that_of_the_last_line_and_of_programs_only() {
        let mode: DeliveryMode = "suspend200".parse().expect("a mode");
        let better = |without_clients| used(mode, DeliveryMode::default(), without_clients);
        assert_eq!(decided(&better(false), None, false), (DecisionKind::Use, Some(mode)));
        assert_eq!(decided(&better(true), None, false), (DecisionKind::Undecided, None), "its latency is not known");
        assert_eq!(decided(&better(false), Some(mode), false), (DecisionKind::Keep, Some(mode)), "it is attached");
        assert_eq!(decided(&better(false), Some(mode), true).0, DecisionKind::Undo);
        let recorded = ResultDocument::Experiment(Box::new(recorded()));
        assert!(
            advice_of(&recorded).is_some() && decision_of(&recorded).is_none(),
            "a lab decides nothing about a server"
        );
    }

    #[test]
    fn a_measurement_that_other_programs_disturbed_is_made_again_with_a_budget_that_can_conclude() {
        let mut result = recorded();
        for one in &mut result.experiments {
            one.record.slices.retain(|slice| slice.block < 3);
            one.record.slices.iter_mut().for_each(|slice| slice.observation.foreign_cpu = Some(0.9));
        }
        let sufficient_ms = result.sufficient_budget_ms().expect("a budget that was too short");
        let advice = experiment_advice(&result).expect("advice");
        assert!(advice.text.contains("while other programs use most"), "{}", advice.text);
        let command = advice.command.expect("a command");
        assert!(command.contains(&format!("--budget {} --on", budget(sufficient_ms))), "{command}");
    }

    #[test]
    fn a_conclusion_with_connections_that_no_mode_reaches_says_to_fix_this_first() {
        let facts = r#"{"command": ["memcached"], "load": null, "latency": null, "problems": [
            {"id": "connections-without-napi", "observed": "19 of 32 receive without a queue", "modes": ["suspend200"]}]}"#;
        let subject = SubjectFacts::Command(serde_json::from_str(facts).expect("facts"));
        let (mode, because) = (DeliveryMode::default(), WhyKeep::NothingToGain { margin: 0.05, busy: None });
        let kept = Conclusion::Keep { mode, because, open: Vec::new(), budget_ms: None, without_clients: false };
        let text = of(&kept, &subject, |_| String::new(), &[]).text;
        assert!(text.starts_with("keep base") && text.contains("; 19 of 32 receive without a queue, where"), "{text}");
        assert!(text.ends_with("then measure again") && subject.serious_finding(mode).is_none(), "{text}");
    }

    #[test]
    fn commands_that_start_a_command_again_name_its_network_namespace_and_no_mode_that_could_not_be_set() {
        let facts = r#"{"command": ["./serve"], "netns": "shop one", "load": null, "latency": null}"#;
        let mut result = recorded();
        result.subject = SubjectFacts::Command(serde_json::from_str(facts).expect("facts"));
        let design = &result.experiments[0].record.design;
        let dropped = design.treatments[0].name.clone();
        let arms = design.arms_of(&dropped);
        for one in &mut result.experiments {
            one.record.dropped.extend(arms.iter().map(|arm| (*arm, "it is statically linked".to_owned())));
        }
        let again = words::repeat_experiment(&result, Some(600_000));
        assert!(again.starts_with("ip netns exec 'shop one' quell bench --modes base --"), "{again}");
        assert!(again.ends_with(" -- ./serve") && !again.contains(&dropped), "{again}");
        assert!(words::repeat_experiment(&result, None).contains(&dropped), "the same order needs the same arms");
    }

    #[test]
    fn an_attached_mode_that_was_worse_is_undone_for_the_programs_that_have_it() {
        let keep = |mode, open, budget_ms| {
            let because = WhyKeep::NothingToGain { margin: 0.05, busy: None };
            Conclusion::Keep { mode, because, open, budget_ms, without_clients: false }
        };
        let kept = || keep(DeliveryMode::default(), Vec::new(), None);
        let undecided = |worse: &[&str]| {
            let of_mode = |mode: &&str| WorseMode { mode: (*mode).to_owned(), costs: Vec::new() };
            Conclusion::NotDecidable {
                mode: DeliveryMode::default(),
                within_ms: 60_000,
                because: WhyLonger::TooWide,
                worse: worse.iter().map(of_mode).collect(),
                open: Vec::new(),
            }
        };
        let facts: ProgramsFacts = serde_json::from_str(
            r#"{"processes": [{"pid": 7, "name": "nginx", "is-child": false}, {"pid": 9, "name": "redis", "is-child": false}],
                "queues": [], "epolls": 2, "cpus": [], "load": null, "latency": null, "attached": "suspend200"}"#,
        )
        .expect("facts");
        let said = |conclusion: &Conclusion, facts: &ProgramsFacts| {
            let subject = SubjectFacts::Programs(Box::new(facts.clone()));
            let Advice { text, command, undoes } = of(conclusion, &subject, |_| "quell bench".to_owned(), &[]);
            assert_eq!(undoes, text.starts_with("undo "));
            (text, command.unwrap_or_default())
        };
        let (text, undo) = said(&kept(), &facts);
        assert!(text.starts_with("undo suspend200, and keep base") && undo == "quell detach 7 9", "{text}: {undo}");
        let (_, undo) = said(&kept(), &ProgramsFacts { attached_in_part: vec![7], ..facts.clone() });
        assert_eq!(undo, "quell detach 7");
        let options = vec!["--steer".to_owned()];
        let placement = Some(PlacementFacts { options, ..PlacementFacts::default() });
        let (text, undo) = said(&kept(), &ProgramsFacts { placement, ..facts.clone() });
        assert!(text.starts_with("undo suspend200 with its filters, and keep base"), "{text}");
        assert_eq!(undo, "quell detach 7 9");
        let best = Some(EstimatedGain { mode: "suspend200".to_owned(), ratio: 0.2, load: None });
        let open = vec![OpenGain { quantity: Quantity::Metric(TuneMetric::Latency { quantile: 0.99 }), best }];
        let (text, undo) = said(&keep(DeliveryMode::default(), open, Some(60_000)), &facts);
        assert!(text.ends_with("measure longer first (`quell bench`)") && undo == "quell detach 7 9", "{text}");
        assert!(said(&undecided(&["defer20"]), &facts).0.starts_with("keep suspend200: not decidable"));
        let threaded: DeliveryMode = "threaded".parse().expect("a mode");
        let base = ProgramsFacts { attached: Some(DeliveryMode::default()), base_is: Some(threaded), ..facts.clone() };
        let same = said(&keep(threaded, Vec::new(), None), &base).0;
        assert!(same.starts_with("keep threaded"), "base leaves the NAPI threads: {same}");
        let (text, undo) = said(&undecided(&["suspend200"]), &facts);
        assert!(text.starts_with("undo suspend200, and keep base: not") && undo == "quell detach 7 9", "{text}");
        let p50 = QuantityChange {
            quantity: Quantity::Metric(TuneMetric::Latency { quantile: 0.5 }),
            low: 1.7,
            high: 4.5,
            loads: Vec::new(),
            is_everywhere: true,
        };
        let worse = vec![WorseMode { mode: "suspend200".to_owned(), costs: vec![p50] }];
        let because = WhyLonger::OtherPrograms { latency_helps: false };
        let disturbed = Conclusion::MeasureLonger { because, worse, open: Vec::new(), budget_ms: None };
        let (text, undo) = said(&disturbed, &facts);
        assert!(text.starts_with("undo suspend200: it costs p50") && undo == "quell detach 7 9", "{text}");
        assert!(text.contains("; the others: not decidable while other programs use"), "{text}");
        let base = used(DeliveryMode::default(), "suspend200".parse().expect("a mode"), false);
        assert_eq!(said(&base, &facts).1, "quell detach 7 9", "a search compares base with the attached mode");
        let unattached = ProgramsFacts { attached: None, ..facts };
        assert!(said(&kept(), &unattached).0.starts_with("keep base"));
    }

    #[test]
    fn a_mode_is_kept_for_unsorted_connections_only_where_steering_would_sort_them() {
        let because = WhyKeep::NothingToGain { margin: 0.05, busy: None };
        let (mode, without_clients) = (quell_mode::DeliveryMode::default(), false);
        let kept = Conclusion::Keep { mode, because, open: Vec::new(), budget_ms: Some(1), without_clients };
        let mut facts: ProgramsFacts = serde_json::from_str(
            r#"{"processes": [], "queues": [], "epolls": 2, "cpus": [], "load": null, "latency": null}"#,
        )
        .expect("facts");
        let mut said = |options: &[&str]| {
            facts.helpful_placement = options.iter().map(|one| (*one).to_owned()).collect();
            of(&kept, &SubjectFacts::Programs(Box::new(facts.clone())), |ms| format!("quell bench {ms:?}"), &[])
        };
        let unsorted = said(&["--steer", "--pin"]);
        assert!(unsorted.text.contains("this holds for unsorted connections only"), "{}", unsorted.text);
        assert_eq!(unsorted.command.as_deref(), Some("quell bench None --steer --pin"));
        assert_eq!(said(&[]).command.as_deref(), Some("quell bench Some(1)"));
    }

    #[test]
    fn an_answer_that_costs_what_the_goal_does_not_limit_has_a_goal_that_does() {
        let goal = |text: &str| text.parse::<TuneGoal>().expect("a goal");
        let change = |metric, low| QuantityChange {
            quantity: Quantity::Metric(metric),
            low,
            high: low,
            loads: Vec::new(),
            is_everywhere: true,
        };
        let p99 = TuneMetric::Latency { quantile: 0.99 };
        let costs = [change(p99, 15.0), change(TuneMetric::Cpu, 3.06), change(TuneMetric::Requests, 0.9)];
        assert_eq!(
            unlimited(&costs, &goal("lowest p50")),
            " (the goal does not limit p99 and cpu; --goal \"p99<=1.1x, cpu<=1.1x, lowest p50\" does)"
        );
        assert_eq!(unlimited(&costs[2..], &goal("lowest p50")), "");
        let of_p99 = unlimited(&costs, &goal("cpu<=20x, lowest p50"));
        assert!(of_p99.starts_with(" (the goal does not limit p99; --goal \"p99<=1.1x, cpu<=20x"), "{of_p99}");
    }

    #[test]
    fn an_answer_under_a_closed_loop_says_that_it_holds_at_the_maximum() {
        let said = |latency: &[&str]| {
            let facts = serde_json::json!(
                {"processes": [], "queues": [], "epolls": 2, "cpus": [], "load": null, "latency": latency}
            );
            let facts: ProgramsFacts = serde_json::from_value(facts).expect("facts");
            let used = used("suspend200".parse().expect("a mode"), DeliveryMode::default(), false);
            of(&used, &SubjectFacts::Programs(Box::new(facts)), |_| String::new(), &[]).text
        };
        assert!(said(&["wrk", "--latency", "-c", "32", "http://10.0.0.1/"]).contains("this holds at the maximum"));
        assert!(!said(&["quell", "load", "10.0.0.1:80", "--rate", "2K"]).contains("maximum"));
    }

    #[test]
    fn a_longer_measurement_is_the_same_with_another_budget_in_another_order() {
        let result = recorded();
        let [same, longer] = [None, Some(600_000)].map(|longer_ms| words::repeat_experiment(&result, longer_ms));
        let options = |command: &str| -> Vec<(String, String)> {
            let words = shell_words::split(command).expect("a command");
            let pairs = words[2..].windows(2).filter(|pair| pair[0].starts_with("--"));
            pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        };
        let kept = |command: &str| -> Vec<_> {
            options(command).into_iter().filter(|(name, _)| !["--budget", "--seed"].contains(&name.as_str())).collect()
        };
        assert_eq!(kept(&same), kept(&longer));
        assert!(["--modes", "--slice", "--settle"].iter().all(|name| longer.contains(name)), "{longer}");
        assert!(longer.contains("--budget 10m") && !longer.contains("--seed") && same.contains("--seed"), "{longer}");
    }
}
