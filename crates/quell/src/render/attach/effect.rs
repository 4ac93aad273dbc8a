//! Whether a mode is in effect, for each queue, as text and as JSON.

use std::fmt;

use quell_host::attach::effect::{CostlyPolls, EffectOnQueue, ModeVerdict, costly_polls, judge};
use quell_host::attach::no_poll::NoPollCause;
use quell_host::attach::plan::QueueStep;
use quell_host::attach::{AttachRequest, Selection};
use quell_host::findings::Finding;
use quell_linux::NapiId;
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;
use quell_sampler::SamplerError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::render::{conclusion, number};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    costly: Option<CostlyPolls>,
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
            let costly = costly_polls(&request.mode, &observed);
            Some(QueueEffect {
                name,
                observed,
                verdict: judge(&request.mode, &observed, || cause(observed.napi)),
                costly,
            })
        };
        Self::Watched(observed.into_iter().filter_map(one).collect())
    }

    /// What to do now with the programs that `selection` selects. `findings` are those under the mode.
    pub(crate) fn conclusion(
        &self,
        mode: &DeliveryMode,
        selection: &Selection,
        (findings, is_steered): (&[Finding], bool),
    ) -> String {
        let (positional, by_option) = match selection {
            Selection::Processes(pids) => {
                let pids = |separator| pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator);
                (pids(" "), format!("--pid {}", pids(",")))
            }
            Selection::Cgroup(cgroup) => {
                let path = cgroup.path().to_string_lossy();
                let option = format!("--cgroup {}", visible::name(&shell_words::quote(&path)));
                (option.clone(), option)
            }
        };
        let queues = match self {
            Self::NotWatched(_) => {
                let text = "whether the mode is in effect is unknown; look again";
                return conclusion::line(text, Some(&format!("quell top {positional}")));
            }
            Self::Watched(queues) => queues,
        };
        let detach = format!("quell detach {positional}");
        let is = |wanted: fn(&ModeVerdict) -> bool| queues.iter().any(|queue| wanted(&queue.verdict));
        // Of several queues, the longest timer suits all.
        let costly = queues.iter().filter_map(|queue| queue.costly);
        let costly = costly.max_by_key(|costly| (costly.instead == DeliveryMode::default(), costly.per_packet));
        let mixed = findings.iter().find(|finding| finding.leaves_queues_unpolled());
        match (costly, mixed) {
            _ if is(|verdict| matches!(verdict, ModeVerdict::NotInEffect(_))) => {
                conclusion::line("undo the mode, which is not in effect, or fix the cause", Some(&detach))
            }
            (Some(CostlyPolls { per_packet, instead }), _) => {
                let text = format!("{mode} costs more than it gives at this load ({per_packet} polls per packet)");
                match instead == DeliveryMode::default() {
                    true => conclusion::line(&format!("{text}: undo it"), Some(&detach)),
                    false => conclusion::line(
                        &format!("{text}: use {instead} instead"),
                        Some(&format!("{detach} && quell attach {instead} {positional}")),
                    ),
                }
            }
            (None, _) if *mode == DeliveryMode::default() => conclusion::line(
                match is_steered {
                    true => {
                        "base changes nothing about polls, only new connections are steered: let the clients reconnect, then \
                         measure which mode is better"
                    }
                    false => "base changes nothing about polls: measure which mode is better",
                },
                Some(&format!("quell bench {by_option}")),
            ),
            (None, Some(mixed)) => conclusion::line(&unpolled(mode, mixed), None),
            (None, None) if is(|verdict| matches!(verdict, ModeVerdict::InEffect(_))) => {
                let cost = match mode.poller() {
                    Some(_) => format!("its {} use a whole CPU each: ", counted(queues.len(), "polling thread")),
                    None => String::new(),
                };
                let text = format!("{cost}keep the mode if it pays, which only a measurement shows");
                conclusion::line(&text, Some(&format!("quell bench {by_option}")))
            }
            (None, None) => conclusion::line("keep the mode, and look again under load", Some("quell status")),
        }
    }

    pub(crate) fn blind(error: &SamplerError) -> Self {
        Self::NotWatched(error.to_string())
    }
}

