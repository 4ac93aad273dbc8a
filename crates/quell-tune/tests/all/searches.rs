//! Searches on a simulated server: the arms that are dropped, abandoned and confirmed, the order of slices, and the
//! state of the subject at the end. They use no clock and do not depend on the kernel.

use std::ops::ControlFlow;

use quell_experiment::{ExperimentSubject, LatencyCounts, SetFailure, SliceFlag, SliceObservation, SliceStage};
use quell_mode::DeliveryMode;
use quell_stats::LatencyHistogram;
use quell_tune::{
    ArmReport, ArmState, RefusedMode, TuneAnswer, TuneEnd, TunePhase, TunePlan, TuneResult, TuneSpace, Tuner, tune,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// CPU time per request in µs and p99 in µs of a mode at a load.
pub(crate) type Truth = fn(&DeliveryMode, usize) -> (f64, f64);

/// A server with noise of some percent, which is common to neighboring slices.
pub(crate) struct Server {
    truth: Truth,
    random: Pcg64,
    drift: f64,
    /// Relative increase of all times from one slice to the next.
    slowdown: f64,
    load: usize,
    mode: Option<DeliveryMode>,
    present: DeliveryMode,
    refused: Option<DeliveryMode>,
    /// A mode that is reverted during its slices.
    stalling: Option<DeliveryMode>,
    /// A mode and the number of its slices that are too slow to be measured.
    slow: Option<(DeliveryMode, u32)>,
    /// Number of slices for which the budget has time.
    slices_max: usize,
    is_drops_readable: bool,
    /// Kind of mode under which requests fail.
    failing: Option<&'static str>,
    /// Kind of mode under which one slice in ten has a latency.
    silent: Option<&'static str>,
    /// Real duration of a slice with settling, in multiples of the planned one.
    slower_than_planned: f64,
    /// Requests per second, if CPU time is counted in ticks of 10 ms.
    counted_in_ticks_at: Option<f64>,
    log: Vec<(DeliveryMode, usize)>,
    restored: u32,
}

impl Server {
    pub(crate) fn new(truth: Truth, seed: u64) -> Self {
        Self {
            truth,
            random: Pcg64::seed_from_u64(seed),
            drift: 0.0,
            slowdown: 0.0,
            load: 0,
            mode: None,
            present: DeliveryMode::default(),
            refused: None,
            stalling: None,
            slow: None,
            slices_max: usize::MAX,
            is_drops_readable: true,
            failing: None,
            silent: None,
            slower_than_planned: 1.0,
            counted_in_ticks_at: None,
            log: Vec::new(),
            restored: 0,
        }
    }

    /// Counts CPU time in ticks, at this number of requests per second.
    pub(crate) fn counting_ticks_at(self, per_s: f64) -> Self {
        Self { counted_in_ticks_at: Some(per_s), ..self }
    }
}

impl ExperimentSubject for Server {
    type Setting = DeliveryMode;
    type Error = String;

    fn offer(&mut self, load: usize) -> Result<(), String> {
        assert!(self.mode.is_none_or(|mode| mode == self.present), "a load is offered under the present setting");
        self.load = load;
        Ok(())
    }

    fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<String>> {
        if self.refused == Some(*mode) {
            return Err(SetFailure::NotSettable("refused by the kernel".to_owned()));
        }
        self.mode = Some(*mode);
        Ok(())
    }

    fn settle(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, String> {
        let mode = self.mode.unwrap();
        if self.stalling == Some(mode) {
            return Err("it stalls".to_owned());
        }
        if let Some((slow, slices @ 1..)) = &mut self.slow
            && *slow == mode
        {
            *slices -= 1;
            return Err("it is slow".to_owned());
        }
        if self.log.len() >= self.slices_max {
            return Err("no time is left".to_owned());
        }
        self.log.push((mode, self.load));
        self.drift = 0.9 * self.drift + 0.05 * (self.random.random::<f64>() - 0.5);
        let mut noise = || 1.0 + self.drift + 0.06 * (self.random.random::<f64>() - 0.5);
        let slower = 1.0 + self.slowdown * self.log.len() as f64;
        let (cpu, p99) = (self.truth)(&mode, self.load);
        let (cpu, p99) = (cpu * slower, p99 * slower);
        let mut histogram = LatencyHistogram::new();
        histogram.record_n((p99 * 500.0 * noise()) as u64, 1980);
        histogram.record_n((p99 * 1000.0 * noise()) as u64, 30);
        let is_of = |kind: Option<&str>| kind == Some(mode.kind().word());
        let is_silent = is_of(self.silent) && !self.log.len().is_multiple_of(10);
        let flags = is_of(self.failing).then_some(SliceFlag::RequestsFailed);
        let slice = SliceObservation {
            spent_ms: (f64::from(slice_ms) + 10.0) * self.slower_than_planned,
            latency: (!is_silent).then(|| LatencyCounts::from(&histogram)),
            flags: flags.into_iter().collect(),
            ..SliceObservation::default()
        };
        let cpu = cpu * noise();
        let cpu = self.counted_in_ticks_at.map_or(cpu, |per_s| {
            let requests = per_s * f64::from(slice_ms) / 1e3;
            let ticks = (cpu * requests / 1e4 + self.random.random::<f64>()).floor();
            ticks * 1e4 / requests
        });
        let drops = if mode.to_string() == "threadedbusy" { 3.0 } else { 0.0 };
        Ok(Some(
            slice
                .with_metric("cpu-us-per-request", Some(cpu))
                .with_metric("stalls", Some(0.0))
                .with_metric("drops", self.is_drops_readable.then_some(drops)),
        ))
    }

    fn leaves_out_setting(&self, error: &String) -> bool {
        error == "it stalls"
    }

    fn repeats_slice(&self, error: &String) -> bool {
        error == "it is slow"
    }

    fn is_budget_spent(&self, error: &String) -> bool {
        error == "no time is left"
    }

    fn restore(&mut self) -> Result<(), String> {
        self.restored += 1;
        Ok(())
    }
}

pub(crate) fn plan(goal: &str) -> TunePlan {
    TunePlan::new(goal.parse().unwrap(), DeliveryMode::default(), TuneSpace::default(), 5)
}

pub(crate) fn search(server: &mut Server, plan: TunePlan) -> TuneResult {
    server.present = plan.present;
    let finished = tune(server, plan, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((finished.restored, server.restored), (Ok(()), 1));
    finished.result
}

fn timeout_us(mode: &DeliveryMode) -> f64 {
    mode.napi().gro_flush_timeout_ns as f64 / 1e3
}

/// `suspend` with 40 µs uses the least CPU; other modes cost more, and `base` the most.
pub(crate) fn one_is_best(mode: &DeliveryMode, _: usize) -> (f64, f64) {
    match mode.name() {
        name if name.starts_with("suspend") => {
            let rest = if mode.to_string() == mode.name() { 0.0 } else { 0.5 };
            (8.0 + rest + (timeout_us(mode) / 40.0).ln().abs(), 200.0)
        }
        name if name == "base" => (14.0, 250.0),
        _ => (13.0, 250.0),
    }
}

fn none_differs(_: &DeliveryMode, _: usize) -> (f64, f64) {
    (14.0, 250.0)
}

#[test]
fn the_best_mode_is_found_and_its_gain_has_an_interval() {
    for seed in 0..5 {
        let result = search(&mut Server::new(one_is_best, seed), plan("p99<=300us, least cpu"));
        let TuneAnswer::Better { mode, gain, against_base } = &result.answer else { panic!("{:?}", result.answer) };
        assert_eq!(mode.to_string(), "suspend40", "seed {seed}");
        let gain = gain[0].unwrap();
        assert!(gain.low < 8.0 / 14.0 && gain.high.unwrap() > 8.0 / 14.0 && gain.high.unwrap() < 0.7, "{gain:?}");
        assert!(against_base.is_empty(), "base is the present setting");
        assert!(result.spent_ms <= result.plan.budget_ms as f64);
    }
}

#[test]
fn a_present_setting_other_than_base_is_compared_too() {
    let present = "suspend640".parse().unwrap();
    let result = search(&mut Server::new(one_is_best, 1), TunePlan { present, ..plan("least cpu") });
    let TuneAnswer::Better { gain, against_base, .. } = &result.answer else { panic!("{:?}", result.answer) };
    assert!((gain[0].unwrap().ratio - 8.0 / 10.77).abs() < 0.05, "{gain:?}");
    assert!((against_base[0].unwrap().ratio - 8.0 / 14.0).abs() < 0.05, "{against_base:?}");
}

#[test]
fn instead_of_a_bad_setting_the_answer_is_base_if_no_mode_is_better_than_base() {
    fn only_the_present_is_bad(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        if mode.to_string() == "defer640" { (20.0, 600.0) } else { (10.0, 300.0) }
    }
    let present = "defer640".parse().unwrap();
    let is_base = |seed: &u64| {
        let plan = TunePlan { present, seed: *seed, ..plan("least cpu") };
        let answer = search(&mut Server::new(only_the_present_is_bad, *seed), plan).answer;
        let TuneAnswer::Better { mode, gain, .. } = answer else { panic!("{answer:?}") };
        mode == DeliveryMode::default() && (gain[0].unwrap().ratio - 0.5).abs() < 0.05
    };
    let base = (0..20).filter(is_base).count();
    assert!(base >= 18, "{base} of 20 searches");
}

#[test]
fn a_dominated_arm_gets_no_slice_after_it_is_dropped() {
    let result = search(&mut Server::new(one_is_best, 2), plan("least cpu"));
    let dropped = result.arms.iter().position(|arm| matches!(arm.state, ArmState::Worse { .. })).unwrap();
    let of_dropped = result.slices.iter().filter(|slice| slice.arm == dropped).count();
    let of_present = result.slices.iter().filter(|slice| slice.arm == 0).count();
    assert!(of_dropped * 2 < of_present, "{of_dropped} of {of_present}");
}

#[test]
fn modes_that_are_never_tried_are_dropped_if_others_show_that_they_are_worse() {
    let result = search(&mut Server::new(one_is_best, 2), plan("least cpu"));
    let is_untried = |arm: &&ArmReport| arm.slices == 0 && matches!(arm.state, ArmState::Worse { .. });
    assert!(result.arms.iter().filter(is_untried).count() > 20, "{:?}", result.arms);
}

#[test]
fn base_and_the_present_setting_are_in_every_block() {
    let present: DeliveryMode = "defer40".parse().unwrap();
    let result = search(&mut Server::new(one_is_best, 3), TunePlan { present, ..plan("least cpu") });
    let blocks = result.slices.iter().map(|slice| slice.block).max().unwrap();
    for block in 0..=blocks {
        let modes = result.slices.iter().filter(|slice| slice.block == block).map(|slice| result.arms[slice.arm].mode);
        let modes: Vec<_> = modes.collect();
        assert!(modes.contains(&present) && modes.contains(&DeliveryMode::default()), "block {block}");
    }
}

#[test]
fn no_setting_is_better_if_none_differs() {
    let better = (0..20)
        .filter(|seed| {
            let result = search(&mut Server::new(none_differs, *seed), TunePlan { seed: *seed, ..plan("least cpu") });
            assert_eq!(result.end, TuneEnd::Answered);
            result.answer != TuneAnswer::NoSettingBetter
        })
        .count();
    assert!(better <= 2, "{better} of 20 searches report a gain");
}

#[test]
fn an_arm_that_violates_a_guard_is_left_after_one_slice_and_never_tried_again() {
    let guards = vec!["drops".parse().unwrap()];
    let mut server = Server::new(one_is_best, 4);
    let result = search(&mut server, TunePlan { guards, ..plan("least cpu") });
    let tried = server.log.iter().filter(|(mode, _)| mode.to_string() == "threadedbusy").count();
    assert_eq!(tried, 1);
    let arm = result.arms.iter().find(|arm| arm.mode.to_string() == "threadedbusy").unwrap();
    assert_eq!(arm.state, ArmState::ViolatedGuard { guard: "drops".to_owned() });
    assert_eq!(result.answer.mode().unwrap().to_string(), "suspend40");
}

/// An answer "no setting is better" needs modes that were compared.
#[test]
fn a_search_whose_modes_all_violate_a_guard_has_no_answer() {
    let guards = || vec!["drops".parse().unwrap()];
    let of = |arms: &[&str]| {
        let arms: Vec<DeliveryMode> = arms.iter().map(|mode| mode.parse().unwrap()).collect();
        let given = TunePlan { guards: guards(), arms, space: None, ..plan("least cpu") };
        let result = search(&mut Server::new(none_differs, 4), given);
        (result.answer, result.end)
    };
    assert_eq!(of(&["base", "threadedbusy"]), (TuneAnswer::None, TuneEnd::NoModeLeft));
    let (answer, end) = of(&["base", "threadedbusy", "defer20"]);
    assert_eq!((answer, end), (TuneAnswer::NoSettingBetter, TuneEnd::Answered), "defer20 was compared");
}

#[test]
fn a_guard_that_cannot_be_read_ends_the_search_at_once() {
    let guards = vec!["drops".parse().unwrap()];
    let mut server = Server { is_drops_readable: false, ..Server::new(one_is_best, 4) };
    let result = search(&mut server, TunePlan { guards, ..plan("least cpu") });
    assert_eq!(
        result.end,
        TuneEnd::GuardUnreadable { guard: "drops".to_owned(), requests: Some(2_010), requests_needed: None }
    );
    assert_eq!((server.log.len(), result.answer), (1, TuneAnswer::None));
}

#[test]
fn a_metric_that_is_never_read_ends_the_search_after_a_round() {
    let result = search(&mut Server::new(one_is_best, 4), plan("least watts"));
    assert_eq!(result.end, TuneEnd::MetricUnreadable { metric: "watts".to_owned() });
}

#[test]
fn a_mode_that_cannot_be_set_leaves_the_race() {
    let mut server = Server { refused: "suspend40".parse().ok(), ..Server::new(one_is_best, 4) };
    let result = search(&mut server, plan("least cpu"));
    let arm = result.arms.iter().find(|arm| arm.mode.to_string() == "suspend40").unwrap();
    assert_eq!(arm.state, ArmState::NotSettable { reason: "refused by the kernel".to_owned() });
    let answer = result.answer.mode().unwrap();
    assert!(one_is_best(&answer, 0).0 < 8.8, "{answer}: there are modes with 8.5 us");
}

#[test]
fn a_mode_that_stalls_during_a_slice_leaves_the_race() {
    let mut server = Server { stalling: "suspend40".parse().ok(), ..Server::new(one_is_best, 4) };
    let result = search(&mut server, plan("least cpu"));
    let arm = result.arms.iter().find(|arm| arm.mode.to_string() == "suspend40").unwrap();
    assert_eq!(arm.state, ArmState::NotSettable { reason: "it stalls".to_owned() });
    assert!(result.answer.mode().is_some(), "{:?}", result.end);
}

#[test]
fn a_slice_that_fails_once_is_repeated() {
    for mode in ["suspend40", "base"] {
        let mut server = Server { slow: Some((mode.parse().unwrap(), 1)), ..Server::new(one_is_best, 4) };
        let result = search(&mut server, plan("least cpu"));
        assert_eq!(result.answer.mode().unwrap().to_string(), "suspend40", "{mode}");
    }
}

#[test]
fn a_mode_under_which_a_slice_fails_twice_leaves_the_race_and_the_present_setting_ends_it() {
    let of = |mode: &str| {
        let mut server = Server { slow: Some((mode.parse().unwrap(), 2)), ..Server::new(one_is_best, 4) };
        search(&mut server, plan("least cpu"))
    };
    let result = of("suspend40");
    let arm = result.arms.iter().find(|arm| arm.mode.to_string() == "suspend40").unwrap();
    assert_eq!(arm.state, ArmState::NotSettable { reason: "it is slow".to_owned() });
    assert!(result.answer.mode().is_some(), "{:?}", result.end);
    assert_eq!(of("base").end, TuneEnd::SubjectFailed { reason: "it is slow".to_owned() });
}

#[test]
fn a_guard_that_the_present_setting_violates_is_the_reason_for_no_answer() {
    let guards = || vec!["p99>100us".parse().unwrap()];
    let result = search(&mut Server::new(one_is_best, 4), TunePlan { guards: guards(), ..plan("least cpu") });
    let TuneEnd::PresentViolatesGuard { guard, present, modes, .. } = result.end else { panic!("{:?}", result.end) };
    assert_eq!((result.answer, guard), (TuneAnswer::None, "p99>100us".to_owned()));
    assert!(present > 200.0 && modes > 5, "{present} {modes}");
    let relative = || vec!["p99>1.1x".parse().unwrap()];
    let result = search(&mut Server::new(one_is_best, 4), TunePlan { guards: relative(), ..plan("least cpu") });
    assert_eq!(result.answer.mode().unwrap().to_string(), "suspend40");
}

#[test]
fn a_relative_guard_protects_from_the_first_slice_of_another_mode_on() {
    fn suspension_is_slow(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        if mode.kind().word() == "suspend" { (8.0, 900.0) } else { (14.0, 250.0) }
    }
    for seed in 0..5 {
        let guards = vec!["p99>2x".parse().unwrap()];
        let mut server = Server::new(suspension_is_slow, seed);
        let result = search(&mut server, TunePlan { guards, seed, ..plan("least cpu") });
        assert_eq!(server.log[0].0, DeliveryMode::default(), "the present setting is first");
        let slices = result.arms.iter().filter(|arm| arm.mode.kind().word() == "suspend").map(|arm| arm.slices);
        assert_eq!(slices.sum::<u32>(), 0, "a slice that violates a guard is not recorded");
    }
}

#[test]
fn an_arm_that_misses_the_limit_never_wins() {
    fn cheap_but_slow(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        let timeout = timeout_us(mode).max(1.0);
        (14.0 - timeout.ln(), 150.0 + timeout)
    }
    let result = search(&mut Server::new(cheap_but_slow, 5), plan("p99<=300us, least cpu"));
    let mode = result.answer.mode().unwrap();
    assert!(timeout_us(&mode) < 150.0 && timeout_us(&mode) >= 20.0, "{mode}");
    let missing: Vec<_> = result.arms.iter().filter(|arm| timeout_us(&arm.mode) > 600.0).collect();
    assert!(missing.len() > 1);
    for arm in missing {
        assert_ne!(arm.state, ArmState::Alive, "{}", arm.mode);
    }
}

#[test]
fn a_mode_that_holds_a_limit_which_the_present_setting_misses_is_an_answer() {
    fn base_is_slow(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        if *mode == DeliveryMode::default() { (10.0, 500.0) } else { (12.0, 200.0) }
    }
    let result = search(&mut Server::new(base_is_slow, 6), plan("p99<=300us, least cpu"));
    assert!(matches!(result.answer, TuneAnswer::HoldsLimits { .. }), "{:?}", result.answer);
}

#[test]
fn a_relative_limit_is_judged_beside_the_present_setting_although_the_machine_becomes_slower() {
    let limited = |goal| {
        let mut server = Server { slowdown: 0.005, ..Server::new(one_is_best, 8) };
        search(&mut server, plan(goal)).answer
    };
    assert_eq!(limited("p99<=1.1x, least cpu").mode().map(|mode| mode.kind().word()), Some("suspend"));
    assert!(matches!(limited("p99<=275us, least cpu"), TuneAnswer::NoSettingBetter));
}

#[test]
fn a_relative_limit_below_1_is_missed_by_the_present_setting() {
    fn polling_is_fast(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        if mode.kind().word() == "napibusy" { (12.0, 100.0) } else { (10.0, 300.0) }
    }
    let result = search(&mut Server::new(polling_is_fast, 9), plan("p99<=0.5x, least cpu"));
    let TuneAnswer::HoldsLimits { mode, .. } = result.answer else { panic!("{:?}", result.answer) };
    assert_eq!(mode.kind().word(), "napibusy");
}

#[test]
fn a_mode_under_which_requests_fail_is_not_an_answer() {
    for goal in ["least cpu", "p99<=300us, least cpu", "p99<=240us, least cpu"] {
        let mut server = Server { failing: Some("suspend"), ..Server::new(one_is_best, 11) };
        let answer = search(&mut server, plan(goal)).answer;
        assert!(answer.mode().is_none_or(|mode| mode.kind().word() != "suspend"), "{goal}: {answer:?}");
    }
}

#[test]
fn a_few_readable_slices_do_not_show_that_a_limit_holds() {
    let mut server = Server { silent: Some("suspend"), ..Server::new(one_is_best, 12) };
    let result = search(&mut server, plan("p99<=300us, least cpu"));
    assert!(result.answer.mode().is_none_or(|mode| mode.kind().word() != "suspend"), "{:?}", result.answer);
}

#[test]
fn a_few_readable_slices_do_not_show_that_a_mode_is_better() {
    let mut server = Server { silent: Some("suspend"), ..Server::new(one_is_best, 12) };
    let result = search(&mut server, plan("lowest p99"));
    assert!(result.answer.mode().is_none_or(|mode| mode.kind().word() != "suspend"), "{:?}", result.answer);
}

#[test]
fn a_count_that_is_always_0_holds_a_relative_limit() {
    let result = search(&mut Server::new(one_is_best, 12), plan("stalls<=1.1x, least cpu"));
    assert_eq!(result.answer.mode().unwrap().kind().word(), "suspend");
}

#[test]
fn a_budget_that_is_too_short_for_a_comparison_is_not_a_finding() {
    for slower_than_planned in [3.0, 8.0, 100.0] {
        let mut server = Server { slower_than_planned, ..Server::new(one_is_best, 15) };
        let TunePlan { budget_ms, .. } = plan("least cpu");
        let short = TunePlan { budget_ms: budget_ms / 4, ..plan("least cpu") };
        let result = search(&mut server, short);
        let slice_ms = 210.0 * slower_than_planned;
        assert!(result.spent_ms <= budget_ms as f64 / 4.0 + 4.0 * slice_ms, "{} ms", result.spent_ms);
        let is_found = matches!(result.answer, TuneAnswer::Better { .. });
        assert!(is_found || result.end == TuneEnd::BudgetSpent, "{slower_than_planned}: {:?}", result.end);
    }
}

#[test]
fn a_slice_for_which_no_time_is_left_ends_the_search_unless_it_is_the_first() {
    let end = |slices_max| search(&mut Server { slices_max, ..Server::new(one_is_best, 15) }, plan("least cpu")).end;
    assert_eq!(end(20), TuneEnd::BudgetSpent);
    assert_eq!(end(0), TuneEnd::SubjectFailed { reason: "no time is left".to_owned() });
}

#[test]
fn every_accepted_budget_leaves_time_for_a_comparison() {
    for goal in ["least cpu", "p99<=300us, least cpu"] {
        let needed_ms = plan(goal).budget_min_ms();
        let result = search(&mut Server::new(one_is_best, 16), TunePlan { budget_ms: needed_ms, ..plan(goal) });
        assert!(!result.confirmations.is_empty() && result.end == TuneEnd::Answered, "{goal}: {:?}", result.end);
    }
}

#[test]
fn a_candidate_that_is_not_better_is_followed_by_another() {
    let result = search(&mut Server::new(none_differs, 13), plan("p99<=300us, least cpu"));
    assert_eq!(result.answer, TuneAnswer::NoSettingBetter);
    let mut modes: Vec<String> = result.confirmations.iter().map(|one| one.mode.to_string()).collect();
    modes.dedup();
    assert_eq!(modes.len(), result.confirmations.len());
}

#[test]
fn a_relative_limit_of_1_is_not_missed_by_the_present_setting_at_several_loads() {
    fn polling_is_fast_and_costly(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        if mode.kind().word() == "napibusy" { (20.0, 100.0) } else { (14.0, 250.0) }
    }
    let loads = vec!["50%".to_owned(), "90%".to_owned()];
    let plan = TunePlan { loads, budget_ms: 400_000, ..plan("p99<=1x, least cpu") };
    let result = search(&mut Server::new(polling_is_fast_and_costly, 14), plan);
    assert_eq!(result.answer, TuneAnswer::NoSettingBetter);
    assert!(result.confirmations.iter().all(|one| one.mode.kind().word() != "napibusy"));
}

#[test]
fn with_several_loads_the_answer_is_the_best_for_the_worst_load() {
    fn by_load(mode: &DeliveryMode, load: usize) -> (f64, f64) {
        match (mode.kind().word(), load) {
            ("suspend", 0) => (5.0, 200.0),
            ("suspend", _) => (16.0, 200.0),
            ("defer", _) => (11.0, 200.0),
            ("napibusy", 0) => (12.0, 200.0),
            ("napibusy", _) => (9.0, 200.0),
            _ => (14.0, 250.0),
        }
    }
    let loads = vec!["25%".to_owned(), "90%".to_owned()];
    let plan = TunePlan { loads, budget_ms: 400_000, ..plan("least cpu") };
    let mut server = Server::new(by_load, 7);
    let result = search(&mut server, plan);
    assert_eq!(result.answer.mode().unwrap().kind().word(), "defer");
    let preferred: Vec<_> = result.preferred.iter().map(|mode| mode.unwrap().kind().word()).collect();
    assert_eq!(preferred, ["suspend", "napibusy"]);
    assert!(server.log.iter().any(|(_, load)| *load == 1));
}

#[test]
fn the_same_seed_gives_the_same_slices_and_a_result_that_survives_its_file() {
    let run = |seed| {
        let mut server = Server::new(one_is_best, 8);
        let result = search(&mut server, TunePlan { seed, ..plan("least cpu") });
        (server.log, result)
    };
    let (first, again, other) = (run(3), run(3), run(4));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    let text = serde_json::to_string(&first.1).unwrap();
    assert_eq!(serde_json::from_str::<TuneResult>(&text).unwrap(), first.1);
}

#[test]
fn refused_kinds_are_never_set() {
    let refused = vec![RefusedMode { kind: "suspend".to_owned(), reason: "needs Linux 6.13".to_owned() }];
    let space = TuneSpace { refused };
    let plan = TunePlan::new("least cpu".parse().unwrap(), DeliveryMode::default(), space, 5);
    let mut server = Server::new(one_is_best, 9);
    search(&mut server, plan);
    assert!(server.log.iter().all(|(mode, _)| mode.kind().word() != "suspend"));
}

#[test]
fn a_search_that_is_interrupted_has_no_answer_and_restores() {
    let mut server = Server::new(one_is_best, 10);
    let is_confirming = |tuner: &Tuner| tuner.next_slice().is_some_and(|next| next.phase == TunePhase::Confirm);
    let watch = &mut |tuner: &Tuner, stage: SliceStage<'_>| match stage {
        SliceStage::Begins if is_confirming(tuner) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let finished = tune(&mut server, plan("least cpu"), watch).unwrap();
    assert_eq!((finished.result.end, finished.result.answer), (TuneEnd::Interrupted, TuneAnswer::None));
    assert_eq!(server.restored, 1);
}
