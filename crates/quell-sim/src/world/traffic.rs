//! Clients: the times at which they send requests, and the latency of the responses that they receive.

use serde::{Deserialize, Serialize};

use quell_stats::LatencyHistogram;

use super::{Event, World};
use crate::engine::{Ns, Purpose, RandomStream};
use crate::mechanism::{Packet, PacketKind};

/// `TCP_RTO_MIN`: time until a lost request is retransmitted.
const RETRANSMIT_NS: Ns = 200_000_000;

/// Number of independent delays of a response in a client: one for its interrupt and one for its thread.
const CLIENT_WAITS: usize = 2;

const GAPS_AHEAD: usize = 32;

/// Pattern of the times at which clients send requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficKind {
    /// Every connection has its own schedule and at most one request in flight. A request that becomes due earlier
    /// waits, and is sent as soon as the response arrives (mutilate).
    Scheduled {
        /// Number of requests per second over all connections.
        rate_qps: f64,
        /// Shape ξ of the generalized Pareto distribution of the gaps: below 1 and not 0.
        gap_shape: f64,
    },
    /// Closed loop: every connection sends its next request as soon as it receives the response.
    Closed,
    /// Closed loop with a client on a host like the server. The client takes as long to receive a response as the
    /// server took for the request, and measures until then.
    Mirrored,
    /// One request per entry. The entry is the time in ns at which the request reaches the NIC. Connections take turns.
    /// Clients neither acknowledge responses nor retransmit lost requests.
    Listed(Vec<Ns>),
}

impl TrafficKind {
    pub(crate) const NONE: Self = Self::Listed(Vec::new());

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Scheduled { rate_qps, .. } if !(rate_qps.is_finite() && *rate_qps > 0.0) => {
                Err("the request rate must be above 0")
            }
            Self::Scheduled { gap_shape, .. } if !(*gap_shape < 1.0 && *gap_shape != 0.0) => {
                Err("the shape of a generalized Pareto distribution must be below 1 and not 0")
            }
            _ => Ok(()),
        }
    }
}

/// Delays of the network and the client, in ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) one_way_ns: Ns,
    /// Number of segments before the last one of a request, and the time between segments.
    pub(crate) parts: u32,
    pub(crate) part_gap_ns: Ns,
    pub(crate) back_ns: Ns,
    pub(crate) jitter_ns: f64,
    pub(crate) tail_share: f64,
    pub(crate) tail_ns: f64,
    pub(crate) stall_share: f64,
    pub(crate) stall_ns: f64,
    /// Time from a response to the arrival of its acknowledgement. 0 means that there is no separate acknowledgement.
    pub(crate) ack_delay_ns: Ns,
}

impl Client {
    pub(crate) const NONE: Self = Self {
        one_way_ns: 0,
        parts: 0,
        part_gap_ns: 0,
        back_ns: 0,
        jitter_ns: 0.0,
        tail_share: 0.0,
        tail_ns: 0.0,
        stall_share: 0.0,
        stall_ns: 0.0,
        ack_delay_ns: 0,
    };
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    queue: u16,
    /// Time at which the connection is due to send next.
    due_ns: f64,
}

/// Gaps between requests, in ns. They are drawn in groups, because a CPU computes several independent powers at a time.
struct Gaps {
    drawn_ns: [f64; GAPS_AHEAD],
    used: usize,
}

pub(crate) struct Traffic {
    kind: TrafficKind,
    client: Client,
    connections: Vec<Connection>,
    arrivals: RandomStream,
    gaps: Gaps,
    delays: RandomStream,
    books_since_ns: Ns,
    pub(crate) latency: LatencyHistogram,
    pub(crate) latency_sum_ns: u128,
    /// Latency from the time at which the request was due.
    pub(crate) latency_from_due: LatencyHistogram,
    /// Number of requests that were due while their connection waited for a response.
    pub(crate) waited_for_connection: u64,
}

