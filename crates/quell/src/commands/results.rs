//! `quell results`: lists stored results, prints one again, and prints the schemas of documents.

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use quell_host::findings;
use quell_linux::output_file::OutputFile;
use quell_linux::shell;
use quell_linux::visible;
use quell_report::picture;
use quell_result::list::{ListedContent, ListedResult, ResultsList};
use quell_result::store::{self, ResultStore, StoredResult};
use quell_result::{Document as _, DocumentKind, ResultDocument};
use quell_sim::explain::Explanation;
use quell_sim::sweep::in_parallel;
use schemars::{JsonSchema, schema_for};

use super::conformance::ScenariosReport;
use super::doctor::{DoctorReport, RulesReport};
use super::lab::LabsReport;
use super::respond::RespondReport;
use super::sim::{self, HostsReport};
use super::tune::AdviceReport;
use super::vm::KernelsReport;
use super::xdp::XdpRespondReport;
use crate::exit::Failure;
use crate::output;
use crate::render::attach::detached::DetachReport;
use crate::render::plan_tree::{PlanReport, ReassertReport};
use crate::render::results::{self, Summary, summary};
use crate::render::reverted::{ConfirmReport, RevertReport};
use crate::render::status::StatusReport;
use crate::render::terminal::Terminal;
use crate::render::{attach, document};

/// Documents that commands print and no command reads.
const REPORTS: [DocumentKind; 17] = [
    report::<DoctorReport<'_>>(findings::SCHEMA),
    report::<RulesReport>(RulesReport::SCHEMA),
    report::<attach::Report<'_>>(attach::Report::SCHEMA),
    report::<DetachReport>(DetachReport::SCHEMA),
    report::<PlanReport<'_>>(PlanReport::SCHEMA),
    report::<ReassertReport>(ReassertReport::SCHEMA),
    report::<ConfirmReport>(ConfirmReport::SCHEMA),
    report::<StatusReport>(StatusReport::SCHEMA),
    report::<RevertReport>(RevertReport::SCHEMA),
    report::<AdviceReport>(AdviceReport::SCHEMA),
    report::<HostsReport>(HostsReport::SCHEMA),
    report::<Explanation>(Explanation::SCHEMA),
    report::<LabsReport>(LabsReport::SCHEMA),
    report::<KernelsReport>(KernelsReport::SCHEMA),
    report::<RespondReport>(RespondReport::SCHEMA),
    report::<XdpRespondReport>(XdpRespondReport::SCHEMA),
    report::<ScenariosReport<'_>>(ScenariosReport::SCHEMA),
];

const fn report<R: JsonSchema>(schema: &'static str) -> DocumentKind {
    DocumentKind { schema, json_schema: || schema_for!(R) }
}

/// Options of `quell results`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ResultsArgs {
    /// Action on results [default: list them, the newest one first]
    #[command(subcommand)]
    command: Option<ResultsCommand>,
    /// Print the list as JSON.
    #[arg(short, long)]
    json: bool,
}

/// Actions on results.
#[derive(Debug, Subcommand)]
enum ResultsCommand {
    /// Print a result, or another document that has a schema (`quell results schema --help` lists them).
    Show(ShowResultArgs),
    /// Print the JSON Schema of a document.
    Schema {
        /// Kind of document [default: list all kinds]
        #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(kinds().map(|kind| kind.name())))]
        name: Option<String>,
    },
}

/// Options of `quell results show`.
#[derive(Debug, Args)]
struct ShowResultArgs {
    /// ID of a stored result or its unique beginning, or a file: its path has a slash or ends in .json
    #[arg(value_name = "ID|FILE")]
    result: PathBuf,
    /// Also print absolute figures and counters of each mode; of a snapshot, every queue and device.
    #[arg(long)]
    details: bool,
    /// Draw an SVG image of latency and CPU time per request of each mode.
    #[arg(long, conflicts_with_all = ["json", "details"])]
    svg: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When there is no such result, or it cannot be read.
pub(crate) fn run(args: &ResultsArgs) -> Result<(), Failure> {
    match &args.command {
        None => list(args.json),
        Some(ResultsCommand::Show(args)) => show(args),
        Some(ResultsCommand::Schema { name }) => schema(name.as_deref()),
    }
}

/// Says where a result was stored, and the command that prints it again.
pub(super) fn say_where(file: &OutputFile) {
    let path = visible::path(file.path());
    output::say(&format!("\nresult file: {path}\nto print it again: {}", show_command(file)));
}

/// Command that prints a stored result again.
pub(super) fn show_command(file: &OutputFile) -> String {
    let argument = ResultStore::of_user().argument_for(file.path());
    format!("quell results show {}", shell::word(&argument))
}

fn list(json: bool) -> Result<(), Failure> {
    let store = ResultStore::of_user();
    let stored = store.list().map_err(Failure::usage)?;
    // The verdicts of experiments are computed from their slices.
    let mut results = in_parallel(stored.len(), sim::threads(), |index| listed(&stored[index]), |_| {});
    results.sort_by(|one, other| (other.started_unix_s, &other.id).cmp(&(one.started_unix_s, &one.id)));
    let directory = visible::path(store.directory());
    let list = ResultsList { schema: ResultsList::SCHEMA.to_owned(), directory, results };
    match json {
        true => output::json(&list),
        false => output::data(&results::render(&list, Terminal::of_stdout())),
    }
}

fn listed(stored: &StoredResult) -> ListedResult {
    let (started_unix_s, content) = match stored.read() {
        Ok(read) => {
            let Summary { started_unix_s, subject, question, answer } = summary(&read);
            let (document, decision) =
                (read.kind().schema.to_owned(), quell_report::words::decision_of(&read).map(Box::new));
            (started_unix_s, ListedContent::Read { document, subject, question, answer, decision })
        }
        Err(error) => (None, ListedContent::Unreadable { reason: error.reason() }),
    };
    ListedResult { id: stored.id.clone(), started_unix_s: started_unix_s.or_else(|| stored.changed_unix_s()), content }
}

/// Reads a stored result or a file.
pub(super) fn find(result: &Path) -> Result<ResultDocument, Failure> {
    let argument = result.to_string_lossy();
    let read = match store::is_path(&argument) {
        true => store::read(result),
        false => ResultStore::of_user().find(&argument).map_err(Failure::usage)?.read(),
    };
    read.map_err(Failure::usage)
}

fn show(args: &ShowResultArgs) -> Result<(), Failure> {
    let read = find(&args.result)?;
    if args.json {
        return output::json(&read);
    }
    if args.svg {
        return output::data(&svg(&read)?);
    }
    let terminal = Terminal::of_stdout();
    output::styled(&document::render(&read, args.details, terminal)?, terminal)
}

fn svg(document: &ResultDocument) -> Result<String, Failure> {
    let image = match document {
        ResultDocument::Experiment(result) => picture::draw(result),
        _ => None,
    };
    image.ok_or_else(|| Failure::usage("the result contains no latency of an open loop, so there is nothing to draw"))
}

fn schema(name: Option<&str>) -> Result<(), Failure> {
    match kinds().find(|kind| Some(kind.name()) == name) {
        Some(kind) => output::json(&(kind.json_schema)()),
        None => output::data(&kinds().map(|kind| format!("{}\n", kind.name())).collect::<String>()),
    }
}

/// Every kind of document that has a schema.
fn kinds() -> impl Iterator<Item = DocumentKind> {
    ResultDocument::KINDS.iter().chain(&REPORTS).copied()
}
