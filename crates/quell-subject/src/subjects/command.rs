//! A command as a subject: `quell run` starts it under the mode of each slice. This also works for modes that need the preload
//! library.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use quell_host::attach::launch::own_devices;
use quell_host::attach::placement::Wanted;
use quell_host::attach::{Attached, attachments, observe};
use quell_host::snapshot::{NetworkNamespace, Snapshot, TakeError};
use quell_linux::netns::Namespace;
use quell_linux::process::Spawn;
use quell_linux::signal::Interruption;
use quell_linux::{CpuList, Pid, shell, visible};
use quell_mode::DeliveryMode;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::CommandFacts;
use quell_result::tune::TuneFile;
use quell_tune::{TuneEnd, TunePlan};

use super::helper_command::load_ended;
use super::load_source::LOAD_ENDS_WITHIN;
use super::{
    Answer, HelperCommand, HelperError, Operator, Planned, PlannedSubject, Tools, Unanswered, metrics, search, unplaced,
};
use crate::experiment::command::{CommandFailure, CommandRunner, StartedCommand};
use crate::experiment::judge::{Judge, Judges};
use crate::experiment::{CommandRequest, ComparisonError, base_is, run_command};
use crate::question::{Follow, Question, SubjectStep};

/// Time limit for `quell run` to steer the connections of the command once it listens.
const STEERED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
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
    /// Steering of connections and pinning of workers, under every mode.
    pub placement: Wanted,
}

impl CommandSpec {
    fn facts(&self) -> Result<CommandFacts, TakeError> {
        let words = |judge: &Option<Judge>| judge.as_ref().map(|judge| judge.words().to_vec());
        let snapshot = observe()?;
        let with_queues = || own_devices(&snapshot).filter(|device| device.napis.known_elements().next().is_some());
        Ok(CommandFacts {
            command: self.command.clone(),
            directory: std::env::current_dir().ok(),
            netns: snapshot.own_namespace().and_then(NetworkNamespace::name).map(str::to_owned),
            devices: Some(with_queues().map(|device| device.name.clone()).collect()),
            base_is: base_is(with_queues().flat_map(|device| device.napis.known_elements())),
            load: self.load.clone(),
            latency: words(&self.judges.latency),
            beside: words(&self.judges.beside),
            placement: self.placement.options(),
            ..CommandFacts::default()
        })
    }
}

/// Answers a question on a command.
pub fn answer(
    spec: &CommandSpec,
    mut question: Question,
    tools: &Tools<'_>,
    operator: &mut dyn Operator,
) -> Result<Answer, Unanswered> {
    if let Question::Search(plan) = &mut question {
        search::refuse_userbusy(
            plan,
            "it is compared on running programs (--pid), whose CPUs its polling threads share",
        );
        plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
        // The figures that a command of --latency prints are known after its first run.
        if spec.judges.latency.is_none() {
            metrics::of_started_command().check(plan)?;
        }
    }
    let facts = spec.facts()?;
    if !operator.agrees(&Planned { question: &question, subject: PlannedSubject::Command(&facts) }) {
        return Err(Unanswered::Declined);
    }
    let interruption = Interruption::listen_and_never_stop().map_err(Unanswered::Signals)?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let mut runner = Runner::new(tools, &spec.command, spec.load.as_deref()).placed(spec.placement.options());
    let mut follow = |step: SubjectStep<'_>| operator.follow(step);
    let asked = question.clone();
    let without = |follow: &mut Follow<'_>| unplaced::of_command(spec, tools, &asked, follow, &stopped);
    let mut slices = without(&mut follow)?;
    let mut answer = match question {
        Question::Compare(comparison) => {
            let request = CommandRequest {
                modes: comparison.modes,
                timing: comparison.timing,
                budget_max_ms: comparison.budget_max_ms,
                judges: spec.judges.clone(),
                facts,
            };
            Answer::Compared(Box::new(run_command(&request, None, &mut runner, &mut follow, &stopped)?))
        }
        Question::Search(mut plan) => {
            plan.base_is = facts.base_is;
            let begun = ExperimentResult::begin(SubjectFacts::Command(facts)).map_err(ComparisonError::from)?;
            let searched = search_on_command(spec, *plan, begun, &mut runner, &mut follow, &stopped)?;
            Answer::Searched(Box::new(searched))
        }
    };
    slices.extend(without(&mut follow).unwrap_or_default());
    unplaced::add(&mut answer, slices);
    Ok(answer)
}

