//! What a mode requires from the kernel, the host and the program. Other crates test for these requirements. Kernel
//! versions appear in messages only and are never compared.

use crate::kind::ModeKind;
use crate::mode::DeliveryMode;
use crate::napi::{NapiSettings, Threaded};
use crate::settings::{EpollParams, NAPI_POLL_WEIGHT, ProgramWait};

/// A requirement of a mode.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    thiserror::Error,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Requirement {
    /// `napi-set` of defer-hard-irqs and gro-flush-timeout.
    #[error("deferral per NAPI: netlink napi-set (Linux 6.13, and a NAPI instance that the kernel lists)")]
    NapiDeferral,
    /// `napi-set` of irq-suspend-timeout.
    #[error("IRQ suspension: irq-suspend-timeout of netlink napi-set (Linux 6.13)")]
    IrqSuspension,
    /// A kernel thread per NAPI instance.
    #[error("threaded NAPI: threaded=1")]
    ThreadedNapi,
    /// A kernel thread per NAPI instance that busy polls without end.
    #[error("threaded busy polling: threaded=2 (Linux 6.19)")]
    ThreadedBusyPoll,
    /// An io_uring that polls by NAPI ID.
    #[error("busy polling by NAPI ID: io_uring with static NAPI tracking (Linux 6.13)")]
    PollingByNapiId,
    /// `EPIOCSPARAMS`.
    #[error("busy-poll parameters of an epoll: EPIOCSPARAMS (Linux 6.9)")]
    EpollParameters,
    /// CAP_NET_ADMIN in the initial user namespace. Without it, `napi-set` fails with EPERM.
    #[error("CAP_NET_ADMIN in the initial user namespace, to set a NAPI")]
    NetAdminForNapi,
    /// CAP_NET_ADMIN for a busy-poll budget above 64 packets.
    #[error("CAP_NET_ADMIN, for a busy-poll-budget above {NAPI_POLL_WEIGHT}")]
    NetAdminForBudget,
    /// The mode shortens the program's waits, so Quell must launch the program.
    #[error("shorter waits in the program: start it with `quell run`")]
    ShorterWaits,
    /// The program must spin before it sleeps, so Quell must launch it.
    #[error("spinning in the program before it sleeps: start it with `quell run`")]
    SpinBeforeSleep,
    /// The program's sockets need `SO_BUSY_POLL`, so Quell must launch the program.
    #[error("SO_BUSY_POLL on the program's sockets, which it must read with a blocking recv")]
    SocketBusyPoll,
}

impl Requirement {
    /// Requirements of `mode` that not every kernel meets. Resetting a setting to 0 has no requirement.
    pub(crate) fn of(mode: &DeliveryMode) -> Vec<Self> {
        let napi = mode.napi();
        let epoll = mode.epoll().unwrap_or_default();
        let deferral = napi.defer_hard_irqs > 0 || napi.gro_flush_timeout_ns > 0;
        let waits = mode.program_wait();
        let needed = [
            (deferral, Self::NapiDeferral),
            (napi.irq_suspend_timeout_ns > 0, Self::IrqSuspension),
            (napi.threaded == Threaded::Thread, Self::ThreadedNapi),
            (napi.threaded == Threaded::BusyPoll, Self::ThreadedBusyPoll),
            (mode.poller().is_some(), Self::PollingByNapiId),
            (epoll != EpollParams::default(), Self::EpollParameters),
            (napi != NapiSettings::default(), Self::NetAdminForNapi),
            (epoll.busy_poll_budget > NAPI_POLL_WEIGHT, Self::NetAdminForBudget),
            (matches!(waits, ProgramWait::AtMost(_)), Self::ShorterWaits),
            (matches!(waits, ProgramWait::SpinBeforeSleep(_)), Self::SpinBeforeSleep),
            (matches!(mode.kind(), ModeKind::SockPoll { .. }), Self::SocketBusyPoll),
        ];
        needed.into_iter().filter_map(|(is_needed, requirement)| is_needed.then_some(requirement)).collect()
    }
}
