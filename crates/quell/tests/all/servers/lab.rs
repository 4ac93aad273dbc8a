//! The lab for servers: the veth lab of `quell bench`, with a server on one side, its real client on the other, and
//! `quell` with its own journal directory. Everything ends with the value.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_change::journal::Journal;
use quell_linux::CpuList;
use quell_linux::Pid;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::netdev::{Napi, Netdev};
use quell_linux::pidfd::PidFd;
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_linux::process::{Child, Output, Spawn, session_members};
use quell_linux::sched;
use quell_linux::sock_diag::{InetFamily, InetProtocol, SockDiag};
use quell_linux::tcp::TcpConnection;
use quell_mode::NapiSettings;
use quell_result::facts::CpuLayout;
use quell_result::facts::WorkerFacts;
use quell_subject::lab::veth::{VethLab, VethPlan, unique_name};
use quell_subject::requirements::missing;
use quell_subject::server::{ServerCommand, workers_of};
use quell_test_support::{LabTurn, skip_missing, wait_until};
use tempfile::TempDir;

use super::client::{CONNECTIONS, Client, Effort, Found};
use super::program::{Program, Site};

/// Port of every server; only one runs at a time.
const PORT: u16 = 7_000;
/// Port of the server behind a proxy, on the clients' side.
const BACKEND_PORT: u16 = 7_001;
/// `ESTABLISHED` from `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;
/// Time limit after which a process counts as hanging.
const BOUND: Duration = Duration::from_secs(60);
const KEPT: usize = 1 << 20;

/// A veth lab for servers.
pub(crate) struct ServersLab {
    /// The veth lab.
    pub(crate) veth: VethLab,
    dir: TempDir,
    _turn: LabTurn,
}

/// How to start a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launch<'a> {
    /// Directly.
    Plain,
    /// Through `quell run` with this mode and these options.
    Under(&'a [&'a str]),
}

/// An epoll of a server, as the kernel reports it.
#[derive(Debug)]
pub(crate) struct SeenEpoll {
    pub(crate) facts: WorkerFacts,
    pub(crate) params: EpollParams,
}

/// A server that accepts connections.
pub(crate) struct Server {
    child: Child,
    backend: Option<Child>,
    client: Client,
    /// Address on which it listens.
    pub(crate) address: SocketAddr,
}

/// A running program.
pub(crate) struct Running(pub(crate) Child);

