//! Applies a profile as one transaction: snapshot, plan, changes, second snapshot. If the second plan is not empty,
//! everything is undone. [`quell_change::drift`] finds later deviations, [`crate::plan`] decides the changes, and
//! [`quell_change::settings`] makes them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use quell_change::journal::{Entry, History, Journal, JournalError, Purpose, Watchdog};
use quell_change::persistent::{self, PersistError, PersistState, Persistent, forget_earlier_boots};
use quell_change::recovery::{Reverted, is_running};
use quell_change::settings::SettingsError;
use quell_change::transaction::{ChangeError, ChangeStage, Transaction, have_owners, permit_planned};
use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcRoot, SysctlName};
use quell_linux::visible::counted;
use quell_mode::profile::{Profile, Source};
use tracing::{info, warn};

use crate::attach::placement::mark_attached_filters;
use crate::behavior::{self, OBSERVED, polling_programs};
use crate::findings::Finding;
use crate::plan::consequences::{after, concerns_programs, consequences_of_profile};
use crate::plan::{ChangeText, DeniedFiles, PlanInput, PlannedChange, ProfilePlan};
use crate::snapshot::{Reading, SnapshotScope, TakeError, UnknownReason, take};

/// Maximum number of snapshots until the host must match the profile. Links and queues need some time to come up.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct ApplyRequest<'a> {
    /// Name of the network namespace; absent: the caller's.
    pub netns: Option<&'a NamespaceName>,
    pub profile: &'a Profile,
    /// Name of the profile in the journal: its file name.
    pub name: &'a str,
    /// Identifies the texts of its files ([`content`]).
    pub content: u32,
    pub skip_impossible: bool,
}

/// Identifies the texts of a profile's files: their CRC-32. It is the same in all versions of Quell.
#[must_use]
pub fn content(layers: &[Source]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for layer in layers {
        // The length ends a text, so that no other division into files has the same value.
        hasher.update(&layer.text().len().to_le_bytes());
        hasher.update(layer.text().as_bytes());
    }
    hasher.finalize()
}

pub type StartWatchdog<'a> = dyn FnMut(&Path) -> Result<Watchdog, String> + 'a;

#[derive(Debug)]
pub struct Applied {
    /// Path of the journal; absent when nothing had to change.
    pub journal: Option<PathBuf>,
    pub plan: ProfilePlan,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    #[error(transparent)]
    Look(#[from] TakeError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error("{} in the profile cannot be applied here; nothing was changed", counted(.0.impossible.len(), "setting"))]
    Impossible(ProfilePlan),
    #[error(transparent)]
    Forget(PersistError),
    #[error("could not check for an earlier profile: {0}; nothing was changed")]
    Find(SettingsError),
    #[error("{} is already applied here; nothing was changed", history.begin.purpose)]
    AlreadyApplied {
        path: PathBuf,
        history: Box<History>,
        /// Changes that lead from it to the profile of the request.
        plan: Box<ProfilePlan>,
    },
    #[error(transparent)]
    Begin(ChangeError),
    #[error("could not start the watchdog process: {0}; nothing was changed")]
    Watchdog(String),
    #[error("the watchdog process {pid} has exited")]
    WatchdogEnded { pid: Pid, reverted: Result<Reverted, JournalError> },
    #[error("{change}: {source}")]
    Change { change: Box<ChangeText>, source: Box<ChangeError>, reverted: Result<Reverted, JournalError> },
    /// All changes were made, but the host does not match the profile. Everything was undone.
    #[error(
        "all changes were made, but {} did not last; the first is: {}", left.steps.len(),
        left.steps.first().map(|step| step.change.text().to_string()).unwrap_or_default()
    )]
    NotInEffect { left: ProfilePlan, reverted: Result<Reverted, JournalError> },
    #[error(transparent)]
    Keep(JournalError),
}

pub fn observe(netns: Option<&NamespaceName>, profile: &Profile) -> Result<PlanInput, ApplyError> {
    let scope = SnapshotScope { netns: netns.map(ToString::to_string), ..SnapshotScope::default() };
    let (snapshot, _) = take(&scope)?;
    let namespace = open(netns)?;
    let read = || profile.sysctls.keys().map(|name| (name.clone(), sysctl(name))).collect();
    let sysctls: BTreeMap<String, Reading<String>> = namespace.run(read)?;
    let is_absent = |reading: &Reading<String>| {
        reading.why_unknown().is_some_and(|unknown| unknown.reason == UnknownReason::Absent)
    };
    // The initial network namespace is the only one with host-wide sysctls. It usually is the caller's namespace.
    let elsewhere = sysctls.iter().filter(|(_, reading)| netns.is_some() && is_absent(reading));
    let on_host = elsewhere.map(|(name, _)| (name.clone(), sysctl(name))).filter(|(_, reading)| !is_absent(reading));
    let host_wide_sysctls = on_host.collect();
    let proc = ProcRoot::default();
    let denied = DeniedFiles {
        sysctls: namespace.run(|| profile.sysctls.keys().filter_map(|name| denied_sysctl(&proc, name)).collect())?,
        irq_affinity: denied(proc.check_irq_affinity_writable()),
    };
    Ok(PlanInput { snapshot, sysctls, host_wide_sysctls, denied })
}

