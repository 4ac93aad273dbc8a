//! RPS and XPS of the queues of a veth pair, and sysctls of its namespace, on the running kernel.

use crate::common::{LabNamespace, LabPair, can_make_namespaces, drop_all_capabilities};
use quell_linux::netdev::QueueKind;
use quell_linux::proc::ProcRoot;
use quell_linux::sysfs::Sysfs;
use quell_linux::{CpuList, InterfaceName};

fn cpus(list: &str) -> CpuList {
    list.parse().unwrap()
}

#[test]
fn masks_read_back_as_set_even_from_another_namespace() {
    let Some(lab) = LabPair::create(4) else { return };
    let sysfs = Sysfs::of(&lab.server.namespace).unwrap();
    let veth = sysfs.net_class(&InterfaceName::new("srv0").unwrap());
    assert_eq!(veth.queues(QueueKind::Rx).unwrap(), [0, 1, 2, 3]);
    assert_eq!(veth.queues(QueueKind::Tx).unwrap(), [0, 1, 2, 3]);
    veth.set_rps_cpus(2, &cpus("0")).unwrap();
    assert_eq!(veth.rps_cpus(2).unwrap(), cpus("0"));
    assert!(veth.rps_cpus(1).unwrap().is_empty());
    veth.set_rps_cpus(2, &CpuList::default()).unwrap();
    assert!(veth.rps_cpus(2).unwrap().is_empty());
    veth.set_xps_cpus(3, &cpus("0")).unwrap();
    assert_eq!(veth.xps_cpus(3).unwrap(), Some(cpus("0")));
    veth.set_xps_rxqs(1, &[1, 3]).unwrap();
    assert_eq!(veth.xps_rxqs(1).unwrap(), [1, 3]);
    veth.set_rps_flow_cnt(0, 1000).unwrap();
    assert_eq!(veth.rps_flow_cnt(0).unwrap(), 1024, "the kernel rounds up");
}

#[test]
fn a_single_transmit_queue_has_no_xps_and_a_missing_queue_is_absent() {
    let Some(lab) = LabPair::create(1) else { return };
    let sysfs = Sysfs::of(&lab.server.namespace).unwrap();
    let lo = sysfs.net_class(&InterfaceName::new("lo").unwrap());
    assert_eq!(lo.xps_cpus(0).unwrap(), None);
    assert!(lo.xps_rxqs(0).unwrap().is_empty());
    let veth = sysfs.net_class(&InterfaceName::new("srv0").unwrap());
    assert!(veth.xps_cpus(1).unwrap_err().is_absent());
    assert!(veth.set_rps_cpus(1, &cpus("0")).unwrap_err().is_absent());
}

#[test]
fn without_privileges_masks_are_readable_but_not_writable() {
    let Some(lab) = LabPair::create(2) else { return };
    let sysfs = Sysfs::of(&lab.server.namespace).unwrap();
    let unprivileged = std::thread::spawn(move || {
        drop_all_capabilities();
        let veth = sysfs.net_class(&InterfaceName::new("srv0").unwrap());
        assert!(veth.rps_cpus(0).unwrap().is_empty());
        assert!(veth.set_rps_cpus(0, &cpus("0")).unwrap_err().is_denied());
    });
    unprivileged.join().unwrap();
}

#[test]
fn a_sysctl_is_set_only_in_the_namespace_of_the_calling_thread() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("sysctl");
    let name = "net.ipv4.ip_default_ttl".parse().unwrap();
    let proc = ProcRoot::default();
    let before = proc.sysctl(&name).unwrap();
    let inside = lab.namespace.run(|| {
        proc.set_sysctl(&name, "33").unwrap();
        proc.sysctl(&name).unwrap()
    });
    assert_eq!(inside.unwrap(), "33");
    assert_eq!(proc.sysctl(&name).unwrap(), before);
    assert!(proc.set_sysctl(&"net.core.no_such_thing".parse().unwrap(), "1").unwrap_err().is_absent());
}
