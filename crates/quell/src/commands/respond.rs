//! `quell respond`: a request/response server that runs until it is interrupted.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use quell_linux::CpuList;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::signal::Interruption;
use quell_linux::visible::counted;
use quell_load::{LoadError, RequestResponse, Responder, ResponderSpec, ResponderStats, ServeShape, Transport};
use schemars::JsonSchema;
use serde::Serialize;

use super::xdp::{self, XdpArgs};
use crate::exit::{Exit, Failure, ListeningProtocol, listening};
use crate::output;

/// Options of `quell respond`.
#[derive(Debug, Args)]
pub(crate) struct RespondArgs {
    /// Listening address, ADDRESS:PORT; with port 0 the kernel chooses.
    #[arg(default_value = "127.0.0.1:7000")]
    pub(crate) address: SocketAddr,
    /// Use UDP.
    #[arg(long)]
    pub(crate) udp: bool,
    /// How to wait for requests.
    #[arg(long, value_enum, default_value_t = Shape::Epoll)]
    pub(crate) shape: Shape,
    /// Request size, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) request_bytes: u32,
    /// Response size, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) response_bytes: u32,
    /// CPU work per request, in µs.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub(crate) work_us: u32,
    /// Number of workers, each with its own socket on the same address (SO_REUSEPORT).
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: u32,
    /// CPUs to pin the workers to: 2,4-7 [not pinned]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Answer UDP requests through an AF_XDP socket on the device with this address; see `quell load --protocol xdp`.
    #[arg(long)]
    pub(crate) xdp: bool,
    /// Print JSON.
    #[arg(short, long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) xdp_args: XdpArgs,
}

/// How to wait for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// One thread per connection, in a blocking recv().
    Blocking,
    /// One thread per worker, in epoll_wait().
    Epoll,
}

/// Output of `quell respond --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct RespondReport {
    schema: &'static str,
    /// Listening address.
    address: SocketAddr,
    /// Number of accepted connections.
    accepted: u64,
    /// Number of answered requests.
    answered: u64,
    /// Number of times that accepting paused, because no file descriptor was left.
    accept_pauses: u64,
}

impl RespondReport {
    pub(super) const SCHEMA: &str = "quell-respond/1";
}

/// Serves until SIGINT, SIGTERM or SIGHUP.
pub(crate) fn respond(args: &RespondArgs) -> Result<(), Failure> {
    if args.xdp {
        return xdp::respond(args);
    }
    let refused = |error: std::io::Error| Failure::new(Exit::KernelRefused, error);
    let interruption = Interruption::listen().map_err(refused)?;
    // Once the responder accepts, its connections may take every descriptor.
    let mut epoll = Epoll::new(2).map_err(refused)?;
    let responder = Responder::start(spec(args), None).map_err(|error| failure(args, error))?;
    let address = responder.address();
    output::say(&format!("listening on {address}"));
    serve(&responder, &interruption, &mut epoll).map_err(refused)?;
    let done = responder.stats();
    if args.json {
        let ResponderStats { accepted, answered, accept_pauses } = done;
        output::json(&RespondReport { schema: RespondReport::SCHEMA, address, accepted, answered, accept_pauses })?;
    } else {
        output::data(&format!(
            "{} accepted, {} answered\n",
            counted(done.accepted, "connection"),
            counted(done.answered, "request")
        ))?;
    }
    responder.failure().map_or(Ok(()), |why| Err(Failure::new(Exit::KernelRefused, why)))
}

/// Waits for a signal or the failure of a worker. Warns once when no descriptor is left for connections.
fn serve(responder: &Responder, interruption: &Interruption, epoll: &mut Epoll) -> std::io::Result<()> {
    epoll.add(interruption, 0, Trigger::Level)?;
    epoll.add(responder.trouble(), 1, Trigger::ReadEdge)?;
    let mut warned = false;
    while interruption.flag().get().is_none() && responder.failure().is_none() {
        epoll.wait(None)?;
        if responder.stats().accept_pauses > 0 && !warned {
            warned = true;
            let text = "quell: out of file descriptors (ulimit -n): new connections wait until one is closed";
            output::say(text);
        }
    }
    Ok(())
}

fn spec(args: &RespondArgs) -> ResponderSpec {
    let sizes = RequestResponse {
        request_bytes: args.request_bytes,
        response_bytes: args.response_bytes,
        check_content: false,
    };
    ResponderSpec {
        address: args.address,
        transport: if args.udp { Transport::Udp } else { Transport::Tcp },
        shape: match args.shape {
            Shape::Blocking => ServeShape::Blocking,
            Shape::Epoll => ServeShape::Epoll,
        },
        sizes,
        work_us: args.work_us,
        workers: args.workers,
        cpus: args.cpus.as_ref().map_or_else(Vec::new, |cpus| cpus.iter().collect()),
    }
}

fn failure(args: &RespondArgs, error: LoadError) -> Failure {
    match error {
        LoadError::Spec { .. } => Failure::usage(error),
        LoadError::Listen { address, source } => {
            let protocol = if args.udp { ListeningProtocol::Udp } else { ListeningProtocol::Tcp };
            listening(address, protocol, "select another ADDRESS:PORT", &source)
        }
        _ => Failure::new(Exit::KernelRefused, format!("could not serve {}: {error}", args.address)),
    }
}
