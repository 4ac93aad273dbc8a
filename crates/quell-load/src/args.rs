//! Options of a load on the command line, and their conversion to a specification. Programs that run the generator
//! share them.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use quell_linux::CpuList;

use crate::{
    Distribution, Generator, HttpGet, KeyValues, LoadSpec, OfferedLoad, Polling, RequestResponse, RunSpec, Schedule,
    Transport, Workload,
};

/// Time limit for a server's answer to the request that shows its protocol.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Maximum length of that answer, in bytes.
const ANSWER_MAX: u64 = 256;

/// Options of a load.
#[derive(Debug, Args)]
pub struct LoadOptions {
    /// The server, HOST:PORT.
    pub server: String,
    /// Requests per second, at times that do not depend on responses (20000, 200K), or `max`: each connection sends
    /// its next request as soon as its response has arrived.
    #[arg(long, value_name = "RATE", default_value = "max")]
    pub rate: OfferedLoad,
    /// Request protocol [http, memcached or redis, by the server's answer to a first request; request-response with
    /// --udp]
    #[arg(long, value_enum)]
    pub protocol: Option<RequestProtocol>,
    /// Use UDP (request-response only).
    #[arg(long)]
    pub udp: bool,
    /// Total number of connections.
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub connections: u32,
    /// Generator threads.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub threads: u32,
    /// CPUs to pin the threads to: 2,4-7 [not pinned]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Maximum number of outstanding requests per connection.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: u32,
    /// With `--rate max`: read the responses of all ready connections before the next requests are sent. The server
    /// then receives larger batches than from independent clients
    #[arg(long)]
    pub batch: bool,
    /// How the threads wait for responses.
    #[arg(long, value_enum, default_value_t = PollingChoice::Auto)]
    pub polling: PollingChoice,
    /// Warm-up before measuring, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub warm_up: f64,
    /// Measured time, in seconds.
    #[arg(short = 's', long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Gaps between requests; their mean is scaled to the rate.
    #[arg(long, value_name = "DIST", default_value = "facebook-gaps")]
    pub gaps: Distribution,
    /// memcached, redis: number of keys, which are stored in the server before the load.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub keys: u32,
    /// memcached, redis: key sizes, in bytes.
    #[arg(long, value_name = "DIST", default_value = "facebook-keys")]
    pub key_bytes: Distribution,
    /// memcached, redis: value sizes, in bytes.
    #[arg(long, value_name = "DIST", default_value = "facebook-values")]
    pub value_bytes: Distribution,
    /// memcached, redis: share of get requests, 0 to 1; the others are sets.
    #[arg(long, value_name = "SHARE", default_value_t = 0.97)]
    pub get_share: f64,
    /// memcached, redis: do not store the keys first. With `--get-share 1`, nothing is written.
    #[arg(long)]
    pub no_preload: bool,
    /// memcached, redis: time limit for preloading the keys, in seconds.
    #[arg(long, value_name = "S", default_value_t = Generator::PRELOAD_LIMIT.as_secs_f64())]
    pub preload_seconds: f64,
    /// http: path that is requested.
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,
    /// request-response, xdp: request size, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = Self::BYTES)]
    pub request_bytes: u32,
    /// request-response: response size, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = Self::BYTES)]
    pub response_bytes: u32,
    /// request-response: check the content of responses; the server has to be `quell respond`.
    #[arg(long)]
    pub check_content: bool,
}

pub const DISTRIBUTIONS: &str = concat!(
    "Distributions: fixed:N, uniform:LOW,HIGH, exponential:MEAN, gev:LOC,SCALE,SHAPE, gpd:LOC,SCALE,SHAPE, and those of ",
    "the published experiment (Atikoglu et al., SIGMETRICS 2012): facebook-keys, facebook-values, facebook-gaps.",
);

/// Request protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RequestProtocol {
    /// memcached's text protocol: get and set.
    Memcached,
    /// Redis's protocol: GET and SET.
    Redis,
    /// HTTP/1.1: GET on persistent connections.
    Http,
    /// Requests and responses of fixed size, as in netperf's TCP_RR and UDP_RR, neper's tcp_rr and `quell respond`.
    RequestResponse,
    /// UDP frames through an AF_XDP socket, to `quell respond --xdp`.
    Xdp,
}

impl RequestProtocol {
    /// Recognises the protocol of a server by its answer to a request of Redis, which others refuse.
    fn of_server(address: SocketAddr) -> Result<Self, InvalidLoadOption> {
        // memcached closes the connection after a request of HTTP, and Redis logs an attack.
        const REQUEST: &[u8] = b"PING\r\n\r\n";
        let ask = || {
            let mut connection = TcpStream::connect_timeout(&address, ANSWERS_WITHIN)?;
            connection.set_read_timeout(Some(ANSWERS_WITHIN))?;
            connection.write_all(REQUEST)?;
            let mut answer = String::new();
            // Not more, because the server may wait for another request.
            let read = BufReader::new(connection.take(ANSWER_MAX)).read_line(&mut answer);
            Ok::<_, io::Error>(read.map(|_| answer).unwrap_or_default())
        };
        let Ok(answer) = ask() else {
            // The generator's connections fail too, and its error has the reason.
            return Ok(Self::Memcached);
        };
        match answer.as_str() {
            answer if answer.starts_with("HTTP/") => Ok(Self::Http),
            answer if answer.starts_with(['+', '-']) => Ok(Self::Redis),
            answer if answer.contains("ERROR") => Ok(Self::Memcached),
            "" => Err(InvalidLoadOption::new(format!(
                "{address} did not answer a first request within {ANSWERS_WITHIN:?}: it hangs, or waits for another \
                 protocol (--protocol)"
            ))),
            _ => Err(InvalidLoadOption::new(format!(
                "{address} speaks neither HTTP nor memcached's or Redis's protocol; name its protocol with --protocol"
            ))),
        }
    }
}

