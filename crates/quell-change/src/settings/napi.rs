//! Settings of one NAPI instance: set in an order that leaves no suspended queue stalled, verified, and restored.

use std::collections::BTreeMap;
use std::fmt;

use quell_linux::io_uring::poll_napi_once;
use quell_linux::link::{Link, Links};
use quell_linux::netdev::{Napi, Netdev, Queue, QueueKind};
use quell_linux::netlink::{Failure, NetlinkError};
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{Ifindex, NapiId, Pid};
use quell_mode::{NapiAttribute, PartialNapiSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::{SettingsError, answered};
use crate::change::{
    Change, CompareError, Comparison, Diff, Drift, Kind, PlannedQueue, Present, RANK_OF_QUEUES, Undo, UndoOrder,
    UndoOutcome, unless_out_of_sight,
};
use crate::devices::{self, FoundDevice, RecordedDevice};
use crate::driver_inference::napis_follow_queues;
use crate::journal::claims::QueueOwners;
use crate::journal::{History, JournalError};
use crate::missing_queue::MissingQueue;
use crate::ownership::{Claim, End};
use crate::resume::Resumer;
use crate::settings::host::HostAccess;
use crate::undo::UndoError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NapiSettingsChange {
    /// `SO_NETNS_COOKIE` of the device's namespace.
    pub namespace_cookie: u64,
    pub device: String,
    pub ifindex: Ifindex,
    /// Inode of the device's sysfs directory, which identifies the device after it was renamed or moved to another
    /// namespace. Absent if it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysfs_inode: Option<u64>,
    /// NAPI ID. The kernel reuses an ID only after it has used all 2³² IDs.
    pub napi_id: u32,
    /// Index, from 0, among the device's instances ordered by ID. Identifies the successor of the instance if
    /// `rx_queue` is absent.
    pub place: u32,
    /// Receive queue of the instance. The instance that polls this queue later is its successor. Absent if the kernel
    /// does not report it and it cannot be inferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_queue: Option<u32>,
    /// Values before the change of the time `since_boot_ns`; absent if the kernel reported none.
    pub old: PartialNapiSettings,
    pub new: PartialNapiSettings,
    /// Further values of the same fields, which an experiment sets later without another record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<PartialNapiSettings>,
    /// Time of setting in nanoseconds since boot, unique among the changes of one queue. The value of the latest change
    /// is in effect.
    pub set_at_boot_ns: u64,
    /// For each attribute, the time of the first change since another program has written it.
    pub since_boot_ns: BTreeMap<NapiAttribute, u64>,
    /// What the plan of a profile does to the queue; absent for changes without such a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_plan: Option<QueueInPlan>,
}

/// What a plan does to a queue, apart from its settings. Undoing the plan reverses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QueueInPlan {
    Stays,
    /// An earlier change recreates it, so that the driver resets its settings.
    IsRecreated,
    IsCreated,
    IsRemoved,
}

impl NapiSettingsChange {
    /// Whether both concern the same queue: same NAPI instance, or same device and queue with a newer instance.
    #[must_use]
    pub fn is_of_the_queue_of(&self, other: &Self) -> bool {
        self.napi_id == other.napi_id || (self.sysfs_inode.is_some() && self.queue() == other.queue())
    }

    /// Inode of its device, and receive queue or place, which outlive the NAPI instance.
    pub(crate) fn queue(&self) -> (Option<u64>, Result<u32, u32>) {
        (self.sysfs_inode, self.rx_queue.ok_or(self.place))
    }

    /// Claim on one attribute; `None` if the change does not concern it.
    pub(crate) fn claim(&self, attribute: NapiAttribute, made: bool) -> Option<Claim<u64>> {
        let since = *self.since_boot_ns.get(&attribute)?;
        let values = std::iter::once(&self.new).chain(&self.alternatives).filter_map(|values| values.get(attribute));
        let (at, before) = (self.set_at_boot_ns, self.old.get(attribute));
        Some(Claim { at, since, before, values: values.collect(), made })
    }

    pub fn recorded_device(&self) -> RecordedDevice {
        let Self { namespace_cookie, ifindex, sysfs_inode, .. } = *self;
        RecordedDevice { namespace_cookie, ifindex, sysfs_inode }
    }

    fn drifted(&self, present: &Present<'_>, now: &Napi) -> Result<PartialNapiSettings, JournalError> {
        let owners = present.others.of_queue(self, Some(present.history))?.besides(self);
        Ok(drift(self, &owners, &now.settings))
    }

