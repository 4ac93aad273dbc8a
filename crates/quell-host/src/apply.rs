//! A profile applied as one transaction: picture, plan, changes, picture again, and nothing left to be done; otherwise
//! everything goes back. Also how what was applied has drifted since. What is to be changed is decided in
//! [`crate::plan`], how a change is made and undone in [`crate::settings`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcRoot, SysctlName};
use quell_mode::profile::Profile;
use serde::Serialize;

use crate::journal::{Change, History, Journal, JournalError, Watchdog};
use crate::kept::{KeptError, forget_earlier_boots};
use crate::namespaces;
use crate::picture::{Reading, Scope, TakeError, Why, take};
use crate::plan::{ChangeText, Observed, Plan};
use crate::recovery::Reverted;
use crate::settings::SettingsError;
use crate::settings::host::{Kernel, KnownContexts, differs, make};
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
    /// The journals from before the last boot could not be removed.
    #[error(transparent)]
    Forget(KeptError),
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
    let namespace = open(request.netns)?;
    let purpose = format!("{PURPOSE}{}", request.called);
    let mut transaction = Transaction::begin(journal, &id(request.netns), &purpose).map_err(ApplyError::Begin)?;
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

/// The journal of the profile that is applied to a namespace: there is one at most.
fn id(netns: Option<&NamespaceName>) -> String {
    netns.map_or_else(|| "profile".to_owned(), |name| format!("profile-netns-{name}"))
}

/// The profile that a journal is about; `None` when it is about something else.
#[must_use]
pub fn profile_of(history: &History) -> Option<&str> {
    history.begin.purpose.strip_prefix(PURPOSE)
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

/// A setting that is not as it was made any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Drift {
    /// The device; absent for a sysctl.
    pub device: Option<String>,
    /// The queue, where it is one's.
    pub queue: Option<u32>,
    /// What it is.
    pub setting: String,
    /// As it was made.
    pub made: String,
    /// As it is; absent when the thing that it was set on is gone.
    pub now: Option<String>,
}

/// What of the settings in a journal is not as it was made any more.
///
/// # Errors
/// When a setting cannot be read.
pub fn drift(history: &History) -> Result<Vec<Drift>, SettingsError> {
    let proc = ProcRoot::default();
    let mut drifted = Vec::new();
    for_each_setting(history, &proc, |kernel, setting| {
        if let Some((made, now)) = differs(kernel, setting)? {
            let device = setting.device().map(ToString::to_string);
            drifted.push(Drift { device, queue: setting.queue(), setting: setting.text().what, made, now });
        }
        Ok(())
    })?;
    Ok(drifted)
}

/// Makes again what has drifted, and returns what had. What it was before all is in the journal already.
///
/// # Errors
/// When a setting cannot be read or made.
pub fn reassert(history: &History) -> Result<Vec<Drift>, SettingsError> {
    let drifted = drift(history)?;
    let proc = ProcRoot::default();
    for_each_setting(history, &proc, |kernel, setting| match differs(kernel, setting)? {
        Some((_, Some(_))) => make(kernel, &KnownContexts::default(), setting).map(drop),
        _ => Ok(()),
    })?;
    Ok(drifted)
}

/// Every setting that was made and not undone, in the order in which it was.
fn for_each_setting(
    history: &History,
    proc: &ProcRoot,
    mut act: impl FnMut(&Kernel<'_>, &crate::plan::Change) -> Result<(), SettingsError>,
) -> Result<(), SettingsError> {
    let mut opened: Option<(u64, Option<Namespace>)> = None;
    for entry in history.entries.iter().filter(|entry| entry.undone.is_none()) {
        let Change::HostSetting(change) = &entry.change else { continue };
        let cookie = change.namespace_cookie;
        if opened.as_ref().is_none_or(|(of, _)| *of != cookie) {
            opened = Some((cookie, namespaces::by_cookie(proc, cookie)?));
        }
        if let Some((_, Some(namespace))) = &opened {
            act(&Kernel::new(namespace, proc), &change.setting)?;
        }
    }
    Ok(())
}
