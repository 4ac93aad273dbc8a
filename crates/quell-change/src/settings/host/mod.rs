//! Makes the changes of a plan one by one, and restores values that nobody has changed since. [`crate::change`] decides
//! the changes; [`crate::transaction`] records them first.

mod back;
mod kernel;
mod record;
mod steering;

use quell_linux::ethtool::{ChannelRequest, RingRequest};
use quell_linux::netdev::{device_threading, set_device_threading};
use quell_linux::proc::SysctlName;
use quell_linux::sched;

use super::SettingsError;
use crate::change::{ChangeOutcome, ChannelCounts, Diff, PlannedChange, RingSizes, UndoOutcome};

pub(crate) use back::Value;
pub(crate) use kernel::{HostAccess, KnownContexts, SettingPlace};
pub use record::HostSetting;

/// Makes a change. Repeating it is harmless.
pub(crate) fn make(
    kernel: &HostAccess<'_>,
    contexts: &KnownContexts,
    change: &PlannedChange,
) -> Result<ChangeOutcome, SettingsError> {
    match change {
        PlannedChange::FlowRule { device, matches, action } => {
            steering::make_rule(kernel, contexts, device, matches, action)
        }
        PlannedChange::RssContext { device, context, table } => steering::make_context(kernel, device, context, table),
        value => on_value(kernel, value, Make),
    }
}

pub(crate) fn restore(
    kernel: &HostAccess<'_>,
    contexts: &mut KnownContexts,
    change: &PlannedChange,
    outcome: Option<ChangeOutcome>,
) -> Result<UndoOutcome, SettingsError> {
    let undone = match change {
        PlannedChange::FlowRule { device, matches, action } => {
            steering::undo_rule(kernel, contexts, device, matches, action, outcome)
        }
        PlannedChange::RssContext { device, context, table } => {
            steering::undo_context(kernel, contexts, device, context, table, outcome)
        }
        value => on_value(kernel, value, PutBack { what: value.text().what }),
    };
    undone.or_else(|error| match error.is_absent() {
        // The setting vanished with its device, queue or thread.
        true => Ok(UndoOutcome::AlreadyGone),
        false => Err(error),
    })
}

trait Act {
    type Outcome;

    fn act<T: Value>(
        self,
        diff: &Diff<T>,
        read: impl Fn() -> Result<Option<T>, SettingsError>,
        write: impl Fn(&T) -> Result<(), SettingsError>,
    ) -> Result<Self::Outcome, SettingsError>;
}

struct Make;

impl Act for Make {
    type Outcome = ChangeOutcome;

    fn act<T: Value>(
        self,
        diff: &Diff<T>,
        _: impl Fn() -> Result<Option<T>, SettingsError>,
        write: impl Fn(&T) -> Result<(), SettingsError>,
    ) -> Result<ChangeOutcome, SettingsError> {
        if let Some(new) = &diff.new {
            write(new)?;
        }
        Ok(ChangeOutcome::Made)
    }
}

struct PutBack {
    what: String,
}

impl Act for PutBack {
    type Outcome = UndoOutcome;

    fn act<T: Value>(
        self,
        diff: &Diff<T>,
        read: impl Fn() -> Result<Option<T>, SettingsError>,
        write: impl Fn(&T) -> Result<(), SettingsError>,
    ) -> Result<UndoOutcome, SettingsError> {
        let (Some(old), Some(current)) = (diff.old.as_ref(), read()?) else {
            return Ok(UndoOutcome::AlreadyGone);
        };
        // A recreated queue has the default for values that were not set, or that were set to their previous value.
        let new = diff.new.as_ref().filter(|new| *new != old).unwrap_or(&current);
        let plan = T::back(old, new, &current);
        if let Some(value) = &plan.set {
            write(value)?;
        }
        Ok(match (plan.others, plan.set) {
            (None, None) => UndoOutcome::AlreadyGone,
            (None, Some(_)) => UndoOutcome::Undone,
            (Some(others), set) => {
                let why = format!(
                    "another program has changed {} to {} (the value before Quell was {})",
                    self.what,
                    others.in_words(),
                    old.in_words()
                );
                if set.is_some() { UndoOutcome::Partial(why) } else { UndoOutcome::LeftAlone(why) }
            }
        })
    }
}

/// Returns the applied and the current value as text if they differ. The current value is absent if the object is gone.
/// Skips flow rules and RSS contexts.
pub(crate) fn differs(
    kernel: &HostAccess<'_>,
    change: &PlannedChange,
) -> Result<Option<(String, Option<String>)>, SettingsError> {
    if matches!(change, PlannedChange::FlowRule { .. } | PlannedChange::RssContext { .. }) {
        return Ok(None);
    }
    match on_value(kernel, change, Compare) {
        Err(error) if error.is_absent() => Ok(change.text().new.map(|made| (made, None))),
        compared => compared,
    }
}

struct Compare;

impl Act for Compare {
    type Outcome = Option<(String, Option<String>)>;

    fn act<T: Value>(
        self,
        diff: &Diff<T>,
        read: impl Fn() -> Result<Option<T>, SettingsError>,
        _: impl Fn(&T) -> Result<(), SettingsError>,
    ) -> Result<Self::Outcome, SettingsError> {
        let Some(made) = &diff.new else { return Ok(None) };
        let now = read()?;
        Ok((now.as_ref() != Some(made)).then(|| (made.in_words(), now.map(|now| now.in_words()))))
    }
}

