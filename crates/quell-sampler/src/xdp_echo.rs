//! A TCP peer without a server program, for benchmarks and tests. An XDP program at one end of a veth pair returns
//! every request as its response. The other end therefore measures against the cheapest possible server. It is not a
//! TCP implementation: it is stateless and serves only Linux clients.

use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use quell_linux::Ifindex;
use quell_linux::netns::Namespace;

use crate::sampler::SamplerError;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/xdp_echo.bpf.o");

#[derive(Clone, Copy, Debug)]
pub struct VethSide<'a> {
    pub namespace: &'a Namespace,
    pub interface: Ifindex,
}

/// A TCP port whose XDP program returns every request as its response, until this value is dropped.
///
/// The program handles TCP over IPv4 to that port. It accepts a SYN from any sender, returns data unchanged, and
/// answers a FIN with a reset. It drops all other segments to the port, and passes packets for other ports to the
/// kernel. Responses contain the sequence numbers that the client expects, so the program needs no state.
///
/// The client must be Linux with TCP timestamps enabled (`net.ipv4.tcp_timestamps`, the default). It must send complete
/// checksums, so its end needs `tx-checksum-ip-generic` off. Otherwise the client's kernel drops every response. A
/// request must fit one TCP segment, because the program returns each segment separately.
#[derive(Debug)]
pub struct XdpEcho {
    /// The programs stay loaded and attached while this value exists.
    _programs: Ebpf,
}

impl XdpEcho {
    /// Attaches the responder for `port` at `server`, and at `client` a program that passes every packet. Without the
    /// second program, veth does not deliver frames that the XDP program of the peer sends (`veth_xdp_flush` in
    /// `drivers/net/veth.c`). On an error neither end has a program.
    pub fn attach(server: VethSide<'_>, client: VethSide<'_>, port: u16) -> Result<Self, SamplerError> {
        let mut programs = EbpfLoader::new()
            .override_global("port", &port, true)
            .load(OBJECT)
            .map_err(|error| SamplerError::new("loading the XDP echo", &error))?;
        attach(&mut programs, "xdp_pass", client)?;
        attach(&mut programs, "xdp_echo", server)?;
        Ok(Self { _programs: programs })
    }
}

fn attach(programs: &mut Ebpf, name: &str, side: VethSide<'_>) -> Result<(), SamplerError> {
    let program: &mut Xdp = programs
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| SamplerError::Refused { action: "reading the compiled object", said: format!("no {name}") })?;
    program.load().map_err(|error| SamplerError::new("loading the XDP echo", &error))?;
    // The kernel resolves the interface index in the network namespace of the calling thread.
    let attached = side.namespace.run(|| program.attach_to_if_index(side.interface.get(), XdpMode::Driver));
    attached
        .map_err(|error| SamplerError::new("entering the namespace", &error))?
        .map_err(|error| SamplerError::new("attaching the XDP echo", &error))?;
    Ok(())
}
