//! Questions to subjects: shows the plan, asks for consent, shows progress, and says why there is no answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_change::journal::Journal;
use quell_change::transaction::ChangeError;
use quell_experiment::SliceFlag;
use quell_host::findings::LackingCpus;
use quell_host::switching::SwitchError;
use quell_linux::Pid;
use quell_linux::shell;
use quell_linux::visible::{self, counted};
use quell_load::OfferedLoad;
use quell_report::words;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::{OtherProgramFacts, ProgramsFacts};
use quell_subject::experiment::ComparisonError;
use quell_subject::experiment::model::ModelSpec;
use quell_subject::other_programs::Contention;
use quell_subject::question::{Comparison, Question, SubjectStep};
use quell_subject::requirements::Missing;
use quell_subject::run::{LabRequest, LabRunError};
use quell_subject::server::ServerError;
use quell_subject::subjects::{Answer, HelperError, Operator, Planned, PlannedSubject, SubjectSpec, Tools, Unanswered};
use quell_subject::vm::VmLabError;
use quell_tune::{TunePlan, TunePlanError};

use crate::commands::attach::{ask, keeper};
use crate::commands::run::check_possible;
use crate::commands::run::verify::why_without_effect;
use crate::commands::stalls;
use crate::commands::vm::{of_machine, of_store};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, report_recovery, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;
use crate::render::{attach as render_attach, experiment, tune as render_tune};

/// What is done with a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Consent {
    /// It is printed only.
    DryRun,
    /// It is printed and carried out: it changes nothing of others.
    Tell,
    /// It is carried out after this question, unless the user has answered it with `--yes`.
    Ask { question: &'static str, yes: bool },
}

impl Consent {
    pub(in crate::commands) fn of(dry_run: bool, question: &'static str, yes: bool) -> Self {
        if dry_run { Self::DryRun } else { Self::Ask { question, yes } }
    }
}

/// Path of this program, for commands that are started with its help.
pub(in crate::commands) fn this_program() -> Result<String, Failure> {
    let quell = std::env::current_exe().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    Ok(quell.to_string_lossy().into_owned())
}

/// What subjects need of this program.
pub(in crate::commands) fn tools<'a>(journal: &'a Journal, quell: &'a str) -> Tools<'a> {
    let check_launch = |mode: &_, command: &[String]| check_possible(mode, command).map_err(|failure| failure.text);
    Tools { journal, start_keeper: keeper::start, quell, check_launch, why_without_effect }
}

/// Asks a subject. `None` after a dry run.
///
/// # Errors
/// See [`Unanswered`].
pub(in crate::commands) fn answered(
    spec: &SubjectSpec,
    question: Question,
    consent: Consent,
) -> Result<Option<Answer>, Failure> {
    let journal = journal();
    let is_of_this_host = matches!(spec, SubjectSpec::Programs(_) | SubjectSpec::Command(_));
    if consent != Consent::DryRun && is_of_this_host {
        // Otherwise changes left by a killed run would be taken for the host's own settings.
        revert_killed_runs(&journal).map_err(Failure::refused)?;
    }
    let quell = this_program()?;
    let mut asked = Asked { consent, shown: Shown::new(), declined: None };
    let answer = spec.answer(question, &tools(&journal, &quell), &mut asked);
    asked.shown.finish();
    match (answer, asked.declined) {
        (Ok(answer), _) => Ok(Some(answer)),
        (Err(Unanswered::Declined), None) => Ok(None),
        (Err(Unanswered::Declined), Some(why)) => Err(why),
        (Err(error), _) => Err(failure(error)),
    }
}

/// Progress of a subject.
pub(in crate::commands) struct Shown {
    progress: Progress,
    /// The part of a published experiment that is running.
    part: String,
}

impl Shown {
    pub(in crate::commands) fn new() -> Self {
        Self { progress: Progress::new(), part: String::new() }
    }