/// How a program exited.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; absent if a signal killed it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl ServersLab {
    /// Creates a lab with `queues`, which are all polled on the first CPU, where interrupts would arrive. Clients use
    /// the other CPUs. Returns `None`, with the reason on stderr, if no lab can be created.
    pub(crate) fn raise(queues: u32) -> Option<Self> {
        let missing = missing(&ServerCommand::Other(vec!["true".to_owned()]));
        if !missing.is_empty() {
            skip_missing(missing.iter().map(|missing| missing.what.as_str()));
            return None;
        }
        let turn = LabTurn::wait();
        let dir = tempfile::tempdir().unwrap();
        let available: Vec<u32> = sched::affinity(Pid::of_this_process()).unwrap().iter().collect();
        let (server, client) = available.split_at(1);
        let layout = CpuLayout {
            server: vec![server[0]; queues as usize],
            client: if client.is_empty() { server.to_vec() } else { client.to_vec() },
            overcommitted: None,
        };
        let plan = VethPlan { queues, cpus: layout, interrupt_stand_in: true, client_napi: threaded() };
        let journal = Journal::in_dir(dir.path().join("lab"));
        let veth = VethLab::raise(&journal, unique_name(), plan).unwrap();
        Some(Self { veth, dir, _turn: turn })
    }

    /// CPUs of the clients and of the observing threads.
    pub(crate) fn client_cpus(&self) -> CpuList {
        self.veth.plan.cpus.client_cpus().into_iter().collect()
    }

    /// Directory of this lab.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Address of every server.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.veth.server.address, PORT)
    }

    /// Addresses and directory of every server.
    pub(crate) fn site(&self) -> Site<'_> {
        let backend = SocketAddr::new(self.veth.client.address, BACKEND_PORT);
        Site { address: self.address(), backend, dir: self.dir() }
    }

    fn journal_dir(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Names of the journals of `quell`.
    pub(crate) fn journals(&self) -> Vec<String> {
        crate::command::journals_in(&self.journal_dir())
    }

    /// Waits until the queues are as `before`, and no journal and no process of `quell` remains. `of` appears in the
    /// message.
    pub(crate) fn wait_until_as_before(&self, before: &[Napi], of: &str) {
        wait_until(|| {
            let (queues, journals, left) = (self.queues(), self.journals(), self.quell_processes());
            match queues == before && journals.is_empty() && left.is_empty() {
                true => Ok(()),
                false => Err(format!("{of} left {queues:?}, of {before:?}, {journals:?}, processes {left:?}")),
            }
        });
    }

    /// Processes of `quell` that use the journal directory of this lab.
    pub(crate) fn quell_processes(&self) -> Vec<Pid> {
        let mark = format!("QUELL_JOURNAL_DIR={}", self.journal_dir().display());
        let environment = |pid: &Pid| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let uses_it = |pid: &Pid| environment(pid).split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        ProcRoot::default().pids().unwrap().into_iter().filter(|pid| is_quell(*pid) && uses_it(pid)).collect()
    }

    /// Starts `quell` on the clients' CPUs, in the namespace of this process.
    pub(crate) fn start_quell(&self, arguments: &[&str]) -> Running {
        let spawn = Spawn::new(env!("CARGO_BIN_EXE_quell")).args(arguments).cpus(self.client_cpus());
        let spawn = spawn.env("QUELL_JOURNAL_DIR", self.journal_dir());
        Running(spawn.stdout(Output::Tail(KEPT)).stderr(Output::Tail(KEPT)).start().unwrap())
    }

    /// Runs `quell` to its end.
    pub(crate) fn quell(&self, arguments: &[&str]) -> Ended {
        self.start_quell(arguments).end()
    }

    /// Starts a server and returns when it accepts connections. The error contains the reason if it does not.
    pub(crate) fn serve(&self, program: Program, workers: u32, launch: Launch<'_>) -> Result<Server, String> {
        let backend = program.backend(self.site()).map(|words| self.start_backend(&words));
        let mut words = program.command(self.site(), workers);
        if let Launch::Under(options) = launch {
            let quell = [&[env!("CARGO_BIN_EXE_quell"), "run"], options, &["--"]].concat();
            words = quell.into_iter().map(str::to_owned).chain(words).collect();
        }
        let spawn = Spawn::new(&words[0]).args(&words[1..]).netns(&self.veth.server.namespace);
        let spawn = spawn.cpus(self.veth.plan.cpus.server_cpus().into_iter().collect());
        let spawn = spawn.env("QUELL_JOURNAL_DIR", self.journal_dir()).stderr(Output::Tail(KEPT));
        let child = spawn.dies_with_this_thread().start().map_err(|error| error.to_string())?;
        let mut server = Server { child, backend, client: program.client(), address: self.address() };
        self.until_it_accepts(&mut server).map_err(|why| format!("`{}` {why}", words.join(" ")))?;
        Ok(server)
    }

    /// Starts the server behind a proxy on the clients' side, so that its packets arrive on the proxy's queues.
    fn start_backend(&self, words: &[String]) -> Child {
        let namespace = &self.veth.client.namespace;
        let spawn = Spawn::new(&words[0]).args(&words[1..]).netns(namespace).cpus(self.client_cpus());
        let backend = spawn.stderr(Output::Tail(KEPT)).dies_with_this_thread().start().unwrap();
        let attempt = || TcpConnection::connect(self.site().backend, Duration::from_millis(200)).map(drop);
        wait_until(|| namespace.run(attempt).unwrap().map_err(|error| format!("{}: {error}", words.join(" "))));
        backend
    }

    fn until_it_accepts(&self, server: &mut Server) -> Result<(), String> {
        let attempt = || TcpConnection::connect(server.address, Duration::from_millis(200)).is_ok();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if self.veth.client.namespace.run(attempt).unwrap() {
                return Ok(());
            }
            if let Some(status) = server.child.wait(Duration::from_millis(10)).unwrap() {
                return Err(format!("exited at once, {status}; its output: {}", server.said()));
            }
            if Instant::now() > deadline {
                return Err(format!("accepts no connection; its output: {}", server.said()));
            }
        }
    }

    /// Starts a client of the server at this address.
    pub(crate) fn start_client(&self, client: Client, server: SocketAddr, effort: Effort) -> RunningClient {
        let words = client.command(server, effort);
        let spawn = Spawn::new(&words[0]).args(&words[1..]).netns(&self.veth.client.namespace).cpus(self.client_cpus());
        let child = spawn.stdout(Output::Tail(KEPT)).stderr(Output::Tail(KEPT)).start().unwrap();
        RunningClient { running: Running(child), client, effort }
    }

    /// Returns when all connections of a client are established and an epoll of the server contains some; for a client
    /// without connections, when an epoll contains a socket that has received packets.
    pub(crate) fn wait_until_connected(&self, server: &Server) {
        let expected = if server.client.connects() { CONNECTIONS } else { 0 };
        let mut sockets = SockDiag::open_in(&self.veth.server.namespace).unwrap();
        wait_until(|| {
            let mut connected = 0;
            let count = |socket: quell_linux::sock_diag::InetSocket| {
                connected += u32::from(socket.state == ESTABLISHED && socket.local == server.address);
            };
            sockets.for_each(InetProtocol::Tcp, InetFamily::V4, count).unwrap();
            match connected >= expected {
                true if server.epolls().is_empty() => Err("no epoll of the server has connections".to_owned()),
                true => Ok(()),
                false => Err(format!("only {connected} connections")),
            }
        });
    }

    /// The server's queues with their settings.
    pub(crate) fn queues(&self) -> Vec<Napi> {
        Netdev::open_in(&self.veth.server.namespace).unwrap().napis(self.veth.server.ifindex).unwrap()
    }
}

