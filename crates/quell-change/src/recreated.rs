//! Queues that the undo of a change recreates. The driver resets them, and the values of their remaining owners are set
//! again.

use std::collections::BTreeMap;

use quell_linux::proc::ProcRoot;
use quell_mode::{NapiAttribute, PartialNapiSettings};
use tracing::{info, warn};

use crate::change::{HostSetting, NapiSettingsChange, Undo};
use crate::devices;
use crate::settings::{SettingsError, napi};

/// Values of other owners that are in force on the queues of a device.
#[derive(Debug, Default)]
pub(crate) struct ValuesInForce(Vec<(NapiSettingsChange, PartialNapiSettings)>);

impl ValuesInForce {
    /// Those that the undo of `setting` can reset. An error hides a queue, because it must not prevent the undo.
    pub(crate) fn before_undo_of(setting: &HostSetting, undo: &Undo<'_>) -> Self {
        let Undo { proc, others, history, .. } = undo;
        let Some(device) = setting.sysfs_inode.filter(|_| setting.setting.recreates_queues()) else {
            return Self::default();
        };
        let of_device = others.of_device(device).unwrap_or_default();
        // One change for each queue is enough to find the queue and all of its owners.
        let queues: BTreeMap<_, _> =
            of_device.into_iter().map(|change| ((change.rx_queue, change.place), change)).collect();
        let in_force = |change: NapiSettingsChange| {
            let owners = others.of_queue(&change, Some(history)).ok()?;
            let device = devices::find(proc, &change.recorded_device()).ok()??;
            let now = napi::instance_now(&device, &change).ok()?.map(|napi| napi.settings);
            let value = |attribute: &NapiAttribute| Some((*attribute, owners.in_force(*attribute, now.as_ref())?));
            let values: PartialNapiSettings = NapiAttribute::ALL.iter().filter_map(value).collect();
            (!values.is_empty()).then_some((change, values))
        };
        Self(queues.into_values().filter_map(in_force).collect())
    }

    /// Sets those that have changed. A failure leaves drift, which `quell status` shows.
    pub(crate) fn set_again(self, proc: &ProcRoot) {
        for (change, values) in self.0 {
            match set_again(proc, &change, &values) {
                Ok(false) => {}
                Ok(true) => {
                    info!(device = ?change.device, rx_queue = change.rx_queue, %values, "set the values of an owner again");
                }
                Err(error) => {
                    warn!(device = ?change.device, rx_queue = change.rx_queue, %error, "could not set the values of an owner again");
                }
            }
        }
    }
}

/// Returns whether the queue exists and had other values.
fn set_again(
    proc: &ProcRoot,
    change: &NapiSettingsChange,
    values: &PartialNapiSettings,
) -> Result<bool, SettingsError> {
    let Some(device) = devices::find(proc, &change.recorded_device())? else { return Ok(false) };
    let Some(napi) = napi::instance_now(&device, change)? else { return Ok(false) };
    if values.unlike(&napi.settings).is_empty() {
        return Ok(false);
    }
    napi::set(&device.namespace, proc, napi.id, values)?;
    Ok(true)
}
