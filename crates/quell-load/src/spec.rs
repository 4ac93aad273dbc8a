//! What to load a server with and how: the generator's whole configuration, checked before anything
//! is opened.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::error::LoadError;
use crate::key_table::digits;

/// The generator's configuration; it does not change while connections live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoadSpec {
    /// The servers; connections are spread over them evenly.
    pub addresses: Vec<SocketAddr>,
    /// TCP or UDP.
    pub transport: Transport,
    /// What is asked and answered.
    pub workload: Workload,
    /// All connections together, at least one a thread.
    pub connections: u32,
    /// How many requests of one connection may be under way at once, 1 to [`LoadSpec::DEPTH_MAX`].
    /// 1 is the published generator's way and the default. UDP allows only 1, because answers to
    /// several datagrams could not be told apart.
    pub depth: u32,
    /// Generator threads, each with its share of connections and of the rate.
    pub threads: u32,
    /// The CPUs to pin the threads to, thread by thread, starting over when there are fewer CPUs
    /// than threads; empty leaves them where the caller's thread may run.
    pub cpus: Vec<u32>,
    /// How the threads look for answers.
    pub polling: Polling,
    /// The seed of everything that is drawn; the same seed gives the same keys, values and gaps.
    pub seed: u64,
    /// How long one connection may take to be made, ms, at least 1.
    pub connect_timeout_ms: u32,
    /// How long an answer may take before it counts as timed out, ms, at least 1.
    pub response_timeout_ms: u32,
}

/// The transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// A stream, `TCP_NODELAY` set.
    Tcp,
    /// Datagrams, one a request and one an answer. A lost one times out.
    Udp,
}

/// What is asked and answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// The memcached text protocol, over TCP.
    Memcached(Memcached),
    /// So many bytes there, so many bytes back: what netperf's TCP_RR and UDP_RR and neper's
    /// `tcp_rr` do once they run.
    RequestResponse(RequestResponse),
}

/// `get` and `set` of keys that are drawn uniformly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Memcached {
    /// How many keys there are, 1 to [`Memcached::KEYS_MAX`].
    pub keys: u32,
    /// Sizes of keys, bytes. Clamped to what the numbering of the keys needs (so that they differ)
    /// and [`Memcached::KEY_BYTES_MAX`].
    pub key_bytes: Distribution,
    /// Sizes of values, bytes, clamped to 1 and [`Memcached::VALUE_BYTES_MAX`].
    pub value_bytes: Distribution,
    /// The share of `get` among all requests, 0 to 1.
    pub get_share: f64,
}

/// Requests and responses of fixed sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RequestResponse {
    /// Bytes of a request, 1 to [`RequestResponse::BYTES_MAX`].
    pub request_bytes: u32,
    /// Bytes of a response, 1 to [`RequestResponse::BYTES_MAX`].
    pub response_bytes: u32,
    /// Whether the response must hold what [`crate::Responder`] sends; other servers send what they
    /// like, and only the length is checked.
    pub check_content: bool,
}

/// How a generator thread finds out which connections have an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Polling {
    /// [`Polling::BusyPoll`] where the NAPIs of the connections have deferral set (which somebody
    /// must have wanted), the thread has at most 128 connections, and the kernel grants it;
    /// [`Polling::Epoll`] otherwise.
    #[default]
    Auto,
    /// Edge-triggered `epoll_wait`: sleeping in a closed loop, never sleeping in an open one.
    Epoll,
    /// No epoll: non-blocking receives with `SO_BUSY_POLL` and `SO_PREFER_BUSY_POLL`, the
    /// connection that waits longest first; each one that finds nothing polls the device from the
    /// generator's own thread. Needs CAP_NET_ADMIN and, to be of use, deferral on the client's
    /// NAPIs, so that neither interrupt nor NAPI thread gets in between.
    BusyPoll,
}

impl Polling {
    /// The most connections of one thread that [`Polling::Auto`] polls: asking one after the other takes too long for
    /// more.
    pub const CONNECTIONS_MAX: u32 = 128;
}

impl LoadSpec {
    /// The largest `depth`.
    pub const DEPTH_MAX: u32 = 1024;
    /// The largest number of connections: one address has no more ports.
    pub const CONNECTIONS_MAX: u32 = 60_000;
    /// The largest number of threads.
    pub const THREADS_MAX: u32 = 1024;