    /// Why its queue has no instance on this device at present.
    fn missing(&self, device: &FoundDevice, proc: &ProcRoot, history: &History) -> MissingQueue {
        if is_elsewhere(device, self) {
            return MissingQueue::moved(device, self.namespace_cookie, proc);
        }
        let of_device = history.entries.iter().filter_map(|entry| match &entry.change {
            Change::NapiSettings(change) if change.sysfs_inode == self.sysfs_inode => change.rx_queue,
            _ => None,
        });
        let needed = of_device.chain(self.rx_queue).max().map_or(1, |last| last + 1);
        MissingQueue::of(device, self.rx_queue, needed, proc)
    }

    fn drift(&self, device: &str, made: PartialNapiSettings, now: Option<PartialNapiSettings>) -> Drift {
        Drift {
            device: Some(device.to_owned()),
            queue: self.rx_queue,
            setting: "napi".to_owned(),
            made: made.to_string(),
            now: now.map(|now| now.to_string()),
            missing: None,
        }
    }
}

impl fmt::Display for NapiSettingsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NAPI {} of {}: {}", self.napi_id, self.device, self.new)
    }
}

impl Kind for NapiSettingsChange {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        // An unreadable list of journals must not prevent the restoration.
        let owners = undo.others.of_queue(self, Some(undo.history)).unwrap_or_default().at_end_of(self);
        unless_out_of_sight(restore(undo.proc, self, undo.outcome.is_some(), (&owners, undo.history)), &self.device)
    }

    fn compare(&self, present: &Present<'_>) -> Result<Comparison, CompareError> {
        // The program of an attachment cannot use a queue that vanished with its device.
        let is_lost = |comparison| if self.in_plan.is_some() { comparison } else { Comparison::Same };
        let device = match devices::find(present.proc, &self.recorded_device()) {
            Ok(Some(device)) => device,
            Ok(None) => return Ok(is_lost(Comparison::Gone)),
            Err(error) if error.is_out_of_sight() => {
                let drift = self.drift(&self.device, self.new, None);
                return Ok(is_lost(Comparison::OutOfSight(Some(drift))));
            }
            Err(error) => return Err(error.into()),
        };
        // The plan has removed the queue.
        if self.new.is_empty() {
            return Ok(Comparison::Same);
        }
        let name = &device.link.name;
        // Where its programs are, it is missing, although it may have queues where it is.
        let is_away = self.in_plan.is_none() && is_elsewhere(&device, self);
        let Some(napi) = instance_now(&device, self)?.filter(|_| !is_away) else {
            let missing = Some(self.missing(&device, present.proc, present.history));
            return Ok(Comparison::Differs(Drift { missing, ..self.drift(name, self.new, None) }));
        };
        let drifted = self.drifted(present, &napi)?;
        if drifted.is_empty() {
            return Ok(Comparison::Same);
        }
        let drift = self.drift(name, self.new.where_present_in(&drifted), Some(drifted));
        // A follower records a change as soon as it finds a new instance. If that fails, or another program changes the
        // value afterwards, it leaves the instance alone.
        Ok(match present.history.is_followed() && !present.history.has_queue(napi.id) {
            true => Comparison::BeingSetAgain(drift),
            false => Comparison::Differs(drift),
        })
    }

    fn make_again(&self, present: &Present<'_>) -> Result<(), CompareError> {
        // As for any writer of a queue with several owners.
        let _turn = present.others.turn(&mut || false)?;
        let Some(device) = devices::find(present.proc, &self.recorded_device())? else { return Ok(()) };
        let Some(napi) = instance_now(&device, self)? else { return Ok(()) };
        let drifted = self.drifted(present, &napi)?;
        Ok(set(&device.namespace, present.proc, napi.id, &self.new.where_present_in(&drifted))?)
    }

    fn namespace_cookie(&self) -> Option<u64> {
        Some(self.namespace_cookie)
    }

    fn exists(&self, proc: &ProcRoot) -> Result<bool, SettingsError> {
        Ok(devices::find(proc, &self.recorded_device())?.is_some())
    }

    fn undo_order(&self) -> UndoOrder {
        match self.in_plan {
            Some(QueueInPlan::IsCreated) => UndoOrder::CreatedQueues,
            Some(_) => UndoOrder::Plan(RANK_OF_QUEUES),
            None => UndoOrder::Others,
        }
    }

    fn waiting(&self, proc: &ProcRoot, history: &History) -> Option<String> {
        let Some(device) = devices::find(proc, &self.recorded_device()).ok()? else {
            return Some(format!("{} was removed, and its settings with it", self.device));
        };
        let is_back = instance_now(&device, self).ok()?.is_some();
        let missing = (!is_back).then(|| self.missing(&device, proc, history));
        Some(describe_waiting(self, &device.link.name, missing.as_ref()))
    }

    fn has_owners(&self) -> bool {
        true
    }
}

