//! Runs the parsers of external bytes on recordings, damaged recordings, arbitrary bytes, and the fuzzing
//! corpus.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod parsers;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use quell_linux::proc::{
    CurrentSyscall, EpollInfo, EpollTimeout, Interrupts, NetDev, Netstat, PidStat, PidStatus, ProcessState, Schedstat,
    Softirqs, SoftnetStat, Stat,
};
use quell_linux::{Pid, proc};

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn recording(name: &str) -> Vec<u8> {
    fs::read(recordings().join(name)).unwrap()
}

fn files(directory: &Path) -> Vec<Vec<u8>> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let contents: Vec<_> = paths.filter(|path| path.is_file()).map(|path| fs::read(path).unwrap()).collect();
    assert!(!contents.is_empty(), "{}", directory.display());
    contents
}

#[test]
fn the_files_of_this_machine_are_parsed() {
    let stat = Stat::parse(&recording("stat")).unwrap();
    assert_eq!(stat.cpus.keys().collect::<Vec<_>>(), [&0, &1]);
    assert!(stat.cpus[&1].guest_nice.is_some());
    let softirqs = Softirqs::parse(&recording("softirqs")).unwrap();
    assert!(softirqs.count("NET_RX", 1).unwrap() > 0);
    let softnet = SoftnetStat::parse(&recording("softnet_stat")).unwrap();
    assert!(softnet.cpu(1).unwrap().processed > 1_000_000);
    let netstat = Netstat::parse(&recording("netstat")).unwrap();
    assert!(netstat.busy_poll_rx_packets().is_some());
    assert!(netstat.get("IpExt", "InOctets").unwrap() > 0);
    let loopback = NetDev::parse(&recording("net_dev")).unwrap().get("lo").unwrap();
    assert_eq!(loopback.rx_packets, loopback.tx_packets);
    let model = proc::parse_model_name(&recording("cpuinfo"));
    assert_eq!(model.as_deref(), Some("Intel(R) Xeon(R) Processor"));
}

#[test]
fn interrupts_of_x86_and_of_arm64_with_a_missing_cpu_are_parsed() {
    let x86 = Interrupts::parse(&recording("interrupts")).unwrap();
    assert_eq!(x86.irq(38).unwrap().name(), "virtio2-input.0");
    assert_eq!(x86.kind("LOC").unwrap().name(), "Local timer interrupts");
    assert_eq!(x86.kind("ERR").unwrap().per_cpu, None);

    let arm = Interrupts::parse(&recording("interrupts_arm64_hotplug")).unwrap();
    let queue = arm.irq(49).unwrap();
    assert_eq!(queue.name(), "ens5-Tx-Rx-0");
    assert_eq!(queue.per_cpu.as_ref().unwrap().get(&1), Some(&5_521_132));
    assert_eq!(queue.per_cpu.as_ref().unwrap().get(&2), None);
    assert_eq!(arm.kind("IPI0").unwrap().total, 84_244);
}

#[test]
fn a_memcached_is_parsed() {
    let stat = PidStat::parse(&recording("memcached_stat")).unwrap();
    assert_eq!((stat.comm.as_slice(), stat.policy), (b"memcached".as_slice(), Some(0)));
    assert!(stat.ppid.is_some() && stat.num_threads > 2);
    let status = PidStatus::parse(&recording("memcached_status")).unwrap();
    assert_eq!(status.threads, Some(stat.num_threads));
    assert_eq!(status.cpus_allowed.unwrap().to_string(), "0-1");
    assert!(Schedstat::parse(&recording("memcached_schedstat")).unwrap().run_ns > 0);
    let syscall = CurrentSyscall::parse(&recording("memcached_syscall")).unwrap();
    let wait = syscall.epoll_wait().unwrap();
    assert_eq!((wait.epoll_fd, wait.max_events, wait.timeout), (12, 32, EpollTimeout::Forever));
    let epoll = EpollInfo::parse(&recording("memcached_epoll_fdinfo")).unwrap();
    assert_eq!(epoll.targets.len(), 1);
    assert!(epoll.targets[0].inode.is_some());
}

#[test]
fn a_kernel_thread_has_no_parent_and_no_session() {
    let stat = PidStat::parse(&recording("kthread_stat")).unwrap();
    assert_eq!((stat.ppid, stat.session, stat.pid), (None, None, Pid::new(2).unwrap()));
    let status = PidStatus::parse(&recording("kthread_status")).unwrap();
    assert_eq!(status.threads, Some(1));
}

#[test]
fn a_name_with_a_parenthesis_and_a_line_end_is_parsed() {
    let stat = PidStat::parse(&recording("weird_comm_stat")).unwrap();
    assert_eq!(stat.comm, b"a) R (b\nc");
    assert_eq!((stat.state, stat.session), (ProcessState::Sleeping, Pid::new(77)));
}

#[test]
fn an_epoll_of_an_old_kernel_has_targets_without_inodes() {
    let info = EpollInfo::parse(&recording("epoll_fdinfo_4_6")).unwrap();
    assert_eq!((info.targets[0].tfd, info.targets[0].inode), (5, None));
}

#[test]
fn the_fuzzing_corpus_does_not_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    files(&corpus.join("proc_files")).iter().for_each(|bytes| parsers::proc_files(bytes));
    files(&corpus.join("cpu_list")).iter().for_each(|bytes| parsers::cpu_list(bytes));
    files(&corpus.join("btf")).iter().for_each(|bytes| parsers::btf(bytes));
}

/// Generates a recording with some modified bytes and a missing part.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..8);
    (prop::sample::select(files(&recordings())), bytes, any::<Index>(), 0..40usize).prop_map(
        |(mut content, others, start, length)| {
            for (place, byte) in others {
                let place = place.index(content.len());
                content[place] = byte;
            }
            let start = start.index(content.len());
            let end = content.len().min(start + length);
            content.drain(start..end);
            content
        },
    )
}

/// Generates BTF with a valid header and arbitrary types, mostly of known kinds.
fn btf_of_anything() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![0..9u32, (1..20u32, 0..4u32).prop_map(|(kind, n)| kind << 24 | n), any::<u32>()];
    (prop::collection::vec(word, 0..60), 0..300u32).prop_map(|(words, length)| {
        let strings = b"\0napi_struct\0napi_id\0a\0b\0";
        let types = words.len() as u32 * 4;
        let mut bytes = Vec::from(0xEB9F_u16.to_ne_bytes());
        bytes.extend([1, 0]);
        let length = if length < 250 { types } else { length };
        for word in [24, 0, length, types, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    })
}

proptest! {
    #[test]
    fn a_damaged_recording_never_panics(bytes in damaged()) {
        parsers::proc_files(&bytes);
        parsers::cpu_list(&bytes);
        parsers::btf(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        parsers::proc_files(&bytes);
        parsers::cpu_list(&bytes);
        parsers::btf(&bytes);
    }

    #[test]
    fn arbitrary_types_never_panic(bytes in btf_of_anything()) {
        parsers::btf(&bytes);
    }
}
