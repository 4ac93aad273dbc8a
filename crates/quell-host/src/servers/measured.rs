//! What earlier measurements say about programs: the one answer of `quell`, `quell status` and `quell attach`.

use std::collections::BTreeSet;

use quell_linux::{NapiId, Pid};
use quell_mode::{DeliveryMode, NapiSettings, PartialNapiSettings};

use super::next_step::{Answered, NextStep, by_answers, of_attached};
use super::{EarlierAnswer, EarlierAnswers};
use crate::attach::AttachedMode;
use crate::attach::payoff::ModePayoff;
use crate::findings::{QueuePerEpoll, can_come_to_mix, workers_can_be_pinned};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Process, Snapshot};

/// A mode that programs have, or are about to get.
#[derive(Debug, Clone, Copy)]
pub struct JudgedMode<'a> {
    pub attached: AttachedMode,
    /// Whether the snapshot is from before it was set.
    pub is_planned: bool,
    /// Settings of the programs without it; absent if they are unknown, or are those of the snapshot.
    pub below: Option<DeliveryMode>,
    /// What counters show; absent before it is set.
    pub payoff: Option<&'a ModePayoff>,
    /// Packets per second from the queues of the programs; absent if they are unknown.
    pub packets_per_s: Option<u64>,
}

impl JudgedMode<'_> {
    /// A mode that is about to be set on programs of which nothing else is known.
    #[must_use]
    pub fn planned(attached: AttachedMode) -> Self {
        Self { attached, is_planned: true, below: None, payoff: None, packets_per_s: None }
    }
}

/// What a measurement says about a mode of programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredStep {
    pub next: NextStep,
    /// Whether the mode was among those that were compared.
    pub was_compared: bool,
    /// Whether workers of the programs can be pinned.
    pub can_pin: bool,
}

/// The next step of programs with this mode by a stored measurement that holds at their load and settings, as `quell`
/// has it. Absent if no measurement decides.
#[must_use]
pub fn measured_step(
    now: &Snapshot,
    programs: &BTreeSet<Pid>,
    measured: &EarlierAnswers,
    judged: &JudgedMode<'_>,
) -> Option<MeasuredStep> {
    let query = SnapshotQuery::new(now, None);
    let processes: Vec<&Process> = now.processes.iter().filter(|process| programs.contains(&process.pid)).collect();
    let answers = processes.iter().find_map(|process| measured.get(&(process.pid, process.name.clone())))?;
    let receiving: Vec<&EpollContext<'_>> =
        query.epolls().filter(|epoll| programs.contains(&epoll.process.pid) && !epoll.by_napi.is_empty()).collect();
    let files = processes.iter().filter_map(|process| process.files.known());
    let queues: BTreeSet<NapiId> = files.flat_map(|files| query.napis_of(files)).collect();
    let attached = judged.attached;
    let (mixing, can_steer) = sorting(&query, &processes, &receiving, attached.steers);
    let present = ServerSetting::of(&query, &queues, &receiving);
    let setting = MeasuredSetting {
        attached: Some(attached),
        below: (!judged.is_planned || judged.below.is_some()).then(|| judged.below.into()),
        present,
        can_steer,
        mixing: mixing.as_ref(),
    };
    let answered = setting.answered(answers, judged.packets_per_s);
    let was_compared = matches!(&answered, Answered::By(answer) if answer.compared.contains(&attached.mode));
    let can_pin = workers_can_be_pinned(now, programs);
    let next = of_attached(&attached, judged.payoff, can_steer, answered);
    (next != NextStep::Check).then_some(MeasuredStep { next, was_compared, can_pin })
}

/// How epolls of a program can get the connections of one queue each, and whether only steering does it. Absent if they
/// have, or are steered as far as that helps.
pub(super) fn sorting(
    query: &SnapshotQuery<'_>,
    processes: &[&Process],
    receiving: &[&EpollContext<'_>],
    is_steered: bool,
) -> (Option<QueuePerEpoll>, bool) {
    let stays = |by: &QueuePerEpoll| !is_steered || matches!(by, QueuePerEpoll::Impossible { .. });
    let mixing = QueuePerEpoll::of_epolls(query, receiving).filter(stays);
    let can_steer = !is_steered
        && match &mixing {
            Some(by) => *by == QueuePerEpoll::Steered,
            None => processes.iter().any(|process| can_come_to_mix(query, process)),
        };
    (mixing, can_steer)
}

/// What decides whether an answer holds for a program, besides its load.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredSetting<'a> {
    pub(super) attached: Option<AttachedMode>,
    /// Setting without its attachment; absent if it is not attached.
    pub(super) below: Option<ServerSetting>,
    pub(super) present: ServerSetting,
    pub(super) can_steer: bool,
    pub(super) mixing: Option<&'a QueuePerEpoll>,
}