/// Reads the current state of an instance as a journal record, without values to set.
pub(crate) fn look(namespace: &Namespace, id: NapiId) -> Result<NapiSettingsChange, SettingsError> {
    let mut netdev = Netdev::open_in(namespace)?;
    let napi = netdev.napi(id)?;
    let link = Links::open_in(namespace)?.by_index(napi.ifindex)?;
    let place = netdev.napis(napi.ifindex)?.iter().position(|other| other.id == id);
    let polls = |(_, polled_by): &(u32, Napi)| polled_by.id == id;
    let rx_queue = rx_queues(&mut netdev, &link)?.into_iter().find(polls).map(|(queue, _)| queue);
    let found = record(namespace, link)?;
    let place = place.and_then(|place| u32::try_from(place).ok()).unwrap_or(0);
    Ok(NapiSettingsChange { napi_id: id.get(), place, rx_queue, old: napi.settings, ..found })
}

fn record(namespace: &Namespace, link: Link) -> Result<NapiSettingsChange, SettingsError> {
    Ok(NapiSettingsChange {
        namespace_cookie: namespace.cookie()?,
        ifindex: link.index,
        sysfs_inode: devices::sysfs_inode(namespace, &link),
        napi_id: 0,
        place: 0,
        rx_queue: None,
        device: link.name,
        old: PartialNapiSettings::NONE,
        new: PartialNapiSettings::NONE,
        alternatives: Vec::new(),
        set_at_boot_ns: 0,
        since_boot_ns: BTreeMap::new(),
        in_plan: None,
    })
}

#[derive(Debug, Clone)]
pub(crate) struct WantedQueue {
    /// Values; none for a queue that an earlier change of the plan removes.
    pub(crate) values: PartialNapiSettings,
    /// Further values of the same fields, which an experiment sets later.
    pub(crate) alternatives: Vec<PartialNapiSettings>,
    /// What the plan of a profile does to the queue, and the values before the plan.
    pub(crate) in_plan: Option<(QueueInPlan, PartialNapiSettings)>,
}

impl WantedQueue {
    /// One of these values after another, as an experiment sets them.
    pub(crate) fn one_of(values: &[PartialNapiSettings]) -> Self {
        let (first, alternatives) = values.split_first().map_or((PartialNapiSettings::NONE, &[][..]), |(f, a)| (*f, a));
        Self { values: first, alternatives: alternatives.to_vec(), in_plan: None }
    }
}

impl From<PartialNapiSettings> for WantedQueue {
    fn from(values: PartialNapiSettings) -> Self {
        Self { values, alternatives: Vec::new(), in_plan: None }
    }
}

impl From<&PlannedQueue> for WantedQueue {
    fn from(planned: &PlannedQueue) -> Self {
        let PlannedQueue { values: Diff { old, new }, in_plan, .. } = planned;
        let values = new.unwrap_or_default();
        Self { values, alternatives: Vec::new(), in_plan: Some((*in_plan, old.unwrap_or_default())) }
    }
}

/// Like [`look`], for a queue of a plan, which is absent if the plan has removed it.
pub(crate) fn look_at_planned(
    kernel: &HostAccess<'_>,
    planned: &PlannedQueue,
) -> Result<NapiSettingsChange, SettingsError> {
    let PlannedQueue { device, queue, napi, values, in_plan } = planned;
    if *in_plan != QueueInPlan::IsRemoved {
        let found = look(kernel.namespace, kernel.napi(device, *queue)?.id)?;
        return Ok(NapiSettingsChange { rx_queue: Some(*queue), ..found });
    }
    let (napi_id, old) = (napi.map_or(0, NapiId::get), values.old.unwrap_or_default());
    let found = record(kernel.namespace, kernel.link(device)?)?;
    Ok(NapiSettingsChange { napi_id, place: *queue, rx_queue: Some(*queue), old, ..found })
}

