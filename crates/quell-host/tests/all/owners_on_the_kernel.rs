//! Several owners of the same queues and epoll, in random orders, with kills, foreign writes and a link that goes down:
//! after each step the values in force are those of the newest owner, and after the last one those from before the
//! first. `QUELL_OWNER_SEQUENCES` sets the number of sequences, `QUELL_OWNER_SEED` the seed of the first. Needs root and
//! Linux 6.13.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quell_change::journal::{Journal, Purpose};
use quell_change::persistent;
use quell_change::recovery::recover;
use quell_change::transaction::{ChangeStage, Transaction};
use quell_host::apply::{ApplyRequest, apply};
use quell_linux::event::Trigger;
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_linux::{InterfaceName, NapiId, Pid, epoll_params};
use quell_mode::profile::{Profile, Source};
use quell_mode::{EpollParams, NapiAttribute, PartialNapiSettings};
use quell_test_support::kernel_values::KernelValues;
use quell_test_support::lab::{TestLab, UdpProgram, go_on};
use quell_test_support::{Lacks, Numbers, entry, number_of_variable, skip, wait_until};

/// Sequences in a normal run; `make nightly` plays more.
const SEQUENCES: u64 = 20;
const EVENTS: u64 = 14;
const QUEUES: usize = 2;
const KILLED_AT: &str = "QUELL_TEST_OWNER_KILLED_AT";
const PROFILE: &str = "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"defer50\"\n";
const ATTRIBUTES: [NapiAttribute; 3] =
    [NapiAttribute::DeferHardIrqs, NapiAttribute::GroFlushTimeout, NapiAttribute::IrqSuspendTimeout];

/// An owner that sets queues and an epoll: the same queues for all, and the same epoll under two descriptors.
struct Wanted {
    queues: std::ops::Range<usize>,
    values: [u64; 3],
    epoll: Option<EpollParams>,
}

/// Number of the owner that is a profile; the others are transactions.
const PROFILE_OWNER: usize = 0;

fn wanted(owner: usize) -> Wanted {
    let epoll = |budget| Some(EpollParams { busy_poll_usecs: 0, busy_poll_budget: budget, prefer_busy_poll: true });
    match owner {
        PROFILE_OWNER => Wanted { queues: 0..QUEUES, values: [100, 50_000, 0], epoll: None },
        1 => Wanted { queues: 0..QUEUES, values: [100, 200_000, 20_000_000], epoll: epoll(64) },
        2 => Wanted { queues: 0..1, values: [10, 20_000, 20_000_000], epoll: epoll(8) },
        _ => Wanted { queues: 1..QUEUES, values: [10, 1_000_000, 0], epoll: None },
    }
}
const OWNERS: usize = 4;

fn settings(values: [u64; 3]) -> PartialNapiSettings {
    ATTRIBUTES.into_iter().zip(values).collect()
}

/// Parameters in the format of [`KernelValues::epoll`].
fn shown(params: EpollParams) -> String {
    format!("{}/{}/{}", params.busy_poll_usecs, params.busy_poll_budget, u8::from(params.prefer_busy_poll))
}

/// The rules as an operator would state them, for one value: a stack of owners upon what other programs have set.
#[derive(Debug, Clone)]
struct Stack {
    bottom: String,
    owners: Vec<(usize, String)>,
}

impl Stack {
    fn value(&self) -> &String {
        self.owners.last().map_or(&self.bottom, |(_, value)| value)
    }
}

#[expect(clippy::large_enum_variant, reason = "a few, in a test")]
enum Held {
    Profile(PathBuf),
    Transaction(Transaction),
}

struct Stage {
    lab: TestLab,
    netns: NamespaceName,
    dir: tempfile::TempDir,
    program: UdpProgram,
    /// A second descriptor of the program's epoll.
    duplicate: OwnedFd,
    kernel: KernelValues,
    held: BTreeMap<usize, Held>,
    model: BTreeMap<String, Stack>,
}

fn napis(namespace: &Namespace) -> Vec<NapiId> {
    let index = Links::open_in(namespace).unwrap().by_name(&InterfaceName::new("server0").unwrap()).unwrap().index;
    Netdev::open_in(namespace).unwrap().napis(index).unwrap().iter().map(|napi| napi.id).collect()
}

/// Name of a value in the model.
fn name(queue: usize, attribute: NapiAttribute) -> String {
    format!("queue {queue} {attribute:?}")
}

impl Stage {
    fn raise(test: &str) -> Option<Self> {
        let lab = TestLab::raise(test, u32::try_from(QUEUES).unwrap())?;
        let netns = NamespaceName::new(lab.server_name.clone()).unwrap();
        let program = UdpProgram::start(&lab, Trigger::Level);
        if let Err(error) = epoll_params::get(&program.epoll) {
            skip(Lacks::KernelFeature, &error);
            return None;
        }
        let duplicate = program.epoll.as_fd().try_clone_to_owned().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let kernel = KernelValues::of_namespace(&lab.server_name)?;
        Some(Self { lab, netns, dir, program, duplicate, kernel, held: BTreeMap::new(), model: BTreeMap::new() })
    }

