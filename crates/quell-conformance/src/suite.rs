//! The scenarios that ship with the project, from `conformance/`.

use quell_mode::nearest;

use crate::parse;
use crate::place::FileError;
use crate::scenario::Scenario;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        pub const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../conformance/", $name, ".toml")))),*];
    };
}

files![
    "a-full-ring-drops",
    "a-napi-thread-is-deferred-alike",
    "a-napi-thread-is-resumed",
    "a-nested-epoll-gives-no-napi-id",
    "a-packet-held-by-gro-waits-for-the-timer",
    "a-packet-refills-the-deferral-counter",
    "a-poll-takes-64-packets",
    "a-poller-outside-the-program-replaces-the-timer",
    "a-thread-that-polls-without-end-takes-no-interrupt",
    "a-timer-that-fires-while-the-poll-is-owned-is-lost",
    "a-wait-with-ready-events-does-not-poll",
    "an-event-that-stays-ready-starves-the-queue",
    "an-open-duplicate-keeps-the-suspension",
    "budget-0-polls-eight",
    "busy-polling-beats-the-timer",
    "busy-polling-ignores-the-timeout",
    "changed-values-count-from-the-next-arming",
    "clearing-deferral-leaves-the-queue-stalled",
    "clearing-irq-suspend-timeout-leaves-the-queue-stalled",
    "clearing-prefer-and-closing-leaves-the-queue-stalled",
    "clearing-prefer-leaves-the-queue-stalled",
    "deferral-counts-down",
    "deferral-needs-one-interrupt",
    "gro-flush-timeout-is-when-a-lone-packet-is-seen",
    "maxevents-bounds-a-wait",
    "missed-during-a-busy-loop-loses-nothing",
    "no-deferral-without-defer-hard-irqs",
    "no-deferral-without-gro-flush-timeout",
    "no-suspension-without-defer-hard-irqs",
    "no-suspension-without-gro-flush-timeout",
    "packets-past-napi",
    "prefer-without-deferral",
    "recv-busy-polls-its-queue",
    "recv-does-not-suspend",
    "recv-without-busy-polling-waits-for-the-timer",
    "resuming-by-an-epoll-of-ones-own",
    "suspension-ends-when-epoll-wait-finds-nothing",
    "suspension-ends-with-the-last-reference",
    "suspension-holds-packets-while-the-application-works",
    "suspension-needs-no-interrupt",
    "suspension-needs-prefer-busy-poll",
    "the-final-poll-doubles-the-budget",
    "the-interrupt-is-given-back-after-the-last-empty-poll",
    "the-napi-id-is-forgotten-when-nothing-came",
    "the-napi-id-is-learnt-with-the-next-packet",
    "timeout-0-neither-polls-nor-resumes",
    "timeout-1ms-resumes",
    "timeouts-of-epoll-wait",
    "two-napis-in-one-epoll",
    "two-queues-two-workers",
    "waiting-on-a-duplicate-consumes-events",
    "without-deferral-every-lone-packet-interrupts",
];

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    #[error("unknown scenario `{name}`{}", nearest.map_or_else(String::new, |near| format!("; did you mean `{near}`?")))]
    Unknown {
        name: String,
        /// Name of the most similar scenario, if one is similar enough.
        nearest: Option<&'static str>,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

pub fn scenario(name: &str) -> Result<Scenario, SuiteError> {
    let Some((name, content)) = FILES.iter().find(|(known, _)| *known == name) else {
        return Err(SuiteError::Unknown {
            name: name.to_owned(),
            nearest: nearest(name, FILES.iter().map(|(known, _)| *known)),
        });
    };
    Ok(parse::scenario(name, content)?)
}

pub fn all() -> Result<Vec<Scenario>, FileError> {
    FILES.iter().map(|(name, content)| parse::scenario(name, content)).collect()
}
