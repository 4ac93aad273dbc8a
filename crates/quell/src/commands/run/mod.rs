//! `quell run`: a command started with a delivery mode. The queues have the mode before the command starts, the command
//! has the preload library where it can be reached by one, and everything is put back when it ends.

mod profiles;
mod queues;
mod supervise;

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::process::ExitCode;

use clap::Args;
use quell_host::attach::placement::Wanted;
use quell_launch::choice::{Choice, Said};
use quell_launch::preload_settings::PreloadSettings;
use quell_launch::program::{Program, ProgramError, Reach, Why};
use quell_launch::{library, told};
use quell_linux::epoll_params::{self, EpollParamsError};
use quell_linux::event::Epoll;
use quell_linux::process::{Foreground, ProcessError, is_not_found};
use quell_linux::signal_queue::SignalQueue;
use quell_mode::{DeliveryMode, Requirement};

use self::queues::Queues;
use super::placement_args::PlacementArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::launch as render;

/// Options of `quell run`.
#[derive(Debug, Args)]
#[command(after_help = ENVIRONMENT)]
pub(crate) struct RunArgs {
    /// The delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, eventspinN, sockpollN, with N
    /// in µs.
    mode: Option<DeliveryMode>,
    /// What to start, with its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Values for a program: a shipped profile (haproxy, memcached, nginx, redis), or a file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// The most events that one wait of the program returns: while it works on them, its queue is not polled.
    #[arg(long, value_name = "N")]
    max_events: Option<NonZeroU32>,
    /// Set the queues of this device only; can be repeated [all of this network namespace]
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// Leave the queues as they are, for instance as `quell apply` has set them.
    #[arg(long, conflicts_with_all = ["device", "steer", "pin"])]
    no_queues: bool,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Print what is in effect, and who said it, before the command starts.
    #[arg(short, long)]
    verbose: bool,
    /// Print what would be done; start nothing, change nothing.
    #[arg(long)]
    dry_run: bool,
}

const ENVIRONMENT: &str = concat!(
    "QUELL_RUN_MODE, QUELL_RUN_MAX_EVENTS and QUELL_RUN_DEVICES (separated by commas) beat the profile, and options beat ",
    "both. The exit code is the command's; 127 when there is no such command, 126 when it cannot be executed.",
);

/// What is known before anything is done.
pub(crate) struct Launch {
    /// What is wanted.
    pub(crate) choice: Choice,
    /// What is to be started.
    pub(crate) program: Program,
    /// What the preload library is told; absent where there is nothing to be done in the program, or no way into it.
    pub(crate) told: Option<PreloadSettings>,
    /// The host's queues stay as they are.
    pub(crate) queues_stay: bool,
    /// Where its workers are to get their connections and run.
    pub(crate) placement: Wanted,
}

/// Runs the command.
///
/// # Errors
/// When it could not be started; otherwise its own end is told.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let launch = prepare(args)?;
    if args.dry_run {
        output::data(&render::launch(&launch))?;
        if !args.no_queues {
            let plan = queues::plan(&launch.choice)?;
            output::data(&render::queues(&plan))?;
            queues::refuse_what_cannot_be(&launch.choice, &plan)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let environment = match &launch.told {
        Some(settings) => {
            let library = library::place().map_err(|error| Failure::new(Exit::NotSupported, error))?;
            let before = std::env::var_os("LD_PRELOAD");
            told::environment(&library, settings, before.as_deref()).to_vec()
        }
        None => Vec::new(),
    };
    if args.verbose {
        output::say(render::launch(&launch).trim_end());
    }
    let follows = matches!(launch.program.reach, Reach::FromOutside(_));
    let mut queues = match args.no_queues {
        true => Queues::default(),
        false => Queues::set(&launch.choice, follows, args.placement.wanted(), args.verbose)?,
    };
    // Not before: the keeper is to be told to end. Should a signal end this process until here, it puts everything back.
    let signals = SignalQueue::of(&supervise::PASSED_ON).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut command = match Foreground::start(&launch.program.path, &args.command, environment, &signals) {
        Ok(command) => command,
        Err(error) => {
            queues.undo();
            return Err(not_started(&error));
        }
    };
    queues.are_for(command.pid(), launch.told.and_then(|told| told.epoll));
    supervise::until_the_end(&mut command, &signals, queues)
}

fn prepare(args: &RunArgs) -> Result<Launch, Failure> {
    let said = Said { mode: args.mode, max_events: args.max_events, devices: args.device.clone() };
    let variable = |name: &str| std::env::var(name).ok();
    let environment = Said::by_environment(variable).map_err(Failure::usage)?;
    let profile = args.profile.as_deref().map(profiles::read).transpose()?;
    let choice = Choice::of(said, environment, profile).map_err(Failure::usage)?;
    let program = find(&args.command)?;
    let wanted = told::told(&choice.mode.value, choice.max_events.as_ref().map(|chosen| chosen.value));
    let wanted = wanted.map_err(Failure::usage)?;
    refuse_what_cannot_be(&choice.mode.value, &wanted)?;
    let told = match &program.reach {
        Reach::Preload => (wanted != PreloadSettings::default()).then_some(wanted),
        Reach::FromOutside(why) => {
            only_from_outside(args, &choice, &wanted, why)?;
            None
        }
    };
    Ok(Launch { choice, program, told, queues_stay: args.no_queues, placement: args.placement.wanted() })
}

fn find(command: &[OsString]) -> Result<Program, Failure> {
    let name = command.first().ok_or_else(|| Failure::usage("what is to be started? Say it after `--`"))?;
    // What execvp looks through when there is no PATH.
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    Program::find(name, &search).map_err(|error| {
        let is_there = !matches!(&error, ProgramError::NotFound(_)) && exists(name);
        Failure::new(if is_there { Exit::CannotExecute } else { Exit::CommandNotFound }, error)
    })
}

fn exists(name: &OsStr) -> bool {
    std::path::Path::new(name).exists()
}

fn not_started(error: &ProcessError) -> Failure {
    Failure::new(if is_not_found(error) { Exit::CommandNotFound } else { Exit::CannotExecute }, error)
}

/// What the kernel here has not, or this program not yet.
fn refuse_what_cannot_be(mode: &DeliveryMode, wanted: &PreloadSettings) -> Result<(), Failure> {
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

/// What is lost where the library does not reach: told, or refused where nothing of the mode would be left.
fn only_from_outside(args: &RunArgs, choice: &Choice, wanted: &PreloadSettings, why: &Why) -> Result<(), Failure> {
    let lost = render::lost_from_outside(wanted);
    if lost.is_empty() && wanted.epoll.is_none() {
        return Ok(());
    }
    let name = args.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mode = choice.mode.value;
    let needs_it = |requirement| matches!(requirement, Requirement::SpinBeforeSleep | Requirement::SocketBusyPoll);
    if mode.requirements().into_iter().any(needs_it) {
        let text = format!("{mode} is done by a library in the program, and {name} cannot get one: {why}");
        return Err(Failure::new(Exit::NotSupported, text));
    }
    if args.no_queues {
        let text =
            format!("{name} is reached only from outside, by way of its queues' journal: {why}; leave out --no-queues");
        return Err(Failure::usage(text));
    }
    output::say(&format!("quell: {name} is attached to from outside, once it has epolls: {why}"));
    for lost in lost {
        output::say(&format!("quell: without the preload library {lost}"));
    }
    Ok(())
}
