//! Decides groups, queues and notes without a kernel, from the recorded snapshot of a host. Its server has a socket per
//! worker, like nginx with `reuseport`.

use crate::snapshots::{healthy, set, snapshot};
use quell_host::snapshot::{Protocol, Snapshot};
use quell_host::steer::{
    Baseline, CannotSteer, Connection, Group, GroupKey, GroupSocket, LeftOut, Note, SteerRequest, SteerVerdict,
    Steering, Surroundings, WhyLeftOut, groups, plan, verify,
};
use quell_linux::reuseport::{ClassicInstruction, SeenQueues};
use quell_linux::{Ifindex, Pid};
use quell_sampler::GroupProgram;
use serde_json::{Value, json};

const NAMESPACE: u64 = 4_026_531_840;
const UID: u32 = 105;
const SERVER: i32 = 4242;
/// Each is watched by the epoll with the same index.
const LISTENING: [u64; 2] = [201, 202];
const EPOLLS: [usize; 2] = [1, 2];

/// A host with a server that listens at `local` with two workers.
struct Host {
    snapshot: Value,
    surroundings: Surroundings,
}

impl Host {
    fn listening_at(local: &str) -> Self {
        let mut host = Self { snapshot: healthy(), surroundings: Surroundings::default() };
        for (number, inode) in LISTENING.into_iter().enumerate() {
            host.listen(local, None, inode);
            let target = json!({"fd": 30 + number, "events": 1, "file": {"socket": {"inode": inode}}});
            set(&mut host.snapshot, &format!("/processes/0/files/epolls/{}/targets/-", EPOLLS[number]), target);
        }
        host
    }

    fn listen(&mut self, local: &str, bound_to: Option<u32>, inode: u64) {
        let mut socket = self.snapshot["sockets"][0].clone();
        (socket["inode"], socket["local"]) = (json!(inode), json!(local));
        (socket["reuseport"], socket["bound-to"]) = (json!(true), json!(bound_to));
        set(&mut self.snapshot, "/sockets/-", socket);
        set(&mut self.snapshot, "/processes/0/files/sockets/-", json!({"fd": inode, "inode": inode}));
        let bound_to = bound_to.and_then(Ifindex::new);
        let key = GroupKey {
            namespace: NAMESPACE,
            protocol: Protocol::Tcp,
            local: local.parse().unwrap(),
            bound_to,
            uid: UID,
        };
        self.surroundings.sockets.push(GroupSocket { key, inode });
        self.has_program(&GroupProgram::Absent);
    }

    /// A device like `eth0`, with these values replaced.
    fn device(&mut self, name: &str, ifindex: u32, values: &[(&str, Value)]) {
        let mut device = self.snapshot["devices"][0].clone();
        (device["name"], device["ifindex"]) = (json!(name), json!(ifindex));
        for queue in device["rx-queues"].as_array_mut().unwrap() {
            queue["napi"]["to"] = json!(queue["napi"]["to"].as_u64().unwrap() + u64::from(ifindex) * 100);
        }
        values.iter().for_each(|(name, value)| device[*name] = value.clone());
        set(&mut self.snapshot, "/devices/-", device);
    }

    fn address(&mut self, ifindex: u32, ip: &str) {
        let devices = self.snapshot["devices"].as_array_mut().unwrap();
        let device = devices.iter_mut().find(|device| device["ifindex"] == ifindex).unwrap();
        match device["addresses"].as_array_mut() {
            Some(addresses) => addresses.push(json!(ip)),
            None => device["addresses"] = json!([ip]),
        }
    }

    fn snapshot(&self) -> Snapshot {
        snapshot(&self.snapshot)
    }

    /// The groups, without the group of the server's first socket, which is alone at its address.
    fn groups(&self) -> Vec<Group> {
        let mut groups = groups(&self.snapshot(), &self.surroundings, &[Pid::new(SERVER).unwrap()]);
        groups.retain(|group| group.key.local.port() != 11211);
        groups
    }

    fn plan(&self) -> Result<Steering, CannotSteer> {
        self.plan_on_request(&SteerRequest::default())
    }

