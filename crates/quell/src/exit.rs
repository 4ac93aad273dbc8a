//! Exit codes and fatal errors.

use std::io;
use std::net::SocketAddr;

use quell_linux::output_file::OutputFileError;

pub(crate) use quell_cli::exit::{Exit, ProgramFailure as Failure};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListeningProtocol {
    Tcp,
    Udp,
}

/// The address cannot be listened on: why, and what to do. `choose` says how to select another address.
pub(crate) fn listening(address: SocketAddr, protocol: ListeningProtocol, choose: &str, error: &io::Error) -> Failure {
    let ss = match protocol {
        ListeningProtocol::Tcp => "ss -ltnp",
        ListeningProtocol::Udp => "ss -lunp",
    };
    let (exit, why) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            Exit::NotSupported,
            "; ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE".to_owned(),
        ),
        io::ErrorKind::AddrInUse => {
            (Exit::KernelRefused, format!("; `{ss} 'sport = :{}'` shows whose socket has it", address.port()))
        }
        io::ErrorKind::AddrNotAvailable => {
            (Exit::KernelRefused, "; no interface of this network namespace has this address".to_owned())
        }
        _ => (Exit::KernelRefused, String::new()),
    };
    Failure::new(exit, format!("listening on {address}: {error}{why}; {choose}"))
}

/// An output file that could be written before cannot be written now.
pub(crate) fn not_written(error: OutputFileError) -> Failure {
    Failure::new(Exit::KernelRefused, error)
}
