//! Configuration of the generator: target, workload and schedule. It is checked before anything is opened.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::error::LoadError;
use crate::key_table::digits;
use quell_linux::visible::counted;

/// Configuration of the generator. It stays constant while connections exist.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoadSpec {
    /// Server addresses. Connections are distributed evenly.
    pub addresses: Vec<SocketAddr>,
    pub transport: Transport,
    /// Requests and expected answers.
    pub workload: Workload,
    /// Total number of connections, at least one per thread.
    pub connections: u32,
    /// Maximum number of outstanding requests per connection, 1 to [`LoadSpec::DEPTH_MAX`]. The default is 1, as in the
    /// published generator. UDP allows only 1, because answers to several datagrams could not be distinguished.
    pub depth: u32,
    /// Number of generator threads. Connections and the rate are divided among them.
    pub threads: u32,
    /// CPUs to pin the threads to, in thread order. If there are fewer CPUs than threads, the list repeats. Empty:
    /// threads inherit the caller's affinity.
    pub cpus: Vec<u32>,
    /// How the threads look for answers.
    pub polling: Polling,
    /// Closed loop: whether a thread reads the responses of all ready connections before it sends again. The server
    /// then receives batches that independent clients do not send. `false` sends the next request of a connection as
    /// soon as its response arrives. An open loop ignores this field.
    pub batched_sends: bool,
    /// Random seed. The same seed gives the same keys, values and gaps.
    pub seed: u64,
    /// Number of this generator's first thread among the threads of all generators that share a load. Threads with
    /// different numbers draw different requests and gaps from the same seed. 0 for a single generator.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_thread: u32,
    /// Timeout for opening a connection, ms, at least 1.
    pub connect_timeout_ms: u32,
    /// Timeout for an answer, ms, at least 1.
    pub response_timeout_ms: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by serde")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// A stream, `TCP_NODELAY` set.
    Tcp,
    /// Datagrams, one per request and one per answer. A lost datagram times out.
    Udp,
}

/// Requests and expected answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// memcached's text protocol, over TCP.
    Memcached(KeyValues),
    /// Redis's protocol, RESP2, over TCP.
    Redis(KeyValues),
    /// HTTP/1.1 over TCP, with persistent connections.
    Http(HttpGet),
    /// Requests and responses of fixed size, like those of netperf's TCP_RR and UDP_RR and neper's `tcp_rr`.
    RequestResponse(RequestResponse),
}

/// Requests to read and store values, with uniformly drawn keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KeyValues {
    /// Number of keys, 1 to [`KeyValues::KEYS_MAX`].
    pub keys: u32,
    /// Sizes of keys, bytes. The minimum is the number of digits needed to keep keys distinct; the maximum is
    /// [`KeyValues::KEY_BYTES_MAX`].
    pub key_bytes: Distribution,
    /// Sizes of values, bytes, from 1 to [`KeyValues::VALUE_BYTES_MAX`].
    pub value_bytes: Distribution,
    /// Share of reads among all requests, 0 to 1.
    pub get_share: f64,
}

/// `GET` requests for one path. Status codes from 200 to 299 are right answers, others errors of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct HttpGet {
    /// Request target, such as `/index.html`: visible ASCII characters, the first one a slash.
    pub path: String,
}

/// Requests and responses of fixed sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RequestResponse {
    /// Size of a request, bytes, 1 to [`RequestResponse::BYTES_MAX`].
    pub request_bytes: u32,
    /// Size of a response, bytes, 1 to [`RequestResponse::BYTES_MAX`].
    pub response_bytes: u32,
    /// Whether the response must have the content that [`crate::Responder`] sends. For other servers only the length is
    /// checked.
    pub check_content: bool,
}

/// How a generator thread finds connections with an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Polling {
    /// [`Polling::BusyPoll`] if the connections' NAPIs have deferral set, the thread has at most 128 connections, and
    /// the kernel permits it. Otherwise [`Polling::Epoll`]. Deferral shows that busy polling is intended.
    #[default]
    Auto,
    /// Edge-triggered `epoll_wait`. It sleeps in a closed loop and never sleeps in an open loop.
    Epoll,
    /// No epoll: non-blocking receives with `SO_BUSY_POLL` and `SO_PREFER_BUSY_POLL`, on the longest-waiting connection
    /// first. A receive that finds nothing polls the device from the generator's thread. Needs CAP_NET_ADMIN. It is
    /// useful only with deferral on the client's NAPIs, which keeps interrupts and NAPI threads from interfering.
    BusyPoll,
}

impl Polling {
    /// Maximum number of connections per thread for which [`Polling::Auto`] busy polls. With more, polling every
    /// connection takes too long.
    pub const CONNECTIONS_MAX: u32 = 128;
}

impl LoadSpec {
    pub const DEPTH_MAX: u32 = 1024;
    /// Maximum number of connections, limited by the ports available to one address.
    pub const CONNECTIONS_MAX: u32 = 60_000;
    pub const THREADS_MAX: u32 = 1024;

