//! Published experiment (c): threaded NAPI busy polling of 2025. `xsk_rr` on two hosts, a client
//! that sends at a fixed rate and works for a while on each reply, a server that replies at once;
//! four mechanisms that poll the queues of both. Both hosts are simulated, all their CPUs included.

use std::fmt;

use quell_mode::{NapiSettings, Threaded};
use serde::{Deserialize, Serialize};

use super::experiment::{Cell, Compared, ErrorKind, ExperimentError, Summary};
use super::irq_suspension::{PublishedError, rows};
use crate::engine::Ns;
use crate::host::{Costs, HostProfile};
use crate::mechanism::{RxQueue, Socket};
use crate::run::RunError;
use crate::sweep::in_parallel;
use crate::world::{
    Answer, Class, Client, KernelRules, Kicker, Peer, PollLoop, PollPhase, Program, SendPhase, Sender, Stage, Traffic,
    TrafficKind, World, WorldShape,
};

const TABLE: &str = "threaded-napi-busy-poll.csv";
/// `napi_defer_hard_irqs` of the published script, where it is on.
const DEFER_HARD_IRQS: u32 = 100;
/// `gro_flush_timeout` of the published script, in ns.
const GRO_FLUSH_TIMEOUT_NS: Ns = 15_000;
/// `chrt -f 50`.
const PRIORITY: u8 = 50;
/// The greatest that the error of a difference from the threaded mechanism is to be, in µs.
const DIFFERENCE_BOUND_US: f64 = 1.0;

/// Who polls the queue of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollMechanism {
    /// Interrupts; the application's calls poll once as well, since `SO_BUSY_POLL` is set.
    Interrupts,
    /// The application's calls, interrupts deferred.
    Inline,
    /// A thread of its own on a CPU of its own that calls `recvfrom` again and again.
    Separate,
    /// The NAPI thread, `threaded` 2.
    Threaded,
}

impl PollMechanism {
    /// All of them, in the order of the published table.
    pub const ALL: [Self; 4] = [Self::Interrupts, Self::Inline, Self::Separate, Self::Threaded];

    fn napi(self) -> NapiSettings {
        let deferral = NapiSettings {
            defer_hard_irqs: DEFER_HARD_IRQS,
            gro_flush_timeout_ns: GRO_FLUSH_TIMEOUT_NS,
            ..NapiSettings::default()
        };
        match self {
            Self::Interrupts => NapiSettings { defer_hard_irqs: 0, ..deferral },
            Self::Inline | Self::Separate => deferral,
            Self::Threaded => NapiSettings { threaded: Threaded::BusyPoll, ..deferral },
        }
    }
}

impl fmt::Display for PollMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Interrupts => "interrupts",
            Self::Inline => "inline",
            Self::Separate => "separate",
            Self::Threaded => "threaded",
        })
    }
}

/// A published cell: one mechanism in one experiment.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub struct ThreadedNapiRow {
    /// Number of the experiment, from 1.
    pub experiment: u32,
    /// Packets a second, in thousands.
    pub rate_kpps: f64,
    /// What the client does with each reply, in µs.
    pub delay_us: f64,
    /// Who polls.
    pub mechanism: PollMechanism,
    /// 5th percentile of the latency, in ns.
    pub p5_ns: f64,
    /// Median latency, in ns.
    pub p50_ns: f64,
    /// 95th percentile of the latency, in ns.
    pub p95_ns: f64,
    /// 99th percentile of the latency, in ns.
    pub p99_ns: f64,
}

impl fmt::Display for ThreadedNapiRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate_kpps, delay_us, mechanism, .. } = self;
        write!(f, "{rate_kpps} Kpkt/s, {delay_us} us delay, {mechanism}")
    }
}

/// Quantiles of the latency in ns: 5 %, 50 %, 95 %, 99 %.
pub type LatencyQuantiles = [f64; 4];
/// The median among them.
const MEDIAN: usize = 1;

/// A cell, published and modelled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ThreadedNapiCell {
    /// As published.
    pub row: ThreadedNapiRow,
    /// As modelled.
    pub modelled: LatencyQuantiles,
}