/// Plans a change of the queue `found`. Leaves out attributes that have their value and no owner. Returns `None` if
/// nothing is left. Also sets values that the kernel does not report, without an old value. Pure.
pub(crate) fn plan(
    found: NapiSettingsChange,
    wanted: &WantedQueue,
    owners: &QueueOwners,
    now_boot_ns: u64,
) -> Option<NapiSettingsChange> {
    let at = owners.next_boot_ns(now_boot_ns);
    let old = match wanted.in_plan {
        // The setting that outlives a queue on some drivers (veth). The others end with the created queue.
        Some((QueueInPlan::IsCreated, _)) => {
            PartialNapiSettings { irq_suspend_timeout_ns: Some(0), ..PartialNapiSettings::NONE }
        }
        Some((QueueInPlan::IsRecreated | QueueInPlan::IsRemoved, old)) => old,
        Some((QueueInPlan::Stays, _)) | None => found.old,
    };
    let is_reset = wanted.in_plan.is_some_and(|(in_plan, _)| in_plan != QueueInPlan::Stays);
    let mut change = NapiSettingsChange {
        old: PartialNapiSettings::NONE,
        set_at_boot_ns: at,
        in_plan: wanted.in_plan.map(|(in_plan, _)| in_plan),
        ..found
    };
    for attribute in NapiAttribute::ALL {
        let (value, now, claims) = (wanted.values.get(attribute), old.get(attribute), owners.of(attribute));
        let is_switched = wanted.alternatives.iter().any(|values| values.get(attribute) != now);
        let concerns = value.is_some() && (value != now || is_switched || !claims.is_empty());
        if !concerns && !(is_reset && (value.is_some() || now.is_some())) {
            continue;
        }
        let claim = claims.take(at, now.as_ref(), value.into_iter().collect());
        change.since_boot_ns.insert(attribute, claim.since);
        change.old.extend(claim.before.map(|before| (attribute, before)));
        change.new.extend(value.map(|value| (attribute, value)));
    }
    change.alternatives = wanted.alternatives.iter().map(|values| values.where_present_in(&change.new)).collect();
    (!change.since_boot_ns.is_empty()).then_some(change)
}

