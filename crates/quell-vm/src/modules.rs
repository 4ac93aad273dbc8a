//! Which driver modules a guest needs, in the order of their loading. What a kernel has built in is not among its
//! files, and is passed over.

use std::path::{Path, PathBuf};

/// By name, each after those that it needs.
const MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "pps_core",
    "ptp",
    "e1000e",
    "veth",
    // What lists sockets.
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "unix_diag",
];

/// The module that a file holds (`…/e1000e.ko.xz` is `e1000e`), when guests need it.
pub(crate) fn needed(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    let (module, _) = name.split_once(".ko")?;
    MODULES.iter().find(|needed| **needed == module).copied()
}

/// The files of needed modules, in the order of their loading.
pub(crate) fn in_order(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let place = |path: &Path| MODULES.iter().position(|module| needed(path) == Some(module));
    files.retain(|path| place(path).is_some());
    files.sort_by_key(|path| place(path));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_after_those_that_they_need() {
        let files = ["a/virtio_net.ko.xz", "b/failover.ko.xz", "c/net_failover.ko.xz", "d/igb.ko.xz"];
        let ordered = in_order(files.map(PathBuf::from).to_vec());
        assert_eq!(ordered, ["b/failover.ko.xz", "c/net_failover.ko.xz", "a/virtio_net.ko.xz"].map(PathBuf::from));
    }

    #[test]
    fn a_module_is_known_by_its_whole_name() {
        assert_eq!(needed(Path::new("x/virtio_net.ko")), Some("virtio_net"));
        assert_eq!(needed(Path::new("x/virtio_net_extra.ko")), None);
        assert_eq!(needed(Path::new("x/vmlinuz")), None);
    }
}