    fn plan_of_port(&self, port: u16) -> Result<Steering, CannotSteer> {
        let all = groups(&self.snapshot(), &self.surroundings, &[Pid::new(SERVER).unwrap()]);
        let group = all.iter().filter(|group| group.key.local.port() == port).max_by_key(|group| group.members.len());
        plan(group.unwrap(), &self.snapshot(), &self.surroundings, &SteerRequest::default())
    }

    fn plan_on_request(&self, request: &SteerRequest) -> Result<Steering, CannotSteer> {
        let [group] = &self.groups()[..] else { panic!("one group") };
        plan(group, &self.snapshot(), &self.surroundings, request)
    }

    /// All groups have this program.
    fn has_program(&mut self, program: &GroupProgram) {
        let inodes = self.surroundings.sockets.iter().map(|socket| (socket.inode, program.clone()));
        self.surroundings.programs.set(NAMESPACE, Ok(inodes.collect()));
    }

    fn interfaces(&self) -> Vec<(u32, u32, u32)> {
        let tuple = |seen: &SeenQueues| (seen.ifindex.get(), seen.first, seen.queues);
        self.plan().unwrap().filter.interfaces().iter().map(tuple).collect()
    }
}

/// Values of a device without queues of its own.
fn without_queues(kind: &str) -> Vec<(&'static str, Value)> {
    vec![("kind", json!(kind)), ("rx-queues", json!([]))]
}

#[test]
fn the_workers_of_a_group_are_the_epolls_that_watch_its_sockets() {
    let mut host = Host::listening_at("0.0.0.0:80");
    let mut sibling = host.snapshot["processes"][0].clone();
    sibling["pid"] = json!(4_300);
    set(&mut sibling, "/files/epolls", json!([]));
    set(&mut host.snapshot, "/processes/-", sibling);
    let [group] = &host.groups()[..] else { panic!("one group") };
    let epolls: Vec<_> = group.members.iter().map(|member| (member.inode, member.workers[0].epoll_fd)).collect();
    assert_eq!(epolls, [(201, 5), (202, 8)]);
    assert!(group.members.iter().all(|member| member.workers.len() == 1));
}

#[test]
fn sockets_of_other_processes_at_the_same_address_count() {
    let mut host = Host::listening_at("0.0.0.0:80");
    let key = host.surroundings.sockets[0].key;
    host.surroundings.sockets.push(GroupSocket { key, inode: 300 });
    host.surroundings.sockets.push(GroupSocket { key: GroupKey { uid: 0, ..key }, inode: 301 });
    let steering = host.plan().unwrap();
    assert_eq!(steering.filter.sockets(), 3);
    assert!(steering.notes.contains(&Note::Unwatched { inodes: vec![300] }));
}

#[test]
fn queues_of_two_devices_have_consecutive_indices() {
    let mut host = Host::listening_at("0.0.0.0:80");
    host.device("eth1", 3, &[]);
    assert_eq!(host.interfaces(), [(2, 0, 2), (3, 2, 2)]);
    let napis: Vec<_> = host.plan().unwrap().places.iter().map(|place| place.napi.unwrap().get()).collect();
    assert_eq!(napis, [8_193, 8_194, 8_493, 8_494]);
}

#[test]
fn a_device_without_connections_takes_no_workers_from_one_that_has_some() {
    let mut host = Host::listening_at("0.0.0.0:11211");
    host.device("eth1", 3, &[("napis", json!([]))]);
    let steering = host.plan_of_port(11_211).unwrap();
    assert_eq!(steering.devices(), ["eth0"].into());
    assert!(
        steering.notes.contains(&Note::LeftOut(LeftOut { device: "eth1".to_owned(), why: WhyLeftOut::NoConnection })),
        "{:?}",
        steering.notes
    );
    for (number, inode) in [(3, 203), (4, 204)] {
        host.listen("0.0.0.0:11211", None, inode);
        assert_eq!(
            host.plan_of_port(11_211).unwrap().devices().len(),
            if number < 4 { 1 } else { 2 },
            "{number} sockets"
        );
    }
}

