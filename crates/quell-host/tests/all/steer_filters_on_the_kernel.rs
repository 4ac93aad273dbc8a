//! Filters that a server has attached to its own reuseport group: detected, left alone, and restored where they were
//! replaced on request. The UDP server selects the worker by the first byte of the payload, as QUIC servers do. Needs
//! root and Linux 6.13.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::steered::{self, Steered};
use crate::workers;
use quell_change::journal::Journal;
use quell_change::recovery::{Found, recover};
use quell_host::snapshot::{Protocol, SnapshotScope, take};
use quell_host::steer::{CannotSteer, Note, SteerRequest, Steering, groups, look, plan};
use quell_linux::pidfd::{DuplicatedFd, PidFd};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::process::{Child, Output, Spawn};
use quell_linux::reuseport::{ClassicInstruction, EbpfFilter, attach_classic, attach_ebpf};
use quell_sampler::{GroupProgram, group_programs};
use quell_test_support::lab::{SERVER, TestLab, id};
use quell_test_support::{Lacks, entry, skip, wait_until};

const WORKERS: u8 = 4;
const DATAGRAMS: u8 = 200;
const PORT: u16 = 7_443;
const ASKED: &str = "QUELL_TEST_DATAGRAMS";
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "the program of a process that other tests start"]
fn the_server_of_datagrams() {
    if std::env::var(ASKED).is_ok() {
        serve_datagrams();
    }
}

/// Each worker answers every datagram with its number, from a socket of one group.
fn serve_datagrams() {
    let bind = || {
        let address = (Ipv4Addr::UNSPECIFIED, PORT).into();
        quell_linux::udp::UdpSocket::bind(address, true, quell_linux::tcp::Blocking::Yes).unwrap()
    };
    let sockets: Vec<_> = (0..WORKERS).map(|_| bind()).collect();
    std::thread::scope(|scope| {
        for (worker, socket) in (0..).zip(&sockets) {
            scope.spawn(move || {
                loop {
                    let mut bytes = [0; 16];
                    let Ok((_, Some(from))) = socket.receive_from(&mut bytes) else { continue };
                    let answer: [u8; 1] = [worker];
                    let _ = socket.send_to(&answer, from);
                }
            });
        }
    });
}

/// Returns the first byte of the payload modulo the number of workers.
fn by_first_byte() -> Vec<ClassicInstruction> {
    let instruction = |code, k| ClassicInstruction { code, jt: 0, jf: 0, k };
    // ldb [0]; and #3; ret a
    vec![instruction(0x30, 0), instruction(0x54, u32::from(WORKERS) - 1), instruction(0x16, 0)]
}

/// The same as eBPF: `r6 = r1; r0 = *(u8 *)skb[0]; r0 &= 3; exit`.
fn by_first_byte_in_ebpf() -> EbpfFilter {
    let instruction =
        |code: u8, registers: u8, immediate: u8| u64::from_ne_bytes([code, registers, 0, 0, immediate, 0, 0, 0]);
    let code = [
        instruction(0xBF, 0x16, 0),
        instruction(0x30, 0, 0),
        instruction(0x57, 0, WORKERS - 1),
        instruction(0x95, 0, 0),
    ];
    EbpfFilter::load("by_first_byte", &code).unwrap()
}

struct Datagrams {
    lab: TestLab,
    server: Child,
}

impl Datagrams {
    fn start(test: &str) -> Option<Self> {
        let mut lab = TestLab::raise_beside_others(test, 2)?;
        let spawn = Spawn::new(std::env::current_exe().unwrap())
            .args(entry(the_server_of_datagrams))
            .env(ASKED, "1")
            .stderr(Output::Tail(2_000));
        let server = lab.start(spawn);
        let served = Self { lab, server };
        wait_until(|| match served.programs().len() == usize::from(WORKERS) {
            true => Ok(()),
            false => Err(format!("the server has not bound its sockets: {:?}", served.server.stderr_tail())),
        });
        Some(served)
    }

