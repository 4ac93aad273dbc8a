//! The real client of each server: its command, and the figures that it prints. A figure that it does not print is absent.

use std::net::SocketAddr;
use std::time::Duration;

use quell_subject::experiment::judge;

use super::fixtures;

/// Connections of every client.
pub(crate) const CONNECTIONS: u32 = 64;
/// Number of keys that redis-benchmark requests.
const REDIS_KEYS: u32 = 10_000;

/// A client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// `quell load` with memcached's protocol.
    QuellLoadMemcached,
    /// `quell load` with requests and responses of 64 bytes.
    QuellLoadEcho,
    /// `redis-benchmark` with `GET` of random keys.
    RedisBenchmark,
    /// `wrk`.
    Wrk,
    /// `dnsperf`, over UDP.
    Dnsperf,
}

/// Kind and duration of the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Effort {
    /// A closed loop until every connection is known and every key is stored.
    WarmUp,
    /// One connection in a closed loop with at least a thousand requests.
    OneByOne,
    /// A closed loop: each connection sends its next request when its response arrives.
    Closed {
        /// Duration in seconds.
        seconds: f64,
        /// Expected requests per second, for clients whose duration is given by a number of requests.
        expected_per_s: f64,
    },
    /// Requests at times that do not depend on responses, if the client supports it.
    Open {
        /// Duration in seconds.
        seconds: f64,
        /// Requests per second.
        per_s: f64,
    },
}

/// Figures printed by a client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    /// Number of answered requests.
    pub(crate) answered: u64,
    /// Answered requests per second.
    pub(crate) per_s: f64,
    /// Median latency; absent if no request was answered.
    pub(crate) p50: Option<Duration>,
    /// Number of requests that were lost, refused or answered wrongly.
    pub(crate) failed: u64,
}

impl Client {
    /// Program to be installed; `None` for a program of this repository.
    pub(crate) fn program(self) -> Option<&'static str> {
        match self {
            Self::QuellLoadMemcached | Self::QuellLoadEcho => None,
            Self::RedisBenchmark => Some("redis-benchmark"),
            Self::Wrk => Some("wrk"),
            Self::Dnsperf => Some("dnsperf"),
        }
    }

    /// Whether the client can send at times that do not depend on responses.
    pub(crate) fn has_a_rate(self) -> bool {
        matches!(self, Self::QuellLoadMemcached | Self::QuellLoadEcho | Self::Dnsperf)
    }

    /// Whether the server has a connection for each of the client's sockets.
    pub(crate) fn connects(self) -> bool {
        self != Self::Dnsperf
    }

    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QuellLoadMemcached | Self::QuellLoadEcho => "quell load",
            Self::RedisBenchmark => "redis-benchmark",
            Self::Wrk => "wrk",
            Self::Dnsperf => "dnsperf",
        }
    }

    /// Command line of the client.
    pub(crate) fn command(self, server: SocketAddr, effort: Effort) -> Vec<String> {
        match self {
            Self::QuellLoadMemcached => quell_load(server, effort, "memcached"),
            Self::QuellLoadEcho => quell_load(server, effort, "request-response"),
            Self::RedisBenchmark => redis_benchmark(server, effort),
            Self::Wrk => wrk(server, effort),
            Self::Dnsperf => dnsperf(server, effort),
        }
    }

    /// Parses the output of the client after a run with `effort`. Without a number of requests, it fails if one of the
    /// requested ones is not answered.
    ///
    /// # Errors
    /// When the output does not have the format of this client.
    pub(crate) fn read(self, effort: Effort, printed: &str) -> Result<Found, String> {
        let figures =
            judge::parse(printed).map_err(|why| format!("{why} in the output of {}: {printed}", self.name()))?;
        let figure = |name: &str| figures.get(name).copied();
        let count = |name: &str| figure(name).map(|count| count as u64);
        Ok(Found {
            answered: count("requests").unwrap_or_else(|| redis_requests(effort)),
            per_s: figure("requests-per-s").ok_or_else(|| format!("no rate in the output of {}", self.name()))?,
            p50: figure("p50-us").map(|us| Duration::from_secs_f64(us / 1e6)),
            failed: count("errors").unwrap_or(0),
        })
    }
}