impl MeasuredSetting<'_> {
    pub(super) fn answered<'a>(&self, answers: &'a [EarlierAnswer], load: Option<u64>) -> Answered<'a> {
        let below = self.below.unwrap_or(self.present);
        let is_steered = self.attached.is_some_and(|attached| attached.steers);
        let answers = answers.iter().filter(|answer| !(is_steered && answer.is_unsteered()));
        let (current, old): (Vec<_>, Vec<_>) = answers.partition(|answer| {
            let is_set = self.below.is_none() && answer.mode().is_some_and(|mode| self.present.mode() == Some(mode));
            is_set || below.is_one_of(&[answer.reference]) || below.is_one_of(&answer.compared)
        });
        if let Some(chosen) = self.attached.and_then(|attached| chosen_for_goal(attached.mode, &current, load)) {
            return Answered::By(chosen);
        }
        match (current.is_empty(), old.first()) {
            (true, Some(EarlierAnswer { measured, reference, .. })) => {
                Answered::Missing(Box::new(NextStep::SettingsChanged {
                    steered: self.can_steer,
                    measured: measured.clone(),
                    then: *reference,
                    now: below.mode(),
                }))
            }
            _ => by_answers(current.into_iter(), load, self.mixing, self.can_steer),
        }
    }
}

/// The newest answer at this load that compared the mode, if the goal of its search chose it.
fn chosen_for_goal<'a>(
    mode: DeliveryMode,
    answers: &[&'a EarlierAnswer],
    load: Option<u64>,
) -> Option<&'a EarlierAnswer> {
    let knows = |answer: &&EarlierAnswer| answer.compared.contains(&mode) && answer.measured.decides_at(load);
    answers.iter().copied().find(knows).filter(|newest| newest.for_goal == Some(mode))
}

/// Setting of all queues and epolls of a server.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServerSetting {
    Unknown,
    /// It differs between them, or no mode has it.
    OfNoMode,
    OfMode(DeliveryMode),
}

impl ServerSetting {
    pub(super) fn of(query: &SnapshotQuery<'_>, queues: &BTreeSet<NapiId>, epolls: &[&EpollContext<'_>]) -> Self {
        let of_queues: Option<Vec<_>> = queues.iter().map(|&id| Some(query.napi(id)?.1.settings())).collect();
        let params: Option<Vec<_>> = epolls.iter().map(|epoll| epoll.params).collect();
        let (Some(of_queues), Some(params)) = (of_queues, params) else { return Self::Unknown };
        let Some(&napi) = of_queues.first() else { return Self::Unknown };
        let epoll = params.first().copied().unwrap_or_default();
        let is_equal = of_queues.iter().all(|other| *other == napi) && params.iter().all(|other| *other == epoll);
        let Some(napi) = PartialNapiSettings::from(NapiSettings::default()).changed_by(&napi).complete() else {
            return Self::Unknown;
        };
        let mode = if is_equal { DeliveryMode::recognised(napi, epoll) } else { None };
        mode.map_or(Self::OfNoMode, Self::OfMode)
    }

    pub(super) fn mode(self) -> Option<DeliveryMode> {
        match self {
            Self::OfMode(mode) => Some(mode),
            Self::Unknown | Self::OfNoMode => None,
        }
    }

    /// Whether it is one of these, as far as it is known.
    fn is_one_of(self, modes: &[DeliveryMode]) -> bool {
        match self {
            Self::Unknown => true,
            Self::OfNoMode => false,
            Self::OfMode(mode) => modes.contains(&mode),
        }
    }
}

impl From<Option<DeliveryMode>> for ServerSetting {
    fn from(mode: Option<DeliveryMode>) -> Self {
        mode.map_or(Self::Unknown, Self::OfMode)
    }
}