    pub(in crate::commands) fn finish(&self) {
        self.progress.finish();
    }

    pub(in crate::commands) fn show(&mut self, step: SubjectStep<'_>) {
        let progress = &self.progress;
        match step {
            SubjectStep::Doing(what) => progress.doing(what),
            SubjectStep::Recovered(found) => found.iter().for_each(|found| report_recovery(progress, found)),
            SubjectStep::Note(text) => progress.say(text),
            SubjectStep::PartBegins { number, of, name } => self.part = format!(", part {number} of {of} ({name})"),
            SubjectStep::Slice { load, spent, block, mode } => {
                let under = load.map_or_else(|| self.part.clone(), under);
                let percent = (spent * 100.0).clamp(0.0, 100.0) as usize;
                progress.step(
                    percent,
                    100,
                    &format!("% of the budget, block {}{under}: {}", block + 1, visible::name(mode)),
                );
            }
            SubjectStep::NotSettable { mode, reason } => {
                progress.say(&left_out_line(mode, reason));
            }
            SubjectStep::Searching(tuner) => {
                let percent = (tuner.spent() * 100.0).clamp(0.0, 100.0) as u64;
                progress.table(percent, &render_tune::standing(tuner));
            }
        }
    }
}

fn under(load: OfferedLoad) -> String {
    match load {
        OfferedLoad::Max => " in a closed loop".to_owned(),
        load => format!(" at {}", words::load_name(load)),
    }
}

fn left_out_line(mode: impl std::fmt::Display, reason: &str) -> String {
    format!("{} is left out: {}", visible::name(&mode.to_string()), visible::name(reason))
}

/// The user at the command line.
struct Asked {
    consent: Consent,
    shown: Shown,
    /// Why the plan must not be carried out, except for a dry run.
    declined: Option<Failure>,
}

impl Operator for Asked {
    fn agrees(&mut self, planned: &Planned<'_>) -> bool {
        self.shown.finish();
        let text = plan(planned);
        let agreed = match self.consent {
            Consent::DryRun => {
                self.declined = output::prose(&text).err();
                return false;
            }
            Consent::Tell => {
                output::say(text.trim_end());
                Ok(())
            }
            Consent::Ask { question, yes } => {
                output::say(text.trim_end());
                ask::unless(yes, question, "--yes")
            }
        };
        self.shown = Shown::new();
        self.declined = agreed.err();
        self.declined.is_none()
    }

    fn follow(&mut self, step: SubjectStep<'_>) {
        self.shown.show(step);
    }
}

fn plan(planned: &Planned<'_>) -> String {
    match planned.question {
        Question::Compare(comparison) => plan_of_comparison(comparison, &planned.subject),
        Question::Search(plan) => plan_of_search(plan, &planned.subject),
    }
}

