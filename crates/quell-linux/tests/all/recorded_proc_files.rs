//! Values of recorded /proc files of two machines and several kernels.

use std::fs;
use std::path::Path;

use quell_linux::proc::{
    CurrentSyscall, EpollInfo, EpollTimeout, Interrupts, NetDev, Netstat, PidStat, PidStatus, ProcessState, Schedstat,
    Softirqs, SoftnetStat, Stat,
};
use quell_linux::{Pid, proc};

fn recording(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings").join(name)).unwrap()
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
