//! Sets of CPUs in the kernel's list format, for example `0-3,8`. `taskset -c`, `isolcpus=`, cpusets and
//! `/sys/devices/system/cpu/online` use this format.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An ordered set of CPU numbers. It may be empty, as `isolated` usually is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct CpuList(BTreeSet<u32>);

/// Highest accepted CPU number plus one. x86 kernels support at most 8,192 CPUs.
pub const CPU_LIMIT: u32 = 65_536;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CpuListError {
    #[error("CPU list: `{part}` is neither a CPU number nor a range like 0-3")]
    NotARange { part: String },
    #[error("CPU list: the range `{part}` ends before it starts")]
    Backwards { part: String },
    #[error("CPU list: `{part}` names a CPU above {max}", max = CPU_LIMIT - 1)]
    TooHigh { part: String },
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CpuSetReadError {
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Parse { path: PathBuf, source: CpuListError },
}

impl CpuList {
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Online CPUs, from `devices/system/cpu/online` below `sys` (normally `/sys`).
    pub fn online(sys: &Path) -> Result<Self, CpuSetReadError> {
        Self::read(&sys.join("devices/system/cpu/online"))
    }

    /// CPUs that may come online before the next boot, from `devices/system/cpu/possible` below `sys`. The kernel
    /// allocates one per-CPU value for each of them.
    pub fn possible(sys: &Path) -> Result<Self, CpuSetReadError> {
        Self::read(&sys.join("devices/system/cpu/possible"))
    }

    /// CPUs excluded from load balancing by `isolcpus=` or a cpuset partition (`devices/system/cpu/isolated` below
    /// `sys`).
    pub fn isolated(sys: &Path) -> Result<Self, CpuSetReadError> {
        Self::read(&sys.join("devices/system/cpu/isolated"))
    }

    /// Hardware threads of a CPU's core, including the CPU itself
    /// (`devices/system/cpu/cpuN/topology/thread_siblings_list` below `sys`).
    pub fn siblings(sys: &Path, cpu: u32) -> Result<Self, CpuSetReadError> {
        Self::read(&sys.join(format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))
    }

    fn read(path: &Path) -> Result<Self, CpuSetReadError> {
        let text = fs::read_to_string(path).map_err(|source| CpuSetReadError::Read { path: path.into(), source })?;
        text.parse().map_err(|source| CpuSetReadError::Parse { path: path.into(), source })
    }
}

impl FromIterator<u32> for CpuList {
    /// Collects CPU numbers and drops those at or above [`CPU_LIMIT`], which no kernel supports.
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().filter(|&cpu| cpu < CPU_LIMIT).collect())
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    /// Parses a list such as `0-3,8`. White space around the list is ignored. An empty text is the empty list.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (cpu_number(first, part)?, cpu_number(last, part)?);
            if last < first {
                return Err(CpuListError::Backwards { part: part.into() });
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

fn cpu_number(digits: &str, part: &str) -> Result<u32, CpuListError> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CpuListError::NotARange { part: part.into() });
    }
    match digits.parse() {
        Ok(cpu) if cpu < CPU_LIMIT => Ok(cpu),
        _ => Err(CpuListError::TooHigh { part: part.into() }),
    }
}

impl TryFrom<String> for CpuList {
    type Error = CpuListError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.to_string()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_and_numbers_are_read_in_any_order() {
        let list: CpuList = "8,0-3,2\n".parse().unwrap();
        assert_eq!(list.to_string(), "0-3,8");
        assert_eq!(list.len(), 5);
    }

    #[test]
    fn an_empty_text_is_the_empty_list() {
        assert!("\n".parse::<CpuList>().unwrap().is_empty());
    }

    #[test]
    fn a_wrong_part_is_named() {
        let error = "0-3,x".parse::<CpuList>().unwrap_err();
        assert_eq!(error, CpuListError::NotARange { part: "x".into() });
        assert!(matches!("3-1".parse::<CpuList>(), Err(CpuListError::Backwards { .. })));
        assert!(matches!("0-4294967295".parse::<CpuList>(), Err(CpuListError::TooHigh { .. })));
        assert!("1,,2".parse::<CpuList>().is_err());
        assert!("+1".parse::<CpuList>().is_err());
    }

    #[test]
    fn this_machine_has_a_cpu_online() {
        assert!(!CpuList::online(Path::new("/sys")).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn a_displayed_list_parses_to_the_same_list(cpus in prop::collection::btree_set(0..CPU_LIMIT, 0..50)) {
            let list: CpuList = cpus.into_iter().collect();
            prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<CpuList>();
        }
    }
}
