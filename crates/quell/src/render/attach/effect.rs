//! Whether a mode is in effect, for each queue, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt;

use quell_host::attach::effect::{EffectOnQueue, ModeVerdict, judge};
use quell_host::attach::no_poll::NoPollCause;
use quell_host::attach::payoff::ModePayoff;
use quell_host::attach::plan::QueueStep;
use quell_host::attach::{AttachRequest, AttachedMode};
use quell_host::findings::{Finding, LackingCpus, one_queue_if_attached};
use quell_linux::{NapiId, Pid};
use quell_sampler::SamplerError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::render::conclusion::LastLine;
use crate::render::payoff::{self, RECONNECT_TO_ATTACHED};
use crate::render::program_arguments::ProgramArguments;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Effect {
    Watched(Vec<QueueEffect>),
    NotWatched(String),
}

#[derive(Debug, Serialize, JsonSchema)]
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
            let verdict = judge(&request.mode, &observed, || cause(observed.napi));
            Some(QueueEffect { name, observed, verdict })
        };
        Self::Watched(observed.into_iter().filter_map(one).collect())
    }

    /// Whether the mode pays for these programs. `findings` are those under the mode, `lacking` the CPUs if they are too few
    /// for its polling threads. Absent if the queues could not be watched.
    pub(crate) fn payoff(
        &self,
        attached: &AttachedMode,
        programs: &BTreeSet<Pid>,
        findings: &[Finding],
        lacking: Option<LackingCpus>,
    ) -> Option<ModePayoff> {
        let Self::Watched(queues) = self else { return None };
        // A program that would stall is kept busy by an event that is always there.
        let works = !findings.iter().any(Finding::predicts_stall);
        let of = |queue: &QueueEffect| {
            let programs_worked_ns = queue.observed.programs_worked_ns.filter(|_| works);
            (EffectOnQueue { programs_worked_ns, ..queue.observed }, queue.verdict.clone())
        };
        let queues: Vec<_> = queues.iter().map(of).collect();
        let is_theirs = |finding: &&Finding| finding.leaves_queues_unpolled() && finding.has_epoll_of(programs);
        let fix = findings.iter().find(is_theirs);
        let fix = fix.and_then(|finding| finding.fix.first()).map(|fix| one_queue_if_attached(fix.clone(), attached));
        Some(ModePayoff::of(attached.mode, &queues, fix.as_ref(), lacking))
    }

    pub(crate) fn blind(error: &SamplerError) -> Self {
        Self::NotWatched(error.to_string())
    }
}

/// What to do now with programs some of whose connections are older than a new filter if `has_older`. Without a payoff, the
/// queues could not be watched.
pub(crate) fn conclusion(payoff: Option<&ModePayoff>, programs: &ProgramArguments, has_older: bool) -> LastLine {
    let Some(payoff) = payoff else {
        let unknown = "whether the mode is in effect is unknown; look again";
        return LastLine::new(unknown, Some(&programs.top()));
    };
    let (text, command) = payoff::advice(payoff, programs);
    let reconnect = match has_older && programs.mixes && !payoff.pays.is_no() {
        true => format!("{RECONNECT_TO_ATTACHED}; "),
        false => String::new(),
    };
    LastLine { text: format!("{reconnect}{text}"), command }
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

#[cfg(test)]
mod tests {
    use super::*;
    use quell_linux::Pid;

    #[test]
    fn base_is_not_said_to_pay_but_to_steer_only() {
        let mode = quell_mode::DeliveryMode::default();
        let base = ModePayoff::of(mode, &[], None, None);
        let pid = Pid::new(812).unwrap_or_else(|| unreachable!());
        let attached = |steers| AttachedMode { mode, steers, ..AttachedMode::default() };
        let programs = |steers| ProgramArguments::of_pids(&[pid]).attached(Some(attached(steers)));
        let sorted = conclusion(Some(&base), &programs(true), true).to_string();
        assert!(!sorted.contains("steered"), "its connections have their queues already: {sorted}");
        let said = |steers| conclusion(Some(&base), &programs(steers).mixing(true), steers).to_string();
        assert!(said(true).contains("only new connections are steered") && !said(true).contains("pays"));
        assert!(said(true).ends_with("\n  quell bench --pid 812\n"), "{}", said(true));
        assert!(!said(false).contains("steered"));
    }
}
