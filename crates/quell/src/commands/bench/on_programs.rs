//! Compares modes on running programs of this host: shows the planned changes, asks for confirmation, starts the load,
//! and measures.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter};
use std::thread;
use std::time::{Duration, Instant};

use quell_bench::experiment::clients::RemoteClients;
use quell_bench::experiment::{ComparisonError, Preview, ProgramsRequest, run_programs};
use quell_change::journal::Journal;
use quell_change::transaction::ChangeError;
use quell_host::attach::consequences::consequences_observed;
use quell_host::attach::{AttachError, AttachPlan, TargetError, Targets};
use quell_host::behavior;
use quell_host::switching::{SwitchError, refuse_queues_of_others};
use quell_linux::process::{Output, Spawn};
use quell_linux::signal::Interruption;
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;
use quell_result::experiment::{EndOfExperiment, ExperimentResult};

use super::args::BenchArgs;
use super::helper_command::{Ended, HelperCommand, clients_ended, load_ended};
use crate::commands::attach::{ask, keeper, refuse_every_process};
use crate::commands::stalls;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;

/// Default modes. They do not increase the CPU use of servers in production.
const MODES: [&str; 4] = ["base", "defer200", "suspend20", "suspend200"];
pub(super) const BUDGET: Duration = Duration::from_secs(120);
pub(super) const QUICK_BUDGET: Duration = Duration::from_secs(30);
pub(super) const LOAD_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for the clients' command to end all clients. `mpirun` takes 2 s.
const CLIENTS_END_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for the first packets of the load to arrive at the programs.
const TRAFFIC_WITHIN: Duration = Duration::from_secs(10);
/// Interval between two snapshots while no packets have arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Runs the experiment.
pub(super) fn run(args: &BenchArgs, targets: Result<Targets, TargetError>) -> Result<ExperimentResult, Failure> {
    let judges = super::judges(args)?;
    let load = super::words(args.load.as_deref())?;
    let clients = super::words(args.clients.as_deref())?;
    let budget = if args.quick { QUICK_BUDGET } else { BUDGET };
    let (modes, timing) = (super::modes(args, &MODES)?, super::timing(args, budget, super::Slices::default_of(args)));
    let mut request = ProgramsRequest { modes, timing, load, judges, clients: None };
    let journal = journal();
    // Changes left by a killed run must be reverted first. Otherwise they would be recorded as the host's own settings.
    revert_killed_runs(&journal).map_err(Failure::refused)?;
    let targets = targets.map_err(|error| Failure::usage(error).unchanged())?;
    refuse_every_process(&targets, "")?;
    let source = LoadSource::of(request.load.clone(), clients);
    let (mut result, why) = under_load(&journal, source, |clients, has_load, stopped| {
        request.clients = clients;
        measure(args, request, &journal, targets, has_load, stopped)
    })?;
    if let (Some(why), Some(last)) = (why, result.experiments.last_mut())
        && last.end == EndOfExperiment::Interrupted
    {
        last.end = EndOfExperiment::Failed(why);
    }
    Ok(result)
}

/// Commands that generate load on programs during a measurement.
pub(in crate::commands) enum LoadSource {
    /// None: the programs have their live traffic.
    Live,
    /// A command on this host.
    Command(Vec<String>),
    /// Clients on other machines, which measure too.
    Clients(Vec<String>),
}

impl LoadSource {
    pub(in crate::commands) fn of(load: Option<Vec<String>>, clients: Option<Vec<String>>) -> Self {
        match (clients, load) {
            (Some(words), _) => Self::Clients(words),
            (None, Some(words)) => Self::Command(words),
            (None, None) => Self::Live,
        }
    }
}

