//! What one attachment, launch or profile has applied, and whether its mode is in effect.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use quell_change::change::Drift;
use quell_change::drift::Condition;
use quell_change::journal::{History, Purpose, StallRecord, TargetProgram};
use quell_change::missing_queue::MissingQueue;
use quell_change::persistent::{self, Persistent};
use quell_host::attach::attached::{Attached, AttachedMode, parents, started_since};
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::owners::{QueueSharers, covered_values};
use quell_host::attach::payoff::{DoesItPay, ModePayoff};
use quell_host::attach::plan::polls_epolls;
use quell_host::attach::stall::STALLS_MAX;
use quell_host::findings::{Finding, Unreached, mixes_queues, workers_can_be_pinned};
use quell_host::servers::{EarlierAnswers, JudgedMode, MeasuredStep, measured_step};
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;
use quell_linux::proc::Ticks;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::top::{IntervalReport, SkippedPart};
use schemars::JsonSchema;
use serde::Serialize;

use super::effect::{LiveEffect, ProgramEffect, observed_program};
use super::set::{SetReport, what_is_set};
use super::{settings, span, to_programs, unix_s};
use crate::journals::name_of;
use crate::output::on_one_line;
use crate::render::attach::finding_lines;
use crate::render::conclusion::LastLine;
use crate::render::payoff;
use crate::render::program_arguments::ProgramArguments;
use crate::render::{client_load, measured, plan_tree};

/// Maximum number of lines about what was set.
const SET_SHOWN: usize = 8;
/// Time after which a follower has looked at a new process: passes of 100 ms have pauses of 5 s.
const FOLLOWER_SETS_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct AppliedReport {
    pub(super) purpose: Purpose,
    /// Path of the journal.
    pub(super) journal: String,
    /// Name of the journal, by which `quell revert` selects it.
    pub(super) journal_name: String,
    pub(super) since_unix_s: u64,
    pub(super) state: AppliedState,
    /// Process that undoes the changes when it ends, or on SIGTERM. Null for profiles that stay.
    pub(super) owner_pid: Option<Pid>,
    pub(super) deadline_unix_s: Option<u64>,
    pub(super) settings: usize,
    /// What was set on queues and devices. `drifted` has the settings that differ by now.
    pub(super) set: Vec<SetReport>,
    /// Number of settings that vanished with their device or network namespace.
    pub(super) gone: usize,
    pub(super) drifted: Vec<Drift>,
    /// Settings that the driver has reset, as when a link goes down and up, and that the follower sets again: no drift.
    pub(super) being_set_again: Vec<Drift>,
    pub(super) programs: Vec<TargetProgram>,
    /// Processes of the same name that they have started since, and whose epolls or sockets do not have the mode, as far
    /// as these can be read.
    pub(super) started_since: Vec<TargetProgram>,
    /// Such processes that are so new that the follower has not looked at them yet.
    pub(super) being_set: Vec<TargetProgram>,
    /// The programs that are not children of others, for commands.
    #[serde(skip)]
    pub(super) parents: Vec<Pid>,
    #[serde(skip)]
    pub(super) attached: Option<AttachedMode>,
    /// Whether its owner sets queues again that a driver has recreated.
    #[serde(skip)]
    pub(super) is_followed: bool,
    /// Network namespace of the programs, if it has a name and is not that of this command.
    #[serde(skip)]
    pub(super) netns: Option<String>,
    /// Command that measures what clients of the programs see.
    #[serde(skip)]
    pub(super) load_command: Option<String>,
    /// Whether an epoll of the programs has connections of several queues, which steering can change.
    #[serde(skip)]
    pub(super) mixes: bool,
    /// Why its mode reaches few packets of its programs, if it does.
    #[serde(skip)]
    pub(super) unreached: Option<Unreached>,
    /// Number of accepted stalls, if they are frequent.
    #[serde(skip)]
    pub(super) stalls: u64,
    /// Packets per second from the queues of its programs.
    #[serde(skip)]
    pub(super) packets_per_s: Option<u64>,
    /// What a stored measurement says about its mode.
    #[serde(skip)]
    pub(super) measured: Option<MeasuredStep>,
    /// Other attachments that use its queues. Null without one.
    pub(super) sharing: Option<QueueSharers>,
    /// Verdicts on its programs that are running. Empty for profiles.
    pub(super) effects: Vec<ProgramEffect>,
    /// Findings that predict a stall. Its programs are observed if packets waited for longer than twice gro-flush-timeout.
    pub(super) predicted: Vec<Finding>,
    /// What to do about the program for which it pays least: stored measurements decide first. Null without a mode.
    pub(super) conclusion: Option<LastLine>,
}

