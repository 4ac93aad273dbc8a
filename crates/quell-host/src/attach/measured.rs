//! Attachments to programs that an experiment switches meanwhile. The experiment is the newest owner of their queues and
//! epolls. The owner of the attachment pauses: it sets nothing, frees no queue and judges nothing until the experiment
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use quell_change::change::Change;
use quell_change::journal::{Journal, Purpose, TargetProgram};
use quell_change::persistent::PersistError;
use quell_change::recovery::is_running;
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_mode::{DeliveryMode, ModeKind};

use super::attached::{Attached, in_use};
use super::error::AttachError;
use crate::attach::{Selection, Targets};
use crate::snapshot::Snapshot;
use crate::switching::SwitchPlan;

/// Attachments to programs that an experiment is about to switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasuredAttachments {
    pub journals: Vec<PathBuf>,
    /// Their mode; absent without attachments.
    pub mode: Option<DeliveryMode>,
    /// Whether one of them steers connections.
    pub steers: bool,
    /// Whether one of them pins workers.
    pub pins: bool,
    /// Their programs.
    pub pids: BTreeSet<Pid>,
}

/// Finds the attachments of programs that an experiment is about to switch.
///
/// # Errors
/// When a program is in use by another experiment, `quell run` or a lab, when an attachment is still being made, has other
/// programs too or polls sockets or io_urings, and when the attachments have different modes.
pub fn measured_attachments(journal: &Journal, targets: &Targets) -> Result<MeasuredAttachments, AttachError> {
    let mut measured = MeasuredAttachments::default();
    for attached in in_use(journal)? {
        let history = &attached.history;
        let Some(target) = history.targets.iter().find(|target| is_one_of(targets, target)) else { continue };
        let refused = || attached.refuses(target.pid);
        let Purpose::Attachment { mode } = *attached.purpose() else { return Err(refused()) };
        if attached.is_in_progress() || polls_sockets(&attached) {
            return Err(refused());
        }
        let others = others(&attached, targets)?;
        if !others.is_empty() {
            return Err(AttachError::AttachedWithOthers {
                pid: target.pid,
                purpose: attached.purpose().clone(),
                others,
            });
        }
        if measured.mode.is_some_and(|other| other != mode) {
            return Err(refused());
        }
        measured.mode = Some(mode);
        measured.steers |= history.steers();
        measured.pins |= history.pins();
        measured.pids.extend(history.targets.iter().map(|target| target.pid));
        measured.journals.push(attached.path);
    }
    Ok(measured)
}

/// Settings that attached programs have below all attachments, as a mode, by PID. Programs whose queues differ, or have
/// settings of no mode, are left out.
#[must_use]
pub fn settings_below(journal: &Journal, attached: &[Attached], snapshot: &Snapshot) -> BTreeMap<Pid, DeliveryMode> {
    // The second one makes NAPI threads a part of the settings.
    let modes = [ModeKind::Base, ModeKind::Threaded].map(DeliveryMode::from);
    let attachments = || attached.iter().filter(|one| matches!(one.purpose(), Purpose::Attachment { .. }));
    let journals = attachments().map(|one| one.path.clone()).collect();
    let all = MeasuredAttachments { journals, ..MeasuredAttachments::default() };
    let of_attachment = |one: &Attached| {
        let runs = |pid: &Pid| snapshot.processes.iter().any(|process| process.pid == *pid);
        let pids: Vec<Pid> = one.history.targets.iter().map(|target| target.pid).filter(runs).collect();
        let targets = Targets::find(Selection::Processes(pids)).ok()?;
        let below = SwitchPlan::new(snapshot, &targets, &modes).setting_without(journal, &all).ok()??;
        Some(targets.pids().into_iter().map(move |pid| (pid, below)))
    };
    attachments().filter_map(of_attachment).flatten().collect()
}

/// Whether busy polling was set on sockets or io_urings, which an experiment cannot switch.
fn polls_sockets(attached: &Attached) -> bool {
    let of_sockets = |change: &Change| matches!(change, Change::SocketsPolling(_) | Change::RingPolling(_));
    attached.history.pending().any(|(_, entry)| of_sockets(&entry.change))
}

/// Programs of the attachment that run and are not among the targets.
pub(super) fn others(attached: &Attached, targets: &Targets) -> Result<Vec<TargetProgram>, AttachError> {
    let proc = ProcRoot::default();
    let boot_id = proc.boot_id().map_err(PersistError::Proc)?;
    let is_other = |target: &&TargetProgram| {
        !is_one_of(targets, target) && is_running(target.pid, target.start_time_ticks, boot_id, &proc)
    };
    Ok(attached.history.targets.iter().filter(is_other).cloned().collect())
}

fn is_one_of(targets: &Targets, target: &TargetProgram) -> bool {
    targets.living().any(|living| living.is_same_process(target))
}
