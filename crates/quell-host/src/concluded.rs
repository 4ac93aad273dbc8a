//! What is concluded where the kernel does not say it: which NAPI polls a queue, and which interrupt wakes it. One rule
//! each, for the picture and for whoever sets what it shows.

/// Whether a device's NAPI instances, in the order of their ids, are those of its receive queues in theirs: veth makes
/// them so (`veth_enable_napi_range` of `drivers/net/veth.c`). `kind` is the kind of a virtual interface.
pub(crate) fn napis_follow_queues(kind: Option<&str>, napis: usize, rx_queues: usize) -> bool {
    kind == Some("veth") && napis == rx_queues
}

/// What virtio-net calls the interrupt of receive queue `queue` of the device that its bus calls `bus` (`virtio2`):
/// `virtnet_find_vqs` of `drivers/net/virtio_net.c`.
pub(crate) fn virtio_rx_interrupt(bus: &str, queue: u32) -> String {
    format!("{bus}-input.{queue}")
}

/// As [`virtio_rx_interrupt`], of a transmit queue.
pub(crate) fn virtio_tx_interrupt(bus: &str, queue: u32) -> String {
    format!("{bus}-output.{queue}")
}
