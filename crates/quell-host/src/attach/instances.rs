//! Notices that the devices of an attachment have other NAPI instances than before, as after a link flap, so that the next
//! pass is early. The kernel notifies nobody of it. A pass takes a snapshot of the programs; this asks only for the
//! instances of a few devices.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_change::namespaces;
use quell_change::settings::SettingsError;
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{InterfaceName, NapiId, clock};

use super::attachment::Attachment;

const PERIOD: Duration = Duration::from_millis(250);
/// Minimum ratio of the pause after a look to its CPU time: at most 0.5 % of a CPU.
const PAUSE_PER_CPU_TIME: u32 = 200;

/// Instances by device: cookie of the namespace, name.
type Instances = BTreeMap<(u64, String), Vec<NapiId>>;

#[derive(Debug, Default)]
pub struct InstanceWatch {
    seen: Instances,
    /// Time before which it does not look.
    next: Option<Instant>,
}

impl InstanceWatch {
    /// Whether a device of the attachment has other instances than at the last look. `false` if it is too early to look.
    pub fn has_changed(&mut self, attachment: &Attachment) -> bool {
        if self.next.is_some_and(|next| Instant::now() < next) {
            return false;
        }
        let before_ns = clock::thread_cpu_ns();
        let has_changed = self.see(instances(attachment));
        let used = Duration::from_nanos(clock::thread_cpu_ns().saturating_sub(before_ns));
        self.next = Some(Instant::now() + PERIOD.max(used * PAUSE_PER_CPU_TIME));
        has_changed
    }

    /// A device that was not there before has not changed.
    fn see(&mut self, now: Instances) -> bool {
        let differs = |(device, instances): (&(u64, String), &Vec<NapiId>)| {
            self.seen.get(device).is_some_and(|before| before != instances)
        };
        let has_changed = now.iter().any(differs);
        self.seen = now;
        has_changed
    }
}

/// Devices that cannot be read are left out.
fn instances(attachment: &Attachment) -> Instances {
    let proc = ProcRoot::default();
    let mut devices: Instances =
        attachment.queues().map(|step| ((step.namespace_cookie, step.device.clone()), Vec::new())).collect();
    devices.retain(|(cookie, device), napis| {
        let found = of_device(attachment, &proc, *cookie, device).ok().flatten();
        found.map(|found| *napis = found).is_some()
    });
    devices
}

fn of_device(
    attachment: &Attachment,
    proc: &ProcRoot,
    cookie: u64,
    device: &str,
) -> Result<Option<Vec<NapiId>>, SettingsError> {
    // The search by cookie opens the namespaces of the host one by one; mostly it is that of the programs.
    let program = attachment.targets().pids().first().map(|pid| Namespace::open_pid(proc.path(), *pid));
    let namespace = match program {
        Some(Ok(namespace)) if namespace.cookie()? == cookie => Some(namespace),
        _ => namespaces::by_cookie(proc, cookie)?,
    };
    let (Some(namespace), Ok(name)) = (namespace, InterfaceName::new(device)) else { return Ok(None) };
    let index = Links::open_in(&namespace)?.by_name(&name)?.index;
    Ok(Some(Netdev::open_in(&namespace)?.napis(index)?.into_iter().map(|napi| napi.id).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_a_driver_has_removed_or_recreated_are_a_change_and_a_further_device_is_none() {
        let of = |devices: &[(&str, &[u32])]| {
            let ids = |napis: &[u32]| napis.iter().map(|id| NapiId::from_kernel(*id).unwrap()).collect();
            devices.iter().map(|(name, napis)| ((1, (*name).to_owned()), ids(napis))).collect::<Instances>()
        };
        let mut watch = InstanceWatch::default();
        assert!(!watch.see(of(&[("eth0", &[8_193, 8_194])])));
        assert!(!watch.see(of(&[("eth0", &[8_193, 8_194]), ("eth1", &[8_195])])));
        assert!(watch.see(of(&[("eth0", &[8_193]), ("eth1", &[8_195])])));
        assert!(!watch.see(of(&[("eth0", &[8_193]), ("eth1", &[8_195])])));
        assert!(watch.see(of(&[("eth0", &[]), ("eth1", &[8_195])])), "GRO is off");
        assert!(watch.see(of(&[("eth0", &[8_196]), ("eth1", &[8_195])])));
    }
}
