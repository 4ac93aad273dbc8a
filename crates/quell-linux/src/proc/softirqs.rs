//! `/proc/softirqs`: the number of softirqs of each kind per CPU. `NET_RX` counts runs of `net_rx_action`, not polls,
//! because one run may poll several NAPI instances.

use std::collections::BTreeMap;

use super::interrupts::{by_cpu, cpu_columns, label};
use super::text::{Line, Malformed, lines};
use super::{ProcError, ProcRoot};

/// Softirq counts since boot, by the kernel's name for the kind and by CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Softirqs {
    kinds: BTreeMap<String, BTreeMap<u32, u64>>,
}

impl Softirqs {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut lines = lines(bytes);
        let Some(head) = lines.next() else {
            return Ok(Self::default());
        };
        let cpus = cpu_columns(head)?;
        let kinds = lines.map(|line| kind(line, &cpus)).collect::<Result<_, _>>()?;
        Ok(Self { kinds })
    }

    /// Count of a kind (for example `NET_RX`) on a CPU; `None` if the kernel lacks the kind or the CPU.
    #[must_use]
    pub fn count(&self, kind: &str, cpu: u32) -> Option<u64> {
        self.kinds.get(kind)?.get(&cpu).copied()
    }

    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }
}

fn kind(line: Line<'_>, cpus: &[u32]) -> Result<(String, BTreeMap<u32, u64>), Malformed> {
    let (label, rest) = label(line)?;
    let counts = rest.fields().map(|field| rest.number(field, "a count")).collect::<Result<Vec<u64>, _>>()?;
    match by_cpu(cpus, &counts) {
        Some(counts) => Ok((label, counts)),
        None => Err(line.malformed("one count for each CPU of line 1", line.bytes)),
    }
}

impl ProcRoot {
    pub fn softirqs(&self) -> Result<Softirqs, ProcError> {
        self.read("softirqs", Softirqs::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_kind_and_cpu() {
        let table = Softirqs::parse(b"   CPU0 CPU1\n  NET_RX:  3916  4025\n").unwrap();
        assert_eq!(table.count("NET_RX", 1), Some(4025));
        assert_eq!(table.count("NET_RX", 2), None);
        assert_eq!(table.count("NET_TX", 1), None);
    }

    #[test]
    fn a_missing_count_is_an_error() {
        let error = Softirqs::parse(b"   CPU0 CPU1\n  NET_RX:  3916\n").unwrap_err();
        assert_eq!(error.line, 2);
    }
}
