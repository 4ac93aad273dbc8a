//! Settings that fixes change, and the fixes if Quell has set them: the journals know the owner. Pure.

use std::collections::BTreeSet;

use quell_change::change::{Change, NapiSettingsChange, PlannedChange};
use quell_change::journal::{History, Purpose};
use quell_linux::{Ifindex, NapiId, Pid, shell};
use quell_mode::{DeliveryMode, NapiAttribute, PartialNapiSettings};

use super::sorting::server_of;
use super::{Finding, Fix};
use crate::attach::{AttachedMode, ModeCommand};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, NetworkNamespace, Snapshot, SnapshotNapi};

/// Setting that a fix changes, with its present and its wanted value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    Napi {
        id: NapiId,
        present: PartialNapiSettings,
        wanted: PartialNapiSettings,
    },
    /// Setting of a profile, or the affinity of a worker, in the words of [`PlannedChange::text`].
    Host {
        object: SettingObject,
        what: String,
        present: String,
        wanted: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingObject {
    Host,
    /// Inode of the namespace, and interface index.
    Device(u64, Ifindex),
    RxQueue(u64, Ifindex, u32),
    Irq(u32),
    Thread(Pid),
}

impl SettingObject {
    pub(super) fn device(device: &Device) -> Self {
        Self::Device(device.namespace, device.ifindex)
    }
}

impl Setting {
    pub(super) fn host(object: SettingObject, what: &str, present: impl ToString, wanted: impl ToString) -> Self {
        Self::Host { object, what: what.to_owned(), present: present.to_string(), wanted: wanted.to_string() }
    }

    /// Time of setting, in nanoseconds since boot, if this change has set the present value; 0 if it was not recorded.
    fn set_at(&self, change: &Change, now: &Snapshot) -> Option<u64> {
        match (self, change) {
            (Self::Napi { id, present, wanted }, Change::NapiSettings(change)) => {
                (is_of(change, *id, now) && has_set(change, present, wanted)).then_some(change.set_at_boot_ns)
            }
            (Self::Host { object, present, .. }, Change::ThreadAffinity(change)) => {
                (*object == SettingObject::Thread(change.tid) && *present == change.new.to_string()).then_some(0)
            }
            (Self::Host { object, what, present, .. }, Change::HostSetting(change)) => {
                let (set, text) = (&change.setting, change.setting.text());
                let is_it = object_of(set, now) == Some(*object)
                    && (matches!(object, SettingObject::Irq(_)) || text.what == *what);
                // A change of rings, channels or coalescing can have several values.
                let has = |new: String| new == *present || new.split(", ").any(|one| one == present);
                (is_it && text.new.is_some_and(has)).then_some(0)
            }
            _ => None,
        }
    }

    /// Whether the queue no longer has values that this change has set.
    fn is_lost(&self, change: &Change, now: &Snapshot) -> bool {
        let (Self::Napi { id, present, .. }, Change::NapiSettings(change)) = (self, change) else { return false };
        is_of(change, *id, now) && NapiAttribute::ALL.iter().any(|attribute| has_lost(change, present, *attribute))
    }

    /// The wanted value, as a profile has it.
    fn wanted(&self) -> String {
        match self {
            Self::Napi { wanted, .. } => wanted.to_string(),
            Self::Host { what, wanted, .. } => format!("{what} {wanted}"),
        }
    }
}

/// Whether a change has set the present values that a fix replaces.
fn has_set(change: &NapiSettingsChange, present: &PartialNapiSettings, wanted: &PartialNapiSettings) -> bool {
    let is_set = |attribute: &NapiAttribute| {
        let values = std::iter::once(&change.new).chain(&change.alternatives);
        let mut values = values.filter_map(|values| values.get(*attribute));
        let value = present.get(*attribute);
        value != change.old.get(*attribute) && values.any(|set| Some(set) == value)
    };
    let is_wanted = |attribute: &&NapiAttribute| wanted.get(**attribute).is_some();
    // A wanted value that is 0 now is missing: the finding is about the other ones.
    let adds = NapiAttribute::ALL.iter().filter(is_wanted).all(|attribute| present.get(*attribute) == Some(0));
    let is_meant = |it: &&NapiAttribute| if adds { **it != NapiAttribute::Threaded } else { is_wanted(it) };
    NapiAttribute::ALL.iter().filter(is_meant).any(is_set)
}

fn has_lost(change: &NapiSettingsChange, present: &PartialNapiSettings, attribute: NapiAttribute) -> bool {
    let mut set =
        std::iter::once(&change.new).chain(&change.alternatives).filter_map(|set| set.get(attribute)).peekable();
    let present = present.get(attribute);
    present.is_some() && set.peek().is_some() && set.all(|set| Some(set) != present)
}

/// Whether a NAPI instance is that of a change, or the one of its queue that has replaced it.
fn is_of(change: &NapiSettingsChange, id: NapiId, now: &Snapshot) -> bool {
    change.napi_id == id.get() || successor(change, now).is_some_and(|napi| napi.id == id)
}

fn successor<'a>(change: &NapiSettingsChange, now: &'a Snapshot) -> Option<&'a SnapshotNapi> {
    let is_its = |it: &&NetworkNamespace| it.cookie.known() == Some(&change.namespace_cookie);
    let namespace = now.namespaces.iter().find(is_its)?.inode;
    let is_it = |device: &&Device| (device.namespace, device.ifindex) == (namespace, change.ifindex);
    napi_of_queue(now.devices.iter().find(is_it)?, change.rx_queue?)
}