/// State, which determines when the changes end.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AppliedState {
    Applied,
    Attached,
    Launched,
    InProgress,
    Unconfirmed,
    OutOfSight,
    BeforeThisBoot,
}

impl AppliedReport {
    pub(crate) fn new(kept: &Persistent, condition: Condition) -> Self {
        let (state, owner_pid, deadline_unix_s) = match kept.state {
            persistent::PersistState::UntilReverted => (AppliedState::Applied, None, None),
            persistent::PersistState::Unconfirmed(watchdog) => {
                (AppliedState::Unconfirmed, Some(watchdog.pid), Some(watchdog.deadline_unix_s))
            }
            persistent::PersistState::MaintainedBy(keeper) => (AppliedState::Attached, Some(keeper.pid), None),
            persistent::PersistState::BeforeThisBoot => (AppliedState::BeforeThisBoot, None, None),
            persistent::PersistState::OutOfSight(pid) => (AppliedState::OutOfSight, Some(pid), None),
        };
        Self { owner_pid, deadline_unix_s, ..Self::of_journal(&kept.path, &kept.history, state, condition) }
    }

    /// Report for changes of a command that still runs.
    pub(crate) fn in_progress(attached: &Attached, condition: Condition) -> Self {
        let state = match (attached.is_owner_visible(), attached.is_launched()) {
            (false, _) => AppliedState::OutOfSight,
            (true, true) => AppliedState::Launched,
            (true, false) => AppliedState::InProgress,
        };
        let of_journal = Self::of_journal(&attached.path, &attached.history, state, condition);
        Self { owner_pid: Some(attached.owner().pid), ..of_journal }
    }

    fn of_journal(path: &Path, history: &History, state: AppliedState, condition: Condition) -> Self {
        let Condition { drifted, being_set_again, gone, .. } = condition;
        Self {
            purpose: history.begin.purpose.clone(),
            journal: visible::path(path),
            journal_name: name_of(path),
            since_unix_s: history.begin.started_unix_s,
            state,
            owner_pid: None,
            deadline_unix_s: None,
            settings: history.pending().count() - gone,
            set: what_is_set(history, |_| None),
            gone,
            drifted,
            being_set_again,
            programs: history.targets.clone(),
            started_since: Vec::new(),
            being_set: Vec::new(),
            parents: Vec::new(),
            attached: AttachedMode::recorded(history),
            is_followed: history.is_followed(),
            netns: None,
            load_command: None,
            mixes: false,
            unreached: None,
            stalls: 0,
            packets_per_s: None,
            measured: None,
            sharing: None,
            effects: Vec::new(),
            predicted: Vec::new(),
            conclusion: None,
        }
    }

    /// Leaves out programs that have exited, unless all have.
    pub(crate) fn update_programs(&mut self, running: fn(&TargetProgram) -> Option<TargetProgram>) {
        let present: Vec<TargetProgram> = self.programs.iter().filter_map(running).collect();
        if !present.is_empty() {
            self.programs = present;
        }
    }

    /// Looks for processes that the attached programs have started since.
    pub(crate) fn find_started_since(&mut self, parent_of: fn(Pid) -> Option<Pid>) {
        let pids: Vec<Pid> = self.attached_pids().collect();
        if pids.is_empty() {
            return;
        }
        self.parents = parents(&pids, parent_of);
        self.started_since = started_since(&self.programs);
    }

    /// Processes to observe: attached ones, and those that they have started since.
    pub(crate) fn observed_pids(&self) -> impl Iterator<Item = Pid> {
        self.attached_pids().chain(self.started_since.iter().map(|program| program.pid))
    }

    pub(crate) fn journal_name(&self) -> &str {
        &self.journal_name
    }

    /// Whether all settings vanished with their device or network namespace.
    fn is_gone(&self) -> bool {
        self.settings == 0 && self.gone > 0
    }

