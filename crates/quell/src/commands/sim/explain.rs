//! `quell sim explain`: describes a delivery mode step by step.

use clap::Args;
use quell_mode::DeliveryMode;
use quell_sim::explain;

use super::HostArg;
use crate::exit::Failure;
use crate::output;
use crate::render::explanation as render;
use crate::render::terminal::Terminal;

/// Options of `quell sim explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, eventspinN (N in µs).
    /// Settings can be overridden: suspend20,defer-hard-irqs=10
    mode: String,
    #[command(flatten)]
    host: HostArg,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the mode or the host is invalid, or the model does not support the mode.
pub(super) fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let mode: DeliveryMode = args.mode.parse().map_err(|error| super::refused_mode(&error))?;
    let host = args.host.profile()?;
    let explanation = explain::explain(mode, &host).map_err(|error| super::not_run(&error))?;
    if args.json {
        return output::json(&explanation);
    }
    output::data(&render::render(&explanation, Terminal::of_stdout()))
}