fn search_on_command(
    spec: &CommandSpec,
    plan: TunePlan,
    begun: ExperimentResult,
    runner: &mut Runner<'_>,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<TuneFile, Unanswered> {
    let judges = &spec.judges;
    let has_load = spec.load.is_some() || judges.latency.is_some();
    let mut started = StartedCommand::new(runner, judges.clone(), stopped);
    if judges.latency.is_some() {
        let (outcome, _) = started.rehearse(&plan.present, plan.slice_ms, plan.settle_ms)?;
        outcome.without_latency.iter().for_each(|why| follow(SubjectStep::Note(why)));
        metrics::of_command(judges, &outcome.figures).check(&plan)?;
    }
    started.limit_judges(plan.budget_ms, plan.slice_ms);
    let mut result = search::search(&mut started, plan, follow, stopped)?;
    if let (TuneEnd::MetricUnreadable { .. }, false) = (&result.end, has_load) {
        let reason = "nothing has sent requests to the command: name a load with --load or --latency".to_owned();
        result.end = TuneEnd::SubjectFailed { reason };
    }
    let mut file = TuneFile { other_programs: started.other_programs(), ..TuneFile::of(begun, result, Vec::new()) };
    file.subject.set_problems(started.take_problems());
    Ok(file)
}

/// Network namespace and CPUs of a server.
#[derive(Debug, Clone)]
pub struct ServerPlace {
    pub namespace: Arc<Namespace>,
    pub cpus: CpuList,
}

/// Starts a command with `quell run`, which sets the mode and restores the queues when the command exits.
pub(crate) struct Runner<'a> {
    tools: Tools<'a>,
    command: &'a [String],
    load: Option<&'a [String]>,
    /// Absent for a command in the namespace and on the CPUs of this process.
    place: Option<ServerPlace>,
    /// Options of `quell run` for the placement of connections and workers.
    placement: Vec<String>,
    server: Option<HelperCommand>,
    running_load: Option<HelperCommand>,
    /// Modes under which the command can be started.
    possible: BTreeSet<String>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(tools: &Tools<'a>, command: &'a [String], load: Option<&'a [String]>) -> Self {
        let (place, server, running_load) = (None, None, None);
        let (placement, possible) = (Vec::new(), BTreeSet::new());
        Self { tools: *tools, command, load, place, placement, server, running_load, possible }
    }

    /// The same with these options of `quell run`.
    pub(crate) fn placed(self, placement: Vec<String>) -> Self {
        Self { placement, ..self }
    }

    /// The same in another place.
    pub(crate) fn at(self, place: ServerPlace) -> Self {
        Self { place: Some(place), ..self }
    }

    /// Waits until `quell run` has attached its filters: earlier connections would not be steered.
    fn wait_until_steered(&mut self) -> Result<(), CommandFailure> {
        if !self.placement.iter().any(|option| option.starts_with("--steer")) {
            return Ok(());
        }
        let deadline = Instant::now() + STEERED_WITHIN;
        while Instant::now() < deadline {
            let owner = self.server.as_ref().map(HelperCommand::pid);
            let attached =
                attachments(self.tools.journal).map_err(|error| CommandFailure::Failed(error.to_string()))?;
            let steers = |one: &Attached| Some(one.history.begin.owner.pid) == owner && one.history.steers();
            if attached.iter().any(steers) {
                return Ok(());
            }
            self.check_running()?;
            thread::sleep(LOOK_AGAIN);
        }
        let why =
            "`quell run --steer` found no group of listening sockets that it can steer: `quell run` alone shows why";
        Err(CommandFailure::Failed(why.to_owned()))
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
        let run = [self.tools.quell, "run", "--unwatched", &mode.to_string()].map(str::to_owned);
        let words = [&run[..], &self.placement, &["--".to_owned()], self.command].concat();
        let server = HelperCommand::start_with(&self.tools, &words, "server", |spawn: Spawn<'_>| match &self.place {
            Some(place) => spawn.netns(&place.namespace).cpus(place.cpus.clone()),
            None => spawn,
        });
        Ok(self.server.insert(server.map_err(failed)?).pid())
    }

    fn listens(&mut self) -> Result<(), CommandFailure> {
        self.wait_until_steered()?;
        let Some(words) = self.load else { return Ok(()) };
        self.running_load = Some(HelperCommand::start(&self.tools, words, "load").map_err(failed)?);
        Ok(())
    }

    fn check_running(&mut self) -> Result<(), CommandFailure> {
        if let Some(ended) = self.server.as_mut().and_then(HelperCommand::how_it_ended) {
            let command = shell::command(self.command);
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
