//! Entry points of the fuzz targets: all parsers of external bytes, with invariants of accepted input. They exist in
//! instrumented builds and in unit tests, which run the stored corpus, recordings and arbitrary bytes.

use std::ffi::OsStr;

use crate::bpf::Btf;
use crate::proc::{
    BootId, CurrentSyscall, EpollInfo, FdKind, Interrupts, Malformed, NetDev, Netstat, PidStat, PidStatus, Schedstat,
    Softirqs, SoftnetStat, Stat, irq, parse_executable_files, parse_load_address, parse_model_name, parse_unit, sysctl,
};
use crate::ssh_session::SshConnection;
use crate::sysfs::{cpu, net_class, queue_files};
use crate::{CpuList, address, bit_mask, ethtool, link, netdev, netlink, settings_files as files, sock_diag, xdp_diag};

/// Decodes bytes as a netlink datagram, and as the payload of every reply that Quell decodes.
pub fn netlink(bytes: &[u8]) {
    netlink::statuses(bytes);
    let _ = netdev::decode_napi(bytes);
    let _ = netdev::decode_queue(bytes);
    let _ = netdev::decode_stats(bytes);
    let _ = link::decode_link(bytes);
    let _ = address::decode_address(bytes);
    let _ = ethtool::decode_features(bytes);
    let _ = ethtool::decode_channels(bytes);
    let _ = sock_diag::decode_socket(bytes);
    let _ = xdp_diag::decode_xdp_socket(bytes);
    let _ = ethtool::decode_rings(bytes);
    let _ = ethtool::decode_rss(bytes);
    let coalescing = ethtool::decode_coalescing(bytes);
    let _ = coalescing.map(|device| ethtool::parse_words(bytes, &device));
}

pub fn ethtool_ioctl(bytes: &[u8]) {
    let _ = ethtool::parse_driver_info(bytes);
    let _ = ethtool::parse_rule(bytes, 0);
    let _ = ethtool::parse_locations(bytes);
}

/// Parses bytes as a mask. A valid mask must parse to the same numbers after formatting.
pub fn bit_mask(bytes: &[u8]) {
    if let Some(numbers) = bit_mask::parse(bytes) {
        assert_eq!(bit_mask::parse(bit_mask::format(numbers.clone()).as_bytes()), Some(numbers));
    }
}

pub fn one_line_files(bytes: &[u8]) {
    let _ = cpu::parse_word(bytes);
    let _ = cpu::parse_cpu_list_or_null(bytes);
    let _ = net_class::parse_number::<u64>(bytes);
    let _ = net_class::parse_or_minus_one(bytes);
    let _ = sysctl::parse(bytes);
    if let Ok(text) = sysctl::parse_text(bytes) {
        assert!(!text.contains('\n'));
    }
    if let (Ok(queues), Ok(cpus)) = (queue_files::parse_mask(bytes), irq::parse_mask(bytes)) {
        assert!(cpus.iter().eq(queues));
    }
    let _ = SshConnection::parse(&String::from_utf8_lossy(bytes));
    if let Ok(list) = irq::parse_list(bytes) {
        assert_eq!(irq::parse_list(list.to_string().as_bytes()), Ok(list));
    }
}

pub fn proc_files(bytes: &[u8]) {
    for error in [
        Stat::parse(bytes).err(),
        PidStatus::parse(bytes).err(),
        Schedstat::parse(bytes).err(),
        Softirqs::parse(bytes).err(),
        SoftnetStat::parse(bytes).err(),
        Netstat::parse(bytes).err(),
        Netstat::parse_snmp6(bytes).err(),
        EpollInfo::parse(bytes).err(),
        NetDev::parse(bytes).err(),
        CurrentSyscall::parse(bytes).err(),
        parse_executable_files(bytes).err(),
        parse_load_address(bytes, OsStr::new("libc.so.6")).err(),
    ] {
        names_a_line(error, bytes);
    }
    interrupts(bytes);
    pid_stat(bytes);
    boot_id(bytes);
    let _ = FdKind::parse(bytes);
    let _ = parse_model_name(bytes);
    assert!(parse_unit(bytes).is_none_or(|unit| !unit.contains('/')));
}

/// Parses a list. A valid list must parse to the same list after formatting.
pub fn cpu_list(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(list) = text.parse::<CpuList>() {
        assert_eq!(list.to_string().parse::<CpuList>().ok(), Some(list));
    }
}

pub fn settings_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = files::parse_link_file(&text);
    let _ = files::parse_tuned_profile(&text);
    let _ = files::parse_script(&text);
    let _ = files::IrqBans::parse(text.split('\0'));
}

pub fn btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes.to_vec()) else { return };
    let _ = btf.has_member("napi_struct", "napi_id");
    let _ = btf.has_member("a", "b");
    let _ = btf.enumerator("NAPI_STATE_IN_BUSY_POLL");
}

fn names_a_line(error: Option<Malformed>, bytes: &[u8]) {
    let Some(error) = error else { return };
    let lines = bytes.split(|&byte| byte == b'\n').count();
    assert!((1..=lines).contains(&error.line), "{error} of {lines} lines");
}

fn interrupts(bytes: &[u8]) {
    let Ok(interrupts) = Interrupts::parse(bytes) else { return };
    for line in interrupts.lines {
        assert!(line.description.contains(line.name()));
        if let Some(per_cpu) = line.per_cpu {
            assert!(per_cpu.values().all(|&count| count <= line.total));
        }
    }
}

fn pid_stat(bytes: &[u8]) {
    if let Ok(stat) = PidStat::parse(bytes) {
        let name = stat.comm.as_slice();
        assert!(name.is_empty() || bytes.windows(name.len()).any(|part| part == name));
    }
}

fn boot_id(bytes: &[u8]) {
    if let Ok(id) = BootId::parse(bytes) {
        assert_eq!(BootId::parse(id.to_string().as_bytes()), Ok(id));
    }
}

#[cfg(test)]
mod tests;
