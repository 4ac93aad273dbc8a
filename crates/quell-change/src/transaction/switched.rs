//! Records queues and epolls whose values an experiment switches later, without another record.

use quell_linux::NapiId;
use quell_linux::clock::boottime_ns;
use quell_linux::netns::Namespace;
use quell_mode::{EpollParams, PartialNapiSettings};

use super::{ChangeError, Transaction};
use crate::change::{Change, EpollParameters};
use crate::journal::claims::{OwnersRefuse, next_boot_ns};
use crate::settings::epoll::EpollPlace;
use crate::settings::{epoll, napi};

/// A queue and all values that it gets, each with the same fields.
#[derive(Debug)]
pub struct QueueValues<'a> {
    /// Namespace of its device.
    pub namespace: &'a Namespace,
    /// NAPI instance.
    pub napi: NapiId,
    /// Values; those from before the experiment too, because it sets them again.
    pub values: Vec<PartialNapiSettings>,
}

/// An epoll and all parameters that it gets.
#[derive(Debug)]
pub struct EpollValues {
    /// The epoll.
    pub place: EpollPlace,
    /// Parameters from before the experiment.
    pub old: EpollParams,
    /// Parameters, including `old`.
    pub values: Vec<EpollParams>,
}

impl Transaction {
    /// Records the values of an experiment. Leaves out queues that have the same values all the time. From now on the
    /// caller sets them, and an undo recognises each of them.
    ///
    /// # Errors
    /// When they could not be recorded, and [`ChangeError::Refused`] when a queue serves other programs.
    pub fn record_switched(&mut self, queues: &[QueueValues<'_>], epolls: &[EpollValues]) -> Result<(), ChangeError> {
        let others = self.others();
        // Hold the lock until the queues are recorded, so that no other process records or undoes the same queue in
        // between.
        let _turn = others.turn(&mut || false)?;
        let mut changes = Vec::new();
        for queue in queues {
            let found = napi::look(queue.namespace, queue.napi)?;
            let owners = others.of_queue(&found, self.history())?;
            if let Some(owner) = owners.serves_programs() {
                let why = OwnersRefuse::ServesPrograms { owner: owner.to_owned() };
                return Err(ChangeError::Refused { napi: found.napi_id, device: found.device, why });
            }
            let wanted = napi::WantedQueue::one_of(&queue.values);
            changes.extend(napi::plan(found, &wanted, &owners, boottime_ns()).map(Change::NapiSettings));
        }
        let owned = others.of_epolls(self.history())?;
        let first = next_boot_ns(&owned, boottime_ns());
        changes.extend((first..).zip(epolls).map(|(at, epoll)| {
            let claim = epoll::owners(epoll.place, &owned).take(at, Some(&epoll.old), epoll.values.clone());
            Change::EpollParameters(EpollParameters::new(epoll.place, claim))
        }));
        Ok(self.record_made(changes)?)
    }
}
