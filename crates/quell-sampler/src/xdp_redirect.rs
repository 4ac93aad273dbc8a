//! The XDP program that gives datagrams for one address to an AF_XDP socket, and all other frames to the stack.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};

use aya::maps::XskMap;
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use quell_linux::Ifindex;
use quell_linux::af_xdp::{self, XdpHandle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Compiled from `bpf/xdp_redirect.bpf.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/xdp_redirect.bpf.o");
const SOCKETS: &str = "sockets";

// `include/uapi/asm-generic/errno.h`.
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;

/// Where the kernel runs an XDP program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum XdpHook {
    /// In the driver, before the kernel makes an skb of the frame.
    Native,
    /// In the stack, after that (`XDP_FLAGS_SKB_MODE`): the driver has no XDP.
    Generic,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpRedirectError {
    #[error("another XDP program is attached to the device; Quell does not replace it (`bpftool net` names it)")]
    Occupied,
    #[error("the device cannot run XDP programs: {0}")]
    NoXdp(io::Error),
    #[error("attaching an XDP program: {0}; needs CAP_BPF and CAP_NET_ADMIN")]
    Denied(io::Error),
    /// Without a link the program would stay attached if this process is killed.
    #[error("this kernel has no BPF links for XDP programs (Linux 5.9)")]
    NoLinks,
    #[error("{action}: {said}")]
    Refused { action: &'static str, said: String },
}

/// An attached program. The kernel detaches it when this value is dropped or the process ends, also by SIGKILL.
#[derive(Debug)]
pub struct XdpRedirect {
    hook: XdpHook,
    _link: FdLink,
    /// Keeps the map of sockets.
    _program: Ebpf,
}

impl XdpRedirect {
    /// Attaches the program to a device of the calling thread's network namespace. UDP datagrams for `local` that arrive on
    /// `queue` go to `socket`, an AF_XDP socket that is bound to this queue. An IPv4 datagram with options or in fragments,
    /// and one with a VLAN tag or IPv6 extension headers, goes to the stack.
    pub fn attach(
        device: Ifindex,
        queue: u32,
        socket: &XdpHandle,
        local: SocketAddr,
    ) -> Result<Self, XdpRedirectError> {
        // Links for XDP came with these counters, in Linux 5.9. Without links, `aya` attaches by netlink.
        if af_xdp::stats(socket).is_ok_and(|stats| stats.rx_ring_full.is_none()) {
            return Err(XdpRedirectError::NoLinks);
        }
        let refused = |action| move |error: &(dyn Error + 'static)| refusal(action, error);
        let mut address = [0; 16];
        match local.ip() {
            IpAddr::V4(ip) => address[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => address = ip.octets(),
        }
        let mut object = EbpfLoader::new()
            .override_global("local_address", &address, true)
            .override_global("local_port", &local.port().to_be(), true)
            .override_global("is_ipv6", &u8::from(local.is_ipv6()), true)
            .map_max_entries(SOCKETS, queue.saturating_add(1))
            .load(OBJECT)
            .map_err(|error| refused("loading the XDP program")(&error))?;
        let missing = |what: &str| XdpRedirectError::Refused {
            action: "reading the compiled object",
            said: format!("it has no {what}"),
        };
        let map = object.map_mut(SOCKETS).ok_or_else(|| missing(SOCKETS))?;
        let mut sockets = XskMap::try_from(map).map_err(|error| refused("opening the map of sockets")(&error))?;
        sockets.set(queue, socket.clone(), 0).map_err(|error| refused("entering the socket into the map")(&error))?;
        let program = object.program_mut("xdp_redirect").ok_or_else(|| missing("xdp_redirect"))?;
        let program: &mut Xdp = program.try_into().map_err(|error: ProgramError| refused("opening")(&error))?;
        program.load().map_err(|error| refused("loading the XDP program")(&error))?;
        let (link, hook) = match program.attach_to_if_index(device.get(), XdpMode::Driver) {
            Err(error) if errno(&error) == Some(EOPNOTSUPP) => {
                (program.attach_to_if_index(device.get(), XdpMode::Skb), XdpHook::Generic)
            }
            attached => (attached, XdpHook::Native),
        };
        let link = link.map_err(|error| attaching(&error))?;
        let link = program.take_link(link).map_err(|error| refused("taking the link")(&error))?;
        let link = FdLink::try_from(link).map_err(|_| XdpRedirectError::NoLinks)?;
        Ok(Self { hook, _link: link, _program: object })
    }

    #[must_use]
    pub fn hook(&self) -> XdpHook {
        self.hook
    }
}

fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Numbers of `dev_xdp_attach` in `net/core/dev.c`; ERANGE is veth's word for an MTU that is too large.
fn attaching(error: &ProgramError) -> XdpRedirectError {
    match errno(error) {
        Some(EBUSY | EEXIST) => XdpRedirectError::Occupied,
        Some(number @ (EOPNOTSUPP | ERANGE)) => XdpRedirectError::NoXdp(io::Error::from_raw_os_error(number)),
        _ => refusal("attaching the XDP program", error),
    }
}

fn refusal(action: &'static str, error: &(dyn Error + 'static)) -> XdpRedirectError {
    match errno(error).map(io::Error::from_raw_os_error) {
        Some(source) if source.kind() == io::ErrorKind::PermissionDenied => XdpRedirectError::Denied(source),
        _ => {
            let causes = std::iter::successors(Some(error), |error| (*error).source());
            let said: Vec<String> = causes.map(ToString::to_string).collect();
            XdpRedirectError::Refused { action, said: said.join(": ") }
        }
    }
}