fn plan_of_comparison(comparison: &Comparison, subject: &PlannedSubject<'_>) -> String {
    let modes: Vec<String> = comparison.modes.iter().map(ToString::to_string).collect();
    let (modes, timing) = (modes.join(", "), comparison.timing);
    let budget_s = comparison.budget_max_ms / 1_000;
    let (slice_ms, settle_ms) = (u64::from(timing.slice_ms), u64::from(timing.settle_ms));
    let total_ms = slice_ms + settle_ms;
    match subject {
        PlannedSubject::Command(facts) => format!(
            "starts `{}` for each slice, under {modes}, for at most {budget_s} s; its connections are closed after each slice\n\
             {}a slice lasts {settle_ms} ms to settle and {slice_ms} ms to measure, and the time that the commands take \
             to start and end\n{}",
            shell::command(&facts.command),
            words::queues_of_command(facts).map(|queues| queues + "\n").unwrap_or_default(),
            commands([&facts.load, &facts.latency, &facts.beside]),
        ),
        PlannedSubject::Programs { facts, left_out, affected, judges_took_ms, lacking_cpus, contention } => {
            let is_judged = facts.latency.is_some() || facts.beside.is_some();
            let (total_ms, measured) = match judges_took_ms {
                Some(ms) if *ms > slice_ms => {
                    (ms + settle_ms, format!("{ms} ms to measure, as long as --latency runs"))
                }
                None if is_judged => (total_ms, format!("{slice_ms} ms to measure, or as long as --latency runs")),
                _ => (total_ms, format!("{slice_ms} ms to measure")),
            };
            format!(
                "switches {} and {} between {modes} every {total_ms} ms, for at most {budget_s} s; restores them at the end\n\
                 a slice lasts {settle_ms} ms to settle and {measured}\n{}",
                counted(facts.queues.len(), "queue"),
                counted(facts.epolls, "epoll"),
                blocks(comparison, total_ms)
                    + &left_out.iter().map(|(mode, why)| left_out_line(mode, why) + "\n").collect::<String>()
                    + &commands([&facts.load, &facts.latency, &facts.beside])
                    + &notes(facts)
                    + &affected_too(affected)
                    + &warnings(*lacking_cpus, contention)
            )
        }
        PlannedSubject::Lab(request) => format!(
            "compares {modes} on {}, {}; the lab is removed at the end\nin slices of {total_ms} ms, for at most {budget_s} s\n",
            of_lab(request),
            loads(&request.loads)
        ),
        PlannedSubject::Model(spec) => format!(
            "compares {modes} on {}, {}; this host is not changed\nin slices of {total_ms} ms, for at most {budget_s} s of \
             virtual time\n",
            of_model(spec),
            loads(&spec.loads)
        ),
        PlannedSubject::Guest(kernel) => format!(
            "compares {modes} in a guest with Linux {}, in a closed loop; this host is not changed\n\
             in slices of {total_ms} ms, for at most {budget_s} s of the guest's time\n",
            kernel.origin.version
        ),
    }
}

fn plan_of_search(plan: &TunePlan, subject: &PlannedSubject<'_>) -> String {
    let (on, hints, of_time) = match subject {
        PlannedSubject::Command(facts) => {
            let hint = match facts.load.is_none() && facts.latency.is_none() {
                true => {
                    "the connections of the command are closed after each slice\n\
                     --load and --latency are absent: clients have to connect again in each slice\n"
                }
                false => "the connections of the command are closed after each slice\n",
            };
            (render_tune::searched_on(&SubjectFacts::Command((*facts).clone())), hint.to_owned(), "")
        }
        PlannedSubject::Programs { facts, affected, judges_took_ms, lacking_cpus, contention, .. } => {
            let is_open = facts.latency.is_some() && judges_took_ms.is_none();
            let longer = if is_open { "a slice lasts as long as --latency runs, if that is longer\n" } else { "" };
            let restored = "everything is restored at the end, after Ctrl-C, and if this command is killed\n";
            let subject = SubjectFacts::Programs(Box::new((*facts).clone()));
            (
                render_tune::searched_on(&subject),
                notes(facts) + &affected_too(affected) + longer + restored + &warnings(*lacking_cpus, contention),
                "",
            )
        }
        PlannedSubject::Lab(request) => {
            (format!("{}; the lab is removed at the end", of_lab(request)), String::new(), "")
        }
        PlannedSubject::Model(spec) => {
            (format!("{}; this host is not changed", of_model(spec)), String::new(), " of virtual time")
        }
        PlannedSubject::Guest(kernel) => {
            let on = format!(
                "a server in a guest with Linux {}, in a closed loop; this host is not changed\n\
                 times in an emulated guest mean nothing, so the answer holds for no real machine",
                kernel.origin.version
            );
            (on, String::new(), " of the guest's time")
        }
    };
    format!("searches on {on}\n{}{hints}", render_tune::plan(plan, of_time))
}

fn of_lab(LabRequest { lab, .. }: &LabRequest) -> String {
    format!(
        "{} in a private lab on this machine, {}, {}",
        render_tune::server(&lab.server),
        counted(lab.queues, "queue"),
        counted(lab.connections, "connection")
    )
}

