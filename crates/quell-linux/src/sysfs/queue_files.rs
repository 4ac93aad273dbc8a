//! `/sys/class/net/NAME/queues`: RPS (CPUs that process the packets of a receive queue) and XPS (CPUs or receive queues
//! that select a transmit queue). Netlink does not support these settings.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::net_class::parse_number;
use super::{NetClass, SysfsError};
use crate::bit_mask;
use crate::cpu_list::CpuList;
use crate::netdev::QueueKind;
use crate::proc::Malformed;
use crate::proc::text::first_line;

impl NetClass<'_> {
    /// Numbers of the active queues of one direction, in ascending order.
    pub fn queues(&self, kind: QueueKind) -> Result<Vec<u32>, SysfsError> {
        let directory = self.absolute(Path::new("queues"));
        let failed = |error| SysfsError::new("list", &directory, error);
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.strip_prefix(prefix(kind))?.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// `rps_cpus` of a receive queue: the CPUs to which RPS steers the queue's packets. An empty list means that RPS is
    /// off. The file does not exist if the queue does not exist or the kernel lacks RPS.
    pub fn rps_cpus(&self, queue: u32) -> Result<CpuList, SysfsError> {
        self.read_queue(QueueKind::Rx, queue, "rps_cpus", parse_mask).map(CpuList::from_iter)
    }

    /// Sets `rps_cpus` of a receive queue. Errors: `EINVAL` if all CPUs are isolated (`rps_cpumask_housekeeping` in
    /// `net/core/net-sysfs.c`).
    pub fn set_rps_cpus(&self, queue: u32, cpus: &CpuList) -> Result<(), SysfsError> {
        self.write_queue(QueueKind::Rx, queue, "rps_cpus", &bit_mask::format(cpus.iter()))
    }

    /// `rps_flow_cnt` of a receive queue: the size of the queue's RFS flow table in entries. 0 means that RFS is off.
    pub fn rps_flow_cnt(&self, queue: u32) -> Result<u32, SysfsError> {
        self.read_queue(QueueKind::Rx, queue, "rps_flow_cnt", parse_number)
    }

    /// Sets `rps_flow_cnt` of a receive queue. The kernel rounds the value up to a power of two.
    pub fn set_rps_flow_cnt(&self, queue: u32, entries: u32) -> Result<(), SysfsError> {
        self.write_queue(QueueKind::Rx, queue, "rps_flow_cnt", &entries.to_string())
    }

    /// `xps_cpus` of a transmit queue: the CPUs that send through the queue. `None` if the interface supports only one
    /// transmit queue, because then there is no choice.
    pub fn xps_cpus(&self, queue: u32) -> Result<Option<CpuList>, SysfsError> {
        let file = queue_file(QueueKind::Tx, queue, "xps_cpus");
        match self.read(&file, parse_mask) {
            // The file exists but cannot be read (`xps_cpus_show` in `net/core/net-sysfs.c`).
            Err(error) if error.errno() == Some(Errno::NOENT) && self.absolute(&file).exists() => Ok(None),
            cpus => cpus.map(|cpus| Some(CpuList::from_iter(cpus))),
        }
    }

    pub fn set_xps_cpus(&self, queue: u32, cpus: &CpuList) -> Result<(), SysfsError> {
        self.write_queue(QueueKind::Tx, queue, "xps_cpus", &bit_mask::format(cpus.iter()))
    }

    /// `xps_rxqs` of a transmit queue, in ascending order. Sockets that receive from these queues send through the
    /// transmit queue.
    pub fn xps_rxqs(&self, queue: u32) -> Result<Vec<u32>, SysfsError> {
        let queues = self.read_queue(QueueKind::Tx, queue, "xps_rxqs", parse_mask)?;
        Ok(queues.into_iter().collect())
    }

    pub fn set_xps_rxqs(&self, queue: u32, queues: &[u32]) -> Result<(), SysfsError> {
        self.write_queue(QueueKind::Tx, queue, "xps_rxqs", &bit_mask::format(queues.iter().copied()))
    }

    fn read_queue<T>(
        &self,
        kind: QueueKind,
        queue: u32,
        file: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, SysfsError> {
        self.read(queue_file(kind, queue, file), parse)
    }

    fn write_queue(&self, kind: QueueKind, queue: u32, file: &str, value: &str) -> Result<(), SysfsError> {
        self.write(&queue_file(kind, queue, file), value)
    }
}

fn prefix(kind: QueueKind) -> &'static str {
    match kind {
        QueueKind::Rx => "rx-",
        QueueKind::Tx => "tx-",
    }
}

fn queue_file(kind: QueueKind, queue: u32, file: &str) -> PathBuf {
    Path::new("queues").join(format!("{}{queue}", prefix(kind))).join(file)
}

pub(crate) fn parse_mask(bytes: &[u8]) -> Result<std::collections::BTreeSet<u32>, Malformed> {
    let line = first_line(bytes);
    bit_mask::parse(line.bytes).ok_or_else(|| line.malformed("a mask of hexadecimal digits", line.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::InterfaceName;
    use crate::sysfs::Sysfs;

    fn fixture() -> (tempfile::TempDir, Sysfs) {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in [
            ("rx-0/rps_cpus", "00000000,00000000\n"),
            ("rx-0/rps_flow_cnt", "0\n"),
            ("rx-10/rps_cpus", "1,00000003\n"),
            ("rx-2/rps_cpus", "oops\n"),
            ("tx-0/xps_cpus", "3\n"),
            ("tx-0/xps_rxqs", "5\n"),
        ] {
            let path = root.path().join("class/net/eth0/queues").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let sysfs = Sysfs::at(root.path());
        (root, sysfs)
    }

    fn eth0() -> InterfaceName {
        InterfaceName::new("eth0").unwrap()
    }

    #[test]
    fn masks_of_queues_are_read_and_written() {
        let (_root, sysfs) = fixture();
        let eth0 = sysfs.net_class(&eth0());
        assert_eq!(eth0.queues(QueueKind::Rx).unwrap(), [0, 2, 10]);
        assert!(eth0.rps_cpus(0).unwrap().is_empty());
        assert_eq!(eth0.rps_cpus(10).unwrap().to_string(), "0-1,32");
        assert_eq!(eth0.xps_rxqs(0).unwrap(), [0, 2]);
        eth0.set_xps_cpus(0, &"1,33".parse().unwrap()).unwrap();
        assert_eq!(eth0.xps_cpus(0).unwrap().map(|cpus| cpus.to_string()), Some("1,33".to_owned()));
        eth0.set_rps_flow_cnt(0, 4096).unwrap();
        assert_eq!(eth0.rps_flow_cnt(0).unwrap(), 4096);
    }

    #[test]
    fn a_missing_queue_is_absent_and_no_file_is_created() {
        let (_root, sysfs) = fixture();
        let eth0 = sysfs.net_class(&eth0());
        assert!(eth0.xps_cpus(7).unwrap_err().is_absent());
        assert!(eth0.set_rps_cpus(7, &CpuList::default()).unwrap_err().is_absent());
        assert!(matches!(eth0.rps_cpus(2), Err(SysfsError::Parse { .. })));
    }
}
