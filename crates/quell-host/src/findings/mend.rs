//! What mends a finding: a command to be typed as it stands, or, where no command can, advice. In another namespace than
//! the reader's a command is one that enters it.

use std::fmt;

use quell_linux::{CpuList, NapiId, Pid};
use schemars::JsonSchema;
use serde::Serialize;

use super::view::View;
use crate::picture::Device;

/// Something that mends a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mend {
    /// To be typed as it stands, by root.
    Command(String),
    /// What to do where no command does it.
    Advice(String),
}

impl fmt::Display for Mend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(text) | Self::Advice(text) => f.write_str(text),
        }
    }
}

impl Mend {
    pub(super) fn advice(text: impl Into<String>) -> Self {
        Self::Advice(text.into())
    }

    /// A command that means the same in every network namespace.
    pub(super) fn command(text: impl Into<String>) -> Self {
        Self::Command(text.into())
    }

    /// A command in the namespace of this inode.
    pub(super) fn in_namespace(view: &View<'_>, namespace: u64, command: &str) -> Self {
        let known = view.now.namespaces.iter().find(|known| known.inode == namespace);
        let Some(known) = known.filter(|known| !known.is_readers) else { return Self::Command(command.to_owned()) };
        if let Some(name) = known.names.first() {
            let name = quoted(name);
            return Self::Command(format!("ip netns exec {name} {command}"));
        }
        let inhabitant = view.now.processes.iter().find(|process| process.namespace.known() == Some(&namespace));
        match inhabitant {
            Some(process) => Self::Command(format!("nsenter -t {} -n {command}", process.pid)),
            None => Self::Advice(format!("in network namespace {namespace}: {command}")),
        }
    }

    /// Sets a value of a NAPI instance by the kernel's own tool (`tools/net/ynl` of its source).
    pub(super) fn napi_set(view: &View<'_>, device: &Device, id: NapiId, values: &[(&str, u64)]) -> Self {
        let values: String = values.iter().map(|(name, value)| format!(", \"{name}\": {value}")).collect();
        let command = format!("ynl --family netdev --do napi-set --json '{{\"id\": {id}{values}}}'");
        Self::in_namespace(view, device.namespace, &command)
    }

    /// Switches a feature of a device.
    pub(super) fn feature(view: &View<'_>, device: &Device, feature: &str, on: bool) -> Self {
        let word = if on { "on" } else { "off" };
        Self::in_namespace(view, device.namespace, &format!("ethtool -K {} {feature} {word}", quoted(&device.name)))
    }

    /// Pins a thread to CPUs.
    pub(super) fn pin(tid: Pid, cpus: &CpuList) -> Self {
        Self::Command(format!("taskset -cp {cpus} {tid}"))
    }

    /// Sends an interrupt to CPUs.
    pub(super) fn irq_affinity(irq: u32, cpus: &CpuList) -> Self {
        Self::Command(format!("echo {cpus} > /proc/irq/{irq}/smp_affinity_list"))
    }
}

/// A name as a shell takes it for one word.
pub(super) fn quoted(name: &str) -> String {
    shell_words::quote(name).into_owned()
}
