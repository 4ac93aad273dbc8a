//! Driver modules that a guest needs, in load order. Built-in drivers have no files and are skipped.

use std::path::{Path, PathBuf};

/// Names of the modules. A module follows those on which it depends.
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
    // `inet_diag` lists sockets.
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "unix_diag",
    // `xsk_diag` lists AF_XDP sockets.
    "xsk_diag",
];

/// Name of the module in a file (`…/e1000e.ko.xz` contains `e1000e`). Returns `None` if guests do not need the module.
pub(crate) fn needed(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    let (module, _) = name.split_once(".ko")?;
    MODULES.iter().find(|needed| **needed == module).copied()
}

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
    fn modules_are_loaded_after_their_dependencies() {
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
