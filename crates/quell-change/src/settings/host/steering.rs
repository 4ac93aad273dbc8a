//! Creates and deletes flow rules and RSS contexts. The driver assigns their numbers.

use quell_linux::ethtool::{FlowAction, FlowMatch, FlowRule, InstalledFlowRule, RssContextId, RssRequest};

use super::kernel::{HostAccess, KnownContexts};
use crate::change::{ChangeOutcome, ContextRef, DeviceId, Diff, RuleAction, UndoOutcome};
use crate::settings::SettingsError;

pub(super) fn table(
    kernel: &HostAccess<'_>,
    device: &DeviceId,
    context: RssContextId,
) -> Result<Option<Vec<u32>>, SettingsError> {
    Ok(kernel.ethtool()?.rss(kernel.index(device)?, context)?.indirection)
}

pub(super) fn set_table(
    kernel: &HostAccess<'_>,
    device: &DeviceId,
    context: RssContextId,
    table: &[u32],
) -> Result<(), SettingsError> {
    Ok(kernel.ethtool()?.set_rss(kernel.index(device)?, context, &request(table))?)
}

fn request(table: &[u32]) -> RssRequest {
    RssRequest { indirection: Some(table.to_vec()), ..RssRequest::default() }
}

pub(super) fn make_context(
    kernel: &HostAccess<'_>,
    device: &DeviceId,
    context: &ContextRef,
    table: &Diff<Vec<u32>>,
) -> Result<ChangeOutcome, SettingsError> {
    let (mut ethtool, index) = (kernel.ethtool()?, kernel.index(device)?);
    match (&table.new, context) {
        (Some(table), _) => {
            let id = ethtool.create_rss_context(index, &request(table))?;
            Ok(ChangeOutcome::RssContext { id })
        }
        (None, ContextRef::Existing(id)) => {
            ethtool.delete_rss_context(index, *id)?;
            Ok(ChangeOutcome::Made)
        }
        (None, ContextRef::Planned(_)) => Ok(ChangeOutcome::Made),
    }
}

pub(super) fn undo_context(
    kernel: &HostAccess<'_>,
    contexts: &mut KnownContexts,
    device: &DeviceId,
    context: &ContextRef,
    table: &Diff<Vec<u32>>,
    outcome: Option<ChangeOutcome>,
) -> Result<UndoOutcome, SettingsError> {
    let (mut ethtool, index) = (kernel.ethtool()?, kernel.index(device)?);
    match (&table.old, &table.new, context) {
        (Some(old), None, ContextRef::Existing(id)) => {
            if ethtool.rss_contexts(index)?.iter().any(|there| there.id == *id) {
                return Ok(UndoOutcome::AlreadyGone);
            }
            let again = ethtool.create_rss_context(index, &request(old))?;
            contexts.made_again.insert((device.clone(), *id), again);
            Ok(UndoOutcome::Undone)
        }
        (None, Some(new), _) => {
            // Without its ID, a context is identified by its indirection table. Two contexts with the same table are
            // indistinguishable, so neither is changed.
            let there = ethtool.rss_contexts(index)?;
            let is_ours = |id: RssContextId, table: &Option<Vec<u32>>| match outcome {
                Some(ChangeOutcome::RssContext { id: made }) => id == made,
                _ => id != RssContextId::MAIN && table.as_deref() == Some(new.as_slice()),
            };
            let ours: Vec<_> = there.iter().filter(|one| is_ours(one.id, &one.indirection)).collect();
            match ours[..] {
                [] => Ok(UndoOutcome::AlreadyGone),
                [one] => {
                    ethtool.delete_rss_context(index, one.id)?;
                    Ok(UndoOutcome::Undone)
                }
                _ => Ok(UndoOutcome::LeftAlone(format!(
                    "{device} has several RSS contexts with the same table as the one to delete, and the journal \
                     lacks its ID: none was deleted"
                ))),
            }
        }
        _ => Ok(UndoOutcome::AlreadyGone),
    }
}

pub(super) fn make_rule(
    kernel: &HostAccess<'_>,
    contexts: &KnownContexts,
    device: &DeviceId,
    matches: &FlowMatch,
    action: &Diff<RuleAction>,
) -> Result<ChangeOutcome, SettingsError> {
    let (mut ethtool, index) = (kernel.ethtool()?, kernel.index(device)?);
    if let Some(new) = &action.new {
        let rule = FlowRule { matches: *matches, action: resolve(contexts, device, new)? };
        let location = ethtool.add_flow_rule(index, &rule)?;
        return Ok(ChangeOutcome::FlowRule { location });
    }
    if let Some(old) = &action.old {
        let rule = FlowRule { matches: *matches, action: resolve(contexts, device, old)? };
        let there = ethtool.flow_rules(index)?.rules;
        for installed in there.iter().filter(|installed| installed.rule == Some(rule)) {
            ethtool.delete_flow_rule(index, installed.location)?;
        }
    }
    Ok(ChangeOutcome::Made)
}

pub(super) fn undo_rule(
    kernel: &HostAccess<'_>,
    contexts: &KnownContexts,
    device: &DeviceId,
    matches: &FlowMatch,
    action: &Diff<RuleAction>,
    outcome: Option<ChangeOutcome>,
) -> Result<UndoOutcome, SettingsError> {
    let (mut ethtool, index) = (kernel.ethtool()?, kernel.index(device)?);
    let there = ethtool.flow_rules(index)?.rules;
    let is_about_these = |installed: &&InstalledFlowRule| installed.rule.is_some_and(|rule| rule.matches == *matches);
    if let Some(old) = &action.old {
        if there.iter().any(|installed| is_about_these(&installed)) {
            return Ok(UndoOutcome::AlreadyGone);
        }
        let rule = FlowRule { matches: *matches, action: resolve(contexts, device, old)? };
        ethtool.add_flow_rule(index, &rule)?;
        return Ok(UndoOutcome::Undone);
    }
    let is_ours = |installed: &&InstalledFlowRule| match outcome {
        Some(ChangeOutcome::FlowRule { location }) => installed.location == location,
        _ => true,
    };
    match there.iter().filter(is_about_these).find(is_ours) {
        Some(installed) => {
            ethtool.delete_flow_rule(index, installed.location)?;
            Ok(UndoOutcome::Undone)
        }
        None => Ok(UndoOutcome::AlreadyGone),
    }
}

fn resolve(contexts: &KnownContexts, device: &DeviceId, action: &RuleAction) -> Result<FlowAction, SettingsError> {
    Ok(match action {
        RuleAction::Queue(queue) => FlowAction::Queue(*queue),
        RuleAction::Discard => FlowAction::Discard,
        RuleAction::Context(ContextRef::Existing(id)) => {
            let again = contexts.made_again.get(&(device.clone(), *id));
            FlowAction::Context(*again.unwrap_or(id))
        }
        RuleAction::Context(ContextRef::Planned(label)) => {
            let made = contexts.planned.get(&(device.clone(), label.clone()));
            let gone = || SettingsError::Gone { what: format!("RSS context {label} of {device}") };
            FlowAction::Context(*made.ok_or_else(gone)?)
        }
    })
}
