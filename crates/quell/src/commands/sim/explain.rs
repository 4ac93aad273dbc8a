//! `quell sim explain`: describes a delivery mode step by step.

use std::path::PathBuf;

use clap::Args;
use quell_linux::output_file::OutputFile;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_report::page::{self, ExplainedMode};
use quell_sim::HostProfile;
use quell_sim::explain;

use super::HostArg;
use crate::exit::{Exit, Failure, not_written};
use crate::output;
use crate::render::explanation as render;
use crate::render::terminal::Terminal;

/// Options of `quell sim explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, userbusy, eventspinN (N in
    /// µs). Settings can be overridden: suspend20,defer-hard-irqs=10. With --html several, such as
    /// base,defer200,suspend20
    mode: String,
    #[command(flatten)]
    host: HostArg,
    /// Write an HTML page to this file that draws the modes side by side; base beside a single one.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the mode or the host is invalid, or the model does not support the mode.
pub(super) fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let host = args.host.profile()?;
    if let Some(file) = &args.html {
        let page = page::explanation(&explained(&args.mode, &host)?);
        OutputFile::named(file.clone(), "the page").write(&page).map_err(not_written)?;
        output::say(&format!("page: {}", visible::path(file)));
        return Ok(());
    }
    let mode: DeliveryMode = args.mode.parse().map_err(|error| match DeliveryMode::parse_list(&args.mode) {
        Ok(_) => Failure::new(Exit::Usage, "one mode is explained here; --html FILE draws several side by side"),
        Err(_) => super::refused_mode(&error),
    })?;
    let explanation = explain::explain(mode, &host).map_err(|error| super::not_run(&error))?;
    if args.json {
        return output::json(&explanation);
    }
    output::data(&render::render(&explanation, Terminal::of_stdout()))
}

/// Explains the modes of a list. A single one is compared with `base`.
fn explained(modes: &str, host: &HostProfile) -> Result<Vec<ExplainedMode>, Failure> {
    let mut modes = DeliveryMode::parse_list(modes).map_err(|error| super::refused_mode(&error))?;
    if let [mode] = modes[..] {
        modes = if mode == DeliveryMode::default() { vec![mode] } else { vec![DeliveryMode::default(), mode] };
    }
    let explained = |mode: DeliveryMode| {
        let explanation = explain::explain(mode, host)?;
        Ok(ExplainedMode { explanation, story: explain::record(mode, host)? })
    };
    modes.into_iter().map(explained).collect::<Result<_, _>>().map_err(|error| super::not_run(&error))
}
