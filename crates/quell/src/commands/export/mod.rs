//! `quell export`: what `quell top` shows, for Prometheus: over HTTP, or as a file for node_exporter's textfile collector.

mod encode;
mod journals;
mod server;
mod totals;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use clap::Args;
use hyper::body::Bytes;
use quell_linux::netns::Namespace;
use quell_linux::signal::Interruption;
use quell_linux::visible;
use quell_observer::Observer;
use tempfile::NamedTempFile;

use self::encode::{Exposition, encode};
use self::journals::JournalReader;
use self::server::AllowedHosts;
use self::totals::{Totals, namespace_names};
use super::snapshot_scope::{ScopeArgs, not_taken};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// Name of the file in the directory of the textfile collector.
const TEXTFILE: &str = "quell.prom";

/// Options of `quell export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9955", value_parser = address, conflicts_with = "textfile")]
    listen: SocketAddr,
    /// Answer requests that name this host, besides the address of --listen, localhost and the host name; for a proxy or a
    /// DNS name. Comma-separated.
    #[arg(long, value_name = "HOST", value_delimiter = ',', conflicts_with = "textfile")]
    allow_host: Vec<String>,
    /// Write `quell.prom` to this directory of node_exporter's textfile collector instead of listening.
    #[arg(long, value_name = "DIR")]
    textfile: Option<PathBuf>,
    /// Seconds between two updates; set it to the scrape interval.
    #[arg(short, long, value_name = "S", default_value = "10", value_parser = super::top::interval)]
    interval: Duration,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:9955".to_owned())
}

/// The latest exposition, shared with the server and with the responses that are being sent. Absent before the first
/// update.
type Shared = Arc<RwLock<Option<Served>>>;

/// An exposition whose texts are shared by all responses.
#[derive(Debug, Clone)]
struct Served {
    open_metrics: Bytes,
    text: Bytes,
}

impl From<Exposition> for Served {
    fn from(exposition: Exposition) -> Self {
        Self { open_metrics: exposition.open_metrics.into(), text: exposition.text.into() }
    }
}

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::new(Exit::KernelRefused, error);
    let interruption = Interruption::listen().map_err(refused)?;
    let own_namespace = Namespace::current().map_err(Failure::refused)?.inode();
    let (scope, programs) = args.scope.scope()?;
    let mut observer = Observer::begin(scope, programs, journal()).map_err(|error| not_taken(&error))?;
    let mut totals = Totals::new(own_namespace);
    let mut journals = JournalReader::new(journal());
    let textfile = args.textfile.as_deref().map(|directory| Textfile { directory });
    let shared: Shared = Arc::default();
    if args.textfile.is_none() {
        let address =
            server::start(args.listen, AllowedHosts::new(args.listen.ip(), &args.allow_host), Arc::clone(&shared))?;
        output::say(&format!("listening on http://{address}/metrics"));
    }
    // The first update follows soon, so that the first scrape has values.
    let mut pause = args.interval.min(Duration::from_secs(1));
    while interruption.wait(pause).map_err(refused)?.is_none() {
        totals.add(&observer.report().map_err(|error| not_taken(&error))?);
        if let Some(state) = journals.read() {
            totals.journals = state;
        }
        totals.namespaces = namespace_names();
        let exposition = encode(&totals);
        match &textfile {
            Some(textfile) => textfile.write(&exposition.text)?,
            None => *shared.write().unwrap_or_else(PoisonError::into_inner) = Some(exposition.into()),
        }
        pause = args.interval;
    }
    Ok(())
}

/// The file for node_exporter. It is removed at the end, because node_exporter would serve its values for ever.
struct Textfile<'a> {
    directory: &'a Path,
}

impl Textfile<'_> {
    /// Replaces the file at once, so that the collector never reads a part of it. Every user can read it.
    fn write(&self, text: &str) -> Result<(), Failure> {
        use std::os::unix::fs::PermissionsExt as _;
        let write = || {
            // The collector reads only names that end with `.prom`.
            let mut file = tempfile::Builder::new().prefix(".quell").suffix(".tmp").tempfile_in(self.directory)?;
            file.write_all(text.as_bytes())?;
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
            NamedTempFile::persist(file, self.directory.join(TEXTFILE)).map_err(|error| error.error)
        };
        let failed = |error: std::io::Error| {
            let error = error.to_string();
            // tempfile adds the path of its temporary file.
            let cause = error.split(" at path ").next().unwrap_or_default();
            let text = format!("writing {TEXTFILE} to {}: {cause}", visible::path(self.directory));
            Failure::new(Exit::KernelRefused, text)
        };
        write().map(drop).map_err(failed)
    }
}

impl Drop for Textfile<'_> {
    fn drop(&mut self) {
        // A file that was never written, or that somebody removed, needs no removal.
        let _ = std::fs::remove_file(self.directory.join(TEXTFILE));
    }
}