/// Findings that the plan would cause. If programs receive from its queues, observes them for half a second: only then
/// would `quell doctor` find how they stall.
pub fn forecast(journal: &Journal, observed: &PlanInput, plan: &ProfilePlan) -> Result<Vec<Finding>, ApplyError> {
    if plan.steps.is_empty() {
        return Ok(Vec::new());
    }
    let first = &observed.snapshot;
    let has_programs = concerns_programs(first, plan);
    let programs = polling_programs(&after(first, plan));
    let behavior = (has_programs && !programs.is_empty()).then(|| behavior::observe(first, &programs, true));
    if has_programs && behavior.is_none() {
        thread::sleep(OBSERVED);
    }
    let scope = SnapshotScope { configured_files: true, ..first.scope.clone() };
    let (mut now, _) = take(&scope)?;
    mark_attached_filters(&mut now, journal);
    Ok(consequences_of_profile(&now, has_programs.then_some(first), plan, behavior.as_ref()))
}

fn denied_sysctl(proc: &ProcRoot, name: &str) -> Option<(String, String)> {
    let why = denied(proc.check_sysctl_writable(&name.parse().ok()?))?;
    Some((name.to_owned(), why))
}

/// The kernel's words if it denies access. Other errors are those of the change.
fn denied(opened: io::Result<()>) -> Option<String> {
    let is_denied =
        |error: &io::Error| matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
    opened.err().filter(is_denied).map(|error| error.to_string())
}

fn open(netns: Option<&NamespaceName>) -> Result<Namespace, NamespaceError> {
    netns.map_or_else(Namespace::current, Namespace::open_named)
}

fn sysctl(name: &str) -> Reading<String> {
    let Ok(parsed) = name.parse::<SysctlName>() else {
        return Reading::unknown(UnknownReason::Absent, format!("{name} is not a valid sysctl name"));
    };
    match ProcRoot::default().sysctl(&parsed) {
        Ok(value) => Reading::Known(value),
        Err(error) if error.is_absent() => Reading::unknown(UnknownReason::Absent, error.to_string()),
        Err(error) => Reading::unknown(UnknownReason::Failed, error.to_string()),
    }
}

/// Fails as [`apply`] would before its first change. Changes nothing.
pub fn check(journal: &Journal, request: &ApplyRequest<'_>, plan: &ProfilePlan) -> Result<(), ApplyError> {
    if !plan.impossible.is_empty() && !request.skip_impossible {
        return Err(ApplyError::Impossible(plan.clone()));
    }
    if plan.steps.is_empty() {
        return Ok(());
    }
    journal.check_writable().map_err(|error| ApplyError::Begin(ChangeError::Journal(error)))?;
    match applied_in(journal, open(request.netns)?.cookie()?).map_err(ApplyError::Forget)? {
        Some(applied) => {
            let (history, plan) = (Box::new(applied.history), Box::new(plan.clone()));
            Err(ApplyError::AlreadyApplied { path: applied.path, history, plan })
        }
        None => refuse_under_owners(journal, request.netns, plan),
    }
}