#[test]
fn only_the_device_with_the_address_counts_if_one_has_it() {
    let mut host = Host::listening_at("192.0.2.1:80");
    host.device("eth1", 3, &[]);
    assert_eq!(host.interfaces().len(), 2, "no device has the address, as with a load balancer");
    host.address(3, "192.0.2.1");
    assert_eq!(host.interfaces(), [(3, 0, 2)]);
}

#[test]
fn sockets_bound_to_a_device_form_a_group_with_the_queues_of_that_device() {
    let mut host = Host { snapshot: healthy(), surroundings: Surroundings::default() };
    host.device("eth1", 3, &[]);
    for (ifindex, inode) in [(2, 201), (2, 202), (3, 203), (3, 204)] {
        host.listen("0.0.0.0:80", Some(ifindex), inode);
    }
    let of_each: Vec<_> = host
        .groups()
        .iter()
        .map(|group| plan(group, &host.snapshot(), &host.surroundings, &SteerRequest::default()).unwrap())
        .map(|steering| (steering.group.key.bound_to.unwrap().get(), steering.filter.interfaces().to_vec()))
        .collect();
    let seen = |ifindex| SeenQueues { ifindex: Ifindex::new(ifindex).unwrap(), first: 0, queues: 2 };
    assert_eq!(of_each, [(2, vec![seen(2)]), (3, vec![seen(3)])]);
}

#[test]
fn a_vlan_is_an_interface_with_the_queues_of_its_lower_device() {
    let mut host = Host::listening_at("0.0.0.0:80");
    let mut vlan = without_queues("vlan");
    vlan.push(("lower", json!({"ifindex": 2, "is-in-other-namespace": false})));
    host.device("eth0.5", 9, &vlan);
    assert_eq!(host.interfaces(), [(2, 0, 2), (9, 0, 2)]);
}

#[test]
fn packets_of_a_bond_port_appear_on_the_bond() {
    let mut host = Host::listening_at("0.0.0.0:80");
    host.device("bond0", 9, &without_queues("bond"));
    host.snapshot["devices"][0]["master"] = json!(9);
    assert_eq!(host.interfaces(), [(9, 0, 2)]);
}

#[test]
fn two_ports_of_a_bond_cannot_be_distinguished() {
    let mut host = Host::listening_at("0.0.0.0:80");
    host.device("eth1", 3, &[("master", json!(9))]);
    host.device("bond0", 9, &without_queues("bond"));
    host.snapshot["devices"][0]["master"] = json!(9);
    let error = host.plan().unwrap_err();
    let ports = vec!["eth0".to_owned(), "eth1".to_owned()];
    let left_out = LeftOut { device: "bond0".to_owned(), why: WhyLeftOut::SeveralPorts { ports } };
    assert_eq!(error, CannotSteer::NoQueues { key: host.groups()[0].key, left_out: vec![left_out] });
    assert!(error.to_string().contains("bond0 receives packets from eth0 and eth1"), "{error}");
}

#[test]
fn devices_without_napi_or_without_link_do_not_count() {
    let mut host = Host::listening_at("0.0.0.0:80");
    let without_napi = host.snapshot["devices"][0]["rx-queues"].clone();
    host.device("eth1", 3, &[("rx-queues", without_napi)]);
    for queue in host.snapshot["devices"][1]["rx-queues"].as_array_mut().unwrap() {
        queue["napi"] = Value::Null;
    }
    host.device("eth2", 4, &[("is-up", json!(false))]);
    assert_eq!(host.interfaces(), [(2, 0, 2)]);
    assert_eq!(host.plan().unwrap().notes, []);
}

#[test]
fn one_listening_socket_for_all_workers_gets_no_filter() {
    let mut host = Host::listening_at("0.0.0.0:80");
    host.surroundings.sockets.pop();
    let error = host.plan().unwrap_err().to_string();
    assert!(error.starts_with("tcp 0.0.0.0:80: it has only one socket, with one worker"), "{error}");
}

