//! Options that select programs, the same in every command: by PID or name with their children, by unit or cgroup.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use quell_host::attach::{Selection, TargetError, Targets};
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;

use crate::exit::Failure;

/// Selection of programs.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ProgramsArgs {
    /// Programs by process ID, each with its children.
    #[arg(long, value_name = "PID", value_delimiter = ',', conflicts_with_all = ["name", "unit", "cgroup"])]
    pub(crate) pid: Vec<Pid>,
    /// A program by its name, such as nginx, with its children.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["unit", "cgroup"],
        value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
    /// The processes of a systemd unit, such as nginx.service.
    #[arg(long, value_name = "NAME", conflicts_with = "cgroup", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) unit: Option<String>,
    /// The processes of a control group, given by its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) cgroup: Option<String>,
}

/// An argument that is a PID or the name of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProgramWord {
    Pid(Pid),
    Name(String),
}

/// An empty argument in the place of a program, as an unset variable of a script gives.
#[derive(Debug)]
pub(crate) struct EmptyProgramName;

impl fmt::Display for EmptyProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the argument is empty: give the PID or the name of a program; `quell` lists the servers of this host",
        )
    }
}

impl std::error::Error for EmptyProgramName {}

impl FromStr for ProgramWord {
    type Err = EmptyProgramName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err(EmptyProgramName),
            text => Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Pid)),
        }
    }
}

impl ProgramsArgs {
    /// Whether an option selects programs.
    pub(crate) fn is_given(&self) -> bool {
        !self.pid.is_empty() || self.name.is_some() || self.unit.is_some() || self.cgroup.is_some()
    }

    /// The options that select the programs of these arguments or options, for a command that the user can paste.
    pub(crate) fn options<'a>(&'a self, words: impl Iterator<Item = &'a ProgramWord>) -> Vec<String> {
        let Self { pid, name, unit, cgroup } = self;
        let mut pids: Vec<String> = pid.iter().map(ToString::to_string).collect();
        let mut name = name.clone();
        for word in words {
            match word {
                ProgramWord::Pid(pid) => pids.push(pid.to_string()),
                ProgramWord::Name(word) => name = Some(word.clone()),
            }
        }
        let (option, value) = match (name, unit, cgroup) {
            (Some(name), ..) => ("--name", name),
            (None, Some(unit), _) => ("--unit", unit.clone()),
            (None, None, Some(path)) => ("--cgroup", path.clone()),
            (None, None, None) if pids.is_empty() => ("--pid", "PID".to_owned()),
            (None, None, None) => ("--pid", pids.join(",")),
        };
        vec![option.to_owned(), value]
    }

    /// The programs of these arguments, or of the options. `None` if neither is given.
    ///
    /// # Errors
    /// When both are given, or the programs do not exist.
    pub(crate) fn find_with(&self, words: &[ProgramWord]) -> Result<Option<Targets>, Failure> {
        if words.is_empty() && !self.is_given() {
            return Ok(None);
        }
        self.refuse_both(words)?;
        let targets = self.selection(words).and_then(Targets::find);
        targets.map(Some).map_err(Failure::usage)
    }

    pub(crate) fn refuse_both(&self, words: &[ProgramWord]) -> Result<(), Failure> {
        match self.is_given() && !words.is_empty() {
            true => {
                Err(Failure::usage("specify programs either as arguments, or by --pid, --name, --unit or --cgroup"))
            }
            false => Ok(()),
        }
    }

    pub(crate) fn selection(&self, words: &[ProgramWord]) -> Result<Selection, TargetError> {
        if let Some(unit) = &self.unit {
            return Ok(Selection::Cgroup(Cgroup::of_unit(unit)?));
        }
        if let Some(path) = &self.cgroup {
            return Ok(Selection::Cgroup(Cgroup::at(path)?));
        }
        let mut pids = self.pid.clone();
        let names = self.name.iter().cloned().map(ProgramWord::Name);
        for word in words.iter().cloned().chain(names) {
            match word {
                ProgramWord::Pid(pid) => pids.push(pid),
                ProgramWord::Name(name) => match Selection::named(&name)? {
                    Selection::Processes(found) => pids.extend(found),
                    Selection::Cgroup(_) => {}
                },
            }
        }
        Ok(Selection::Processes(pids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_digits_is_a_pid_and_any_other_one_is_a_name() {
        let word = |text: &str| text.parse::<ProgramWord>().unwrap();
        assert_eq!(word("17"), ProgramWord::Pid(Pid::new(17).unwrap_or_else(|| unreachable!())));
        for name in ["nginx", "0", "-1", "7zip"] {
            assert_eq!(word(name), ProgramWord::Name(name.to_owned()));
        }
    }

    #[test]
    fn an_empty_argument_selects_no_program_and_no_cgroup() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            words: Vec<ProgramWord>,
            #[command(flatten)]
            programs: ProgramsArgs,
        }
        let refused = |arguments: &[&str]| {
            let line = ["quell"].iter().chain(arguments);
            <Line as clap::Parser>::try_parse_from(line).unwrap_err().to_string()
        };
        assert!(refused(&[""]).contains("the argument is empty: give the PID or the name"), "{}", refused(&[""]));
        for option in ["--name", "--unit", "--cgroup"] {
            let said = refused(&[option, ""]);
            assert!(said.contains(&format!("a value is required for '{option}")), "{said}");
        }
    }
}
