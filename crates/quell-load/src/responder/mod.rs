//! The plain responder: it reads requests of a fixed size and sends responses of a fixed size over TCP or UDP, with
//! optional CPU work. It ignores the content. Without work it is the cheapest server against which to measure a
//! generator. Its two shapes correspond to the servers of netperf and neper.

mod serve;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_linux::clock::monotonic_ns;
use quell_linux::event::WakeEvent;
use quell_linux::netns::Namespace;
use quell_linux::sched::set_affinity;
use quell_linux::tcp::{Blocking, TcpConnection, TcpListener};
use quell_linux::udp::UdpSocket;
use quell_linux::{CpuList, Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::serve::{serve_tcp_blocking, serve_tcp_epoll, serve_udp_blocking, serve_udp_epoll};
use crate::error::LoadError;
use crate::spec::{RequestResponse, Transport};

/// Configuration of a responder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResponderSpec {
    /// Listening address. With port 0 the kernel selects a port.
    pub address: SocketAddr,
    pub transport: Transport,
    /// How workers wait for requests.
    pub shape: ServeShape,
    /// Sizes of requests and responses. `check_content` has no effect here.
    pub sizes: RequestResponse,
    /// CPU work per request in user space, µs. 0: no work.
    pub work_us: u32,
    /// Number of workers, 1 to 1,024. Each has its own socket at the same address, with `SO_REUSEPORT` if there are
    /// several. A blocking TCP worker accepts connections and starts one thread per connection.
    pub workers: u32,
    /// CPUs to pin the workers to, as in [`crate::LoadSpec`]. Connection threads run on their worker's CPU.
    pub cpus: Vec<u32>,
}

/// How a worker waits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServeShape {
    /// One thread per connection in a blocking `recv`. With UDP, one thread per socket.
    Blocking,
    /// One thread per worker in level-triggered `epoll_wait`.
    Epoll,
}

/// Counters of a responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResponderStats {
    /// Number of requests answered.
    pub answered: u64,
    /// Number of connections accepted.
    pub accepted: u64,
    /// Number of times that accepting paused because file descriptors or memory ran out. New connections then wait in
    /// the kernel until an accepted one is closed.
    pub accept_pauses: u64,
}

/// A running responder. Dropping it stops it.
pub struct Responder {
    shared: Arc<Shared>,
    address: SocketAddr,
    tids: Vec<Pid>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    spec: ResponderSpec,
    stop: AtomicBool,
    stop_event: WakeEvent,
    /// Raised when the owner should check [`Responder::failure`] and [`ResponderStats::accept_pauses`].
    trouble: WakeEvent,
    failure: Mutex<Option<String>>,
    answered: AtomicU64,
    accepted: AtomicU64,
    accept_pauses: AtomicU64,
    /// Signalled when a file descriptor or memory has been freed.
    room: Condvar,
    /// Sockets and connections on which threads are blocked; shut down to stop the threads.
    open: Mutex<Blocked>,
}

#[derive(Default)]
struct Blocked {
    listeners: Vec<Arc<TcpListener>>,
    connections: HashMap<u64, Arc<TcpConnection>>,
    next: u64,
}

/// Interval at which a responder without free file descriptors tries again, since other processes may have freed some.
const ROOM_RETRY: Duration = Duration::from_millis(100);

const WORKERS_MAX: u32 = 1024;

impl Responder {
    /// Binds every worker's socket, in `namespace` if given, and starts serving. [`Responder::address`] includes the
    /// port. Nothing keeps running after an error.
    pub fn start(spec: ResponderSpec, namespace: Option<Arc<Namespace>>) -> Result<Self, LoadError> {
        check(&spec)?;
        let event = || WakeEvent::new().map_err(LoadError::system("create an eventfd"));
        let shared = Arc::new(Shared {
            spec,
            stop: AtomicBool::new(false),
            stop_event: event()?,
            trouble: event()?,
            failure: Mutex::default(),
            answered: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            accept_pauses: AtomicU64::new(0),
            room: Condvar::new(),
            open: Mutex::default(),
        });
        let address = shared.spec.address;
        let mut responder = Self { shared, address, tids: Vec::new(), workers: Vec::new() };
        for worker in 0..responder.shared.spec.workers {
            responder.start_worker(worker, namespace.clone())?;
        }
        Ok(responder)
    }