fn napi_of_queue(device: &Device, queue: u32) -> Option<&SnapshotNapi> {
    let id = device.rx_queues.known_elements().find(|rx| rx.id == queue)?.napi_id()?;
    device.napis.known_elements().find(|napi| napi.id == id)
}

fn object_of(change: &PlannedChange, now: &Snapshot) -> Option<SettingObject> {
    let Some(id) = change.device() else { return Some(SettingObject::Host) };
    let napi = || {
        let is_it = |device: &&Device| (device.namespace, device.ifindex) == (id.namespace, id.ifindex);
        napi_of_queue(now.devices.iter().find(is_it)?, change.queue()?)
    };
    Some(match (change, change.queue()) {
        (PlannedChange::IrqAffinity { irq, .. }, _) => SettingObject::Irq(irq.or_else(|| napi()?.irq_number())?),
        (PlannedChange::ThreadCpus { thread, .. }, _) => {
            SettingObject::Thread(thread.or_else(|| Some(napi()?.thread.known()?.as_ref()?.tid))?)
        }
        (_, Some(queue)) => SettingObject::RxQueue(id.namespace, id.ifindex, queue),
        (_, None) => SettingObject::Device(id.namespace, id.ifindex),
    })
}

/// Replaces commands that change settings which these owners have set. The new fix undoes or corrects the owner: other
/// values would be drift, or be refused while a program needs the present ones.
pub fn are_owned(findings: &mut [Finding], now: &Snapshot, owners: &[&History]) {
    let is_of_this_boot = |owner: &&&History| now.taken.boot_id.known() == Some(&owner.begin.boot_id);
    let owners: Vec<&History> = owners.iter().filter(is_of_this_boot).copied().collect();
    if owners.is_empty() {
        return;
    }
    let owner_of = |fix: &Fix| {
        let Fix::Set { setting, .. } = fix else { return None };
        let set_at =
            |owner: &History| owner.pending().filter_map(|(_, entry)| setting.set_at(&entry.change, now)).max();
        let set = owners.iter().enumerate().filter_map(|(place, owner)| Some((set_at(owner)?, place)));
        set.max().map(|(_, place)| place)
    };
    for finding in findings {
        let fixes = std::mem::take(&mut finding.fix);
        let by_owner: Vec<Option<usize>> = fixes.iter().map(owner_of).collect();
        // Another command sets the mode of these programs again: it needs no other mode.
        let is_set_again =
            fixes.iter().any(|fix| matches!(fix, Fix::Mode { command, .. } if command.attached.is_some()));
        for (fix, owner) in fixes.iter().zip(&by_owner) {
            if is_set_again && owner.is_some_and(|place| owners[place].begin.purpose.is_of_programs()) {
                continue;
            }
            let new = owner.and_then(|place| {
                let its = fixes.iter().zip(&by_owner).filter(|(_, other)| **other == Some(place));
                let settings: Vec<&Setting> = its.filter_map(|(fix, _)| fix.setting()).collect();
                fix_of_owner(owners[place], &settings, now)
            });
            let fix = new.unwrap_or_else(|| fix.clone());
            // One command undoes all settings of an owner.
            if !finding.fix.contains(&fix) {
                finding.fix.push(fix);
            }
        }
    }
}