/// Starts the load, runs `measure`, and ends the load. `measure` gets the clients on other machines, whether there is a
/// load besides live traffic, and a function that returns true after a signal and after the load has ended. Returns its
/// result, and why the load ended if it did so before.
///
/// # Errors
/// Fails if the load cannot be started or ended, or if `measure` fails. If the load has ended, this is the reason.
pub(in crate::commands) fn under_load<T>(
    journal: &Journal,
    source: LoadSource,
    measure: impl FnOnce(Option<RemoteClients>, bool, &dyn Fn() -> bool) -> Result<T, Failure>,
) -> Result<(T, Option<String>), Failure> {
    let interruption =
        Interruption::listen_and_never_stop().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let (load, ends_within, sentence) = match &source {
        LoadSource::Clients(words) => {
            (Some(start_clients(journal, words)?), CLIENTS_END_WITHIN, clients_ended as fn(&Ended) -> String)
        }
        LoadSource::Command(words) => {
            (Some((HelperCommand::start(journal, words, "load")?, None)), LOAD_ENDS_WITHIN, load_ended as _)
        }
        LoadSource::Live => (None, LOAD_ENDS_WITHIN, load_ended as _),
    };
    let (load, pipes) = load.unzip();
    let load = load.map(RefCell::new);
    let stopped = || flag.get().is_some() || load.as_ref().is_some_and(|load| load.borrow_mut().has_ended());
    let connected = match (&source, pipes.flatten()) {
        (LoadSource::Clients(words), Some((orders, notices))) => connect(words, orders, notices, &stopped).map(Some),
        _ => Ok(None),
    };
    // `measure` owns the clients, so their standard input is closed when it returns.
    let measured = connected.and_then(|clients| measure(clients, load.is_some(), &stopped));
    let Some(load) = load else { return measured.map(|measured| (measured, None)) };
    let ended = load.into_inner().end(ends_within)?;
    // After a signal, the clients end because their input is closed.
    let why = ended.as_ref().filter(|_| flag.get().is_none()).map(sentence);
    match (measured, why) {
        (Err(failure), Some(why)) if failure.exit == Exit::Interrupted => Err(Failure::usage(why)),
        (measured, why) => measured.map(|measured| (measured, why)),
    }
}

/// A command, and the pipes to its standard input and from its standard output, if it has them.
type WithPipes = (HelperCommand, Option<(PipeWriter, PipeReader)>);

/// Starts the command of clients on other machines, with pipes.
fn start_clients(journal: &Journal, words: &[String]) -> Result<WithPipes, Failure> {
    let pipe = || std::io::pipe().map_err(|error| Failure::new(Exit::KernelRefused, error));
    let ((input, orders), (notices, output)) = (pipe()?, pipe()?);
    let with_pipes = |spawn: Spawn<'static>| spawn.stdin(input).stdout(Output::Pipe(output));
    let command = HelperCommand::start_with(journal, words, "clients", with_pipes)?;
    Ok((command, Some((orders, notices))))
}

/// Waits until the clients are under load.
fn connect(
    words: &[String],
    orders: PipeWriter,
    notices: PipeReader,
    stopped: &dyn Fn() -> bool,
) -> Result<RemoteClients, Failure> {
    let progress = Progress::new();
    progress.doing("waiting for the clients");
    let connected = RemoteClients::connect(words, orders, notices, stopped);
    progress.finish();
    match connected {
        Ok(Some(clients)) => Ok(clients),
        Ok(None) => Err(Failure::new(Exit::Interrupted, "interrupted; nothing was changed")),
        Err(error) => Err(Failure::new(Exit::KernelRefused, error).unchanged()),
    }
}

