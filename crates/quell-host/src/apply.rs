//! A profile applied as one transaction: picture, plan, changes, picture again, and nothing left to be done; otherwise
//! everything goes back. How it drifts since is [`crate::drift`]'s. What is to be changed is decided in
//! [`crate::plan`], how a change is made and undone in [`crate::settings`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcRoot, SysctlName};
use quell_mode::profile::Profile;

use crate::journal::{Change, Entry, History, Journal, JournalError, Watchdog};
use crate::kept::{self, Kept, KeptError, forget_earlier_boots};
use crate::picture::{Reading, Scope, TakeError, Why, take};
use crate::plan::{ChangeText, Observed, Plan};
use crate::recovery::Reverted;
use crate::settings::SettingsError;
use crate::settings::host::Place;
use crate::transaction::{ChangeError, Moment, Transaction};

/// How often the host is looked at until it is as it was told to be: links and queues take a moment to come back.
const LOOKS: u32 = 10;
/// How long after one look the next one is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// What is to be applied.
#[derive(Debug)]
pub struct Request<'a> {
    /// The network namespace by name; absent: the caller's.
    pub netns: Option<&'a NamespaceName>,
    /// The profile.
    pub profile: &'a Profile,
    /// How the journal calls it: its file's name.
    pub called: &'a str,
    /// Whether what can be done is done although something cannot.
    pub partly: bool,
}

/// Starts the watchdog of a journal, or says why it could not.
pub type StartWatchdog<'a> = dyn FnMut(&Path) -> Result<Watchdog, String> + 'a;

/// What was applied.
#[derive(Debug)]
pub struct Applied {
    /// The journal; absent when nothing was to be changed.
    pub journal: Option<PathBuf>,
    /// What was done, and what could not be.
    pub plan: Plan,
}

/// Why a profile was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The host could not be looked at.
    #[error(transparent)]
    Look(#[from] TakeError),
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Something cannot be done here, and nothing was done.
    #[error("{} of what the profile asks for cannot be done here, so nothing was changed", .0.impossible.len())]
    Impossible(Plan),
    /// The journals of profiles of which nothing is left could not be found or removed.
    #[error(transparent)]
    Forget(KeptError),
    /// Whether anything is left of an earlier profile could not be found out.
    #[error("could not find what an earlier profile has changed: {0}; nothing was changed")]
    Find(SettingsError),
    /// A profile is applied to the namespace already.
    #[error("{} is applied here already; nothing was changed", profile_of(history).unwrap_or("a profile"))]
    AlreadyApplied {
        /// Its journal.
        path: PathBuf,
        /// What the journal says.
        history: Box<History>,
    },
    /// The transaction could not be begun.
    #[error(transparent)]
    Begin(ChangeError),
    /// The watchdog could not be started, and nothing was done.
    #[error("the watchdog that undoes what nobody confirms could not be started, so nothing was changed: {0}")]
    Watchdog(String),
    /// A change could not be made, and everything was undone.
    #[error("{change}: {source}")]
    Change {
        /// Which.
        change: Box<ChangeText>,
        /// Why.
        source: Box<ChangeError>,
        /// What undoing the others came to.
        reverted: Result<Reverted, JournalError>,
    },
    /// All changes were made, but the host is not as the profile says, and everything was undone.
    #[error(
        "all changes were made, but {} of them did not last, the first: {}", left.steps.len(),
        left.steps.first().map(|step| step.change.text().to_string()).unwrap_or_default()
    )]
    NotInEffect {
        /// What would still have to be changed.
        left: Plan,
        /// What undoing came to.
        reverted: Result<Reverted, JournalError>,
    },
    /// It could not be written down that the changes are to stay, and they were undone.
    #[error(transparent)]
    Keep(JournalError),
}

/// The host as far as a plan for `profile` looks at it.
///
/// # Errors
/// When the namespace or its devices cannot be read.
pub fn observe(netns: Option<&NamespaceName>, profile: &Profile) -> Result<Observed, ApplyError> {
    let scope = Scope { netns: netns.map(ToString::to_string), ..Scope::default() };
    let (picture, _) = take(&scope)?;
    let namespace = open(netns)?;
    let read = || profile.sysctls.keys().map(|name| (name.clone(), sysctl(name))).collect();
    let sysctls: BTreeMap<String, Reading<String>> = namespace.run(read)?;
    let is_absent = |reading: &Reading<String>| reading.why_unknown().is_some_and(|unknown| unknown.why == Why::Absent);
    // Those of the whole host are in the initial namespace alone, which is mostly the caller's.
    let elsewhere = sysctls.iter().filter(|(_, reading)| netns.is_some() && is_absent(reading));
    let on_host = elsewhere.map(|(name, _)| (name.clone(), sysctl(name))).filter(|(_, reading)| !is_absent(reading));
    let host_wide_sysctls = on_host.collect();
    Ok(Observed { picture, sysctls, host_wide_sysctls })
}

fn open(netns: Option<&NamespaceName>) -> Result<Namespace, NamespaceError> {
    netns.map_or_else(Namespace::current, Namespace::open_named)
}

fn sysctl(name: &str) -> Reading<String> {
    let Ok(parsed) = name.parse::<SysctlName>() else {
        return Reading::unknown(Why::Absent, format!("{name} is no name of a sysctl"));
    };
    match ProcRoot::default().sysctl(&parsed) {
        Ok(value) => Reading::Known(value),
        Err(error) if error.is_absent() => Reading::unknown(Why::Absent, error.to_string()),
        Err(error) => Reading::unknown(Why::Failed, error.to_string()),
    }
}

