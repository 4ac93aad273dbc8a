//! Host settings of `quell run`. Queues are set before the command starts; epolls that the preload library does not
//! reach are set while it runs; connections are steered once it listens. This process undoes everything at the end. If
//! it is killed, the keeper does.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use quell_change::journal::JournalError;
use quell_change::recovery::Reverted;
use quell_change::transaction::ChangeStage;
use quell_host::attach::consequences::consequences;
use quell_host::attach::instances::InstanceWatch;
use quell_host::attach::launch::{devices_with_queues, plan_of_devices};
use quell_host::attach::owners::refuse_under_owners;
use quell_host::attach::placement::{Placement, Wanted};
use quell_host::attach::{AttachError, AttachPlan, AttachRequest, Attachment, EpollsSetBy, Selection, Targets};
use quell_host::findings::Finding;
use quell_host::snapshot::{Snapshot, SnapshotScope, take};
use quell_launch::choice::LaunchChoice;
use quell_linux::Pid;
use quell_linux::visible::agree;
use quell_mode::{DeliveryMode, EpollParams};

use super::verify::Verifier;
use crate::commands::attach::watch::{MissingQueues, QueueEvents, QueueWatch};
use crate::commands::attach::{ask, failure, keeper, poller};
use crate::commands::earlier::covers;
use crate::commands::snapshot_scope::not_taken;
use crate::commands::stalls::StallForecast;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::attach::{finding_lines, placement as placement_lines};
use crate::render::{launch as render, reverted};

/// Changes to the host for a command; none by default.
#[derive(Default)]
pub(super) struct Queues {
    attachment: Option<Attachment>,
    placement: Placement,
    watch: QueueWatch,
    forecast: StallForecast,
    missing: MissingQueues,
    instances: InstanceWatch,
    /// Programs and devices in the last pass.
    seen: Option<Snapshot>,
    details: bool,
    /// Whether stalls and effects are left to the caller.
    pub(super) unwatched: bool,
}

pub(super) fn plan(choice: &LaunchChoice, wanted: &Wanted) -> Result<(AttachPlan, Vec<Finding>), Failure> {
    let (snapshot, _) = take(&SnapshotScope::default()).map_err(|error| not_taken(&error))?;
    if let Some(steer) = &wanted.steer {
        devices_with_queues(&snapshot, &steer.devices).map_err(Failure::usage)?;
    }
    let named = choice.devices.as_ref().map(|chosen| chosen.value.as_slice());
    let mut plan = plan_of_devices(&snapshot, named, &choice.mode.value).map_err(Failure::usage)?;
    plan.covers = covers(&plan.values(), &BTreeSet::new());
    let mut findings = consequences(&snapshot, None, &plan);
    findings.retain(Finding::is_about_queues);
    Ok((plan, findings))
}

/// Fails if parts of the plan are impossible, before anything is started.
pub(super) fn refuse_impossible(choice: &LaunchChoice, plan: &AttachPlan) -> Result<(), Failure> {
    if plan.impossible.is_empty() {
        return poller::check(&choice.mode.value, plan.queues().count());
    }
    let (mode, why) = (choice.mode.value, render::impossible(plan));
    Err(Failure::new(Exit::NotSupported, format!("{mode} is not possible here; nothing was started:\n{why}")))
}

fn never_stop(_: usize, _: ChangeStage) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

impl Queues {
    /// Sets and verifies the queues, and reports other affected processes. With `follows`, follows the command while it
    /// runs even if the queues need no change.
    ///
    /// # Errors
    /// When the queues cannot be set; all changes are undone.
    pub(super) fn set(
        choice: &LaunchChoice,
        follows: bool,
        wanted: Wanted,
        (details, yes): (bool, bool),
    ) -> Result<Self, Failure> {
        let (mode, journal) = (choice.mode.value, journal());
        // Without this, changes left by a killed run would be recorded as the host's own values.
        revert_killed_runs(&journal).map_err(Failure::refused)?;
        let (plan, findings) = plan(choice, &wanted)?;
        plan.log();
        refuse_impossible(choice, &plan)?;
        refuse_under_owners(&journal, &plan).map_err(failure)?;
        if !follows && plan.queues().all(|step| step.is_there()) {
            return Ok(Self::default());
        }
        for line in render::affected_lines(&plan).into_iter().chain(finding_lines(&findings)) {
            output::say(&format!("quell: {line}"));
        }
        if !plan.affected_processes.is_empty() {
            ask::on_terminal(yes, "quell: start the command with the mode?")?;
        }
        let nobody = Targets::find(Selection::Processes(Vec::new())).map_err(|error| failure(error.into()))?;
        let request = AttachRequest { mode, epolls: EpollsSetBy::Attachment };
        let mut attachment =
            Attachment::begin(&journal, nobody, request, &mut |path| keeper::start(path)).map_err(failure)?;
        let made = poller::start(&mut attachment).and_then(|()| attachment.make(&plan, &mut never_stop));
        if let Err(error) = made {
            let back = reverted::undo_outcome(&attachment.end());
            return Err(Failure::new(Exit::RolledBack, format!("{error}; {back}; nothing was started")));
        }
        if mode != DeliveryMode::default()
            && let Some(set) = render::set_on(&mode, attachment.queues())
        {
            output::say(&format!("quell: {set}"));
        }
        let watch = QueueWatch::from_begin(wanted.pin);
        let placement = Placement::new(wanted);
        Ok(Self { attachment: Some(attachment), placement, watch, details, ..Self::default() })
    }

