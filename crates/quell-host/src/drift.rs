//! Finds settings of a journal that no longer have the applied value, and applies them again. Covers all settings of
//! profiles, and the queues, epolls and threads of attachments. Does not cover flow rules, RSS contexts, sockets,
//! io_urings and reuseport filters.

use std::path::Path;

use quell_linux::proc::{ProcError, ProcRoot};
use quell_mode::PartialNapiSettings;
use serde::Serialize;

use crate::devices;
use crate::journal::claims::{Claims, Others};
use crate::journal::{
    EpollParameters, History, HostSetting, JournalError, NapiSettingsChange, RecordedChange, ThreadAffinity,
};
use crate::plan;
use crate::settings::host::{Kernel, KnownContexts, Place, differs, make};
use crate::settings::{SettingsError, affinity, epoll, napi};

/// A setting that no longer has the applied value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Drift {
    /// Device; absent for settings without a device.
    pub device: Option<String>,
    /// Receive queue, for settings of a queue.
    pub queue: Option<u32>,
    /// Name of the setting.
    pub setting: String,
    /// Applied value.
    pub made: String,
    /// Current value; absent if the object does not exist at present.
    pub now: Option<String>,
}

/// Current state of the settings of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// Settings that no longer have the applied value.
    pub drifted: Vec<Drift>,
    /// Number of settings whose device or network namespace is gone.
    pub gone: usize,
    /// Number of settings in `drifted` whose network namespace cannot be entered, so that their value is unknown.
    pub out_of_sight: usize,
}

/// Reason why a setting could not be read or applied again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriftError {
    /// A setting could not be read or applied.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Another journal, which may concern the same queue, could not be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The boot ID could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// Reads the current state of the settings in the journal at `path`. A value that another journal has set since does
/// not count as drift.
///
/// # Errors
/// When a setting or the other journals cannot be read.
pub fn condition(path: &Path, history: &History) -> Result<Condition, DriftError> {
    let proc = ProcRoot::default();
    let others = Others::beside(path, proc.boot_id()?.to_string());
    let mut condition = Condition::default();
    // In the order in which they were applied.
    for entry in history.entries.iter().filter(|entry| entry.is_pending()) {
        let drift = match &entry.change {
            RecordedChange::HostSetting(change) => match Place::find(&proc, change) {
                Ok(Some(place)) => of_host(&place.kernel(&proc), change, &others)?,
                Ok(None) => {
                    condition.gone += 1;
                    None
                }
                Err(error) if error.is_out_of_sight() => {
                    let drift = not_found(change);
                    condition.out_of_sight += usize::from(drift.is_some());
                    drift
                }
                Err(error) => return Err(error.into()),
            },
            RecordedChange::NapiSettings(change) => of_queue(&proc, change, &others)?,
            RecordedChange::EpollParameters(change) => of_epoll(&proc, change)?,
            RecordedChange::ThreadAffinity(change) => of_thread(&proc, change)?,
            _ => None,
        };
        // A journal lists a queue twice if an attachment has set it twice.
        condition.drifted.extend(drift.filter(|drift| !condition.drifted.contains(drift)));
    }
    Ok(condition)
}

/// Applies the drifted settings of the profile in the journal at `path` again, if their objects exist. Returns the
/// state before. It records nothing, because the journal already holds the values from before the profile.
///
/// # Errors
/// When a setting cannot be read or applied.
pub fn reassert(path: &Path, history: &History) -> Result<Condition, DriftError> {
    let proc = ProcRoot::default();
    let others = Others::beside(path, proc.boot_id()?.to_string());
    let before = condition(path, history)?;
    for entry in history.entries.iter().filter(|entry| entry.is_pending()) {
        let RecordedChange::HostSetting(change) = &entry.change else { continue };
        let place = match Place::find(&proc, change) {
            Ok(Some(place)) => place,
            Ok(None) => continue,
            Err(error) if error.is_out_of_sight() => continue,
            Err(error) => return Err(error.into()),
        };
        let kernel = place.kernel(&proc);
        if of_host(&kernel, change, &others)?.is_some_and(|drift| drift.now.is_some()) {
            make(&kernel, &KnownContexts::default(), &change.setting)?;
        }
    }
    Ok(before)
}