    fn start_worker(&mut self, worker: u32, namespace: Option<Arc<Namespace>>) -> Result<(), LoadError> {
        let (sender, ready) = channel();
        let shared = Arc::clone(&self.shared);
        let address = self.address;
        let handle = std::thread::Builder::new()
            .name(format!("quell-respond-{worker}"))
            .spawn(move || run_worker(&shared, worker, address, namespace.as_deref(), &sender))
            .map_err(LoadError::system("start a responder thread"))?;
        self.workers.push(handle);
        let (tid, address) = ready.recv().map_err(|_| LoadError::ThreadLost)??;
        self.address = address;
        self.tids.push(tid);
        Ok(())
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn tids(&self) -> &[Pid] {
        &self.tids
    }

    #[must_use]
    pub fn stats(&self) -> ResponderStats {
        ResponderStats {
            answered: self.shared.answered.load(Ordering::Relaxed),
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            accept_pauses: self.shared.accept_pauses.load(Ordering::Relaxed),
        }
    }

    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Becomes readable each time that accepting pauses or a worker fails.
    #[must_use]
    pub fn trouble(&self) -> &WakeEvent {
        &self.shared.trouble
    }

    /// Closes all sockets, waits for the workers and returns the counters.
    #[must_use]
    pub fn stop(mut self) -> ResponderStats {
        self.end();
        self.stats()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // After a failure, workers stop at their next request.
        let _ = self.shared.stop_event.raise();
        self.shared.shut_down_blocked();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.end();
    }
}

fn check(spec: &ResponderSpec) -> Result<(), LoadError> {
    spec.sizes.check(spec.transport)?;
    if !(1..=WORKERS_MAX).contains(&spec.workers) {
        return Err(LoadError::spec("workers", format!("{} is not between 1 and {WORKERS_MAX}", spec.workers)));
    }
    Ok(())
}

enum Endpoint {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

fn run_worker(
    shared: &Arc<Shared>,
    worker: u32,
    address: SocketAddr,
    namespace: Option<&Namespace>,
    ready: &Sender<Result<(Pid, SocketAddr), LoadError>>,
) {
    let endpoint = match open_worker(shared, worker, address, namespace) {
        Ok((endpoint, address)) => {
            let _ = ready.send(Ok((Pid::of_this_thread(), address)));
            endpoint
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let served = match (endpoint, shared.spec.shape) {
        (Endpoint::Tcp(listener), ServeShape::Epoll) => serve_tcp_epoll(shared, &listener),
        (Endpoint::Tcp(listener), ServeShape::Blocking) => serve_tcp_blocking(shared, listener),
        (Endpoint::Udp(socket), ServeShape::Epoll) => serve_udp_epoll(shared, &socket),
        (Endpoint::Udp(socket), ServeShape::Blocking) => serve_udp_blocking(shared, &socket),
    };
    if let Err(error) = served {
        shared.fail(format!("worker {worker} at {address} stopped serving: {error}"));
    }
}

fn open_worker(
    shared: &Shared,
    worker: u32,
    address: SocketAddr,
    namespace: Option<&Namespace>,
) -> Result<(Endpoint, SocketAddr), LoadError> {
    if let Some(namespace) = namespace {
        namespace.move_calling_thread()?;
    }
    let spec = &shared.spec;
    if !spec.cpus.is_empty() {
        let cpu = spec.cpus[worker as usize % spec.cpus.len()];
        set_affinity(Pid::of_this_thread(), &CpuList::from_iter([cpu]))?;
    }
    let share_port = spec.workers > 1;
    let blocking = if spec.shape == ServeShape::Blocking { Blocking::Yes } else { Blocking::No };
    let bound = match spec.transport {
        Transport::Tcp => TcpListener::bind(address, share_port, blocking)
            .and_then(|listener| Ok((listener.local_address()?, Endpoint::Tcp(listener)))),
        Transport::Udp => UdpSocket::bind(address, share_port, blocking)
            .and_then(|socket| Ok((socket.local_address()?, Endpoint::Udp(socket)))),
    };
    let (address, endpoint) = bound.map_err(|source| LoadError::Listen { address, source })?;
    Ok((endpoint, address))
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn blocked(&self) -> std::sync::MutexGuard<'_, Blocked> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shut_down_blocked(&self) {
        let blocked = self.blocked();
        self.room.notify_all();
        for listener in &blocked.listeners {
            let _ = listener.shut_down();
        }
        for connection in blocked.connections.values() {
            let _ = connection.shut_down();
        }
    }

    fn fail(&self, why: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        let _ = self.trouble.raise();
    }

    fn pause_accepting(&self) {
        self.accept_pauses.fetch_add(1, Ordering::Relaxed);
        let _ = self.trouble.raise();
    }

    /// Waits until a connection is closed, [`ROOM_RETRY`] has passed, or the responder stops.
    fn wait_for_room(&self) {
        let blocked = self.blocked();
        if !self.is_stopped() {
            let _ = self.room.wait_timeout(blocked, ROOM_RETRY);
        }
    }

    fn work(&self, requests: u64) {
        self.answered.fetch_add(requests, Ordering::Relaxed);
        if self.spec.work_us == 0 {
            return;
        }
        let done_ns = monotonic_ns() + requests * u64::from(self.spec.work_us) * 1_000;
        while monotonic_ns() < done_ns {
            std::hint::spin_loop();
        }
    }
}
