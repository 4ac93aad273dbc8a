//! What an attachment or a profile has set, and which newer owner has set it differently.

use std::fmt;

use quell_change::change::{Change, NapiSettingsChange};
use quell_change::journal::History;
use quell_host::attach::owners::CoveredValues;
use quell_linux::CpuList;
use schemars::JsonSchema;
use serde::Serialize;

use super::to_programs;
use crate::output::on_one_line;

/// Equal settings of queues of a device.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct SetReport {
    /// Null for settings without a device.
    device: Option<String>,
    /// Receive queues. Empty for settings of the device.
    queues: CpuList,
    settings: String,
    /// Values that a newer owner has set differently since, and this owner. Null without one.
    pub(super) newer: Option<String>,
}

/// Settings of queues and devices that remain to be undone, in the order of setting.
pub(super) fn what_is_set(
    history: &History,
    covered: impl Fn(&NapiSettingsChange) -> Option<CoveredValues>,
) -> Vec<SetReport> {
    let mut all: Vec<SetReport> = Vec::new();
    let pending: Vec<&Change> = history.pending().map(|(_, entry)| &entry.change).collect();
    for change in pending.into_iter().rev() {
        let (device, queue, settings, newer) = match change {
            Change::NapiSettings(napi) => {
                let newer = covered(napi).map(|CoveredValues { now, owner, programs }| {
                    format!("{now} by {owner}{}", to_programs(&programs))
                });
                (Some(napi.device.clone()), napi.rx_queue, napi.new.to_string(), newer)
            }
            Change::HostSetting(host) => {
                let text = host.setting.text();
                let new = text.new.unwrap_or_else(|| "removed".to_owned());
                let device = host.setting.device().map(ToString::to_string);
                (device, host.setting.queue(), format!("{} {new}", text.what), None)
            }
            _ => continue,
        };
        let alike =
            |known: &&mut SetReport| (&known.device, &known.settings, &known.newer) == (&device, &settings, &newer);
        match all.iter_mut().find(alike) {
            Some(known) => known.queues = known.queues.iter().chain(queue).collect(),
            None => all.push(SetReport { device, queues: queue.into_iter().collect(), settings, newer }),
        }
    }
    all
}

impl fmt::Display for SetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_ref().map(|device| on_one_line(device) + " ").unwrap_or_default();
        let queues = if self.queues.is_empty() { String::new() } else { format!("rx {} ", self.queues) };
        let newer = self.newer.as_ref().map(|newer| format!("; newer: {}", on_one_line(newer))).unwrap_or_default();
        writeln!(f, "  set: {device}{queues}{}{newer}", on_one_line(&self.settings))
    }
}
