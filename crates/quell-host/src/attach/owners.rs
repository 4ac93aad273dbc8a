//! Other owners of the queues and epolls of an attachment: profiles, other attachments, experiments.

use quell_change::journal::{Journal, JournalError};
use quell_change::settings::epoll::EpollPlace;
use quell_change::transaction::{Transaction, permit_queues};

use super::error::AttachError;
use super::plan::{AttachPlan, AttachStep};

pub fn refuse_under_owners(journal: &Journal, plan: &AttachPlan) -> Result<(), AttachError> {
    let queues = plan.queues().map(|step| (step.namespace_cookie, step.napi, step.new));
    permit_queues(journal, queues).map_err(AttachError::Begin)
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