/// Applies a profile; it stays until it is released ([`crate::kept`]). `watchdog`, if there is one, starts the process that
/// undoes everything unless it is confirmed, and is given the journal. `looks_on` hears of every change, by its number in
/// the plan, and may stop.
///
/// # Errors
/// [`ApplyError`]; the host is as it was before then, as far as the error does not say otherwise.
pub fn apply(
    journal: &Journal,
    request: &Request<'_>,
    watchdog: Option<&mut StartWatchdog<'_>>,
    looks_on: &mut dyn FnMut(usize, Moment) -> ControlFlow<()>,
) -> Result<Applied, ApplyError> {
    let plan = Plan::of(&observe(request.netns, request.profile)?, request.profile);
    if !plan.impossible.is_empty() && !request.partly {
        return Err(ApplyError::Impossible(plan));
    }
    if plan.steps.is_empty() {
        return Ok(Applied { journal: None, plan });
    }
    forget_earlier_boots(journal).map_err(ApplyError::Forget)?;
    request.netns.map_or(Ok(()), |name| forget_namesakes(journal, name))?;
    let namespace = open(request.netns)?;
    let cookie = namespace.cookie()?;
    if let Some(applied) = applied_in(journal, cookie).map_err(ApplyError::Forget)? {
        return Err(ApplyError::AlreadyApplied { path: applied.path, history: Box::new(applied.history) });
    }
    let place = request.netns.map(|name| format!("{IN_NAMESPACE}{name}")).unwrap_or_default();
    let purpose = format!("{PURPOSE}{}{place}", request.called);
    let mut transaction = Transaction::begin(journal, &id(cookie), &purpose).map_err(ApplyError::Begin)?;
    let watchdog = watchdog.map(|start| start(transaction.journal_path())).transpose().map_err(ApplyError::Watchdog)?;
    for (number, step) in plan.steps.iter().enumerate() {
        if let Err(source) = transaction.set(&namespace, &step.change, &mut |moment| looks_on(number, moment)) {
            let (change, source) = (Box::new(step.change.text()), Box::new(source));
            return Err(ApplyError::Change { change, source, reverted: transaction.revert() });
        }
    }
    let left = what_is_left(request)?;
    if !left.steps.is_empty() {
        return Err(ApplyError::NotInEffect { left, reverted: transaction.revert() });
    }
    let kept = match watchdog {
        Some(watchdog) => transaction.keep_if_confirmed(watchdog),
        None => transaction.keep(),
    };
    Ok(Applied { journal: Some(kept.map_err(ApplyError::Keep)?), plan })
}

/// What a journal of this module says that it is for, before the profile.
const PURPOSE: &str = "profile ";
/// What it says before the namespace's name, where the profile is not for the caller's own.
const IN_NAMESPACE: &str = " in namespace ";

/// The journal of the profile that is applied to a namespace: there is one at most, under whichever name, for names are
/// given again.
fn id(namespace_cookie: u64) -> String {
    format!("profile-{namespace_cookie}")
}

fn applied_in(journal: &Journal, namespace_cookie: u64) -> Result<Option<Kept>, KeptError> {
    let is_here = |entry: &Entry| match &entry.change {
        Change::HostSetting(change) => change.namespace_cookie == namespace_cookie,
        _ => false,
    };
    let is_applied_here =
        |kept: &Kept| profile_of(&kept.history).is_some() && kept.history.pending().any(|(_, entry)| is_here(entry));
    Ok(kept::list(journal)?.into_iter().find(is_applied_here))
}

/// Removes the journal of a profile that was applied to an earlier namespace of this name, if all that it changed went with
/// that namespace: the name alone would keep it in `quell status`.
fn forget_namesakes(journal: &Journal, name: &NamespaceName) -> Result<(), ApplyError> {
    let proc = ProcRoot::default();
    for kept in kept::list(journal).map_err(ApplyError::Forget)? {
        if namespace_of(&kept.history) == Some(name.as_str()) && is_gone(&proc, &kept.history)? {
            kept::release(journal, &kept.path).map_err(ApplyError::Forget)?;
        }
    }
    Ok(())
}

fn is_gone(proc: &ProcRoot, history: &History) -> Result<bool, ApplyError> {
    for (_, entry) in history.pending() {
        let Change::HostSetting(change) = &entry.change else { return Ok(false) };
        match Place::find(proc, change) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(false),
            Err(error) if error.is_out_of_sight() => return Ok(false),
            Err(error) => return Err(ApplyError::Find(error)),
        }
    }
    Ok(true)
}

/// The profile that a journal is about; `None` when it is about something else.
#[must_use]
pub fn profile_of(history: &History) -> Option<&str> {
    let of = history.begin.purpose.strip_prefix(PURPOSE)?;
    Some(of.rsplit_once(IN_NAMESPACE).map_or(of, |(profile, _)| profile))
}

/// The name by which the network namespace of a profile was given.
fn namespace_of(history: &History) -> Option<&str> {
    let of = history.begin.purpose.strip_prefix(PURPOSE)?;
    of.rsplit_once(IN_NAMESPACE).map(|(_, name)| name)
}

fn what_is_left(request: &Request<'_>) -> Result<Plan, ApplyError> {
    let mut left = Plan::default();
    for _ in 0..LOOKS {
        left = Plan::of(&observe(request.netns, request.profile)?, request.profile);
        if left.steps.is_empty() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    Ok(left)
}
