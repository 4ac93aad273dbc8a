//! Records queues and epolls whose values an experiment switches later, without another record.

use std::path::PathBuf;

use quell_linux::NapiId;
use quell_linux::clock::boottime_ns;
use quell_linux::netns::Namespace;
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_mode::{EpollParams, PartialNapiSettings};

use super::owners::serves_no_other_programs;
use super::{ChangeError, Transaction};
use crate::change::{Change, EpollParameters};
use crate::journal::claims::next_boot_ns;
use crate::settings::epoll::EpollPlace;
use crate::settings::socket::SocketId;
use crate::settings::{epoll, napi};

/// A queue and all values that it gets, each with the same fields.
#[derive(Debug)]
pub struct QueueValues<'a> {
    pub namespace: &'a Namespace,
    pub napi: NapiId,
    /// Values when the modes were planned.
    pub old: PartialNapiSettings,
    /// Values; those from before the experiment too, because it sets them again.
    pub values: Vec<PartialNapiSettings>,
}

#[derive(Debug)]
pub struct EpollValues {
    pub process: ProcessIdentity,
    pub fd: i32,
    pub watched: Vec<SocketId>,
    /// Further descriptors of the epoll.
    pub duplicates: Vec<EpollPlace>,
    pub old: EpollParams,
    /// Parameters, including `old`.
    pub values: Vec<EpollParams>,
}

impl Transaction {
    /// Records the values of an experiment. Leaves out queues that have the same values all the time. From now on the
    /// caller sets them, and an undo recognises each of them. The owners with the journals `measured` may have set them
    /// before.
    pub fn record_switched(
        &mut self,
        measured: &[PathBuf],
        queues: &[QueueValues<'_>],
        epolls: &[EpollValues],
    ) -> Result<(), ChangeError> {
        let others = self.others();
        // Hold the lock until the queues are recorded, so that no other process records or undoes the same queue in
        // between.
        let _turn = others.turn(&mut || false)?;
        let mut changes = Vec::new();
        for queue in queues {
            let found = napi::look(queue.namespace, queue.napi)?;
            let owners = others.of_queue(&found, self.history())?;
            serves_no_other_programs(&owners, &found, measured)?;
            let what = || format!("NAPI {} of {}", found.napi_id, found.device);
            is_as_planned(what, &queue.old, &found.old.where_present_in(&queue.old))?;
            let wanted = napi::WantedQueue::one_of(&queue.values);
            changes.extend(napi::plan(found, &wanted, &owners, boottime_ns()).map(Change::NapiSettings));
        }
        check_epolls(&self.proc, epolls)?;
        let owned = others.of_epolls(self.history())?;
        let first = next_boot_ns(&owned, boottime_ns());
        changes.extend((first..).zip(epolls).map(|(at, epoll)| {
            let place = EpollPlace::of(epoll.process, epoll.fd);
            let claim = epoll::owners(place, &owned).take(at, Some(&epoll.old), epoll.values.clone());
            Change::EpollParameters(EpollParameters::new(place, claim).with_duplicates(&epoll.duplicates))
        }));
        Ok(self.record_made(changes)?)
    }
}

/// Checks that the epolls have the values of the plan, which would be restored at the end. Closed ones are not errors.
fn check_epolls(proc: &ProcRoot, epolls: &[EpollValues]) -> Result<(), ChangeError> {
    for of_process in epolls.chunk_by(|one, other| one.process == other.process) {
        let process = of_process[0].process;
        let program = match epoll::Program::open(proc, process, false) {
            Err(error) if error.is_absent() => continue,
            program => program?,
        };
        for epoll in of_process {
            match program.get(epoll.fd, &epoll.watched) {
                Ok(now) => {
                    is_as_planned(|| format!("epoll {} of process {}", epoll.fd, process.pid), &epoll.old, &now)?
                }
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn is_as_planned<T: PartialEq + ToString>(what: impl Fn() -> String, planned: &T, now: &T) -> Result<(), ChangeError> {
    match planned == now {
        true => Ok(()),
        false => Err(ChangeError::PlanOutdated { what: what(), planned: planned.to_string(), now: now.to_string() }),
    }
}
