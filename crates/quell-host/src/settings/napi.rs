//! Settings of one NAPI instance: changed in the order that leaves no suspended queue stalled, read back, put back.

use quell_linux::clock::boottime_ns;
use quell_linux::io_uring::poll_napi_once;
use quell_linux::link::Links;
use quell_linux::netdev::{Napi, Netdev};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{InterfaceName, NapiId, Pid};

use super::SettingsError;
use super::values::{NapiValues, Restoration};
use crate::journal::claims::Claims;
use crate::journal::{NapiSettings, Undoing};
use crate::namespaces;
use crate::resume::Resumer;

/// What setting `wanted` on an instance would change, as the journal keeps it; `None` when it is so already, and not by
/// others who may end before. What the kernel does not report is asked for all the same, and has no old value.
///
/// # Errors
/// When the instance or its device cannot be read.
pub(crate) fn plan(
    namespace: &Namespace,
    id: NapiId,
    wanted: &NapiValues,
    others: &Claims,
) -> Result<Option<NapiSettings>, SettingsError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let napi = netdev.napi(id)?;
    let current = NapiValues::of(&napi);
    let before_all = others.before_all(&current);
    let new = wanted.unlike(&current).changed_by(&wanted.unlike(&before_all));
    if new.is_empty() {
        return Ok(None);
    }
    let device = Links::open_in(namespace)?.by_index(napi.ifindex)?.name;
    let place = netdev.napis(napi.ifindex)?.iter().position(|other| other.id == id);
    Ok(Some(NapiSettings {
        namespace_cookie: namespace.cookie()?,
        device,
        napi_id: id.get(),
        place: place.and_then(|place| u32::try_from(place).ok()).unwrap_or(0),
        old: before_all.where_present_in(&new),
        new,
        set_at_boot_ns: Some(others.next_boot_ns(boottime_ns())),
    }))
}

/// Sets `values` on an instance, freeing its queue where they could leave it stalled, and reads them back.
///
/// # Errors
/// When the kernel refuses, reads something else back, or the queue cannot be freed.
pub(crate) fn set(
    namespace: &Namespace,
    proc: &ProcRoot,
    id: NapiId,
    values: &NapiValues,
) -> Result<(), SettingsError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let before = netdev.napi(id)?;
    let values_before = NapiValues::of(&before);
    if values.unlike(&values_before).is_empty() {
        return Ok(());
    }
    let stalls = values_before.can_stall_on_the_way_to(&values_before.changed_by(values));
    let resumer = if stalls { Some(resumer(namespace, proc, &before)?) } else { None };
    if let Some(resumer) = &resumer {
        // What cannot be polled is waited out, which is worth it only when it cannot be suspended again.
        let _ = resumer.poll();
    }
    netdev.set_napi(id, &values.as_change())?;
    if let Some(resumer) = &resumer {
        resumer.poll_or_wait_out()?;
    }
    let read = NapiValues::of(&netdev.napi(id)?).where_present_in(values);
    if read != *values {
        return Err(SettingsError::NapiReadBack { napi: id.get(), asked: *values, read });
    }
    Ok(())
}

/// What frees the queue. io_uring needs its id and nothing else; without it, sockets are looked for in every process
/// of the namespace.
fn resumer(namespace: &Namespace, proc: &ProcRoot, napi: &Napi) -> Result<Resumer, SettingsError> {
    let programs: Vec<Pid> = match poll_napi_once(napi.id) {
        Ok(()) => Vec::new(),
        Err(_) => namespace.processes(proc.path())?.pids,
    };
    Ok(Resumer::of_queue(proc, napi, &programs))
}

/// Puts back what a change of settings did, as far as it still applies and no other journal wants something else.
///
/// # Errors
/// When the namespace cannot be looked for, the kernel refuses, or the queue cannot be freed.
pub(crate) fn put_back(proc: &ProcRoot, change: &NapiSettings, others: &Claims) -> Result<Undoing, SettingsError> {
    let Some(namespace) = namespaces::by_cookie(proc, change.namespace_cookie)? else {
        return Ok(Undoing::AlreadyGone);
    };
    let Some(id) = NapiId::from_kernel(change.napi_id) else { return Ok(Undoing::AlreadyGone) };
    let current = match Netdev::open_in(&namespace)?.napi(id) {
        Ok(napi) => NapiValues::of(&napi),
        Err(error) if error.failure() == Failure::Absent => return of_successor(&namespace, proc, change),
        Err(error) => return Err(error.into()),
    };
    let target = others.instead_of(&change.old, &change.new);
    let Restoration { back, changed_by_others } = Restoration::plan(&target, &change.new, &current);
    let changed_by_others = others.without_theirs(&changed_by_others);
    if !back.is_empty() {
        set(&namespace, proc, id, &back)?;
    }
    Ok(match (changed_by_others.is_empty(), back.is_empty()) {
        (true, true) => Undoing::AlreadyGone,
        (true, false) => Undoing::Undone,
        (false, _) => Undoing::InPart(format!(
            "somebody else has changed NAPI {id} of {} since, to {changed_by_others}: that was left alone; before Quell \
             it was {}",
            change.device,
            change.old.where_present_in(&changed_by_others)
        )),
    })
}

/// The instance is gone, and its settings with it: the link went down, or the driver made its queues anew. Drivers
/// that keep settings keep the id too; what outlives the id on others is irq-suspend-timeout, which
/// `netif_napi_add_weight` does not reset (seen on veth).
fn of_successor(namespace: &Namespace, proc: &ProcRoot, change: &NapiSettings) -> Result<Undoing, SettingsError> {
    let Ok(name) = InterfaceName::new(&change.device) else { return Ok(Undoing::AlreadyGone) };
    let link = match Links::open_in(namespace)?.by_name(&name) {
        Ok(link) => link,
        Err(error) if error.failure() == Failure::Absent => return Ok(Undoing::AlreadyGone),
        Err(error) => return Err(error.into()),
    };
    let napis = Netdev::open_in(namespace)?.napis(link.index)?;
    let gone = format!(
        "NAPI {} of {name} no longer exists (its link went down, or its queues were made anew), and its settings went \
         with it",
        change.napi_id
    );
    let Some(successor) = napis.get(change.place as usize) else { return Ok(Undoing::InPart(gone)) };
    let inherited = |values: &NapiValues| NapiValues {
        irq_suspend_timeout_ns: values.irq_suspend_timeout_ns,
        ..NapiValues::default()
    };
    let plan = Restoration::plan(&inherited(&change.old), &inherited(&change.new), &NapiValues::of(successor));
    if plan.back.is_empty() {
        return Ok(Undoing::InPart(gone));
    }
    set(namespace, proc, successor.id, &plan.back)?;
    Ok(Undoing::InPart(format!(
        "{gone}, but for what NAPI {} in its place kept: that is back at {}",
        successor.id, plan.back
    )))
}

/// The instances in the namespace that can suspend at all.
///
/// # Errors
/// When interfaces or instances cannot be listed.
pub(crate) fn suspending(namespace: &Namespace) -> Result<Vec<Napi>, NetlinkError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let mut found = Vec::new();
    for link in Links::open_in(namespace)?.list()? {
        match netdev.napis(link.index) {
            Ok(napis) => found.extend(napis),
            // It went away between the two questions.
            Err(error) if error.failure() == Failure::Absent => {}
            Err(error) => return Err(error),
        }
    }
    found.retain(|napi| napi.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0));
    Ok(found)
}
