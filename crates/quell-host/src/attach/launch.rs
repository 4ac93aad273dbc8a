//! Plans the queues that are set before a program is launched: those of the devices that will receive its connections.
//! Pure, like [`mod@super::plan`]. Once the program runs, the attachment knows the queues of its sockets.

use std::collections::BTreeSet;

use quell_mode::DeliveryMode;

use super::neighbours::neighbours;
use super::plan::Plan;
use crate::findings::view::View;
use crate::picture::{Device, Picture};

/// A named device does not exist, or has no queues that can be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The network namespace has no device of this name.
    #[error("there is no device {0} in this network namespace")]
    NoSuchDevice(String),
    /// The kernel lists no NAPI instance of the device.
    #[error("{0} has no queue with settings of its own: the kernel lists no NAPI instance of it")]
    NoQueues(String),
}

/// Plans `mode` for all queues of the reader's network namespace, or for its devices that are `named`.
///
/// # Errors
/// When a named device does not exist or has no queues.
pub fn plan_of_devices(picture: &Picture, named: Option<&[String]>, mode: &DeliveryMode) -> Result<Plan, DeviceError> {
    let view = View::new(picture, None);
    let own = picture.namespaces.iter().find(|namespace| namespace.is_readers).map(|namespace| namespace.inode);
    let here: Vec<&Device> = picture.devices.iter().filter(|device| Some(device.namespace) == own).collect();
    let chosen = match named {
        None => here,
        Some(names) => names.iter().map(|name| with_queues(&here, name)).collect::<Result<_, _>>()?,
    };
    let mut plan = Plan::default();
    for device in chosen {
        for napi in device.napis.known_elements() {
            plan.add_queue(&view, device, napi, mode);
        }
    }
    plan.refuse_without_privilege(picture);
    plan.neighbours = neighbours(&view, &BTreeSet::new(), &plan);
    plan.hidden.clone_from(&picture.hidden_processes);
    Ok(plan)
}

fn with_queues<'a>(here: &[&'a Device], name: &str) -> Result<&'a Device, DeviceError> {
    let device = here.iter().find(|device| device.name == name);
    let device = device.ok_or_else(|| DeviceError::NoSuchDevice(name.to_owned()))?;
    match device.napis.known_elements().next() {
        Some(_) => Ok(device),
        None => Err(DeviceError::NoQueues(name.to_owned())),
    }
}
