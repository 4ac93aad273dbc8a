//! Reports the events that [`quell_host::attach::watch`] observes on the queues of a followed or launched program.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use quell_change::change::Drift;
use quell_change::journal::StallRecord;
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::payoff::ModePayoff;
use quell_host::attach::stall::Stalled;
use quell_host::attach::watch::{AttachmentWatch, Concluded, EffectChange};
use quell_host::attach::{Attachment, Pass};
use quell_host::findings;
use quell_host::servers::JudgedMode;
use quell_host::snapshot::Snapshot;
use quell_linux::CpuList;
use quell_linux::visible::counted;

use crate::commands::earlier::{earlier_answers, measured};
use crate::commands::status::queue_sharers;
use crate::render::client_load;
use crate::render::payoff;
use crate::render::program_arguments::ProgramArguments;
use crate::render::status::stall_cause;

/// Watches the queues of an attachment. Without the privilege to count polls it does nothing, and reports this once.
#[derive(Default)]
pub(crate) struct QueueWatch {
    watch: AttachmentWatch,
    blind: bool,
    /// Whether workers are pinned, for the commands of conclusions.
    pins: bool,
}

#[derive(Default)]
pub(crate) struct QueueEvents {
    pub(crate) lines: Vec<String>,
    pub(crate) must_end: Option<String>,
}

impl QueueWatch {
    /// A watch that gives the first verdict, and the first conclusion.
    pub(crate) fn from_begin(pins: bool) -> Self {
        Self { pins, ..Self::default() }
    }

    /// A watch that concludes whether the mode pays once this differs from `reported`.
    pub(crate) fn after(reported: Option<&ModePayoff>, pins: bool) -> Self {
        Self { watch: AttachmentWatch::after(reported), blind: false, pins }
    }

    /// Frees stalled queues, and reports events since the last call. Concludes whether the mode pays if there is a recent
    /// snapshot of the programs.
    pub(crate) fn look(&mut self, attachment: &mut Attachment, snapshot: Option<&Snapshot>) -> QueueEvents {
        if let Some(why) = attachment.poller_failure() {
            let why = format!("{} was reverted because nobody polls its queues: {why}", attachment.request().mode);
            return QueueEvents { must_end: Some(why), ..QueueEvents::default() };
        }
        if self.blind {
            return QueueEvents::default();
        }
        match self.watch.look(attachment, snapshot) {
            Ok(events) => {
                let cause = match &events.cause {
                    Some(known) => stall_cause(known.as_deref(), attachment.targets().pids().into_iter()),
                    None => "searching for the cause".to_owned(),
                };
                let freed = events.stalled.iter().map(|stalled| freed(stalled, &cause));
                let searched = events.has_searched.then(|| format!("stalled queue: {cause}"));
                let concluded = events.concluded.iter().map(|Concluded { payoff, seen }| {
                    conclusion(payoff, attachment, self.pins, seen.as_ref().or(snapshot))
                });
                let lines = freed.chain(searched).chain(effects(&events.effects)).chain(concluded).collect();
                let record = if events.must_end { self.watch.record_revert() } else { None };
                QueueEvents { lines, must_end: record.as_ref().map(reverted_after_stall) }
            }
            Err(error) => {
                self.blind = true;
                let line = format!("not watching for stalled queues, nor whether the mode is in effect: {error}");
                QueueEvents { lines: vec![line], must_end: None }
            }
        }
    }
}

/// Queues of an attachment that were missing in the last pass: device, receive queue.
#[derive(Debug, Default)]
pub(crate) struct MissingQueues(BTreeSet<(String, u32)>);

impl MissingQueues {
    /// One line per reason if further queues are missing since the last pass.
    pub(crate) fn look(&mut self, pass: &Pass, attachment: &Attachment) -> Vec<String> {
        if pass.snapshot.is_none() {
            return Vec::new();
        }
        let before = mem::replace(&mut self.0, pass.missing.clone());
        if pass.missing.is_subset(&before) {
            return Vec::new();
        }
        // A failure hides only the reasons, which `quell status` prints, too.
        let condition = attachment.condition().unwrap_or_default();
        missing(&condition.drifted)
    }
}