/// What connections on several queues of one epoll mean for the reader.
fn unpolled(mode: &DeliveryMode, finding: &Finding) -> String {
    let napi = mode.napi();
    let (timer, ns) = match napi.irq_suspend_timeout_ns {
        0 => ("gro-flush-timeout", napi.gro_flush_timeout_ns),
        ns => ("irq-suspend-timeout", ns),
    };
    let wait = format!("{} ms ({timer})", number::plain(ns as f64 / 1e6));
    let fix = finding.fix.first().map(|fix| format!(": {fix}")).unwrap_or_default();
    format!(
        "an epoll polls one queue, and here it has connections of several (epoll-mixes-napis): while it polls one, packets of \
         the others can wait up to {wait}{fix}"
    )
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
    use quell_host::findings::{Fix, Severity};
    use quell_linux::Pid;

    fn concluded(verdict: ModeVerdict, instead: Option<&str>) -> String {
        concluded_with("suspend20", verdict, instead, (&[], false))
    }

    fn concluded_with(
        attached: &str,
        verdict: ModeVerdict,
        instead: Option<&str>,
        known: (&[Finding], bool),
    ) -> String {
        let napi = NapiId::from_kernel(8_193).unwrap_or_else(|| unreachable!());
        let observed = EffectOnQueue::of(napi, 1_000_000_000, &quell_sampler::QueueSample::default());
        let mode = |text: &str| text.parse::<DeliveryMode>().unwrap_or_else(|why| panic!("{why}"));
        let costly = instead.map(|instead| CostlyPolls { per_packet: 12, instead: mode(instead) });
        let queue = QueueEffect { name: "eth0 rx 0".to_owned(), observed, verdict, costly };
        let pid = Pid::new(812).unwrap_or_else(|| unreachable!());
        Effect::Watched(vec![queue]).conclusion(&mode(attached), &Selection::Processes(vec![pid]), known)
    }

    #[test]
    fn base_is_not_said_to_pay_but_to_steer_only() {
        let undisturbed = || ModeVerdict::InEffect("9 polls by the kernel".to_owned());
        let steered = concluded_with("base", undisturbed(), None, (&[], true));
        assert!(steered.contains("only new connections are steered") && !steered.contains("pays"), "{steered}");
        assert!(steered.ends_with("\n  quell bench --pid 812\n"), "{steered}");
        assert!(!concluded_with("base", undisturbed(), None, (&[], false)).contains("steered"));
    }

    #[test]
    fn connections_on_several_queues_of_an_epoll_are_named_with_what_their_packets_wait() {
        let severity = Severity::Serious;
        let (id, title, observed) = ("epoll-mixes-napis", "", String::new());
        let (nodes, impact, source, fix) = (Vec::new(), "", "", vec![Fix::Advice("reconnect".to_owned())]);
        let mixed = Finding { id, severity, title, observed, nodes, impact, source, fix };
        let in_effect = || ModeVerdict::InEffect("290 of 300 polls".to_owned());
        let text = concluded_with("suspend20", in_effect(), None, (std::slice::from_ref(&mixed), true));
        let text = text.replace("\n  ", " ");
        assert!(text.contains("can wait up to 20 ms (irq-suspend-timeout): reconnect"), "{text}");
        let note = Finding { severity: Severity::Note, ..mixed };
        assert!(concluded_with("suspend20", in_effect(), None, (&[note], true)).contains("keep the mode"));
    }

    #[test]
    fn a_mode_in_effect_is_not_said_to_be_good() {
        let in_effect = || ModeVerdict::InEffect("290 of 300 polls".to_owned());
        assert!(concluded(in_effect(), None).ends_with(":\n  quell bench --pid 812\n"));
        let costly = concluded(in_effect(), Some("suspend500"));
        assert!(
            costly.contains("costs more than it gives at this load (12 polls per packet): use suspend500"),
            "{costly}"
        );
        assert!(costly.ends_with("\n  quell detach 812 && quell attach suspend500 812\n"), "{costly}");
        assert!(concluded(in_effect(), Some("base")).ends_with("\n  quell detach 812\n"));
        let not = concluded(ModeVerdict::NotInEffect("none of 9 polls".to_owned()), Some("suspend500"));
        assert!(not.contains("not in effect") && not.ends_with("\n  quell detach 812\n"), "{not}");
        assert!(concluded(ModeVerdict::CannotTell("idle".to_owned()), None).ends_with("\n  quell status\n"));
    }
}
