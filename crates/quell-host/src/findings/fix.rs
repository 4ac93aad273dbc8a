//! Fixes of findings: a command to run, or advice if no command helps. A command for another namespace enters that
//! namespace first. Commands of Quell that give a program a mode stay typed until they are printed, because they depend on
//! what the program has.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use quell_linux::netns::entering;
use quell_linux::{CpuList, Pid, shell};
use quell_mode::{DeliveryMode, NapiAttribute, PartialNapiSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::setting::{Setting, SettingObject};
use super::sorting::{can_be_pinned, can_come_to_mix, server_of};
use crate::attach::mode_command::starting;
use crate::attach::owners::QueueSharers;
use crate::attach::{AttachedMode, ModeCommand};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, Process, SnapshotNapi, Thread};

/// Fix of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "FixText")]
pub enum Fix {
    /// Command of another tool, to run as root, unchanged.
    Command(String),
    /// Advice if no command helps.
    Advice(String),
    /// Command of another tool, or advice that contains it, which changes a setting that Quell may have set.
    Set { setting: Box<Setting>, text: FixText },
    Mode {
        /// What to do before it, or what it does, with its punctuation. Empty if the command is all.
        first: String,
        command: ModeCommand,
        /// What helps instead, if anything.
        otherwise: Option<CompareCommand>,
    },
    /// Advice, or a comparison of modes that work without it.
    OrCompare { advice: String, compare: CompareCommand },
}

/// Command that compares modes without suspension on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompareCommand {
    pub(super) server: Pid,
    pub(super) modes: Vec<DeliveryMode>,
    /// Whether `quell run` started the server, whose mode ends with that command only.
    pub(super) is_launched: bool,
    /// Attachments of other programs on its queues.
    pub(super) sharing: Option<QueueSharers>,
    /// Name of its network namespace; absent without one.
    pub(super) netns: Option<String>,
}

impl CompareCommand {
    fn if_attached(self, attached: &AttachedMode) -> Self {
        Self { is_launched: attached.launched, ..self }
    }
}

impl fmt::Display for CompareCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes = self.modes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let compare = "compare modes without suspension:";
        match self.is_launched || self.sharing.as_ref().is_some_and(|sharing| sharing.launched) {
            true => {
                let bench = starting(self.netns.as_deref(), &format!("quell bench --modes {modes}"));
                write!(f, "end what `quell run` started and {compare} `{bench}`")
            }
            false => {
                let bench = QueueSharers::bench(self.sharing.as_ref(), &format!("--pid {}", self.server));
                write!(f, "{compare} `{bench} --modes {modes}`")
            }
        }
    }
}

/// A fix as JSON has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Fix")]
pub enum FixText {
    /// Command to run as root, unchanged.
    Command(String),
    /// Advice if no command helps.
    Advice(String),
}

impl From<Fix> for FixText {
    fn from(fix: Fix) -> Self {
        match fix {
            Fix::Command(text) => Self::Command(text),
            Fix::Advice(text) => Self::Advice(text),
            Fix::Set { text, .. } => text,
            Fix::Mode { first, command, otherwise } => match (first.is_empty() && command.is_complete(), otherwise) {
                (true, None) => Self::Command(command.to_string()),
                (_, Some(otherwise)) => Self::Advice(format!("{first} `{command}`; or {otherwise}")),
                (_, None) => Self::Advice(format!("{first} `{command}`")),
            },
            Fix::OrCompare { advice, compare } => Self::Advice(format!("{advice}, or {compare}")),
        }
    }
}

impl JsonSchema for Fix {
    fn schema_name() -> Cow<'static, str> {
        FixText::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        FixText::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        FixText::json_schema(generator)
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            FixText::Command(text) | FixText::Advice(text) => f.write_str(&text),
        }
    }
}

impl Fix {
    #[must_use]
    pub fn text(&self) -> FixText {
        self.clone().into()
    }