fn missing(drifts: &[Drift]) -> Vec<String> {
    let mut queues: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (drift, missing) in drifts.iter().filter_map(|drift| Some((drift, drift.missing.as_ref()?))) {
        queues.entry(missing.to_string()).or_default().extend(drift.queue);
    }
    let line = |(why, rx): (String, BTreeSet<u32>)| {
        let count = counted(rx.len(), "queue");
        let is_missing = if rx.len() == 1 { "is missing and gets" } else { "are missing and get" };
        let rx = rx.into_iter().collect::<CpuList>();
        format!("{count} (rx {rx}) {is_missing} the mode again once back: {why}")
    };
    queues.into_iter().map(line).collect()
}

fn freed(stalled: &Stalled, cause: &str) -> String {
    let Stalled { napi, unpolled, packets, .. } = stalled;
    format!(
        "freed the stalled queue of NAPI {napi}, where {} waited: nobody had polled it for {} ms; {cause}",
        counted(*packets, "packet"),
        unpolled.as_millis()
    )
}

fn reverted_after_stall(record: &StallRecord) -> String {
    let purpose = &record.purpose;
    format!(
        "{purpose} was reverted because its queues stalled {} times; {}",
        record.stalls,
        stall_cause(record.cause.as_deref(), record.programs.iter().map(|program| program.pid))
    )
}

/// The conclusion on one line, as in a journal.
fn conclusion(payoff: &ModePayoff, attachment: &Attachment, pins: bool, seen: Option<&Snapshot>) -> String {
    let pids = attachment.targets().pids();
    let can_pin = seen.is_none_or(|seen| findings::workers_can_be_pinned(seen, &pids));
    let attached = attachment.with_mode(payoff.mode, pins && can_pin);
    let programs = ProgramArguments::of_selection(attachment.targets().selection()).attached(Some(attached));
    let napis = attachment.queues().map(|step| step.napi).collect();
    let programs = programs.sharing(queue_sharers(attachment.targets(), &napis));
    let judge = seen.and_then(|seen| client_load::judge_in(seen, &pids));
    let unreached = seen.and_then(|seen| findings::Unreached::of(seen, &pids));
    let netns = seen.and_then(|seen| seen.named_netns_of(&pids)).map(str::to_owned);
    let programs = programs.judged_by(judge).in_netns(netns).unreached(unreached);
    // A failure hides only that others have changed it, which `quell status` says, too.
    let payoff = &payoff.clone().drifted(attachment.condition().unwrap_or_default().changed() > 0);
    let (packets_per_s, payoff_seen) = (payoff.packets_per_s, Some(payoff));
    let judged = JudgedMode { attached, is_planned: false, below: None, payoff: payoff_seen, packets_per_s };
    let step = seen.and_then(|seen| measured(seen, &pids, &earlier_answers(), &judged));
    let (text, command) = payoff::advice(payoff, &programs.answered_by(step));
    let command = command.map(|command| format!(": {command}")).unwrap_or_default();
    format!("conclusion: {text}{command}")
}

/// One line per change. Queues of a device on which the mode is in effect for the first time share one.
fn effects(changes: &[EffectChange]) -> Vec<String> {
    let is_begin = |change: &&EffectChange| change.is_first && matches!(change.verdict, ModeVerdict::InEffect(_));
    let (begun, others): (Vec<&EffectChange>, Vec<&EffectChange>) = changes.iter().partition(is_begin);
    let begun = begun.chunk_by(|one, other| one.device == other.device).map(|queues| match queues {
        [only] => effect(only),
        queues => {
            let rx = queues.iter().flat_map(|queue| queue.rx_queues.iter().copied()).collect::<CpuList>();
            format!("{} rx {rx}: in effect", queues[0].device)
        }
    });
    begun.chain(others.into_iter().map(effect)).collect()
}

fn effect(change: &EffectChange) -> String {
    let rx: Vec<String> = change.rx_queues.iter().map(ToString::to_string).collect();
    let queue = match rx.is_empty() {
        true => format!("{} NAPI {}", change.device, change.napi),
        false => format!("{} rx {}", change.device, rx.join(",")),
    };
    match &change.verdict {
        ModeVerdict::InEffect(why) if change.is_first => format!("{queue}: in effect: {why}"),
        ModeVerdict::InEffect(why) => format!("{queue}: in effect again: {why}"),
        ModeVerdict::NotInEffect(why) | ModeVerdict::CannotTell(why) => format!("{queue}: not in effect: {why}"),
    }
}
