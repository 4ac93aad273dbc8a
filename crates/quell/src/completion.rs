//! Completion of command lines. The script that a shell reads calls this program for each completion, so that
//! candidates are those of the host: processes with epolls, running units, devices, network namespaces.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use clap::{Arg, Args, Command, ValueEnum, ValueHint};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Shells, Zsh};
use quell_linux::link::Links;
use quell_linux::netns::Namespace;
use quell_linux::proc::{FdKind, ProcDir, ProcRoot};
use quell_linux::visible;
use quell_result::store::ResultStore;

use crate::commands::program_profiles;
use crate::exit::{Exit, Failure};
use crate::output;

/// Environment variable by which the script of a shell asks for candidates.
const VARIABLE: &str = "QUELL_COMPLETE";

const MODES: [&str; 13] = [
    "base",
    "defer20",
    "defer50",
    "defer200",
    "eventspin20",
    "fullbusy",
    "napibusy",
    "sockpoll50",
    "suspend20",
    "suspend200",
    "threaded",
    "threadedbusy",
    "userbusy",
];

/// Options of `quell completion`.
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell.
    shell: CompletedShell,
}

/// Shells with completion.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompletedShell {
    /// 4 or newer; in /usr/share/bash-completion/completions/quell, or in ~/.bashrc: `source <(quell completion bash)`.
    Bash,
    /// As `_quell` in a directory of $fpath, or in ~/.zshrc: `source <(quell completion zsh)`.
    Zsh,
    /// In ~/.config/fish/completions/quell.fish.
    Fish,
}

pub(crate) fn print(args: &CompletionArgs) -> Result<(), Failure> {
    let shell: &dyn EnvCompleter = match args.shell {
        CompletedShell::Bash => &Bash,
        CompletedShell::Zsh => &Zsh,
        CompletedShell::Fish => &Fish,
    };
    let mut script = Vec::new();
    let written = shell.write_registration(VARIABLE, "quell", "quell", "quell", &mut script);
    written.map_err(|error| Failure::new(Exit::KernelRefused, format!("could not write the script: {error}")))?;
    output::data(&String::from_utf8_lossy(&script))
}

/// Answers the script of a shell and exits, if it is the caller.
pub(crate) fn answer(command: fn() -> Command) {
    let shells: [&dyn EnvCompleter; 3] = [&Bash, &Fish, &Zsh];
    CompleteEnv::with_factory(|| with_candidates(command()))
        .var(VARIABLE)
        .bin("quell")
        .completer("quell")
        .shells(Shells(&shells))
        .complete();
}

fn with_candidates(command: Command) -> Command {
    command.mut_args(with_candidates_of).mut_subcommands(with_candidates)
}

/// Adds candidates to an argument, which is recognized by its name and by what its value is called.
fn with_candidates_of(argument: Arg) -> Arg {
    let value = argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    match (argument.get_id().as_str(), value) {
        ("pid" | "pids" | "words", _) => argument.add(ArgValueCandidates::new(processes)),
        ("unit", _) => argument.add(ArgValueCandidates::new(units)),
        ("device", _) => argument.add(ArgValueCandidates::new(devices)),
        ("netns", _) => argument.add(ArgValueCandidates::new(namespaces)),
        ("first" | "mode" | "modes", _) => argument.add(ArgValueCompleter::new(modes)),
        ("explain", "ID") => argument.add(ArgValueCandidates::new(findings)),
        ("profile", "NAME|FILE") => argument.add(ArgValueCompleter::new(profiles)),
        ("profile" | "files", "FILE") => argument.add(ArgValueCompleter::new(profile_files)),
        ("result", "ID|FILE") => argument.add(ArgValueCompleter::new(results)),
        _ if argument.get_value_hint() == ValueHint::AnyPath => argument.add(ArgValueCompleter::new(files)),
        _ => argument,
    }
}