#[test]
fn the_advice_for_one_listening_socket_is_that_of_the_program() {
    let advice = |name: &str| {
        let mut host = Host::listening_at("0.0.0.0:80");
        host.snapshot["processes"][0]["name"] = json!(name);
        host.surroundings.sockets.pop();
        host.plan().unwrap_err().to_string()
    };
    for (name, expected) in [
        ("memcached", "`-t QUEUES -N QUEUES`"),
        ("nginx", "`listen` directives"),
        ("haproxy", "`shards by-thread`"),
        ("envoy", "SO_REUSEPORT"),
    ] {
        let all = advice(name);
        assert!(all.contains(expected), "{all}");
        assert_eq!(all.contains("listen"), name == "nginx", "{all}");
    }
}

#[test]
fn a_worker_with_two_sockets_and_a_socket_with_two_workers_are_reported() {
    let mut host = Host::listening_at("0.0.0.0:80");
    let target = json!({"fd": 31, "events": 1, "file": {"socket": {"inode": 202}}});
    set(&mut host.snapshot, "/processes/0/files/epolls/1/targets/-", target);
    let notes = host.plan().unwrap().notes;
    assert!(matches!(&notes[0], Note::SharedSocket { inode: 202, workers } if workers.len() == 2), "{notes:?}");
    assert!(matches!(&notes[1], Note::SeveralSockets { worker, sockets: 2 } if worker.epoll_fd == 5), "{notes:?}");
}

/// Each present program, with the steering of a server that has it, and the same if replacing was requested.
#[test]
fn a_filter_of_the_server_is_replaced_only_on_request() {
    let code = vec![ClassicInstruction { code: 6, jt: 0, jf: 0, k: 1 }];
    let replacing = SteerRequest { replace_filter: true, ..SteerRequest::default() };
    let mut host = Host::listening_at("0.0.0.0:80");
    for program in [GroupProgram::Absent, GroupProgram::Quells] {
        host.has_program(&program);
        for request in [&SteerRequest::default(), &replacing] {
            let steering = host.plan_on_request(request).unwrap();
            assert_eq!((steering.notes, steering.replaces), (vec![], None), "{program:?}");
        }
    }
    for (program, refusal, note) in [
        (
            GroupProgram::Classic(Some(code)),
            "the server has its own filter (classic BPF of 1 instruction); --replace-filter replaces it until",
            "replaces the server's own filter (classic BPF of 1 instruction); undo attaches it again",
        ),
        (
            GroupProgram::Classic(None),
            "the server has its own filter (classic BPF); --replace-filter replaces it for good, because",
            "replaces the server's own filter (classic BPF) for good: its instructions cannot be read",
        ),
        (
            GroupProgram::Ebpf(42),
            "the server has its own filter (eBPF program 42); --replace-filter replaces it until",
            "replaces the server's own filter (eBPF program 42); undo attaches it again",
        ),
    ] {
        host.has_program(&program);
        let refused = host.plan().unwrap_err();
        assert!(matches!(refused, CannotSteer::OwnFilter { .. }) && refused.to_string().contains(refusal), "{refused}");
        let steering = host.plan_on_request(&replacing).unwrap();
        assert_eq!(steering.replaces.unwrap().program, program);
        assert_eq!(steering.notes.iter().map(ToString::to_string).collect::<Vec<_>>(), [note]);
    }
}

#[test]
fn a_filter_that_cannot_be_read_is_unknown() {
    let mut host = Host::listening_at("0.0.0.0:80");
    host.surroundings.programs.set(NAMESPACE, Err("the kernel needs CONFIG_DEBUG_INFO_BTF".to_owned()));
    let notes = host.plan().unwrap().notes;
    assert!(matches!(&notes[..], [Note::FilterUnknown { .. }]), "{notes:?}");
    host.surroundings.programs.set(NAMESPACE, Ok([].into()));
    assert!(matches!(&host.plan().unwrap().notes[..], [Note::FilterUnknown { .. }]), "no socket was listed");
}

