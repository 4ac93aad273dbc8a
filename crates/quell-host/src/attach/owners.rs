//! Other owners of the queues and epolls of an attachment: profiles, other attachments, experiments.

use quell_linux::proc::ProcRoot;

use super::error::AttachError;
use super::plan::{AttachPlan, AttachStep};
use crate::journal::claims::Others;
use crate::journal::{History, Journal, JournalError, RecordedChange};
use crate::namespaces;
use crate::persistent::PersistError;
use crate::settings::{SettingsError, epoll, napi};
use crate::transaction::{Transaction, permitted};

/// Checks that no other owner of a queue refuses the plan at present.
///
/// # Errors
/// [`AttachError::Begin`] with [`ChangeError::Refused`](crate::transaction::ChangeError::Refused), and when the journals cannot be listed.
pub fn refuse_under_owners(journal: &Journal, plan: &AttachPlan) -> Result<(), AttachError> {
    let proc = ProcRoot::default();
    let others = Others::all(journal, proc.boot_id().map_err(PersistError::Proc)?.to_string());
    for step in plan.queues() {
        let settings = |error: SettingsError| AttachError::Begin(error.into());
        let namespace = namespaces::by_cookie(&proc, step.namespace_cookie).map_err(|error| settings(error.into()))?;
        let Some(namespace) = namespace else { continue };
        match napi::look(&namespace, step.napi) {
            Err(error) if error.is_absent() => {}
            found => permitted(&others, &found.map_err(settings)?, Some(&step.new)).map_err(AttachError::Begin)?,
        }
    }
    Ok(())
}

/// Whether the object of a step, which this attachment has set, has the value of a newer owner.
///
/// # Errors
/// When the journals cannot be listed.
pub(super) fn newer_owner_has_set(transaction: &Transaction, step: &AttachStep) -> Result<bool, JournalError> {
    let (others, history) = (transaction.others(), transaction.history());
    for (_, entry) in history.into_iter().flat_map(History::pending) {
        match (&entry.change, step) {
            (RecordedChange::NapiSettings(own), AttachStep::Queue(step)) if own.napi_id == step.napi.get() => {
                let owners = others.of_queue(own, history)?.besides(own);
                return Ok(napi::drift(own, &owners, &step.old).is_empty());
            }
            (RecordedChange::EpollParameters(own), AttachStep::Epoll(step))
                if (own.pid, own.start_time_ticks, own.fd)
                    == (step.pid.get().unsigned_abs(), step.start_time_ticks, step.fd) =>
            {
                let owners = epoll::owners(own.place(), &others.of_epolls(history)?);
                return Ok(owners.cover(&own.claim(true), &step.old));
            }
            _ => {}
        }
    }
    Ok(false)
}
