//! Watches the queues of a followed attachment with one sampler: frees stalled queues, and finds out when the mode stops
//! or starts being in effect, and whether it pays.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use quell_change::journal::StallRecord;
use quell_linux::{NapiId, Pid, kernel};
use quell_sampler::{Sampler, SamplerError};
use tracing::{info, warn};

use super::attachment::{Attachment, observe_programs};
use super::effect::{EffectOnQueue, ModeVerdict, judge};
use super::no_poll::{NoPollCause, no_poll_cause_now};
use super::own_work::{OwnWork, has_backlog};
use super::payoff::{DoesItPay, ModePayoff};
use super::plan::QueueStep;
use super::poll_counting::PollCounting;
use super::stall::{StallWatch, Stalled, SuspendedQueue};
use super::stall_log::StallLog;
use crate::findings::{cpus_lacking_for_pollers, one_queue_if_attached, unpolled_queues};
use crate::snapshot::Snapshot;

const PERIOD: Duration = Duration::from_secs(5);
/// Minimum length of the interval before the first verdict.
const FIRST_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct AttachmentWatch {
    sampler: Option<Sampler>,
    stalls: StallWatch,
    log: Option<StallLog>,
    effects: EffectWatch,
}

#[derive(Debug, Default)]
pub struct WatchEvents {
    pub stalled: Vec<Stalled>,
    /// Cause of the stalls, unless the rules find none; absent while it is searched for.
    pub cause: Option<Option<String>>,
    /// Whether the search for the cause has ended.
    pub has_searched: bool,
    pub must_end: bool,
    pub effects: Vec<EffectChange>,
    /// Whether the mode pays, if this has changed.
    pub concluded: Option<Concluded>,
}

/// Whether a mode pays.
#[derive(Debug)]
pub struct Concluded {
    pub payoff: ModePayoff,
    /// Snapshot of its programs from which this follows; absent if none could be taken.
    pub seen: Option<Snapshot>,
}

impl AttachmentWatch {
    /// A watch that reports whether the mode is in effect and pays once this differs from an answer that was reported
    /// before.
    #[must_use]
    pub fn after(reported: Option<&ModePayoff>) -> Self {
        let mut watch = Self::default();
        reported.into_iter().for_each(|payoff| watch.effects.record(payoff));
        let is_unknown = |pays: &DoesItPay| pays.is_unclear() || matches!(pays, DoesItPay::NotInEffect { .. });
        // Without an answer, nobody wanted to know.
        watch.effects.is_reported = reported.is_none_or(|payoff| !is_unknown(&payoff.pays));
        watch
    }

    /// Checks the present queues of `attachment` once, and frees stalled ones. To be called every
    /// [`LOOKED_EVERY`](super::stall::LOOKED_EVERY). Every 5 s, the first time once there are enough packets, it also
    /// judges whether the mode is in effect, and, with a recent snapshot of the programs, whether it pays. While an
    /// experiment switches the programs, it does nothing.
    ///
    /// # Errors
    /// When polls cannot be counted. Without counts, a stalled queue looks like an idle one.
    pub fn look(&mut self, attachment: &Attachment, snapshot: Option<&Snapshot>) -> Result<WatchEvents, SamplerError> {
        let queues: Vec<QueueStep> = attachment.queues().cloned().collect();
        if queues.is_empty() || attachment.is_measured() {
            let EffectWatch { pays, has_delayed, unpolled, is_reported, ref last, .. } = self.effects;
            let is_reported = is_reported || !last.0.is_empty();
            *self = Self {
                effects: EffectWatch { pays, has_delayed, unpolled, is_reported, ..EffectWatch::default() },
                ..Self::default()
            };
            return Ok(WatchEvents::default());
        }
        let napis = queues.iter().map(|step| step.napi);
        let sampler = match self.sampler.take() {
            Some(mut sampler) => sampler.select_all(napis.collect()).map(|()| sampler),
            None => Sampler::of(kernel::sysfs(), napis),
        }?;
        let programs = attachment.targets().pids();
        let may_poll = || !is_measured_now(attachment);
        let look = self.stalls.look(&sampler, &SuspendedQueue::of_steps(&queues), &programs, &may_poll)?;
        if self.log.is_none() && !look.freed.is_empty() {
            self.log = attachment.stall_log();
        }
        let has_searched = self.log.as_mut().is_some_and(|log| log.add(&look, &programs));
        let cause = self.log.as_ref().and_then(|log| Some(log.cause()?.map(ToOwned::to_owned)));
        let must_end = self.log.as_ref().is_some_and(StallLog::must_end) && !attachment.accepts_stalls();
        let (effects, concluded) = self.effects.look(attachment, queues, (&programs, snapshot), &sampler)?;
        self.sampler = Some(sampler);
        Ok(WatchEvents { stalled: look.freed, cause, has_searched, must_end, effects, concluded })
    }

