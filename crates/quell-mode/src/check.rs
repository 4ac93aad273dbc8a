//! Checks of settings. Contradictions are errors. Settings that the kernel accepts but that have no effect are warnings
//! ([`Concern`]).

use crate::key::{SettingKey, Settings};
use crate::kind::{ModeKind, USERBUSY_GRO_FLUSH_TIMEOUT_MAX_NS};
use crate::napi::Threaded;
use crate::refusal::ModeRefusal;

/// Settings that the kernel accepts, but that do not have the effect that their names suggest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Concern {
    /// Only one of the two deferral settings is above 0.
    #[error(
        "interrupts are not deferred: deferral needs both defer-hard-irqs and gro-flush-timeout, and \
         one of them is 0"
    )]
    DeferralIncomplete,
    /// Busy polling is preferred, but the interrupt is enabled again after every poll.
    #[error(
        "prefer-busy-poll without deferral: the interrupt is enabled after every poll and \
         competes with busy polling; set defer-hard-irqs and gro-flush-timeout"
    )]
    PreferWithoutDeferral,
    /// The suspension timeout does not exceed the deferral timeout.
    #[error(
        "irq-suspend-timeout is not above gro-flush-timeout: suspension ends no later than \
         deferral would have, so it has no effect"
    )]
    SuspendTimeoutNotAboveGroFlush,
}

pub(crate) fn concerns(settings: &Settings) -> Vec<Concern> {
    let napi = &settings.napi;
    let prefer = settings.epoll.is_some_and(|epoll| epoll.prefer_busy_poll);
    let half = (napi.defer_hard_irqs > 0) != (napi.gro_flush_timeout_ns > 0);
    let short = napi.irq_suspend_timeout_ns > 0 && napi.irq_suspend_timeout_ns <= napi.gro_flush_timeout_ns;
    [
        (half, Concern::DeferralIncomplete),
        (prefer && !napi.defers(), Concern::PreferWithoutDeferral),
        (short, Concern::SuspendTimeoutNotAboveGroFlush),
    ]
    .into_iter()
    .filter_map(|(applies, concern)| applies.then_some(concern))
    .collect()
}

/// A contradiction, and the settings whose overrides can have caused it. The most likely cause comes first.
pub(crate) type Contradiction = (ModeRefusal, &'static [SettingKey]);

/// Finds a contradiction between `settings`, or between them and the name of `kind`.
pub(crate) fn contradiction(kind: ModeKind, settings: &Settings) -> Option<Contradiction> {
    of_name(kind, settings).or_else(|| of_suspension(settings)).or_else(|| of_threaded_busy_poll(settings))
}

fn of_name(kind: ModeKind, settings: &Settings) -> Option<Contradiction> {
    let napi = &settings.napi;
    let mode = kind.word();
    if let Some(named) = kind.gro_flush_timeout_in_name()
        && named.get() != napi.gro_flush_timeout_ns
    {
        const BLAMED: &[SettingKey] = &[SettingKey::GroFlushTimeout];
        return Some((ModeRefusal::GroFlushTimeoutInName { mode }, BLAMED));
    }
    let needs = |blamed: &'static [SettingKey; 1], value| {
        let [key] = *blamed;
        Some((ModeRefusal::ContradictsName { mode, key, value }, &blamed[..]))
    };
    match kind {
        ModeKind::Suspend { .. } if napi.irq_suspend_timeout_ns == 0 => {
            needs(&[SettingKey::IrqSuspendTimeout], "above 0")
        }
        ModeKind::Defer { .. } if napi.defer_hard_irqs == 0 => needs(&[SettingKey::DeferHardIrqs], "above 0"),
        ModeKind::UserBusy if napi.defer_hard_irqs == 0 => needs(&[SettingKey::DeferHardIrqs], "above 0"),
        ModeKind::UserBusy if !(1..=USERBUSY_GRO_FLUSH_TIMEOUT_MAX_NS).contains(&napi.gro_flush_timeout_ns) => {
            needs(&[SettingKey::GroFlushTimeout], "above 0 and at most 1ms")
        }
        ModeKind::UserBusy if napi.threaded != Threaded::Off => needs(&[SettingKey::Threaded], "0"),
        ModeKind::Threaded if napi.threaded != Threaded::Thread => needs(&[SettingKey::Threaded], "1"),
        ModeKind::ThreadedBusy if napi.threaded != Threaded::BusyPoll => needs(&[SettingKey::Threaded], "2"),
        _ => None,
    }
}

fn of_suspension(settings: &Settings) -> Option<Contradiction> {
    if settings.napi.irq_suspend_timeout_ns == 0 {
        return None;
    }
    if !settings.napi.defers() {
        return Some((
            ModeRefusal::SuspensionWithoutDeferral,
            &[SettingKey::DeferHardIrqs, SettingKey::GroFlushTimeout, SettingKey::IrqSuspendTimeout],
        ));
    }
    let prefer = settings.epoll.is_some_and(|epoll| epoll.prefer_busy_poll);
    (!prefer)
        .then_some((ModeRefusal::SuspensionWithoutPrefer, &[SettingKey::PreferBusyPoll, SettingKey::IrqSuspendTimeout]))
}

fn of_threaded_busy_poll(settings: &Settings) -> Option<Contradiction> {
    let napi = &settings.napi;
    if napi.threaded != Threaded::BusyPoll {
        return None;
    }
    if napi.defer_hard_irqs > 0 || napi.gro_flush_timeout_ns > 0 {
        return Some((
            ModeRefusal::ThreadedBusyPollWithDeferral,
            &[SettingKey::DeferHardIrqs, SettingKey::GroFlushTimeout, SettingKey::Threaded],
        ));
    }
    let epoll_polls = settings.epoll.is_some_and(|epoll| epoll.busy_poll_usecs > 0 || epoll.prefer_busy_poll);
    epoll_polls.then_some((
        ModeRefusal::ThreadedBusyPollWithEpoll,
        &[SettingKey::Threaded, SettingKey::BusyPollUsecs, SettingKey::PreferBusyPoll],
    ))
}