fn of_host(kernel: &Kernel<'_>, change: &HostSetting, others: &Others) -> Result<Option<Drift>, DriftError> {
    let setting = &change.setting;
    let differs = match setting {
        plan::PlannedChange::Napi { device, queue, values, .. } => match (&values.new, kernel.napi(device, *queue)) {
            (None, _) => None,
            (Some(new), Ok(napi)) => {
                let found = napi::look(kernel.namespace, napi.id)?;
                of_values(new, &found.old, &others.claims(&found)?)
            }
            (Some(new), Err(error)) if error.is_absent() => Some((new.to_string(), None)),
            (_, Err(error)) => return Err(error.into()),
        },
        other => differs(kernel, other)?,
    };
    Ok(differs.map(|(made, now)| drift_of(setting, made, now)))
}

fn drift_of(setting: &plan::PlannedChange, made: String, now: Option<String>) -> Drift {
    let device = setting.device().map(ToString::to_string);
    Drift { device, queue: setting.queue(), setting: setting.text().what, made, now }
}

/// Returns the drift of a setting whose network namespace may be inaccessible.
fn not_found(change: &HostSetting) -> Option<Drift> {
    change.setting.text().new.map(|made| drift_of(&change.setting, made, None))
}

/// Returns the applied and the current value of each differing setting. Pure.
fn of_values(
    made: &PartialNapiSettings,
    now: &PartialNapiSettings,
    others: &Claims,
) -> Option<(String, Option<String>)> {
    let differing = others.without_theirs(&now.where_present_in(made).unlike(made));
    (!differing.is_empty()).then(|| (made.where_present_in(&differing).to_string(), Some(differing.to_string())))
}

fn of_queue(proc: &ProcRoot, change: &NapiSettingsChange, others: &Others) -> Result<Option<Drift>, DriftError> {
    // An attachment's queue that vanished with its device does not count as drift.
    let device = match devices::find(proc, &change.device_key()) {
        Ok(Some(device)) => device,
        Ok(None) => return Ok(None),
        Err(error) if error.is_out_of_sight() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let differs = match napi::instance_now(&device, change).map_err(SettingsError::from)? {
        Some(napi) => {
            let now = napi.settings;
            of_values(&change.set_to(&now), &now, &others.claims(change)?)
        }
        None => Some((change.new.to_string(), None)),
    };
    let device = Some(device.link.name);
    Ok(differs.map(|(made, now)| Drift { device, queue: change.rx_queue, setting: "napi".to_owned(), made, now }))
}

fn of_epoll(proc: &ProcRoot, change: &EpollParameters) -> Result<Option<Drift>, DriftError> {
    let now = epoll::now(proc, change)?.filter(|now| *now != change.set_to(*now));
    Ok(now.map(|now| Drift {
        device: None,
        queue: None,
        setting: format!("epoll {} of process {}", change.fd, change.pid),
        made: change.new.to_string(),
        now: Some(now.to_string()),
    }))
}

fn of_thread(proc: &ProcRoot, change: &ThreadAffinity) -> Result<Option<Drift>, DriftError> {
    let now = affinity::now(proc, change)?.filter(|now| *now != change.new);
    Ok(now.map(|now| Drift {
        device: None,
        queue: None,
        setting: format!("CPUs of thread {} of process {}", change.tid, change.pid),
        made: change.new.to_string(),
        now: Some(now.to_string()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(gro_flush_timeout_ns: u64, irq_suspend_timeout_ns: u64) -> PartialNapiSettings {
        PartialNapiSettings {
            gro_flush_timeout_ns: Some(gro_flush_timeout_ns),
            irq_suspend_timeout_ns: Some(irq_suspend_timeout_ns),
            ..PartialNapiSettings::default()
        }
    }

    #[test]
    fn only_differing_values_count_as_drift() {
        let drifted = of_values(&values(20_000, 20_000_000), &values(7, 20_000_000), &Claims::default());
        assert_eq!(drifted, Some(("gro-flush-timeout 20 µs".into(), Some("gro-flush-timeout 7 ns".into()))));
        assert_eq!(of_values(&values(20_000, 0), &values(20_000, 0), &Claims::default()), None);
    }
}
