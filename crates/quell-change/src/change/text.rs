//! Describes a change as text, for `--dry-run` and `status`: object, old value and new value, in the kernel's spelling
//! and units.

use std::fmt;

use quell_linux::CpuList;
use quell_linux::ethtool::{Coalescing, FlowAddresses, FlowMatch, FlowTransport};
use quell_linux::sched::{Policy, Scheduling};
use quell_mode::PartialNapiSettings;

use super::{ChannelCounts, ContextRef, Diff, PlannedChange, PlannedQueue, RingSizes, RuleAction};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeText {
    /// Name of the setting without device and queue: `irq affinity`, `rx-usecs`.
    pub what: String,
    pub old: Option<String>,
    pub new: Option<String>,
}

impl PlannedChange {
    #[must_use]
    pub fn text(&self) -> ChangeText {
        match self {
            Self::FlowRule { matches, action, .. } => {
                words(format!("flow rule {}", packets(matches)), action, rule_action)
            }
            Self::RssContext { context, table, .. } => words(format!("rss context {context}"), table, |t| spread(t)),
            Self::RssTable { context, table, .. } => words(format!("rss context {context}"), table, |t| spread(t)),
            Self::Feature { name, on, .. } => words(name.clone(), on, |on| switch(*on)),
            Self::Channels { counts, .. } => words("channels".to_owned(), counts, channels),
            Self::Rings { sizes, .. } => words("rings".to_owned(), sizes, rings),
            Self::Coalescing { values, .. } | Self::QueueCoalescing { values, .. } => {
                words("coalescing".to_owned(), values, coalescing)
            }
            Self::RpsCpus { cpus, .. } => words("rps_cpus".to_owned(), cpus, cpu_list),
            Self::IrqAffinity { irq: Some(irq), cpus, .. } => words(format!("irq {irq} affinity"), cpus, cpu_list),
            Self::IrqAffinity { irq: None, cpus, .. } => words("irq affinity".to_owned(), cpus, cpu_list),
            Self::XpsCpus { cpus, .. } => words("xps_cpus".to_owned(), cpus, cpu_list),
            Self::XpsRxqs { rx_queues, .. } => words("xps_rxqs".to_owned(), rx_queues, |queues| numbers(queues)),
            Self::DeviceThreading { on, .. } => words("threaded".to_owned(), on, |on| switch(*on)),
            Self::Napi(PlannedQueue { values, .. }) => {
                words("napi".to_owned(), &only_what_differs(values), ToString::to_string)
            }
            Self::ThreadCpus { cpus, .. } => words("thread affinity".to_owned(), cpus, cpu_list),
            Self::ThreadScheduling { scheduling, .. } => words("thread scheduling".to_owned(), scheduling, class),
            Self::Sysctl { name, value } => words(name.clone(), value, Clone::clone),
        }
    }
}

/// Returns the differing settings, or all settings if there is no old value.
fn only_what_differs(values: &Diff<PartialNapiSettings>) -> Diff<PartialNapiSettings> {
    match (&values.old, &values.new) {
        (Some(old), Some(new)) if old != new => Diff { old: Some(old.unlike(new)), new: Some(new.unlike(old)) },
        _ => values.clone(),
    }
}

fn words<T>(what: String, diff: &Diff<T>, text: impl Fn(&T) -> String) -> ChangeText {
    ChangeText { what, old: diff.old.as_ref().map(&text), new: diff.new.as_ref().map(&text) }
}

pub(crate) fn switch(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

pub(crate) fn cpu_list(cpus: &CpuList) -> String {
    if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
}

pub(crate) fn numbers(numbers: &[u32]) -> String {
    cpu_list(&numbers.iter().copied().collect())
}

/// Lists the queues of a table, with a remark if the table does not spread evenly.
fn spread(table: &[u32]) -> String {
    let shares = |queue: u32| table.iter().filter(|one| **one == queue).count();
    let queues: CpuList = table.iter().copied().collect();
    let counts: Vec<usize> = queues.iter().map(shares).collect();
    let is_even = counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0) <= 1;
    format!("queues {queues}{}", if is_even { "" } else { ", unequally" })
}

fn counts<const N: usize>(counts: [(&str, Option<u32>); N]) -> String {
    let known = counts.iter().filter_map(|(name, count)| Some(format!("{name} {}", (*count)?)));
    known.collect::<Vec<_>>().join(", ")
}

pub(crate) fn channels(channels: &ChannelCounts) -> String {
    counts([("combined", channels.combined), ("rx", channels.rx), ("tx", channels.tx)])
}

pub(crate) fn rings(rings: &RingSizes) -> String {
    counts([("rx", rings.rx), ("tx", rings.tx)])
}

pub(crate) fn coalescing(values: &Coalescing) -> String {
    let values = values.iter().map(|(parameter, value)| format!("{parameter} {value}"));
    values.collect::<Vec<_>>().join(", ")
}

pub(crate) fn class(scheduling: &Scheduling) -> String {
    match scheduling.policy {
        Policy::Other { nice: 0 } => "other".to_owned(),
        Policy::Other { nice } => format!("other:{nice}"),
        Policy::Fifo { priority } => format!("fifo:{priority}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn rule_action(action: &RuleAction) -> String {
    match action {
        RuleAction::Queue(queue) => format!("queue {queue}"),
        RuleAction::Context(context) => format!("rss context {context}"),
        RuleAction::Discard => "drop".to_owned(),
    }
}

/// Text such as `tcp4 dst 10.0.0.1/32 dst-port 11211`.
fn packets(matches: &FlowMatch) -> String {
    let (family, source, destination) = match matches.addresses {
        FlowAddresses::V4 { source, destination } => {
            (4, source.map(|a| a.to_string()), destination.map(|a| a.to_string()))
        }
        FlowAddresses::V6 { source, destination } => {
            (6, source.map(|a| a.to_string()), destination.map(|a| a.to_string()))
        }
    };
    let protocol = match matches.transport {
        FlowTransport::Tcp => "tcp",
        FlowTransport::Udp => "udp",
    };
    let parts = [
        ("src", source),
        ("dst", destination),
        ("src-port", matches.source_port.map(|port| port.to_string())),
        ("dst-port", matches.destination_port.map(|port| port.to_string())),
    ];
    let said = parts.into_iter().filter_map(|(name, value)| Some(format!(" {name} {}", value?)));
    format!("{protocol}{family}{}", said.collect::<String>())
}

impl fmt::Display for ContextRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Existing(number) => number.fmt(f),
            Self::Planned(label) => write!(f, "{label} (new)"),
        }
    }
}

impl fmt::Display for ChangeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
        write!(f, "{}: {} → {}", self.what, value(&self.old), value(&self.new))
    }
}