    /// Programs of the server's sockets.
    fn programs(&self) -> Vec<GroupProgram> {
        group_programs(Path::new("/sys"), &self.lab.server).unwrap().into_values().collect()
    }

    /// The program that all of them share.
    fn program(&self) -> GroupProgram {
        let programs = self.programs();
        assert!(programs.iter().all(|program| *program == programs[0]), "{programs:?}");
        programs[0].clone()
    }

    fn plan(&self, request: &SteerRequest) -> Result<Steering, CannotSteer> {
        let netns = Some(self.lab.server_name.clone());
        let (snapshot, pids) =
            (take(&SnapshotScope { netns, ..SnapshotScope::default() }).unwrap().0, [self.server.pid()]);
        let surroundings = look(&snapshot, &pids).unwrap();
        let [group] = &groups(&snapshot, &surroundings, &pids)[..] else { panic!("one group") };
        assert_eq!(group.key.protocol, Protocol::Udp);
        plan(group, &snapshot, &surroundings, request)
    }

    fn socket(&self) -> DuplicatedFd {
        let process = ProcRoot::default().process(self.server.pid());
        let programs = group_programs(Path::new("/sys"), &self.lab.server).unwrap();
        let mut fds = process.fds().unwrap().into_iter();
        let fd =
            fds.find(|fd| matches!(fd.kind, FdKind::Socket { inode } if programs.contains_key(&inode))).unwrap().number;
        PidFd::open(self.server.pid()).unwrap().duplicate(fd).unwrap()
    }

    /// Datagrams that reached another worker than their first byte selects.
    fn misdirected(&self) -> usize {
        let ask = |byte: u8| {
            let client = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.connect((SERVER, PORT)).unwrap();
            client.send(&[byte]).unwrap();
            let mut answer = [0];
            client.recv(&mut answer).unwrap();
            answer[0] != byte % WORKERS
        };
        self.lab.client.run(|| (0..DATAGRAMS).filter(|byte| ask(*byte)).count()).unwrap()
    }
}

fn request(udp: bool, replace_filter: bool) -> SteerRequest {
    SteerRequest { udp, replace_filter, ..SteerRequest::default() }
}

#[test]
fn a_quic_server_keeps_its_classic_filter_unless_replacing_was_requested() {
    let Some(served) = Datagrams::start("sf-classic") else { return };
    attach_classic(served.socket(), &by_first_byte()).unwrap();
    let own = GroupProgram::Classic(Some(by_first_byte()));
    assert_eq!((served.program(), served.misdirected()), (own.clone(), 0));

    assert!(matches!(served.plan(&request(false, false)), Err(CannotSteer::Udp { .. })));
    assert!(matches!(served.plan(&request(false, true)), Err(CannotSteer::Udp { .. })));
    assert!(matches!(served.plan(&request(true, false)), Err(CannotSteer::OwnFilter { .. })));
    assert_eq!((served.program(), served.misdirected()), (own.clone(), 0), "observing changes nothing");

    let steering = served.plan(&request(true, true)).unwrap();
    assert!(matches!(&steering.notes[..], [.., Note::ReplacesFilter(filter)] if filter.lost.is_none()));
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = served.lab.transaction(&dir, "sf-classic-t");
    transaction.steer(&steering).unwrap();
    assert_eq!(served.program(), GroupProgram::Quells);
    // As after a reload: Quell's own filter is replaced, and the server's stays recorded.
    let again = served.plan(&request(true, false)).unwrap();
    assert_eq!(again.replaces, None);
    transaction.steer(&again).unwrap();
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!((served.program(), served.misdirected()), (own, 0));
}

/// Mounts the BPF file system if it is missing, until it is dropped.
struct BpfFs(bool);

impl BpfFs {
    fn mount() -> Option<Self> {
        if EbpfFilter::pins().is_ok() {
            return Some(Self(false));
        }
        match Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]).status() {
            Ok(status) if status.success() => Some(Self(true)),
            other => {
                skip(Lacks::KernelFeature, format_args!("mounting the BPF file system: {other:?}"));
                None
            }
        }
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        if self.0 {
            let _ = Command::new("umount").arg("/sys/fs/bpf").status();
        }
    }
}

