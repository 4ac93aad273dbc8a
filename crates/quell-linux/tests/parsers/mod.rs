//! All parsers of external bytes, with invariants that accepted input must satisfy. Property tests, the stored corpus
//! and fuzz targets share them.

#![allow(clippy::unwrap_used, reason = "a panic reports a violated property")]

use std::ffi::OsStr;

use quell_linux::CpuList;
use quell_linux::bpf::Btf;
use quell_linux::proc::{
    BootId, CurrentSyscall, EpollInfo, FdKind, Interrupts, Malformed, NetDev, Netstat, PidStat, PidStatus, Schedstat,
    Softirqs, SoftnetStat, Stat, parse_executable_files, parse_load_address, parse_model_name,
};

/// Runs all parsers of /proc files on the same bytes.
pub(crate) fn proc_files(bytes: &[u8]) {
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
}

/// Parses a list. A valid list must parse to the same list after formatting.
pub(crate) fn cpu_list(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(list) = text.parse::<CpuList>() {
        assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
    }
}

/// Parses BTF and looks up the types that the tracepoint program needs.
pub(crate) fn btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes.to_vec()) else { return };
    let _ = btf.member_offset("napi_struct", "napi_id");
    let _ = btf.member_offset("a", "b");
    let _ = btf.enumerator("NAPI_STATE_IN_BUSY_POLL");
    let _ = btf.typedef_id("btf_trace_napi_poll");
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