/// How to undo or correct the owner of these settings; absent if the owner has no command for it.
fn fix_of_owner(owner: &History, settings: &[&Setting], now: &Snapshot) -> Option<Fix> {
    let purpose = &owner.begin.purpose;
    match purpose {
        Purpose::Profile { name, netns, .. } => {
            let wanted: Vec<String> = settings.iter().map(|setting| setting.wanted()).collect();
            let netns = netns.as_ref().map(|netns| format!(" --netns {}", shell::word(netns))).unwrap_or_default();
            let files: String = name.split(", ").map(|file| format!(" {}", shell::word(file))).collect();
            let revert = format!("quell revert {}", shell::word(name));
            Some(Fix::advice(format!(
                "profile {name} sets it: correct it there ({}), then `{revert} && quell apply{netns}{files}`; `{revert}` \
                 undoes the profile",
                wanted.join(", or "),
            )))
        }
        Purpose::Attachment { .. } | Purpose::Launch { .. } => {
            let attached = AttachedMode::recorded(owner)?;
            let programs = parents_of_targets(owner, now);
            let is_lost = |setting: &&Setting| owner.pending().any(|(_, entry)| setting.is_lost(&entry.change, now));
            let (first, mode) = match settings.iter().any(is_lost) {
                true => ("set it, and the queue has lost values of the mode", Some(attached.mode)),
                false => ("sets it", settings.first().and_then(|setting| corrected(&attached.mode, setting))),
            };
            let (steers, pins) = mode.map_or((false, false), |_| (attached.steers, attached.pins));
            let again = if attached.launched { "; start the program again" } else { "" };
            let command = ModeCommand::of_programs(Some(mode.unwrap_or_default()), &programs, now);
            Some(Fix::Mode {
                first: format!("{purpose} {first}{again}:"),
                command: command.placed(steers, pins).if_attached(&attached),
                otherwise: None,
            })
        }
        Purpose::Experiment => Some(Fix::advice("`quell bench` sets it, and restores it when it ends")),
        Purpose::Search => Some(Fix::advice("`quell tune` sets it, and restores it when it ends")),
        Purpose::Lab | Purpose::Command { .. } => None,
    }
}

/// Running programs of an attachment that are not workers of others, or its first one if none runs.
pub(super) fn parents_of_targets(owner: &History, now: &Snapshot) -> BTreeSet<Pid> {
    let query = SnapshotQuery::new(now, None);
    let is_target = |pid: Pid| owner.targets.iter().any(|target| target.pid == pid);
    let parent = |process| Some(server_of(&query, process).pid).filter(|pid| is_target(*pid));
    let running = now.processes.iter().filter(|process| is_target(process.pid));
    let parents: BTreeSet<Pid> = running.map(|process| parent(process).unwrap_or(process.pid)).collect();
    match parents.is_empty() {
        true => owner.targets.first().map(|target| target.pid).into_iter().collect(),
        false => parents,
    }
}

/// The mode with the wanted value; absent if no mode has it, or it is not a value of the mode.
fn corrected(mode: &DeliveryMode, setting: &Setting) -> Option<DeliveryMode> {
    let Setting::Napi { wanted, .. } = setting else { return None };
    if mode.poller().is_some() {
        return None;
    }
    // The name of the mode with the wanted value says more than the names of all values.
    let values: Option<Vec<String>> = NapiAttribute::ALL
        .iter()
        .filter_map(|attribute| Some((attribute, wanted.get(*attribute)?)))
        .map(|(attribute, value)| match attribute {
            NapiAttribute::GroFlushTimeout => Some(format!("gro-flush-timeout={value}ns")),
            NapiAttribute::DeferHardIrqs => Some(format!("defer-hard-irqs={value}")),
            _ => None,
        })
        .collect();
    let named = values.and_then(|values| format!("{mode},{}", values.join(",")).parse().ok());
    if let Some(named) = named.filter(|named| named != mode) {
        return Some(named);
    }
    let napi = PartialNapiSettings::from(mode.napi()).changed_by(wanted).complete()?;
    // Without suspension, nothing needs an epoll that polls.
    let ends_suspension = mode.napi().irq_suspend_timeout_ns > 0 && napi.irq_suspend_timeout_ns == 0;
    let epoll = mode.epoll().filter(|_| !ends_suspension).unwrap_or_default();
    DeliveryMode::recognised(napi, epoll).filter(|corrected| corrected != mode)
}