impl Traffic {
    pub(crate) fn new(kind: TrafficKind, client: Client, queue_of: Vec<u16>, seed: u64) -> Self {
        Self {
            kind,
            client,
            connections: queue_of.into_iter().map(|queue| Connection { queue, due_ns: 0.0 }).collect(),
            arrivals: RandomStream::new(seed, Purpose::Arrivals),
            gaps: Gaps { drawn_ns: [0.0; GAPS_AHEAD], used: GAPS_AHEAD },
            delays: RandomStream::new(seed, Purpose::Client),
            books_since_ns: 0,
            latency: LatencyHistogram::new(),
            latency_sum_ns: 0,
            latency_from_due: LatencyHistogram::new(),
            waited_for_connection: 0,
        }
    }

    /// Time from the sending of a packet to its arrival at the NIC.
    pub(crate) fn one_way_ns(&self) -> Ns {
        self.client.one_way_ns
    }

    /// Discards the latencies so far. Requests sent before `now_ns` are not counted.
    pub(crate) fn open_books(&mut self, now_ns: Ns) {
        self.books_since_ns = now_ns;
        self.latency.clear();
        self.latency_sum_ns = 0;
        self.latency_from_due.clear();
        self.waited_for_connection = 0;
    }

    /// Number of requests since the end of the warm-up that were due but not sent. This is the mean number that the
    /// rate makes due while a connection waits.
    pub(crate) fn never_sent(&self, now_ns: Ns) -> u64 {
        let TrafficKind::Scheduled { rate_qps, .. } = self.kind else { return 0 };
        let each_per_ns = rate_qps / self.connections.len() as f64 / 1e9;
        let since_ns = self.books_since_ns as f64;
        let behind = |of: &Connection| ((now_ns as f64 - of.due_ns.max(since_ns)) * each_per_ns).max(0.0) as u64;
        self.connections.iter().map(behind).sum()
    }

    fn gap_ns(&mut self, rate_qps: f64, shape: f64) -> f64 {
        let Gaps { drawn_ns, used } = &mut self.gaps;
        if *used == drawn_ns.len() {
            let scale_ns = 1e9 / rate_qps * (1.0 - shape);
            drawn_ns.fill_with(|| self.arrivals.generalised_pareto(scale_ns, shape));
            *used = 0;
        }
        *used += 1;
        drawn_ns[*used - 1]
    }

    /// Time from a random moment to the next request of a connection in steady state. It follows the equilibrium
    /// distribution of the gaps.
    fn first_gap_ns(&mut self, rate_qps: f64, shape: f64) -> f64 {
        self.arrivals.generalised_pareto(1e9 / rate_qps, shape / (1.0 - shape))
    }

    fn way_back_ns(&mut self) -> Ns {
        let client = self.client;
        let mut ns = self.delays.unit() * client.jitter_ns;
        for _ in 0..CLIENT_WAITS {
            if self.delays.unit() < client.tail_share {
                ns += self.delays.unit() * client.tail_ns;
            }
        }
        if client.stall_share > 0.0 && self.delays.unit() < client.stall_share {
            ns += client.stall_ns;
        }
        client.back_ns + ns as Ns
    }

    pub(crate) fn record(&mut self, sent_ns: Ns, received_ns: Ns) {
        if sent_ns >= self.books_since_ns {
            self.latency.record(received_ns - sent_ns);
            self.latency_sum_ns += u128::from(received_ns - sent_ns);
        }
    }

    fn record_from_due(&mut self, socket: u32, received_ns: Ns) {
        let due_ns = self.connections[socket as usize].due_ns as Ns;
        if due_ns >= self.books_since_ns {
            self.latency_from_due.record(received_ns.saturating_sub(due_ns));
        }
    }
}

