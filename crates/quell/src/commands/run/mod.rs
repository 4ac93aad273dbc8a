//! `quell run`: starts a command with a delivery mode. It sets the queues before the command starts, loads the preload
//! library if possible, and undoes everything when the command exits.

mod queues;
mod supervise;
pub(crate) mod verify;

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::process::ExitCode;

use clap::Args;
use quell_cli::simulation::refused_mode;
use quell_host::attach::AttachPlan;
use quell_host::attach::placement::Wanted;
use quell_launch::choice::{LaunchChoice, Said};
use quell_launch::preload_settings::PreloadSettings;
use quell_launch::program::{LaunchProgram, LaunchProgramError, NotPreloaded, Reach};
use quell_launch::{library, library_settings};
use quell_linux::epoll_params::{self, EpollParamsError};
use quell_linux::event::Epoll;
use quell_linux::process::{Foreground, ProcessError, is_not_found};
use quell_linux::signal_queue::SignalQueue;
use quell_mode::{DeliveryMode, Requirement};
use tracing::info;

use self::queues::Queues;
use self::verify::Verifier;
use super::placement_args::PlacementArgs;
use super::program_profiles;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::attach::finding_lines;
use crate::render::launch as render;

/// Options of `quell run`.
#[derive(Debug, Default, Args)]
#[command(after_help = ENVIRONMENT)]
pub(crate) struct RunArgs {
    /// Delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, userbusy, eventspinN,
    /// sockpollN (N in µs).
    #[arg(value_parser = mode_with_place)]
    mode: Option<DeliveryMode>,
    /// Command to start and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Program profile: haproxy, memcached, nginx, redis, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Maximum number of events per wait; the queue is not polled while the program handles them.
    #[arg(long, value_name = "N", value_parser = number_of_events)]
    max_events: Option<NonZeroU32>,
    /// Set only the queues of this device; can be repeated [default: all in this network namespace]
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// Do not set queues, for example because `quell apply` has set them.
    #[arg(long, conflicts_with_all = ["device", "steer", "pin"])]
    no_queues: bool,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Print the settings and their sources before the command starts.
    #[arg(long)]
    details: bool,
    /// Do not watch for stalls and effects: `quell bench` passes it, because its slices would measure the watch, too.
    #[arg(long, hide = true)]
    unwatched: bool,
    /// Do not ask for confirmation on a terminal if other programs are affected.
    #[arg(short, long)]
    yes: bool,
    /// Print the plan; start nothing, change nothing.
    #[arg(long)]
    dry_run: bool,
}

const ENVIRONMENT: &str = concat!(
    "QUELL_RUN_MODE, QUELL_RUN_MAX_EVENTS and QUELL_RUN_DEVICES (comma-separated) override the profile; options ",
    "override both. Exits with the command's exit code; 127 if it is not found, 126 if it cannot be executed.",
);

/// Decisions made before anything is changed.
pub(crate) struct Launch {
    pub(crate) choice: LaunchChoice,
    pub(crate) program: LaunchProgram,
    pub(crate) wanted: PreloadSettings,
    /// Settings for the preload library. Absent if the mode needs none, or if the library cannot be loaded into the
    /// program.
    pub(crate) preload_settings: Option<PreloadSettings>,
    pub(crate) no_queues: bool,
    pub(crate) placement: Wanted,
    /// What is lost without the preload library.
    notes: Vec<String>,
}

fn number_of_events(text: &str) -> Result<NonZeroU32, &'static str> {
    text.parse().map_err(|_| "expected an integer from 1")
}

impl Launch {
    /// Whether the command is followed even if its queues need no change.
    fn is_followed(&self) -> bool {
        matches!(self.program.reach, Reach::FromOutside(_)) || self.placement != Wanted::default()
    }

    /// Checks that the queues can be set as planned, without a change.
    fn check_plan(&self, plan: &AttachPlan) -> Result<(), Failure> {
        queues::refuse_impossible(&self.choice, plan)?;
        if self.is_followed() || plan.queues().any(|step| !step.is_there()) {
            journal().check_writable().map_err(Failure::refused)?;
        }
        Ok(())
    }

