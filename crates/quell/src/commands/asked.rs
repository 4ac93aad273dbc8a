//! Questions to subjects: shows the plan, asks for consent, shows progress, and says why there is no answer.

use std::fmt::Write as _;

use quell_change::journal::Journal;
use quell_change::transaction::ChangeError;
use quell_host::switching::SwitchError;
use quell_linux::visible::{self, counted};
use quell_result::experiment::SubjectFacts;
use quell_subject::experiment::ComparisonError;
use quell_subject::question::{Answer, HelperError, Operator, Planned, Question, SubjectStep, Tools, Unanswered};
use quell_tune::{TunePlan, TunePlanError};

use super::attach::{ask, keeper};
use super::run::check_possible;
use super::run::verify::why_without_effect;
use super::{bench, stalls};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render_tune;

/// What is done with a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// It is printed only.
    DryRun,
    /// It is carried out after this question, unless the user has answered it with `--yes`.
    Ask { question: &'static str, yes: bool },
}

impl Consent {
    pub(super) fn of(dry_run: bool, question: &'static str, yes: bool) -> Self {
        if dry_run { Self::DryRun } else { Self::Ask { question, yes } }
    }
}

/// Path of this program, for commands that are started with its help.
pub(super) fn this_program() -> Result<String, Failure> {
    let quell = std::env::current_exe().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    Ok(quell.to_string_lossy().into_owned())
}

/// What subjects need of this program.
pub(super) fn tools<'a>(journal: &'a Journal, quell: &'a str) -> Tools<'a> {
    let check_launch = |mode: &_, command: &[String]| check_possible(mode, command).map_err(|failure| failure.text);
    Tools { journal, start_keeper: keeper::start, quell, check_launch, why_without_effect }
}

