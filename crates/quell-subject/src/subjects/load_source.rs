//! The load on programs during a measurement, and its processes.

use std::cell::RefCell;
use std::io::{PipeReader, PipeWriter};
use std::time::Duration;

use quell_linux::process::{Output, Spawn};
use quell_linux::signal::Interruption;

use super::helper_command::{EndedCommand, clients_ended, load_ended};
use super::{HelperCommand, HelperError, Operator, Tools, Unanswered};
use crate::experiment::clients::RemoteClients;
use crate::question::SubjectStep;

/// Time limit for a load to end.
pub(super) const LOAD_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for the clients' command to end all clients. `mpirun` takes 2 s.
const CLIENTS_END_WITHIN: Duration = Duration::from_secs(10);

/// What generates load on programs during a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadSource {
    /// Nothing: the programs have their live traffic.
    Live,
    /// A command on this host.
    Command(Vec<String>),
    /// A command that starts clients on other machines, which measure too.
    Clients(Vec<String>),
}

impl LoadSource {
    /// Words of a command on this host.
    pub(super) fn command(&self) -> Option<&[String]> {
        match self {
            Self::Command(words) => Some(words),
            Self::Live | Self::Clients(_) => None,
        }
    }
}

/// What [`under_load`] gives to a measurement.
pub(super) struct UnderLoad<'a> {
    pub(super) clients: Option<RemoteClients>,
    /// Whether there is a load besides live traffic.
    pub(super) has_load: bool,
    /// Returns true after a signal, and after the load has ended.
    pub(super) stopped: &'a dyn Fn() -> bool,
    /// Starts the load of a command again, so that it connects again. Does nothing for other loads.
    pub(super) restart: &'a dyn Fn() -> Result<(), HelperError>,
}

/// Starts the load, runs `measure`, and ends the load. Returns its result, and why the load ended if it did so before.
pub(super) fn under_load<T>(
    tools: &Tools<'_>,
    source: &LoadSource,
    operator: &mut dyn Operator,
    measure: impl FnOnce(UnderLoad<'_>, &mut dyn Operator) -> Result<T, Unanswered>,
) -> Result<(T, Option<String>), Unanswered> {
    let interruption = Interruption::listen_and_never_stop().map_err(Unanswered::Signals)?;
    let flag = interruption.flag();
    let (load, ends_within, sentence) = match source {
        LoadSource::Clients(words) => {
            (Some(start_clients(tools, words)?), CLIENTS_END_WITHIN, clients_ended as fn(&EndedCommand) -> String)
        }
        LoadSource::Command(words) => {
            (Some((HelperCommand::start(tools, words, "load")?, None)), LOAD_ENDS_WITHIN, load_ended as _)
        }
        LoadSource::Live => (None, LOAD_ENDS_WITHIN, load_ended as _),
    };
    let (load, pipes) = load.unzip();
    let load = RefCell::new(load);
    let stopped = || flag.get().is_some() || load.borrow_mut().as_mut().is_some_and(HelperCommand::has_ended);
    let restart = || {
        let LoadSource::Command(words) = source else { return Ok(()) };
        // Two loads would have one journal.
        load.take().map_or(Ok(None), |load| load.end(ends_within))?;
        load.replace(Some(HelperCommand::start(tools, words, "load")?));
        Ok(())
    };
    let has_load = load.borrow().is_some();
    let connected = match (source, pipes.flatten()) {
        (LoadSource::Clients(words), Some((orders, notices))) => {
            operator.follow(SubjectStep::Doing("waiting for the clients"));
            let connected = RemoteClients::connect(words, orders, notices, &stopped).map_err(Unanswered::from);
            connected.and_then(|clients| clients.ok_or(Unanswered::Interrupted).map(Some))
        }
        _ => Ok(None),
    };
    // `measure` owns the clients, so their standard input is closed when it returns.
    let measured = connected
        .and_then(|clients| measure(UnderLoad { clients, has_load, stopped: &stopped, restart: &restart }, operator));
    let Some(load) = load.take() else { return measured.map(|measured| (measured, None)) };
    let ended = load.end(ends_within)?;
    // After a signal, the clients end because their input is closed.
    let why = ended.as_ref().filter(|_| flag.get().is_none()).map(sentence);
    match (measured, why) {
        (Err(error), Some(why)) if is_interrupted(&error) => Err(Unanswered::LoadEnded(why)),
        (measured, why) => measured.map(|measured| (measured, why)),
    }
}

fn is_interrupted(error: &Unanswered) -> bool {
    use crate::experiment::ComparisonError;
    matches!(error, Unanswered::Interrupted | Unanswered::Comparison(ComparisonError::Interrupted))
}

/// A command, and the pipes to its standard input and from its standard output, if it has them.
type WithPipes = (HelperCommand, Option<(PipeWriter, PipeReader)>);

/// Starts the command of clients on other machines, with pipes.
fn start_clients(tools: &Tools<'_>, words: &[String]) -> Result<WithPipes, HelperError> {
    let pipe = || std::io::pipe().map_err(HelperError::Pipe);
    let ((input, orders), (notices, output)) = (pipe()?, pipe()?);
    let with_pipes = |spawn: Spawn<'static>| spawn.stdin(input).stdout(Output::Pipe(output));
    let command = HelperCommand::start_with(tools, words, "clients", with_pipes)?;
    Ok((command, Some((orders, notices))))
}
