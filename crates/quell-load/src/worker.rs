//! One generator thread: it enters the namespace, pins itself, opens its connections, then executes plans until it is
//! stopped.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use quell_linux::netdev::Netdev;
use quell_linux::netns::Namespace;
use quell_linux::sched::set_affinity;
use quell_linux::{CpuList, NapiId, Pid};

use crate::connection::{Connection, Socket};
use crate::drive::{Drive, Finder, Plan, ThreadState};
use crate::error::LoadError;
use crate::report::{Engine, EngineUsed, Tally};
use crate::requests::Content;
use crate::spec::{LoadSpec, Polling};

/// Receive buffer size: larger than any datagram, and enough for a batch of pipelined answers.
const BUFFER_BYTES: usize = 128 * 1024;

pub(crate) struct Assignment {
    pub(crate) spec: Arc<LoadSpec>,
    pub(crate) content: Arc<Content>,
    pub(crate) namespace: Option<Arc<Namespace>>,
    pub(crate) cpu: Option<u32>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) answered: Arc<AtomicU64>,
}

pub(crate) struct Ready {
    pub(crate) tid: Pid,
    pub(crate) engine: EngineUsed,
    pub(crate) napi_ids: Vec<NapiId>,
}

pub(crate) struct Done {
    pub(crate) result: Result<Tally, LoadError>,
    pub(crate) napi_ids: Vec<NapiId>,
}

/// The thread's main function. It returns when `plans` is closed.
pub(crate) fn work(
    assignment: &Assignment,
    ready: &Sender<Result<Ready, LoadError>>,
    plans: &Receiver<Plan>,
    done: &Sender<Done>,
) {
    let mut state = match prepare(assignment) {
        Ok((state, engine)) => {
            let napi_ids = napi_ids(&state.connections);
            // If the receiver is gone, another thread has failed and `plans` is closed.
            let _ = ready.send(Ok(Ready { tid: Pid::of_this_thread(), engine, napi_ids }));
            state
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    while let Ok(plan) = plans.recv() {
        let result = Drive::new(&mut state, plan).run().map_err(LoadError::system("wait for events"));
        if done.send(Done { result, napi_ids: napi_ids(&state.connections) }).is_err() {
            return;
        }
    }
}

fn prepare(assignment: &Assignment) -> Result<(ThreadState, EngineUsed), LoadError> {
    if let Some(namespace) = &assignment.namespace {
        namespace.move_calling_thread()?;
    }
    if let Some(cpu) = assignment.cpu {
        set_affinity(Pid::of_this_thread(), &CpuList::from_iter([cpu]))?;
    }
    let spec = &assignment.spec;
    let connections = connect_all(assignment)?;
    let (finder, engine) = choose_finder(spec.polling, &connections)?;
    let state = ThreadState {
        connections,
        finder,
        content: Arc::clone(&assignment.content),
        depth: spec.depth,
        connect_timeout_ns: u64::from(spec.connect_timeout_ms) * 1_000_000,
        response_timeout_ns: u64::from(spec.response_timeout_ms) * 1_000_000,
        buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
        out: Vec::with_capacity(BUFFER_BYTES),
        transport: spec.transport,
        cancel: Arc::clone(&assignment.cancel),
        answered: Arc::clone(&assignment.answered),
    };
    Ok((state, engine))
}

fn connect_all(assignment: &Assignment) -> Result<Vec<Connection>, LoadError> {
    let spec = &assignment.spec;
    let timeout = Duration::from_millis(spec.connect_timeout_ms.into());
    let connect = |&address: &SocketAddr| {
        let socket = Socket::connect(spec.transport, address, timeout)
            .map_err(|source| LoadError::Connect { address, source })?;
        Ok(Connection::new(address, socket, spec.depth as usize))
    };
    assignment.addresses.iter().map(connect).collect()
}

fn choose_finder(polling: Polling, connections: &[Connection]) -> Result<(Finder, EngineUsed), LoadError> {
    let refusal = match polling {
        Polling::Epoll => None,
        Polling::Auto => fallback_reason(connections).or_else(|| busy_poll_refusal(connections)),
        Polling::BusyPoll => busy_poll_refusal(connections),
    };
    if polling == Polling::Epoll || refusal.is_some() {
        let engine = EngineUsed { engine: Engine::Epoll, fallback_reason: refusal };
        return Ok((watch_all(connections)?, engine));
    }
    let engine = EngineUsed { engine: Engine::BusyPoll, fallback_reason: None };
    Ok((Finder::BusyPoll(VecDeque::with_capacity(connections.len())), engine))
}

fn watch_all(connections: &[Connection]) -> Result<Finder, LoadError> {
    let finder = Finder::epoll(connections.len()).map_err(LoadError::system("create an epoll instance"))?;
    for (id, connection) in (0..).zip(connections) {
        if let Some(socket) = connection.socket() {
            finder.add(id, socket).map_err(LoadError::system("add a connection to the epoll"))?;
        }
    }
    Ok(finder)
}

/// Reason why busy polling would not help, or does not seem to be intended. `None` if it should be used.
fn fallback_reason(connections: &[Connection]) -> Option<String> {
    let most = Polling::CONNECTIONS_MAX;
    if connections.len() > most as usize {
        return Some(format!("a thread has {} connections, more than {most}", connections.len()));
    }
    let ids = napi_ids(connections);
    if ids.is_empty() {
        return Some("the connections have no known NAPI ID".to_owned());
    }
    let mut netdev = match Netdev::open() {
        Ok(netdev) => netdev,
        Err(error) => return Some(error.to_string()),
    };
    ids.into_iter().find_map(|id| match netdev.napi(id) {
        Ok(napi) if napi.settings.defers() => None,
        Ok(_) => Some(format!("NAPI {id} does not defer interrupts")),
        Err(error) => Some(error.to_string()),
    })
}

/// Enables busy polling. Returns the kernel's error if it refuses. The generator then uses epoll, where the options
/// already set have no effect.
fn busy_poll_refusal(connections: &[Connection]) -> Option<String> {
    let sockets = connections.iter().filter_map(Connection::socket);
    sockets.into_iter().find_map(|socket| socket.busy_poll().err()).map(|error| error.to_string())
}

fn napi_ids(connections: &[Connection]) -> Vec<NapiId> {
    let mut ids: Vec<NapiId> = connections.iter().filter_map(Connection::socket).filter_map(Socket::napi_id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
