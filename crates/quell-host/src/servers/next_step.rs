//! The next step of a server: by its problems, by what it has, and by earlier measurements. Pure.

use quell_linux::Pid;
use quell_mode::{DeliveryMode, Threaded};
use schemars::JsonSchema;
use serde::Serialize;

use super::{EarlierAnswer, EarlierMeasurement, EarlierVerdict, OpenQuestion};
use crate::attach::AttachedMode;
use crate::attach::own_work::OwnWork;
use crate::attach::payoff::{DoesItPay, ModePayoff};
use crate::findings::{EPOLL_MIXES_NAPIS, QueuePerEpoll};

/// What to do next with a server: fix what prevents a benefit, measure, attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum NextStep {
    /// Fix what this finding describes.
    Fix {
        /// ID of its rule.
        finding: &'static str,
    },
    /// Find out why its queues stalled under a mode that was therefore reverted.
    FindStall {
        mode: DeliveryMode,
        /// Cause that the rules of `quell doctor` found under that mode; absent if they found none.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// Do nothing: it does not read what it receives.
    NoModeHelps,
    /// Do nothing: it works so long for each packet that its delivery does not matter.
    NothingToGain(OwnWork),
    /// Compare modes on it.
    Measure {
        /// Whether its workers can get one queue each, which only `--steer` does.
        steered: bool,
    },
    /// Compare modes again: the load differs from those of earlier measurements.
    MeasureAgain {
        /// Whether its workers can get one queue each, which only `--steer` does.
        steered: bool,
        /// The newest of them.
        measured: EarlierMeasurement,
        /// Present packets per second.
        packets_per_s: u64,
    },
    /// Measure as a result without an answer advises: longer, or after another step.
    Decide {
        measured: EarlierMeasurement,
        /// Why it has no answer, and what to do.
        advice: String,
        command: String,
    },
    /// Attach the mode that a measurement has found better.
    Attach {
        mode: DeliveryMode,
        /// Whether it has to be steered for that, as when it was measured.
        steered: bool,
        measured: EarlierMeasurement,
    },
    /// Replace the attached mode by this one: a measurement of both has found no mode that is better than this one.
    Return {
        /// The mode.
        mode: DeliveryMode,
        /// Whether its queues have it without the attachment.
        beneath: bool,
        measured: EarlierMeasurement,
    },
    /// Compare modes again: its settings without its attachment are not those of the newest measurement.
    SettingsChanged {
        /// Whether its workers can get one queue each, which only `--steer` does.
        steered: bool,
        measured: EarlierMeasurement,
        /// Settings then.
        then: DeliveryMode,
        /// Present settings; absent if they differ between its queues.
        now: Option<DeliveryMode>,
    },
    /// Leave it: a measurement has found no mode that is better without a cost.
    Keep {
        measured: EarlierMeasurement,
        /// What the measurement left open; absent if nothing.
        #[serde(skip_serializing_if = "Option::is_none")]
        open: Option<OpenQuestion>,
    },
    /// See whether its attached mode pays.
    Check,
    /// Wait: an experiment switches its settings.
    AwaitExperiment {
        /// PID of its command.
        pid: Pid,
    },
    /// Wait: it has no connection through a queue at present.
    AwaitClients,
    /// Wait for datagrams, or restart it: its UDP sockets have recorded no queue.
    AwaitDatagrams,
}

/// What measurements say about a server, or that one is missing.
pub(super) enum Answered<'a> {
    By(&'a EarlierAnswer),
    Missing(Box<NextStep>),
}