    /// One thread, 64 connections of depth 1, no batches, seed 1, timeouts of 5 s for connecting and 2 s for answers.
    #[must_use]
    pub fn new(address: SocketAddr, transport: Transport, workload: Workload) -> Self {
        Self {
            addresses: vec![address],
            transport,
            workload,
            connections: 64,
            depth: 1,
            threads: 1,
            cpus: Vec::new(),
            polling: Polling::Auto,
            batched_sends: false,
            seed: 1,
            first_thread: 0,
            connect_timeout_ms: 5_000,
            response_timeout_ms: 2_000,
        }
    }

    /// Part of this load for generator `index` of `count` generators with [`LoadSpec::threads`] each. Connections are
    /// distributed evenly. All parts together draw the same requests as one generator with all threads. Errors:
    /// [`LoadError::Spec`] if a generator would have fewer connections than threads.
    pub fn share(&self, index: u32, count: u32) -> Result<Self, LoadError> {
        let least = u64::from(count) * u64::from(self.threads);
        if u64::from(self.connections) < least {
            let Self { connections, threads, .. } = self;
            let (generators, threads) = (counted(count, "generator"), counted(*threads, "thread"));
            let problem = format!("{connections} is too few for {generators} with {threads} each");
            return Err(LoadError::spec("connections", format!("{problem}; use at least {least}")));
        }
        let connections = self.connections / count + u32::from(index < self.connections % count);
        Ok(Self { connections, first_thread: index * self.threads, ..self.clone() })
    }

    pub fn check(&self) -> Result<(), LoadError> {
        if self.addresses.is_empty() {
            return Err(LoadError::spec("addresses", "empty list"));
        }
        within("threads", self.threads, 1, Self::THREADS_MAX)?;
        within("connections", self.connections, self.threads, Self::CONNECTIONS_MAX)?;
        within("depth", self.depth, 1, if self.transport == Transport::Udp { 1 } else { Self::DEPTH_MAX })?;
        within("connect_timeout_ms", self.connect_timeout_ms, 1, u32::MAX)?;
        within("response_timeout_ms", self.response_timeout_ms, 1, u32::MAX)?;
        match &self.workload {
            Workload::RequestResponse(sizes) => sizes.check(self.transport),
            _ if self.transport == Transport::Udp => {
                Err(LoadError::spec("transport", "only requests and responses of fixed size are possible over UDP"))
            }
            Workload::Memcached(keys) | Workload::Redis(keys) => keys.check(),
            Workload::Http(get) => get.check(),
        }
    }
}

impl KeyValues {
    /// Longest key, bytes: the limit of memcached's protocol.
    pub const KEY_BYTES_MAX: u32 = 250;
    /// Longest value, bytes. With key and item header it fits into memcached's default item limit of 1 MiB.
    pub const VALUE_BYTES_MAX: u32 = 1_000_000;
    /// Maximum number of keys. It limits the generator's memory to 280 bytes per key.
    pub const KEYS_MAX: u32 = 10_000_000;

    /// The published experiment: 10,000 keys, the Facebook sizes, reads only.
    #[must_use]
    pub fn facebook() -> Self {
        Self {
            keys: 10_000,
            key_bytes: Distribution::FACEBOOK_KEYS,
            value_bytes: Distribution::FACEBOOK_VALUES,
            get_share: 1.0,
        }
    }

    /// Shortest key for which all numbers from 0 to `keys` − 1 have the same number of digits, bytes.
    #[must_use]
    pub fn key_bytes_min(&self) -> u32 {
        digits(self.keys.saturating_sub(1))
    }

    fn check(&self) -> Result<(), LoadError> {
        within("keys", self.keys, 1, Self::KEYS_MAX)?;
        if !(0.0..=1.0).contains(&self.get_share) {
            return Err(LoadError::spec("get_share", format!("{} is not between 0 and 1", self.get_share)));
        }
        Ok(())
    }
}

impl HttpGet {
    pub const PATH_BYTES_MAX: usize = 2_048;

    fn check(&self) -> Result<(), LoadError> {
        let is_visible = self.path.bytes().all(|byte| byte.is_ascii_graphic());
        if self.path.starts_with('/') && is_visible && self.path.len() <= Self::PATH_BYTES_MAX {
            return Ok(());
        }
        let problem = "is not a slash followed by visible ASCII characters, at most 2,048 in all";
        Err(LoadError::spec("path", format!("{:?} {problem}", self.path)))
    }
}

impl RequestResponse {
    pub const BYTES_MAX: u32 = 1 << 20;
    pub const DATAGRAM_BYTES_MAX: u32 = 65_507;

    pub(crate) fn check(&self, transport: Transport) -> Result<(), LoadError> {
        let max = if transport == Transport::Udp { Self::DATAGRAM_BYTES_MAX } else { Self::BYTES_MAX };
        within("request_bytes", self.request_bytes, 1, max)?;
        within("response_bytes", self.response_bytes, 1, max)
    }
}

