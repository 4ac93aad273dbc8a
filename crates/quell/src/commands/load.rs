//! `quell load`: runs the load generator and prints the outcome of the requests.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::ControlFlow;
use std::time::Duration;

use clap::{Args, ValueEnum};
use quell_linux::CpuList;
use quell_linux::signal::{Interruption, InterruptionFlag};
use quell_load::{
    Distribution, Generator, LoadError, LoadReport, LoadSpec, Memcached, Polling, RequestResponse, RunObserver,
    RunSpec, Schedule, Transport, Workload,
};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::load_report;
use crate::render::progress::Progress;

/// Options of `quell load`.
#[derive(Debug, Args)]
#[command(after_help = DISTRIBUTIONS)]
pub(crate) struct LoadArgs {
    /// The server, HOST:PORT.
    pub(crate) server: String,
    /// Requests per second, at times that do not depend on responses (20000, 200K), or `max`: each connection sends
    /// its next request as soon as its response has arrived.
    #[arg(long, value_name = "RATE", default_value = "max")]
    pub(crate) rate: quell_bench::offered_load::OfferedLoad,
    /// Request protocol.
    #[arg(long, value_enum, default_value_t = Protocol::Memcached)]
    pub(crate) protocol: Protocol,
    /// Use UDP (request-response only).
    #[arg(long)]
    pub(crate) udp: bool,
    /// Total number of connections.
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub(crate) connections: u32,
    /// Generator threads.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: u32,
    /// CPUs to pin the threads to: 2,4-7 [not pinned]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Maximum number of outstanding requests per connection.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) depth: u32,
    /// With `--rate max`: read the responses of all ready connections before the next requests are sent. The server
    /// then receives larger batches than from independent clients
    #[arg(long)]
    pub(crate) batch: bool,
    /// How the threads wait for responses.
    #[arg(long, value_enum, default_value_t = PollingChoice::Auto)]
    pub(crate) polling: PollingChoice,
    /// Warm-up before measuring, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub(crate) warm_up: f64,
    /// Measured time, in seconds.
    #[arg(short = 's', long, value_name = "S", default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Gaps between requests; their mean is scaled to the rate.
    #[arg(long, value_name = "DIST", default_value = "facebook-gaps")]
    pub(crate) gaps: Distribution,
    /// memcached: number of keys.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) keys: u32,
    /// memcached: key sizes, in bytes.
    #[arg(long, value_name = "DIST", default_value = "facebook-keys")]
    pub(crate) key_bytes: Distribution,
    /// memcached: value sizes, in bytes.
    #[arg(long, value_name = "DIST", default_value = "facebook-values")]
    pub(crate) value_bytes: Distribution,
    /// memcached: share of get requests, 0 to 1; the others are sets.
    #[arg(long, value_name = "SHARE", default_value_t = 0.97)]
    pub(crate) get_share: f64,
    /// memcached: do not preload the keys.
    #[arg(long)]
    pub(crate) no_preload: bool,
    /// memcached: time limit for preloading the keys, in seconds.
    #[arg(long, value_name = "S", default_value_t = Generator::PRELOAD_LIMIT.as_secs_f64())]
    pub(crate) preload_seconds: f64,
    /// request-response: request size, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) request_bytes: u32,
    /// request-response: response size, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) response_bytes: u32,
    /// request-response: check the content of responses; the server has to be `quell respond`.
    #[arg(long)]
    pub(crate) check_content: bool,
    /// Print the report as JSON, with raw histograms.
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Print the figures that `quell bench --latency` reads: lines of NAME VALUE.
    #[arg(long, conflicts_with = "json")]
    pub(crate) figures: bool,
}

const DISTRIBUTIONS: &str = concat!(
    "Distributions: fixed:N, uniform:LOW,HIGH, exponential:MEAN, gev:LOC,SCALE,SHAPE, gpd:LOC,SCALE,SHAPE, and those of ",
    "the published experiment (Atikoglu et al., SIGMETRICS 2012): facebook-keys, facebook-values, facebook-gaps.",
);

/// Request protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// memcached's text protocol: get and set.
    Memcached,
    /// Requests and responses of fixed size, as in netperf's TCP_RR and UDP_RR, neper's tcp_rr and `quell respond`.
    RequestResponse,
}

/// How the threads wait for responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PollingChoice {
    /// Busy polling if the receive queues defer interrupts, epoll otherwise.
    Auto,
    /// Edge-triggered epoll.
    Epoll,
    /// Non-blocking receives with SO_BUSY_POLL; needs CAP_NET_ADMIN.
    BusyPoll,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Document<'a> {
    schema: &'static str,
    spec: &'a LoadSpec,
    run: &'a RunSpec,
    report: &'a LoadReport,
}