    /// Checks that the preload library can be provided, if it is needed.
    fn check_library(&self) -> Result<(), Failure> {
        match &self.preload_settings {
            Some(_) => library::check_placeable().map_err(|error| Failure::new(Exit::NotSupported, error)),
            None => Ok(()),
        }
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let launch = prepare(args)?;
    for note in &launch.notes {
        output::say(&format!("quell: {note}"));
    }
    if args.dry_run {
        output::prose(&render::launch(&launch))?;
        if !args.no_queues {
            let (plan, findings) = queues::plan(&launch.choice, &launch.placement)?;
            output::prose(&render::queues(&plan))?;
            let (mode, steers) = (&launch.choice.mode.value, launch.placement.steer.is_some());
            output::prose(&render::shared_queues(mode, plan.queues().count(), steers).unwrap_or_default())?;
            output::prose(&finding_lines(&findings).iter().map(|line| format!("{line}\n")).collect::<String>())?;
            launch.check_plan(&plan)?;
        }
        launch.check_library()?;
        return Ok(ExitCode::SUCCESS);
    }
    let environment = match &launch.preload_settings {
        Some(settings) => {
            let library = library::place().map_err(|error| Failure::new(Exit::NotSupported, error))?;
            let before = std::env::var_os("LD_PRELOAD");
            library_settings::environment(&library, settings, before.as_deref()).to_vec()
        }
        None => Vec::new(),
    };
    if args.details {
        output::say(render::launch(&launch).trim_end());
    }
    let mut queues = match args.no_queues {
        true => Queues::default(),
        false => Queues::set(&launch.choice, launch.is_followed(), launch.placement.clone(), (args.details, args.yes))?,
    };
    queues.unwatched = args.unwatched;
    // From here on, signals are forwarded to the command. Until here, they end this process, and the keeper undoes
    // everything.
    let signals = SignalQueue::of(&supervise::FORWARDED).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut command = match Foreground::start(&launch.program.path, &args.command, environment, &signals) {
        Ok(command) => command,
        Err(error) => {
            queues.undo();
            return Err(not_started(&error));
        }
    };
    queues.set_command(command.pid(), launch.preload_settings.and_then(|settings| settings.epoll));
    let verifier = Verifier::new(launch.choice.mode.value, launch.wanted, &launch.program.reach);
    supervise::until_exit(&mut command, &signals, queues, verifier)
}

fn mode_with_place(text: &str) -> Result<DeliveryMode, String> {
    text.parse().map_err(|error| refused_mode(&error).text)
}

/// Checks whether `quell run` can start a command under a mode. Starts nothing, changes nothing.
///
/// # Errors
/// As [`run`].
pub(crate) fn check_possible(mode: &DeliveryMode, command: &[String]) -> Result<(), Failure> {
    let args =
        RunArgs { mode: Some(*mode), command: command.iter().map(OsString::from).collect(), ..RunArgs::default() };
    let launch = prepare(&args)?;
    let (plan, _) = queues::plan(&launch.choice, &launch.placement)?;
    launch.check_plan(&plan)?;
    launch.check_library()
}

fn prepare(args: &RunArgs) -> Result<Launch, Failure> {
    let said = Said { mode: args.mode, max_events: args.max_events, devices: args.device.clone() };
    let variable = |name: &str| std::env::var(name).ok();
    let environment = Said::by_environment(variable).map_err(Failure::usage)?;
    let profile = args.profile.as_deref().map(program_profiles::read).transpose()?;
    if let Some(program) = &profile {
        let words = args.command.iter().map(|word| word.to_string_lossy().into_owned());
        let command: Vec<String> = std::iter::once("--".to_owned()).chain(words).collect();
        program_profiles::say_where_found(program, &args.placement.wanted().options(), &command);
    }
    let choice = LaunchChoice::of(said, environment, profile).map_err(Failure::usage)?;
    info!(mode = %choice.mode.value, by = %choice.mode.by, "selected the mode");
    let program = find(&args.command)?;
    let wanted =
        library_settings::library_settings(&choice.mode.value, choice.max_events.as_ref().map(|chosen| chosen.value));
    let wanted = wanted.map_err(Failure::usage)?;
    refuse_unsupported(&choice.mode.value, &wanted)?;
    let (preload_settings, notes) = match &program.reach {
        Reach::Preload => ((wanted != PreloadSettings::default()).then_some(wanted), Vec::new()),
        Reach::FromOutside(why) => (None, check_without_library(args, &choice, &wanted, why)?),
    };
    let placement = args.placement.wanted();
    Ok(Launch { choice, program, wanted, preload_settings, no_queues: args.no_queues, placement, notes })
}

fn find(command: &[OsString]) -> Result<LaunchProgram, Failure> {
    let name = command.first().ok_or_else(|| Failure::usage("no command given: write it after `--`"))?;
    // The default search path of execvp(3) if PATH is unset.
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    LaunchProgram::find(name, &search).map_err(|error| {
        let is_there = !matches!(&error, LaunchProgramError::NotFound(_)) && exists(name);
        Failure::new(if is_there { Exit::CannotExecute } else { Exit::CommandNotFound }, error)
    })
}

fn exists(name: &OsStr) -> bool {
    std::path::Path::new(name).exists()
}

fn not_started(error: &ProcessError) -> Failure {
    Failure::new(if is_not_found(error) { Exit::CommandNotFound } else { Exit::CannotExecute }, error)
}

/// Refuses a mode that needs epoll busy polling on a kernel without it.
fn refuse_unsupported(mode: &DeliveryMode, wanted: &PreloadSettings) -> Result<(), Failure> {
    let refused = |why: &dyn std::fmt::Display| Err(Failure::new(Exit::NotSupported, format!("{mode}: {why}")));
    if wanted.epoll.is_none() {
        return Ok(());
    }
    let epoll = Epoll::new(1).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    match epoll_params::get(&epoll) {
        Err(error @ (EpollParamsError::Unsupported | EpollParamsError::NoBusyPoll)) => refused(&error),
        Err(error) => Err(Failure::new(Exit::KernelRefused, error)),
        Ok(_) => Ok(()),
    }
}

/// The effects that are lost without the preload library. Refuses modes that need it.
fn check_without_library(
    args: &RunArgs,
    choice: &LaunchChoice,
    wanted: &PreloadSettings,
    why: &NotPreloaded,
) -> Result<Vec<String>, Failure> {
    let lost = render::lost_from_outside(wanted);
    if lost.is_empty() && wanted.epoll.is_none() {
        return Ok(Vec::new());
    }
    let name = args.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mode = choice.mode.value;
    let needs_it = |requirement| matches!(requirement, Requirement::SpinBeforeSleep | Requirement::SocketBusyPoll);
    if mode.requirements().into_iter().any(needs_it) {
        let text = format!("{mode} needs a library in the program, which cannot be preloaded into {name}: {why}");
        return Err(Failure::new(Exit::NotSupported, text));
    }
    if args.no_queues {
        let text =
            format!("{name} can only be attached from outside, which sets its queues: {why}; remove --no-queues");
        return Err(Failure::usage(text));
    }
    let cannot = format!("{name} cannot be preloaded ({why}); its epolls are set from outside");
    let lost = lost.into_iter().map(|lost| format!("without the preload library, {lost}"));
    Ok(std::iter::once(cannot).chain(lost).collect())
}
