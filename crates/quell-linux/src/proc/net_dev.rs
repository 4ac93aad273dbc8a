//! `/proc/net/dev`: packets and drops of every interface in a network namespace (`dev_seq_printf_stats` in
//! `net/core/net-procfs.c`). The namespace is that of the process in whose directory the file is read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Line, Malformed, lines};
use super::{ProcDir, ProcError};

/// Counters of an interface since the interface was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrafficCounters {
    pub rx_packets: u64,
    /// Number of packets that were dropped on receive.
    pub rx_dropped: u64,
    pub tx_packets: u64,
    /// Number of packets that were dropped on transmit. For veth, this includes packets that did not fit the peer's
    /// ring.
    pub tx_dropped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetDev {
    interfaces: BTreeMap<String, TrafficCounters>,
}

impl NetDev {
    /// Parses the file, which has two header lines and then one line per interface.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let interfaces = lines(bytes).skip(2).map(interface).collect::<Result<_, _>>()?;
        Ok(Self { interfaces })
    }

    /// Counters of an interface; `None` if it does not exist.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<TrafficCounters> {
        self.interfaces.get(name).copied()
    }
}

fn interface(line: Line<'_>) -> Result<(String, TrafficCounters), Malformed> {
    // An interface name may contain a colon, so search from the end of the line.
    let colon = line.bytes.iter().rposition(|&byte| byte == b':');
    let colon = colon.ok_or_else(|| line.malformed("an interface and a colon", line.bytes))?;
    let name = String::from_utf8_lossy(line.bytes[..colon].trim_ascii_start()).into_owned();
    let fields = line.bytes[colon + 1..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let numbers: Vec<u64> = fields.take(12).map(|field| line.number(field, "a counter")).collect::<Result<_, _>>()?;
    let [_, rx_packets, _, rx_dropped, _, _, _, _, _, tx_packets, _, tx_dropped] = numbers[..] else {
        return Err(line.malformed("at least twelve counters", line.bytes));
    };
    Ok((name, TrafficCounters { rx_packets, rx_dropped, tx_packets, tx_dropped }))
}

impl ProcDir {
    /// Reads the counters of all interfaces in the network namespace of this process or thread.
    pub fn net_dev(&self) -> Result<NetDev, ProcError> {
        self.read("net/dev", NetDev::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RECORDED: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo:     840      10    0    0    0     0          0         0      840      10    0    0    0     0       0          0\nve:th0: 9 8 7 6 5 4 3 2 1 20 30 40 0 0 0 0\n";

    #[test]
    fn counters_are_found_by_the_name_of_the_interface() {
        let parsed = NetDev::parse(RECORDED.as_bytes()).unwrap();
        assert_eq!(parsed.get("lo").unwrap().rx_packets, 10);
        let expected = TrafficCounters { rx_packets: 8, rx_dropped: 6, tx_packets: 20, tx_dropped: 40 };
        assert_eq!(parsed.get("ve:th0"), Some(expected));
        assert_eq!(parsed.get("eth9"), None);
    }

    #[test]
    fn a_name_with_wide_blanks_or_other_bytes_does_not_hide_other_interfaces() {
        let file = [
            RECORDED.as_bytes(),
            "a\u{3000}b: 1 2 3 4 5 6 7 8 9 10 11 12\n".as_bytes(),
            b"a\xff: 1 2 3 4 5 6 7 8 9 10 11 12\n",
        ];
        let parsed = NetDev::parse(&file.concat()).unwrap();
        assert_eq!(parsed.get("a\u{3000}b").unwrap().rx_packets, 2);
        assert_eq!(parsed.get("lo").unwrap().rx_packets, 10);
    }

    #[test]
    fn the_namespace_of_this_thread_has_a_loopback() {
        let own = super::super::ProcRoot::default().thread_self().net_dev().unwrap();
        assert!(own.get("lo").is_some());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = NetDev::parse(&bytes);
        }
    }
}
