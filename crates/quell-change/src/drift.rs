//! Finds settings of a journal that no longer have the applied value, and applies them again. Covers all settings of
//! profiles, and the queues, epolls and threads of attachments. Does not cover flow rules, RSS contexts, sockets,
//! io_urings and reuseport filters.

use std::path::Path;

use quell_linux::netdev::Napi;
use quell_linux::proc::{ProcError, ProcRoot};
use quell_mode::PartialNapiSettings;
use serde::Serialize;

use crate::change;
use crate::devices::{self, FoundDevice};
use crate::journal::claims::{Others, Owned};
use crate::journal::{
    EpollParameters, History, HostSetting, JournalError, NapiSettingsChange, RecordedChange, ThreadAffinity,
};
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
    let epolls = others.of_epolls(Some(history))?;
    // In the order in which they were applied.
    for entry in history.entries.iter().filter(|entry| entry.is_pending()) {
        let drift = match &entry.change {
            RecordedChange::HostSetting(change) => match Place::find(&proc, change) {
                Ok(Some(place)) => of_host(&place.kernel(&proc), change)?,
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
            RecordedChange::NapiSettings(change) => match QueueNow::find(&proc, change) {
                Ok(QueueNow::NoDevice) => {
                    // The program of an attachment cannot use a queue that vanished with its device.
                    condition.gone += usize::from(change.in_plan.is_some());
                    None
                }
                Ok(queue) => of_queue(&queue, change, &others, history)?,
                Err(error) if error.is_out_of_sight() && change.in_plan.is_some() => {
                    condition.out_of_sight += 1;
                    Some(drift_of_queue(change, &change.device, change.new, None))
                }
                Err(error) if error.is_out_of_sight() => None,
                Err(error) => return Err(error.into()),
            },
            RecordedChange::EpollParameters(change) => of_epoll(&proc, change, &epolls)?,
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
        match &entry.change {
            RecordedChange::HostSetting(change) => match Place::find(&proc, change) {
                Ok(Some(place)) => {
                    let kernel = place.kernel(&proc);
                    if of_host(&kernel, change)?.is_some_and(|drift| drift.now.is_some()) {
                        make(&kernel, &KnownContexts::default(), &change.setting)?;
                    }
                }
                Ok(None) => {}
                Err(error) if error.is_out_of_sight() => {}
                Err(error) => return Err(error.into()),
            },
            RecordedChange::NapiSettings(change) => {
                // As for any writer of a queue with several owners.
                let _turn = others.turn(&mut || false)?;
                match QueueNow::find(&proc, change) {
                    Ok(QueueNow::Found(device, napi)) => {
                        let owners = others.of_queue(change, Some(history))?.besides(change);
                        let drifted = napi::drift(change, &owners, &napi.settings);
                        napi::set(&device.namespace, &proc, napi.id, &change.new.where_present_in(&drifted))?;
                    }
                    Ok(_) => {}
                    Err(error) if error.is_out_of_sight() => {}
                    Err(error) => return Err(error.into()),
                }
            }
            _ => {}
        }
    }
    Ok(before)
}

fn of_host(kernel: &Kernel<'_>, change: &HostSetting) -> Result<Option<Drift>, DriftError> {
    let differs = differs(kernel, &change.setting)?;
    Ok(differs.map(|(made, now)| drift_of(&change.setting, made, now)))
}

fn drift_of(setting: &change::PlannedChange, made: String, now: Option<String>) -> Drift {
    let device = setting.device().map(ToString::to_string);
    Drift { device, queue: setting.queue(), setting: setting.text().what, made, now }
}

/// Returns the drift of a setting whose network namespace may be inaccessible.
fn not_found(change: &HostSetting) -> Option<Drift> {
    change.setting.text().new.map(|made| drift_of(&change.setting, made, None))
}

/// Where the queue of a change is now.
enum QueueNow {
    NoDevice,
    /// The device has no NAPI instance for the queue at present.
    NoInstance(FoundDevice),
    Found(FoundDevice, Napi),
}

impl QueueNow {
    fn find(proc: &ProcRoot, change: &NapiSettingsChange) -> Result<Self, SettingsError> {
        let Some(device) = devices::find(proc, &change.device_key())? else { return Ok(Self::NoDevice) };
        Ok(match napi::instance_now(&device, change)? {
            Some(napi) => Self::Found(device, napi),
            None => Self::NoInstance(device),
        })
    }
}

fn of_queue(
    queue: &QueueNow,
    change: &NapiSettingsChange,
    others: &Others,
    history: &History,
) -> Result<Option<Drift>, DriftError> {
    Ok(match queue {
        // The plan has removed the queue.
        _ if change.new.is_empty() => None,
        QueueNow::NoDevice => None,
        QueueNow::NoInstance(device) => Some(drift_of_queue(change, &device.link.name, change.new, None)),
        QueueNow::Found(device, napi) => {
            let owners = others.of_queue(change, Some(history))?.besides(change);
            let drifted = napi::drift(change, &owners, &napi.settings);
            let made = change.new.where_present_in(&drifted);
            (!drifted.is_empty()).then(|| drift_of_queue(change, &device.link.name, made, Some(drifted)))
        }
    })
}

fn drift_of_queue(
    change: &NapiSettingsChange,
    device: &str,
    made: PartialNapiSettings,
    now: Option<PartialNapiSettings>,
) -> Drift {
    Drift {
        device: Some(device.to_owned()),
        queue: change.rx_queue,
        setting: "napi".to_owned(),
        made: made.to_string(),
        now: now.map(|now| now.to_string()),
    }
}

fn of_epoll(
    proc: &ProcRoot,
    change: &EpollParameters,
    owned: &[Owned<EpollParameters>],
) -> Result<Option<Drift>, DriftError> {
    let Some(now) = epoll::now(proc, change)? else { return Ok(None) };
    let own = change.claim(true);
    let drifts = !own.values.contains(&now) && !epoll::owners(change.place(), owned).cover(&own, &now);
    Ok(drifts.then(|| Drift {
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
