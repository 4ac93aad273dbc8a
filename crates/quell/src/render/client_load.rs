//! Commands that send requests to a server from another machine, by its name and address: the same in every output.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use quell_host::servers::name_and_address;
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;

/// HTTP servers, which `quell load` recognises.
const HTTP: [&str; 8] = ["nginx", "haproxy", "envoy", "caddy", "apache2", "httpd", "lighttpd", "traefik"];
/// Servers in which `quell load` stores keys unless its options forbid it.
const KEY_VALUE: [&str; 3] = ["memcached", "redis-server", "valkey-server"];
const HTTPS: [u16; 2] = [443, 8443];

/// A command that measures latency of a server, if its protocol is known. The reader replaces CLIENT.
pub(crate) fn judge(name: &str, address: Option<SocketAddr>) -> Option<String> {
    let address = address.filter(|address| !address.ip().is_unspecified())?;
    command(name, Some(address), "--rate 1K --warm-up 0.1 --seconds 1 --figures")
}

/// The same for the program that these processes are, if the snapshot shows its address.
pub(crate) fn judge_in(now: &Snapshot, pids: &BTreeSet<Pid>) -> Option<String> {
    let (name, address) = name_and_address(now, pids)?;
    judge(&name, Some(address))
}

/// A command that sends requests to a server, if its protocol is known. The reader replaces CLIENT, and ADDRESS if the
/// server listens on all.
pub(crate) fn command(name: &str, address: Option<SocketAddr>, options: &str) -> Option<String> {
    let address = address.filter(|it| !HTTPS.contains(&it.port()))?;
    let reads_only = match name {
        name if KEY_VALUE.contains(&name) => " --no-preload --get-share 1",
        name if HTTP.contains(&name) => "",
        _ => return None,
    };
    let address = match address.ip().is_unspecified() {
        true => format!("ADDRESS:{}", address.port()),
        false => address.to_string(),
    };
    Some(format!("ssh CLIENT quell load {address}{reads_only} {options}"))
}
