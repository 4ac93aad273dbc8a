//! Compares snapshots of namespaces with veth, macvlan and TAP devices with independent sources: `ip`, `ethtool`,
//! /proc, and the settings that the test made. Changes nothing outside its namespaces.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use quell_host::snapshot::{Device, Provenance, Snapshot, SnapshotScope, WatchedFile, take};
use quell_linux::event::{Epoll, Trigger};
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::{Pid, epoll_params};
use quell_test_support::{Lacks, skip_part};

use quell_test_support::lab::TestLab;

fn of_namespace(name: &str) -> Snapshot {
    take(&SnapshotScope { netns: Some(name.to_owned()), ..SnapshotScope::default() }).unwrap().0
}

fn device<'a>(snapshot: &'a Snapshot, name: &str) -> &'a Device {
    snapshot.devices.iter().find(|device| device.name == name).unwrap()
}

/// Runs a tool in a namespace and returns its output. Returns `None`, with the reason on stderr, if the tool is not
/// installed or fails.
fn said(namespace: &str, command: &[&str]) -> Option<String> {
    let output = Command::new("ip").args(["netns", "exec", namespace]).args(command).output();
    match output {
        Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap()),
        Ok(output) => {
            skip_part(
                Lacks::Tool(command[0]),
                format_args!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()),
            );
            None
        }
        Err(error) => {
            skip_part(Lacks::Tool("ip"), format_args!("ip: {error}"));
            None
        }
    }
}

#[test]
fn a_veth_pair_of_any_width_is_as_ip_and_ethtool_see_it() {
    for queues in [1, 4, 16] {
        let test = format!("veth{queues}");
        let Some(lab) = TestLab::raise(&test, queues) else { return };
        let change =
            PartialNapiSettings { defer_hard_irqs: Some(7), gro_flush_timeout_ns: Some(50_000), ..Default::default() };
        let chosen = *lab.napis.last().unwrap();
        Netdev::open_in(&lab.server).unwrap().set_napi(chosen, &change).unwrap();

        let namespace = lab.server_name.clone();
        let snapshot = of_namespace(&namespace);
        let device = device(&snapshot, "server0");
        let napis: Vec<_> = device.napis.known().unwrap().iter().map(|napi| napi.id).collect();
        assert_eq!(napis, lab.napis);
        let rx: Vec<_> =
            device.rx_queues.known().unwrap().iter().map(|queue| queue.napi.known().unwrap().unwrap()).collect();
        assert!(rx.iter().all(|linked| linked.source == Provenance::Order));
        assert_eq!(rx.iter().map(|linked| linked.to).collect::<Vec<_>>(), lab.napis);
        let index = snapshot.index();
        for id in &lab.napis {
            let (of, napi) = index.napi(*id).unwrap();
            let deferral = (napi.defer_hard_irqs.known().copied(), napi.gro_flush_timeout_ns.known().copied());
            assert_eq!(deferral, if *id == chosen { (Some(7), Some(50_000)) } else { (Some(0), Some(0)) });
            assert_eq!((of.name.as_str(), napi.irq.known()), ("server0", Some(&None)), "veth has no interrupt");
        }
        if let Some(text) = said(&namespace, &["ip", "-o", "link", "show", "server0"]) {
            assert!(text.contains(&device.mac.unwrap().to_string()), "{text}");
            assert!(text.contains(&format!("mtu {} ", device.mtu.unwrap())), "{text}");
            assert!(text.starts_with(&format!("{}: server0@", device.ifindex)), "{text}");
        }
        if let Some(text) = said(&namespace, &["ethtool", "-k", "server0"]) {
            let is_on = |feature| device.features.known().unwrap().get(feature).unwrap().active;
            let says = |line: &str| text.lines().any(|other| other.trim_end() == line);
            assert!(is_on("rx-gro") && says("generic-receive-offload: on"), "{text}");
            assert!(!is_on("tx-tcp-segmentation"), "{text}");
        }
        if let Some(text) = said(&namespace, &["ethtool", "-i", "server0"]) {
            let driver = device.driver.known().unwrap().driver.clone().unwrap();
            assert!(text.contains(&format!("driver: {driver}\n")), "{text}");
        }
    }
}

