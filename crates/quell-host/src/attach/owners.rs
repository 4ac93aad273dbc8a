//! Other owners of the queues and epolls of an attachment: profiles, other attachments, experiments.

use std::collections::BTreeSet;
use std::path::Path;

use quell_change::change::{Change, NapiSettingsChange};
use quell_change::journal::{History, Journal, JournalError, Purpose, TargetProgram};
use quell_change::settings::epoll::EpollPlace;
use quell_change::transaction::{Transaction, permit_queues};
use quell_linux::{NapiId, Pid};
use quell_mode::{DeliveryMode, NapiAttribute, PartialNapiSettings};
use schemars::JsonSchema;
use serde::Serialize;

use super::attached::{Attached, parents};
use super::error::AttachError;
use super::plan::{AttachPlan, AttachStep};

pub fn refuse_under_owners(journal: &Journal, plan: &AttachPlan) -> Result<(), AttachError> {
    let queues = plan.queues().map(|step| (step.namespace_cookie, step.napi, step.new));
    permit_queues(journal, queues).map_err(AttachError::Begin)
}

impl AttachPlan {
    /// Values to set, by NAPI instance.
    #[must_use]
    pub fn values(&self) -> Vec<(NapiId, PartialNapiSettings)> {
        self.queues().map(|step| (step.napi, step.new)).collect()
    }
}

/// Whether the object of a step, which this attachment has set, has the value of a newer owner.
pub(super) fn newer_owner_has_set(transaction: &Transaction, step: &AttachStep) -> Result<bool, JournalError> {
    match step {
        AttachStep::Queue(step) => transaction.newer_owner_has_set_queue(step.napi, &step.old),
        AttachStep::Epoll(step) => {
            let place = EpollPlace::new(step.pid, step.start_time_ticks, step.fd);
            transaction.newer_owner_has_set_epoll(place, step.old)
        }
        AttachStep::Sockets(_) | AttachStep::Ring(_) => Ok(false),
    }
}

/// Other attachments that use queues of an attachment: an experiment on one of them would change all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct QueueSharers {
    /// Their programs that are not children of others.
    pub programs: Vec<Pid>,
    /// Whether all have the same mode, so that one experiment can measure them together.
    pub same_mode: bool,
    /// Whether `quell run` started one of them: its mode ends with its command only.
    pub launched: bool,
    /// The newer one whose values are in force; absent if none has set other values since. Without an own attachment, the
    /// newest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<ModeInForce>,
}

/// Mode of another attachment that is in force on the queues of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ModeInForce {
    pub mode: DeliveryMode,
    /// Its first program.
    pub program: TargetProgram,
}

impl QueueSharers {
    /// The attachments of other programs than `programs` that use one of these queues.
    #[must_use]
    pub fn of(
        programs: &BTreeSet<Pid>,
        napis: &BTreeSet<NapiId>,
        attached: &[Attached],
        parent_of: impl Fn(Pid) -> Option<Pid>,
    ) -> Option<Self> {
        let pids = |one: &Attached| one.history.targets.iter().map(|target| target.pid).collect::<Vec<_>>();
        let uses =
            |one: &Attached| queues(&one.history).any(|queue| napis.iter().any(|napi| napi.get() == queue.napi_id));
        let attachments = attached.iter().filter(|one| one.mode().is_some());
        let (own, others): (Vec<_>, Vec<_>) =
            attachments.partition(|one| pids(one).iter().any(|pid| programs.contains(pid)));
        let others: Vec<&Attached> = others.into_iter().filter(|one| uses(one)).collect();
        let first = others.first()?.purpose();
        let is_like_first = |one: &&&Attached| {
            matches!(one.purpose(), Purpose::Attachment { .. }) && one.purpose().mode() == first.mode()
        };
        let same_mode = own.iter().chain(&others).all(|one| is_like_first(&one));
        let launched = others.iter().any(|one| one.is_launched());
        let programs = others.iter().flat_map(|one| parents(&pids(one), &parent_of)).collect();
        let mode_of = |mode: Option<DeliveryMode>, targets: &[TargetProgram]| {
            let first = *parents(&targets.iter().map(|target| target.pid).collect::<Vec<_>>(), &parent_of).first()?;
            let program = targets.iter().find(|target| target.pid == first)?.clone();
            Some(ModeInForce { mode: mode?, program })
        };
        let set_at = |one: &&&Attached| {
            let its = queues(&one.history).filter(|queue| napis.iter().any(|napi| napi.get() == queue.napi_id));
            its.map(|queue| queue.set_at_boot_ns).max()
        };
        let in_force = match &own[..] {
            [] => others.iter().max_by_key(set_at).and_then(|one| mode_of(one.purpose().mode(), &one.history.targets)),
            own => {
                let mut covered = own.iter().flat_map(|one| {
                    queues(&one.history).filter_map(|queue| covered_values(queue, &one.path, attached))
                });
                covered.find_map(|by| mode_of(by.owner.mode(), &by.programs))
            }
        };
        Some(Self { programs, same_mode, launched, in_force })
    }