    pub(crate) fn attached_pids(&self) -> impl Iterator<Item = Pid> {
        let is_meant = matches!(self.state, AppliedState::Attached | AppliedState::Launched);
        self.programs.iter().filter(move |_| is_meant).map(|program| program.pid)
    }

    pub(super) fn arguments(&self) -> ProgramArguments {
        ProgramArguments::of_pids(&self.parents)
            .attached(self.attached)
            .in_netns(self.netns.clone())
            .judged_by(self.load_command.clone())
            .sharing(self.sharing.clone())
            .mixing(self.mixes)
            .unreached(self.unreached.clone())
            .stalled(self.stalls)
            .answered_by(self.measured.clone())
    }

    /// Adds what a snapshot shows of its programs, which are judged, and what stored measurements say about them. `below` has
    /// the settings of programs without attachments.
    pub(crate) fn look(
        &mut self,
        now: &Snapshot,
        answers: &EarlierAnswers,
        below: impl Fn(&BTreeSet<Pid>) -> Option<DeliveryMode>,
    ) {
        let pids = self.observed_pids().collect();
        self.netns = now.named_netns_of(&pids).map(str::to_owned);
        self.load_command = client_load::judge_in(now, &pids);
        self.mixes = mixes_queues(now, &pids);
        self.unreached = Unreached::of(now, &pids);
        self.attached = self.attached.map(|attached| attached.where_pinning(workers_can_be_pinned(now, &pids)));
        self.measured = self.attached.and_then(|attached| {
            let (packets_per_s, payoff) = (self.packets_per_s, self.worst_payoff());
            let judged = JudgedMode { attached, is_planned: false, below: below(&pids), payoff, packets_per_s };
            measured_step(now, &pids, answers, &judged)
        });
    }

    /// Whether the mode pays for the program for which it pays least.
    fn worst_payoff(&self) -> Option<&ModePayoff> {
        let payoffs = self.effects.iter().filter_map(|effect| effect.payoff.as_ref());
        payoffs.min_by(|one, other| one.pays.cmp(&other.pays))
    }

    /// Names newer owners of its values, and other attachments that use its queues. `owners` are all journals in use.
    pub(crate) fn find_other_owners(&mut self, owners: &[Attached], parent_of: fn(Pid) -> Option<Pid>) {
        if let Some(own) = owners.iter().find(|owner| name_of(&owner.path) == self.journal_name) {
            self.set = what_is_set(&own.history, |change| covered_values(change, &own.path, owners));
            self.sharing = QueueSharers::of_attached(own, owners, parent_of).filter(|_| self.attached.is_some());
        }
    }

    /// Counts the stalls of its queues, if they are as frequent as those that end a mode and were accepted.
    pub(crate) fn count_stalls(&mut self, stalls: &[StallRecord]) {
        let own = stalls.iter().filter(|record| record.journal_name == self.journal_name && !record.reverted);
        let count = own.map(|record| record.stalls).sum();
        self.stalls = if self.accepts_stalls() && count >= STALLS_MAX as u64 { count } else { 0 };
    }

    fn accepts_stalls(&self) -> bool {
        self.attached.is_some_and(|attached| attached.accepts_stalls)
    }

    /// Adds those of these findings that are about its programs.
    pub(crate) fn predict(&mut self, findings: &[Finding]) {
        let pids = self.attached_pids().collect();
        self.predicted = findings.iter().filter(|finding| finding.has_epoll_of(&pids)).cloned().collect();
    }

    /// Whether a setting has another value now. That of a queue that does not exist at present has none.
    fn has_changed(&self) -> bool {
        self.drifted.iter().any(|drift| drift.now.is_some())
    }

    /// Reasons why queues are missing.
    pub(super) fn missing(&self) -> impl Iterator<Item = &MissingQueue> {
        self.drifted.iter().filter_map(|drift| drift.missing.as_ref())
    }

    /// Steps that bring missing queues back and set the mode again, which a follower does itself.
    pub(super) fn steps_to_reapply(&self) -> String {
        let missing: BTreeSet<String> = self.missing().map(ToString::to_string).collect();
        let set_again = self.attached.filter(|_| !self.is_followed || self.has_changed());
        let set_again = set_again.map(|attached| match (attached.launched, self.better()) {
            (true, _) => "restart the program with `quell run`".to_owned(),
            (false, Some(better)) => format!("`{better}`: a measurement found the mode worse"),
            (false, None) => {
                format!("`{}`{}", self.arguments().replace(&attached.mode), self.reconnect_first(&attached.mode))
            }
        });
        missing.into_iter().chain(set_again).collect::<Vec<_>>().join(", then ")
    }