/// Asks a subject. `None` after a dry run.
///
/// # Errors
/// See [`Unanswered`].
pub(super) fn answered(
    consent: Consent,
    ask: impl FnOnce(&Tools<'_>, &mut dyn Operator) -> Result<Answer, Unanswered>,
) -> Result<Option<Answer>, Failure> {
    let journal = journal();
    if consent != Consent::DryRun {
        // Otherwise changes left by a killed run would be taken for the host's own settings.
        revert_killed_runs(&journal).map_err(Failure::refused)?;
    }
    let quell = this_program()?;
    let mut asked = Asked { consent, progress: Progress::new(), declined: None };
    let answer = ask(&tools(&journal, &quell), &mut asked);
    asked.progress.finish();
    match (answer, asked.declined) {
        (Ok(answer), _) => Ok(Some(answer)),
        (Err(Unanswered::Declined), None) => Ok(None),
        (Err(Unanswered::Declined), Some(why)) => Err(why),
        (Err(error), _) => Err(failure(error)),
    }
}

/// The user at the command line.
struct Asked {
    consent: Consent,
    progress: Progress,
    /// Why the plan must not be carried out, except for a dry run.
    declined: Option<Failure>,
}

impl Operator for Asked {
    fn agrees(&mut self, planned: &Planned<'_>) -> bool {
        self.progress.finish();
        let text = plan(planned);
        let agreed = match self.consent {
            Consent::DryRun => {
                self.declined = output::data(&text).err();
                return false;
            }
            Consent::Ask { question, yes } => {
                output::say(text.trim_end());
                ask::unless(yes, question, "--yes")
            }
        };
        self.progress = Progress::new();
        self.declined = agreed.err();
        self.declined.is_none()
    }

    fn follow(&mut self, step: SubjectStep<'_>) {
        match step {
            SubjectStep::Doing(what) => self.progress.doing(what),
            SubjectStep::Comparing { load, experiment, stage } => {
                let under = load.map_or_else(String::new, bench::under);
                bench::show_progress(&self.progress, &under, experiment, stage);
            }
            SubjectStep::Searching(tuner) => {
                let percent = (tuner.spent() * 100.0).clamp(0.0, 100.0) as u64;
                self.progress.table(percent, &render_tune::standing(tuner));
            }
        }
    }
}

fn plan(planned: &Planned<'_>) -> String {
    let mut affected = String::new();
    if !planned.affected.is_empty() {
        let names = planned.affected.iter().map(|(pid, name)| format!("{} {pid}", visible::name(name)));
        let names = names.collect::<Vec<_>>().join(", ");
        let _ = writeln!(affected, "other programs on these queues are affected too: {names}");
    }
    match (planned.question, planned.subject) {
        (Question::Compare(comparison), subject) => {
            let modes: Vec<String> = comparison.modes.iter().map(ToString::to_string).collect();
            let (modes, timing) = (modes.join(", "), comparison.timing);
            let (slice_ms, budget_s) = (timing.slice_ms + timing.settle_ms, timing.budget_ms / 1_000);
            match subject {
                SubjectFacts::Command(facts) => format!(
                    "starts `{}` for each slice of {slice_ms} ms, under {modes}, for at most {budget_s} s; its connections \
                     are closed after each slice\n",
                    visible::name(&shell_words::join(&facts.command)),
                ),
                SubjectFacts::Programs(facts) => format!(
                    "switches {} and {} between {modes} every {slice_ms} ms, for at most {budget_s} s; restores them at \
                     the end\n{affected}",
                    counted(facts.queues.len(), "queue"),
                    counted(facts.epolls, "epoll"),
                ),
                _ => unreachable!("only programs of this host and commands are shown before they are changed"),
            }
        }
        (Question::Search(plan), subject) => {
            let hint = match subject {
                SubjectFacts::Command(facts) if facts.load.is_none() && facts.latency.is_none() => {
                    "the connections of the command are closed after each slice\n\
                     --load and --latency are absent: clients have to connect again in each slice\n"
                }
                SubjectFacts::Command(_) => "the connections of the command are closed after each slice\n",
                _ => "everything is restored at the end, after Ctrl-C, and if this command is killed\n",
            };
            format!(
                "searches on {}\n{}{affected}{hint}",
                render_tune::searched_on(subject),
                render_tune::plan(plan, "")
            )
        }
    }
}

/// Why there is no answer, with its exit code.
pub(super) fn failure(error: Unanswered) -> Failure {
    match error {
        Unanswered::Comparison(error) => of_comparison(&error),
        Unanswered::Snapshot(error) => Failure::refused(error).unchanged(),
        Unanswered::Journal(error) => Failure::refused(error).unchanged(),
        Unanswered::Switch(error) => Failure::new(exit_of_switching(&error), error).unchanged(),
        Unanswered::Stalls(finding) => stalls::refused(&finding, "measures"),
        Unanswered::Plan { error, plan } => invalid_plan(&plan, error),
        Unanswered::PresentDiffers | Unanswered::NothingToTry(_) => Failure::new(Exit::NotSupported, error),
        Unanswered::Helper(HelperError::Journal(error)) => Failure::refused(error),
        Unanswered::Metric(_)
        | Unanswered::Judge(_)
        | Unanswered::LoadEnded(_)
        | Unanswered::Helper(HelperError::Start(_)) => Failure::usage(error),
        Unanswered::Interrupted | Unanswered::Declined => Failure::new(Exit::Interrupted, error),
        Unanswered::Clients(_) => Failure::new(Exit::KernelRefused, error).unchanged(),
        error => Failure::new(Exit::KernelRefused, error),
    }
}

/// An error of a comparison with its exit code.
pub(super) fn of_comparison(error: &ComparisonError) -> Failure {
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
fn exit_of_switching(error: &SwitchError) -> Exit {
    match error {
        SwitchError::Change(ChangeError::Refused { .. })
        | SwitchError::NothingToSwitch
        | SwitchError::NotPossible(_) => Exit::NotSupported,
        _ => Exit::KernelRefused,
    }
}

/// Why the plan of a search is invalid.
pub(super) fn invalid_plan(plan: &TunePlan, error: TunePlanError) -> Failure {
    match error {
        TunePlanError::BudgetTooShort { budget_ms, arms, needed_ms } => {
            let loads = plan.loads.len();
            let fewer_loads = if loads > 1 { ", or fewer loads (--loads)" } else { "" };
            Failure::usage(format!(
                "--budget {} s is too short for {} at {} in slices of {} ms: use at least {} s, \
                 or shorter slices (--slice, --settle){fewer_loads}",
                budget_ms / 1_000,
                counted(arms, "mode"),
                counted(loads, "load"),
                plan.slice_and_settle_ms(),
                needed_ms.div_ceil(1_000)
            ))
        }
        error => Failure::usage(error),
    }
}
