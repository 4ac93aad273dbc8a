//! What the AF_XDP sockets of a program lost, from snapshots.

use quell_host::snapshot::{Process, Snapshot, SnapshotXdpSocket};
use quell_result::top::ObservedXdp;

/// Losses of the sockets of a process of `now`. `None` without AF_XDP sockets.
pub(crate) fn losses(process: &Process, now: &Snapshot, before: Option<&Snapshot>) -> Option<ObservedXdp> {
    let sockets = sockets(process).filter(|sockets| !sockets.is_empty())?;
    let dropped: u64 = sockets.iter().map(dropped).sum();
    let since = before.and_then(|before| {
        let then = self::sockets(before.same_process(process)?)?;
        let ns = now.taken.monotonic_ns.checked_sub(before.taken.monotonic_ns).filter(|&ns| ns > 0)?;
        let are_same = then.iter().map(|socket| socket.fd).eq(sockets.iter().map(|socket| socket.fd));
        let lost = dropped.checked_sub(then.iter().map(self::dropped).sum()).filter(|_| are_same)?;
        Some(lost as f64 * 1e9 / ns as f64)
    });
    Some(ObservedXdp {
        sockets: sockets.len(),
        dropped,
        fill_ring_empty: sockets.iter().filter_map(|socket| socket.stats.rx_fill_ring_empty).sum(),
        dropped_per_s: since,
    })
}

fn sockets(process: &Process) -> Option<&[SnapshotXdpSocket]> {
    Some(&process.files.known()?.xdp_details)
}

fn dropped(socket: &SnapshotXdpSocket) -> u64 {
    socket.stats.rx_dropped.saturating_add(socket.stats.rx_ring_full.unwrap_or(0))
}
