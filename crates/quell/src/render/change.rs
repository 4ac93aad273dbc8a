//! A change of a journal in a few words.

use quell_host::journal::Change;

/// What was changed, and to what.
pub(crate) fn in_words(change: &Change) -> String {
    match change {
        Change::NetworkNamespace { name } => format!("network namespace {name}"),
        Change::VethPair { namespace, link } => format!("veth pair {link} in {namespace}"),
        Change::Process { command } => format!("process {}", command.join(" ")),
        Change::NapiSettings(change) => format!("NAPI {} of {}: {}", change.napi_id, change.device, change.new),
        Change::HostSetting(change) => change.setting.text().to_string(),
        Change::ReuseportFilter(change) => format!("steering of connections to {}", change.local),
        Change::SocketsPolling(change) => {
            let sockets: usize = change.sockets.iter().map(|alike| alike.inodes.len()).sum();
            format!("{sockets} sockets of process {}: {}", change.pid, change.new.values)
        }
        Change::RingPolling(change) => {
            format!("io_uring {} of process {}: busy poll {} µs", change.fd, change.pid, change.new.busy_poll_us)
        }
        Change::ThreadAffinity(change) => {
            format!("thread {} of process {}: CPUs {}", change.tid, change.pid, change.new)
        }
        Change::LaunchedEpolls(change) => format!("epolls of the launched process {}: {}", change.pid, change.new),
        Change::EpollParameters(change) => format!("epoll {} of process {}: {}", change.fd, change.pid, change.new),
    }
}
