//! Settings of one NAPI instance: set in an order that leaves no suspended queue stalled, verified, and restored.

use quell_linux::io_uring::poll_napi_once;
use quell_linux::link::{Link, Links};
use quell_linux::netdev::{Napi, Netdev, Queue, QueueKind};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};
use quell_mode::PartialNapiSettings;
use tracing::debug;

use super::values::Restoration;
use super::{SettingsError, answered};
use crate::devices::{self, FoundDevice};
use crate::driver_inference::napis_follow_queues;
use crate::journal::claims::Claims;
use crate::journal::{NapiSettingsChange, UndoOutcome};
use crate::resume::Resumer;

/// Reads the current state of an instance as a journal record, without values to set.
///
/// # Errors
/// When the instance or its device cannot be read.
pub(crate) fn look(namespace: &Namespace, id: NapiId) -> Result<NapiSettingsChange, SettingsError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let napi = netdev.napi(id)?;
    let link = Links::open_in(namespace)?.by_index(napi.ifindex)?;
    let place = netdev.napis(napi.ifindex)?.iter().position(|other| other.id == id);
    let polls = |(_, polled_by): &(u32, Napi)| polled_by.id == id;
    Ok(NapiSettingsChange {
        namespace_cookie: namespace.cookie()?,
        ifindex: napi.ifindex,
        sysfs_inode: devices::sysfs_inode(namespace, &link),
        napi_id: id.get(),
        place: place.and_then(|place| u32::try_from(place).ok()).unwrap_or(0),
        rx_queue: rx_queues(&mut netdev, &link)?.into_iter().find(polls).map(|(queue, _)| queue),
        device: link.name,
        old: napi.settings,
        new: PartialNapiSettings::default(),
        alternatives: Vec::new(),
        set_at_boot_ns: 0,
    })
}

/// Plans the change to `wanted`. Returns `None` if the instance already has these values, unless another journal has
/// set them and may end earlier. Also sets values that the kernel does not report, without an old value. Pure.
pub(crate) fn plan(
    found: NapiSettingsChange,
    wanted: &PartialNapiSettings,
    others: &Claims,
    now_boot_ns: u64,
) -> Option<NapiSettingsChange> {
    let before_all = others.before_all(&found.old);
    let new = wanted.unlike(&found.old).changed_by(&wanted.unlike(&before_all));
    let old = before_all.where_present_in(&new);
    let set_at_boot_ns = others.next_boot_ns(now_boot_ns);
    (!new.is_empty()).then_some(NapiSettingsChange { old, new, set_at_boot_ns, ..found })
}

/// Receive queues of a device with their NAPI instances, as reported by the kernel or inferred. A device whose link is
/// down has no queues.
///
/// # Errors
/// When they cannot be listed.
pub(crate) fn rx_queues(netdev: &mut Netdev, link: &Link) -> Result<Vec<(u32, Napi)>, NetlinkError> {
    let napis = netdev.napis(link.index)?;
    let mut queues = netdev.queues(link.index)?;
    queues.retain(|queue| queue.kind == QueueKind::Rx);
    let reported = queues.iter().filter(|queue| queue.napi_id.is_some()).count();
    let follow = napis_follow_queues(link.kind.as_deref(), napis.len(), queues.len());
    debug!(
        device = ?link.name,
        kind = link.kind,
        rx_queues = queues.len(),
        napis = napis.len(),
        reported,
        inferred_from_order = follow && reported < queues.len(),
        "receive queues and their NAPI instances"
    );
    let napi_of = |(place, queue): (usize, &Queue)| match queue.napi_id {
        Some(id) => napis.iter().find(|napi| napi.id == id).copied(),
        None if follow => napis.get(place).copied(),
        None => None,
    };
    let numbered = queues.iter().enumerate();
    Ok(numbered.filter_map(|(place, queue)| Some((queue.id, napi_of((place, queue))?))).collect())
}

/// Sets `values` on an instance and verifies them. Frees the queue if the change could leave it stalled.
///
/// # Errors
/// When the kernel refuses or reports other values afterwards, or the queue cannot be freed.
pub(crate) fn set(
    namespace: &Namespace,
    proc: &ProcRoot,
    id: NapiId,
    values: &PartialNapiSettings,
) -> Result<(), SettingsError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let before = netdev.napi(id)?;
    let values_before = before.settings;
    if values.unlike(&values_before).is_empty() {
        return Ok(());
    }
    debug!(napi = id.get(), from = %values_before.where_present_in(values), to = %values, "napi-set");
    let stalls = values_before.can_stall_on_the_way_to(&values_before.changed_by(values));
    let resumer = if stalls { Some(resumer(namespace, proc, &before)?) } else { None };
    if let Some(resumer) = &resumer {
        // Do not wait for the end of the suspension here: it could start again.
        let _ = resumer.poll();
    }
    answered(netdev.set_napi(id, values))?;
    if let Some(resumer) = &resumer {
        resumer.poll_or_wait_out()?;
    }
    let read = netdev.napi(id)?.settings.where_present_in(values);
    debug!(napi = id.get(), %read, "values after the change");
    if read != *values {
        return Err(SettingsError::NapiReadBack { napi: id.get(), asked: *values, read });
    }
    Ok(())
}

