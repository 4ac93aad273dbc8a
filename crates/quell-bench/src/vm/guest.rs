//! The vm lab's part in the guest: the two NICs put into namespaces of their own, the plain responder started in one
//! as any server would be, the generator run in the other, modes set from outside with the code that sets them on a
//! host, and the kernel's counters read around each trial. Nothing is journalled: the machine ends with the lab.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_host::picture::{self, Device, Linked, SaidBy, Scope, TakeError};
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcError, ProcRoot, ProcWriteError};
use quell_linux::process::{Child, Output, ProcessError, Spawn};
use quell_linux::udp::UdpSocket;
use quell_linux::{CpuList, Ifindex, InterfaceName, MacAddress, kernel};
use quell_load::{
    Generator, LoadError, LoadSpec, Polling, RequestResponse, RunObserver, RunSpec, Schedule, Transport, Workload,
};
use quell_mode::{DeliveryMode, EpollSettings, NapiSettings, Threaded};
use quell_vm::machine::NIC_ADDRESSES;

use super::interrupts::{InterruptResult, InterruptTrial, SCHEMA};
use super::{Request, features};
use crate::lab::napi::{QueueError, Queues};
use crate::result::SettingsReadBack;
use crate::server::{ServerError, Worker, workers_of};
use crate::settings::needs_launch;

const SERVER: &str = "server";
const CLIENT: &str = "client";
const SERVER_CPU: u32 = 0;
const CLIENT_CPU: u32 = 1;
/// There when a mode needs it: see [`Request::cpus`].
const SPARE_CPU: u32 = 2;
/// Addresses of the network that RFC 5737 sets aside for documentation.
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PREFIX_BITS: u8 = 24;
const PORT: u16 = 7_000;
/// A request's work: so long that an emulated NIC can deliver the next ones meanwhile, as a real one does.
const WORK_US: u32 = 300;
/// Of a request, and of its answer.
const REQUEST_BYTES: u32 = 64;
/// So many that the server never runs dry: with one, suspension lapses after every request, as designed.
const CONNECTIONS: u32 = 32;
/// Emulation is slow, not stuck.
const PATIENCE_MS: u32 = 20_000;
const WARM_UP_MS: u32 = 300;
/// Some traffic, so that every connection knows its NAPI instance.
const LOOK_AROUND: RunSpec = RunSpec { schedule: Schedule::Closed, warm_up_ms: 50, measure_ms: 200 };
/// How long the responder may take until it listens.
const START_BOUND: Duration = Duration::from_secs(20);
const STDERR_KEPT: usize = 4_096;

