//! `/proc/net/netstat` and `/proc/net/snmp`: a network namespace's protocol counters by name. Which
//! namespace a file speaks of depends on whose directory it is in: see [`ProcDir::netstat`].

use std::collections::BTreeMap;

use super::text::{Line, Malformed, lines};
use super::{ProcDir, ProcError};

/// Counters of one network namespace, by group (`TcpExt`) and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netstat {
    groups: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Netstat {
    /// Parses the file: pairs of lines, names above values.
    ///
    /// # Errors
    /// When lines do not pair up, a value is missing or too many, or is no number.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut netstat = Self::default();
        let mut lines = lines(bytes);
        while let Some(names) = lines.next() {
            let Some(values) = lines.next() else {
                return Err(names.malformed("a line of values below it", names.bytes));
            };
            netstat.add_group(names, values)?;
        }
        Ok(netstat)
    }

    /// A counter since the namespace was made; `None` when this kernel does not have it.
    #[must_use]
    pub fn get(&self, group: &str, name: &str) -> Option<u64> {
        self.groups.get(group)?.get(name).copied()
    }

    /// `TcpExt BusyPollRxPackets`: packets received by busy polling, those of the last poll of each
    /// busy poll left out, so a lower bound (`net/core/dev.c`, `busy_poll_stop`).
    #[must_use]
    pub fn busy_poll_rx_packets(&self) -> Option<u64> {
        self.get("TcpExt", "BusyPollRxPackets")
    }

    /// `Tcp RetransSegs` of snmp: segments sent again.
    #[must_use]
    pub fn retransmitted_segments(&self) -> Option<u64> {
        self.get("Tcp", "RetransSegs")
    }

    fn add_group(&mut self, names: Line<'_>, values: Line<'_>) -> Result<(), Malformed> {
        let (mut name, mut value) = (names.fields(), values.fields());
        let group = name.next().and_then(|group| group.strip_suffix(b":"));
        let group = group.ok_or_else(|| names.malformed("a group and a colon", names.bytes))?;
        let beside = value.next().unwrap_or_default();
        if beside.strip_suffix(b":") != Some(group) {
            return Err(values.malformed("the group of the line above", beside));
        }
        let counters = self.groups.entry(text(group)).or_default();
        for name in name {
            let count: i128 = values.next_number(&mut value, "a value for each name")?;
            // `Tcp MaxConn` of snmp is -1: no limit, and no count.
            counters.extend(u64::try_from(count).ok().map(|count| (text(name), count)));
        }
        match value.next() {
            Some(extra) => Err(values.malformed("no more values than names", extra)),
            None => Ok(()),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl ProcDir {
    /// Reads the counters of the network namespace that this process or thread is in. For the
    /// calling thread that is [`thread_self`](super::ProcRoot::thread_self), which follows `setns`.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn netstat(&self) -> Result<Netstat, ProcError> {
        self.read("net/netstat", Netstat::parse)
    }

    /// Reads `net/snmp`, the standard counters of the same namespace.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn snmp(&self) -> Result<Netstat, ProcError> {
        self.read("net/snmp", Netstat::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_value_is_no_count() {
        let netstat = Netstat::parse(b"Tcp: MaxConn RetransSegs\nTcp: -1 7\n").unwrap();
        assert_eq!((netstat.get("Tcp", "MaxConn"), netstat.retransmitted_segments()), (None, Some(7)));
    }

    #[test]
    fn counters_are_found_by_name() {
        let text = b"TcpExt: A BusyPollRxPackets\nTcpExt: 1 42\nIpExt: A\nIpExt: 3\n";
        let netstat = Netstat::parse(text).unwrap();
        assert_eq!(netstat.busy_poll_rx_packets(), Some(42));
        assert_eq!(netstat.get("IpExt", "A"), Some(3));
        assert_eq!(netstat.get("IpExt", "B"), None);
    }

    #[test]
    fn names_and_values_must_pair_up() {
        for text in ["TcpExt: A B\nTcpExt: 1\n", "TcpExt: A\nTcpExt: 1 2\n", "TcpExt: A\n"] {
            assert!(Netstat::parse(text.as_bytes()).is_err(), "{text}");
        }
        let error = Netstat::parse(b"TcpExt: A\nIpExt: 1\n").unwrap_err();
        assert_eq!(error.line, 2);
    }
}