#[test]
fn a_replaced_ebpf_filter_is_restored_also_after_a_kill() {
    let Some(served) = Datagrams::start("sf-ebpf") else { return };
    let Some(_bpf_fs) = BpfFs::mount() else { return };
    // The group alone holds the program, as when a server has closed its descriptor.
    attach_ebpf(served.socket(), &by_first_byte_in_ebpf()).unwrap();
    let own = served.program();
    assert!(matches!(own, GroupProgram::Ebpf(1..)), "{own:?}");
    assert_eq!(served.misdirected(), 0);
    assert!(matches!(served.plan(&request(true, false)), Err(CannotSteer::OwnFilter { .. })));
    assert_eq!((served.program(), served.misdirected()), (own.clone(), 0));

    let pins = || std::fs::read_dir("/sys/fs/bpf").unwrap().count();
    let before = pins();
    let steer = |test: &str| {
        let dir = tempfile::tempdir().unwrap();
        let mut transaction = served.lab.transaction(&dir, test);
        transaction.steer(&served.plan(&request(true, true)).unwrap()).unwrap();
        assert_eq!((served.program(), pins()), (GroupProgram::Quells, before + 1));
        (dir, transaction)
    };
    let (_dir, transaction) = steer("sf-ebpf-t");
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!((served.program(), served.misdirected(), pins()), (own.clone(), 0, before));

    let (dir, transaction) = steer("sf-ebpf-k");
    // The copy on disk has no owner, as after a `kill -9`.
    let left_behind = tempfile::tempdir().unwrap();
    let written = std::fs::read(dir.path().join(format!("{}.journal", id("sf-ebpf-k")))).unwrap();
    std::fs::write(left_behind.path().join("left.journal"), written).unwrap();
    let found = recover(&Journal::in_dir(left_behind.path())).unwrap();
    assert!(matches!(&found[..], [Found::Recovered { reverted, .. }] if reverted.undone.len() == 1), "{found:?}");
    assert_eq!((served.program(), served.misdirected(), pins()), (own.clone(), 0, before));
    let again = transaction.revert().unwrap();
    assert_eq!((again.already_gone.len(), again.failed.len()), (1, 0), "{again:?}");
    assert_eq!(served.program(), own);
}

#[test]
fn undo_leaves_a_filter_alone_that_the_server_attached_since() {
    let Some(served) = Datagrams::start("sf-since") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = served.lab.transaction(&dir, "sf-since-t");
    let decided = served.plan(&request(true, false)).unwrap();
    assert_eq!(decided.replaces, None);
    transaction.steer(&decided).unwrap();
    attach_classic(served.socket(), &by_first_byte()).unwrap();
    // A filter that appeared after the decision is not replaced either.
    let error = transaction.steer(&decided).unwrap_err().to_string();
    assert!(error.contains("have changed since the snapshot"), "{error}");
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.left_alone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!((served.program(), served.misdirected()), (GroupProgram::Classic(Some(by_first_byte())), 0));
}

/// Connections in TIME_WAIT and in other states do not hide the program of the listening sockets.
#[test]
fn a_tcp_group_with_and_without_a_filter_is_told_apart() {
    let Some(steered) = Steered::start("sf-tcp", 2) else { return };
    let _connections = workers::open(&steered.lab.client, &steered::BOTH, 8);
    steered.count(50);
    let steering = steered.plan(&[]).1.unwrap();
    assert_eq!(steering.replaces, None);
    let about_filters = |note: &&Note| matches!(note, Note::ReplacesFilter(_) | Note::FilterUnknown { .. });
    assert_eq!(steering.notes.iter().find(about_filters), None);

    attach_classic(steered.socket(), &by_first_byte()).unwrap();
    assert!(matches!(steered.plan(&[]).1, Err(CannotSteer::OwnFilter { .. })));
}
