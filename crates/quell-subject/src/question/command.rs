//! A command as a subject: `quell run` starts it under the mode of each slice. This also works for modes that need the preload
//! library.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use quell_experiment::SliceStage;
use quell_host::snapshot::Snapshot;
use quell_linux::process::Spawn;
use quell_linux::signal::Interruption;
use quell_linux::{Pid, visible};
use quell_mode::DeliveryMode;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::CommandFacts;
use quell_tune::{TuneEnd, TunePlan};

use super::helper_command::load_ended;
use super::load_source::LOAD_ENDS_WITHIN;
use super::{
    Answer, HelperCommand, HelperError, Operator, Planned, Question, Searched, SubjectStep, Tools, Unanswered, metrics,
    search,
};
use crate::experiment::command::{CommandFailure, CommandRunner, StartedCommand};
use crate::experiment::judge::{Judge, Judges};
use crate::experiment::{CommandRequest, run_command};
use crate::replay::ServerPlace;

/// Time limit for the command to exit and for `quell run` to restore the queues.
const COMMAND_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A command, and what loads and measures it.
#[derive(Debug, Clone)]
pub struct CommandSpec {
    pub command: Vec<String>,
    /// Command that generates the load of each slice. Absent if a judge or reconnecting clients are the load.
    pub load: Option<Vec<String>>,
    /// Commands that measure each slice.
    pub judges: Judges,
}

impl CommandSpec {
    fn facts(&self) -> SubjectFacts {
        let words = |judge: &Option<Judge>| judge.as_ref().map(|judge| judge.words().to_vec());
        SubjectFacts::Command(CommandFacts {
            command: self.command.clone(),
            load: self.load.clone(),
            latency: words(&self.judges.latency),
            beside: words(&self.judges.beside),
            client: None,
        })
    }
}

/// Answers a question on a command.
pub fn answer(
    spec: &CommandSpec,
    question: Question,
    tools: &Tools<'_>,
    operator: &mut dyn Operator,
) -> Result<Answer, Unanswered> {
    if let Question::Search(plan) = &question {
        plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
        // The figures that a command of --latency prints are known after its first run.
        if spec.judges.latency.is_none() {
            metrics::of_server().check(plan)?;
        }
    }
    let subject = spec.facts();
    if !operator.agrees(&Planned { question: &question, subject: &subject, affected: Default::default() }) {
        return Err(Unanswered::Declined);
    }
    let interruption = Interruption::listen_and_never_stop().map_err(Unanswered::Signals)?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let mut runner = Runner::new(tools, &spec.command, spec.load.as_deref());
    match question {
        Question::Compare(comparison) => {
            let request = CommandRequest {
                modes: comparison.modes,
                timing: comparison.timing,
                budget_max_ms: comparison.budget_max_ms,
                command: spec.command.clone(),
                load: spec.load.clone(),
                judges: spec.judges.clone(),
            };
            let operator = RefCell::new(operator);
            let mut say = |text: &str| operator.borrow_mut().follow(SubjectStep::Note(text));
            let mut watch = |experiment: &_, stage: SliceStage<'_>| {
                operator.borrow_mut().follow(SubjectStep::Comparing { load: None, experiment, stage });
            };
            let result = run_command(&request, None, &mut runner, &mut say, &mut watch, &stopped)?;
            Ok(Answer::Compared(Box::new(result)))
        }
        Question::Search(plan) => {
            let searched = search_on_command(spec, *plan, subject, &mut runner, operator, &stopped)?;
            Ok(Answer::Searched(Box::new(searched)))
        }
    }
}

fn search_on_command(
    spec: &CommandSpec,
    plan: TunePlan,
    subject: SubjectFacts,
    runner: &mut Runner<'_>,
    operator: &mut dyn Operator,
    stopped: &dyn Fn() -> bool,
) -> Result<Searched, Unanswered> {
    let judges = &spec.judges;
    let has_load = spec.load.is_some() || judges.latency.is_some();
    let mut started = StartedCommand::new(runner, judges.clone(), stopped);
    if judges.latency.is_some() {
        let (outcome, _) = started.rehearse(&plan.present, plan.slice_ms, plan.settle_ms)?;
        outcome.without_latency.iter().for_each(|why| operator.follow(SubjectStep::Note(why)));
        metrics::of_command(judges, &outcome.figures).check(&plan)?;
    }
    started.limit_judges(plan.budget_ms, plan.slice_ms);
    let mut result = search::search(&mut started, plan, operator, stopped)?;
    if let (TuneEnd::MetricUnreadable { .. }, false) = (&result.end, has_load) {
        let reason = "nothing has sent requests to the command: name a load with --load or --latency".to_owned();
        result.end = TuneEnd::SubjectFailed { reason };
    }
    Ok(Searched { subject, result, not_a_measurement: None, left_alone: Vec::new() })
}

/// Starts a command with `quell run`, which sets the mode and restores the queues when the command exits.
pub(crate) struct Runner<'a> {
    tools: Tools<'a>,
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
    pub(crate) fn new(tools: &Tools<'a>, command: &'a [String], load: Option<&'a [String]>) -> Self {
        let (place, server, running_load) = (None, None, None);
        Self { tools: *tools, command, load, place, server, running_load, possible: BTreeSet::new() }
    }

    /// The same in another place.
    pub(crate) fn at(self, place: ServerPlace) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Checks whether the command can be started under a mode. The exit code of the started command cannot show this,
    /// because the command may use the same codes.
    fn check_possible(&self, mode: &DeliveryMode) -> Result<(), CommandFailure> {
        let (check_launch, command) = (self.tools.check_launch, self.command);
        let check = || check_launch(mode, command);
        let checked = match &self.place {
            Some(place) => place.namespace.run(check).map_err(|error| CommandFailure::Failed(error.to_string()))?,
            None => check(),
        };
        checked.map_err(|why| CommandFailure::NotPossible(visible::name(&why).into_owned()))
    }
}

impl CommandRunner for Runner<'_> {
    fn start(&mut self, mode: &DeliveryMode) -> Result<Pid, CommandFailure> {
        if self.possible.insert(mode.to_string()) {
            self.check_possible(mode)?;
        }
        let run = [self.tools.quell, "run", &mode.to_string(), "--"].map(str::to_owned);
        let words = [&run[..], self.command].concat();
        let server = HelperCommand::start_with(&self.tools, &words, "server", |spawn: Spawn<'_>| match &self.place {
            Some(place) => spawn.netns(&place.namespace).cpus(place.cpus.clone()),
            None => spawn,
        });
        Ok(self.server.insert(server.map_err(failed)?).pid())
    }

    fn listens(&mut self) -> Result<(), CommandFailure> {
        let Some(words) = self.load else { return Ok(()) };
        self.running_load = Some(HelperCommand::start(&self.tools, words, "load").map_err(failed)?);
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
        (self.tools.why_without_effect)(mode, self.command.first()?, snapshot, pids)
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
