//! `quell apply`: shows the changes that a profile requires, applies them as one transaction, or reapplies them after
//! drift.

mod layers;
pub(crate) mod watchdog;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use quell_change::change::Drift;
use quell_change::drift::{self, Condition};
use quell_change::journal::{History, Purpose};
use quell_change::persistent::{self, Persistent};
use quell_change::transaction::ChangeError;
use quell_host::apply::{self, Applied, ApplyError, ApplyRequest, observe};
use quell_host::attach::owners::CoveredOwner;
use quell_host::findings::{Finding, time_text};
use quell_host::plan::{PlanInput, ProfilePlan};
use quell_linux::netns::NamespaceName;
use quell_linux::signal::Interruption;
use quell_linux::visible::{self, agree};
use quell_mode::profile::{Profile, ProfileError};
use quell_mode::{DeliveryMode, parse_duration};

use super::attach::ask;
use super::earlier::covers;
use super::snapshot_scope::is_missing;
use super::stalls;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, name_of, revert_killed_runs};
use crate::output;
use crate::render::attach::{covered_line, finding_lines};
use crate::render::plan_tree::{self, PlanReport, ReassertReport};
use crate::render::progress::Progress;
use crate::render::reverted::undo_outcome;

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Options of `quell apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Profile files; a later file overrides an earlier one [/usr/lib/quell/*.toml, then /etc/quell/*.toml]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show each change with its old and new value, and what is not possible here; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Restore everything after this time unless `quell confirm` is run: 60s, 5m.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "reassert")]
    confirm: Option<Duration>,
    /// Do not ask for confirmation on a terminal if other programs are affected.
    #[arg(short, long)]
    yes: bool,
    /// Apply even if a stall is predicted: network events can be delayed forever.
    #[arg(long, conflicts_with = "reassert")]
    accept_stalls: bool,
    /// Apply what is possible here, and skip the rest.
    #[arg(long)]
    skip_impossible: bool,
    /// Wait up to this time until the profile's devices exist and their links are up: 60s, 5m.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "reassert")]
    wait_for_link: Option<Duration>,
    /// Set again only values that other programs have changed since the profile was applied
    #[arg(long, conflicts_with_all = ["files", "skip_impossible"])]
    reassert: bool,
    /// Name of the network namespace [this one]
    #[arg(long, value_name = "NAME", value_parser = namespace_name)]
    netns: Option<NamespaceName>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

pub(super) fn namespace_name(text: &str) -> Result<NamespaceName, String> {
    NamespaceName::new(text).map_err(|error| error.to_string())
}

/// Parses `60s`, `5m`, or seconds without a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let limits = Duration::from_secs(1)..=Duration::from_secs(86_400);
    let refused = || format!("invalid time {text:?}: expected 1s to 1d, such as 60s or 5m");
    parse_duration(text).ok().filter(|time| limits.contains(time)).ok_or_else(refused)
}

pub(crate) fn run(args: &ApplyArgs) -> Result<(), Failure> {
    if args.reassert {
        return reassert_all(args.json, args.dry_run);
    }
    let layers = layers::read(&args.files)?;
    let name = layers.iter().map(|layer| layer.name().to_owned()).collect::<Vec<_>>().join(", ");
    let profile = Profile::parse(&layers).map_err(|error| refused(&error))?;
    refuse_without_host_settings(&profile, &name)?;
    let request = ApplyRequest {
        netns: args.netns.as_ref(),
        profile: &profile,
        name: &name,
        content: apply::content(&layers),
        skip_impossible: args.skip_impossible,
    };
    let (observed, plan) = look(&request, args.wait_for_link)?;
    let forecast = || apply::forecast(&journal(), &observed, &plan);
    let findings = Progress::during("observing the programs", forecast).map_err(failure)?;
    let mut covers = covers(&plan.values(), &BTreeSet::new());
    // An earlier text of this profile is no other owner.
    covers.retain(|one| !matches!(&one.owner, Purpose::Profile { name: of, .. } if *of == name));
    let lines: Vec<String> = finding_lines(&findings).into_iter().chain(covers.iter().map(covered_line)).collect();
    lines.iter().for_each(|line| output::say(line));
    say_what_programs_need(&profile, &name);
    let stall = findings.iter().find(|finding| finding.predicts_stall()).filter(|_| !args.accept_stalls);
    if args.dry_run || stall.is_some() {
        if args.dry_run {
            show(&plan, &covers, &findings, args.json)?;
            if let Some(time) = args.confirm {
                output::say(&format!("would be rolled back in {} s unless you run `quell confirm`", time.as_secs()));
            }
        }
        match apply::check(&journal(), &request, &plan) {
            Err(ApplyError::AlreadyApplied { history, .. }) if is_of(&history, &request) => {}
            // The plan has shown the settings.
            Err(ApplyError::Impossible(plan)) if args.dry_run => return Err(impossible(plan, "")),
            Err(ApplyError::AlreadyApplied { path, history, .. }) if args.dry_run => {
                return Err(already_applied(&path, &history, "."));
            }
            checked => checked.map_err(failure)?,
        }
        return stall.map_or(Ok(()), |finding| Err(stalls::refused(finding, "applies the profile")));
    }
    let is_shown = !lines.is_empty() && !args.json && ask::is_asked(args.yes);
    if is_shown {
        show(&plan, &covers, &findings, false)?;
    }
    if !lines.is_empty() {
        ask::on_terminal(args.yes, "apply?")?;
    }
    let applied = match transact(&request, args.confirm) {
        Err(ApplyError::AlreadyApplied { path, history, .. }) if is_of(&history, &request) => {
            let purpose = &history.begin.purpose;
            if args.confirm.is_some() {
                let text = format!("{purpose} is already applied; nothing was changed. {}", to_replace(&path));
                return Err(Failure::new(Exit::KernelRefused, text));
            }
            output::say(&format!("{purpose} is already applied"));
            return reassert([(path.as_path(), &*history)], args.json, false);
        }
        applied => applied.map_err(failure)?,
    };
    let shown = if is_shown { Ok(()) } else { show(&applied.plan, &covers, &findings, args.json) };
    say_what_next(&applied, args.confirm);
    shown
}

/// Whether the journal is that of a profile with the same text.
fn is_of(history: &History, request: &ApplyRequest<'_>) -> bool {
    matches!(&history.begin.purpose, Purpose::Profile { content, .. } if *content == request.content)
}

/// Plans the profile. Waits at most `patience` for its devices and their links; the plan says what is missing
/// afterwards.
fn look(request: &ApplyRequest<'_>, patience: Option<Duration>) -> Result<(PlanInput, ProfilePlan), Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let until = Instant::now() + patience.unwrap_or_default();
    let mut is_announced = false;
    loop {
        let observed = observe(request.netns, request.profile).map_err(failure)?;
        let plan = ProfilePlan::of(&observed, request.profile);
        if plan.awaited.is_empty() || Instant::now() >= until {
            return Ok((observed, plan));
        }
        if !is_announced {
            output::say(&format!("waiting for the link of {}", plan.awaited.join(", ")));
            is_announced = true;
        }
        if interruption.wait(BETWEEN_LOOKS).map_err(|error| Failure::new(Exit::KernelRefused, error))?.is_some() {
            return Err(Failure::new(Exit::Interrupted, "stopped while waiting for a link").unchanged());
        }
    }
}

/// Refuses a profile that has settings of a program only: the host would stay as it is.
fn refuse_without_host_settings(profile: &Profile, name: &str) -> Result<(), Failure> {
    match &profile.program {
        Some(_) if profile.devices.is_empty() && profile.sysctls.is_empty() => Err(Failure::usage(format!(
            "{name} has only a [program] table, which `quell apply` does not use; nothing was changed.\n\
             For a running program: quell attach --profile FILE PID\n\
             To start a program: quell run --profile FILE -- COMMAND"
        ))),
        _ => Ok(()),
    }
}

/// Names the commands that use the part of the profile that is not applied.
fn say_what_programs_need(profile: &Profile, name: &str) {
    if profile.program.is_some() {
        output::say(&format!(
            "the [program] table of {name} is not applied: `quell attach --profile` and `quell run --profile` use it"
        ));
    }
    let modes = profile.devices.iter().flat_map(|device| &device.queues).filter_map(|group| group.mode.as_ref());
    let lines: BTreeSet<String> = modes.filter_map(|mode| of_programs(&mode.value)).collect();
    lines.iter().for_each(|line| output::say(line));
}

/// What a mode of queues needs of programs before its timer delays no packet. Absent if it only defers.
fn of_programs(mode: &DeliveryMode) -> Option<String> {
    let timer_ns = mode.napi().gro_flush_timeout_ns;
    let polls_epolls = mode.epoll().is_some_and(|epoll| epoll.prefer_busy_poll || epoll.busy_poll_usecs > 0);
    (timer_ns > 0 && (polls_epolls || mode.poller().is_some())).then(|| {
        format!(
            "a profile sets only the queues of {mode}: until `quell attach {mode} PID` makes a program poll them, their \
             packets wait for the timer, up to {}",
            time_text(timer_ns)
        )
    })
}

fn refused(error: &ProfileError) -> Failure {
    Failure::usage(format!("{error}\n{}", error.caret()))
}

fn show(plan: &ProfilePlan, covers: &[CoveredOwner], findings: &[Finding], json: bool) -> Result<(), Failure> {
    if json { output::json(&PlanReport::new(plan, covers, findings)) } else { output::prose(&plan_tree::tree(plan)) }
}

fn say_what_next(applied: &Applied, confirm: Option<Duration>) {
    match (&applied.journal, confirm) {
        (None, _) => output::say("the host already matches the profile: nothing was changed"),
        (Some(journal), None) => {
            output::say(&format!(
                "applied and verified; undo with `quell revert {}`",
                visible::name(&name_of(journal))
            ));
        }
        (Some(_), Some(time)) => output::say(&format!(
            "applied and verified; will be rolled back in {} s unless you run `quell confirm`",
            time.as_secs()
        )),
    }
}

fn transact(request: &ApplyRequest<'_>, confirm: Option<Duration>) -> Result<Applied, ApplyError> {
    let journal = journal();
    // Without this, changes left by a killed run would look like an applied profile.
    revert_killed_runs(&journal).map_err(ApplyError::Begin)?;
    let interruption = Interruption::listen().map_err(|error| ApplyError::Watchdog(error.to_string()))?;
    let flag = interruption.flag();
    let mut observer = |_, _| if flag.get().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    match confirm {
        None => apply::apply(&journal, request, None, &mut observer),
        Some(time) => {
            let mut start = |path: &Path| watchdog::start(path, time).map_err(|failure| failure.text);
            apply::apply(&journal, request, Some(&mut start), &mut observer)
        }
    }
}

fn failure(error: ApplyError) -> Failure {
    match error {
        ApplyError::Impossible(plan) => {
            let settings = format!("{}\n", plan_tree::impossible(&plan));
            impossible(plan, &settings)
        }
        ApplyError::AlreadyApplied { path, history, plan } => {
            let settings = format!(":\n{}", plan_tree::tree(&plan).trim_end());
            already_applied(&path, &history, &settings)
        }
        ApplyError::Begin(error @ ChangeError::Refused { .. }) => {
            Failure::new(Exit::NotSupported, format!("{error}; nothing was changed"))
        }
        ApplyError::Begin(ChangeError::Journal(error)) if error.source.kind() == ErrorKind::AlreadyExists => {
            let path = visible::path(&error.path);
            let text = format!("another `quell apply` is running ({path}); nothing was changed");
            Failure::new(Exit::KernelRefused, text)
        }
        ApplyError::Change { ref source, ref reverted, .. } => {
            let stopped = matches!(**source, ChangeError::Stopped);
            let exit = if stopped { Exit::Interrupted } else { Exit::RolledBack };
            Failure::new(exit, format!("{error}; {}", undo_outcome(reverted)))
        }
        ApplyError::NotInEffect { ref reverted, .. } | ApplyError::WatchdogEnded { ref reverted, .. } => {
            Failure::new(Exit::RolledBack, format!("{error}; {}", undo_outcome(reverted)))
        }
        ApplyError::Keep(_) => Failure::new(Exit::RolledBack, error),
        ApplyError::Look(ref look) if is_missing(look) => Failure::usage(error).unchanged(),
        other => Failure::refused(other),
    }
}

/// Refuses a profile because another one, or an earlier text of it, is applied. `settings`, if they were not shown before,
/// are those that differ.
fn already_applied(applied: &Path, history: &History, settings: &str) -> Failure {
    let purpose = &history.begin.purpose;
    let text = format!(
        "{purpose} is already applied, with other settings{settings}\nNothing was changed. {}",
        to_replace(applied)
    );
    Failure::new(Exit::KernelRefused, text)
}

fn to_replace(applied: &Path) -> String {
    format!("To replace it: `quell revert {}`, then apply again", visible::name(&name_of(applied)))
}

/// Refuses a plan of which `settings`, if they were not shown before, are not possible.
fn impossible(plan: ProfilePlan, settings: &str) -> Failure {
    let count = plan.impossible.len();
    let (these, them) = (agree(&count, "this setting", "these settings"), agree(&count, "it", "them"));
    let what = ApplyError::Impossible(plan);
    let text = format!("{what}\n{settings}remove {these} from the profile, or skip {them} with --skip-impossible");
    Failure::new(Exit::NotSupported, text)
}

/// The applied profiles, one per namespace.
fn applied_profiles() -> Result<Vec<Persistent>, Failure> {
    let kept = persistent::list(&journal()).map_err(Failure::refused)?;
    Ok(kept.into_iter().filter(|kept| kept.history.begin.purpose.profile().is_some()).collect())
}

fn reassert_all(json: bool, dry_run: bool) -> Result<(), Failure> {
    let applied = applied_profiles()?;
    if applied.is_empty() {
        return Err(Failure::usage("no profile is applied: `quell apply FILE` applies one"));
    }
    reassert(applied.iter().map(|kept| (kept.path.as_path(), &kept.history)), json, dry_run)
}

fn reassert<'a>(
    applied: impl IntoIterator<Item = (&'a Path, &'a History)>,
    json: bool,
    dry_run: bool,
) -> Result<(), Failure> {
    let set_again = if dry_run { drift::condition } else { drift::reassert };
    let before: Vec<Condition> = applied
        .into_iter()
        .map(|(path, history)| set_again(path, history))
        .collect::<Result<_, _>>()
        .map_err(Failure::refused)?;
    let gone: usize = before.iter().map(|before| before.gone).sum();
    let drifted: Vec<Drift> = before.into_iter().flat_map(|before| before.drifted).collect();
    if json {
        output::json(&ReassertReport::new(drifted.clone()))?;
    } else {
        let line = |drift: &Drift| {
            let what = match (drift.now.is_some(), dry_run) {
                (true, false) => "set again",
                (true, true) => "would be set again",
                (false, false) => "not set again",
                (false, true) => "would not be set again",
            };
            format!("{what}: {}\n", plan_tree::drift(drift, "was"))
        };
        output::prose(&drifted.iter().map(line).collect::<String>())?;
    }
    match drifted.iter().filter(|drift| drift.now.is_none()).count() + gone {
        0 if drifted.is_empty() => output::say("no drift: nothing was changed"),
        0 => {}
        _ => {
            let text = "some settings could not be restored: their queue, device or network namespace is missing \
                        (see `quell status`): `quell apply --reassert` sets them again once it is back";
            return Err(Failure::new(Exit::VerifyFailed, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_of_queues_that_programs_have_to_poll_is_said_with_its_timer() {
        let said = |mode: &str| of_programs(&mode.parse().unwrap());
        let polls = said("userbusy").unwrap();
        assert!(polls.contains("`quell attach userbusy PID`") && polls.ends_with("the timer, up to 1 ms"), "{polls}");
        assert!(said("suspend200").is_some() && said("fullbusy").is_some());
        assert_eq!(["base", "defer200", "threaded"].map(said), [None, None, None]);
    }

    #[test]
    fn a_time_is_seconds_or_minutes() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        for text in ["", "0s", "1h", "-1s", "86401"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
