//! `/proc/net/dev`: packets and drops of every interface of a network namespace (`dev_seq_printf_stats` in
//! `net/core/net-procfs.c`). Which namespace a file speaks of depends on whose directory it is in.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Line, Malformed, lines};
use super::{ProcDir, ProcError};

/// What one interface counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrafficCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets dropped on receiving.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets dropped on sending; on veth also those that the peer's full ring refused.
    pub tx_dropped: u64,
}

/// The interfaces of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetDev {
    interfaces: BTreeMap<String, TrafficCounters>,
}

impl NetDev {
    /// Parses the file: two lines of headings, then an interface a line.
    ///
    /// # Errors
    /// When a line lacks its colon or one of its first twelve numbers.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let interfaces = lines(bytes).skip(2).map(interface).collect::<Result<_, _>>()?;
        Ok(Self { interfaces })
    }

    /// The counters of one interface; `None` when there is none of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<TrafficCounters> {
        self.interfaces.get(name).copied()
    }
}

fn interface(line: Line<'_>) -> Result<(String, TrafficCounters), Malformed> {
    // A name may hold a colon itself; the numbers do not.
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
    /// Reads the counters of the interfaces of the network namespace that this process or thread is in.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
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
    fn this_threads_namespace_has_a_loopback() {
        let own = super::super::ProcRoot::default().thread_self().net_dev().unwrap();
        assert!(own.get("lo").is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_but_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = NetDev::parse(&bytes);
        }
    }
}