fn of_model(ModelSpec { setup, .. }: &ModelSpec) -> String {
    format!(
        "the model of {}, {}, {}{}",
        visible::name(&setup.host.name),
        counted(setup.queues, "queue"),
        counted(setup.connections, "connection"),
        if setup.irqs_apart { ", a CPU per worker and per queue" } else { "" },
    )
}

fn loads(loads: &[OfferedLoad]) -> String {
    let loads: Vec<String> = loads.iter().map(ToString::to_string).collect();
    format!("at {}", loads.join(", "))
}

/// `time for 12 blocks of 3 slices: one of each mode, two of base`. Not a limit: a block begins as long as the budget has
/// time for one like those before, and slices can be shorter than planned.
fn blocks(comparison: &Comparison, slice_ms: u64) -> String {
    let slices = comparison.modes.len() + 1;
    let blocks = comparison.budget_max_ms / (slice_ms * slices as u64).max(1);
    let reference = comparison.modes.first().map(ToString::to_string).unwrap_or_default();
    format!("time for {} of {slices} slices: one of each mode, two of {reference}\n", counted(blocks, "block"))
}

/// Commands that send the load, measure latency, and measure another program, with their options.
fn commands(commands: [&Option<Vec<String>>; 3]) -> String {
    let line = |(option, command): (&str, &Option<Vec<String>>)| {
        let command = shell::command(command.as_ref()?);
        Some(format!("--{option}: `{command}`\n"))
    };
    ["load", "latency", "beside-latency"].into_iter().zip(commands).filter_map(line).collect()
}

/// What the programs have or get besides the modes, and which problems the modes cause.
fn notes(facts: &ProgramsFacts) -> String {
    let attached =
        |mode| format!("the programs are attached ({mode}): this pauses meanwhile, and is back at the end\n");
    let attached = facts.attached.map_or_else(String::new, attached);
    let base_is = facts.base_is.map_or_else(String::new, |mode| words::base_is(mode) + "\n");
    let steering = match &*facts.helpful_placement.join(" ") {
        "" => String::new(),
        options => format!("{options} gives each worker the connections of one queue\n"),
    };
    let pins = facts.placement.iter().any(|it| it.options.iter().any(|option| option == "--pin"));
    let pinning = if pins { "pins each worker with one queue to the CPUs of that queue\n" } else { "" };
    let placement = experiment::placement(facts.placement.as_ref());
    attached + &base_is + &placement + pinning + &experiment::problems(&facts.problems) + &steering
}

/// What makes the answer worth less on this host now.
fn warnings(lacking_cpus: Option<LackingCpus>, Contention { flags, programs }: &Contention) -> String {
    let withheld = match (flags.contains(&SliceFlag::NoIdleCpu), flags.contains(&SliceFlag::ForeignCpu)) {
        (true, true) => Some("all verdicts would be withheld, because the programs wait for a CPU"),
        (true, false) => Some("verdicts about what clients see would be withheld, because the programs wait for a CPU"),
        (false, true) => Some("verdicts about CPU time would be withheld"),
        (false, false) => None,
    };
    let which = OtherProgramFacts::which(programs);
    let busy = |withheld: &str| {
        format!(
            "warning: other programs use most of the busy time of the server's CPUs now ({which}), and {withheld}: run \
             clients on another machine, end the others, give the server CPUs of its own, or measure later\n"
        )
    };
    lacking_cpus.map_or_else(String::new, |lacking| render_attach::lacking_cpus(&lacking))
        + &withheld.map_or_else(String::new, busy)
}

fn affected_too(affected: &BTreeMap<Pid, String>) -> String {
    if affected.is_empty() {
        return String::new();
    }
    let names = affected.iter().map(|(pid, name)| format!("{} {pid}", visible::name(name)));
    let names = names.collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    let _ = writeln!(text, "other programs on these queues are affected too: {names}");
    text
}