    /// The fix as advice without its command, and the command, if that ends the advice.
    #[must_use]
    pub fn parts(&self) -> (String, Option<String>) {
        match self {
            Self::Mode { first, command, otherwise: None } => {
                (first.trim_end_matches(':').to_owned(), Some(command.to_string()))
            }
            other => (other.to_string(), None),
        }
    }

    /// The fix for a program that has a mode.
    #[must_use]
    pub(crate) fn if_attached(self, attached: &AttachedMode) -> Self {
        match self {
            Self::Mode { mut first, command, otherwise } => {
                let command = command.if_attached(attached);
                if first.is_empty() && command.starts_again() {
                    "start the program again:".clone_into(&mut first);
                }
                let otherwise = otherwise.map(|compare| compare.if_attached(attached));
                Self::Mode { first, command, otherwise }
            }
            Self::OrCompare { advice, compare } => Self::OrCompare { advice, compare: compare.if_attached(attached) },
            other => other,
        }
    }

    /// Lets a command that steers and sets a mode steer only, and set the mode once clients have reconnected.
    pub(super) fn sort_first(&mut self) {
        let Self::Mode { first, command, otherwise } = self else { return };
        if !command.steers || command.attached.is_some() {
            return;
        }
        let base = AttachedMode { steers: true, pins: command.pins, ..AttachedMode::default() };
        let steer = ModeCommand { mode: Some(base.mode), ..command.clone() };
        let then = command.clone().if_attached(&base);
        let otherwise = otherwise.as_ref().map(|otherwise| format!("; or {otherwise}")).unwrap_or_default();
        *self = Self::Advice(format!("{first} `{steer}`; once its clients have reconnected: `{then}`{otherwise}"));
    }

    pub(crate) fn advice(text: impl Into<String>) -> Self {
        Self::Advice(text.into())
    }

    /// A command that works in any network namespace. Its words may contain arbitrary names and are quoted here.
    pub(super) fn command(words: &[&str]) -> Self {
        Self::Command(shell::command(words))
    }

    /// A command in the namespace with this inode.
    pub(super) fn in_namespace(query: &SnapshotQuery<'_>, namespace: u64, words: &[&str]) -> Self {
        let Some(known) = query.now.namespace(namespace).filter(|known| known.is_entered()) else {
            return Self::command(words);
        };
        let inhabitant = query.now.processes.iter().find(|process| process.namespace.known() == Some(&namespace));
        match entering(known.name(), inhabitant.map(|process| process.pid)) {
            Some(enter) => {
                Self::command(&enter.iter().map(String::as_str).chain(words.iter().copied()).collect::<Vec<_>>())
            }
            None => Self::Advice(format!("in network namespace {namespace}: {}", shell::command(words))),
        }
    }

    /// The same fix as a change of this setting.
    pub(super) fn setting_of(self, setting: Setting) -> Self {
        Self::Set { setting: Box::new(setting), text: self.into() }
    }

    /// The same command as advice, because it would undo the fix before it.
    pub(super) fn instead(self, purpose: &str) -> Self {
        let advice = format!("or, {purpose}: `{self}`");
        match self {
            Self::Set { setting, .. } => Self::Set { setting, text: FixText::Advice(advice) },
            _ => Self::Advice(advice),
        }
    }

    pub(super) fn setting(&self) -> Option<&Setting> {
        match self {
            Self::Set { setting, .. } => Some(setting),
            _ => None,
        }
    }

    /// Sets values of a NAPI instance with the kernel's own tool (`tools/net/ynl` in the kernel source).
    pub(super) fn napi_set(
        query: &SnapshotQuery<'_>,
        device: &Device,
        napi: &SnapshotNapi,
        values: &[(NapiAttribute, u64)],
    ) -> Self {
        let wanted: PartialNapiSettings = values.iter().copied().collect();
        let values: String =
            values.iter().map(|(attribute, value)| format!(", \"{}\": {value}", attribute.name())).collect();
        let json = format!("{{\"id\": {}{values}}}", napi.id);
        let words = ["ynl", "--family", "netdev", "--do", "napi-set", "--json", &json];
        let setting = Setting::Napi { id: napi.id, present: napi.settings(), wanted };
        Self::in_namespace(query, device.namespace, &words).setting_of(setting)
    }

