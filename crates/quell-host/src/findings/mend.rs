//! What mends a finding: a command to be typed as it stands, or, where no command can, advice. In another namespace than
//! the reader's a command is one that enters it.

use std::collections::BTreeSet;
use std::fmt;

use quell_linux::{CpuList, NapiId, Pid};
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::Serialize;

use super::view::{View, deferral};
use crate::picture::{Device, Napi};

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

    /// Gives programs the mode that a queue suspends by, so that their epolls poll it; `otherwise` is said where the
    /// values of the queue are no mode's.
    pub(super) fn attach(napi: &Napi, pids: &BTreeSet<Pid>, otherwise: &str) -> Self {
        let Some(mode) = suspending_mode(napi) else { return Self::advice(otherwise) };
        let pids = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        Self::Command(format!("quell attach {mode} {pids}"))
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

/// The mode that a queue with these values has.
fn suspending_mode(napi: &Napi) -> Option<DeliveryMode> {
    let (defer_hard_irqs, gro_flush_timeout_ns) = deferral(napi)?;
    let suspend_ns = napi.irq_suspend_timeout_ns.known()?;
    let (us, ns) = (gro_flush_timeout_ns / 1_000, gro_flush_timeout_ns % 1_000);
    let text = format!("suspend{us}.{ns:03},defer-hard-irqs={defer_hard_irqs},irq-suspend-timeout={suspend_ns}");
    text.parse().ok()
}

/// A name as a shell takes it for one word.
pub(super) fn quoted(name: &str) -> String {
    shell_words::quote(name).into_owned()
}

#[cfg(test)]
mod tests {
    use quell_linux::netdev::NapiThreading;

    use super::*;
    use crate::picture::{Reading, Why};

    fn napi(defer: u32, gro_ns: u64, suspend_ns: u64) -> Napi {
        Napi {
            id: NapiId::from_kernel(9_000).unwrap(),
            irq: Reading::Known(None),
            defer_hard_irqs: Reading::Known(defer),
            gro_flush_timeout_ns: Reading::Known(gro_ns),
            irq_suspend_timeout_ns: Reading::Known(suspend_ns),
            threading: Reading::Known(NapiThreading::Disabled),
            thread: Reading::Known(None),
        }
    }

    fn attached(napi: &Napi) -> String {
        Mend::attach(napi, &[Pid::new(7).unwrap(), Pid::new(8).unwrap()].into(), "otherwise").to_string()
    }

    #[test]
    fn programs_are_given_the_mode_that_their_queue_has() {
        assert_eq!(attached(&napi(100, 20_000, 20_000_000)), "quell attach suspend20 7 8");
        assert_eq!(attached(&napi(10, 20_500, 20_000_000)), "quell attach suspend20.5,defer-hard-irqs=10 7 8");
    }

    #[test]
    fn where_the_values_of_a_queue_are_no_modes_something_else_is_said() {
        assert_eq!(attached(&napi(0, 20_000, 20_000_000)), "otherwise");
        let unknown = Napi { defer_hard_irqs: Reading::unknown(Why::Failed, "no"), ..napi(100, 1, 1) };
        assert_eq!(attached(&unknown), "otherwise");
    }
}
