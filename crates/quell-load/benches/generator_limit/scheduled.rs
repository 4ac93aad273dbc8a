//! Works in the same order as the generator of the published experiments. Each connection has one outstanding request
//! and its own schedule. The event loop never sleeps, and a callback reads the clock for every event. The original also
//! copies through buffers and an event library; this imitation does not, so it is faster.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quell_linux::clock::monotonic_ns;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::tcp::TcpConnection;
use quell_load::Distribution;
use quell_stats::LatencyHistogram;
use rand_core::Rng;
use rand_pcg::Pcg64;

const GAPS: Distribution = Distribution::FACEBOOK_GAPS;

/// How late the sends were, and the number of answers.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) qps: f64,
    pub(crate) lateness: LatencyHistogram,
}

struct Connection {
    socket: TcpConnection,
    due_ns: u64,
    freed_ns: u64,
    sent_ns: Option<u64>,
}

struct EventLoop<'a> {
    epoll: Epoll,
    connections: Vec<Connection>,
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    request: &'a [u8],
    random: Pcg64,
    /// Mean gap between the requests of one connection, ns. 0 sends the next request with each answer.
    mean_gap_ns: f64,
    /// Factor that scales a drawn gap.
    ns_per_unit: f64,
    window_start_ns: u64,
    latency: LatencyHistogram,
    lateness: LatencyHistogram,
}

/// Sends requests at `rate_per_s`, or continuously if it is `None`.
pub(crate) fn load(
    address: SocketAddr,
    connections: usize,
    request: &[u8],
    rate_per_s: Option<f64>,
    warm_up: Duration,
    duration: Duration,
) -> io::Result<Outcome> {
    let mean_gap_ns = rate_per_s.map_or(0.0, |rate| 1e9 * connections as f64 / rate);
    let mean_draw = GAPS.mean().ok_or_else(|| io::Error::other("the gaps have no mean"))?;
    let start_ns = monotonic_ns();
    let window_start_ns = start_ns + warm_up.as_nanos() as u64;
    let mut events = EventLoop {
        epoll: Epoll::new(connections)?,
        connections: Vec::new(),
        timers: BinaryHeap::new(),
        request,
        random: Pcg64::new(1, 1),
        mean_gap_ns,
        ns_per_unit: mean_gap_ns / mean_draw,
        window_start_ns,
        latency: LatencyHistogram::new(),
        lateness: LatencyHistogram::new(),
    };
    for index in 0..connections {
        let socket = TcpConnection::connect(address, Duration::from_secs(5))?;
        events.epoll.add(&socket, index as u64, Trigger::Level)?;
        let due_ns = start_ns + (mean_gap_ns * index as f64 / connections as f64) as u64;
        events.connections.push(Connection { socket, due_ns, freed_ns: start_ns, sent_ns: None });
    }
    for index in 0..connections {
        events.send_or_wait(index)?;
    }
    events.go_until(window_start_ns + duration.as_nanos() as u64)?;
    let qps = events.latency.count() as f64 / duration.as_secs_f64();
    Ok(Outcome { qps, lateness: events.lateness })
}

impl EventLoop<'_> {
    fn go_until(&mut self, end_ns: u64) -> io::Result<()> {
        let mut buffer = vec![0; 65536];
        while monotonic_ns() < end_ns {
            let spins = self.mean_gap_ns > 0.0;
            self.epoll.wait(spins.then_some(Duration::ZERO))?;
            for at in 0..self.epoll.len() {
                let Some(ready) = self.epoll.get(at) else { break };
                self.readable(ready.token as usize, &mut buffer)?;
            }
            let now_ns = monotonic_ns();
            while let Some(&Reverse((due_ns, index))) = self.timers.peek()
                && due_ns <= now_ns
            {
                self.timers.pop();
                self.send_or_wait(index)?;
            }
        }
        Ok(())
    }

    fn readable(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let length = connection.socket.receive(buffer)?;
        if length != self.request.len() {
            return Err(io::Error::other(format!("an answer of {length} bytes")));
        }
        let now_ns = monotonic_ns();
        connection.freed_ns = now_ns;
        if let Some(sent_ns) = connection.sent_ns.take()
            && now_ns >= self.window_start_ns
        {
            self.latency.record(now_ns - sent_ns);
        }
        self.send_or_wait(index)
    }

    fn send_or_wait(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let now_ns = monotonic_ns();
        if now_ns < connection.due_ns {
            self.timers.push(Reverse((connection.due_ns, index)));
            return Ok(());
        }
        if connection.due_ns >= self.window_start_ns && self.mean_gap_ns > 0.0 {
            self.lateness.record(now_ns - connection.due_ns.max(connection.freed_ns));
        }
        connection.socket.send(self.request)?;
        connection.sent_ns = Some(now_ns);
        let unit = ((self.random.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        connection.due_ns += (GAPS.quantile(unit) * self.ns_per_unit) as u64;
        Ok(())
    }
}
