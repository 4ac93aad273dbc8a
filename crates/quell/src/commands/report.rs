//! `quell report`: writes an HTML page that carries results to people who were not there.

use std::path::{Path, PathBuf};

use clap::Args;
use quell_linux::output_file::OutputFile;
use quell_linux::visible;
use quell_report::page::{self, ReportSource};
use quell_result::ResultDocument;

use super::results;
use crate::exit::{Failure, not_written};
use crate::output;

/// Options of `quell report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// IDs of stored results or their unique beginnings, or files: their paths have a slash or end in .json
    #[arg(value_name = "ID|FILE", required = true)]
    result: Vec<PathBuf>,
    /// Write the page to this file.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// When a result cannot be read or shown, or the page cannot be written.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let source = |result: &PathBuf| {
        let name = result.file_name().unwrap_or(result.as_os_str()).to_string_lossy().into_owned();
        Ok(ReportSource { name, document: results::find(result)? })
    };
    let sources = args.result.iter().map(source).collect::<Result<Vec<_>, Failure>>()?;
    write(&page::page(&sources).map_err(Failure::usage)?, &args.output)
}

/// Checks that the page of a measurement can be written, before minutes of work.
pub(super) fn check_writable(page: Option<&PathBuf>) -> Result<(), Failure> {
    page.map_or(Ok(()), |page| file(page).check_writable().map_err(Failure::usage))
}

/// Writes the page of a result that was just measured, if it was asked for.
pub(super) fn write_beside(
    result: &OutputFile,
    document: ResultDocument,
    page: Option<&PathBuf>,
) -> Result<(), Failure> {
    let Some(page) = page else { return Ok(()) };
    let name = result.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    match page::page(&[ReportSource { name, document }]) {
        Ok(html) => write(&html, page),
        Err(error) => {
            output::say(&format!("no report: {error}"));
            Ok(())
        }
    }
}

fn write(html: &str, page: &Path) -> Result<(), Failure> {
    file(page).write(html).map_err(not_written)?;
    output::say(&format!("report: {}", visible::path(page)));
    Ok(())
}

fn file(page: &Path) -> OutputFile {
    OutputFile::named(page.to_owned(), "the report")
}