/// The next step for an attached server without problems: by measurements, if they know a mode, else to check.
pub(super) fn of_attached(
    attached: &AttachedMode,
    payoff: Option<&ModePayoff>,
    can_steer: bool,
    answered: Answered<'_>,
) -> NextStep {
    let is_ill = |payoff: &ModePayoff| {
        matches!(
            payoff.pays,
            DoesItPay::NotInEffect { on_unset_epolls: false } | DoesItPay::LeavesQueuesUnpolled { .. }
        )
    };
    let Answered::By(answer) = answered else { return NextStep::Check };
    let EarlierAnswer { measured, verdict, open, compared, worse, reference, steered, for_goal } = answer;
    if payoff.is_some_and(is_ill) {
        return NextStep::Check;
    }
    let (mode, measured, open) = (attached.mode, measured.clone(), open.clone());
    let next = match verdict {
        _ if *for_goal == Some(mode) => NextStep::Keep { measured, open },
        EarlierVerdict::Better(better) if *better == mode => NextStep::Keep { measured, open },
        // A mode that was not compared may be better still; before it is attached, the answer is worth knowing.
        EarlierVerdict::Better(_) if !compared.contains(&mode) && payoff.is_some() => NextStep::Check,
        EarlierVerdict::Better(better) => {
            NextStep::Attach { mode: *better, measured, steered: *steered || attached.steers || can_steer }
        }
        // `base` leaves NAPI threads as they are.
        EarlierVerdict::Keep(kept)
            if *kept == mode || mode == DeliveryMode::default() && kept.napi().threaded != Threaded::Off =>
        {
            NextStep::Keep { measured, open }
        }
        EarlierVerdict::Keep(kept) if compared.contains(&mode) && (open.is_none() || worse.contains(&mode)) => {
            NextStep::Return { mode: *kept, beneath: reference == kept, measured }
        }
        EarlierVerdict::Undecided { .. } if worse.contains(&mode) => {
            NextStep::Return { mode: *reference, beneath: true, measured }
        }
        EarlierVerdict::Undecided { advice, command, .. }
            if payoff.is_none_or(|payoff| compared.contains(&mode) && !payoff.costs()) =>
        {
            NextStep::Decide { measured, advice: advice.clone(), command: command.clone() }
        }
        EarlierVerdict::Keep(_) | EarlierVerdict::Undecided { .. } => NextStep::Check,
    };
    // Settings that are lost are set again, unless a measurement found the mode worse.
    let is_lost =
        payoff.is_some_and(|payoff| matches!(payoff.pays, DoesItPay::Drifted | DoesItPay::NotInEffect { .. }));
    match next {
        NextStep::Keep { .. } | NextStep::Decide { .. } if is_lost => NextStep::Check,
        next => next,
    }
}

/// The next step for a server without problems that is not attached, with this present setting.
pub(super) fn of_unattached(present: Option<DeliveryMode>, can_steer: bool, answered: Answered<'_>) -> NextStep {
    let EarlierAnswer { measured, verdict, open, steered, .. } = match answered {
        Answered::By(answer) => answer.clone(),
        Answered::Missing(step) => return *step,
    };
    let steered = steered || can_steer;
    match verdict {
        EarlierVerdict::Better(mode) if present != Some(mode) => NextStep::Attach { mode, steered, measured },
        // The mode that was kept was attached then, or was compared with the present settings.
        EarlierVerdict::Keep(mode) if present.is_some_and(|present| present != mode) => {
            NextStep::Attach { mode, steered, measured }
        }
        EarlierVerdict::Better(_) | EarlierVerdict::Keep(_) => NextStep::Keep { measured, open },
        EarlierVerdict::Undecided { advice, command, .. } => NextStep::Decide { measured, advice, command },
    }
}

/// The answer for a server without problems that received this many packets per second: the newest one that was measured
/// at this load, otherwise the newest one that holds at it. One without a mode counts only if no other has a mode, one that
/// left something open only if no other is complete. One that was measured with connections of several queues in one epoll
/// does not count if this has changed, or if steering changes it. `mixing` is how such an epoll can get the connections of
/// one queue; absent without one.
pub(super) fn by_answers<'a>(
    answers: impl Iterator<Item = &'a EarlierAnswer>,
    load: Option<u64>,
    mixing: Option<&QueuePerEpoll>,
    can_steer: bool,
) -> Answered<'a> {
    let holds = |answer: &&EarlierAnswer| {
        let was_mixed = answer.measured.problem.as_deref() == Some(EPOLL_MIXES_NAPIS);
        let is_mixed = mixing.is_some() && !answer.steered && !matches!(answer.verdict, EarlierVerdict::Better(_));
        // The command of such a result does not steer.
        let is_open = matches!(answer.verdict, EarlierVerdict::Undecided { unsteered: false, .. });
        let is_steered_next = can_steer && (is_mixed || was_mixed || is_open && !answer.steered);
        let is_sorted_now = was_mixed && mixing.is_none();
        !is_steered_next && !is_sorted_now
    };
    let answers: Vec<&EarlierAnswer> = answers.filter(holds).collect();
    let is_refuted = |at: usize| answers[..at].iter().any(|newer| newer.refutes(answers[at]));
    let answers: Vec<&EarlierAnswer> = (0..answers.len()).filter(|&at| !is_refuted(at)).map(|at| answers[at]).collect();
    let at_this_load = answers.iter().copied().filter(|answer| answer.measured.decides_at(load));
    let order = |answer: &&EarlierAnswer| (!answer.is_decided(), !answer.measured.is_near(load), answer.open.is_some());
    if let Some(answer) = at_this_load.min_by_key(order) {
        return Answered::By(answer);
    }
    Answered::Missing(Box::new(match (answers.first(), load) {
        (Some(EarlierAnswer { measured, .. }), Some(packets_per_s)) => {
            NextStep::MeasureAgain { steered: can_steer, measured: measured.clone(), packets_per_s }
        }
        _ if matches!(mixing, Some(QueuePerEpoll::Configured { .. })) => NextStep::Fix { finding: EPOLL_MIXES_NAPIS },
        _ => NextStep::Measure { steered: can_steer },
    }))
}
