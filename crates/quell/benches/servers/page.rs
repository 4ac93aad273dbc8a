//! The page that the figures are published on: what was measured and how, around the table.

use quell_bench::result::HostFacts;
use quell_linux::proc::ProcRoot;

use crate::Options;
use crate::client::CONNECTIONS;

/// The whole page.
pub(crate) fn page(options: &Options, table: &str) -> String {
    let host = HostFacts::read(&ProcRoot::default()).unwrap();
    let Options { mode, rounds, seconds, .. } = options;
    format!(
        "# Servers from packages under `{mode}`\n\n\
         Linux {} on {}, {} CPUs. {rounds} interleaved rounds, {seconds} s each, {CONNECTIONS} connections.\n\n{table}",
        host.kernel_release,
        host.cpu_model.as_deref().unwrap_or("an unknown processor"),
        host.cpus.len(),
    )
}