    /// Follows the started command and its children. `epolls` are the parameters that the preload library sets.
    pub(super) fn set_command(&mut self, command: Pid, epolls: Option<EpollParams>) {
        let Some(attachment) = &mut self.attachment else { return };
        // The caller handles a command that has already exited.
        if let Err(error) = attachment.add_launched(command, epolls)
            && !matches!(error, AttachError::Target(_))
        {
            self.print(&error);
        }
    }

    pub(super) fn has_attachment(&self) -> bool {
        self.attachment.is_some()
    }

    /// Frees stalled queues, and reports when the mode starts or stops being in effect. If queues stall too often, the mode
    /// is reverted, and the command continues without it. Returns whether the command has started another process, or a
    /// device has recreated queues.
    pub(super) fn watch(&mut self) -> bool {
        let Some(attachment) = &mut self.attachment else { return false };
        let QueueEvents { lines, must_end } = match self.unwatched {
            true => QueueEvents::default(),
            false => self.watch.look(attachment, self.seen.as_ref()),
        };
        let has_news = attachment.targets().has_started_another() || self.instances.has_changed(attachment);
        let keeper = attachment.restart_keeper(&mut |path| keeper::start(path));
        self.print_all(lines);
        let must_end = match keeper {
            Ok(restarted) => {
                self.print_all(restarted.map(keeper::restarted));
                must_end
            }
            Err(error) => must_end.or_else(|| Some(error.to_string())),
        };
        let Some(why) = must_end else { return has_news };
        self.give_up(&why);
        false
    }

    fn give_up(&mut self, why: &str) {
        if let Some(attachment) = self.attachment.take() {
            let restored = reverted::undo_outcome(&attachment.end_by(&format!("`quell run`: {why}")));
            self.print(&format!("{why}; {restored}; the command continues with interrupts"));
        }
    }

    /// Applies the mode to new epolls and queues, unless it was reverted. Returns whether to do so again soon.
    pub(super) fn keep_up(&mut self, verifier: &mut Verifier) -> bool {
        let Some(attachment) = &mut self.attachment else { return false };
        match attachment.keep_up(&mut never_stop) {
            Ok(pass) => {
                let look = |snapshot| self.placement.keep_up(&mut *attachment, snapshot, &mut never_stop);
                let placed = pass.snapshot.as_ref().map(look);
                if let Some(snapshot) = &pass.snapshot {
                    verifier.look(snapshot, &attachment.targets().pids());
                }
                let forecast = &mut self.forecast;
                let examined = pass.snapshot.as_ref().filter(|_| !self.unwatched);
                let look = |seen| forecast.look(attachment, seen, !pass.made.is_empty());
                let QueueEvents { lines, must_end } = examined.map(look).unwrap_or_default();
                let missing = self.missing.look(&pass, attachment);
                self.print_all(lines);
                self.print_all(render::pass(&pass, self.details));
                self.print_all(missing);
                self.print_all(placed.iter().flat_map(placement_lines::pass));
                let has_news = !pass.started.is_empty() || !pass.made.is_empty();
                self.seen = pass.snapshot;
                match must_end {
                    Some(why) => {
                        self.give_up(&why);
                        false
                    }
                    None => has_news || placed.is_some_and(|placed| placed.is_changing),
                }
            }
            // The command may just have exited; the next pass finds out.
            Err(AttachError::Target(_) | AttachError::Look(_)) => false,
            Err(error) => {
                self.print(&error);
                false
            }
        }
    }

    /// Ends the settings after the command has exited. Its remaining processes keep the mode until they exit; then the
    /// keeper undoes it.
    pub(super) fn end(mut self) {
        let Some(mut attachment) = self.attachment.take() else { return };
        self.print_all(placement_lines::unverified(&self.placement));
        if self.placement.looked_in_vain() {
            self.print(&"not steered: the command was not observed listening");
        }
        let runs_on = attachment.keep_up(&mut never_stop).is_ok_and(|pass| !pass.over);
        if runs_on {
            let left: Vec<String> =
                attachment.targets().living().map(|target| format!("{} {}", target.name, target.pid)).collect();
            match attachment.leave() {
                Ok(_) => {
                    let keep = agree(&left.len(), "keeps", "keep");
                    output::say(&format!("quell: {} {keep} running with the mode until exit", left.join(", ")));
                }
                Err(error) => self.print(&error),
            }
            return;
        }
        // The history of a host is not that of the slices of an experiment.
        let reverted = match self.unwatched {
            true => attachment.end(),
            false => attachment.end_by("`quell run`: the command exited"),
        };
        self.say_what_was_restored(&reverted);
    }

    /// Undoes the settings because the command was not started.
    pub(super) fn undo(mut self) {
        if let Some(attachment) = self.attachment.take() {
            self.say_what_was_restored(&attachment.end());
        }
    }

    fn say_what_was_restored(&self, reverted: &Result<Reverted, JournalError>) {
        let is_back = reverted.as_ref().is_ok_and(|reverted| reverted.failed.is_empty());
        if !is_back || self.details {
            output::say(&format!("quell: {}", reverted::undo_outcome(reverted)));
        }
    }

    fn print_all(&self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.print(&line));
    }

    fn print(&self, error: &dyn std::fmt::Display) {
        output::say(&format!("quell: {error}"));
    }
}