    /// Attaches the programs of these processes with the mode that matches the queue's suspension values, so that their
    /// epolls poll the queue. Falls back to `otherwise` if no mode matches.
    pub(super) fn attach(
        query: &SnapshotQuery<'_>,
        napi: &SnapshotNapi,
        processes: &[&Process],
        otherwise: &str,
    ) -> Self {
        let Some(mode) = suspending_mode(napi) else { return Self::advice(otherwise) };
        let programs: BTreeSet<Pid> = processes.iter().map(|process| server_of(query, process).pid).collect();
        let is_placed = processes.iter().any(|process| can_come_to_mix(query, process));
        let can_pin = processes.iter().any(|process| can_be_pinned(query, process));
        let command =
            ModeCommand::of_programs(Some(mode), &programs, query.now).placed(is_placed, is_placed && can_pin);
        Self::Mode { first: String::new(), command, otherwise: None }
    }

    pub(super) fn feature(query: &SnapshotQuery<'_>, device: &Device, feature: Feature, on: bool) -> Self {
        let word = |on| if on { "on" } else { "off" };
        let (short, name) = match feature {
            Feature::Gro => ("gro", "rx-gro"),
            Feature::Tso => ("tso", "tx-tcp-segmentation"),
            Feature::Gso => ("gso", "tx-generic-segmentation"),
        };
        let setting = Setting::host(SettingObject::device(device), name, word(!on), word(on));
        let words = ["ethtool", "-K", &device.name, short, word(on)];
        Self::in_namespace(query, device.namespace, &words).setting_of(setting)
    }

    pub(super) fn pin(thread: &Thread, cpus: &CpuList) -> Self {
        let command = Self::Command(format!("taskset -cp {cpus} {}", thread.tid));
        match thread.affinity.known() {
            Some(now) => {
                command.setting_of(Setting::host(SettingObject::Thread(thread.tid), "thread affinity", now, cpus))
            }
            None => command,
        }
    }

    pub(super) fn irq_affinity(query: &SnapshotQuery<'_>, number: u32, cpus: &CpuList) -> Self {
        let command = Self::Command(format!("echo {cpus} > /proc/irq/{number}/smp_affinity_list"));
        let irq = query.now.irqs.known_elements().find(|irq| irq.number == number);
        match irq.and_then(|irq| irq.affinity.known()) {
            Some(now) => command.setting_of(Setting::host(SettingObject::Irq(number), "irq affinity", now, cpus)),
            None => command,
        }
    }
}

/// Offload of a device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Feature {
    Gro,
    Tso,
    Gso,
}