/// Why nothing could be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestLabError {
    /// A NIC of the lab is not there.
    #[error("there is no NIC for the {0}: this is for a guest of the vm lab")]
    NoNic(&'static str),
    /// The interrupt of the server's queue is not known.
    #[error("neither the kernel nor a name tells the interrupt of {0}'s receive queue")]
    NoInterrupt(&'static str),
    /// An address that this file gives is none.
    #[error("preparing the addresses: {0}")]
    Address(String),
    /// A namespace could not be made or entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A NIC could not be configured.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// No picture of the guest could be taken.
    #[error(transparent)]
    Picture(#[from] TakeError),
    /// The queues could not be read.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// An interrupt could not be placed.
    #[error(transparent)]
    Place(#[from] ProcWriteError),
    /// This program's file is not known.
    #[error("finding this program: {0}")]
    Program(io::Error),
    /// The responder could not be started or ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A socket to ask the responder with could not be made.
    #[error("making a socket to ask the responder with: {0}")]
    Probe(io::Error),
    /// The responder does not listen.
    #[error("the responder does not listen; it said: {0}")]
    Deaf(String),
    /// The responder could not be looked into.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The responder's epoll was not found.
    #[error("no epoll of the responder holds a connection that knows its NAPI instance")]
    NoWorker,
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// One end of the lab.
struct End {
    name: &'static str,
    namespace: Arc<Namespace>,
    ifindex: Ifindex,
    cpu: u32,
}

/// Raises the lab in this guest and counts.
///
/// # Errors
/// See [`GuestLabError`]. A mode that cannot be set is no error but in [`InterruptResult::refused`].
pub fn count(request: &Request) -> Result<InterruptResult, GuestLabError> {
    let modes = &request.modes;
    let server = End::raise(SERVER, NIC_ADDRESSES[0], SERVER_ADDRESS, SERVER_CPU)?;
    let client = End::raise(CLIENT, NIC_ADDRESSES[1], CLIENT_ADDRESS, CLIENT_CPU)?;
    let device = server.place_interrupts()?;
    client.place_interrupts()?;

    let address = SocketAddr::new(SERVER_ADDRESS, PORT);
    let mut responder = start_responder(&server, &client, address)?;
    let mut generator = Generator::connect(load(address), Some(Arc::clone(&client.namespace)))?;
    generator.run(&LOOK_AROUND, &mut ())?;
    let workers = workers_of(&ProcRoot::default(), responder.pid())?;
    let worker = workers.first().ok_or(GuestLabError::NoWorker)?;
    let rx = rx_interrupt(&device).ok_or(GuestLabError::NoInterrupt(SERVER))?;

    let mut result = InterruptResult {
        schema: SCHEMA.to_owned(),
        kernel: kernel::Kernel::running().release,
        driver: device.driver.known().and_then(|driver| driver.driver.clone()),
        rx_irq: rx.to,
        rx_irq_said_by: rx.said_by,
        features: features::of(&device, worker.params().as_ref().map(|_| ())),
        load: format!("UDP, {CONNECTIONS} sockets with a request under way each, {WORK_US} µs of work a request"),
        trials: Vec::new(),
        refused: BTreeMap::new(),
    };
    let queues = settable_queues(&server);
    let mut lab = Lab { queues, workers, generator, rx_irq: rx.to, measure_ms: request.measure_ms };
    for repeat in 0..request.repeats {
        // Every mode is once the first: what a trial leaves behind meets another one each time.
        for place in 0..modes.len() {
            let mode = &modes[(place + repeat as usize) % modes.len()];
            lab.trial(mode, repeat, &mut result)?;
        }
    }
    drop(lab);
    responder.terminate(Duration::from_secs(2))?;
    Ok(result)
}

impl End {
    fn raise(name: &'static str, mac: [u8; 6], address: IpAddr, cpu: u32) -> Result<Self, GuestLabError> {
        let wanted = MacAddress::new(mac);
        let mut links = Links::open()?;
        let nic = links.list()?.into_iter().find(|link| link.mac == wanted).ok_or(GuestLabError::NoNic(name))?;
        let namespace = Namespace::create_named(&NamespaceName::new(name)?)?;
        let device = InterfaceName::new(name).map_err(|error| GuestLabError::Address(error.to_string()))?;
        links.move_to(nic.index, &namespace, &device)?;

        let mut links = Links::open_in(&namespace)?;
        let ifindex = links.by_name(&device)?.index;
        let address = InterfaceAddress::new(address, PREFIX_BITS)
            .ok_or_else(|| GuestLabError::Address(format!("{address}/{PREFIX_BITS}")))?;
        Addresses::open_in(&namespace)?.add(ifindex, address)?;
        links.set_up(ifindex)?;
        Ok(Self { name, namespace: Arc::new(namespace), ifindex, cpu })
    }

    /// Sends all interrupts of the NIC to this end's CPU, and tells what there is to tell of the NIC.
    fn place_interrupts(&self) -> Result<Device, GuestLabError> {
        let scope = Scope { netns: Some(self.name.to_owned()), device: Some(self.name.to_owned()), ..Scope::default() };
        let (picture, _) = picture::take(&scope)?;
        let device = picture.devices.into_iter().find(|device| device.name == self.name);
        let device = device.ok_or(GuestLabError::NoNic(self.name))?;
        let cpus: CpuList = [self.cpu].into_iter().collect();
        for &irq in device.irqs.known_elements() {
            ProcRoot::default().set_irq_affinity(irq, &cpus)?;
        }
        Ok(device)
    }
}

/// The interrupt of the receive queue: the kernel's word, or, where it says nothing of NAPIs, the only one of the
/// device that is called as drivers call that of their first receive queue.
fn rx_interrupt(device: &Device) -> Option<Linked<u32>> {
    let said = device.napis.known_elements().find_map(|napi| napi.irq.known().copied().flatten());
    let interrupts = ProcRoot::default().interrupts().ok()?;
    let named = |irq: &&u32| {
        let name = interrupts.irq(**irq).map(|line| line.name());
        name.is_some_and(|name| name.ends_with("-input.0") || name.ends_with("-rx-0"))
    };
    let by_name = || Some(Linked { to: *device.irqs.known_elements().find(named)?, said_by: SaidBy::Name });
    said.or_else(by_name)
}

/// The server's queues, when this kernel can tell and set what a mode says; otherwise why not.
fn settable_queues(server: &End) -> Result<Queues, String> {
    let open = || -> Result<Queues, QueueError> {
        let mut queues = Queues::of(Netdev::open_in(&server.namespace)?, server.ifindex, SERVER, 1)?;
        queues.set(&NapiSettings::default())?;
        Ok(queues)
    };
    open().map_err(|error| error.to_string())
}

fn load(address: SocketAddr) -> LoadSpec {
    let sizes = RequestResponse { request_bytes: REQUEST_BYTES, response_bytes: REQUEST_BYTES, check_content: true };
    LoadSpec {
        connections: CONNECTIONS,
        cpus: vec![CLIENT_CPU],
        polling: Polling::Epoll,
        connect_timeout_ms: PATIENCE_MS,
        response_timeout_ms: PATIENCE_MS,
        ..LoadSpec::new(address, Transport::Udp, Workload::RequestResponse(sizes))
    }
}

fn start_responder(server: &End, client: &End, address: SocketAddr) -> Result<Child, GuestLabError> {
    let program = std::env::current_exe().map_err(GuestLabError::Program)?;
    let mut responder = Spawn::new(program)
        .args(["respond", &address.to_string(), "--udp", "--work-us", &WORK_US.to_string()])
        .netns(&*server.namespace)
        .cpus([SERVER_CPU].into_iter().collect())
        .stderr(Output::Tail(STDERR_KEPT))
        .dies_with_this_thread()
        .start()?;
    let deadline = Instant::now() + START_BOUND;
    let probe = client.namespace.run(|| UdpSocket::connect(address))?.map_err(GuestLabError::Probe)?;
    while !answers(&probe) {
        // Its end is awaited between attempts, so one that dies is reported at once.
        let ended = responder.wait(Duration::from_millis(50))?.is_some();
        if ended || Instant::now() >= deadline {
            let said = responder.stderr_tail().unwrap_or_default();
            return Err(GuestLabError::Deaf(String::from_utf8_lossy(&said).trim().to_owned()));
        }
    }
    Ok(responder)
}

/// Whether an earlier request has been answered; if not, here is the next one. Before the responder listens, both calls
/// can fail for it.
fn answers(probe: &UdpSocket) -> bool {
    let answered = probe.receive(&mut [0; REQUEST_BYTES as usize]).is_ok();
    if !answered {
        let _ = probe.send(&[0; REQUEST_BYTES as usize]);
    }
    answered
}

/// A lab under load.
struct Lab {
    queues: Result<Queues, String>,
    workers: Vec<Worker>,
    generator: Generator,
    rx_irq: u32,
    measure_ms: u32,
}

impl Lab {
    fn trial(&mut self, mode: &DeliveryMode, repeat: u32, result: &mut InterruptResult) -> Result<(), GuestLabError> {
        let settings = match self.set(mode) {
            Ok(settings) => settings,
            Err(reason) => {
                result.refused.insert(mode.to_string(), reason);
                return Ok(());
            }
        };
        let run = RunSpec { schedule: Schedule::Closed, warm_up_ms: WARM_UP_MS, measure_ms: self.measure_ms };
        let mut watch = Counting { rx_irq: self.rx_irq, begun: None, ended: None };
        let report = self.generator.run(&run, &mut watch)?;
        let (begun, ended) = (watch.begun.unwrap_or_default(), watch.ended.unwrap_or_default());
        result.trials.push(InterruptTrial {
            mode: mode.to_string(),
            repeat,
            settings,
            answered: report.answered_in_window,
            duration_ns: report.duration_ns,
            rx_interrupts: increase(begun.rx_interrupts, ended.rx_interrupts),
            net_rx_softirqs: increase(begun.net_rx_softirqs, ended.net_rx_softirqs),
            timer_interrupts: increase(begun.timer_interrupts, ended.timer_interrupts),
        });
        Ok(())
    }

    /// Sets the mode while the server is idle, with every request answered: no queue is suspended then.
    fn set(&mut self, mode: &DeliveryMode) -> Result<SettingsReadBack, String> {
        if let Some(requirement) = needs_launch(mode) {
            return Err(requirement.to_string());
        }
        let queues = match &mut self.queues {
            Ok(queues) => queues,
            // A new kernel's queues are as `base` says, and nothing here has changed them.
            Err(_) if is_base(mode) => return Ok(SettingsReadBack { napi: Vec::new(), epoll: Vec::new() }),
            Err(reason) => return Err(reason.clone()),
        };
        let napi = queues.set(&mode.napi()).map_err(|error| error.to_string())?;
        let polls_without_end = mode.napi().threaded == Threaded::BusyPoll;
        let cpu = if polls_without_end { SPARE_CPU } else { SERVER_CPU };
        queues.pinned_threads(&[cpu]).map_err(|error| error.to_string())?;
        let asked = mode.epoll().unwrap_or_default();
        let epoll: Result<Vec<_>, ServerError> = self.workers.iter().map(|worker| worker.set(asked)).collect();
        Ok(SettingsReadBack { napi, epoll: epoll.map_err(|error| error.to_string())? })
    }
}

fn is_base(mode: &DeliveryMode) -> bool {
    mode.napi() == NapiSettings::default() && mode.epoll().unwrap_or_default() == EpollSettings::default()
}

/// The counters at one moment; what could not be read is absent.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    rx_interrupts: Option<u64>,
    net_rx_softirqs: Option<u64>,
    timer_interrupts: Option<u64>,
}

/// Reads the counters when the measured time begins and when it ends.
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
