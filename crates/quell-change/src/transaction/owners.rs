//! Asks the other owners of queues and epolls, without changing anything.

use std::path::{Path, PathBuf};

use quell_linux::NapiId;
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_mode::{EpollParams, PartialNapiSettings};

use super::{ChangeError, Transaction};
use crate::change::{Change, NapiSettingsChange, PlannedQueue};
use crate::journal::claims::{Others, OwnersRefuse, QueueOwners};
use crate::journal::{History, Journal, JournalError};
use crate::namespaces;
use crate::settings::epoll::EpollPlace;
use crate::settings::host::HostAccess;
use crate::settings::{SettingsError, epoll, napi};

/// Checks that no owner of a queue refuses these values at present. A transaction checks it again.
pub fn permit_queues(
    journal: &Journal,
    queues: impl IntoIterator<Item = (u64, NapiId, PartialNapiSettings)>,
) -> Result<(), ChangeError> {
    for_each_queue(journal, queues, |others, found, new| permitted(others, found, Some(&new)))
}

/// Checks that no queue serves programs, whose mode an experiment would take away. Owners with one of the journals
/// `measured` are those that it measures.
pub fn refuse_queues_of_programs(
    journal: &Journal,
    measured: &[PathBuf],
    queues: impl IntoIterator<Item = (u64, NapiId)>,
) -> Result<(), ChangeError> {
    let queues = queues.into_iter().map(|(namespace_cookie, napi)| (namespace_cookie, napi, ()));
    for_each_queue(journal, queues, |others, found, ()| {
        serves_no_other_programs(&others.of_queue(found, None)?, found, measured)
    })
}

pub(super) fn serves_no_other_programs(
    owners: &QueueOwners,
    found: &NapiSettingsChange,
    measured: &[PathBuf],
) -> Result<(), ChangeError> {
    let refused = |owner: &str| ChangeError::Refused {
        napi: found.napi_id,
        device: found.device.clone(),
        why: OwnersRefuse::ServesPrograms { owner: owner.to_owned() },
    };
    owners.of_programs_besides(measured).map_or(Ok(()), |owner| Err(refused(owner)))
}

/// Values that queues would have without the owners with these journals. Absent queues are left out.
pub fn queues_without(
    journal: &Journal,
    ended: &[PathBuf],
    queues: impl IntoIterator<Item = (u64, NapiId)>,
) -> Result<Vec<PartialNapiSettings>, ChangeError> {
    let mut values = Vec::new();
    let queues = queues.into_iter().map(|(namespace_cookie, napi)| (namespace_cookie, napi, ()));
    for_each_queue(journal, queues, |others, found, ()| {
        let mut owners = others.of_queue(found, None)?;
        let mut now = found.old;
        while let Some((change, made)) = owners.take_newest_of(ended) {
            now = now.changed_by(&napi::set_at_end(&change, made, &owners, &now));
        }
        values.push(now);
        Ok(())
    })?;
    Ok(values)
}

/// Parameters that epolls, now with these parameters, would have without the owners with these journals.
pub fn epolls_without(
    journal: &Journal,
    ended: &[PathBuf],
    epolls: impl IntoIterator<Item = (EpollPlace, EpollParams)>,
) -> Result<Vec<EpollParams>, ChangeError> {
    let owned = every_owner(journal, &ProcRoot::default())?.of_epolls(None)?;
    Ok(epolls.into_iter().map(|(place, now)| epoll::without(ended, place, now, &owned)).collect())
}

/// Whether an experiment switches the programs of the journal at `path`, or has died and is not reverted yet.
pub fn is_measured(path: &Path, history: &History) -> Result<bool, JournalError> {
    Others::beside(path, history.begin.boot_id.clone()).measure(&history.targets)
}

fn for_each_queue<T>(
    journal: &Journal,
    queues: impl IntoIterator<Item = (u64, NapiId, T)>,
    mut check: impl FnMut(&Others, &NapiSettingsChange, T) -> Result<(), ChangeError>,
) -> Result<(), ChangeError> {
    let proc = ProcRoot::default();
    let others = every_owner(journal, &proc)?;
    for (namespace_cookie, napi, wanted) in queues {
        let namespace = namespaces::by_cookie(&proc, namespace_cookie).map_err(SettingsError::from)?;
        let Some(namespace) = namespace else { continue };
        if let Some(found) = unless_absent(napi::look(&namespace, napi))? {
            check(&others, &found, wanted)?;
        }
    }
    Ok(())
}

/// As [`permit_queues`], for the queues of a plan that exist already. An earlier change of the plan creates the others.
pub fn permit_planned<'a>(
    journal: &Journal,
    namespace: &Namespace,
    queues: impl IntoIterator<Item = &'a PlannedQueue>,
) -> Result<(), ChangeError> {
    let proc = ProcRoot::default();
    let (others, kernel) = (every_owner(journal, &proc)?, HostAccess::new(namespace, &proc));
    for queue in queues {
        if let Some(found) = unless_absent(napi::look_at_planned(&kernel, queue))? {
            permitted(&others, &found, queue.values.new.as_ref())?;
        }
    }
    Ok(())
}

pub fn have_owners(journal: &Journal, namespace: &Namespace, queues: &[PlannedQueue]) -> Result<bool, ChangeError> {
    let proc = ProcRoot::default();
    let (others, kernel) = (every_owner(journal, &proc)?, HostAccess::new(namespace, &proc));
    for queue in queues {
        if let Some(found) = unless_absent(napi::look_at_planned(&kernel, queue))?
            && !others.of_queue(&found, None)?.is_empty()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn every_owner(journal: &Journal, proc: &ProcRoot) -> Result<Others, ChangeError> {
    Ok(Others::all(journal, proc.boot_id()?.to_string()))
}

fn unless_absent(
    found: Result<NapiSettingsChange, SettingsError>,
) -> Result<Option<NapiSettingsChange>, SettingsError> {
    match found {
        Err(error) if error.is_absent() => Ok(None),
        found => found.map(Some),
    }
}

/// Without values, the queue is removed.
fn permitted(
    others: &Others,
    found: &NapiSettingsChange,
    new: Option<&PartialNapiSettings>,
) -> Result<(), ChangeError> {
    let refused = |why| ChangeError::Refused { napi: found.napi_id, device: found.device.clone(), why };
    others.of_queue(found, None)?.permit(&found.old, new).map_err(refused)
}

impl Transaction {
    /// Whether a queue, which this transaction has set, has the value `now` of a newer owner.
    pub fn newer_owner_has_set_queue(&self, napi: NapiId, now: &PartialNapiSettings) -> Result<bool, JournalError> {
        for change in self.pending() {
            if let Change::NapiSettings(own) = change
                && own.napi_id == napi.get()
            {
                let owners = self.others().of_queue(own, self.history())?.besides(own);
                return Ok(napi::drift(own, &owners, now).is_empty());
            }
        }
        Ok(false)
    }

    /// Whether an epoll, which this transaction has set, has the parameters `now` of a newer owner.
    pub fn newer_owner_has_set_epoll(&self, place: EpollPlace, now: EpollParams) -> Result<bool, JournalError> {
        for change in self.pending() {
            if let Change::EpollParameters(own) = change
                && own.is_at(place)
            {
                let owners = epoll::owners(place, &self.others().of_epolls(self.history())?);
                return Ok(owners.cover(&own.claim(true), &now));
            }
        }
        Ok(false)
    }

    fn pending(&self) -> impl Iterator<Item = &Change> {
        self.history().into_iter().flat_map(History::pending).map(|(_, entry)| &entry.change)
    }
}