impl Effort {
    const WARM_UP_SECONDS: f64 = 2.0;

    fn connections(self) -> u32 {
        if self == Self::OneByOne { 1 } else { CONNECTIONS }
    }

    fn seconds(self) -> f64 {
        match self {
            Self::WarmUp | Self::OneByOne => Self::WARM_UP_SECONDS,
            Self::Closed { seconds, .. } | Self::Open { seconds, .. } => seconds,
        }
    }
}

fn quell_load(server: SocketAddr, effort: Effort, protocol: &str) -> Vec<String> {
    let rate = match effort {
        Effort::WarmUp | Effort::OneByOne | Effort::Closed { .. } => "max".to_owned(),
        Effort::Open { per_s, .. } => format!("{per_s:.0}"),
    };
    let mut words: Vec<String> =
        [env!("CARGO_BIN_EXE_quell"), "load", "--figures", "--warm-up=0"].map(str::to_owned).into();
    words.extend([
        format!("--protocol={protocol}"),
        format!("--rate={rate}"),
        format!("--connections={}", effort.connections()),
        format!("--seconds={}", effort.seconds()),
        // With busy polling it would differ from clients that cannot busy poll.
        "--polling=epoll".to_owned(),
    ]);
    if effort != Effort::WarmUp {
        words.push("--no-preload".to_owned());
    }
    words.push(server.to_string());
    words
}

fn redis_benchmark(server: SocketAddr, effort: Effort) -> Vec<String> {
    let test = if effort == Effort::WarmUp { "set" } else { "get" };
    let pairs = [
        ("-h", server.ip().to_string()),
        ("-p", server.port().to_string()),
        ("-c", effort.connections().to_string()),
        ("-n", redis_requests(effort).to_string()),
        ("-t", test.to_owned()),
        ("-r", REDIS_KEYS.to_string()),
        ("-d", "64".to_owned()),
    ];
    let options = pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
    ["redis-benchmark", "--csv"].map(str::to_owned).into_iter().chain(options).collect()
}

/// redis-benchmark takes a number of requests, not a duration.
fn redis_requests(effort: Effort) -> u64 {
    let requests = match effort {
        // Every key several times.
        Effort::WarmUp => f64::from(REDIS_KEYS) * 10.0,
        Effort::OneByOne => 2_000.0,
        Effort::Closed { seconds, expected_per_s } => seconds * expected_per_s,
        Effort::Open { seconds, per_s } => seconds * per_s,
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of requests")]
    let requests = requests as u64;
    requests
}

fn wrk(server: SocketAddr, effort: Effort) -> Vec<String> {
    // wrk only takes whole seconds.
    let seconds = effort.seconds().ceil();
    let words = ["wrk", "--latency", "-t1", &format!("-c{}", effort.connections()), &format!("-d{seconds}s")]
        .map(str::to_owned);
    words.into_iter().chain([format!("http://{server}/")]).collect()
}

fn dnsperf(server: SocketAddr, effort: Effort) -> Vec<String> {
    let (connections, seconds) = (effort.connections(), effort.seconds());
    let mut words = vec![
        "dnsperf".to_owned(),
        "-d".to_owned(),
        fixtures::source("dns-queries").display().to_string(),
        format!("-s{}", server.ip()),
        format!("-p{}", server.port()),
        format!("-c{connections}"),
        format!("-q{connections}"),
        format!("-l{seconds}"),
    ];
    if let Effort::Open { per_s, .. } = effort {
        words.push(format!("-Q{per_s:.0}"));
    }
    words
}
