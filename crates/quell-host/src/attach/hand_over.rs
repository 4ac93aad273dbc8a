//! Hands an attachment from one owner to the next without setting a value, so that a restart or an upgrade of
//! `quell attach --follow` flips no queue. The journal continues: it has the values from before the first owner.

use std::time::Duration;

use quell_change::change::Change;
use quell_change::journal::{History, Journal, Persistence, Purpose, TargetProgram};
use quell_change::persistent::{Guardian, PersistError, signal_guardian};
use quell_change::settings::epoll::EpollPlace;
use quell_change::target::Targets;
use quell_change::transaction::Transaction;
use quell_linux::pidfd::Signal;

use super::attached::{Attached, in_use};
use super::error::AttachError;
use super::measured::others;
use super::plan::{AttachPlan, AttachRequest, AttachStep};

/// Signal on which an owner leaves its changes in place: `attach --follow` to its keeper, a keeper to the command that
/// sends it.
pub const HAND_OVER: Signal = Signal::USR1;
/// Time limit for an owner to finish a pass and exit.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(60);

/// Earlier attachments of programs, which a new one takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
    None,
    /// It has the mode and the options of the new one, which can continue it.
    Continues(Box<Attached>),
    /// They have other ones: restore them first.
    Differs(Vec<Attached>),
}

/// Finds earlier attachments of the programs. `steers` and `accepts_stalls` are options of the new one.
///
/// # Errors
/// When a program is in use by an experiment, `quell run` or a lab, and when an attachment is still being made or has
/// other programs too.
pub fn find_earlier(
    journal: &Journal,
    targets: &Targets,
    request: &AttachRequest,
    steers: bool,
    accepts_stalls: bool,
) -> Result<Earlier, AttachError> {
    let mut found = Vec::new();
    for attached in in_use(journal)? {
        let is_living = |target: &&TargetProgram| targets.living().any(|living| living.is_same_process(target));
        let Some(target) = attached.history.targets.iter().find(is_living) else { continue };
        let (pid, purpose) = (target.pid, attached.purpose().clone());
        if !matches!(purpose, Purpose::Attachment { .. }) || attached.is_in_progress() {
            return Err(attached.refuses(pid));
        }
        let others = others(&attached, targets)?;
        if !others.is_empty() {
            return Err(AttachError::AttachedWithOthers { pid, purpose, others });
        }
        found.push(attached);
    }
    let continues = |attached: &Attached| {
        let history = &attached.history;
        *attached.purpose() == Purpose::Attachment { mode: request.mode }
            && history.accepts_stalls == accepts_stalls
            && (steers || !history.steers())
    };
    Ok(match found.as_slice() {
        [] => Earlier::None,
        [only] if continues(only) => Earlier::Continues(Box::new(only.clone())),
        _ => Earlier::Differs(found),
    })
}

/// Makes the owner of an attachment leave it, and takes over its journal. `None` if it was reverted in the meantime.
pub(super) fn receive(journal: &Journal, attached: &Attached) -> Result<Option<Transaction>, PersistError> {
    let path = &attached.path;
    let Some(mut witness) = journal.witness(path)? else { return Ok(None) };
    let mut owner = attached.owner();
    let leave = |owner| signal_guardian(path, Guardian::Keeper(owner), HAND_OVER, HANDED_OVER_WITHIN);
    leave(owner)?;
    // A command that followed the programs has left them to its keeper.
    if let Persistence::MaintainedBy(keeper) = witness.history().map_err(PersistError::Listen)?.persistence
        && keeper != owner
    {
        owner = keeper;
        leave(owner)?;
    }
    Transaction::take_over(journal, path).map_err(|error| error.of_keeper(path, owner.pid))
}

/// Replaces the present values of a plan, which an earlier owner has set, by the values from before the first owner, so
/// that objects which are reset to these get the mode again.
pub fn recall_values_before(plan: &mut AttachPlan, history: &History) {
    for step in &mut plan.steps {
        for (_, entry) in history.pending() {
            match (&mut *step, &entry.change) {
                (AttachStep::Queue(step), Change::NapiSettings(change))
                    if change.napi_id == step.napi.get() && change.namespace_cookie == step.namespace_cookie =>
                {
                    step.old = change.old;
                }
                (AttachStep::Epoll(step), Change::EpollParameters(change))
                    if change.is_at(EpollPlace::new(step.pid, step.start_time_ticks, step.fd)) =>
                {
                    step.old = change.old;
                }
                _ => {}
            }
        }
    }
}