    pub fn record_revert(&mut self) -> Option<StallRecord> {
        self.log.take().map(StallLog::record_revert)
    }
}

#[derive(Debug, Default)]
struct EffectWatch {
    counting: Option<PollCounting>,
    last: LastVerdicts,
    /// Whether a snapshot has shown that packets were those of others, which says nothing about the programs. A snapshot
    /// takes too long for one per [`FIRST_AFTER`].
    saw_others: bool,
    /// Whether the mode paid when this was reported last.
    pays: Option<Discriminant<DoesItPay>>,
    /// Whether it was reported that it only delays packets.
    has_delayed: bool,
    /// Number of connections when the last answer was that it leaves queues unpolled, 1 if unknown. Absent after another
    /// answer.
    unpolled: Option<usize>,
    /// Whether it was reported to be in effect before the watch began.
    is_reported: bool,
    /// Since when the counters of enough packets have not shown whether it is in effect. Absent once they have.
    unclear_since: Option<Instant>,
}

/// Number of connections of these programs through queues.
fn count_connections(seen: &Snapshot, programs: &BTreeSet<Pid>) -> usize {
    seen.sockets_of(programs).filter(|socket| socket.remote.is_some() && socket.has_queue()).count()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectChange {
    pub device: String,
    pub rx_queues: Vec<u32>,
    pub napi: NapiId,
    /// The new verdict, with the evidence: in effect or not.
    pub verdict: ModeVerdict,
    /// Whether it is the first verdict on the queue.
    pub is_first: bool,
}

/// Whether the mode was in effect on each queue when it was last certain.
#[derive(Debug, Default)]
struct LastVerdicts(BTreeMap<NapiId, bool>);

impl LastVerdicts {
    /// Whether a verdict has to be reported: a change, or a first verdict, except that the mode is in effect if that
    /// `is_reported`.
    fn is_news(&self, napi: NapiId, verdict: &ModeVerdict, is_reported: bool) -> bool {
        let before = self.0.get(&napi);
        in_effect(verdict).is_some_and(|now| before.map_or(!now || !is_reported, |before| *before != now))
    }

    fn record(&mut self, napi: NapiId, verdict: &ModeVerdict) {
        if let Some(now) = in_effect(verdict) {
            self.0.insert(napi, now);
        }
    }
}

fn in_effect(verdict: &ModeVerdict) -> Option<bool> {
    match verdict {
        ModeVerdict::InEffect(_) => Some(true),
        ModeVerdict::NotInEffect(_) => Some(false),
        ModeVerdict::CannotTell(_) => None,
    }
}

impl EffectWatch {
    /// Judges the queues if the last verdict is old enough. A new set of queues begins a new interval.
    fn look(
        &mut self,
        attachment: &Attachment,
        queues: Vec<QueueStep>,
        (programs, snapshot): (&BTreeSet<Pid>, Option<&Snapshot>),
        sampler: &Sampler,
    ) -> Result<(Vec<EffectChange>, Option<Concluded>), SamplerError> {
        let request = attachment.request();
        let of = |steps: &[QueueStep]| steps.iter().map(|step| step.napi).collect::<Vec<_>>();
        let counting = match &mut self.counting {
            Some(counting) if of(&counting.queues) == of(&queues) => counting,
            _ => {
                self.counting = Some(PollCounting::begin(queues, programs, sampler.read()?));
                return Ok((Vec::new(), None));
            }
        };
        let awaits_first = self.last.0.is_empty() && !self.is_reported && !self.saw_others;
        if counting.began.elapsed() < if awaits_first { FIRST_AFTER } else { PERIOD } {
            return Ok((Vec::new(), None));
        }
        let polls = sampler.read()?;
        // A server that has just started may wait for its clients.
        if counting.began.elapsed() < PERIOD && !counting.suffices(&polls) {
            return Ok((Vec::new(), None));
        }
        let attached = attachment.with_mode(request.mode, attachment.steers());
        let has_backlog = snapshot.is_some_and(|snapshot| has_backlog(snapshot, programs));
        let (mut changes, mut judged) = (Vec::new(), Vec::<(EffectOnQueue, ModeVerdict)>::new());
        for seen in counting.next(programs, polls) {
            let seen = seen.with_backlog(has_backlog);
            if is_measured_now(attachment) {
                continue;
            }
            // The cause needs a snapshot, so it is looked for only if the verdict would be reported.
            let without_cause = judge(&request.mode, &seen, || NoPollCause::Unknown { seen: String::new() });
            if !self.last.is_news(seen.napi, &without_cause, self.is_reported) {
                self.last.record(seen.napi, &without_cause);
                judged.push((seen, without_cause));
                continue;
            }
            let cause = || no_poll_cause_now(None, programs, seen.napi).if_attached(&attached);
            let verdict = judge(&request.mode, &seen, cause);
            if in_effect(&verdict).is_none() {
                match OwnWork::of_queues([&seen]) {
                    Some(_) => judged.push((seen, verdict)),
                    None => self.saw_others = true,
                }
                continue;
            }
            let is_first = !self.last.0.contains_key(&seen.napi);
            self.last.record(seen.napi, &verdict);
            judged.push((seen, verdict.clone()));
            match &verdict {
                ModeVerdict::InEffect(why) => info!(napi = seen.napi.get(), %why, "the mode is in effect"),
                ModeVerdict::NotInEffect(why) | ModeVerdict::CannotTell(why) => {
                    warn!(napi = seen.napi.get(), %why, "the mode is not in effect");
                }
            }
            let Some(step) = counting.queues.iter().find(|step| step.napi == seen.napi) else { continue };
            let (device, rx_queues) = (step.device.clone(), step.queues.clone());
            changes.push(EffectChange { device, rx_queues, napi: seen.napi, verdict, is_first });
        }
        let payoff_in = |snapshot: &Snapshot| {
            let fix = unpolled_queues(snapshot).into_iter().find(|(pid, _)| programs.contains(pid));
            let fix = fix.map(|(_, fix)| one_queue_if_attached(fix, &attached));
            let has_poller = request.mode.poller().is_some();
            let lacking = has_poller.then(|| cpus_lacking_for_pollers(snapshot, programs, judged.len())).flatten();
            ModePayoff::of(request.mode, &judged, fix.as_ref(), lacking)
        };
        let payoff = snapshot.filter(|_| !judged.is_empty()).map(payoff_in);
        if let Some(payoff) = &payoff {
            let since = self.unclear_since.unwrap_or_else(Instant::now);
            self.unclear_since = (payoff.pays == DoesItPay::CannotTell).then_some(since);
        }
        let payoff = payoff.filter(|payoff| self.is_news(payoff));
        // Connections may have come since the snapshot.
        let concluded = payoff.map(|payoff| match observe_programs(programs) {
            Ok(now) => Concluded { payoff: payoff_in(&now), seen: Some(now) },
            Err(_) => Concluded { payoff, seen: None },
        });
        // Few connections do not show whether more would be on several queues again. Programs that have exited need no
        // advice.
        let is_known = |seen: &Snapshot| match self.unpolled {
            Some(connections) => 2 * count_connections(seen, programs) >= connections,
            None => seen.processes.iter().any(|one| programs.contains(&one.pid) && one.namespace.known().is_some()),
        };
        let concluded = concluded
            .filter(|concluded| self.is_news(&concluded.payoff) && concluded.seen.as_ref().is_none_or(is_known));
        if let Some(Concluded { payoff, seen }) = &concluded {
            self.record(payoff);
            if let (Some(connections), Some(seen)) = (&mut self.unpolled, seen) {
                *connections = count_connections(seen, programs);
            }
        }
        Ok((changes, concluded))
    }

    /// Whether this answer has to be reported: it is clear, and differs from the last one, or the first one stays unclear.
    /// Near the break-even, answers alternate, so that only a first one is news.
    fn is_news(&self, payoff: &ModePayoff) -> bool {
        if self.pays.is_none() && self.unclear_since.is_some_and(|since| since.elapsed() >= PERIOD) {
            return true;
        }
        let is_first = self.pays.is_none_or(|pays| pays == discriminant(&DoesItPay::CannotTell));
        let alternates = matches!(payoff.pays, DoesItPay::NearBreakEven) && !is_first;
        let is_other = self.pays != Some(discriminant(&payoff.pays)) || payoff.only_delays() && !self.has_delayed;
        !payoff.pays.is_unclear() && !alternates && is_other
    }

    fn record(&mut self, payoff: &ModePayoff) {
        self.pays = Some(discriminant(&payoff.pays));
        self.has_delayed |= payoff.only_delays();
        self.unpolled = matches!(payoff.pays, DoesItPay::LeavesQueuesUnpolled { .. }).then_some(1);
    }
}

/// An experiment can have begun since the last pass.
fn is_measured_now(attachment: &Attachment) -> bool {
    attachment.is_measured_now().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_between_certain_verdicts_are_news() {
        let napi = NapiId::from_kernel(8_193).unwrap();
        let mut last = LastVerdicts::default();
        let mut is_news = |verdict: fn(String) -> ModeVerdict| {
            let verdict = verdict(String::new());
            let is_news = last.is_news(napi, &verdict, true);
            last.record(napi, &verdict);
            is_news
        };
        assert!(!is_news(ModeVerdict::InEffect), "attach has reported the first verdict");
        assert!(!is_news(ModeVerdict::CannotTell));
        assert!(is_news(ModeVerdict::NotInEffect));
        assert!(!is_news(ModeVerdict::CannotTell));
        assert!(!is_news(ModeVerdict::NotInEffect));
        assert!(is_news(ModeVerdict::InEffect));
    }

    #[test]
    fn an_answer_whether_the_mode_pays_is_news_once_it_differs_from_the_one_before() {
        let [mode, fullbusy] = ["suspend200", "fullbusy"].map(|mode| mode.parse().unwrap());
        let payoff = |pays| ModePayoff { pays, ..ModePayoff::of(mode, &[], None, None) };
        let unpolled = || DoesItPay::LeavesQueuesUnpolled { fix: "steer".to_owned(), command: None };
        let costs = |instead: &str| DoesItPay::CostsCpuTime {
            instead: instead.parse().unwrap(),
            break_even_packets_per_s: None,
        };
        let mut watch = AttachmentWatch::after(Some(&payoff(unpolled()))).effects;
        assert!(!watch.is_news(&payoff(unpolled())), "attach has said it");
        assert!(watch.is_news(&payoff(costs("defer200"))), "the clients have reconnected");
        watch.record(&payoff(costs("defer200")));
        assert!(!watch.is_news(&payoff(costs("defer500"))));
        assert!(!watch.is_news(&payoff(DoesItPay::CannotTell)));
        assert!(!watch.is_news(&payoff(costs("defer200"))));
        assert!(!watch.is_news(&payoff(DoesItPay::NearBreakEven)));
        let at_low_load = |wait_p99_ns| ModePayoff { mode: fullbusy, wait_p99_ns, ..payoff(costs("suspend500")) };
        watch.record(&at_low_load(None));
        assert!(watch.is_news(&at_low_load(Some(5_000_000))), "its polls end before the next packet comes");
        watch.record(&at_low_load(Some(5_000_000)));
        assert!(!watch.is_news(&at_low_load(None)) && !watch.is_news(&at_low_load(Some(5_000_000))));
        let mut unreported = AttachmentWatch::after(None).effects;
        assert!(!unreported.is_news(&payoff(DoesItPay::CannotTell)), "the next interval may show it");
        unreported.unclear_since = Instant::now().checked_sub(PERIOD);
        assert!(unreported.is_news(&payoff(DoesItPay::CannotTell)));
        unreported.record(&payoff(DoesItPay::CannotTell));
        assert!(!unreported.is_news(&payoff(DoesItPay::CannotTell)));
        assert!(unreported.is_news(&payoff(unpolled())) && unreported.is_news(&payoff(DoesItPay::NearBreakEven)));
        unreported.record(&payoff(DoesItPay::NearBreakEven));
        assert!(!unreported.is_news(&payoff(DoesItPay::NearBreakEven)));
    }

    #[test]
    fn a_first_verdict_is_news_unless_it_was_reported_before() {
        let napi = NapiId::from_kernel(8_193).unwrap();
        let is_news = |verdict: fn(String) -> ModeVerdict, is_reported| {
            LastVerdicts::default().is_news(napi, &verdict(String::new()), is_reported)
        };
        assert!(is_news(ModeVerdict::NotInEffect, true) && is_news(ModeVerdict::NotInEffect, false));
        assert!(is_news(ModeVerdict::InEffect, false), "`quell run` has reported nothing");
        assert!(!is_news(ModeVerdict::InEffect, true) && !is_news(ModeVerdict::CannotTell, false));
    }

    #[test]
    fn a_verdict_that_attach_could_not_give_is_reported_once_there_is_one() {
        let payoff = |pays| ModePayoff { pays, ..ModePayoff::of("suspend200".parse().unwrap(), &[], None, None) };
        let is_reported = |pays| AttachmentWatch::after(Some(&payoff(pays))).effects.is_reported;
        assert!(is_reported(DoesItPay::MeasureToKnow));
        assert!(!is_reported(DoesItPay::CannotTell) && !is_reported(DoesItPay::TooFewPackets));
        assert!(!is_reported(DoesItPay::NotInEffect { on_unset_epolls: false }));
        assert!(AttachmentWatch::after(None).effects.is_reported, "--seconds 0");
        assert!(!AttachmentWatch::default().effects.is_reported, "`quell run`");
    }
}
