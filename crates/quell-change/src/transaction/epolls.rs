//! Sets epolls.

use std::ops::ControlFlow;
use std::sync::Arc;

use quell_linux::clock::boottime_ns;
use quell_linux::proc::ProcessIdentity;
use quell_mode::EpollParams;
use tracing::{debug, error_span};

use super::{ChangeError, ChangeStage, Transaction, notify};
use crate::change::{Change, ChangeOutcome, EpollParameters};
use crate::journal::claims::{Owned, next_boot_ns};
use crate::journal::record::Record;
use crate::settings::epoll::{self, EpollPlace, EpollToSet};
use crate::settings::{SettingsError, not_possible};

struct Planned {
    place: usize,
    process: ProcessIdentity,
    now: EpollParams,
    change: EpollParameters,
}

impl Transaction {
    /// Sets the busy-poll parameters of the epoll `fd` of `process` without leaving a suspended queue stalled, and
    /// verifies them. Returns false if the epoll already has them; see [`Self::set_napi`].
    pub fn set_epoll(&mut self, process: ProcessIdentity, fd: i32, wanted: EpollParams) -> Result<bool, ChangeError> {
        let wanted = EpollToSet { process, fd, watched: Vec::new(), duplicates: Vec::new(), new: wanted };
        let mut outcomes = self.set_epolls(&[wanted], &mut |_, _| ControlFlow::Continue(()))?;
        Ok(outcomes.pop().unwrap_or(Ok(false))?)
    }

