//! The guest side of the vm lab. Server and client use the two NICs, and the plain responder is started like any other
//! server. Modes are set from outside with the same code as on a host. The kernel's counters are read around each
//! trial. Nothing is journalled, because the machine ends with the lab.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_host::snapshot::{self, Device, Linked, Provenance, Scope, TakeError};
use quell_linux::kernel;
use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::process::{Child, Output, ProcessError, Spawn};
use quell_linux::udp::UdpSocket;
use quell_load::{
    Generator, LoadError, LoadSpec, Polling, RequestResponse, RunObserver, RunSpec, Schedule, Transport, Workload,
};
use quell_mode::DeliveryMode;
use quell_vm::nic::{End, GuestNic, NicError};

use super::interrupts::{InterruptResult, InterruptTrial, SCHEMA};
use super::settable::Settable;
use super::{Request, Seen, features};
use crate::server::{ServerError, workers_of};

pub(super) const SERVER_CPU: u32 = 0;
const CLIENT_CPU: u32 = 1;
const PORT: u16 = 7_000;
/// CPU work per request, µs. It is long enough for an emulated NIC to deliver the next requests in the meantime, as a
/// real NIC does.
const WORK_US: u32 = 300;
/// Size of a request and of its answer, bytes.
const REQUEST_BYTES: u32 = 64;
/// Number of sockets. It is high enough to keep the server busy: with one socket, suspension ends after every request,
/// as designed. Each socket has one outstanding request, so requests arrive one by one, each after an answer.
const SOCKETS: u32 = 32;
/// Response timeout, ms. Emulation is slow, so a late answer does not mean a stuck server.
const PATIENCE_MS: u32 = 20_000;
pub(super) const WARM_UP_MS: u32 = 300;
/// Traffic that gives the server's socket its NAPI ID.
const LOOK_AROUND: RunSpec = RunSpec { schedule: Schedule::Closed, warm_up_ms: 50, measure_ms: 200 };
/// Time limit for the responder to listen.
const START_BOUND: Duration = Duration::from_secs(20);
const STDERR_KEPT: usize = 4_096;

