//! `quell load --protocol xdp` and `quell respond --xdp`: requests and responses through AF_XDP sockets.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::ControlFlow;
use std::time::Duration;

use clap::{Args, ValueEnum};
use quell_linux::CpuList;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::signal::Interruption;
use quell_load::OfferedLoad;
use quell_load::args::LoadOptions;
use quell_result::load::XdpLoadRun;
use quell_xdp::{
    CopyMode, PollWay, XdpError, XdpLoadSpec, XdpProgress, XdpQueue, XdpResponder, XdpResponderSpec, XdpResponderStats,
    XdpSchedule, XdpSpec,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::load::LoadArgs;
use super::respond::RespondArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;
use crate::render::xdp;

/// Options of AF_XDP sockets.
#[derive(Debug, Args)]
#[command(next_help_heading = "AF_XDP")]
pub(crate) struct XdpArgs {
    /// Queue of the device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) queue: u32,
    /// Who polls the queue.
    #[arg(long, value_name = "WAY", value_enum, default_value_t = PollWay::Interrupts)]
    pub(crate) poller: PollWay,
    /// CPU of the thread that polls, for the ways that have one [not pinned]
    #[arg(long, value_name = "CPU")]
    pub(crate) poll_cpu: Option<u32>,
    /// Watch the ring instead of sleeping in poll(), for the ways in which the kernel polls.
    #[arg(long)]
    pub(crate) spin: bool,
    /// SO_BUSY_POLL, in µs.
    #[arg(long, value_name = "US", default_value_t = XdpSpec::default().busy_poll_us)]
    pub(crate) busy_poll_us: u32,
    /// SO_BUSY_POLL_BUDGET, in packets.
    #[arg(long, value_name = "N", default_value_t = XdpSpec::default().busy_poll_budget)]
    pub(crate) busy_poll_budget: u16,
    /// Entries of each ring, a power of two.
    #[arg(long, value_name = "N", default_value_t = XdpSpec::default().ring_entries)]
    pub(crate) ring: u32,
    /// Maximum number of frames that are taken from the ring at once.
    #[arg(long, value_name = "N", default_value_t = XdpSpec::default().batch)]
    pub(crate) batch_size: u32,
    /// How frames get into the memory of the program.
    #[arg(long, value_enum, default_value_t = Copying::Auto)]
    pub(crate) copy_mode: Copying,
    /// Kick the kernel for every batch instead of when it asks (XDP_USE_NEED_WAKEUP).
    #[arg(long)]
    pub(crate) no_need_wakeup: bool,
    /// Measure each receive call, for the ways in which the receiving thread polls.
    #[arg(long)]
    pub(crate) time_calls: bool,
}

/// How frames get into the memory of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Copying {
    /// Zero-copy if the driver supports it.
    Auto,
    /// The kernel copies.
    Copy,
    /// The device writes into it.
    ZeroCopy,
}

impl XdpArgs {
    fn spec(&self, cpus: Option<&CpuList>) -> XdpSpec {
        XdpSpec {
            queue: self.queue,
            ring_entries: self.ring,
            batch: self.batch_size,
            copy_mode: match self.copy_mode {
                Copying::Auto => CopyMode::Auto,
                Copying::Copy => CopyMode::Copy,
                Copying::ZeroCopy => CopyMode::ZeroCopy,
            },
            need_wakeup: !self.no_need_wakeup,
            way: self.poller,
            spin: self.spin,
            busy_poll_us: self.busy_poll_us,
            busy_poll_budget: self.busy_poll_budget,
            poll_cpu: self.poll_cpu,
            cpus: cpus.map_or_else(Vec::new, |cpus| cpus.iter().collect()),
            fifo_priority: None,
            time_calls: self.time_calls,
        }
    }
}