/// Receive queues of a device with their NAPI instances, as reported by the kernel or inferred. A device whose link is
/// down has no queues.
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
pub fn set(
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
    // A suspended queue has its interrupt masked and its timer armed for `irq_suspend_timeout`. If the new values end
    // suspension, nobody polls it before that timer, so a poll from here must end it.
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
    // Only the values that are read back prove that the mode is in force: drivers reset them when they recreate a
    // queue, and another program may write at the same time.
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
pub(crate) fn instance_now(device: &FoundDevice, change: &NapiSettingsChange) -> Result<Option<Napi>, NetlinkError> {
    let mut netdev = Netdev::open_in(&device.namespace)?;
    let napis = netdev.napis(device.link.index)?;
    // The kernel does not give the ID of a removed instance to another queue (`napi_hash_add` in `net/core/dev.c`). A
    // queue that is recreated keeps its ID if the driver keeps the configurations of its queues; otherwise the queue
    // number leads to the successor.
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

/// Present NAPI instance of the queue of a change, with the namespace of its device. `None` if the device is gone or down.
pub fn instance_of_change(
    proc: &ProcRoot,
    change: &NapiSettingsChange,
) -> Result<Option<(Namespace, NapiId)>, SettingsError> {
    let Some(device) = devices::find(proc, &change.recorded_device())? else { return Ok(None) };
    let napi = instance_now(&device, change)?;
    Ok(napi.map(|napi| (device.namespace, napi.id)))
}

/// Ends the ownership of a queue: sets the values that are in force without it, except where another program has
/// changed the value.
pub(crate) fn restore(
    proc: &ProcRoot,
    change: &NapiSettingsChange,
    made: bool,
    (owners, history): (&QueueOwners, &History),
) -> Result<UndoOutcome, SettingsError> {
    let Some(device) = devices::find(proc, &change.recorded_device())? else { return Ok(UndoOutcome::AlreadyGone) };
    let Some(napi) = instance_now(&device, change)? else {
        // Without an instance there is nothing to set. Some drivers keep the values of a queue that is down, so they
        // are only gone if no value that was set differs from the old one.
        let is_old = |values: &PartialNapiSettings| values.unlike(&change.old).is_empty();
        return Ok(match change.alternatives.iter().chain([&change.new]).all(is_old) {
            true => UndoOutcome::AlreadyGone,
            false => UndoOutcome::Waits(describe_waiting(
                change,
                &device.link.name,
                Some(&change.missing(&device, proc, history)),
            )),
        });
    };
    let now = napi.settings;
    let Ending { set, foreign, before, is_covered } = Ending::of(change, made, owners, &now);
    debug!(device = ?device.link.name, napi = napi.id.get(), from = %now, to = %set, %foreign, "ending the ownership of a queue");
    if !set.is_empty() {
        self::set(&device.namespace, proc, napi.id, &set)?;
    }
    Ok(match (foreign.is_empty(), set.is_empty()) {
        (true, true) => match owners.newest().filter(|_| is_covered) {
            Some(owner) => UndoOutcome::Superseded(owner.to_owned()),
            None => UndoOutcome::AlreadyGone,
        },
        (true, false) => UndoOutcome::Undone,
        (false, nothing_set) => {
            let why = format!(
                "another program has changed NAPI {} of {} to {foreign} (the value before Quell was {before})",
                napi.id, device.link.name
            );
            if nothing_set { UndoOutcome::LeftAlone(why) } else { UndoOutcome::Partial(why) }
        }
    })
}

/// Values that are set when the owner of a change ends beside these other owners.
pub(crate) fn set_at_end(
    change: &NapiSettingsChange,
    made: bool,
    owners: &QueueOwners,
    now: &PartialNapiSettings,
) -> PartialNapiSettings {
    Ending::of(change, made, owners, now).set
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) set: PartialNapiSettings,
    foreign: PartialNapiSettings,
    before: PartialNapiSettings,
    /// Whether a newer owner has set some of the values.
    is_covered: bool,
}

impl Ending {
    pub(super) fn of(change: &NapiSettingsChange, made: bool, owners: &QueueOwners, now: &PartialNapiSettings) -> Self {
        let mut ending = Self::default();
        for attribute in NapiAttribute::ALL {
            let (Some(own), Some(now)) = (change.claim(attribute, made), now.get(attribute)) else { continue };
            let claims = owners.of(attribute);
            let end = match change.in_plan {
                // The undo of the plan has recreated the queue, which thereby lost the values of its other owners.
                Some(QueueInPlan::IsRecreated | QueueInPlan::IsRemoved) if own.is_reset_to(now) => {
                    let target = claims.newest().copied().or(own.before);
                    target.filter(|target| *target != now).map_or(End::Nothing, End::Set)
                }
                _ => claims.end(&own, &now),
            };
            match end {
                End::Nothing => {}
                End::Covered => ending.is_covered = true,
                End::Set(value) => ending.set.extend([(attribute, value)]),
                End::Foreign { before } => {
                    ending.foreign.extend([(attribute, now)]);
                    ending.before.extend(before.map(|before| (attribute, before)));
                }
            }
        }
        ending
    }
}

/// Current values of a queue that its owner has set differently, except those of newer owners. Pure.
pub(crate) fn drift(
    change: &NapiSettingsChange,
    owners: &QueueOwners,
    now: &PartialNapiSettings,
) -> PartialNapiSettings {
    let has_drifted = |attribute: &NapiAttribute| {
        let (own, now) = (change.claim(*attribute, true)?, now.get(*attribute)?);
        let is_in_force = own.values.is_empty() || own.values.contains(&now);
        (!is_in_force && !owners.of(*attribute).cover(&own, &now)).then_some((*attribute, now))
    };
    NapiAttribute::ALL.iter().filter_map(has_drifted).collect()
}

impl Claim<u64> {
    /// Whether a queue with this value, which was recreated, can have it from its driver. A value that the plan did not
    /// change is the driver's in any case.
    fn is_reset_to(&self, now: u64) -> bool {
        now == 0 || self.values.iter().all(|value| Some(value) == self.before.as_ref())
    }
}

/// Whether the device is in another network namespace than when its queue was set.
fn is_elsewhere(device: &FoundDevice, change: &NapiSettingsChange) -> bool {
    device.namespace.cookie().is_ok_and(|cookie| cookie != change.namespace_cookie)
}

/// Text for a change of a queue that waits, with the reason, if the queue is still missing. Some drivers keep the memory of
/// an instance after its removal, and `netif_napi_add_weight` does not reset all values in it: irq-suspend-timeout
/// persists on veth. Drivers with persistent NAPI config restore all values.
fn describe_waiting(change: &NapiSettingsChange, device: &str, missing: Option<&MissingQueue>) -> String {
    let queue = change.rx_queue.map_or_else(|| format!("NAPI {}", change.napi_id), |queue| format!("queue {queue}"));
    let values = if change.alternatives.is_empty() { change.new.to_string() } else { "values of several modes".into() };
    let why = missing.map_or_else(|| "the queue is back".to_owned(), ToString::to_string);
    format!("{values} on {queue} of {device}: {why}")
}

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
