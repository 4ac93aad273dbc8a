//! `quell show`: the host as one picture.

use clap::Args;
use quell_host::picture;

use super::picture_scope::{ScopeArgs, not_taken};
use crate::exit::Failure;
use crate::output;
use crate::render::show_tree;
use crate::render::terminal::Terminal;

/// Options of `quell show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// Every queue on a line of its own, also where several are alike, and every device, also without NAPI.
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
    let (picture, _) = picture::take(&args.scope.scope()).map_err(|error| not_taken(&error))?;
    if args.json {
        return output::json(&picture);
    }
    let style = show_tree::Style { terminal: Terminal::of_stdout(), verbose: args.verbose };
    output::styled(&show_tree::tree(&picture, style), style.terminal)
}