/// How the threads wait for responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PollingChoice {
    /// Busy polling if the receive queues defer interrupts, epoll otherwise.
    Auto,
    /// Edge-triggered epoll.
    Epoll,
    /// Non-blocking receives with SO_BUSY_POLL; needs CAP_NET_ADMIN.
    BusyPoll,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLoadOption(String);

impl LoadOptions {
    /// Default size of requests and of responses, in bytes.
    pub const BYTES: u32 = 64;

    pub fn spec(&self) -> Result<LoadSpec, InvalidLoadOption> {
        let transport = if self.udp { Transport::Udp } else { Transport::Tcp };
        let keys = || KeyValues {
            keys: self.keys,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            get_share: self.get_share,
        };
        let address = address(&self.server)?;
        let protocol = match self.protocol {
            Some(protocol) => protocol,
            None if self.udp => RequestProtocol::RequestResponse,
            None => RequestProtocol::of_server(address)?,
        };
        let workload = match protocol {
            RequestProtocol::Memcached => Workload::Memcached(keys()),
            RequestProtocol::Redis => Workload::Redis(keys()),
            RequestProtocol::Http => Workload::Http(HttpGet { path: self.path.clone() }),
            RequestProtocol::RequestResponse => Workload::RequestResponse(RequestResponse {
                request_bytes: self.request_bytes,
                response_bytes: self.response_bytes,
                check_content: self.check_content,
            }),
            RequestProtocol::Xdp => {
                return Err(InvalidLoadOption::new(
                    "--protocol xdp: this program has no AF_XDP sockets; use `quell load`",
                ));
            }
        };
        Ok(LoadSpec {
            connections: self.connections,
            depth: self.depth,
            threads: self.threads,
            cpus: self.cpus.as_ref().map_or_else(Vec::new, |cpus| cpus.iter().collect()),
            polling: match self.polling {
                PollingChoice::Auto => Polling::Auto,
                PollingChoice::Epoll => Polling::Epoll,
                PollingChoice::BusyPoll => Polling::BusyPoll,
            },
            batched_sends: self.batch,
            seed: self.seed,
            ..LoadSpec::new(address, transport, workload)
        })
    }

    pub fn run_spec(&self) -> Result<RunSpec, InvalidLoadOption> {
        if self.batch && self.rate != OfferedLoad::Max {
            return Err(InvalidLoadOption::new("--batch requires --rate max"));
        }
        let schedule = match self.rate {
            OfferedLoad::Max => Schedule::Closed,
            OfferedLoad::Rate(rate_per_s) => Schedule::Open { rate_per_s, gaps: self.gaps },
            OfferedLoad::Percent(_) => {
                return Err(InvalidLoadOption::new(
                    "--rate: a percentage is not supported; give requests per second or max",
                ));
            }
        };
        Ok(RunSpec {
            schedule,
            warm_up_ms: milliseconds("--warm-up", self.warm_up, 0.0)?,
            measure_ms: milliseconds("--seconds", self.seconds, 0.001)?,
        })
    }

    /// Time limit for storing the keys. `None` if they are not stored.
    pub fn preload_limit(&self) -> Result<Option<Duration>, InvalidLoadOption> {
        let limit = Duration::from_millis(milliseconds("--preload-seconds", self.preload_seconds, 0.001)?.into());
        Ok((!self.no_preload).then_some(limit))
    }
}

impl InvalidLoadOption {
    fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

fn address(server: &str) -> Result<SocketAddr, InvalidLoadOption> {
    let unknown = |why: &dyn std::fmt::Display| {
        InvalidLoadOption::new(format!("server {server:?}: {why}; expected HOST:PORT, such as 192.0.2.1:11211"))
    };
    let mut addresses = server.to_socket_addrs().map_err(|error| unknown(&error))?;
    addresses.next().ok_or_else(|| unknown(&"the name has no address"))
}

fn milliseconds(option: &str, seconds: f64, least: f64) -> Result<u32, InvalidLoadOption> {
    const MOST: f64 = 1_000_000.0;
    if !(least..=MOST).contains(&seconds) {
        return Err(InvalidLoadOption::new(format!("{option} {seconds}: expected {least} to {MOST} seconds")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e3).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn protocol_of(answer: &'static [u8]) -> Result<RequestProtocol, InvalidLoadOption> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = [0; 8];
            connection.read_exact(&mut request).unwrap();
            connection.write_all(answer).unwrap();
        });
        let protocol = RequestProtocol::of_server(address);
        server.join().unwrap();
        protocol
    }

    #[test]
    fn the_protocol_of_a_server_is_recognised_by_its_first_answer() {
        for (answer, protocol) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], RequestProtocol::Http),
            (b"ERROR\r\n", RequestProtocol::Memcached),
            (b"CLIENT_ERROR line too long\r\n", RequestProtocol::Memcached),
            (b"+PONG\r\n", RequestProtocol::Redis),
            (b"-NOAUTH Authentication required.\r\n", RequestProtocol::Redis),
        ] {
            assert_eq!(protocol_of(answer), Ok(protocol), "{answer:?}");
        }
        for other in [&b""[..], b"SSH-2.0-OpenSSH\r\n", b"\x15\x03\x01\x00\x02"] {
            assert!(protocol_of(other).unwrap_err().to_string().contains("--protocol"), "{other:?}");
        }
    }
}