#[test]
fn datagrams_are_steered_only_on_request() {
    let mut host = Host::listening_at("0.0.0.0:80");
    for socket in host.snapshot["sockets"].as_array_mut().unwrap().iter_mut().filter(|one| one["local"] == "0.0.0.0:80")
    {
        socket["protocol"] = json!("udp");
    }
    host.surroundings.sockets.iter_mut().for_each(|socket| socket.key.protocol = Protocol::Udp);
    assert!(matches!(host.plan(), Err(CannotSteer::Udp { .. })));
    let request = SteerRequest { udp: true, ..SteerRequest::default() };
    assert_eq!(host.plan_on_request(&request).unwrap().notes, [Note::FlowsMove]);
    host.has_program(&GroupProgram::Ebpf(7));
    assert!(
        matches!(host.plan_on_request(&request), Err(CannotSteer::OwnFilter { .. })),
        "a filter needs its own option"
    );
}

/// A connection to the server from this host.
fn connection(remote: &str, inode: Option<u64>) -> Connection {
    Connection { local: "192.0.2.1:80".parse().unwrap(), remote: remote.parse().unwrap(), inode }
}

/// Gives worker `epoll` a connection with a NAPI instance.
fn connect(host: &mut Host, epoll: usize, inode: u64, napi: Option<u32>) {
    let mut socket = host.snapshot["sockets"][1].clone();
    (socket["inode"], socket["napi"], socket["local"]) = (json!(inode), json!(napi), json!("192.0.2.1:80"));
    set(&mut host.snapshot, "/sockets/-", socket);
    let target = json!({"fd": inode, "events": 1, "file": {"socket": {"inode": inode}}});
    set(&mut host.snapshot, &format!("/processes/0/files/epolls/{epoll}/targets/-"), target);
}

#[test]
fn a_filter_holds_while_new_connections_of_each_worker_share_one_napi() {
    let mut host = Host::listening_at("0.0.0.0:80");
    connect(&mut host, EPOLLS[0], 900, Some(8_194));
    let steering = host.plan().unwrap();
    assert_eq!(steering.notes, [Note::Established { connections: 1 }]);
    let baseline = Baseline::of(&[connection("192.0.2.2:49152", Some(900))]);
    assert_eq!(verify(&steering, &baseline, &host.snapshot()).verdict, SteerVerdict::NotYet);
    connect(&mut host, EPOLLS[0], 901, Some(8_193));
    connect(&mut host, EPOLLS[1], 902, Some(8_194));
    connect(&mut host, EPOLLS[1], 903, None);
    let verification = verify(&steering, &baseline, &host.snapshot());
    assert_eq!((verification.verdict, verification.workers.len()), (SteerVerdict::Holds, 2));
    connect(&mut host, EPOLLS[1], 904, Some(8_193));
    assert_eq!(verify(&steering, &baseline, &host.snapshot()).verdict, SteerVerdict::Mixed);
}

#[test]
fn a_connection_that_was_accepted_after_the_filter_does_not_count() {
    let mut host = Host::listening_at("0.0.0.0:80");
    let steering = host.plan().unwrap();
    for (number, napi) in [8_193, 8_194].into_iter().enumerate() {
        connect(&mut host, EPOLLS[0], 900 + number as u64, Some(napi));
        let sockets = host.snapshot["sockets"].as_array().unwrap().len();
        set(
            &mut host.snapshot,
            &format!("/sockets/{}/remote", sockets - 1),
            json!(format!("192.0.2.2:{}", 50_000 + number)),
        );
    }
    let verdict = |connections: &[Connection]| verify(&steering, &Baseline::of(connections), &host.snapshot()).verdict;
    assert_eq!(verdict(&[]), SteerVerdict::Mixed);
    assert_eq!(verdict(&[connection("192.0.2.2:50000", None)]), SteerVerdict::Holds);
    let both = [connection("192.0.2.2:50000", None), connection("192.0.2.2:50001", Some(901))];
    assert_eq!(verdict(&both), SteerVerdict::NotYet);
    let of_another_address = Connection { local: "192.0.2.9:80".parse().unwrap(), ..both[0] };
    assert_eq!(verdict(&[of_another_address]), SteerVerdict::Mixed);
}