    fn journal(&self) -> Journal {
        Journal::in_dir(self.dir.path())
    }

    fn request<'a>(&'a self, profile: &'a Profile) -> ApplyRequest<'a> {
        ApplyRequest { netns: Some(&self.netns), profile, name: "test.toml", content: 0, skip_impossible: false }
    }

    fn read(&self) -> BTreeMap<String, String> {
        let mut state = BTreeMap::new();
        for (queue, now) in self.kernel.napis("server0").into_iter().enumerate() {
            let values = [now.defer_hard_irqs, now.gro_flush_timeout_ns, now.irq_suspend_timeout_ns];
            let named = ATTRIBUTES.map(|attribute| name(queue, attribute)).into_iter().zip(values);
            state.extend(named.map(|(name, value)| (name, value.unwrap().to_string())));
        }
        state.insert("epoll".to_owned(), self.kernel.epoll(std::process::id(), self.program.epoll_fd()));
        state
    }

    fn check(&self, after: &str) {
        let expected: BTreeMap<String, String> =
            self.model.iter().map(|(name, stack)| (name.clone(), stack.value().clone())).collect();
        assert_eq!(self.read(), expected, "after {after}, owners {:?}", self.held.keys());
    }

    fn take(&mut self, owner: usize) {
        let held = if owner == PROFILE_OWNER {
            let profile = Profile::parse(&[Source::new("test.toml", PROFILE)]).unwrap();
            match apply(&self.journal(), &self.request(&profile), None, &mut go_on).unwrap().journal {
                Some(path) => Held::Profile(path),
                // The host had its values already, and from nobody who will take them away.
                None => return,
            }
        } else {
            let mut transaction = Transaction::begin(&self.journal(), &format!("owner-{owner}"), Purpose::Lab).unwrap();
            let fd = if owner == 2 { self.duplicate.as_raw_fd() } else { self.program.epoll_fd() };
            set(&mut transaction, &self.lab.server, UdpProgram::process(), fd, owner, &mut |_, _| {
                ControlFlow::Continue(())
            });
            Held::Transaction(transaction)
        };
        self.held.insert(owner, held);
        let Wanted { queues, values, epoll } = wanted(owner);
        let of_queues =
            queues.flat_map(|queue| ATTRIBUTES.map(|attribute| name(queue, attribute)).into_iter().zip(values));
        for (name, value) in of_queues {
            self.model.get_mut(&name).unwrap().owners.push((owner, value.to_string()));
        }
        if let Some(params) = epoll {
            self.model.get_mut("epoll").unwrap().owners.push((owner, shown(params)));
        }
    }

    fn end(&mut self, owner: usize) {
        let failed = match self.held.remove(&owner) {
            None => return,
            Some(Held::Profile(path)) => persistent::release(&self.journal(), &path).unwrap().unwrap().failed,
            Some(Held::Transaction(transaction)) => transaction.revert().unwrap().failed,
        };
        assert!(failed.is_empty(), "{failed:?}");
        self.model.values_mut().for_each(|stack| stack.owners.retain(|(other, _)| *other != owner));
    }

    /// Another process begins to own, dies at some stage of some change, and is recovered.
    fn kill(&mut self, owner: usize, at: u64) {
        let fd = self.program.epoll_fd();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(entry(owns_and_is_killed))
            .arg("--test-threads=1")
            .env(
                KILLED_AT,
                format!("{} {} {} {fd} {owner} {at}", self.dir.path().display(), self.netns, std::process::id()),
            )
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9), "{status:?}");
        recover(&self.journal()).unwrap();
    }

    fn foreign(&mut self, numbers: &mut Numbers) {
        let value = 70_000 + numbers.below(1_000);
        let place = if numbers.below(4) == 0 {
            let params = EpollParams {
                busy_poll_usecs: 0,
                busy_poll_budget: 3 + u16::try_from(value % 5).unwrap(),
                prefer_busy_poll: false,
            };
            epoll_params::set(&self.program.epoll, params).unwrap();
            ("epoll".to_owned(), shown(params))
        } else {
            let (queue, attribute) = (numbers.usize_below(QUEUES), numbers.one_of(&ATTRIBUTES));
            let change = [(attribute, value)].into_iter().collect();
            Netdev::open_in(&self.lab.server).unwrap().set_napi(napis(&self.lab.server)[queue], &change).unwrap();
            (name(queue, attribute), value.to_string())
        };
        self.model.insert(place.0, Stack { bottom: place.1, owners: Vec::new() });
    }

    /// Values that the driver has reset have no owner.
    fn flap(&mut self) {
        let server0 = InterfaceName::new("server0").unwrap();
        let links = || Links::open_in(&self.lab.server).unwrap();
        let index = links().by_name(&server0).unwrap().index;
        links().set_down(index).unwrap();
        links().set_up(index).unwrap();
        wait_until(|| match napis(&self.lab.server).len() {
            QUEUES => Ok(()),
            other => Err(format!("{other} NAPI instances")),
        });
        for (name, value) in self.read() {
            let stack = self.model.get_mut(&name).unwrap();
            if *stack.value() != value {
                *stack = Stack { bottom: value, owners: Vec::new() };
            }
        }
    }

    fn play(&mut self, seed: u64) {
        let mut numbers = Numbers::new(seed);
        self.foreign(&mut numbers);
        self.model =
            self.read().into_iter().map(|(name, bottom)| (name, Stack { bottom, owners: Vec::new() })).collect();
        for step in 0..EVENTS {
            let owner = numbers.usize_below(OWNERS);
            let event = match numbers.below(12) {
                0..5 if !self.held.contains_key(&owner) => {
                    self.take(owner);
                    format!("take {owner}")
                }
                0..8 => {
                    self.end(owner);
                    format!("end {owner}")
                }
                8 => {
                    self.flap();
                    "flap".to_owned()
                }
                9 => {
                    self.foreign(&mut numbers);
                    "foreign write".to_owned()
                }
                _ if owner != PROFILE_OWNER && !self.held.contains_key(&owner) => {
                    let at = numbers.below(9);
                    self.kill(owner, at);
                    format!("kill {owner} at {at}")
                }
                _ => continue,
            };
            eprintln!("  {step}: {event}");
            self.check(&format!("step {step} of seed {seed}: {event}"));
        }
        while let Some(owner) = self.held.keys().nth(numbers.usize_below(self.held.len().max(1))).copied() {
            self.end(owner);
            self.check(&format!("the end of {owner}, seed {seed}"));
        }
        assert_eq!(self.journal().list().unwrap().len(), 0, "no journal is left");
    }
}

