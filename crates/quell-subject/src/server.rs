//! The server under test: an unmodified program in the lab's server namespace, pinned to the server's CPUs. Quell finds
//! and changes its epolls through duplicated file descriptors, so the program does not have to cooperate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quell_change::transaction::ChangeError;
use quell_linux::netns::NamespaceError;
use quell_linux::pidfd::{DuplicatedFd, PidFd, PidFdError};
use quell_linux::proc::{FdKind, ProcError, ProcRoot};
use quell_linux::process::{Child, Output, ProcessError, Spawn, session_members};
use quell_linux::sched::{self, SchedError};
use quell_linux::socket_options::{self, SocketOptionError};
use quell_linux::tcp::TcpConnection;
use quell_linux::visible;
use quell_linux::{CpuList, NapiId, Pid};
use quell_result::facts::{ServerFacts, WorkerFacts};

use crate::lab::veth::VethLab;

/// Port of the server. It is always free, because the namespace is private.
pub const PORT: u16 = 11_211;
/// Port of the second server (`--beside`).
pub const BESIDE_PORT: u16 = 11_212;
/// Time limit for the server to accept connections.
const START_BOUND: Duration = Duration::from_secs(10);
/// Time that the server has to exit after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Number of bytes from the end of stderr that an error quotes.
const STDERR_KEPT: usize = 4_096;

/// The server program to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCommand {
    /// memcached with one worker per queue. If there are several workers, `-N` assigns each connection to the worker of
    /// its queue.
    Memcached {
        /// Path of the memcached program.
        program: PathBuf,
    },
    /// Another command. `{address}`, `{port}` and `{workers}` in its
    /// arguments are replaced.
    Other(Vec<String>),
}

/// A running server that accepts connections.
#[derive(Debug)]
pub struct Server {
    child: Child,
    command: Vec<String>,
    version: Option<String>,
    address: SocketAddr,
    proc: ProcRoot,
}