/// One run over a generator's connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RunSpec {
    /// When requests are sent.
    pub schedule: Schedule,
    /// Warm-up time before the measured window, ms.
    pub warm_up_ms: u32,
    /// Measured time, ms, at least 1.
    pub measure_ms: u32,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Schedule {
    /// Sends at times that do not depend on answers. If every connection has `depth` outstanding requests, a request
    /// waits. Its latency counts from its due time.
    Open {
        /// Total rate over all threads, requests per second, above 0 and at most [`Schedule::RATE_MAX`].
        rate_per_s: f64,
        /// Distribution of the gaps. Its mean is scaled to the rate of each thread.
        gaps: Distribution,
    },
    /// Each connection keeps `depth` requests outstanding. A request is due when the previous response has arrived or,
    /// with [`LoadSpec::batched_sends`], when it is sent.
    Closed,
}

impl Schedule {
    /// Maximum rate, requests per second.
    pub const RATE_MAX: f64 = 1e9;

    /// The same schedule with `share` of the rate, above 0 and at most 1. A closed loop has no rate and is unchanged.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        match self {
            Self::Open { rate_per_s, gaps } => Self::Open { rate_per_s: rate_per_s * share, gaps },
            Self::Closed => Self::Closed,
        }
    }

    pub fn check(&self) -> Result<(), LoadError> {
        let Self::Open { rate_per_s, gaps } = self else { return Ok(()) };
        if !(*rate_per_s > 0.0 && *rate_per_s <= Self::RATE_MAX) {
            return Err(LoadError::spec("rate_per_s", format!("{rate_per_s} is not above 0 and at most 10⁹")));
        }
        match gaps.mean() {
            Some(mean) if mean > 0.0 => Ok(()),
            _ => Err(LoadError::spec("gaps", format!("{gaps} has no finite mean above 0, so it cannot be scaled"))),
        }
    }
}

impl RunSpec {
    pub fn check(&self) -> Result<(), LoadError> {
        within("measure_ms", self.measure_ms, 1, u32::MAX)?;
        self.schedule.check()
    }
}

fn within(field: &'static str, value: u32, low: u32, high: u32) -> Result<(), LoadError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(LoadError::spec(field, format!("{value} is not between {low} and {high}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> LoadSpec {
        let sizes = RequestResponse { request_bytes: 64, response_bytes: 64, check_content: false };
        LoadSpec::new(([127, 0, 0, 1], 1).into(), Transport::Tcp, Workload::RequestResponse(sizes))
    }

    fn refusal(change: impl FnOnce(&mut LoadSpec)) -> String {
        let mut spec = sound();
        change(&mut spec);
        spec.check().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        sound().check().unwrap();
    }

    #[test]
    fn an_invalid_field_is_reported_with_its_bounds() {
        assert_eq!(refusal(|s| s.threads = 0), "load: threads: 0 is not between 1 and 1024");
        assert_eq!(refusal(|s| s.threads = 65), "load: connections: 64 is not between 65 and 60000");
        assert_eq!(refusal(|s| s.addresses.clear()), "load: addresses: empty list");
        assert_eq!(
            refusal(|s| s.workload = Workload::Memcached(KeyValues { keys: 0, ..KeyValues::facebook() })),
            "load: keys: 0 is not between 1 and 10000000"
        );
    }

    #[test]
    fn shares_have_all_connections_and_threads_with_consecutive_numbers() {
        let whole = LoadSpec { connections: 11, threads: 2, ..sound() };
        let shares: Vec<LoadSpec> = (0..4).map(|index| whole.share(index, 4).unwrap()).collect();
        assert_eq!(shares.iter().map(|share| share.connections).collect::<Vec<_>>(), [3, 3, 3, 2]);
        assert_eq!(shares.iter().map(|share| share.first_thread).collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert_eq!(
            whole.share(0, 6).unwrap_err().to_string(),
            "load: connections: 11 is too few for 6 generators with 2 threads each; use at least 12"
        );
    }

    #[test]
    fn udp_allows_neither_depth_nor_memcached() {
        assert!(refusal(|s| (s.transport, s.depth) = (Transport::Udp, 2)).starts_with("load: depth: "));
        assert!(
            refusal(|s| {
                s.transport = Transport::Udp;
                s.workload = Workload::Memcached(KeyValues::facebook());
            })
            .starts_with("load: transport: ")
        );
    }

    #[test]
    fn gaps_without_a_mean_cannot_be_scaled_to_a_rate() {
        for gaps in ["gpd:0,1,1", "fixed:0"] {
            let schedule = Schedule::Open { rate_per_s: 1.0, gaps: gaps.parse().unwrap() };
            assert!(schedule.check().unwrap_err().to_string().starts_with("load: gaps: "));
        }
    }

    #[test]
    fn an_invalid_rate_is_refused() {
        for rate_per_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let schedule = Schedule::Open { rate_per_s, gaps: Distribution::POISSON_GAPS };
            assert!(schedule.check().is_err(), "{rate_per_s}");
        }
    }

    #[test]
    fn a_specification_survives_json() {
        let spec = LoadSpec { workload: Workload::Memcached(KeyValues::facebook()), ..sound() };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<LoadSpec>(&json).unwrap(), spec);
    }
}
