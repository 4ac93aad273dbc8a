//! The host's part of a launch: the queues have the mode before the command starts, epolls that the preload library does
//! not reach get it while the command runs, connections are steered once it listens, and all of it goes back at the end: by
//! this process, or by the keeper beside it should this process be killed.

use std::ops::ControlFlow;

use quell_host::attach::launch::plan_of_devices;
use quell_host::attach::placement::{Placement, Wanted};
use quell_host::attach::{AttachError, Attachment, EpollsSetBy, Plan, Request, Selection, Targets};
use quell_host::picture::{Scope, take};
use quell_host::settings::values::EpollValues;
use quell_host::transaction::Moment;
use quell_launch::choice::Choice;
use quell_launch::preload_settings::BusyPoll;
use quell_linux::Pid;

use crate::commands::attach::keeper;
use crate::commands::attach::stalls::Stalls;
use crate::commands::picture_scope::not_taken;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, undo_what_killed_runs_left};
use crate::output;
use crate::render::attach::placement as placement_lines;
use crate::render::{launch as render, status};

/// What is set on the host for a command; by default the host stays as it is.
#[derive(Default)]
pub(super) struct Queues {
    attachment: Option<Attachment>,
    placement: Placement,
    stalls: Stalls,
    verbose: bool,
}

/// What would be set, whom it touches, and what cannot be had.
///
/// # Errors
/// When the host cannot be looked at, or a device is not there.
pub(super) fn plan(choice: &Choice) -> Result<Plan, Failure> {
    let (picture, _) = take(&Scope::default()).map_err(|error| not_taken(&error))?;
    let named = choice.devices.as_ref().map(|chosen| chosen.value.as_slice());
    plan_of_devices(&picture, named, &choice.mode.value).map_err(Failure::usage)
}

/// What cannot be had is known before anything is started.
pub(super) fn refuse_what_cannot_be(choice: &Choice, plan: &Plan) -> Result<(), Failure> {
    if plan.impossible.is_empty() {
        return Ok(());
    }
    let (mode, why) = (choice.mode.value, render::impossible(plan));
    Err(Failure::new(Exit::NotSupported, format!("{mode} cannot be had here, so nothing was started:\n{why}")))
}

fn values(epolls: BusyPoll) -> EpollValues {
    EpollValues {
        busy_poll_usecs: epolls.usecs(),
        busy_poll_budget: epolls.budget(),
        prefer_busy_poll: epolls.prefer(),
    }
}

fn nobody_looks_on(_: usize, _: Moment) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

impl Queues {
    /// Sets the queues, and reads them back; says whom else that touches. `follows`: the command needs to be looked at
    /// while it runs, even when the queues are as they should be already; where its workers are `wanted` somewhere, it
    /// does in any case.
    ///
    /// # Errors
    /// When it cannot be done, or not be undone; nothing is left changed.
    pub(super) fn set(choice: &Choice, follows: bool, wanted: Wanted, verbose: bool) -> Result<Self, Failure> {
        let mode = choice.mode.value;
        let follows = follows || wanted != Wanted::default();
        let plan = plan(choice)?;
        refuse_what_cannot_be(choice, &plan)?;
        if !follows && plan.queues().all(|step| step.is_there()) {
            return Ok(Self::default());
        }
        for line in render::whom_it_touches(&plan) {
            output::say(&format!("quell: {line}"));
        }
        let journal = journal();
        // What a killed one left would be taken for the host's own values.
        undo_what_killed_runs_left(&journal).map_err(Failure::refused)?;
        let nobody = Targets::find(Selection::Processes(Vec::new())).map_err(|error| failure(&error.into()))?;
        let request = Request { mode, epolls: EpollsSetBy::Attachment };
        let mut attachment = Attachment::begin(&journal, nobody, request, &mut |path| keeper::start(path))
            .map_err(|error| failure(&error))?;
        if let Err(error) = attachment.make(&plan, &mut nobody_looks_on) {
            let back = status::how_it_went_back(&attachment.end());
            return Err(Failure::new(Exit::RolledBack, format!("{error}; {back}, and nothing was started")));
        }
        let placement = Placement::new(wanted);
        Ok(Self { attachment: Some(attachment), placement, verbose, ..Self::default() })
    }

    /// The command runs: what it and its children make is kept in the mode from now on. `epolls` are the parameters that
    /// the preload library gives its epolls.
    pub(super) fn are_for(&mut self, command: Pid, epolls: Option<BusyPoll>) {
        let Some(attachment) = &mut self.attachment else { return };
        // One that has ended already is waited for in any case.
        if let Err(error) = attachment.is_for(command, epolls.map(values))
            && !matches!(error, AttachError::Target(_))
        {
            self.tell(&error);
        }
    }

    /// Whether the command is to be looked at from time to time.
    pub(super) fn are_followed(&self) -> bool {
        self.attachment.is_some()
    }

    /// Looks at the command, sets what came up, and frees a queue that the command does not come back to. Says whether it
    /// had better be looked at again soon.
    pub(super) fn keep_up(&mut self) -> bool {
        let Some(attachment) = &mut self.attachment else { return false };
        let stalled = self.stalls.look(attachment);
        let is_changing = match attachment.keep_up(&mut nobody_looks_on) {
            Ok(pass) => {
                let look = |picture| self.placement.keep_up(attachment, picture, &mut nobody_looks_on);
                let placed = pass.picture.as_ref().map(look);
                self.say(render::pass(&pass, self.verbose));
                self.say(placed.iter().flat_map(placement_lines::pass));
                placed.is_some_and(|placed| placed.is_changing)
            }
            // It may have ended just now; the next look tells.
            Err(AttachError::Target(_) | AttachError::Look(_)) => false,
            Err(error) => {
                self.tell(&error);
                false
            }
        };
        self.say(stalled);
        is_changing
    }

    /// The command has ended. What it left running keeps the mode; a keeper puts it back when that has ended too.
    pub(super) fn end(mut self) {
        let Some(mut attachment) = self.attachment.take() else { return };
        self.say(placement_lines::untold(&self.placement));
        if self.placement.looked_in_vain() {
            self.tell(&"not steered: the command was not seen to wait for connections");
        }
        let runs_on = attachment.keep_up(&mut nobody_looks_on).is_ok_and(|pass| !pass.over);
        if runs_on {
            let left: Vec<String> =
                attachment.targets().living().map(|target| format!("{} {}", target.name, target.pid)).collect();
            match attachment.leave() {
                Ok(_) => output::say(&format!("quell: {} run on with the mode, until they end", left.join(", "))),
                Err(error) => self.tell(&error),
            }
            return;
        }
        self.put_back(attachment);
    }

    /// The command was not started.
    pub(super) fn undo(mut self) {
        if let Some(attachment) = self.attachment.take() {
            self.put_back(attachment);
        }
    }

    fn put_back(&self, attachment: Attachment) {
        let reverted = attachment.end();
        let is_back = reverted.as_ref().is_ok_and(|reverted| reverted.failed.is_empty());
        if !is_back || self.verbose {
            output::say(&format!("quell: {}", status::how_it_went_back(&reverted)));
        }
    }

    fn say(&self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.tell(&line));
    }

    fn tell(&self, error: &dyn std::fmt::Display) {
        output::say(&format!("quell: {error}"));
    }
}

fn failure(error: &AttachError) -> Failure {
    Failure::new(Exit::KernelRefused, format!("{error}; nothing was changed, and nothing started"))
}