fn measure(
    args: &BenchArgs,
    mut request: ProgramsRequest,
    journal: &Journal,
    targets: Targets,
    has_load: bool,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, Failure> {
    let mut preview = preview(&targets, &request.modes, has_load, stopped)?;
    refuse_queues_of_others(journal, &preview.plan).map_err(|error| failure(&error.into()))?;
    preview.plan.accepts_stalls = args.accept_stalls;
    if !args.accept_stalls {
        let polls = preview.plans().iter().any(AttachPlan::polls_queues);
        let behavior = polls.then(|| behavior::observe(&preview.snapshot, &targets.pids(), true));
        for plan in preview.plans() {
            let findings = consequences_observed(&preview.snapshot, None, plan, behavior.as_ref());
            stalls::refuse(&findings, "measures")?;
        }
    }
    output::say(&plan(&preview, &request));
    ask::unless(args.yes, "switch the programs between these modes?", "--yes")?;
    let progress = Progress::new();
    let watch = &mut |event: quell_experiment::ExperimentEvent<'_, _>| super::show_progress(&progress, "", event);
    let result = run_programs(&mut request, &preview, targets, journal, &mut keeper::start, watch, stopped);
    progress.finish();
    result.map_err(|error| failure(&error))
}

/// Takes a snapshot and plans the modes. Repeats this after the load has started, until its packets show which queues
/// the programs use.
pub(in crate::commands) fn preview(
    targets: &Targets,
    modes: &[DeliveryMode],
    has_load: bool,
    stopped: &dyn Fn() -> bool,
) -> Result<Preview, Failure> {
    let deadline = Instant::now() + TRAFFIC_WITHIN;
    loop {
        let preview = Preview::of(targets, modes).map_err(Failure::refused)?;
        match preview.plan.check_queues() {
            Ok(()) => return Ok(preview),
            Err(SwitchError::NothingToSwitch) if has_load && Instant::now() < deadline => {}
            Err(error) => return Err(Failure::new(Exit::NotSupported, error)),
        }
        if stopped() {
            return Err(Failure::new(Exit::Interrupted, "interrupted; nothing was changed"));
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Describes the planned changes and the affected programs.
fn plan(preview: &Preview, request: &ProgramsRequest) -> String {
    let modes: Vec<String> = request.modes.iter().map(ToString::to_string).collect();
    let (queues, epolls) = (&preview.plan.queues, preview.plan.epolls.len());
    let mut out = format!(
        "switches {} and {} between {} every {} ms, for at most {} s; restores them at the end\n",
        counted(queues.len(), "queue"),
        counted(epolls, "epoll"),
        modes.join(", "),
        request.timing.slice_ms + request.timing.settle_ms,
        request.timing.budget_ms / 1_000,
    );
    out.push_str(&affected(preview));
    out.trim_end().to_owned()
}

/// A line that names the other programs on the queues. Empty if there are none.
pub(in crate::commands) fn affected(preview: &Preview) -> String {
    let affected = preview.plans().iter().flat_map(|plan| &plan.affected_processes);
    let affected: BTreeMap<_, _> = affected.map(|process| (process.pid, &process.name)).collect();
    let affected = affected.iter().map(|(pid, name)| format!("{} {pid}", visible::name(name)));
    let affected: Vec<String> = affected.collect();
    match affected.is_empty() {
        true => String::new(),
        false => format!("other programs on these queues are affected too: {}\n", affected.join(", ")),
    }
}

/// Converts an error of a comparison to an exit code and a message.
pub(super) fn failure(error: &ComparisonError) -> Failure {
    let exit = match error {
        ComparisonError::Interrupted => Exit::Interrupted,
        ComparisonError::Judge(_) | ComparisonError::Design(_) => Exit::Usage,
        ComparisonError::Reference { .. } | ComparisonError::NoModeLeft(_) => Exit::NotSupported,
        ComparisonError::FirstSlice { .. } => Exit::RolledBack,
        ComparisonError::Switch(error) => exit_of_switching(error),
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, error)
}

/// Exit code if programs cannot be switched between modes.
pub(in crate::commands) fn exit_of_switching(error: &SwitchError) -> Exit {
    match error {
        SwitchError::Change(ChangeError::Refused { .. }) => Exit::NotSupported,
        SwitchError::Attach(AttachError::AlreadyAttached { .. }) => Exit::Usage,
        _ => Exit::KernelRefused,
    }
}