/// Settings of the client's queues, which threads poll as they do the server's.
fn threaded() -> NapiSettings {
    NapiSettings { threaded: quell_mode::Threaded::Thread, ..NapiSettings::default() }
}

impl Server {
    /// Processes of the server, without the `quell` that started it, in the order of their start.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let proc = ProcRoot::default();
        let members = session_members(&proc, &self.child.identity()).unwrap();
        let mut members: Vec<ProcessIdentity> = members.into_iter().map(|member| member.identity).collect();
        members.retain(|member| !is_quell(member.pid));
        members.sort_by_key(|member| member.starttime.0);
        members.into_iter().map(|member| member.pid).collect()
    }

    /// Its main process.
    pub(crate) fn pid(&self) -> Pid {
        self.processes()[0]
    }

    /// The process that was started: the main process of the server, or the `quell run` that started it.
    pub(crate) fn launcher(&self) -> Pid {
        self.child.pid()
    }

    /// Epolls that contain its connections, each counted once even if a process has several descriptors for it.
    pub(crate) fn epolls(&self) -> Vec<SeenEpoll> {
        let proc = ProcRoot::default();
        let of_process = |pid: Pid| {
            let mut seen = Vec::new();
            let mut epolls = workers_of(&proc, pid).unwrap();
            epolls.retain(|facts| {
                // The watched files can change between two reads while the server runs. The epoll is then counted twice.
                let watched = proc.process(pid).epoll(facts.epoll_fd).map(|epoll| epoll.targets).ok();
                let is_new = !seen.contains(&watched);
                seen.push(watched);
                is_new
            });
            let pidfd = PidFd::open(pid).unwrap();
            let with_params = |facts: WorkerFacts| {
                let params = epoll_params::get(pidfd.duplicate(facts.epoll_fd).unwrap()).unwrap();
                SeenEpoll { facts, params }
            };
            epolls.into_iter().map(with_params).collect::<Vec<_>>()
        };
        self.processes().into_iter().flat_map(of_process).collect()
    }

    /// Output of the server and of the `quell run` that started it.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.child.stderr_tail().unwrap()).into_owned()
    }

    /// Ends the server and the program that started it.
    pub(crate) fn stop(mut self) {
        self.child.terminate(Duration::from_secs(5)).unwrap();
        if let Some(mut backend) = self.backend {
            backend.terminate(Duration::from_secs(5)).unwrap();
        }
    }
}

fn is_quell(pid: Pid) -> bool {
    let quell = std::fs::canonicalize(env!("CARGO_BIN_EXE_quell")).unwrap();
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == quell)
}

/// A running client of a server.
pub(crate) struct RunningClient {
    running: Running,
    client: Client,
    effort: Effort,
}

impl RunningClient {
    /// Waits until the client exits, and parses its output. Returns an error if the client failed.
    pub(crate) fn end(self) -> Result<Found, String> {
        let ended = self.running.end();
        match ended.code {
            Some(0) => self.client.read(self.effort, &ended.stdout),
            _ => Err(format!("{} failed: {ended:?}", self.client.name())),
        }
    }
}

impl Ended {
    /// Returns an error with the output unless the program succeeded.
    pub(crate) fn succeeded(self) -> Result<Self, String> {
        if self.code == Some(0) { Ok(self) } else { Err(format!("{}{}", self.stdout, self.stderr)) }
    }
}

impl Running {
    /// Waits until it exits.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.0.wait(BOUND).unwrap();
        let text = |tail: Option<Vec<u8>>| String::from_utf8(tail.unwrap()).unwrap();
        let (stdout, stderr) = (text(self.0.stdout_tail()), text(self.0.stderr_tail()));
        let status = status.unwrap_or_else(|| panic!("the program hangs; its output: {stdout}{stderr}"));
        Ended { code: status.code(), stdout, stderr }
    }
}
