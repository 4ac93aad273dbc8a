//! `quell sim hosts`: lists the shipped host profiles, or prints one as TOML.

use clap::Args;
use quell_sim::HostProfile;
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Failure;
use crate::output;
use crate::render::terminal::Terminal;

/// Options of `quell sim hosts`.
#[derive(Debug, Args)]
pub(crate) struct HostsArgs {
    /// Print this host profile as TOML, with unit, range, meaning and source of every constant.
    #[arg(value_name = "NAME", conflicts_with = "json")]
    name: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Host")]
struct Entry {
    name: String,
    description: String,
    cpus: usize,
    cpu_ghz: f64,
    /// Packets per receive queue.
    ring_size: usize,
}

/// Output of `quell sim hosts --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct HostsReport {
    schema: &'static str,
    hosts: Vec<Entry>,
}

impl HostsReport {
    pub(in crate::commands) const SCHEMA: &str = "quell-sim-hosts/1";
}

/// Runs the command.
///
/// # Errors
/// When the host is unknown.
pub(super) fn hosts(args: &HostsArgs) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        return output::data(&HostProfile::shipped(name).map_err(Failure::usage)?.to_toml());
    }
    let hosts = HostProfile::shipped_names().map(HostProfile::shipped).collect::<Result<Vec<_>, _>>();
    let hosts: Vec<Entry> = hosts.map_err(Failure::usage)?.into_iter().map(entry).collect();
    if args.json {
        return output::json(&HostsReport { schema: HostsReport::SCHEMA, hosts });
    }
    let terminal = Terminal::of_stdout();
    let described =
        hosts.iter().map(|host| format!("{}\n{}\n", host.name, terminal.fill(&host.description, "  ", "  ")));
    let hint = "\nTo change a profile: quell sim hosts NAME > mine.toml, edit it, and use --host mine.toml\n";
    output::prose(&(described.collect::<String>() + hint))
}

fn entry(host: HostProfile) -> Entry {
    let HostProfile { name, description, cpus, cpu_ghz, ring_size, .. } = host;
    Entry { name, description, cpus, cpu_ghz, ring_size }
}