/// Applies `act` to the value of a change. Flow rules and RSS contexts have no value.
fn on_value<A: Act>(kernel: &HostAccess<'_>, change: &PlannedChange, act: A) -> Result<A::Outcome, SettingsError> {
    match change {
        PlannedChange::FlowRule { .. } | PlannedChange::RssContext { .. } => {
            unreachable!("flow rules and RSS contexts have no value")
        }
        PlannedChange::RssTable { device, context, table } => {
            let read = || steering::table(kernel, device, *context);
            act.act(table, read, |table| steering::set_table(kernel, device, *context, table))
        }
        PlannedChange::Feature { device, name, on } => act.act(
            on,
            || Ok(kernel.ethtool()?.features(kernel.index(device)?)?.get(name).map(|feature| feature.active)),
            |on| Ok(kernel.ethtool()?.set_features(kernel.index(device)?, &[(name, *on)]).map(drop)?),
        ),
        PlannedChange::Channels { device, counts } => act.act(
            counts,
            || {
                let now = kernel.ethtool()?.channels(kernel.index(device)?)?;
                let now = ChannelCounts { combined: now.combined_count, rx: now.rx_count, tx: now.tx_count };
                Ok(Some(now.where_present_in(counts)))
            },
            |to| {
                let request = ChannelRequest { rx: to.rx, tx: to.tx, combined: to.combined };
                Ok(kernel.ethtool()?.set_channels(kernel.index(device)?, request)?)
            },
        ),
        PlannedChange::Rings { device, sizes } => act.act(
            sizes,
            || {
                let now = kernel.ethtool()?.rings(kernel.index(device)?)?;
                Ok(Some(RingSizes { rx: now.rx, tx: now.tx }.where_present_in(sizes)))
            },
            |to| Ok(kernel.ethtool()?.set_rings(kernel.index(device)?, RingRequest { rx: to.rx, tx: to.tx })?),
        ),
        PlannedChange::Coalescing { device, values } => act.act(
            values,
            || Ok(Some(back::only(&kernel.ethtool()?.coalescing(kernel.index(device)?)?, values))),
            |values| Ok(kernel.ethtool()?.set_coalescing(kernel.index(device)?, values)?),
        ),
        PlannedChange::QueueCoalescing { device, queue, values } => act.act(
            values,
            || {
                let (mut ethtool, index) = (kernel.ethtool()?, kernel.index(device)?);
                let all = ethtool.coalescing(index)?;
                Ok(Some(back::only(&ethtool.queue_coalescing(index, *queue, &all)?, values)))
            },
            |values| Ok(kernel.ethtool()?.set_queue_coalescing(kernel.index(device)?, *queue, values)?),
        ),
        PlannedChange::DeviceThreading { device, on } => act.act(
            on,
            || Ok(Some(device_threading(kernel.namespace, &kernel.name(device)?)?)),
            |on| Ok(set_device_threading(kernel.namespace, &kernel.name(device)?, *on)?),
        ),
        PlannedChange::Sysctl { name, value } => {
            let sysctl: SysctlName = name.parse()?;
            act.act(
                value,
                || Ok(Some(kernel.namespace.run(|| kernel.proc.sysctl(&sysctl))??)),
                |value| Ok(kernel.namespace.run(|| kernel.proc.set_sysctl(&sysctl, value))??),
            )
        }
        of_queue => on_queue(kernel, of_queue, act),
    }
}

fn on_queue<A: Act>(kernel: &HostAccess<'_>, change: &PlannedChange, act: A) -> Result<A::Outcome, SettingsError> {
    match change {
        PlannedChange::RpsCpus { device, queue, cpus } => act.act(
            cpus,
            || Ok(Some(kernel.sysfs()?.net_class(&kernel.name(device)?).rps_cpus(*queue)?)),
            |cpus| Ok(kernel.sysfs()?.net_class(&kernel.name(device)?).set_rps_cpus(*queue, cpus)?),
        ),
        PlannedChange::XpsCpus { device, queue, cpus } => act.act(
            cpus,
            || Ok(kernel.sysfs()?.net_class(&kernel.name(device)?).xps_cpus(*queue)?),
            |cpus| Ok(kernel.sysfs()?.net_class(&kernel.name(device)?).set_xps_cpus(*queue, cpus)?),
        ),
        PlannedChange::XpsRxqs { device, queue, rx_queues } => act.act(
            rx_queues,
            || Ok(Some(kernel.sysfs()?.net_class(&kernel.name(device)?).xps_rxqs(*queue)?)),
            |queues| Ok(kernel.sysfs()?.net_class(&kernel.name(device)?).set_xps_rxqs(*queue, queues)?),
        ),
        PlannedChange::IrqAffinity { device, queue, irq, cpus } => {
            let irq = || irq.map_or_else(|| kernel.irq(device, *queue), Ok);
            act.act(
                cpus,
                || Ok(Some(kernel.proc.irq_affinity(irq()?)?)),
                |cpus| Ok(kernel.proc.set_irq_affinity(irq()?, cpus)?),
            )
        }
        PlannedChange::ThreadCpus { device, queue, cpus, .. } => act.act(
            cpus,
            || Ok(Some(sched::affinity(kernel.thread(device, *queue)?)?)),
            |cpus| Ok(sched::set_affinity(kernel.thread(device, *queue)?, cpus)?),
        ),
        PlannedChange::ThreadScheduling { device, queue, scheduling, .. } => act.act(
            scheduling,
            || Ok(Some(sched::scheduling(kernel.thread(device, *queue)?)?)),
            |scheduling| Ok(sched::set_scheduling(kernel.thread(device, *queue)?, *scheduling)?),
        ),
        other => unreachable!("not a setting of a queue: {other:?}"),
    }
}