/// Reads the published rows.
///
/// # Errors
///
/// What is wrong with the data, and where.
pub fn threaded_napi_rows() -> Result<Vec<ThreadedNapiRow>, PublishedError> {
    rows(TABLE, include_str!("../../data/published/threaded-napi-busy-poll.csv"))
}

/// Simulates every row, on up to `threads` threads. `progress` hears how many are done.
///
/// # Errors
///
/// A run that is not possible.
pub fn threaded_napi(
    rows: &[ThreadedNapiRow],
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<ThreadedNapiCell>, RunError> {
    let cell = |index: usize| Ok(ThreadedNapiCell { row: rows[index], modelled: latency(&rows[index], host)? });
    in_parallel(rows.len(), threads, cell, progress).into_iter().collect()
}

/// One experiment of the table: its four mechanisms.
struct Group<'a>(&'a [ThreadedNapiCell]);

impl Group<'_> {
    fn of(&self, mechanism: PollMechanism) -> Option<&ThreadedNapiCell> {
        self.0.iter().find(|cell| cell.row.mechanism == mechanism)
    }

    /// Median latency above the threaded mechanism's, in µs: published and modelled.
    fn above_threaded_us(&self, cell: &ThreadedNapiCell) -> Option<(f64, f64)> {
        let threaded = self.of(PollMechanism::Threaded)?;
        let published = (cell.row.p50_ns - threaded.row.p50_ns) / 1e3;
        Some((published, (cell.modelled[MEDIAN] - threaded.modelled[MEDIAN]) / 1e3))
    }

    fn order(&self, latency_ns: impl Fn(&ThreadedNapiCell) -> f64) -> Vec<PollMechanism> {
        let mut cells: Vec<_> = self.0.iter().collect();
        cells.sort_by(|one, other| latency_ns(one).total_cmp(&latency_ns(other)));
        cells.into_iter().map(|cell| cell.row.mechanism).collect()
    }

    /// Whether the mechanisms rank by their median latency as they were published.
    fn in_order(&self) -> bool {
        self.order(|cell| cell.row.p50_ns) == self.order(|cell| cell.modelled[MEDIAN])
    }

    fn cells(&self) -> Vec<Cell> {
        let difference = |cell: &ThreadedNapiCell| {
            let (published, modelled) = self.above_threaded_us(cell)?;
            Some(Cell {
                row: cell.row.to_string(),
                column: "p50 above threaded, us".to_owned(),
                published,
                modelled,
                error_kind: ErrorKind::Difference,
                error: modelled - published,
                scored: cell.row.mechanism != PollMechanism::Threaded,
                bound: Some(DIFFERENCE_BOUND_US),
            })
        };
        let latency = |cell: &ThreadedNapiCell| {
            let ThreadedNapiRow { p5_ns, p50_ns, p95_ns, p99_ns, .. } = cell.row;
            let columns = ["p5 ns", "p50 ns", "p95 ns", "p99 ns"].into_iter().zip([p5_ns, p50_ns, p95_ns, p99_ns]);
            let cells = columns.zip(cell.modelled).map(|((column, published), modelled)| Cell {
                scored: false,
                ..Cell::relative(cell.row.to_string(), column, published, modelled)
            });
            cells.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(|cell| difference(cell).into_iter().chain(latency(cell))).collect()
    }
}

