//! Applies a delivery mode to a lab: the server's queues by netlink, every worker's epoll from outside. Both are
//! verified.
//!
//! The mode is applied while the server is idle, with every request answered. An idle server has returned to
//! `epoll_wait` and found nothing, which ends a suspension. Clearing the settings of a suspended queue would stall it
//! for the old timeout.

use quell_mode::{DeliveryMode, EpollSettings, NapiSettings, Requirement, Threaded};

use crate::lab::napi::QueueError;
use crate::lab::veth::VethLab;
use crate::result::SettingsReadBack;
use crate::server::{ServerError, Worker};

/// Why a mode could not be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// The mode requires changes that cannot be made to a running program from outside.
    #[error("{0}")]
    NeedsLaunch(Requirement),
    /// The mode requires NAPI threads, which stand in for interrupts here.
    #[error(
        "NAPI threads stand in for the interrupts here, so it would be base under another name: measure it with \
         --no-interrupt-stand-in"
    )]
    StandInHasTheThreads,
    /// The mode requires threads that poll continuously. Each would take a whole CPU.
    #[error(
        "a queue's thread would poll without end on the server's CPU: it needs a CPU of its own, which this lab does not give"
    )]
    NeedsOwnCpu,
    /// A queue could not be set.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// An epoll could not be set.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Applies `mode` to the lab's server side.
///
/// # Errors
/// When the mode requires more than attaching, when the kernel refuses, or when it reports other settings.
pub fn set(lab: &mut VethLab, workers: &[Worker], mode: &DeliveryMode) -> Result<SettingsReadBack, SetError> {
    if let Some(requirement) = needs_launch(mode) {
        return Err(SetError::NeedsLaunch(requirement));
    }
    match mode.napi().threaded {
        Threaded::BusyPoll => return Err(SetError::NeedsOwnCpu),
        Threaded::Thread if lab.plan.interrupt_stand_in => return Err(SetError::StandInHasTheThreads),
        _ => {}
    }
    let napi = lab.server.queues.set(&with_stand_in(mode.napi(), lab.plan.interrupt_stand_in))?;
    lab.server.napi_threads = lab.server.queues.pinned_threads(&lab.plan.cpus.server)?;
    let epoll = mode.epoll().unwrap_or_default();
    let epoll: Result<Vec<EpollSettings>, ServerError> = workers.iter().map(|worker| worker.set(epoll)).collect();
    Ok(SettingsReadBack { napi, epoll: epoll? })
}

/// Requirement of the mode that a running program cannot meet. Shorter waits are not included: without them the mode
/// still works, and the table states the difference.
pub(crate) fn needs_launch(mode: &DeliveryMode) -> Option<Requirement> {
    let launch =
        |requirement: &Requirement| matches!(requirement, Requirement::SpinBeforeSleep | Requirement::SocketBusyPoll);
    mode.requirements().into_iter().find(launch)
}

/// If NAPI threads stand in for interrupts in this lab, a mode that requires interrupts uses them instead.
fn with_stand_in(napi: NapiSettings, stand_in: bool) -> NapiSettings {
    match napi.threaded {
        Threaded::Off if stand_in => NapiSettings { threaded: Threaded::Thread, ..napi },
        _ => napi,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(name: &str) -> DeliveryMode {
        name.parse().unwrap()
    }

    #[test]
    fn a_mode_that_requires_interrupts_gets_their_stand_in() {
        assert_eq!(with_stand_in(mode("base").napi(), true).threaded, Threaded::Thread);
        assert_eq!(with_stand_in(mode("base").napi(), false).threaded, Threaded::Off);
    }

    #[test]
    fn modes_that_need_the_programs_cooperation_are_refused_except_shorter_waits() {
        assert!(needs_launch(&mode("eventspin50")).is_some());
        assert!(needs_launch(&mode("sockpoll50")).is_some());
        for attachable in ["base", "defer200", "napibusy", "fullbusy", "suspend20", "threaded"] {
            assert_eq!(needs_launch(&mode(attachable)), None, "{attachable}");
        }
    }
}