/// Reason why the server could not be started or inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The command is empty.
    #[error("the server's command is empty; specify a program and its arguments")]
    EmptyCommand,
    /// The program could not be started.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The server exited before it accepted a connection.
    #[error("the server `{command}` exited during startup ({status}); its stderr: {said}")]
    Ended {
        /// Command line.
        command: String,
        /// Exit status.
        status: String,
        /// End of the server's stderr output.
        said: String,
    },
    /// The server does not accept connections.
    #[error("the server `{command}` accepts no connection at {address} after {START_BOUND:?}; its stderr: {said}")]
    Deaf {
        /// Command line.
        command: String,
        /// Address on which the server should listen.
        address: SocketAddr,
        /// End of the server's stderr output.
        said: String,
    },
    /// The user interrupted the start.
    #[error("interrupted while the server was started")]
    Interrupted,
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Waiting for a process or terminating it failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The server's files in /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The server's file descriptors could not be duplicated.
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    /// A socket option could not be read.
    #[error(transparent)]
    SocketOption(#[from] SocketOptionError),
    /// A thread could not be pinned.
    #[error(transparent)]
    Sched(#[from] SchedError),
}

impl ServerCommand {
    /// Returns the memcached of `PATH`.
    #[must_use]
    pub fn memcached() -> Self {
        Self::Memcached { program: "memcached".into() }
    }

    /// Returns the command line with its placeholders replaced.
    #[must_use]
    pub fn words(&self, address: SocketAddr, workers: u32) -> Vec<String> {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let workers = workers.to_string();
        match self {
            Self::Memcached { program } => {
                let program = visible::path(program);
                let fixed = ["-u", "root", "-U", "0", "-m", "512", "-c", "4096"].map(str::to_owned);
                let chosen = ["-l", &ip, "-p", &port, "-t", &workers, "-N", &workers].map(str::to_owned);
                std::iter::once(program).chain(fixed).chain(chosen).collect()
            }
            Self::Other(words) => {
                let fill = |word: &String| {
                    word.replace("{address}", &ip).replace("{port}", &port).replace("{workers}", &workers)
                };
                words.iter().map(fill).collect()
            }
        }
    }

    fn version(&self) -> Option<String> {
        let Self::Memcached { program } = self else { return None };
        let mut child = Spawn::new(program).args(["-V"]).stdout(Output::Tail(256)).start().ok()?;
        child.wait(Duration::from_secs(2)).ok()??;
        let said = child.stdout_tail()?;
        Some(String::from_utf8_lossy(&said).trim().to_owned()).filter(|version| !version.is_empty())
    }
}

impl Server {
    /// Starts the server in the lab. Returns as soon as the server accepts a connection from the client's namespace.
    /// Calls `stopped` repeatedly and gives up if it returns true.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(
        lab: &mut VethLab,
        server: &ServerCommand,
        port: u16,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self, ServerError> {
        let address = SocketAddr::new(lab.server.address, port);
        let command = server.words(address, lab.plan.queues);
        let (program, arguments) = command.split_first().ok_or(ServerError::EmptyCommand)?;
        let cpus: CpuList = lab.plan.cpus.server_cpus().into_iter().collect();
        let spawn = Spawn::new(program)
            .args(arguments)
            .netns(&lab.server.namespace)
            .cpus(cpus)
            .stderr(Output::Tail(STDERR_KEPT));
        let child = lab.transaction.spawn(&command, spawn)?;
        let mut started = Self { child, version: server.version(), command, address, proc: ProcRoot::default() };
        started.wait_until_it_accepts(lab, stopped)?;
        Ok(started)
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the server is still running.
    ///
    /// # Errors
    /// Fails if the kernel refuses to report the state of the process.
    pub fn is_running(&mut self) -> Result<bool, ServerError> {
        Ok(self.child.wait(Duration::ZERO)?.is_none())
    }

    /// Returns the facts that the result file records about the server.
    #[must_use]
    pub fn facts(&self, workers: &[WorkerFacts]) -> ServerFacts {
        ServerFacts { command: self.command.clone(), version: self.version.clone(), workers: workers.to_vec() }
    }

    /// Returns the server's process and its descendants in the same session.
    ///
    /// # Errors
    /// Fails if /proc cannot be read.
    pub fn processes(&self) -> Result<Vec<Pid>, ServerError> {
        let members = session_members(&self.proc, &self.child.identity())?;
        Ok(members.into_iter().map(|member| member.identity.pid).collect())
    }

    /// Returns all epolls that watch connections, ordered by NAPI ID. A socket has no NAPI ID before its first packet,
    /// so each connection must have received one.
    ///
    /// # Errors
    /// Fails if the server's files cannot be read or duplicated.
    pub fn workers(&self) -> Result<Vec<WorkerFacts>, ServerError> {
        let mut workers = Vec::new();
        for pid in self.processes()? {
            workers.extend(workers_of(&self.proc, pid)?);
        }
        workers.sort_by(|a, b| a.napi_ids.cmp(&b.napi_ids));
        Ok(workers)
    }

    /// Pins each worker's thread to the CPU of the queue that the worker polls. `cpus[i]` is the CPU of the queue with
    /// `napi_ids[i]`.
    ///
    /// # Errors
    /// Fails if a thread cannot be pinned.
    pub fn pin(workers: &mut [WorkerFacts], napi_ids: &[NapiId], cpus: &[u32]) -> Result<(), ServerError> {
        let cpu_of: BTreeMap<u32, u32> = napi_ids.iter().map(|id| id.get()).zip(cpus.iter().copied()).collect();
        for worker in workers {
            let cpu = worker.napi_ids.first().and_then(|id| cpu_of.get(id));
            let (Some(&cpu), Some(tid)) = (cpu, worker.tid.and_then(Pid::new)) else { continue };
            sched::set_affinity(tid, &[cpu].into_iter().collect::<CpuList>())?;
            worker.cpu = Some(cpu);
        }
        Ok(())
    }

    /// Terminates the server and its child processes.
    ///
    /// # Errors
    /// Fails if a process cannot be terminated.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.child.terminate(STOP_GRACE)?;
        Ok(())
    }

    fn wait_until_it_accepts(&mut self, lab: &VethLab, stopped: &dyn Fn() -> bool) -> Result<(), ServerError> {
        let deadline = Instant::now() + START_BOUND;
        let attempt = Duration::from_millis(200);
        loop {
            let connected = lab.client.namespace.run(|| TcpConnection::connect(self.address, attempt).is_ok())?;
            if connected {
                return Ok(());
            }
            // The loop also waits for the process to exit, so the exit of a server is reported without delay.
            if let Some(status) = self.child.wait(Duration::from_millis(10))? {
                let (command, status) = (self.command.join(" "), status.to_string());
                return Err(ServerError::Ended { command, status, said: self.said() });
            }
            if stopped() {
                return Err(ServerError::Interrupted);
            }
            if Instant::now() >= deadline {
                let command = self.command.join(" ");
                return Err(ServerError::Deaf { command, address: self.address, said: self.said() });
            }
        }
    }

    fn said(&self) -> String {
        let bytes = self.child.stderr_tail().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if text.is_empty() { "empty".to_owned() } else { text }
    }
}

/// Finds the epolls of a process that watch connections with a NAPI ID.
///
/// # Errors
/// Fails if the process has exited, or if its files cannot be read or duplicated.
pub fn workers_of(proc: &ProcRoot, pid: Pid) -> Result<Vec<WorkerFacts>, ServerError> {
    let process = proc.process(pid);
    let pidfd = PidFd::open(pid)?;
    let waiting = threads_waiting_on_epolls(proc, pid)?;
    let mut workers = Vec::new();
    for fd in process.fds()?.into_iter().filter(|fd| fd.kind == FdKind::Epoll).map(|fd| fd.number) {
        let mut napi_ids = BTreeSet::new();
        let (mut connections, mut connections_without_napi) = (0, 0);
        for target in process.epoll(fd)?.targets {
            if let Some(seen) = connection(&pidfd, target.tfd)? {
                connections += 1;
                connections_without_napi += u32::from(seen.is_none());
                napi_ids.extend(seen.map(NapiId::get));
            }
        }
        if napi_ids.is_empty() {
            continue;
        }
        let tid = waiting.get(&fd).map(|tid| tid.get());
        let napi_ids = napi_ids.into_iter().collect();
        workers.push(WorkerFacts { tid, cpu: None, epoll_fd: fd, connections, connections_without_napi, napi_ids });
    }
    Ok(workers)
}

/// Returns the NAPI ID of a connected socket. The outer `None` means that `fd` is not a connection or is already
/// closed.
fn connection(pidfd: &PidFd, fd: i32) -> Result<Option<Option<NapiId>>, ServerError> {
    let duplicate = match pidfd.duplicate(fd) {
        Ok(duplicate) => duplicate,
        Err(PidFdError::NoSuchFd { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match is_connection(&duplicate) {
        Ok(false) => Ok(None),
        Ok(true) => Ok(Some(socket_options::incoming_napi_id(&duplicate)?)),
        // The descriptor is not a socket, but for example a pipe or an eventfd between the server's threads.
        Err(SocketOptionError::Refused { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the socket is a network connection. Listening sockets and Unix sockets are not.
fn is_connection(socket: &DuplicatedFd) -> Result<bool, SocketOptionError> {
    Ok(socket_options::is_inet(socket)? && !socket_options::is_listening(socket)?)
}

/// Maps the file descriptor number of each epoll to the thread that sleeps on it. Threads that are running or cannot be
/// inspected are omitted.
fn threads_waiting_on_epolls(proc: &ProcRoot, pid: Pid) -> Result<BTreeMap<i32, Pid>, ServerError> {
    let process = proc.process(pid);
    let waits = |tid: Pid| {
        let call = process.thread(tid).syscall().ok()?;
        Some((call.epoll_wait()?.epoll_fd, tid))
    };
    Ok(process.tids()?.into_iter().filter_map(waits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> SocketAddr {
        "192.0.2.1:11211".parse().unwrap()
    }

    #[test]
    fn memcached_gets_one_worker_and_one_napi_id_per_queue() {
        let words = ServerCommand::memcached().words(address(), 4).join(" ");
        assert!(words.contains("-t 4 -N 4") && words.contains("-l 192.0.2.1 -p 11211"), "{words}");
    }

    #[test]
    fn placeholders_in_another_command_are_replaced() {
        let words = ["srv", "{address}:{port}", "--threads={workers}"].map(str::to_owned).to_vec();
        assert_eq!(ServerCommand::Other(words).words(address(), 2), ["srv", "192.0.2.1:11211", "--threads=2"]);
    }
}