impl World {
    /// Starts the traffic. Each connection starts at a different time.
    pub(crate) fn begin_traffic(&mut self) {
        let kind = std::mem::replace(&mut self.traffic.kind, TrafficKind::NONE);
        let connections = self.traffic.connections.len();
        match &kind {
            TrafficKind::Listed(moments_ns) => {
                for (index, &at_ns) in moments_ns.iter().enumerate() {
                    let socket = (index % connections) as u32;
                    let queue = self.traffic.connections[socket as usize].queue;
                    let packet = Packet { socket, kind: PacketKind::Request, sent_ns: at_ns };
                    self.events.schedule(at_ns, Event::arrival(queue, packet));
                }
            }
            TrafficKind::Scheduled { rate_qps, gap_shape } => {
                let each_qps = rate_qps / connections as f64;
                for connection in 0..connections {
                    let due_ns = self.traffic.first_gap_ns(each_qps, *gap_shape);
                    self.traffic.connections[connection].due_ns = due_ns;
                    self.send(connection as u32, due_ns as Ns);
                }
            }
            TrafficKind::Closed | TrafficKind::Mirrored => {
                for connection in 0..connections {
                    let at_ns = self.traffic.arrivals.below(4_000_000);
                    self.send(connection as u32, at_ns.into());
                }
            }
        }
        self.traffic.kind = kind;
    }

    fn send(&mut self, socket: u32, at_ns: Ns) {
        let queue = self.traffic.connections[socket as usize].queue;
        let Client { one_way_ns, parts, part_gap_ns, .. } = self.traffic.client;
        let arrives_ns = at_ns + one_way_ns;
        for part in 0..parts {
            let packet = Packet { socket, kind: PacketKind::Part, sent_ns: at_ns };
            self.events.schedule(arrives_ns + u64::from(part) * part_gap_ns, Event::arrival(queue, packet));
        }
        let packet = Packet { socket, kind: PacketKind::Request, sent_ns: at_ns };
        self.events.schedule(arrives_ns + u64::from(parts) * part_gap_ns, Event::arrival(queue, packet));
    }

    pub(crate) fn packet_lost(&mut self, queue: usize, packet: Packet) {
        if !matches!(self.traffic.kind, TrafficKind::Listed(_)) && packet.kind != PacketKind::Ack {
            let queue = queue as u16;
            self.events.schedule(self.now_ns + RETRANSMIT_NS, Event::arrival(queue, packet));
        }
    }

    /// Handles a response of the server: schedules its acknowledgement and the connection's next request, and records
    /// the latency.
    pub(crate) fn answered(&mut self, socket: u32, sent_ns: Ns) {
        let queue = self.traffic.connections[socket as usize].queue;
        let acknowledged = self.traffic.client.ack_delay_ns > 0;
        let listed = matches!(self.traffic.kind, TrafficKind::Listed(_));
        if !listed && acknowledged {
            let packet = Packet { socket, kind: PacketKind::Ack, sent_ns };
            let at_ns = self.now_ns + self.traffic.client.ack_delay_ns;
            self.events.schedule(at_ns, Event::arrival(queue, packet));
        }
        if !listed {
            let mut received_ns = self.now_ns + self.traffic.way_back_ns();
            if matches!(self.traffic.kind, TrafficKind::Mirrored) {
                received_ns += self.now_ns - sent_ns - self.traffic.client.one_way_ns;
            }
            self.traffic.record(sent_ns, received_ns);
            match self.traffic.kind {
                TrafficKind::Scheduled { rate_qps, gap_shape } => {
                    self.traffic.record_from_due(socket, received_ns);
                    let each_qps = rate_qps / self.traffic.connections.len() as f64;
                    let due_ns =
                        self.traffic.connections[socket as usize].due_ns + self.traffic.gap_ns(each_qps, gap_shape);
                    self.traffic.connections[socket as usize].due_ns = due_ns;
                    self.traffic.waited_for_connection += u64::from((due_ns as Ns) < received_ns);
                    self.send(socket, received_ns.max(due_ns as Ns));
                }
                TrafficKind::Closed | TrafficKind::Mirrored => self.send(socket, received_ns),
                TrafficKind::Listed(_) => {}
            }
        }
    }
}
