//! Options of `quell attach` that select the mode and the processes.

use std::str::FromStr;

use clap::Args;
use quell_cli::simulation::refused_mode;
use quell_host::attach::placement::Wanted;
use quell_host::attach::{AttachError, Targets};
use quell_linux::shell;
use quell_mode::{DeliveryMode, ParseModeError};

use super::AttachArgs;
use crate::commands::program_profiles;
use crate::commands::programs_args::{EmptyProgramName, ProgramWord, ProgramsArgs};
use crate::exit::Failure;
use crate::output;

/// First positional argument: the mode, or with `--profile` the first program.
#[derive(Debug, Clone)]
pub(super) enum ModeOrProgram {
    Mode(DeliveryMode),
    /// A PID or a name, and why it is no mode.
    Program(ProgramWord, ParseModeError),
}

impl FromStr for ModeOrProgram {
    type Err = EmptyProgramName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(mode) => Ok(Self::Mode(mode)),
            Err(error) => Ok(Self::Program(text.parse()?, error)),
        }
    }
}

/// Selection of the mode and the programs.
#[derive(Debug, Args)]
pub(super) struct AttachProgramsArgs {
    /// Delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, userbusy, sockpollN (N in
    /// µs).
    #[arg(value_name = "MODE", required_unless_present = "profile")]
    first: Option<ModeOrProgram>,
    /// Programs to attach to, by PID or name, with their descendants.
    #[arg(value_name = "PID|NAME", conflicts_with = "ProgramsArgs")]
    words: Vec<ProgramWord>,
    #[command(flatten)]
    programs: ProgramsArgs,
    /// Take the mode from the `[program]` table of a profile: haproxy, memcached, nginx, redis, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
}

/// A mode in the place of a program.
fn second_mode(word: &ProgramWord) -> Option<DeliveryMode> {
    match word {
        ProgramWord::Name(name) => name.parse().ok(),
        ProgramWord::Pid(_) => None,
    }
}

impl AttachProgramsArgs {
    /// Returns the mode and the processes that the command line selects.
    pub(super) fn find(&self, placement: &Wanted) -> Result<(DeliveryMode, Targets), Failure> {
        let (mode, first) = match (&self.profile, self.first.clone()) {
            (None, Some(ModeOrProgram::Mode(mode))) => (mode, None),
            (None, Some(ModeOrProgram::Program(ProgramWord::Name(_), error))) => return Err(refused_mode(&error)),
            (None, _) => return Err(Failure::usage("specify a mode before the processes, or --profile")),
            (Some(_), Some(ModeOrProgram::Mode(mode))) => {
                return Err(Failure::usage(format!("--profile selects the mode, so {mode} cannot be specified too")));
            }
            (Some(named), Some(ModeOrProgram::Program(word, _))) => {
                (self.of_profile(named, Some(&word), placement)?, Some(word))
            }
            (Some(named), None) => (self.of_profile(named, None, placement)?, None),
        };
        if let Some(second) = self.words.iter().find_map(second_mode) {
            return Err(Failure::usage(format!(
                "a program has one mode, and {mode} and {second} are given; `quell bench --modes {mode},{second} --pid PID` \
                 compares them (--name {second} selects a program of this name)"
            )));
        }
        let words: Vec<ProgramWord> = first.into_iter().chain(self.words.iter().cloned()).collect();
        if words.is_empty() && !self.programs.is_given() {
            return Err(Failure::usage(
                "specify the programs: PID or NAME (also --pid PID, --name NAME), --unit NAME or --cgroup PATH",
            ));
        }
        self.programs.refuse_both(&words)?;
        let targets = self.programs.selection(&words).and_then(Targets::find);
        Ok((mode, targets.map_err(|error| super::failure(AttachError::Target(error)))?))
    }

    /// Options that select the programs, for a command that the user can paste.
    fn text(&self) -> String {
        let first = match &self.first {
            Some(ModeOrProgram::Program(word, _)) => Some(word),
            _ => None,
        };
        let options = self.programs.options(first.into_iter().chain(&self.words));
        shell::command(options)
    }

    /// Reads the mode of a profile. The rest of its program table needs a program that Quell starts.
    fn of_profile(
        &self,
        named: &str,
        first: Option<&ProgramWord>,
        placement: &Wanted,
    ) -> Result<DeliveryMode, Failure> {
        let program = program_profiles::read(named)?;
        if program.max_events.is_some() {
            output::say("max-events of the profile is left out: it needs a program that `quell run` starts");
        }
        let options = self.programs.options(first.into_iter().chain(&self.words)).into_iter();
        program_profiles::say_where_found(&program, &options.chain(placement.options()).collect::<Vec<_>>(), &[]);
        let missing = || Failure::usage(format!("the [program] table of profile {named} has no mode"));
        Ok(program.mode.ok_or_else(missing)?.value)
    }
}

impl AttachArgs {
    /// Options that decide what is set, each after a space.
    fn options_text(&self) -> String {
        let accepts = self.accept_stalls.then(|| "--accept-stalls".to_owned());
        let options = self.placement.wanted().options().into_iter().chain(accepts);
        options.map(|option| format!(" {option}")).collect()
    }

    /// The command that also sets later queues of the programs, which are attached or not; absent if this one does.
    pub(super) fn command_that_follows(&self, mode: DeliveryMode, are_attached: bool) -> Option<String> {
        let (programs, options) = (self.programs.text(), self.options_text());
        let again = if are_attached { " --take-over --yes" } else { "" };
        (!self.follow).then(|| format!("quell attach {mode} {programs}{options} --follow{again}"))
    }

    /// The command that gives the same programs, which are attached, this mode.
    pub(super) fn command_instead(&self, mode: DeliveryMode) -> String {
        let (programs, options) = (self.programs.text(), self.options_text());
        // Only a command in the foreground can take over.
        match self.follow || self.placement.is_requested() {
            true => format!("quell attach {mode} {programs}{options} --follow --take-over --yes"),
            false => format!("quell detach {programs} && quell attach {mode} {programs}{options}"),
        }
    }
}