#[test]
fn macvlan_and_tap_devices_are_described() {
    let Some(lab) = TestLab::raise("tap", 2) else { return };
    let namespace = lab.server_name.clone();
    let made = ["link add link server0 name mac0 type macvlan mode bridge", "tuntap add dev tap0 mode tap multi_queue"];
    for words in made {
        let words: Vec<&str> = std::iter::once("ip").chain(words.split(' ')).collect();
        if said(&namespace, &words).is_none() {
            return;
        }
    }
    let snapshot = of_namespace(&namespace);
    let macvlan = device(&snapshot, "mac0");
    assert_eq!(macvlan.kind.as_deref(), Some("macvlan"));
    assert_eq!(macvlan.lower.unwrap().ifindex, device(&snapshot, "server0").ifindex);
    assert!(!macvlan.is_up && macvlan.napis.known().unwrap().is_empty());
    let tap = device(&snapshot, "tap0");
    assert_eq!((tap.kind.as_deref(), tap.is_up), (Some("tun"), false));
    assert_eq!(tap.napis.known().map(Vec::len), Some(0), "a TAP device lists no NAPI");
    assert_eq!(tap.driver.known().unwrap().driver.as_deref(), Some("tun"));
}

#[test]
fn a_connection_leads_from_its_epoll_to_its_queue() {
    let Some(lab) = TestLab::raise("path", 4) else { return };
    let server = lab.server.run(|| TcpListener::bind("192.0.2.1:7000").unwrap()).unwrap();
    let mut client = lab.client.run(|| TcpStream::connect("192.0.2.1:7000").unwrap()).unwrap();
    let (accepted, _) = server.accept().unwrap();
    client.write_all(b"x").unwrap();
    accepted.peek(&mut [0]).unwrap();
    let epoll = Epoll::new(8).unwrap();
    epoll.add(&accepted, 1, Trigger::Edge).unwrap();
    let params = epoll_params::EpollParams { busy_poll_usecs: 64, busy_poll_budget: 32, prefer_busy_poll: true };
    epoll_params::set(&epoll, params).unwrap();

    // The process of the test is in the caller's namespace, but its sockets are in the lab's namespace. A name restricts
    // processes to that namespace.
    let (netns, pids) = (Some(lab.server_name.clone()), vec![Pid::of_this_process()]);
    let both = [
        SnapshotScope { whole_host: true, ..SnapshotScope::default() },
        SnapshotScope { netns, pids, ..SnapshotScope::default() },
    ];
    for scope in both {
        let snapshot = take(&scope).unwrap().0;
        assert_eq!(snapshot.namespaces.iter().any(|namespace| namespace.is_current), scope.whole_host);
        let index = snapshot.index();
        let process = index.process(Pid::of_this_process()).unwrap();
        let epolls = &process.files.known().unwrap().epolls;
        let seen = epolls.iter().find(|epoll| epoll.params.known() == Some(&params)).unwrap();
        let [target] = seen.targets.known().unwrap().as_slice() else { panic!("{seen:?}") };
        let WatchedFile::Socket { inode } = target.file else { panic!("{target:?}") };
        let socket = index.socket(inode).unwrap();
        assert_eq!((socket.local, socket.remote), (accepted.local_addr().ok(), client.local_addr().ok()));
        assert_eq!((socket.namespace, socket.receive_queue), (lab.server.inode(), Some(1)));
        let napi = socket.napi.known().unwrap().unwrap();
        let (device, _) = index.napi(napi).unwrap();
        assert!(lab.napis.contains(&napi));
        assert_eq!((device.name.as_str(), device.namespace), ("server0", lab.server.inode()));
    }
}
