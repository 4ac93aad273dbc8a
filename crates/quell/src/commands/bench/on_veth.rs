//! Runs experiments in the veth lab and shows their progress.

use quell_linux::signal::Interruption;
use quell_load::{HttpGet, Workload};
use quell_result::experiment::ExperimentResult;
use quell_subject::bench_load;
use quell_subject::experiment::ComparisonError;
use quell_subject::requirements::Missing;
use quell_subject::run::{BenchError, LabEvent, LabRequest, LabSpec, run as measure};
use quell_subject::server::{ServerCommand, ServerError};

use super::args::{BenchArgs, LabProtocol};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, report_recovery};
use crate::render::progress::Progress;

/// Reason why there is no result.
pub(in crate::commands) enum NotRun {
    /// An option is invalid, or signals cannot be received.
    Asked(Failure),
    /// The measurement failed, or this machine cannot run the lab.
    Bench(BenchError),
}

/// Sets up the lab and measures.
pub(super) fn run(args: &BenchArgs) -> Result<ExperimentResult, NotRun> {
    let extent = super::extent(args);
    let request = LabRequest {
        modes: super::modes(args, extent.modes()).map_err(NotRun::Asked)?,
        loads: args.loads.clone().unwrap_or_else(|| extent.loads()),
        timing: super::timing(args, extent.budget(), super::Slices::Switched),
        workload: workload(args.protocol),
        beside: args
            .beside
            .as_deref()
            .map(|command| other_server("--beside", command))
            .transpose()
            .map_err(NotRun::Asked)?,
        lab: LabSpec {
            server: server(args.server.as_deref()).map_err(NotRun::Asked)?,
            queues: args.queues.unwrap_or(1),
            generators: args.generators.unwrap_or(1),
            connections: args.connections.unwrap_or(bench_load::CONNECTIONS),
            interrupt_stand_in: !args.no_interrupt_stand_in,
            insist: args.insist,
        },
    };
    let interruption =
        Interruption::listen().map_err(|error| NotRun::Asked(Failure::new(Exit::KernelRefused, error)))?;
    let stop = interruption.flag();
    let progress = Progress::new();
    progress.doing("setting up the lab");
    let mut under = String::new();
    let outcome =
        measure(&request, &journal(), &mut |event| show(&progress, &mut under, event), &|| stop.get().is_some());
    progress.finish();
    outcome.map_err(NotRun::Bench)
}

pub(in crate::commands) fn server(command: Option<&str>) -> Result<ServerCommand, Failure> {
    match command {
        Some(command) => other_server("--server", command),
        None => Ok(ServerCommand::memcached()),
    }
}

/// Requests to the server of a lab.
pub(in crate::commands) fn workload(protocol: Option<LabProtocol>) -> Workload {
    match protocol.unwrap_or(LabProtocol::Memcached) {
        LabProtocol::Memcached => Workload::Memcached(bench_load::published_keys()),
        LabProtocol::Redis => Workload::Redis(bench_load::published_keys()),
        LabProtocol::Http => Workload::Http(HttpGet { path: "/".to_owned() }),
    }
}

fn other_server(option: &str, command: &str) -> Result<ServerCommand, Failure> {
    let words = shell_words::split(command)
        .map_err(|error| Failure::usage(format!("{option} {command:?}: {error}; quote it as for a shell")))?;
    if words.is_empty() {
        return Err(Failure::usage(format!("{option}: specify a program and its arguments")));
    }
    Ok(ServerCommand::Other(words))
}

/// Shows an event of the lab; `under` describes the current load.
pub(in crate::commands) fn show(progress: &Progress, under: &mut String, event: LabEvent<'_>) {
    match event {
        LabEvent::Recovered(found) => found.iter().for_each(|found| report_recovery(progress, found)),
        LabEvent::Unsuitable(reason) => progress.say(&reason.to_string()),
        LabEvent::LabIsUp(_) => progress.doing("measuring in the lab"),
        LabEvent::PartBegins { number, of, name } => *under = format!(", part {number} of {of} ({name})"),
        LabEvent::Begins { load, .. } => *under = super::under(load),
        LabEvent::Slice(experiment, stage) => super::show_progress(progress, under, experiment, stage),
        LabEvent::TakenDown(Ok(reverted)) => reverted.failed.iter().for_each(|(_, error)| {
            progress.say(&format!("not removed (`quell lab clean` tries again): {error}"));
        }),
        LabEvent::TakenDown(Err(error)) => progress.say(&error.to_string()),
    }
}

/// Converts the error to an exit code and a message.
pub(in crate::commands) fn failure(error: NotRun) -> Failure {
    let error = match error {
        NotRun::Asked(failure) => return failure,
        NotRun::Bench(error) => error,
    };
    match error {
        BenchError::NotPossibleHere(missing) => Failure::new(Exit::NotSupported, not_possible(&missing)),
        BenchError::Cpus(error) => Failure::new(Exit::NotSupported, error),
        BenchError::Experiment(ComparisonError::Reference { .. } | ComparisonError::NoModeLeft(_)) => {
            Failure::new(Exit::NotSupported, error)
        }
        BenchError::Experiment(ComparisonError::Design(_)) => Failure::usage(error),
        BenchError::Check(_) => Failure::new(
            Exit::VerifyFailed,
            format!("{error}; use --insist to measure anyway (the result is then marked)"),
        ),
        BenchError::Interrupted
        | BenchError::Server(ServerError::Interrupted)
        | BenchError::Experiment(ComparisonError::Interrupted) => Failure::new(Exit::Interrupted, error),
        BenchError::Lab(_) | BenchError::Switch(_) | BenchError::Change(_) => Failure::new(Exit::KernelRefused, error),
        _ => Failure::new(Exit::RolledBack, format!("{error}; the lab was removed")),
    }
}

/// Lists the missing requirements of the lab, with instructions to fix them.
pub(super) fn not_possible(missing: &[Missing]) -> String {
    let mut text = String::from("this machine cannot run the lab. Missing requirements:");
    for Missing { what, observed, fix } in missing {
        text.push_str(&format!("\n  {what}\n    found: {observed}\n    to fix this: {fix}"));
    }
    text
}