/// Runs a load through an AF_XDP socket.
pub(crate) fn load(args: &LoadArgs) -> Result<(), Failure> {
    let spec = load_spec(args)?;
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let stop = interruption.flag();
    let progress = Progress::new();
    progress.doing("waiting for the first response");
    let ms = |duration: Duration| usize::try_from(duration.as_millis()).unwrap_or(usize::MAX);
    let outcome = quell_xdp::run(&spec, &mut |now: XdpProgress| {
        if !now.planned.is_zero() {
            let what = format!("ms, {} answered", now.answered);
            progress.step(ms(now.elapsed).min(ms(now.planned)), ms(now.planned), &what);
        }
        if stop.get().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish();
    let document = XdpLoadRun::new(spec, outcome.map_err(failure)?);
    if args.json {
        output::json(&document)?;
    } else if args.figures {
        output::data(&xdp::figures(&document.report))?;
    } else {
        output::data(&xdp::load(&document, Terminal::of_stdout()))?;
    }
    let report = &document.report;
    match report.answered {
        _ if stop.get().is_some() => {
            let seconds = report.duration_ns as f64 / 1e9;
            Err(Failure::new(Exit::Interrupted, format!("interrupted: the report covers {seconds:.1} s")))
        }
        0 => Err(Failure::new(
            Exit::VerifyFailed,
            format!("{} answered no request during the measured time", document.spec.server),
        )),
        _ => Ok(()),
    }
}

fn load_spec(args: &LoadArgs) -> Result<XdpLoadSpec, Failure> {
    let LoadArgs { load, xdp, .. } = args;
    let refuse =
        |option: &str, why: &str| Err(Failure::usage(format!("{option} does not apply to --protocol xdp: {why}")));
    if load.udp || load.batch || load.threads != 1 {
        return refuse("--udp, --batch or --threads", "one thread sends frames of UDP; see --batch-size");
    }
    if load.response_bytes != LoadOptions::BYTES && load.response_bytes != load.request_bytes {
        return refuse("--response-bytes", "a response is its request, turned");
    }
    let schedule = match load.rate {
        OfferedLoad::Max => XdpSchedule::Closed { depth: load.depth },
        OfferedLoad::Rate(rate) => XdpSchedule::Open { period_ns: 1e9 / rate },
        OfferedLoad::Percent(_) => return refuse("--rate with a percentage", "give requests per second, or max"),
    };
    let run = load.run_spec().map_err(Failure::usage)?;
    let unknown = |why: String| {
        Failure::usage(format!("server {:?}: {why}; expected HOST:PORT, such as 192.0.2.1:7000", load.server))
    };
    let mut addresses = load.server.to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let spec = XdpLoadSpec {
        server: addresses.next().ok_or_else(|| unknown("the name has no address".to_owned()))?,
        socket: xdp.spec(load.cpus.as_ref()),
        schedule,
        bytes: load.request_bytes,
        delay_us: args.delay_us,
        warm_up_ms: run.warm_up_ms,
        measure_ms: run.measure_ms,
    };
    spec.check().map_err(failure)?;
    Ok(spec)
}

/// Output of `quell respond --xdp --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct XdpRespondReport {
    schema: &'static str,
    /// Address whose requests were answered.
    address: SocketAddr,
    queue: XdpQueue,
    #[serde(flatten)]
    stats: XdpResponderStats,
}

impl XdpRespondReport {
    pub(super) const SCHEMA: &str = "quell-respond-xdp/1";
}

/// Answers requests through an AF_XDP socket until SIGINT, SIGTERM or SIGHUP.
pub(crate) fn respond(args: &RespondArgs) -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::new(Exit::KernelRefused, error);
    if args.udp || args.workers != 1 {
        return Err(Failure::usage("--udp and --workers do not apply to --xdp: one thread answers frames of UDP"));
    }
    let spec = XdpResponderSpec {
        address: args.address,
        socket: args.xdp_args.spec(args.cpus.as_ref()),
        work_us: args.work_us.into(),
    };
    let interruption = Interruption::listen().map_err(refused)?;
    let mut epoll = Epoll::new(3).map_err(refused)?;
    let responder = XdpResponder::start(&spec).map_err(failure)?;
    let (address, queue) = (responder.address(), responder.queue().map_err(failure)?);
    output::say(&format!("answering {address} on {}", xdp::queue(&queue)));
    epoll.add(&interruption, 0, Trigger::Level).map_err(refused)?;
    epoll.add(responder.trouble(), 1, Trigger::ReadEdge).map_err(refused)?;
    epoll.add(responder.stack(), 2, Trigger::ReadEdge).map_err(refused)?;
    let mut is_warned = false;
    while interruption.flag().get().is_none() && !responder.has_failed() {
        epoll.wait(None).map_err(refused)?;
        if let Some(stray) = responder.take_stray()
            && !std::mem::replace(&mut is_warned, true)
        {
            output::say(&format!("quell: {stray}"));
        }
    }
    let (stats, ended) = responder.stop();
    if args.json {
        output::json(&XdpRespondReport { schema: XdpRespondReport::SCHEMA, address, queue, stats })?;
    } else {
        output::data(&xdp::answered(&stats))?;
    }
    ended.map_or(Ok(()), |error| Err(failure(error)))
}

fn failure(error: XdpError) -> Failure {
    let exit = match error {
        XdpError::Spec { .. } => Exit::Usage,
        XdpError::Cancelled => Exit::Interrupted,
        XdpError::NoAnswer { .. } | XdpError::OtherQueue { .. } => Exit::VerifyFailed,
        _ if error.is_unsupported() => Exit::NotSupported,
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, error)
}
