//! `/proc/net/netstat` and `/proc/net/snmp6`: protocol counters of a network namespace by name. The namespace is that
//! of the process in whose directory the file is read; see [`ProcDir::netstat`].

use std::collections::BTreeMap;

use super::text::{Line, Malformed, lines};
use super::{ProcDir, ProcError};

/// Counters of received packets without ECN, and with each of the three ECN codepoints.
const ECN_COUNTERS: [&str; 4] = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"];

/// Counters of a network namespace, identified by group (for example `TcpExt`) and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netstat {
    groups: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Netstat {
    /// Parses the file, which consists of pairs of lines: names, and values below them.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut netstat = Self::default();
        let mut lines = lines(bytes);
        while let Some(names) = lines.next() {
            let Some(values) = lines.next() else {
                return Err(names.malformed("a line of values after it", names.bytes));
            };
            netstat.add_group(names, values)?;
        }
        Ok(netstat)
    }

    /// Parses the IPv6 file, which has one name and one value per line.
    pub fn parse_snmp6(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut counters = BTreeMap::new();
        for line in lines(bytes) {
            let mut fields = line.fields();
            let name = fields.next().ok_or_else(|| line.malformed("a name and a value", line.bytes))?;
            counters.insert(text(name), line.next_number(&mut fields, "a value after the name")?);
        }
        Ok(Self { groups: BTreeMap::from([("Ip6".to_owned(), counters)]) })
    }

    /// Value of a counter since the namespace was created; `None` if this kernel lacks the counter.
    #[must_use]
    pub fn get(&self, group: &str, name: &str) -> Option<u64> {
        self.groups.get(group)?.get(name).copied()
    }

    /// `TcpExt BusyPollRxPackets`: packets received by busy polling. It is a lower bound, because it omits the packets
    /// of the final poll of each busy-poll loop (`busy_poll_stop` in `net/core/dev.c`).
    #[must_use]
    pub fn busy_poll_rx_packets(&self) -> Option<u64> {
        self.get("TcpExt", "BusyPollRxPackets")
    }

    /// Number of received IPv4 packets on the wire, the sum of the four ECN counters `IpExt In…Pkts`. `ip_rcv_core` in
    /// `net/ipv4/ip_input.c` counts every packet in one of them. It counts a packet merged by GRO once per segment.
    #[must_use]
    pub fn ipv4_rx_packets(&self) -> Option<u64> {
        ECN_COUNTERS.iter().map(|name| self.get("IpExt", name)).sum()
    }

    /// Number of received IPv6 packets on the wire; see [`Self::ipv4_rx_packets`].
    #[must_use]
    pub fn ipv6_rx_packets(&self) -> Option<u64> {
        ECN_COUNTERS.iter().map(|name| self.get("Ip6", &format!("Ip6{name}"))).sum()
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
            // `Tcp MaxConn` is -1 (no limit). It is not a count, so it is omitted.
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
    /// Reads the counters of the network namespace of this process or thread. For the calling thread, use
    /// [`thread_self`](super::ProcRoot::thread_self), which reflects `setns(2)`.
    pub fn netstat(&self) -> Result<Netstat, ProcError> {
        self.read("net/netstat", Netstat::parse)
    }

    /// Reads the IPv6 counters in `net/snmp6` as group `Ip6`. The file does not exist on a kernel without IPv6.
    pub fn snmp6(&self) -> Result<Netstat, ProcError> {
        self.read("net/snmp6", Netstat::parse_snmp6)
    }

    /// Number of received IPv4 and IPv6 packets on the wire; `None` if this kernel does not count them.
    pub fn ip_rx_packets(&self) -> Result<Option<u64>, ProcError> {
        let ipv6 = match self.snmp6() {
            Ok(counters) => counters.ipv6_rx_packets(),
            Err(error) if error.is_absent() => Some(0),
            Err(error) => return Err(error),
        };
        let ipv4 = self.netstat()?.ipv4_rx_packets();
        Ok(ipv4.zip(ipv6).map(|(ipv4, ipv6)| ipv4 + ipv6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_value_is_not_a_count() {
        let netstat = Netstat::parse(b"Tcp: MaxConn RetransSegs\nTcp: -1 7\n").unwrap();
        assert_eq!((netstat.get("Tcp", "MaxConn"), netstat.get("Tcp", "RetransSegs")), (None, Some(7)));
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
    fn ip_packets_include_all_ecn_codepoints() {
        let ipv4 = Netstat::parse(b"IpExt: InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts\nIpExt: 1 2 3 4\n").unwrap();
        assert_eq!((ipv4.ipv4_rx_packets(), ipv4.ipv6_rx_packets()), (Some(10), None));
        let ipv6 = b"Ip6InNoECTPkts 5\nIp6InECT1Pkts\t0\nIp6InECT0Pkts 0\nIp6InCEPkts 1\n";
        assert_eq!(Netstat::parse_snmp6(ipv6).unwrap().ipv6_rx_packets(), Some(6));
        assert!(Netstat::parse_snmp6(b"Ip6InNoECTPkts\n").is_err());
    }

    #[test]
    fn names_and_values_must_match() {
        for text in ["TcpExt: A B\nTcpExt: 1\n", "TcpExt: A\nTcpExt: 1 2\n", "TcpExt: A\n"] {
            assert!(Netstat::parse(text.as_bytes()).is_err(), "{text}");
        }
        let error = Netstat::parse(b"TcpExt: A\nIpExt: 1\n").unwrap_err();
        assert_eq!(error.line, 2);
    }
}