/// Applies a profile, which persists until it is released ([`quell_change::persistent`]). `watchdog` starts the process that
/// undoes everything if nobody confirms in time; it receives the path of the journal. `observer` is called with the
/// index of every change in the plan and may stop.
///
/// # Errors
/// [`ApplyError`]. The host is then unchanged, unless the error states otherwise.
pub fn apply(
    journal: &Journal,
    request: &ApplyRequest<'_>,
    watchdog: Option<&mut StartWatchdog<'_>>,
    observer: &mut dyn FnMut(usize, ChangeStage) -> ControlFlow<()>,
) -> Result<Applied, ApplyError> {
    let plan = ProfilePlan::of(&observe(request.netns, request.profile)?, request.profile);
    plan.log();
    check(journal, request, &plan)?;
    let namespace = open(request.netns)?;
    let cookie = namespace.cookie()?;
    if plan.steps.is_empty()
        && (applied_in(journal, cookie).map_err(ApplyError::Forget)?.is_some()
            || !have_owners(journal, &namespace, &plan.matching).map_err(ApplyError::Begin)?)
    {
        return Ok(Applied { journal: None, plan });
    }
    forget_earlier_boots(journal).map_err(ApplyError::Forget)?;
    request.netns.map_or(Ok(()), |name| forget_namesakes(journal, name))?;
    let (name, netns) = (request.name.to_owned(), request.netns.map(ToString::to_string));
    let purpose = Purpose::Profile { name, netns, content: request.content };
    let mut transaction = Transaction::begin(journal, &id(cookie), purpose).map_err(ApplyError::Begin)?;
    let watchdog = watchdog.map(|start| start(transaction.journal_path())).transpose().map_err(ApplyError::Watchdog)?;
    if let Some(watchdog) = &watchdog {
        info!(pid = watchdog.pid.get(), "watchdog started: it reverts all changes unless they are confirmed in time");
    }
    for (number, step) in plan.steps.iter().enumerate() {
        if let Err(source) = transaction.set(&namespace, &step.change, &mut |stage| observer(number, stage)) {
            let (change, source) = (Box::new(step.change.text()), Box::new(source));
            return Err(ApplyError::Change { change, source, reverted: transaction.revert() });
        }
    }
    for queue in &plan.matching {
        let owned = transaction.set_planned_queue(&namespace, queue, &mut |_| ControlFlow::Continue(()));
        if let Err(source) = owned {
            let change = Box::new(PlannedChange::Napi(queue.clone()).text());
            return Err(ApplyError::Change { change, source: Box::new(source), reverted: transaction.revert() });
        }
    }
    let left = what_is_left(request)?;
    if !left.steps.is_empty() {
        for step in &left.steps {
            warn!(change = %step.change.text(), "value differs again after the profile was applied");
        }
        return Err(ApplyError::NotInEffect { left, reverted: transaction.revert() });
    }
    let kept = match watchdog {
        Some(Watchdog { pid, start_time_ticks, .. }) if !guards(pid, start_time_ticks) => {
            return Err(ApplyError::WatchdogEnded { pid, reverted: transaction.revert() });
        }
        Some(watchdog) => transaction.persist_if_confirmed(watchdog),
        None => transaction.persist(),
    };
    Ok(Applied { journal: Some(kept.map_err(ApplyError::Keep)?), plan })
}

/// Checks that no other owner of a queue refuses the plan at present.
fn refuse_under_owners(journal: &Journal, netns: Option<&NamespaceName>, plan: &ProfilePlan) -> Result<(), ApplyError> {
    let planned = plan.steps.iter().filter_map(|step| match &step.change {
        PlannedChange::Napi(queue) => Some(queue),
        _ => None,
    });
    permit_planned(journal, &open(netns)?, planned).map_err(ApplyError::Begin)
}

/// Whether the watchdog still runs. Without it, nobody would undo a profile that is not confirmed.
fn guards(pid: Pid, start_time_ticks: u64) -> bool {
    let proc = ProcRoot::default();
    proc.boot_id().is_ok_and(|boot_id| is_running(pid, start_time_ticks, boot_id, &proc))
}

/// Journal name for the profile of a namespace, of which there is at most one. It contains the cookie, because
/// namespace names are reused.
fn id(namespace_cookie: u64) -> String {
    format!("profile-{namespace_cookie}")
}

fn applied_in(journal: &Journal, namespace_cookie: u64) -> Result<Option<Persistent>, PersistError> {
    let is_here = |entry: &Entry| entry.change.namespace_cookie() == Some(namespace_cookie);
    let is_applied_here = |kept: &Persistent| {
        kept.state != PersistState::BeforeThisBoot
            && kept.history.begin.purpose.profile().is_some()
            && kept.history.pending().any(|(_, entry)| is_here(entry))
    };
    Ok(persistent::list(journal)?.into_iter().find(is_applied_here))
}

/// Removes the journal of a vanished namespace that had this name, unless changes outside that namespace remain.
/// Otherwise `quell status` would list the journal under the new namespace of the same name.
fn forget_namesakes(journal: &Journal, name: &NamespaceName) -> Result<(), ApplyError> {
    let proc = ProcRoot::default();
    for kept in persistent::list(journal).map_err(ApplyError::Forget)? {
        let Purpose::Profile { netns: Some(netns), .. } = &kept.history.begin.purpose else { continue };
        if netns == name.as_str() && is_gone(&proc, &kept.history)? {
            persistent::release(journal, &kept.path).map_err(ApplyError::Forget)?;
        }
    }
    Ok(())
}

fn is_gone(proc: &ProcRoot, history: &History) -> Result<bool, ApplyError> {
    for (_, entry) in history.pending() {
        if entry.change.namespace_cookie().is_none() {
            return Ok(false);
        }
        match entry.change.exists(proc) {
            Ok(false) => {}
            Ok(true) => return Ok(false),
            Err(error) if error.is_out_of_sight() => return Ok(false),
            Err(error) => return Err(ApplyError::Find(error)),
        }
    }
    Ok(true)
}

fn what_is_left(request: &ApplyRequest<'_>) -> Result<ProfilePlan, ApplyError> {
    let mut left = ProfilePlan::default();
    for _ in 0..LOOKS {
        left = ProfilePlan::of(&observe(request.netns, request.profile)?, request.profile);
        if left.steps.is_empty() {
            break;
        }
        thread::sleep(BETWEEN_LOOKS);
    }
    Ok(left)
}
