//! Asks the other owners of queues and epolls, without changing anything.

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

/// Checks that no queue serves programs, whose mode an experiment would take away.
pub fn refuse_queues_of_programs(
    journal: &Journal,
    queues: impl IntoIterator<Item = (u64, NapiId)>,
) -> Result<(), ChangeError> {
    let queues = queues.into_iter().map(|(namespace_cookie, napi)| (namespace_cookie, napi, ()));
    for_each_queue(journal, queues, |others, found, ()| serves_no_programs(&others.of_queue(found, None)?, found))
}

pub(super) fn serves_no_programs(owners: &QueueOwners, found: &NapiSettingsChange) -> Result<(), ChangeError> {
    let refused = |owner: &str| ChangeError::Refused {
        napi: found.napi_id,
        device: found.device.clone(),
        why: OwnersRefuse::ServesPrograms { owner: owner.to_owned() },
    };
    owners.of_programs().map_or(Ok(()), |owner| Err(refused(owner)))
}

fn for_each_queue<T>(
    journal: &Journal,
    queues: impl IntoIterator<Item = (u64, NapiId, T)>,
    check: impl Fn(&Others, &NapiSettingsChange, T) -> Result<(), ChangeError>,
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
                && own.place() == place
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
