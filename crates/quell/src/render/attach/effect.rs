//! Whether a mode is in effect, for each queue, as text and as JSON.

use std::fmt;

use quell_host::attach::AttachRequest;
use quell_host::attach::effect::{EffectOnQueue, ModeVerdict, judge};
use quell_host::attach::no_poll::NoPollCause;
use quell_host::attach::plan::QueueStep;
use quell_linux::NapiId;
use quell_sampler::SamplerError;
use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Effect {
    Watched(Vec<QueueEffect>),
    NotWatched(String),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct QueueEffect {
    name: String,
    observed: EffectOnQueue,
    #[serde(flatten)]
    verdict: ModeVerdict,
}

impl Effect {
    /// `cause` finds out why no program polled a queue.
    pub(crate) fn of(
        request: &AttachRequest,
        queues: &[QueueStep],
        observed: Vec<EffectOnQueue>,
        cause: impl Fn(NapiId) -> NoPollCause,
    ) -> Self {
        let one = |observed: EffectOnQueue| {
            let step = queues.iter().find(|step| step.napi == observed.napi)?;
            let rx = step.queues.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let name =
                if rx.is_empty() { format!("NAPI {}", observed.napi) } else { format!("{} rx {rx}", step.device) };
            Some(QueueEffect { name, observed, verdict: judge(&request.mode, &observed, || cause(observed.napi)) })
        };
        Self::Watched(observed.into_iter().filter_map(one).collect())
    }

    pub(crate) fn blind(error: &SamplerError) -> Self {
        Self::NotWatched(error.to_string())
    }
}

pub(crate) fn verdict_in_words(verdict: &ModeVerdict) -> (&'static str, &str) {
    match verdict {
        ModeVerdict::InEffect(why) => ("in effect", why),
        ModeVerdict::NotInEffect(why) => ("not in effect", why),
        ModeVerdict::CannotTell(why) => ("cannot tell", why),
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWatched(why) => writeln!(f, "could not check whether the mode is in effect: {why}"),
            Self::Watched(queues) => queues.iter().try_for_each(|queue| {
                let (verdict, why) = verdict_in_words(&queue.verdict);
                writeln!(f, "{}: {verdict}: {why}", queue.name)
            }),
        }
    }
}
