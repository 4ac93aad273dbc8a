//! Flow rules of a profile. A rule selects the queue or RSS context for some packets.

use std::net::IpAddr;

use super::error::{ProfileError, ProfileRefusal};
use super::keys;
use super::place::{Place, Placed};
use super::section::{Labelled, Section, wrong};

/// Transport protocol that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowProtocol {
    /// Transmission Control Protocol.
    Tcp,
    /// User Datagram Protocol.
    Udp,
}

/// Address family that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowFamily {
    /// Internet Protocol version 4.
    V4,
    /// Internet Protocol version 6.
    V6,
}

/// Destination of the packets that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowTarget {
    /// A receive queue.
    Queue(u32),
    /// An RSS context of the same profile, selected by its label.
    Rss(String),
}

/// Flow rules for packets to a port or address of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowProfile {
    /// Label of the rule in the profile.
    pub label: String,
    /// Position of the rule in the profile.
    pub place: Place,
    /// Transport protocol of the packets.
    pub protocol: FlowProtocol,
    /// Address families, with one flow rule each. The default is both families, or the family of `address`.
    pub families: Vec<FlowFamily>,
    /// Destination port; `None` matches any port.
    pub port: Option<u16>,
    /// Destination address; `None` matches any address.
    pub address: Option<IpAddr>,
    /// Destination of the packets.
    pub target: Placed<FlowTarget>,
}

pub(super) fn read(flow: Labelled<'_>) -> Result<FlowProfile, ProfileError> {
    let section = Section::new(flow.table, &keys::FLOW)?;
    let missing = |key| ProfileError::new(flow.place, ProfileRefusal::Missing { key });
    let protocol = section.parsed("protocol", "\"tcp\" or \"udp\"", parse_protocol)?;
    let port = section.number("port")?.map(port_of).transpose()?;
    let address = section.parsed("address", "an IPv4 or IPv6 address", |text| text.parse::<IpAddr>().ok())?;
    if port.is_none() && address.is_none() {
        return Err(missing("port` or `address"));
    }
    Ok(FlowProfile {
        label: flow.label.to_owned(),
        place: flow.place.clone(),
        protocol: protocol.ok_or_else(|| missing("protocol"))?.value,
        families: families(&section, address.as_ref())?,
        port,
        address: address.map(|address| address.value),
        target: target(&section, flow.place)?,
    })
}

fn parse_protocol(text: &str) -> Option<FlowProtocol> {
    match text {
        "tcp" => Some(FlowProtocol::Tcp),
        "udp" => Some(FlowProtocol::Udp),
        _ => None,
    }
}

fn port_of(number: Placed<u32>) -> Result<u16, ProfileError> {
    let port = u16::try_from(number.value).ok().filter(|port| *port > 0);
    port.ok_or_else(|| wrong("port", "a port from 1 to 65535", &number.place))
}

fn families(section: &Section<'_>, address: Option<&Placed<IpAddr>>) -> Result<Vec<FlowFamily>, ProfileError> {
    let of_address = address.map(|address| if address.value.is_ipv4() { FlowFamily::V4 } else { FlowFamily::V6 });
    let given = section.parsed("family", "\"ipv4\" or \"ipv6\"; the default is both", |text| match text {
        "ipv4" => Some(FlowFamily::V4),
        "ipv6" => Some(FlowFamily::V6),
        _ => None,
    })?;
    match (given, of_address) {
        (Some(given), Some(of_address)) if given.value != of_address => {
            Err(wrong("family", "the family of the address, if present", &given.place))
        }
        (Some(Placed { value, .. }), _) | (None, Some(value)) => Ok(vec![value]),
        (None, None) => Ok(vec![FlowFamily::V4, FlowFamily::V6]),
    }
}

fn target(section: &Section<'_>, place: &Place) -> Result<Placed<FlowTarget>, ProfileError> {
    const KEYS: &str = "to-queue` or `to-rss";
    let queue = section.number("to-queue")?;
    let context = section.text("to-rss")?;
    match (queue, context) {
        (Some(queue), None) => Ok(Placed { value: FlowTarget::Queue(queue.value), place: queue.place }),
        (None, Some(context)) => Ok(Placed { value: FlowTarget::Rss(context.value), place: context.place }),
        (None, None) => Err(ProfileError::new(place, ProfileRefusal::Missing { key: KEYS })),
        (Some(_), Some(context)) => Err(wrong("to-rss", "absent if `to-queue` is present", &context.place)),
    }
}