/// Why nothing could be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestLabError {
    /// A NIC of the lab could not be brought up.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The interrupt of the server's queue is unknown.
    #[error("neither the kernel nor a name tells the interrupt of the server's receive queue")]
    NoInterrupt,
    /// The snapshot of the guest does not contain the server's device.
    #[error("the snapshot of the guest does not show the server's NIC")]
    NotInTheSnapshot,
    /// A namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The snapshot of the guest could not be taken.
    #[error(transparent)]
    Snapshot(#[from] TakeError),
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The path of this program is unknown.
    #[error("finding this program: {0}")]
    Program(io::Error),
    /// The responder could not be started or terminated.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The socket that probes the responder could not be created.
    #[error("making a socket to ask the responder with: {0}")]
    Probe(io::Error),
    /// The responder does not listen.
    #[error("the responder does not listen; it said: {0}")]
    Deaf(String),
    /// The responder could not be inspected.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The responder's epoll was not found.
    #[error("no epoll of the responder holds a connection that knows its NAPI instance")]
    NoWorker,
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Sets up the lab in this guest, counts until every round is done, and reports each event as it happens.
///
/// # Errors
/// See [`GuestLabError`]. A mode that cannot be set is not an error but [`Seen::Refused`].
pub fn count(request: &Request, tell: &mut dyn FnMut(&Seen)) -> Result<(), GuestLabError> {
    let server = GuestNic::raise(End::Server, SERVER_CPU)?;
    let client = Arc::new(GuestNic::raise(End::Client, CLIENT_CPU)?.namespace);
    let device = snapshot_of_the_server()?;
    let rx = rx_interrupt(&device, &server)?.ok_or(GuestLabError::NoInterrupt)?;

    let address = SocketAddr::new(server.address, PORT);
    let mut responder = start_responder(&server.namespace, &client, address)?;
    let mut generator = Generator::connect(load(address), Some(client))?;
    generator.run(&LOOK_AROUND, &mut ())?;
    let workers = workers_of(&ProcRoot::default(), responder.pid())?;
    let worker = workers.first().ok_or(GuestLabError::NoWorker)?;

    tell(&Seen::Up(Box::new(InterruptResult {
        schema: SCHEMA.to_owned(),
        kernel: kernel::Kernel::running().release,
        driver: device.driver.known().and_then(|driver| driver.driver.clone()),
        rx_irq: rx.to,
        rx_irq_provenance: rx.provenance,
        features: features::of(&device, worker.params().as_ref().map(|_| ())),
        load: format!("UDP, {SOCKETS} sockets with a request under way each, {WORK_US} µs of work a request"),
        trials: Vec::new(),
        refused: BTreeMap::new(),
    })));
    let settable = Settable::new(server, responder.pid(), workers);
    let mut lab = Lab { settable, generator, rx_irq: rx.to, measure_ms: request.measure_ms };
    lab.rounds(request, tell)?;
    drop(lab);
    responder.terminate(Duration::from_secs(2))?;
    Ok(())
}

fn snapshot_of_the_server() -> Result<Device, GuestLabError> {
    let name = End::Server.name().to_owned();
    let scope = Scope { netns: Some(name.clone()), device: Some(name.clone()), ..Scope::default() };
    let (snapshot, _) = snapshot::take(&scope)?;
    snapshot.devices.into_iter().find(|device| device.name == name).ok_or(GuestLabError::NotInTheSnapshot)
}

/// Interrupt of the receive queue, as reported by the kernel. If the kernel does not report NAPI instances, the
/// interrupt is found by its name.
fn rx_interrupt(device: &Device, nic: &GuestNic) -> Result<Option<Linked<u32>>, GuestLabError> {
    let said = device.napis.known_elements().find_map(|napi| napi.irq.known().copied().flatten());
    match said {
        Some(said) => Ok(Some(said)),
        None => Ok(nic.rx_irq()?.map(|to| Linked { to, provenance: Provenance::Name })),
    }
}

fn load(address: SocketAddr) -> LoadSpec {
    let sizes = RequestResponse { request_bytes: REQUEST_BYTES, response_bytes: REQUEST_BYTES, check_content: true };
    LoadSpec {
        connections: SOCKETS,
        cpus: vec![CLIENT_CPU],
        polling: Polling::Epoll,
        connect_timeout_ms: PATIENCE_MS,
        response_timeout_ms: PATIENCE_MS,
        ..LoadSpec::new(address, Transport::Udp, Workload::RequestResponse(sizes))
    }
}

fn start_responder(server: &Namespace, client: &Namespace, address: SocketAddr) -> Result<Child, GuestLabError> {
    let program = std::env::current_exe().map_err(GuestLabError::Program)?;
    let mut responder = Spawn::new(program)
        .args(["respond", &address.to_string(), "--udp", "--work-us", &WORK_US.to_string()])
        .netns(server)
        .cpus([SERVER_CPU].into_iter().collect())
        .stderr(Output::Tail(STDERR_KEPT))
        .dies_with_this_thread()
        .start()?;
    let deadline = Instant::now() + START_BOUND;
    let probe = client.run(|| UdpSocket::connect(address))?.map_err(GuestLabError::Probe)?;
    while !answers(&probe) {
        // Waits for the exit between attempts, so a responder that dies is reported at once.
        let ended = responder.wait(Duration::from_millis(50))?.is_some();
        if ended || Instant::now() >= deadline {
            let said = responder.stderr_tail().unwrap_or_default();
            return Err(GuestLabError::Deaf(String::from_utf8_lossy(&said).trim().to_owned()));
        }
    }
    Ok(responder)
}

/// Whether an earlier request has been answered. If not, sends the next one. Both calls can fail before the responder
/// listens.
fn answers(probe: &UdpSocket) -> bool {
    let answered = probe.receive(&mut [0; REQUEST_BYTES as usize]).is_ok();
    if !answered {
        let _ = probe.send(&[0; REQUEST_BYTES as usize]);
    }
    answered
}

/// A lab under load.
struct Lab {
    settable: Settable,
    generator: Generator,
    rx_irq: u32,
    measure_ms: u32,
}

impl Lab {
    fn rounds(&mut self, request: &Request, tell: &mut dyn FnMut(&Seen)) -> Result<(), GuestLabError> {
        let mut modes = request.modes.clone();
        for round in 0..request.rounds() {
            let mut refused = Vec::new();
            // Rotates the modes, so each mode follows a different one in each round.
            for place in 0..modes.len() {
                let mode = &modes[(place + round as usize) % modes.len()];
                if !self.trial(mode, round, tell)? {
                    refused.push(*mode);
                }
            }
            modes.retain(|mode| !refused.contains(mode));
        }
        Ok(())
    }

    /// Measures a mode, or reports that it cannot be set.
    fn trial(&mut self, mode: &DeliveryMode, repeat: u32, tell: &mut dyn FnMut(&Seen)) -> Result<bool, GuestLabError> {
        // The server is idle and has answered every request, so no queue is suspended.
        let settings = match self.settable.set(mode) {
            Ok(settings) => settings,
            Err(reason) => {
                let refusal = self.settable.refusal(mode, reason);
                tell(&Seen::Refused { mode: mode.to_string(), refusal });
                return Ok(false);
            }
        };
        tell(&Seen::Begins { mode: mode.to_string() });
        let run = RunSpec { schedule: Schedule::Closed, warm_up_ms: WARM_UP_MS, measure_ms: self.measure_ms };
        let mut watch = Counting { rx_irq: self.rx_irq, begun: None, ended: None };
        let report = self.generator.run(&run, &mut watch)?;
        let (begun, ended) = (watch.begun.unwrap_or_default(), watch.ended.unwrap_or_default());
        tell(&Seen::Ends(Box::new(InterruptTrial {
            mode: mode.to_string(),
            repeat,
            settings,
            answered: report.answered_in_window,
            duration_ns: report.duration_ns,
            rx_interrupts: increase(begun.rx_interrupts, ended.rx_interrupts),
            net_rx_softirqs: increase(begun.net_rx_softirqs, ended.net_rx_softirqs),
            timer_interrupts: increase(begun.timer_interrupts, ended.timer_interrupts),
            host_wait_share: None,
        })));
        Ok(true)
    }
}

/// Values of the counters at one time. Values that could not be read are absent.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    rx_interrupts: Option<u64>,
    net_rx_softirqs: Option<u64>,
    timer_interrupts: Option<u64>,
}

/// Reads the counters at the start and end of the measured time.
struct Counting {
    rx_irq: u32,
    begun: Option<Counters>,
    ended: Option<Counters>,
}

impl RunObserver for Counting {
    fn window_started(&mut self) {
        self.begun = Some(self.read());
    }

    fn window_ended(&mut self) {
        self.ended = Some(self.read());
    }
}

impl Counting {
    fn read(&self) -> Counters {
        let proc = ProcRoot::default();
        let interrupts = proc.interrupts().ok();
        let timer = interrupts.as_ref().and_then(|all| all.kind("LOC")?.per_cpu.as_ref()?.get(&SERVER_CPU).copied());
        Counters {
            rx_interrupts: interrupts.as_ref().and_then(|all| Some(all.irq(self.rx_irq)?.total)),
            net_rx_softirqs: proc.softirqs().ok().and_then(|all| all.count("NET_RX", SERVER_CPU)),
            timer_interrupts: timer,
        }
    }
}

fn increase(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    Some(to?.saturating_sub(from?))
}