    /// When the mode can be set again: until then, it is refused for an epoll with connections of several queues.
    fn reconnect_first(&self, mode: &DeliveryMode) -> &'static str {
        match self.mixes && polls_epolls(mode) {
            true => " once its clients have reconnected, because an epoll has connections of several queues now",
            false => "",
        }
    }

    /// Command for the mode that a measurement found better.
    fn better(&self) -> Option<String> {
        let step = self.measured.as_ref()?;
        self.arguments().replace_by(&step.next, step.can_pin)
    }

    /// Whether the mode pays for the program for which it pays least, and the command that follows.
    pub(super) fn conclude(&self) -> Option<LastLine> {
        let (text, command) = self.decide()?;
        Some(LastLine { text, command })
    }

    fn decide(&self) -> Option<(String, Option<String>)> {
        if !self.being_set.is_empty() {
            return Some((
                "the follower sets the new processes; to look again".to_owned(),
                Some("quell status".to_owned()),
            ));
        }
        // Missing queues come first: the last line of the output has the steps.
        if self.missing().next().is_some() {
            return None;
        }
        let programs = self.arguments();
        // A mode that a measurement found worse is not set again.
        let wanted = self.attached.filter(|_| self.better().is_none());
        let set_again =
            |mode: &DeliveryMode, why: String| Some((why + self.reconnect_first(mode), Some(programs.replace(mode))));
        if let Some(attached) = wanted.filter(|_| self.has_changed() && !self.parents.is_empty()) {
            return set_again(&attached.mode, payoff::drifted(&attached.mode));
        }
        if let Some(attached) = wanted.filter(|attached| !attached.launched && !self.started_since.is_empty()) {
            return set_again(&attached.mode, payoff::unset(&attached.mode, ""));
        }
        let is_elsewhere = |effect: &ProgramEffect| {
            effect.payoff.is_none() && matches!(effect.effect, LiveEffect::Judged(ModeVerdict::NotInEffect(_)))
        };
        if let Some(attached) = wanted.filter(|it| !it.launched && self.effects.iter().any(is_elsewhere)) {
            return set_again(&attached.mode, payoff::elsewhere(&attached.mode, self.is_followed));
        }
        let Some(worst) = self.worst_payoff() else {
            if self.effects.iter().any(|effect| effect.lost_queues) {
                return Some(programs.of_gone_device());
            }
            let step = self.measured.as_ref().filter(|_| self.better().is_some())?;
            return measured::advice(step, &self.attached?.mode, &programs, "");
        };
        if let Some(finding) = self.predicted.first().filter(|_| !self.accepts_stalls()) {
            let (undo, detach) = programs.undo();
            return Some((format!("{} delays packets ({}): {undo}", worst.mode, finding.id), detach));
        }
        let is_clear = worst.pays.is_no() || worst.pays == DoesItPay::TooFewPackets || self.stalls > 0;
        if let Some(attached) = self.attached.filter(|attached| attached.accepts_stalls && !is_clear) {
            return Some(payoff::accepted(&attached.mode, &programs));
        }
        // The mode of a newer attachment is named below.
        let newer = self.set.iter().find_map(|set| set.newer.as_ref()).filter(|_| payoff::counts_polls(worst));
        if let Some(newer) = newer.filter(|_| payoff::in_force(worst, self.sharing.as_ref()).is_none()) {
            let text = format!("newer values are in force instead of those of {}: {}", worst.mode, on_one_line(newer));
            return Some((text + "; decide about their owner first", None));
        }
        // The lines of the programs have the figures.
        Some(payoff::advice_with(worst, &programs, ""))
    }

    /// Leaves processes to the follower that it may not have looked at. `now` is the time since boot.
    pub(crate) fn leave_new_ones_to_follower(&mut self, now: Duration) {
        let is_new = |one: &mut TargetProgram| now < Ticks(one.start_time_ticks).duration() + FOLLOWER_SETS_WITHIN;
        if self.is_followed {
            self.being_set = self.started_since.extract_if(.., is_new).collect();
        }
    }

    pub(crate) fn judge(&mut self, observed: &Result<IntervalReport, String>) {
        let is_set = |skipped: &Vec<SkippedPart>| !skipped.iter().any(|part| part.reason.is_unset());
        let lacks_mode = |program: &TargetProgram| {
            !observed_program(program.pid, observed).and_then(|one| one.skipped.as_ref()).is_some_and(is_set)
        };
        self.started_since.retain(lacks_mode);
        let pids: Vec<Pid> = self.attached_pids().collect();
        let programs = self.programs.iter().filter(|program| pids.contains(&program.pid));
        self.effects = programs.map(|program| ProgramEffect::of(program, observed)).collect();
        self.packets_per_s = observed.as_ref().ok().and_then(|report| report.packets_per_s(&pids));
        let is_received = self.effects.iter().any(|effect| matches!(effect.effect, LiveEffect::Judged(_)));
        for effect in self.effects.iter_mut().filter(|effect| is_received && self.parents.contains(&effect.pid)) {
            if let LiveEffect::ReceivesNothing(why) = &mut effect.effect {
                *why = "it has no connections of its own, as the parent of workers".to_owned();
            }
        }
    }
}

