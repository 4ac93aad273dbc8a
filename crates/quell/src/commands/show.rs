//! `quell show`: the host as one picture.

use clap::Args;
use quell_host::picture::{self, Scope, TakeError};
use quell_linux::Pid;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::show_tree;
use crate::render::terminal::Terminal;

/// Options of `quell show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Only these processes, with the devices of their network namespaces [all processes with sockets]
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// Only this device, and the processes that its packets reach.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Another network namespace, by its name in /run/netns.
    #[arg(long, value_name = "NAME", conflicts_with = "pids")]
    netns: Option<String>,
    /// Every network namespace of the host.
    #[arg(long, conflicts_with_all = ["netns", "pids"])]
    all: bool,
    /// Every queue on a line of its own, also where several are alike.
    #[arg(short, long)]
    verbose: bool,
    /// Print the JSON Schema of pictures instead of one.
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When what was asked for is not there, or the kernel refuses to list devices or processes.
pub(crate) fn run(args: &ShowArgs) -> Result<(), Failure> {
    if args.schema {
        return output::json(&picture::Picture::json_schema());
    }
    let scope =
        Scope { netns: args.netns.clone(), whole_host: args.all, pids: args.pids.clone(), device: args.device.clone() };
    let (picture, _) = picture::take(&scope).map_err(failure)?;
    if args.json {
        return output::json(&picture);
    }
    let style = show_tree::Style { terminal: Terminal::of_stdout(), verbose: args.verbose };
    output::data(&show_tree::tree(&picture, style))
}

fn failure(error: TakeError) -> Failure {
    let exit = match &error {
        TakeError::NoSuchProcess(_) | TakeError::NoSuchDevice { .. } => Exit::Usage,
        TakeError::Namespace(error) if error.is_absent() => Exit::Usage,
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, error)
}
