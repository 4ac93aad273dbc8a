//! Plans the queues for a program before its launch: the queues of the devices that will receive its connections. Pure,
//! like [`mod@super::plan`]. Once the program runs, the attachment finds the queues of its sockets.

use std::collections::BTreeSet;

use quell_mode::{DeliveryMode, did_you_mean};

use super::affected_processes::affected_processes;
use super::plan::AttachPlan;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Snapshot};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("there is no device {name} in this network namespace{}", did_you_mean(name, there.iter().map(String::as_str)))]
    NoSuchDevice { name: String, there: Vec<String> },
    #[error("{0} has no NAPI instances, so its queues cannot be configured")]
    NoQueues(String),
}

/// Plans `mode` for all queues of the caller's network namespace, or for the queues of the `named` devices in it.
pub fn plan_of_devices(
    snapshot: &Snapshot,
    named: Option<&[String]>,
    mode: &DeliveryMode,
) -> Result<AttachPlan, DeviceError> {
    let query = SnapshotQuery::new(snapshot, None);
    let chosen = match named {
        None => own_devices(snapshot).collect(),
        Some(names) => devices_with_queues(snapshot, names)?,
    };
    let mut plan = AttachPlan::default();
    for device in chosen {
        for napi in device.napis.known_elements() {
            plan.add_queue(&query, device, napi, mode);
        }
    }
    plan.refuse_without_privilege(snapshot);
    plan.affected_processes = affected_processes(&query, &BTreeSet::new(), &plan);
    plan.hidden.clone_from(&snapshot.hidden_processes);
    Ok(plan)
}

pub fn devices_with_queues<'a>(snapshot: &'a Snapshot, names: &[String]) -> Result<Vec<&'a Device>, DeviceError> {
    let named = |name: &String| {
        let device = own_devices(snapshot).find(|device| device.name == *name);
        let device = device.ok_or_else(|| DeviceError::NoSuchDevice {
            name: name.clone(),
            there: own_devices(snapshot).map(|device| device.name.clone()).collect(),
        })?;
        match device.napis.known_elements().next() {
            Some(_) => Ok(device),
            None => Err(DeviceError::NoQueues(name.clone())),
        }
    };
    names.iter().map(named).collect()
}

/// Devices of the caller's network namespace.
pub fn own_devices(snapshot: &Snapshot) -> impl Iterator<Item = &Device> {
    let own = snapshot.own_namespace().map(|namespace| namespace.inode);
    snapshot.devices.iter().filter(move |device| Some(device.namespace) == own)
}