/// Prepares to free the queue. io_uring needs only the NAPI ID. Without io_uring, this searches all processes of the
/// namespace for sockets on the queue.
fn resumer(namespace: &Namespace, proc: &ProcRoot, napi: &Napi) -> Result<Resumer, SettingsError> {
    let programs: Vec<Pid> = match poll_napi_once(napi.id) {
        Ok(()) => Vec::new(),
        Err(_) => namespace.processes(proc.path())?.pids,
    };
    Ok(Resumer::of_queue(proc, napi, &programs))
}

/// Current instance of the queue of a change: the original one or its successor.
///
/// # Errors
/// When the instances cannot be listed.
pub(crate) fn instance_now(device: &FoundDevice, change: &NapiSettingsChange) -> Result<Option<Napi>, NetlinkError> {
    let mut netdev = Netdev::open_in(&device.namespace)?;
    let napis = netdev.napis(device.link.index)?;
    if let Some(same) = napis.iter().find(|napi| napi.id.get() == change.napi_id) {
        return Ok(Some(*same));
    }
    match change.rx_queue {
        Some(queue) => {
            let polled = rx_queues(&mut netdev, &device.link)?;
            Ok(polled.into_iter().find(|(of, _)| *of == queue).map(|(_, napi)| napi))
        }
        None => Ok(napis.get(change.place as usize).copied()),
    }
}

/// Restores values that are unchanged since they were set, unless another journal needs different ones.
///
/// # Errors
/// When the search for the device fails, the kernel refuses, or the queue cannot be freed.
pub(crate) fn restore(
    proc: &ProcRoot,
    change: &NapiSettingsChange,
    others: &Claims,
) -> Result<UndoOutcome, SettingsError> {
    let Some(device) = devices::find(proc, &change.device_key())? else { return Ok(UndoOutcome::AlreadyGone) };
    let Some(napi) = instance_now(&device, change)? else {
        return Ok(UndoOutcome::Waits(describe_waiting(change, &device.link.name)));
    };
    let now = napi.settings;
    let target = others.instead_of(&change.old, &change.new);
    debug!(device = ?device.link.name, napi = napi.id.get(), from = %now, to = %target, applied = %change.set_to(&now), "restoring values that nobody has changed since");
    let Restoration { back, changed_by_others } = Restoration::plan(&target, &change.set_to(&now), &now);
    let changed_by_others = others.of_strangers(&changed_by_others, &change.old);
    if !back.is_empty() {
        set(&device.namespace, proc, napi.id, &back)?;
    }
    Ok(match (changed_by_others.is_empty(), back.is_empty()) {
        (true, true) => UndoOutcome::AlreadyGone,
        (true, false) => UndoOutcome::Undone,
        (false, nothing_set) => {
            let why = format!(
                "another program has changed NAPI {} of {} to {changed_by_others}; this was left in place (the value \
                 before Quell was {})",
                napi.id,
                device.link.name,
                change.old.where_present_in(&changed_by_others)
            );
            if nothing_set { UndoOutcome::LeftAlone(why) } else { UndoOutcome::InPart(why) }
        }
    })
}

fn describe_queue(change: &NapiSettingsChange) -> String {
    match change.rx_queue {
        Some(queue) => format!("queue {queue}"),
        None => format!("NAPI {}", change.napi_id),
    }
}

/// Text for a change that cannot be undone yet, with the present name of its device.
pub(crate) fn describe_waiting(change: &NapiSettingsChange, device: &str) -> String {
    waits(&describe_queue(change), device, &change.new)
}

/// Text for a change of a queue that cannot be undone yet. Some drivers keep the memory of an instance after its
/// removal, and `netif_napi_add_weight` does not reset all values in it: irq-suspend-timeout persists on veth. Drivers
/// with persistent NAPI config restore all values.
pub(crate) fn waits(queue: &str, device: &str, values: &PartialNapiSettings) -> String {
    format!("{queue} of {device} (without a NAPI instance at the time of the undo): {values}")
}

/// Instances of the namespace that support suspension.
///
/// # Errors
/// When interfaces or instances cannot be listed.
pub(crate) fn suspending(namespace: &Namespace) -> Result<Vec<Napi>, NetlinkError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let mut found = Vec::new();
    for link in Links::open_in(namespace)?.list()? {
        match netdev.napis(link.index) {
            Ok(napis) => found.extend(napis),
            // The interface vanished between the two requests.
            Err(error) if error.failure() == Failure::Absent => {}
            Err(error) => return Err(error),
        }
    }
    found.retain(|napi| napi.settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0));
    Ok(found)
}
