//! Compares modes on a command that `quell run` starts for each slice. This also works for modes that need the preload
//! library.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_bench::experiment::command::{CommandFailure, CommandRunner};
use quell_bench::experiment::{CommandRequest, run_command};
use quell_bench::replay::ServerPlace;
use quell_bench::subject::{HelperCommand, HelperError, LOAD_ENDS_WITHIN, Tools, load_ended};
use quell_change::journal::Journal;
use quell_experiment::SliceStage;
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;
use quell_linux::signal::Interruption;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::experiment::ExperimentResult;

use super::args::BenchArgs;
use super::on_programs::{BUDGET, QUICK_BUDGET};
use crate::commands::asked;
use crate::commands::attach::{ask, keeper};
use crate::commands::run::check_possible;
use crate::commands::run::verify::why_without_effect;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;

/// Default modes. The last two need the preload library.
const MODES: [&str; 5] = ["base", "defer200", "suspend200", "fullbusy", "sockpoll50"];
/// Time limit for the command to exit and for `quell run` to restore the queues.
const COMMAND_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Runs the experiment.
pub(super) fn run(args: &BenchArgs) -> Result<ExperimentResult, Failure> {
    let judges = super::judges(args)?;
    let load = super::words(args.load.as_deref())?;
    let budget = if args.quick { QUICK_BUDGET } else { BUDGET };
    let (modes, timing) = (super::modes(args, &MODES)?, super::timing(args, budget, super::Slices::Started));
    let request = CommandRequest { modes, timing, command: args.command.clone(), load, judges };
    let journal = journal();
    revert_killed_runs(&journal).map_err(Failure::refused)?;
    output::say(&plan(&request));
    ask::unless(args.yes, "start the command under these modes?", "--yes")?;
    let interruption =
        Interruption::listen_and_never_stop().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let quell = quell()?;
    let mut runner = Runner::new(&quell, &journal, &request.command, request.load.as_deref());
    let progress = Progress::new();
    let watch = &mut |experiment: &_, stage: SliceStage<'_>| super::show_progress(&progress, "", experiment, stage);
    let result = run_command(&request, None, &mut runner, watch, &stopped);
    progress.finish();
    result.map_err(|error| asked::of_comparison(&error))
}

fn plan(request: &CommandRequest) -> String {
    let modes: Vec<String> = request.modes.iter().map(ToString::to_string).collect();
    format!(
        "starts `{}` for each slice of {} ms, under {}, for at most {} s; its connections are closed after each slice",
        visible::name(&shell_words::join(&request.command)),
        request.timing.slice_ms + request.timing.settle_ms,
        modes.join(", "),
        request.timing.budget_ms / 1_000,
    )
}

/// Path of this program, for commands that are started with its help.
pub(in crate::commands) fn quell() -> Result<String, Failure> {
    let quell = std::env::current_exe().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    Ok(quell.to_string_lossy().into_owned())
}

/// Starts the command with `quell run`, which sets the mode and restores the queues when the command exits.
pub(in crate::commands) struct Runner<'a> {
    /// Path of this program.
    quell: &'a str,
    journal: &'a Journal,
    command: &'a [String],
    load: Option<&'a [String]>,
    /// Absent for a command in the namespace and on the CPUs of this process.
    place: Option<ServerPlace>,
    server: Option<HelperCommand>,
    running_load: Option<HelperCommand>,
    /// Modes under which the command can be started.
    possible: BTreeSet<String>,
}

impl<'a> Runner<'a> {
    pub(in crate::commands) fn new(
        quell: &'a str,
        journal: &'a Journal,
        command: &'a [String],
        load: Option<&'a [String]>,
    ) -> Self {
        let (place, server, running_load) = (None, None, None);
        Self { quell, journal, command, load, place, server, running_load, possible: BTreeSet::new() }
    }

    fn tools(&self) -> Tools<'_> {
        Tools { journal: self.journal, start_keeper: keeper::start }
    }

    /// The same in another place.
    pub(super) fn at(self, place: ServerPlace) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Checks whether the command can be started under a mode. The exit code of the started command cannot show this,
    /// because the command may use the same codes.
    fn check_possible(&self, mode: &DeliveryMode) -> Result<(), CommandFailure> {
        let check = || check_possible(mode, self.command);
        let checked = match &self.place {
            Some(place) => place.namespace.run(check).map_err(|error| CommandFailure::Failed(error.to_string()))?,
            None => check(),
        };
        checked.map_err(|failure| CommandFailure::NotPossible(visible::name(&failure.text).into_owned()))
    }
}

impl CommandRunner for Runner<'_> {
    fn start(&mut self, mode: &DeliveryMode) -> Result<Pid, CommandFailure> {
        if self.possible.insert(mode.to_string()) {
            self.check_possible(mode)?;
        }
        let run = [self.quell, "run", &mode.to_string(), "--"].map(str::to_owned);
        let words = [&run[..], self.command].concat();
        let server = HelperCommand::start_with(&self.tools(), &words, "server", |spawn| match &self.place {
            Some(place) => spawn.netns(&place.namespace).cpus(place.cpus.clone()),
            None => spawn,
        });
        let server = server.map_err(failed)?;
        Ok(self.server.insert(server).pid())
    }

    fn listens(&mut self) -> Result<(), CommandFailure> {
        let Some(words) = self.load else { return Ok(()) };
        self.running_load = Some(HelperCommand::start(&self.tools(), words, "load").map_err(failed)?);
        Ok(())
    }

    fn check_running(&mut self) -> Result<(), CommandFailure> {
        if let Some(ended) = self.server.as_mut().and_then(HelperCommand::how_it_ended) {
            let command = visible::name(&shell_words::join(self.command)).into_owned();
            let why = format!("the command `{command}` exited ({}); its stderr: {}", ended.status, ended.printed);
            return Err(CommandFailure::Failed(why));
        }
        match self.running_load.as_mut().and_then(HelperCommand::how_it_ended) {
            Some(ended) => Err(CommandFailure::Failed(load_ended(&ended))),
            None => Ok(()),
        }
    }

    fn why_without_effect(&self, mode: &DeliveryMode, snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> Option<String> {
        why_without_effect(mode, self.command.first()?, snapshot, pids)
    }

    fn stop(&mut self) -> Result<(), CommandFailure> {
        let load = self.running_load.take().map(|load| load.end(LOAD_ENDS_WITHIN));
        let server = self.server.take().map(|server| server.end(COMMAND_ENDS_WITHIN));
        for ended in [load, server].into_iter().flatten() {
            ended.map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(error: HelperError) -> CommandFailure {
    CommandFailure::Failed(error.to_string())
}