    /// Like [`Self::set_epoll`], for several epolls. They share journal writes. Within one process, they also share the
    /// freeing of queues. Calls `observer` with the index of each epoll. Returns the outcomes in the same order.
    pub fn set_epolls(
        &mut self,
        epolls: &[EpollToSet],
        observer: &mut dyn FnMut(usize, ChangeStage) -> ControlFlow<()>,
    ) -> Result<Vec<Result<bool, SettingsError>>, ChangeError> {
        let _span = error_span!("set_epolls").entered();
        // Held until the outcomes are recorded. Otherwise another process could set or undo one of these epolls between
        // the reading of its owners and the change, and the recorded owners would be wrong.
        let _turn = self.turn(&mut |stage| observer(0, stage))?;
        let mut notify = |place, stage| notify(&mut |stage| observer(place, stage), stage);
        let owned = self.others().of_epolls(self.history())?;
        refuse_switched(epolls, &owned)?;
        // The times of the claims on one epoll order its owners, so each must be later than all recorded ones.
        let mut at = next_boot_ns(&owned, boottime_ns());
        let mut outcomes = Vec::with_capacity(epolls.len());
        let mut planned: Vec<Planned> = Vec::new();
        // First pass: read and plan only, so that one synced write records the intents of all epolls.
        for of_process in epolls.chunk_by(|one, other| one.process == other.process) {
            let process = of_process[0].process;
            // Reading cannot stall a queue, so this pass does not search the process for sockets to free queues with.
            let program = epoll::Program::open(&self.proc, process, false).map_err(Arc::new);
            for wanted in of_process {
                let place = outcomes.len();
                notify(place, ChangeStage::Before)?;
                let now = match &program {
                    Ok(program) => program.get(wanted.fd, &wanted.watched),
                    Err(error) => Err(SettingsError::OfAll(Arc::clone(error))),
                };
                let (pid, fd, new) = (process.pid.get(), wanted.fd, wanted.new);
                match &now {
                    Ok(now) => match wanted.plan(*now, at, &owned) {
                        Some(change) => {
                            debug!(pid, fd, from = %now, to = %new, "requested change");
                            planned.push(Planned { place, process, now: *now, change });
                            at = at.saturating_add(1);
                        }
                        None => debug!(pid, fd, from = %now, "unchanged: the epoll already has these parameters"),
                    },
                    Err(error) => debug!(pid, fd, to = %new, %error, "the epoll cannot be read"),
                }
                outcomes.push(now.map(|_| false));
            }
        }
        // No epoll may be set before the intents are on disk: after `kill -9` only they show what has to be undone.
        let first = self.next_seq();
        let changes = planned.iter().map(|planned| Change::EpollParameters(planned.change.clone()));
        let intents = (first..).zip(changes).map(|(seq, change)| Record::Intend { seq, change });
        let intents: Vec<Record> = intents.collect();
        self.journal_mut().write_all(intents)?;
        for of_process in planned.chunk_by(|one, other| one.process == other.process) {
            // Only an epoll with preferred busy polling can have suspended the interrupt of its queue. If that ends
            // without a last poll, packets wait until the suspension times out.
            let can_stall = of_process.iter().any(|planned| planned.now.prefer_busy_poll);
            let program = epoll::Program::open(&self.proc, of_process[0].process, can_stall);
            let program = program.inspect_err(not_possible).map_err(Arc::new);
            for together in of_process.chunks(epoll::AT_ONCE) {
                let mut set_all = |program: &epoll::Program| {
                    for Planned { place, now, change, .. } in together {
                        notify(*place, ChangeStage::Journalled)?;
                        outcomes[*place] = match program.change(change.fd, *now, change.new) {
                            // Other parameters than a moment ago: the descriptor belongs to another epoll by now, or
                            // another program has set it. `change` has left it alone.
                            Ok(current) if current == *now => Ok(*now != change.new),
                            Ok(_) => {
                                Err(SettingsError::Gone { what: format!("epoll {} of {}", change.fd, change.pid) })
                            }
                            Err(error) => Err(error),
                        };
                        notify(*place, ChangeStage::Made)?;
                    }
                    Ok::<(), ChangeError>(())
                };
                let freed = match &program {
                    Ok(program) => {
                        let (set, freed) = program.with_queues_freed(|| set_all(program));
                        set?;
                        freed.map_err(Arc::new)
                    }
                    Err(error) => Err(Arc::clone(error)),
                };
                // The epolls are set, but a queue may be stalled. Without `Done`, the undo treats these changes as
                // perhaps made.
                if let Err(error) = freed {
                    let failed = together.iter().map(|planned| planned.place);
                    failed.for_each(|place| outcomes[place] = Err(SettingsError::OfAll(Arc::clone(&error))));
                }
            }
        }
        // Failed changes keep their intent: they may have been made in part, and undoing a change that was not made is
        // harmless.
        let made = (first..).zip(&planned).filter(|(_, planned)| outcomes[planned.place].is_ok());
        let made: Vec<Record> = made.map(|(seq, _)| Record::Done { seq, outcome: ChangeOutcome::Made }).collect();
        self.journal_mut().write_all(made)?;
        Ok(outcomes)
    }
}

/// Checks that no experiment of another journal switches one of the epolls.
fn refuse_switched(epolls: &[EpollToSet], owned: &[Owned<EpollParameters>]) -> Result<(), ChangeError> {
    let switched = owned.iter().filter_map(|owned| Some((owned.change.place(), owned.experiment()?)));
    let switched: Vec<(EpollPlace, &str)> = switched.collect();
    for epoll in epolls.iter().filter(|_| !switched.is_empty()) {
        let place = EpollPlace::of(epoll.process, epoll.fd);
        if let Some((_, experiment)) = switched.iter().find(|(other, _)| epoll::are_one_epoll(place, *other)) {
            let what = format!("epoll {} of process {}", epoll.fd, place.pid);
            return Err(ChangeError::IsSwitched { what, experiment: (*experiment).to_owned() });
        }
    }
    Ok(())
}

impl EpollToSet {
    /// Plans the change of an epoll with the parameters `now`. Returns `None` if it has its parameters and no owner.
    fn plan(&self, now: EpollParams, at: u64, owned: &[Owned<EpollParameters>]) -> Option<EpollParameters> {
        let place = EpollPlace::of(self.process, self.fd);
        let owners = epoll::owners(place, owned);
        let is_needed = now != self.new || !owners.is_empty();
        let claim = || owners.take(at, Some(&now), vec![self.new]);
        is_needed.then(|| EpollParameters::new(place, claim()).with_duplicates(&self.duplicates))
    }
}
