//! `quell load`: runs the load generator and prints the outcome of the requests.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use quell_linux::signal::{Interruption, InterruptionFlag};
use quell_linux::visible::{self, counted};
use quell_load::args::{DISTRIBUTIONS, LoadOptions, RequestProtocol};
use quell_load::{Generator, HttpGet, LoadError, LoadReport, LoadSpec, RunObserver, RunSpec, Workload};
use quell_result::load::LoadRun;

use super::xdp::{self, XdpArgs};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::load_report;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;

/// Options of `quell load`.
#[derive(Debug, Args)]
#[command(after_help = DISTRIBUTIONS)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) load: LoadOptions,
    /// xdp: time that the receiving thread works after each response, in µs.
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    pub(crate) delay_us: f64,
    /// Print the report as JSON, with raw histograms.
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Print the figures that `quell bench --latency` reads: lines of NAME VALUE.
    #[arg(long, conflicts_with = "json")]
    pub(crate) figures: bool,
    #[command(flatten)]
    pub(crate) xdp: XdpArgs,
}

/// Runs the command.
///
/// # Errors
/// When the load cannot be generated or no request is answered. Failed requests are reported, not errors.
pub(crate) fn load(args: &LoadArgs) -> Result<(), Failure> {
    let options = &args.load;
    if options.protocol == Some(RequestProtocol::Xdp) {
        return xdp::load(args);
    }
    let run = options.run_spec().map_err(Failure::usage)?;
    let preload = options.preload_limit().map_err(Failure::usage)?;
    let spec = options.spec().map_err(Failure::usage)?;
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let progress = Progress::new();
    let mut watch = Watch { progress: &progress, stop: interruption.flag() };
    let outcome = measure(&spec, &run, preload, &mut watch);
    progress.finish();
    let report = outcome.map_err(failure)?;
    let interrupted = watch.stop.get().is_some();
    let document = LoadRun::new(spec, run, report);
    if args.json {
        output::json(&document)?;
    } else if args.figures {
        output::data(&load_report::figures(&document.report))?;
    } else {
        output::data(&load_report::render(&document.report, Terminal::of_stdout()))?;
    }
    match document.report.answered_in_window {
        _ if interrupted => {
            let seconds = document.report.duration_ns as f64 / 1e9;
            Err(Failure::new(Exit::Interrupted, format!("interrupted: the report covers {seconds:.1} s")))
        }
        0 => Err(Failure::new(Exit::VerifyFailed, without_answer(&options.server, &document))),
        _ => Ok(()),
    }
}

/// Why a run counts no answered request.
fn without_answer(server: &str, run: &LoadRun) -> String {
    let text = match run.report.errors.server_errors {
        0 => return format!("{server} answered no request during the measured time"),
        count => format!("{server} answered only with errors ({})", counted(count, "request")),
    };
    match &run.spec.workload {
        Workload::Http(HttpGet { path }) => format!(
            "{text}: the HTTP status of {} is outside 200 to 299; choose another path (--path)",
            visible::name(path)
        ),
        _ => text,
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
    generator.run_until_cancelled(run, watch)
}

struct Watch<'a> {
    progress: &'a Progress,
    stop: InterruptionFlag,
}

impl RunObserver for Watch<'_> {
    fn progress(&mut self, run: &quell_load::RunProgress) -> ControlFlow<()> {
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