/// A mode, or the next one of a list.
fn modes(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let (before, typed) = current.split_at(current.rfind(',').map_or(0, |comma| comma + 1));
    let matching = MODES.iter().filter(|mode| mode.starts_with(typed));
    matching.map(|mode| CompletionCandidate::new(format!("{before}{mode}"))).collect()
}

/// User processes that have an epoll, and those whose files this user cannot see.
fn processes() -> Vec<CompletionCandidate> {
    let proc = ProcRoot::default();
    let candidate = |pid: quell_linux::Pid| {
        let process = proc.process(pid);
        let name = process.stat().ok()?.name();
        let has_epoll = match process.fds() {
            Ok(fds) => fds.iter().any(|fd| fd.kind == FdKind::Epoll),
            // Only kernel threads have no arguments.
            Err(error) => error.is_denied() && process.arguments().is_ok_and(|arguments| !arguments.is_empty()),
        };
        has_epoll
            .then(|| CompletionCandidate::new(pid.to_string()).help(Some(visible::name(&name).into_owned().into())))
    };
    proc.pids().unwrap_or_default().into_iter().filter_map(candidate).collect()
}

fn units() -> Vec<CompletionCandidate> {
    let proc = ProcRoot::default();
    let unit = |process: ProcDir| process.unit().ok().flatten();
    let units = proc.pids().unwrap_or_default().into_iter().filter_map(|pid| unit(proc.process(pid)));
    named(units)
}

fn devices() -> Vec<CompletionCandidate> {
    let links = Links::open().and_then(|mut links| links.list()).unwrap_or_default();
    named(links.into_iter().map(|link| link.name))
}

fn namespaces() -> Vec<CompletionCandidate> {
    let names = Namespace::list_named().unwrap_or_default();
    named(names.iter().map(|name| name.as_str().to_owned()))
}

fn findings() -> Vec<CompletionCandidate> {
    let rules = quell_host::findings::rules();
    rules.map(|rule| CompletionCandidate::new(rule.id).help(Some(rule.title.to_owned().into()))).collect()
}

fn named(names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let names: BTreeSet<String> = names.filter(|name| is_pasted_unchanged(name)).collect();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Whether no shell gives a character of the name a meaning. Others choose the names of control groups, devices and
/// files, and bash inserts a candidate into the command line as it is.
fn is_pasted_unchanged(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:@+".contains(&byte))
}

fn files(current: &OsStr) -> Vec<CompletionCandidate> {
    paths(&PathCompleter::any(), current)
}

fn profile_files(current: &OsStr) -> Vec<CompletionCandidate> {
    files_ending_in("toml", current)
}

fn profiles(current: &OsStr) -> Vec<CompletionCandidate> {
    let shipped = program_profiles::SHIPPED.iter().map(|(name, _)| CompletionCandidate::new(*name));
    let typed = current.to_string_lossy();
    let mut found: Vec<_> = shipped.filter(|name| name.get_value().to_string_lossy().starts_with(&*typed)).collect();
    found.extend(profile_files(current));
    found
}

/// IDs of stored results, and files.
fn results(current: &OsStr) -> Vec<CompletionCandidate> {
    let typed = current.to_string_lossy();
    let stored = ResultStore::of_user().list().unwrap_or_default().into_iter().rev();
    let mut found: Vec<_> =
        stored.filter(|one| one.id.starts_with(&*typed)).map(|one| CompletionCandidate::new(one.id)).collect();
    found.extend(files_ending_in("json", current));
    found
}

fn files_ending_in(extension: &'static str, current: &OsStr) -> Vec<CompletionCandidate> {
    paths(&PathCompleter::any().filter(move |path: &Path| ends_in(path, extension)), current)
}

fn paths(completer: &PathCompleter, current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = completer.complete(current);
    found.retain(|one| {
        let name = Path::new(one.get_value()).file_name().and_then(OsStr::to_str);
        name.is_some_and(is_pasted_unchanged)
    });
    found
}

fn ends_in(path: &Path, extension: &str) -> bool {
    path.extension() == Some(OsStr::new(extension))
}
