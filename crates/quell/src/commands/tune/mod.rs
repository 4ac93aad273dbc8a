//! `quell tune`: searches the values of a delivery mode that are best for a goal, confirms them on fresh slices, and
//! writes a profile. The subject is the model of a host.

mod args;
mod on_model;
mod profile;

use std::path::Path;

use quell_bench::facts::ModelFacts;
use quell_linux::visible;
use quell_tune::{TUNE_SCHEMA, TuneEnd, TuneResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use args::TuneArgs;

use crate::commands::bench::results;
use crate::exit::{Exit, Failure};
use crate::file::{self, Destination};
use crate::output;
use crate::render::tune as render;

/// Result file: the modelled server, and the search.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct TuneFile {
    /// Version of Quell that made the search.
    quell_version: String,
    /// Server that was simulated.
    model: ModelFacts,
    /// The search and its answer.
    search: TuneResult,
}

/// Runs the command.
///
/// # Errors
/// Fails with the exit code of the error.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    if args.schema {
        return output::json(&schemars::schema_for!(TuneFile));
    }
    if let Some(file) = &args.show {
        return show(&read(file)?, args.json);
    }
    let request = on_model::Request::new(args)?;
    if args.advise {
        return request.advise(args.json);
    }
    if args.dry_run {
        return output::data(&request.plan_text());
    }
    let result_file = results::destination(args.result.as_ref(), "tune")?;
    result_file.check_writable()?;
    let profile_file = args.profile.clone().map(|path| Destination::named(path, "the profile"));
    profile_file.as_ref().map(Destination::check_writable).transpose()?;
    output::say(request.plan_text().trim_end());
    let model = request.model();
    let search = request.tune()?;
    let file = TuneFile { quell_version: env!("CARGO_PKG_VERSION").to_owned(), model, search };
    finish(args, &file, &result_file, profile_file.as_ref())
}

/// Writes the files and prints the result. If one of them fails, the others are still done.
fn finish(
    args: &TuneArgs,
    file: &TuneFile,
    result_file: &Destination,
    profile_file: Option<&Destination>,
) -> Result<(), Failure> {
    let written = result_file.write_json(file);
    let again = shell_words::quote(&result_file.path().to_string_lossy()).into_owned();
    let result = &file.search;
    let found = result.answer.mode();
    let of_profile = match (profile_file, found) {
        (Some(destination), Some(mode)) => destination.write(&profile::text(&file.model, result, mode, &again)),
        _ => Ok(()),
    };
    show(file, args.json)?;
    written?;
    of_profile?;
    output::say(&format!(
        "\nresult file: {} (to print it again: quell tune --show {again})",
        visible::path(result_file.path())
    ));
    match (profile_file, found) {
        (Some(file), Some(_)) => output::say(&format!("profile: {}", visible::path(file.path()))),
        (Some(file), None) => output::say(&format!("no profile was written to {}", visible::path(file.path()))),
        (None, _) => {}
    }
    match &result.end {
        TuneEnd::Answered => Ok(()),
        TuneEnd::Interrupted => {
            Err(Failure::new(Exit::Interrupted, "interrupted: the table contains what was observed so far"))
        }
        end @ TuneEnd::PresentNotSettable { .. } => Err(Failure::new(Exit::NotSupported, render::end(end))),
        end @ (TuneEnd::GuardUnreadable { .. } | TuneEnd::MetricUnreadable { .. }) => {
            Err(Failure::new(Exit::VerifyFailed, render::end(end)))
        }
        end @ TuneEnd::SubjectFailed { .. } => Err(Failure::new(Exit::RolledBack, render::end(end))),
    }
}

fn show(file: &TuneFile, json: bool) -> Result<(), Failure> {
    if json { output::json(file) } else { output::data(&render::render(&file.model, &file.search)) }
}

fn read(file: &Path) -> Result<TuneFile, Failure> {
    let no_result = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("{} is not a result of quell tune: {why}", visible::path(file)))
    };
    let result: TuneFile = serde_json::from_str(&file::read_json(file)?).map_err(|error| no_result(&error))?;
    match result.search.schema == TUNE_SCHEMA {
        true => Ok(result),
        false => Err(no_result(&format_args!("its schema is {:?}, expected {TUNE_SCHEMA:?}", result.search.schema))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_command_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("result.json");
        std::fs::write(&file, "{\"schema\": \"quell-experiment/1\"}").unwrap();
        let failure = read(&file).unwrap_err();
        assert!(failure.text.contains("is not a result of quell tune"), "{}", failure.text);
    }
}