/// Why there is no answer, with its exit code.
pub(in crate::commands) fn failure(error: Unanswered) -> Failure {
    match error {
        Unanswered::Comparison(error) => of_comparison(&error),
        Unanswered::Lab(error) => of_lab_run(error),
        Unanswered::KernelStore(error) => of_store(&error),
        Unanswered::Guest(VmLabError::Machine(error)) => of_machine(&error),
        Unanswered::Guest(error) => Failure::new(Exit::RolledBack, error),
        Unanswered::Snapshot(error) => Failure::refused(error).unchanged(),
        Unanswered::Journal(error) => Failure::refused(error).unchanged(),
        Unanswered::Switch(error) => match exit_of_switching(&error) {
            Exit::KernelRefused => Failure::refused(error),
            exit => Failure::new(exit, error),
        }
        .unchanged(),
        Unanswered::Stalls(finding) => stalls::refused(&finding, "measures"),
        Unanswered::Plan { error, plan } => invalid_plan(&plan, error),
        Unanswered::PresentDiffers
        | Unanswered::NothingToTry(_)
        | Unanswered::NothingSettable { .. }
        | Unanswered::JudgesAreTheTraffic(_)
        | Unanswered::JudgeWithoutQueue(_)
        | Unanswered::Stopped(_)
        | Unanswered::NotSteered(_) => Failure::new(Exit::NotSupported, error),
        Unanswered::Helper(HelperError::Journal(error)) => Failure::refused(error),
        Unanswered::Metric(_)
        | Unanswered::Judge(_)
        | Unanswered::LoadEnded(_)
        | Unanswered::Helper(HelperError::Start(_)) => Failure::usage(error),
        Unanswered::Interrupted | Unanswered::Declined => Failure::new(Exit::Interrupted, error),
        Unanswered::Clients(_) => Failure::new(Exit::KernelRefused, error).unchanged(),
        error => Failure::refused(error),
    }
}

/// An error of a comparison with its exit code.
pub(in crate::commands) fn of_comparison(error: &ComparisonError) -> Failure {
    let exit = match error {
        ComparisonError::Interrupted => Exit::Interrupted,
        ComparisonError::Judge(_) | ComparisonError::Design(_) | ComparisonError::ShortBudget { .. } => Exit::Usage,
        ComparisonError::Reference { .. } | ComparisonError::NoModeLeft(_) => Exit::NotSupported,
        ComparisonError::FirstSlice { .. } => Exit::RolledBack,
        ComparisonError::Switch(error) => exit_of_switching(error),
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, error)
}

/// An error of a lab with its exit code.
pub(in crate::commands) fn of_lab_run(error: LabRunError) -> Failure {
    match error {
        LabRunError::NotSteered(_) => Failure::new(Exit::NotSupported, error),
        LabRunError::NotPossibleHere(missing) => Failure::new(Exit::NotSupported, not_possible(&missing)),
        LabRunError::Cpus(error) => Failure::new(Exit::NotSupported, error),
        LabRunError::Experiment(ComparisonError::Reference { .. } | ComparisonError::NoModeLeft(_)) => {
            Failure::new(Exit::NotSupported, error)
        }
        LabRunError::Experiment(ComparisonError::Design(_) | ComparisonError::ShortBudget { .. }) => {
            Failure::usage(error)
        }
        LabRunError::Check(_) => Failure::new(
            Exit::VerifyFailed,
            format!("{error}; use --insist to measure anyway (the result is then marked)"),
        ),
        LabRunError::Interrupted
        | LabRunError::Server(ServerError::Interrupted)
        | LabRunError::Experiment(ComparisonError::Interrupted) => Failure::new(Exit::Interrupted, error),
        LabRunError::Lab(_) | LabRunError::Switch(_) | LabRunError::Change(_) => {
            Failure::new(Exit::KernelRefused, error)
        }
        _ => Failure::new(Exit::RolledBack, format!("{error}; the lab was removed")),
    }
}