/// The whole experiment, for [`Experiment::C`](super::Experiment::C).
pub(super) fn compare(
    host: &HostProfile,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Compared, ExperimentError> {
    let rows = threaded_napi_rows()?;
    let compared = threaded_napi(&rows, host, threads, |done| progress(done, rows.len()))?;
    let groups: Vec<_> =
        compared.chunk_by(|one, other| one.row.experiment == other.row.experiment).map(Group).collect();
    let cells: Vec<_> = groups.iter().flat_map(Group::cells).collect();
    let errors = cells.iter().filter(|cell| cell.scored).map(|cell| cell.error.abs());
    let greatest = errors.fold(0.0, f64::max);
    let out_of_order = groups.iter().filter(|group| !group.in_order()).count();
    let summary = vec![
        Summary::of_differences("difference from threaded: greatest error, us", greatest, Some(DIFFERENCE_BOUND_US)),
        Summary::of_differences("experiments in which the mechanisms rank otherwise", out_of_order as f64, Some(0.0)),
    ];
    Ok((cells, summary, Vec::new()))
}

/// One of the two hosts.
#[derive(Clone, Copy)]
struct Side {
    queue: u16,
    first_cpu: usize,
}

const CLIENT: Side = Side { queue: 0, first_cpu: 0 };
const SERVER: Side = Side { queue: 1, first_cpu: 4 };
const CPUS: usize = 8;

impl Side {
    fn peer(self) -> Peer {
        Peer { queue: self.queue, socket: self.queue.into() }
    }

    /// The queue with its interrupt or NAPI thread on the first CPU, the application's loop on the
    /// second, the thread that only polls, if there is one, on the last.
    fn add(self, world: &mut World, host: &HostProfile, mechanism: PollMechanism, program: PollLoop) {
        let queue = usize::from(self.queue);
        let mut rx = RxQueue::new(mechanism.napi(), &host.coalescing, host.ring_size, self.first_cpu);
        if mechanism == PollMechanism::Threaded {
            rx.thread = Some(self.start(world, Program::NapiThread { queue }, Stage::NapiThread, 0));
        }
        world.queues.push(rx);
        let reader = self.start(world, Program::PollLoop(program), Stage::Program, 1);
        if mechanism == PollMechanism::Separate {
            let kicker = Kicker { socket: program.socket, entered: false };
            self.start(world, Program::Kicker(kicker), Stage::Program, 3);
        }
        let (napi, reader) = (Some(queue), Some(reader));
        world.sockets.push(Socket { napi, reader, prefer_busy_poll: true, ..Socket::default() });
    }

    fn start(self, world: &mut World, program: Program, stage: Stage, cpu: usize) -> usize {
        let thread = world.add_thread(program, stage, self.first_cpu + cpu, Class::RealTime(PRIORITY));
        world.start_thread(thread);
        thread
    }
}

fn world(row: &ThreadedNapiRow, host: &HostProfile) -> World {
    let wire_ns = (host.constants.network_ns / 2.0) as Ns;
    let client = Client { one_way_ns: wire_ns, back_ns: wire_ns, ..Client::NONE };
    let traffic = Traffic::new(TrafficKind::Silent, client, Vec::new(), 1);
    let shape = WorldShape { queues: 2, epolls: 0, cpus: CPUS, bound: 1024 };
    let mut world = World::new(KernelRules::default(), Costs::new(host), shape, traffic);
    let kicks = matches!(row.mechanism, PollMechanism::Interrupts | PollMechanism::Inline);
    let program = |side: Side, delay_ns, answer| PollLoop {
        socket: side.queue.into(),
        kicks,
        delay_ns,
        answer,
        phase: PollPhase::Look,
    };
    let delay_ns = (row.delay_us * 1e3) as Ns;
    CLIENT.add(&mut world, host, row.mechanism, program(CLIENT, delay_ns, Answer::Nobody));
    SERVER.add(&mut world, host, row.mechanism, program(SERVER, 0, Answer::Peer(CLIENT.peer())));
    let period_ns = 1e6 / row.rate_kpps;
    let sender =
        Sender { socket: CLIENT.queue.into(), peer: SERVER.peer(), period_ns, sent: 0, phase: SendPhase::Wait };
    CLIENT.start(&mut world, Program::Sender(sender), Stage::Program, 2);
    world
}

fn latency(row: &ThreadedNapiRow, host: &HostProfile) -> Result<LatencyQuantiles, RunError> {
    const BOUND: usize = 1024;
    const WARM_UP_NS: Ns = 5_000_000;
    const MEASURED_NS: Ns = 25_000_000;
    let mut world = world(row, host);
    world.begin();
    world.run_until(WARM_UP_NS);
    world.open_books();
    world.run_until(WARM_UP_NS + MEASURED_NS);
    world.close_books(WARM_UP_NS);
    if world.events.overflowed() {
        return Err(RunError::TooManyEvents { bound: BOUND });
    }
    let quantile = |share| world.traffic.latency.quantile(share).map_or(f64::NAN, |latency| latency.as_nanos() as f64);
    Ok([0.05, 0.5, 0.95, 0.99].map(quantile))
}