/// Runs the command.
///
/// # Errors
/// When the load cannot be generated or no request is answered. Failed requests are reported, not errors.
pub(crate) fn load(args: &LoadArgs) -> Result<(), Failure> {
    let (spec, run) = (spec(args)?, run_spec(args)?);
    let limit = Duration::from_millis(milliseconds("--preload-seconds", args.preload_seconds, 0.001)?.into());
    let preload = (!args.no_preload).then_some(limit);
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let progress = Progress::new();
    let mut watch = Watch { progress: &progress, stop: interruption.flag() };
    let outcome = measure(&spec, &run, preload, &mut watch);
    progress.finish();
    let report = outcome.map_err(failure)?;
    if args.json {
        let document = Document { schema: "quell-load/1", spec: &spec, run: &run, report: &report };
        output::json(&document)?;
    } else if args.figures {
        output::data(&load_report::figures(&report))?;
    } else {
        output::data(&load_report::render(&report))?;
    }
    match report.answered_in_window {
        0 => Err(Failure::new(
            Exit::VerifyFailed,
            format!("{} answered no request during the measured time", args.server),
        )),
        _ => Ok(()),
    }
}

/// Runs the load. `preload` is the time limit for storing the keys; `None` skips it.
fn measure(
    spec: &LoadSpec,
    run: &RunSpec,
    preload: Option<Duration>,
    watch: &mut Watch<'_>,
) -> Result<LoadReport, LoadError> {
    watch.progress.doing("connecting");
    let mut generator = Generator::connect(spec.clone(), None)?;
    if let Some(limit) = preload {
        watch.progress.doing("preloading keys");
        generator.preload(limit, watch)?;
    }
    generator.run(run, watch)
}

struct Watch<'a> {
    progress: &'a Progress,
    stop: InterruptionFlag,
}

impl RunObserver for Watch<'_> {
    fn progress(&mut self, run: &quell_load::Progress) -> ControlFlow<()> {
        let ms = |duration: std::time::Duration| usize::try_from(duration.as_millis()).unwrap_or(usize::MAX);
        if !run.planned.is_zero() {
            let what = format!("ms, {} answered", run.answered);
            self.progress.step(ms(run.elapsed).min(ms(run.planned)), ms(run.planned), &what);
        }
        if self.stop.get().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn failure(error: LoadError) -> Failure {
    let exit = match error {
        LoadError::Spec { .. } => Exit::Usage,
        LoadError::Cancelled => Exit::Interrupted,
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, error)
}

fn spec(args: &LoadArgs) -> Result<LoadSpec, Failure> {
    let transport = if args.udp { Transport::Udp } else { Transport::Tcp };
    let workload = match args.protocol {
        Protocol::Memcached => Workload::Memcached(Memcached {
            keys: args.keys,
            key_bytes: args.key_bytes,
            value_bytes: args.value_bytes,
            get_share: args.get_share,
        }),
        Protocol::RequestResponse => Workload::RequestResponse(RequestResponse {
            request_bytes: args.request_bytes,
            response_bytes: args.response_bytes,
            check_content: args.check_content,
        }),
    };
    Ok(LoadSpec {
        connections: args.connections,
        depth: args.depth,
        threads: args.threads,
        cpus: args.cpus.as_ref().map_or_else(Vec::new, |cpus| cpus.iter().collect()),
        polling: match args.polling {
            PollingChoice::Auto => Polling::Auto,
            PollingChoice::Epoll => Polling::Epoll,
            PollingChoice::BusyPoll => Polling::BusyPoll,
        },
        batched_sends: args.batch,
        seed: args.seed,
        ..LoadSpec::new(address(&args.server)?, transport, workload)
    })
}

fn address(server: &str) -> Result<SocketAddr, Failure> {
    let unknown = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("server {server:?}: {why}; expected HOST:PORT, such as 192.0.2.1:11211"))
    };
    let mut addresses = server.to_socket_addrs().map_err(|error| unknown(&error))?;
    addresses.next().ok_or_else(|| unknown(&"the name has no address"))
}

fn run_spec(args: &LoadArgs) -> Result<RunSpec, Failure> {
    use quell_bench::offered_load::OfferedLoad;
    if args.batch && args.rate != OfferedLoad::Max {
        return Err(Failure::usage("--batch requires --rate max"));
    }
    let schedule = match args.rate {
        OfferedLoad::Max => Schedule::Closed,
        OfferedLoad::Rate(rate_per_s) => Schedule::Open { rate_per_s, gaps: args.gaps },
        OfferedLoad::Percent(_) => {
            return Err(Failure::usage("--rate: a percentage is not supported; give requests per second or max"));
        }
    };
    Ok(RunSpec {
        schedule,
        warm_up_ms: milliseconds("--warm-up", args.warm_up, 0.0)?,
        measure_ms: milliseconds("--seconds", args.seconds, 0.001)?,
    })
}

fn milliseconds(option: &str, seconds: f64, least: f64) -> Result<u32, Failure> {
    const MOST: f64 = 1_000_000.0;
    if !(least..=MOST).contains(&seconds) {
        return Err(Failure::usage(format!("{option} {seconds}: expected {least} to {MOST} seconds")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e3).round() as u32)
}
