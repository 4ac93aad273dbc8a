//! Infers facts that the kernel does not report: the NAPI instance of a queue, and its interrupt. Snapshots and
//! settings use the same rules.

/// Whether the NAPI instances of a device, ordered by ID, correspond to its receive queues in order. This holds for
/// veth (`veth_enable_napi_range` in `drivers/net/veth.c`). `kind` is the link kind of a virtual interface, such as
/// `veth`.
pub fn napis_follow_queues(kind: Option<&str>, napis: usize, rx_queues: usize) -> bool {
    kind == Some("veth") && napis == rx_queues
}

/// Name of the interrupt of receive queue `queue` of a virtio-net device; `bus` is its bus name (`virtio2`). See
/// `virtnet_find_vqs` in `drivers/net/virtio_net.c`.
pub fn virtio_rx_interrupt(bus: &str, queue: u32) -> String {
    format!("{bus}-input.{queue}")
}

pub fn virtio_tx_interrupt(bus: &str, queue: u32) -> String {
    format!("{bus}-output.{queue}")
}