/// Lists the missing requirements of the lab, with instructions to fix them.
fn not_possible(missing: &[Missing]) -> String {
    let mut text = String::from("this machine cannot run the lab. Missing requirements:");
    for Missing { what, observed, fix } in missing {
        text.push_str(&format!("\n  {what}\n    found: {observed}\n    to fix this: {fix}"));
    }
    text
}

/// Exit code if programs cannot be switched between modes.
fn exit_of_switching(error: &SwitchError) -> Exit {
    match error {
        SwitchError::Change(ChangeError::Refused { .. })
        | SwitchError::NothingToSwitch(_)
        | SwitchError::NotPossible(_) => Exit::NotSupported,
        _ => Exit::KernelRefused,
    }
}

/// Of a budget in ms: the next rehearsal can find longer slices.
fn with_margin(needed_ms: u64) -> u64 {
    needed_ms + needed_ms / 10
}

/// Why the plan of a search is invalid.
pub(in crate::commands) fn invalid_plan(plan: &TunePlan, error: TunePlanError) -> Failure {
    match error {
        TunePlanError::BudgetTooShort { budget_ms, arms, needed_ms } => {
            let loads = plan.loads.len();
            let fewer_loads = if loads > 1 { ", or fewer loads (--loads)" } else { "" };
            Failure::usage(format!(
                "--budget {} s is too short for {} at {} in slices of {} ms: use --budget {}s{fewer_loads}",
                budget_ms / 1_000,
                counted(arms, "mode"),
                counted(loads, "load"),
                plan.slice_and_settle_ms(),
                with_margin(needed_ms).div_ceil(1_000)
            ))
        }
        error => Failure::usage(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_change::journal::{Attempt, JournalError};

    #[test]
    fn a_missing_privilege_has_its_exit_code_in_a_dry_run_too() {
        let (eacces, enotdir) = (13, 20);
        let exit = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            let error = JournalError { attempt: Attempt::List, path: "/j".into(), source };
            failure(Unanswered::Switch(error.into())).exit
        };
        assert_eq!(exit(eacces), Exit::NotSupported);
        assert_eq!(exit(enotdir), Exit::KernelRefused);
    }

    #[test]
    fn busy_cpus_and_too_few_cpus_for_pollers_are_said_before_the_first_slice_with_what_to_do() {
        let contention = |flags: &[SliceFlag], programs: Vec<OtherProgramFacts>| Contention {
            flags: flags.iter().copied().collect(),
            programs,
        };
        let said = |flags: &[SliceFlag]| warnings(None, &contention(flags, Vec::new()));
        let saturated = said(&[SliceFlag::ForeignCpu, SliceFlag::NoIdleCpu]);
        assert!(
            saturated.contains("all verdicts would be withheld") && saturated.contains("measure later"),
            "{saturated}"
        );
        assert!(said(&[SliceFlag::ForeignCpu]).contains("verdicts about CPU time would be withheld"));
        assert_eq!(said(&[]), "");
        let stress = OtherProgramFacts {
            pid: 812,
            name: "str\u{1b}ess".to_owned(),
            cpus: 0.976,
            has_exited: false,
            is_of_measurement: false,
        };
        let named = warnings(None, &contention(&[SliceFlag::ForeignCpu], vec![stress.clone()]));
        assert!(named.contains(r"CPUs now (str\u{1b}ess 812: 98 % of a CPU), and"), "{named}");
        assert_eq!(warnings(None, &contention(&[], vec![stress])), "", "they distort nothing");
        let lacking = warnings(LackingCpus::of(4, 2, 2), &Contention::default());
        assert!(lacking.starts_with("warning: 4 CPUs for 2 polling threads and 2 workers"), "{lacking}");
        assert_eq!(warnings(LackingCpus::of(5, 2, 2), &Contention::default()), "");
    }
}
