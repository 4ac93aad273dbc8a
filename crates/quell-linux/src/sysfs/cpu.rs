//! `/sys/devices/system/cpu/cpuN` and `/sys/devices/system/node`: frequency governor, idle states and NUMA nodes.
//! [`CpuList`] reads lists of CPUs.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::net_class::parse_number;
use super::{Sysfs, SysfsError};
use crate::CpuList;
use crate::proc::Malformed;
use crate::proc::text::{first_line, number};

/// An idle state of a CPU (`Documentation/admin-guide/pm/cpuidle.rst`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuIdleState {
    /// Name from the cpuidle driver, for example `C6`.
    pub name: String,
    pub exit_latency_us: u32,
    pub is_disabled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    pub number: u32,
    pub cpus: CpuList,
}

impl Sysfs {
    /// Frequency governor of a CPU (`scaling_governor`). The file does not exist without frequency scaling, as in most
    /// virtual machines.
    pub fn cpu_governor(&self, cpu: u32) -> Result<String, SysfsError> {
        self.read(format!("devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), parse_word)
    }

    /// Driver that sets the frequency of a CPU (`scaling_driver`), for example `intel_pstate`.
    pub fn cpu_scaling_driver(&self, cpu: u32) -> Result<String, SysfsError> {
        self.read(format!("devices/system/cpu/cpu{cpu}/cpufreq/scaling_driver"), parse_word)
    }

    /// Idle states of a CPU, from the lightest to the deepest. The directory does not exist without a cpuidle driver,
    /// as in most virtual machines.
    pub fn cpu_idle_states(&self, cpu: u32) -> Result<Vec<CpuIdleState>, SysfsError> {
        let directory = format!("devices/system/cpu/cpu{cpu}/cpuidle");
        let state = |number: u32| {
            let state = format!("{directory}/state{number}");
            Ok(CpuIdleState {
                name: self.read(format!("{state}/name"), parse_word)?,
                exit_latency_us: self.read(format!("{state}/latency"), parse_number)?,
                is_disabled: self.read(format!("{state}/disable"), parse_number::<u64>)? != 0,
            })
        };
        self.numbered(&directory, "state")?.into_iter().map(state).collect()
    }

    /// How often a CPU has entered each idle state since the start, from the lightest to the deepest.
    pub fn cpu_idle_entries(&self, cpu: u32) -> Result<Vec<u64>, SysfsError> {
        let directory = format!("devices/system/cpu/cpu{cpu}/cpuidle");
        let entries = |number: u32| self.read(format!("{directory}/state{number}/usage"), parse_number);
        self.numbered(&directory, "state")?.into_iter().map(entries).collect()
    }

    /// NUMA nodes in ascending order. The directory does not exist on kernels without NUMA.
    pub fn numa_nodes(&self) -> Result<Vec<NumaNode>, SysfsError> {
        let directory = "devices/system/node";
        let node = |number: u32| {
            let cpus = self.read(format!("{directory}/node{number}/cpulist"), parse_cpu_list)?;
            Ok(NumaNode { number, cpus })
        };
        self.numbered(directory, "node")?.into_iter().map(node).collect()
    }

    /// CPUs that stop their tick while one task runs (`nohz_full=`). The file does not exist on kernels without this
    /// function.
    pub fn cpus_without_tick(&self) -> Result<CpuList, SysfsError> {
        self.read("devices/system/cpu/nohz_full", parse_cpu_list_or_null)
    }

    /// Lists the numbers of the directory entries whose names are `prefix` and a number, in ascending order.
    fn numbered(&self, directory: &str, prefix: &str) -> Result<Vec<u32>, SysfsError> {
        let path = self.path().join(directory);
        let failed = |error: io::Error| SysfsError::new("list", &path, error);
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            numbers.extend(name.as_bytes().strip_prefix(prefix.as_bytes()).and_then(number::<u32>));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

pub(crate) fn parse_word(bytes: &[u8]) -> Result<String, Malformed> {
    let line = first_line(bytes);
    let word = line.bytes.trim_ascii();
    match std::str::from_utf8(word) {
        Ok(word) if !word.is_empty() => Ok(word.to_owned()),
        _ => Err(line.malformed("a word", word)),
    }
}

fn parse_cpu_list(bytes: &[u8]) -> Result<CpuList, Malformed> {
    let line = first_line(bytes);
    let list = std::str::from_utf8(line.bytes).ok().and_then(|text| text.parse().ok());
    list.ok_or_else(|| line.malformed("a CPU list", line.bytes))
}

/// Parses a list of CPUs. A kernel with `CONFIG_CPUMASK_OFFSTACK` prints a mask that was never allocated as `(null)`.
pub(crate) fn parse_cpu_list_or_null(bytes: &[u8]) -> Result<CpuList, Malformed> {
    if bytes.trim_ascii() == b"(null)" { Ok(CpuList::default()) } else { parse_cpu_list(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};

    #[test]
    fn idle_states_are_read_in_the_order_of_their_numbers() {
        let root = tempfile::tempdir().unwrap();
        for (number, name, latency, disable) in [(10, "C10", "890", "1"), (2, "C1E", "10", "0")] {
            let state = root.path().join(format!("devices/system/cpu/cpu3/cpuidle/state{number}"));
            fs::create_dir_all(&state).unwrap();
            let usage = if number == 2 { "70" } else { "5" };
            for (file, content) in [("name", name), ("latency", latency), ("disable", disable), ("usage", usage)] {
                fs::write(state.join(file), format!("{content}\n")).unwrap();
            }
        }
        let sysfs = Sysfs::at(root.path());
        let states = sysfs.cpu_idle_states(3).unwrap();
        let names: Vec<_> = states.iter().map(|state| (state.name.as_str(), state.is_disabled)).collect();
        assert_eq!(names, [("C1E", false), ("C10", true)]);
        assert_eq!(sysfs.cpu_idle_entries(3).unwrap(), [70, 5]);
        assert!(sysfs.cpu_idle_states(0).unwrap_err().is_absent());
    }

    #[test]
    fn a_mask_that_was_never_allocated_is_empty() {
        assert_eq!(parse_cpu_list_or_null(b"  (null)\n"), Ok(CpuList::default()));
        assert_eq!(parse_cpu_list_or_null(b"1-3\n").unwrap().to_string(), "1-3");
    }

    #[test]
    fn this_machines_nodes_hold_its_cpus() {
        let sysfs = Sysfs::default();
        let online = CpuList::online(sysfs.path()).unwrap();
        match sysfs.numa_nodes() {
            Err(error) if error.is_absent() => skip(Lacks::Machine, &error),
            nodes => {
                let cpus: CpuList =
                    nodes.unwrap().iter().flat_map(|node| node.cpus.iter().collect::<Vec<_>>()).collect();
                assert_eq!(cpus, online);
            }
        }
    }
}