impl fmt::Display for AppliedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}{} for {}, {}{} ({})",
            self.purpose,
            to_programs(&self.programs),
            span(unix_s().abs_diff(self.since_unix_s)),
            settings(self.settings),
            match self.gone {
                0 => String::new(),
                gone => format!(", {gone} gone with the device or network namespace"),
            },
            on_one_line(&self.journal_name)
        )?;
        if self.is_gone() {
            let name = on_one_line(&self.journal_name);
            return writeln!(f, "  nothing is left to undo; `quell revert {name}` removes it from the list");
        }
        match (self.state, self.deadline_unix_s) {
            (AppliedState::InProgress, _) => {
                let owner = self.owner_pid.map_or_else(String::new, |pid| format!(" {pid}"));
                let end = self.programs.first().map(|program| format!("`quell detach {}` or ", program.pid));
                let end = end.unwrap_or_default();
                writeln!(f, "  by process{owner}, which still runs: undone when it ends; {end}`quell revert` ends it")?;
            }
            (AppliedState::BeforeThisBoot, _) => {
                writeln!(f, "  applied before the last boot, which undid it: run `quell apply` again")?;
            }
            (AppliedState::OutOfSight, _) => {
                writeln!(f, "  owned by a process that is not visible here (another PID namespace)")?
            }
            (AppliedState::Launched, _) => writeln!(f, "  by `quell run`: undone when the command exits")?,
            (_, Some(deadline)) => {
                let left = span(deadline.saturating_sub(unix_s()));
                writeln!(f, "  rolled back in {left} unless you run `quell confirm`")?;
            }
            _ => {}
        }
        self.set.iter().take(SET_SHOWN).try_for_each(|set| set.fmt(f))?;
        if self.set.len() > SET_SHOWN {
            writeln!(f, "  and {} more; --json lists all", self.set.len() - SET_SHOWN)?;
        }
        self.effects.iter().try_for_each(|effect| writeln!(f, "{}", effect.line(self.sharing.is_some())))?;
        finding_lines(&self.predicted).iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        for TargetProgram { name, pid, .. } in &self.started_since {
            writeln!(f, "  {} {pid}: started since, without the mode", on_one_line(name))?;
        }
        for TargetProgram { name, pid, .. } in &self.being_set {
            writeln!(f, "  {} {pid}: started just now, not looked at by the follower yet", on_one_line(name))?;
        }
        if let Some(LastLine { text, command }) = self.conclude() {
            let command = command.map_or_else(String::new, |command| format!(":\n    {command}"));
            writeln!(f, "  {text}{command}")?;
        }
        let lines = |f: &mut fmt::Formatter<'_>, what: &str, drifted: &[Drift]| {
            drifted.iter().try_for_each(|drift| writeln!(f, "  {what}: {}", plan_tree::drift(drift, "now")))
        };
        lines(f, "drifted", &self.drifted)?;
        lines(f, "being set again by the follower", &self.being_set_again)
    }
}
