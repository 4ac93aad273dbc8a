//! `quell show`: prints a snapshot of the host.

use clap::Args;
use quell_host::plan::as_profile;
use quell_host::snapshot::{self, Device, Snapshot};
use quell_linux::netns::Namespace;
use quell_linux::visible;

use super::snapshot_scope::{ScopeArgs, not_taken};
use crate::exit::Failure;
use crate::output;
use crate::render::show_tree;
use crate::render::terminal::Terminal;

/// Options of `quell show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// Print every queue even if several are equal, and every device even without NAPI
    #[arg(long)]
    details: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
    /// Print the settings of the devices as a profile for `quell apply`.
    #[arg(long, conflicts_with = "json")]
    as_profile: bool,
}

pub(crate) fn run(args: &ShowArgs) -> Result<(), Failure> {
    // A profile covers one network namespace; attachments can reach into others.
    let scope = if args.as_profile { args.scope.alone()? } else { args.scope.with_attachments()? };
    let (snapshot, _) = snapshot::take(&scope).map_err(|error| not_taken(&error))?;
    if args.json {
        return output::json(&snapshot);
    }
    if args.as_profile {
        return profile(&snapshot, args);
    }
    let style = show_tree::Style { terminal: Terminal::of_stdout(), details: args.details };
    output::styled(&show_tree::tree(&snapshot, style), style.terminal)
}

fn is_current(namespace: u64) -> bool {
    Namespace::current().is_ok_and(|current| current.inode() == namespace)
}

const PROFILE_HEAD: &str = "\
# Settings of the devices, printed by `quell show --as-profile`. As long as none of them changes, `quell apply` of this
# file changes nothing. It includes the queue settings of running `quell attach` and `quell run`, and excludes sysctls,
# epolls and sockets. A comment marks a setting that a profile cannot express, or that could not be read.
";

/// Prints the profile. Like the tree, it includes devices without NAPI only with `--details` or by name.
fn profile(snapshot: &Snapshot, args: &ShowArgs) -> Result<(), Failure> {
    let is_wanted = |device: &Device| {
        let is_named = snapshot.scope.device.as_deref() == Some(device.name.as_str());
        args.details || is_named || device.napis.known_elements().next().is_some()
    };
    let text = as_profile(snapshot, is_wanted).map_err(Failure::usage)?;
    output::data(PROFILE_HEAD)?;
    if let Some(namespace) = snapshot.devices.first().and_then(|device| snapshot.namespace(device.namespace))
        && let Some(name) = namespace.name().filter(|_| !is_current(namespace.inode))
    {
        output::data(&format!(
            "# Of network namespace {}: give `quell apply` its name with --netns.\n",
            visible::name(name)
        ))?;
    }
    let left_out = snapshot.devices.iter().filter(|device| device.name != "lo" && !is_wanted(device));
    let left_out: Vec<_> = left_out.map(|device| visible::name(&device.name)).collect();
    if !left_out.is_empty() {
        output::data(&format!("# Devices without NAPI (included by --details): {}\n", left_out.join(", ")))?;
    }
    output::data(&text)
}
