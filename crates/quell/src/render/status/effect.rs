//! Whether the mode of an attached program is in effect, and pays.

use quell_change::journal::TargetProgram;
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::payoff::ModePayoff;
use quell_linux::{NapiId, Pid};
use quell_result::top::{IntervalReport, ObservedProgram, SkipReason, SkippedPart};
use schemars::JsonSchema;
use serde::Serialize;

use crate::output::on_one_line;
use crate::render::attach::verdict_in_words;
use crate::render::payoff;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ProgramEffect {
    pub(super) pid: Pid,
    pub(super) name: String,
    /// UID of its Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    #[serde(flatten)]
    pub(super) effect: LiveEffect,
    /// Whether the mode pays. Absent if its queues could not be judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payoff: Option<ModePayoff>,
    /// Whether all queues from which it has received are gone.
    #[serde(skip)]
    pub(super) lost_queues: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LiveEffect {
    Judged(ModeVerdict),
    /// It has no part in the mode, as the parent of workers.
    ReceivesNothing(String),
    Unknown(String),
}

impl ProgramEffect {
    pub(super) fn of(program: &TargetProgram, observed: &Result<IntervalReport, String>) -> Self {
        let seen = observed_program(program.pid, observed);
        Self {
            pid: program.pid,
            name: program.name.clone(),
            pod: seen.and_then(|seen| seen.pod.clone()),
            effect: live_effect(program.pid, observed),
            payoff: seen.and_then(|seen| seen.payoff.clone()),
            lost_queues: seen.is_some_and(lost_its_queues),
        }
    }

    /// `are_shared`: other attached programs use its queues.
    pub(super) fn line(&self, are_shared: bool) -> String {
        let figures = self.payoff.as_ref().map(|payoff| payoff::figures(payoff, are_shared));
        let figures = figures.filter(|figures| !figures.is_empty());
        let (verdict, why) = match &self.effect {
            LiveEffect::Judged(verdict) => {
                let (word, why) = verdict_in_words(verdict);
                let figures = figures.as_deref().filter(|_| matches!(verdict, ModeVerdict::InEffect(_)));
                (word, figures.unwrap_or(why))
            }
            LiveEffect::ReceivesNothing(why) => ("idle", why.as_str()),
            LiveEffect::Unknown(why) => ("unknown", why.as_str()),
        };
        let pod = self.pod.as_ref().map(|uid| format!(", pod {uid}")).unwrap_or_default();
        format!("  {} {}{pod}: {verdict}: {}", on_one_line(&self.name), self.pid, on_one_line(why))
    }
}

pub(super) fn observed_program(pid: Pid, observed: &Result<IntervalReport, String>) -> Option<&ObservedProgram> {
    observed.as_ref().ok()?.programs.iter().find(|program| program.pid == pid)
}

/// Whether all queues from which it has received belong to no visible device.
fn lost_its_queues(program: &ObservedProgram) -> bool {
    let is_unknown = |napi: &NapiId| {
        let unknown = SkippedPart { napi: Some(*napi), reason: SkipReason::UnknownQueue };
        program.skipped.as_ref().is_some_and(|skipped| skipped.contains(&unknown))
    };
    !program.napis.is_empty() && program.napis.iter().all(is_unknown)
}

pub(super) fn live_effect(pid: Pid, observed: &Result<IntervalReport, String>) -> LiveEffect {
    let report = match observed {
        Ok(report) => report,
        Err(why) => return LiveEffect::Unknown(why.clone()),
    };
    let program = observed_program(pid, observed);
    match (program.and_then(|program| program.effect.as_ref()), &report.polls_unknown) {
        (Some(verdict), _) => LiveEffect::Judged(verdict.clone()),
        (None, Some(why)) => LiveEffect::Unknown(why.clone()),
        (None, None) if program.is_some_and(lost_its_queues) => {
            LiveEffect::ReceivesNothing("the queues from which it received are gone".to_owned())
        }
        (None, None) if program.is_some_and(|program| !program.napis.is_empty()) => LiveEffect::Judged(
            ModeVerdict::NotInEffect("none of the queues from which it receives has the mode".to_owned()),
        ),
        (None, None) => {
            LiveEffect::ReceivesNothing("no open connection through a queue with the mode at present".to_owned())
        }
    }
}