    /// One thread, 64 connections of depth 1, seed 1, timeouts of 5 s to connect and 2 s to answer.
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
            seed: 1,
            connect_timeout_ms: 5_000,
            response_timeout_ms: 2_000,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`LoadError::Spec`] with the first field that is wrong.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.addresses.is_empty() {
            return Err(LoadError::spec("addresses", "there is none"));
        }
        within("threads", self.threads, 1, Self::THREADS_MAX)?;
        within("connections", self.connections, self.threads, Self::CONNECTIONS_MAX)?;
        within("depth", self.depth, 1, if self.transport == Transport::Udp { 1 } else { Self::DEPTH_MAX })?;
        within("connect_timeout_ms", self.connect_timeout_ms, 1, u32::MAX)?;
        within("response_timeout_ms", self.response_timeout_ms, 1, u32::MAX)?;
        match &self.workload {
            Workload::Memcached(_) if self.transport == Transport::Udp => {
                Err(LoadError::spec("transport", "memcached is spoken over TCP"))
            }
            Workload::Memcached(memcached) => memcached.check(),
            Workload::RequestResponse(sizes) => sizes.check(self.transport),
        }
    }
}

impl Memcached {
    /// The protocol's longest key.
    pub const KEY_BYTES_MAX: u32 = 250;
    /// The longest value: what fits into memcached's default item limit of 1 MiB together with the
    /// key and the item's header.
    pub const VALUE_BYTES_MAX: u32 = 1_000_000;
    /// The largest number of keys, a bound on the generator's memory (up to 280 bytes a key).
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

    /// The shortest key: all numbers from 0 to `keys` − 1 are written with as many digits.
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

impl RequestResponse {
    /// The largest request or response.
    pub const BYTES_MAX: u32 = 1 << 20;
    /// The largest payload of a UDP datagram.
    pub const DATAGRAM_BYTES_MAX: u32 = 65_507;

    pub(crate) fn check(&self, transport: Transport) -> Result<(), LoadError> {
        let max = if transport == Transport::Udp { Self::DATAGRAM_BYTES_MAX } else { Self::BYTES_MAX };
        within("request_bytes", self.request_bytes, 1, max)?;
        within("response_bytes", self.response_bytes, 1, max)
    }
}

/// One run on the connections of a generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RunSpec {
    /// When requests are sent.
    pub schedule: Schedule,
    /// How long to load before measuring, ms.
    pub warm_up_ms: u32,
    /// How long to measure, ms, at least 1.
    pub measure_ms: u32,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// At moments that do not depend on answers. When every connection has `depth` requests under
    /// way, a request waits, and its latency counts from when it was due.
    Open {
        /// Requests a second of all threads together, above 0 and at most [`Schedule::RATE_MAX`].
        rate_per_s: f64,
        /// The distribution of the gaps; its mean is scaled to the rate of each thread.
        gaps: Distribution,
    },
    /// Each connection keeps `depth` requests under way.
    Closed,
}

impl Schedule {
    /// The largest rate, requests a second.
    pub const RATE_MAX: f64 = 1e9;

    /// Checks the fields.
    ///
    /// # Errors
    /// [`LoadError::Spec`] with the first field that is wrong.
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
    /// Checks every field.
    ///
    /// # Errors
    /// [`LoadError::Spec`] with the first field that is wrong.
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
    fn the_defaults_are_sound() {
        sound().check().unwrap();
    }

    #[test]
    fn what_is_wrong_is_named_with_its_bounds() {
        assert_eq!(refusal(|s| s.threads = 0), "load: threads: 0 is not between 1 and 1024");
        assert_eq!(refusal(|s| s.threads = 65), "load: connections: 64 is not between 65 and 60000");
        assert_eq!(refusal(|s| s.addresses.clear()), "load: addresses: there is none");
        assert_eq!(
            refusal(|s| s.workload = Workload::Memcached(Memcached { keys: 0, ..Memcached::facebook() })),
            "load: keys: 0 is not between 1 and 10000000"
        );
    }

    #[test]
    fn udp_allows_neither_depth_nor_memcached() {
        assert!(refusal(|s| (s.transport, s.depth) = (Transport::Udp, 2)).starts_with("load: depth: "));
        assert!(
            refusal(|s| {
                s.transport = Transport::Udp;
                s.workload = Workload::Memcached(Memcached::facebook());
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
    fn a_rate_that_is_no_rate_is_refused() {
        for rate_per_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let schedule = Schedule::Open { rate_per_s, gaps: Distribution::POISSON_GAPS };
            assert!(schedule.check().is_err(), "{rate_per_s}");
        }
    }

    #[test]
    fn a_specification_survives_json() {
        let spec = LoadSpec { workload: Workload::Memcached(Memcached::facebook()), ..sound() };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<LoadSpec>(&json).unwrap(), spec);
    }
}
