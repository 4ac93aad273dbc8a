//! Sets queues.

use std::ops::ControlFlow;

use quell_linux::NapiId;
use quell_linux::clock::boottime_ns;
use quell_linux::netns::Namespace;
use quell_mode::PartialNapiSettings;
use tracing::{debug, error_span};

use super::{ChangeError, ChangeObserver, ChangeStage, Transaction, notify};
use crate::change::{Change, ChangeOutcome, NapiSettingsChange, PlannedQueue, QueueInPlan};
use crate::journal::claims::Turn;
use crate::settings::host::HostAccess;
use crate::settings::napi::{self, WantedQueue};
use crate::settings::{SettingsError, not_possible};

impl Transaction {
    /// Sets the values in `wanted` on a NAPI instance without leaving a suspended queue stalled, and verifies them.
    /// Returns false if the instance already has them. They are recorded nevertheless if other owners set the queue:
    /// when one of several owners ends, the values of the newest remaining one are in force. On an error the journal
    /// undoes the completed part.
    pub fn set_napi(
        &mut self,
        namespace: &Namespace,
        id: NapiId,
        wanted: &PartialNapiSettings,
    ) -> Result<bool, ChangeError> {
        self.set_napi_observed(namespace, id, wanted, &mut |_| ControlFlow::Continue(()))
    }

    pub fn set_napi_observed(
        &mut self,
        namespace: &Namespace,
        id: NapiId,
        wanted: &PartialNapiSettings,
        observer: &mut ChangeObserver<'_>,
    ) -> Result<bool, ChangeError> {
        let _span = error_span!("set_napi", napi = id.get()).entered();
        self.own_queue(namespace, || napi::look(namespace, id), &WantedQueue::from(*wanted), observer)
    }

    pub fn set_planned_queue(
        &mut self,
        namespace: &Namespace,
        planned: &PlannedQueue,
        observer: &mut ChangeObserver<'_>,
    ) -> Result<bool, ChangeError> {
        let _span = error_span!("set_queue", device = planned.device.name, queue = planned.queue).entered();
        let proc = self.proc.clone();
        let kernel = HostAccess::new(namespace, &proc);
        let find = || napi::look_at_planned(&kernel, planned);
        self.own_queue(namespace, find, &WantedQueue::from(planned), observer)
    }

    fn own_queue(
        &mut self,
        namespace: &Namespace,
        find: impl FnOnce() -> Result<NapiSettingsChange, SettingsError>,
        wanted: &WantedQueue,
        observer: &mut ChangeObserver<'_>,
    ) -> Result<bool, ChangeError> {
        notify(observer, ChangeStage::Before)?;
        // Hold the lock until the queue is set: another process may set or undo the same queue before or after, but not
        // in between.
        let _turn = self.turn(observer)?;
        let found = find().inspect_err(not_possible)?;
        debug!(device = ?found.device, rx_queue = found.rx_queue, from = %found.old, to = %wanted.values, "requested change");
        // The owners include this journal: a mode that is set again continues its own claim, and the value from before
        // the first one remains the one to restore.
        let owners = self.others().of_queue(&found, self.history())?;
        let (now, napi, device) = (found.old, found.napi_id, found.device.clone());
        let Some(change) = napi::plan(found, wanted, &owners, boottime_ns()) else {
            debug!("unchanged: the queue already has these values, and no other owner");
            return Ok(false);
        };
        // A queue that the plan removes has no values afterwards. Its owners permit that only if they need none.
        let is_removed = change.in_plan == Some(QueueInPlan::IsRemoved);
        owners.permit(&now, (!is_removed).then_some(&change.new)).map_err(|why| ChangeError::Refused {
            napi,
            device,
            why,
        })?;
        let (new, id) = (change.new, NapiId::from_kernel(change.napi_id));
        let seq = self.intend(Change::NapiSettings(change))?;
        notify(observer, ChangeStage::Journalled)?;
        // Nothing to set: the plan recreates or removes the queue, and the record is what restores its values.
        if let Some(id) = id.filter(|_| !new.is_empty()) {
            napi::set(namespace, &self.proc, id, &new)?;
        }
        notify(observer, ChangeStage::Made)?;
        self.done(seq, ChangeOutcome::Made)?;
        Ok(!new.unlike(&now).is_empty())
    }

    /// Waits for the lock under which owners are read, recorded, and their values set.
    pub(super) fn turn(&self, observer: &mut ChangeObserver<'_>) -> Result<Turn, ChangeError> {
        match self.others().turn(&mut || observer(ChangeStage::Before).is_break()) {
            Ok(turn) => Ok(turn),
            // The observer may have stopped the wait.
            Err(error) => {
                notify(observer, ChangeStage::Before)?;
                Err(error.into())
            }
        }
    }
}