/// The mode that matches the values of a queue.
fn suspending_mode(napi: &SnapshotNapi) -> Option<DeliveryMode> {
    let (defer_hard_irqs, gro_flush_timeout_ns) = napi.deferral()?;
    let suspend_ns = napi.irq_suspend_timeout_ns.known()?;
    let (us, ns) = (gro_flush_timeout_ns / 1_000, gro_flush_timeout_ns % 1_000);
    let text = format!("suspend{us}.{ns:03},defer-hard-irqs={defer_hard_irqs},irq-suspend-timeout={suspend_ns}");
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use quell_linux::NapiId;
    use quell_linux::netdev::NapiThreading;

    use super::*;
    use crate::snapshot::{Reading, UnknownReason};

    fn napi(defer: u32, gro_ns: u64, suspend_ns: u64) -> SnapshotNapi {
        SnapshotNapi {
            id: NapiId::from_kernel(9_000).unwrap(),
            irq: Reading::Known(None),
            defer_hard_irqs: Reading::Known(defer),
            gro_flush_timeout_ns: Reading::Known(gro_ns),
            irq_suspend_timeout_ns: Reading::Known(suspend_ns),
            threading: Reading::Known(NapiThreading::Disabled),
            thread: Reading::Known(None),
        }
    }

    fn attached(napi: &SnapshotNapi) -> String {
        suspending_mode(napi).map_or_else(|| "otherwise".to_owned(), |mode| mode.to_string())
    }

    #[test]
    fn programs_get_the_mode_of_their_queue() {
        assert_eq!(attached(&napi(100, 20_000, 20_000_000)), "suspend20");
        assert_eq!(attached(&napi(10, 20_500, 20_000_000)), "suspend20.5,defer-hard-irqs=10");
    }

    #[test]
    fn a_command_that_ends_the_advice_can_be_printed_beside_it_and_is_that_of_an_attached_program() {
        let command = || ModeCommand::of_pids(None, [&Pid::new(7).unwrap()]).placed(true, true);
        let fix = |otherwise| Fix::Mode { first: "sort them:".to_owned(), command: command(), otherwise };
        let attached = AttachedMode { mode: "suspend200".parse().unwrap(), ..AttachedMode::default() };
        let again = "quell attach suspend200 7 --steer --pin --follow --take-over --yes";
        assert_eq!(fix(None).if_attached(&attached).parts(), ("sort them".to_owned(), Some(again.to_owned())));
        let modes = vec![DeliveryMode::default(), "defer20".parse().unwrap()];
        let (server, netns) = (Pid::new(7).unwrap(), Some("web".to_owned()));
        let compare = CompareCommand { server, modes, is_launched: false, sharing: None, netns };
        let (text, command) = fix(Some(compare.clone())).parts();
        let comparison = "compare modes without suspension: `quell bench --pid 7 --modes base,defer20`";
        assert!(text.ends_with(&format!("--follow`; or {comparison}")) && command.is_none(), "{text}");
        assert_eq!(fix(None).text(), FixText::Advice(fix(None).to_string()), "MODE is for the reader to choose");
        let launched = AttachedMode { launched: true, ..attached };
        let command = ModeCommand::of_pids(Some("suspend20".parse().unwrap()), [&Pid::new(7).unwrap()]);
        let of_queue = Fix::Mode { first: String::new(), command, otherwise: None };
        assert_eq!(of_queue.text(), FixText::Command("quell attach suspend20 7".to_owned()));
        let again = of_queue.if_attached(&launched).to_string();
        assert_eq!(again, "start the program again: `quell run suspend20 -- COMMAND`");
        let one_queue = Fix::OrCompare { advice: "use one queue".to_owned(), compare: compare.clone() };
        assert_eq!(one_queue.to_string(), format!("use one queue, or {comparison}"));
        let sharers = |same_mode| {
            let sharing =
                QueueSharers { programs: vec![Pid::new(9).unwrap()], same_mode, launched: false, in_force: None };
            CompareCommand { sharing: Some(sharing), ..compare.clone() }.to_string()
        };
        assert!(sharers(true).ends_with(": `quell bench --pid 7,9 --modes base,defer20`"), "{}", sharers(true));
        assert!(sharers(false).ends_with(": `quell detach 9 && quell bench --pid 7 --modes base,defer20`"));
        let again = one_queue.if_attached(&launched).to_string();
        assert!(again.ends_with(": `ip netns exec web quell bench --modes base,defer20 -- COMMAND`"), "{again}");
    }

    #[test]
    fn values_that_match_no_mode_use_the_other_advice() {
        assert_eq!(attached(&napi(0, 20_000, 20_000_000)), "otherwise");
        let unknown =
            SnapshotNapi { defer_hard_irqs: Reading::unknown(UnknownReason::Failed, "no"), ..napi(100, 1, 1) };
        assert_eq!(attached(&unknown), "otherwise");
    }
}
