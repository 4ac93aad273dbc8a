//! The SSH session that this process belongs to: its connection in the environment, and the SSH servers among its
//! ancestors. `sudo` removes the variable, and a terminal multiplexer has other ancestors.

use std::env;
use std::net::{IpAddr, SocketAddr};

use crate::Pid;
use crate::proc::ProcRoot;

/// Names of the processes of SSH servers: OpenSSH, since 9.8 with a program per session, and Dropbear.
const SERVERS: [&[u8]; 3] = [b"sshd", b"sshd-session", b"dropbear"];

/// A TCP connection of an SSH session. IPv4 addresses are never mapped to IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SshConnection {
    pub client: SocketAddr,
    pub server: SocketAddr,
}

impl SshConnection {
    /// Parses the value of `SSH_CONNECTION` (`ssh(1)`): client address, client port, server address, server port.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut address = || {
            let ip: IpAddr = words.next()?.parse().ok()?;
            Some(SocketAddr::new(ip.to_canonical(), words.next()?.parse().ok()?))
        };
        let connection = Self { client: address()?, server: address()? };
        words.next().is_none().then_some(connection)
    }

    /// The connection named by the environment of this process. It can be that of an earlier session.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        Self::parse(&env::var("SSH_CONNECTION").ok()?)
    }
}

/// SSH servers among the ancestors of this process, the nearest first.
#[must_use]
pub fn server_ancestors(proc: &ProcRoot) -> Vec<Pid> {
    let mut servers = Vec::new();
    let mut pid = Pid::of_this_process();
    // Each ancestor is older, but a process that exits in the meantime can have its ID reused.
    for _ in 0..GENERATIONS_MAX {
        let Ok(stat) = proc.process(pid).stat() else { break };
        if SERVERS.contains(&&*stat.comm) {
            servers.push(pid);
        }
        let Some(parent) = stat.ppid else { break };
        pid = parent;
    }
    servers
}

const GENERATIONS_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_connection_is_parsed_with_unmapped_addresses() {
        let expected =
            SshConnection { client: "192.0.2.2:40000".parse().unwrap(), server: "192.0.2.1:22".parse().unwrap() };
        assert_eq!(SshConnection::parse("192.0.2.2 40000 192.0.2.1 22"), Some(expected));
        assert_eq!(SshConnection::parse("::ffff:192.0.2.2 40000 ::ffff:192.0.2.1 22"), Some(expected));
        for text in ["", "192.0.2.2 40000 192.0.2.1", "192.0.2.2 40000 192.0.2.1 22 x", "host 1 192.0.2.1 22"] {
            assert_eq!(SshConnection::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_written_connection_is_parsed_back(client: SocketAddr, server: SocketAddr) {
            let text = format!("{} {} {} {}", client.ip(), client.port(), server.ip(), server.port());
            let parsed = SshConnection::parse(&text).unwrap();
            prop_assert_eq!((parsed.client.ip(), parsed.server.port()), (client.ip().to_canonical(), server.port()));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = SshConnection::parse(&text);
        }
    }
}