/// Sets everything that an owner wants. `observer` counts the changes.
fn set(
    transaction: &mut Transaction,
    namespace: &Namespace,
    process: ProcessIdentity,
    fd: i32,
    owner: usize,
    observer: &mut dyn FnMut(usize, ChangeStage) -> ControlFlow<()>,
) {
    let Wanted { queues, values, epoll } = wanted(owner);
    let napis = napis(namespace);
    let mut number = 0;
    for queue in queues {
        let mut notify = |stage| observer(number, stage);
        transaction.set_napi_observed(namespace, napis[queue], &settings(values), &mut notify).unwrap();
        number += 1;
    }
    if let Some(params) = epoll {
        let _ = observer(number, ChangeStage::Before);
        transaction.set_epoll(process, fd, params).unwrap();
        let _ = observer(number, ChangeStage::Made);
    }
}

#[test]
#[ignore = "a process that another test kills"]
fn owns_and_is_killed() {
    let Ok(arguments) = std::env::var(KILLED_AT) else { return };
    let [dir, netns, pid, fd, owner, at] = arguments.split(' ').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
    let namespace = Namespace::open_named(&NamespaceName::new(netns).unwrap()).unwrap();
    let pid = Pid::from_kernel(pid.parse::<u32>().unwrap()).unwrap();
    let (owner, at): (usize, u64) = (owner.parse().unwrap(), at.parse().unwrap());
    let die = || PidFd::open(Pid::of_this_process()).unwrap().signal(Signal::KILL).unwrap();
    let mut transaction =
        Transaction::begin(&Journal::in_dir(Path::new(dir)), &format!("owner-{owner}"), Purpose::Lab).unwrap();
    let mut stages = 0;
    let process = ProcessIdentity::of(&ProcRoot::default(), pid).unwrap();
    set(&mut transaction, &namespace, process, fd.parse().unwrap(), owner, &mut |_, _| {
        if stages == at {
            die();
        }
        stages += 1;
        ControlFlow::Continue(())
    });
    die();
}

#[test]
fn an_undo_that_brings_queues_back_sets_the_values_of_their_owners_again() {
    let Some(mut stage) = Stage::raise("recreate") else { return };
    stage.model = stage.read().into_iter().map(|(name, bottom)| (name, Stack { bottom, owners: Vec::new() })).collect();
    stage.take(1);
    for removing in ["channels]\nrx = 1", "features]\nrx-gro = false"] {
        let profile = format!("[device.lab]\nname = \"server0\"\n[device.lab.{removing}\n");
        let profile = Profile::parse(&[Source::new("test.toml", &profile)]).unwrap();
        let mut removed = Vec::new();
        let stopped = apply(&stage.journal(), &stage.request(&profile), None, &mut |step, at| {
            if (step, at) != (0, ChangeStage::Made) {
                return ControlFlow::Continue(());
            }
            removed.push(QUEUES - napis(&stage.lab.server).len());
            ControlFlow::Break(())
        });
        assert!(stopped.is_err() && removed[0] > 0, "{removed:?}");
        stage.check(removing);
    }
    stage.end(1);
    stage.check("the end of the owner");
}

#[test]
fn owners_in_any_order_leave_the_values_of_the_newest_that_remains() {
    let first = number_of_variable("QUELL_OWNER_SEED", 1);
    for seed in first..first + number_of_variable("QUELL_OWNER_SEQUENCES", SEQUENCES) {
        eprintln!("sequence {seed}");
        let Some(mut stage) = Stage::raise("owners") else { return };
        stage.play(seed);
    }
}