    /// `quell bench` with this option for programs and the sharers of their queues, because an experiment changes each queue
    /// for all its users: those with the same mode are measured, too, others are detached first.
    #[must_use]
    pub fn bench(sharing: Option<&Self>, programs: &str) -> String {
        let Some(sharing) = sharing else { return format!("quell bench {programs}") };
        let joined = |separator| sharing.programs.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator);
        match sharing.same_mode && programs.starts_with("--pid ") {
            true => format!("quell bench {programs},{}", joined(",")),
            false => format!("quell detach {} && quell bench {programs}", joined(" ")),
        }
    }

    /// The same for the queues that an attachment has set.
    #[must_use]
    pub fn of_attached(one: &Attached, attached: &[Attached], parent_of: impl Fn(Pid) -> Option<Pid>) -> Option<Self> {
        let programs = one.history.targets.iter().map(|target| target.pid).collect();
        let napis = queues(&one.history).filter_map(|queue| NapiId::from_kernel(queue.napi_id)).collect();
        Self::of(&programs, &napis, attached, parent_of)
    }
}

/// An owner of queues that a plan sets, too. Some of its values are not in force while the planned ones are set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CoveredOwner {
    pub owner: Purpose,
    /// Empty for a profile.
    pub programs: Vec<TargetProgram>,
}

/// The owners that these new values of queues cover. Those of `programs` are replaced instead.
#[must_use]
pub fn covered_by(
    planned: &[(NapiId, PartialNapiSettings)],
    programs: &BTreeSet<Pid>,
    owners: &[Attached],
) -> Vec<CoveredOwner> {
    let is_covered = |own: &NapiSettingsChange| {
        planned.iter().any(|(napi, new)| napi.get() == own.napi_id && !covering(&own.new, new).is_empty())
    };
    let others = owners.iter().filter(|one| one.history.targets.iter().all(|target| !programs.contains(&target.pid)));
    let covered = others.filter(|one| queues(&one.history).any(is_covered));
    covered.map(|one| CoveredOwner { owner: one.purpose().clone(), programs: one.history.targets.clone() }).collect()
}

/// Values of a queue that a newer owner has set differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoveredValues {
    pub now: PartialNapiSettings,
    pub owner: Purpose,
    pub programs: Vec<TargetProgram>,
}

/// The values of a queue that the newest owner of some of them has set differently since `change` of the journal `own`.
#[must_use]
pub fn covered_values(change: &NapiSettingsChange, own: &Path, owners: &[Attached]) -> Option<CoveredValues> {
    let covered = newer(change, own, owners).filter_map(|(owner, queue)| {
        let now = covering(&change.new, &queue.new);
        (!now.is_empty()).then_some((queue.set_at_boot_ns, owner, now))
    });
    let (_, owner, now) = covered.max_by_key(|(at, ..)| *at)?;
    Some(CoveredValues { now, owner: owner.purpose().clone(), programs: owner.history.targets.clone() })
}

/// Owners that keep the values of a queue when the journal `own` with this history is undone, because they have set all of
/// them since: the newest one for each such change.
#[must_use]
pub fn keep_values<'a>(history: &History, own: &Path, owners: &'a [Attached]) -> Vec<&'a Purpose> {
    let newest = |change: &NapiSettingsChange| {
        let has_all = |(_, queue): &(&Attached, &NapiSettingsChange)| {
            NapiAttribute::ALL.iter().all(|&one| change.new.get(one).is_none() || queue.new.get(one).is_some())
        };
        let newest = newer(change, own, owners).filter(has_all).max_by_key(|(_, queue)| queue.set_at_boot_ns);
        newest.map(|(owner, _)| owner.purpose())
    };
    queues(history).filter_map(newest).collect()
}

/// Changes of the same queue by other owners since.
fn newer<'a>(
    change: &NapiSettingsChange,
    own: &Path,
    owners: &'a [Attached],
) -> impl Iterator<Item = (&'a Attached, &'a NapiSettingsChange)> {
    let others = owners.iter().filter(move |owner| owner.path != own);
    let all = others.flat_map(|owner| queues(&owner.history).map(move |queue| (owner, queue)));
    all.filter(|(_, queue)| queue.is_of_the_queue_of(change) && queue.set_at_boot_ns > change.set_at_boot_ns)
}

/// The values of `newer` for attributes that `older` has with other values.
fn covering(older: &PartialNapiSettings, newer: &PartialNapiSettings) -> PartialNapiSettings {
    let differs = |attribute: &NapiAttribute| {
        let (old, new) = (older.get(*attribute)?, newer.get(*attribute)?);
        (old != new).then_some((*attribute, new))
    };
    NapiAttribute::ALL.iter().filter_map(differs).collect()
}

pub(super) fn queues(history: &History) -> impl Iterator<Item = &NapiSettingsChange> {
    history.pending().filter_map(|(_, entry)| match &entry.change {
        Change::NapiSettings(change) => Some(change),
        _ => None,
    })
}
