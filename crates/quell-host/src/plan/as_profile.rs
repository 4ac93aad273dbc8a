//! Prints the settings of a snapshot as a profile that would change nothing. Each setting is one line. A line that
//! [`Plan::of`] would act on or refuse becomes a comment with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use quell_linux::ethtool::{Coalescing, FlowAction, FlowAddresses, FlowRule, FlowTransport, RssContextId};
use quell_linux::sched::{Policy, Scheduling};
use quell_linux::{CpuList, visible};
use quell_mode::profile::{CoalesceKey, Profile, Source};
use quell_mode::{DeliveryMode, NapiSettings, NapiThreading};

use super::device::parameter;
use super::{DeniedFiles, PlanInput, ProfilePlan, cpus};
use crate::snapshot::{Device, Irq, Reading, RxQueue, Snapshot, SnapshotNapi, TxQueue};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AsProfileError {
    #[error("a profile covers one network namespace, but the devices are in {0}: select one with --netns")]
    SeveralNamespaces(usize),
    #[error("the settings cannot be printed as a profile: {0}")]
    NotExpressible(String),
}

pub fn as_profile(snapshot: &Snapshot, is_wanted: impl Fn(&Device) -> bool) -> Result<String, AsProfileError> {
    let devices = snapshot.devices.iter().filter(|device| device.name != "lo" && is_wanted(device));
    let devices: Vec<&Device> = devices.collect();
    let namespaces: BTreeSet<u64> = devices.iter().map(|device| device.namespace).collect();
    if namespaces.len() > 1 {
        return Err(AsProfileError::SeveralNamespaces(namespaces.len()));
    }
    let mut lines = Lines::default();
    for device in devices {
        lines.device(snapshot, device);
    }
    let mut snapshot = snapshot.clone();
    snapshot.devices.retain(|device| namespaces.contains(&device.namespace));
    lines.comment_out_until_the_plan_is_empty(snapshot)?;
    Ok(lines.text())
}

/// Lines of a profile. A line is a table header, a setting, a comment, or empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Lines(Vec<String>);

impl Lines {
    fn push(&mut self, line: impl Into<String>) {
        self.0.push(line.into());
    }

    fn comment(&mut self, text: impl AsRef<str>) {
        self.push(format!("# {}", visible::name(&text.as_ref().replace('\n', " "))));
    }

    fn text(&self) -> String {
        self.0.iter().flat_map(|line| [line, "\n"]).collect()
    }

    /// Returns the value. If it could not be read, adds a comment with the reason.
    fn known<'a, T>(&mut self, what: &str, reading: &'a Reading<T>) -> Option<&'a T> {
        if let Some(unknown) = reading.why_unknown() {
            self.comment(format!("{what}: not read: {}", unknown.message));
        }
        reading.known()
    }

    fn device(&mut self, snapshot: &Snapshot, device: &Device) {
        let table = format!("device.{}", quoted(&device.name));
        self.push("");
        self.push(format!("[{table}]"));
        self.push(format!("name = {}", selects_device(&device.name)));
        if let Some(channels) = self.known("channels", &device.channels) {
            let counts = [("combined", channels.combined_count), ("rx", channels.rx_count), ("tx", channels.tx_count)];
            self.numbers("channels", counts);
        }
        if let Some(rings) = self.known("rings", &device.rings) {
            self.numbers("rings", [("rx", rings.rx), ("tx", rings.tx)]);
        }
        if let Some(features) = self.known("features", &device.features) {
            for (name, feature) in features.iter().filter(|(_, feature)| feature.changeable) {
                self.push(format!("features.{name} = {}", feature.active));
            }
        }
        if let Some(coalescing) = self.known("coalescing", &device.coalescing) {
            self.coalescing(coalescing, |_| true);
        }
        let contexts = self.rss(device);
        self.flow_rules(device, &contexts);
        self.queues(snapshot, device, &table);
    }

    fn numbers<const N: usize>(&mut self, table: &str, numbers: [(&str, Option<u32>); N]) {
        for (key, number) in numbers {
            if let Some(number) = number.filter(|number| *number > 0) {
                self.push(format!("{table}.{key} = {number}"));
            }
        }
    }

    /// Omits a delay that the driver adapts, because it is not a setting.
    fn coalescing(&mut self, coalescing: &Coalescing, is_wanted: impl Fn(CoalesceKey) -> bool) {
        let value = |key| coalescing.get(parameter(key));
        let is_on = |key| value(key).is_some_and(|value| value != 0);
        let is_adapted = |key: &CoalesceKey| match key {
            CoalesceKey::RxUsecs => is_on(CoalesceKey::AdaptiveRx),
            CoalesceKey::TxUsecs => is_on(CoalesceKey::AdaptiveTx),
            _ => false,
        };
        for key in CoalesceKey::ALL.into_iter().filter(|key| is_wanted(*key) && !is_adapted(key)) {
            match value(key) {
                Some(value) if key.is_switch() => self.push(format!("coalescing.{key} = {}", value != 0)),
                Some(value) => self.push(format!("coalescing.{key} = {value}")),
                None => {}
            }
        }
    }

    /// Returns the printed contexts.
    fn rss(&mut self, device: &Device) -> Vec<RssContextId> {
        let mut printed = Vec::new();
        let Some(contexts) = self.known("rss", &device.rss_contexts) else { return printed };
        for context in contexts {
            let label = context_label(context.id);
            let Some(table) = &context.indirection else {
                self.comment(format!("rss.{label}: the driver reports no indirection table"));
                continue;
            };
            let queues: CpuList = table.iter().copied().collect();
            if queues.iter().collect::<Vec<_>>().iter().cycle().take(table.len()).eq(table) {
                self.push(format!("rss.{label}.queues = \"{queues}\""));
                printed.push(context.id);
            } else {
                self.comment(format!(
                    "rss.{label}: its table does not repeat queues {queues} in order, which is the only kind that a profile can express"
                ));
            }
        }
        if printed.len() == contexts.len() {
            self.push("only-these-rss-contexts = true");
        }
        printed
    }

    fn flow_rules(&mut self, device: &Device, contexts: &[RssContextId]) {
        let Some(installed) = self.known("flow", &device.flow_rules) else { return };
        let mut is_complete = true;
        for one in installed {
            match one.rule.and_then(|rule| flow_rule(&rule, contexts)) {
                Some(rule) => self.push(format!("flow.rule{} = {rule}", one.location)),
                None => {
                    is_complete = false;
                    self.comment(format!("flow rule at location {}: a profile cannot express it", one.location));
                }
            }
        }
        if is_complete {
            self.push("only-these-flow-rules = true");
        }
    }

    fn queues(&mut self, snapshot: &Snapshot, device: &Device, table: &str) {
        let rx = self.known("receive queues", &device.rx_queues).map_or(&[][..], Vec::as_slice);
        let tx = self.known("transmit queues", &device.tx_queues).map_or(&[][..], Vec::as_slice);
        let numbers: BTreeSet<u32> = rx.iter().map(|rx| rx.id).chain(tx.iter().map(|tx| tx.id)).collect();
        let mut groups: Vec<QueueGroup> = Vec::new();
        for queue in numbers {
            let rx = rx.iter().find(|rx| rx.id == queue);
            let tx = tx.iter().find(|tx| tx.id == queue);
            let group = QueueGroup::of(snapshot, device, queue, rx, tx);
            match groups.iter_mut().find(|other| other.has_settings_of(&group)) {
                Some(other) => other.append(group),
                None => groups.push(group),
            }
        }
        for (number, QueueGroup { queues, lines, cpus, comments }) in groups.into_iter().enumerate() {
            self.push("");
            self.push(format!("[{table}.queues.group{number}]"));
            self.push(format!("queues = \"{}\"", queues.into_iter().collect::<CpuList>()));
            self.0.extend(lines.0);
            for (key, cpus) in cpus {
                let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
                self.push(format!("{key} = \"{}\"", cpus.join(",")));
            }
            for (comment, queues) in comments {
                self.push(format!("{comment} (queues {})", queues.into_iter().collect::<CpuList>()));
            }
        }
    }

    fn comment_out_until_the_plan_is_empty(&mut self, snapshot: Snapshot) -> Result<(), AsProfileError> {
        let observed = PlanInput {
            snapshot,
            sysctls: BTreeMap::new(),
            host_wide_sysctls: BTreeMap::new(),
            denied: DeniedFiles::default(),
        };
        loop {
            let refused: Vec<(Option<usize>, String)> = match Profile::parse(&[Source::new("", self.text())]) {
                Err(error) => vec![(Some(error.place().line()), error.refusal().to_string())],
                Ok(profile) => {
                    let ProfilePlan { steps, impossible, .. } = ProfilePlan::of(&observed, &profile);
                    let of_step = |step: super::ProfileStep| {
                        let line = step.wanted_by.map(|place| place.line());
                        (line, format!("it would change {}", step.change.text()))
                    };
                    let impossible = impossible.into_iter().map(|one| (Some(one.wanted_by.line()), one.message));
                    steps.into_iter().map(of_step).chain(impossible).collect()
                }
            };
            let Some((_, first)) = refused.first() else { return Ok(()) };
            let mut is_changed = false;
            for (line, why) in &refused {
                is_changed |= line.is_some_and(|line| self.comment_out(line - 1, why));
            }
            if !is_changed {
                return Err(AsProfileError::NotExpressible(first.clone()));
            }
        }
    }

    /// Comments out a setting, or the whole table if the line is its header. Returns whether there was one.
    fn comment_out(&mut self, at: usize, why: &str) -> bool {
        let Some(first) = self.0.get(at) else { return false };
        let is_header = first.starts_with('[');
        let rest = &self.0[at + 1..];
        let others = if is_header { rest.iter().take_while(|line| !line.starts_with('[')).count() } else { 0 };
        let settings = self.0[at..=at + others].iter_mut().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut is_changed = false;
        for line in settings {
            let why = if is_changed { String::new() } else { format!("  # left out: {why}") };
            *line = format!("# {line}{}", visible::name(&why.replace('\n', " ")));
            is_changed = true;
        }
        is_changed
    }
}

#[derive(Debug, Default)]
struct QueueGroup {
    queues: Vec<u32>,
    lines: Lines,
    /// Keys that take one CPU per queue.
    cpus: BTreeMap<&'static str, Vec<u32>>,
    /// Comments, with the queues that they apply to.
    comments: BTreeMap<String, Vec<u32>>,
}

impl QueueGroup {
    fn of(snapshot: &Snapshot, device: &Device, queue: u32, rx: Option<&RxQueue>, tx: Option<&TxQueue>) -> Self {
        let mut group = Self { queues: vec![queue], ..Self::default() };
        let napi = rx.and_then(|rx| rx.napi.known().copied().flatten());
        let napi = napi.and_then(|linked| device.napis.known_elements().find(|napi| napi.id == linked.to));
        let irq = napi.and_then(|napi| napi.irq.known().copied().flatten());
        let irq = irq.and_then(|linked| snapshot.irqs.known_elements().find(|irq| irq.number == linked.to));
        match napi {
            Some(napi) => group.mode(device, napi),
            None if rx.is_some() => group.lines.comment("mode: no NAPI instance"),
            None => {}
        }
        if let Some(rx) = rx {
            // If the coalescing could not be read, a comment of the device gives the reason.
            if let Some(coalescing) = rx.coalescing.known() {
                group.lines.coalescing(coalescing, CoalesceKey::is_per_queue);
            }
            group.rps(rx);
        }
        if let Some(irq) = irq {
            group.cpus(snapshot, "irq-cpus", &irq.affinity);
        }
        group.xps(queue, tx, irq);
        if let Some(thread) = napi.and_then(|napi| napi.thread.known()).and_then(Option::as_ref) {
            group.cpus(snapshot, "thread-cpus", &thread.affinity);
            group.scheduling(&thread.scheduling);
        }
        let comments = group.lines.0.extract_if(.., |line| line.starts_with('#'));
        group.comments = comments.map(|comment| (comment, vec![queue])).collect();
        group
    }

    fn has_settings_of(&self, other: &Self) -> bool {
        self.lines == other.lines && self.cpus.keys().eq(other.cpus.keys())
    }

    fn append(&mut self, other: Self) {
        self.queues.extend(other.queues);
        for (key, cpus) in other.cpus {
            self.cpus.entry(key).or_default().extend(cpus);
        }
        for (comment, queues) in other.comments {
            self.comments.entry(comment).or_default().extend(queues);
        }
    }

    fn mode(&mut self, device: &Device, napi: &SnapshotNapi) {
        let unknown = [
            napi.defer_hard_irqs.why_unknown(),
            napi.gro_flush_timeout_ns.why_unknown(),
            napi.irq_suspend_timeout_ns.why_unknown(),
        ];
        if let Some(unknown) = unknown.into_iter().flatten().next() {
            return self.lines.comment(format!("mode: not read: {}", unknown.message));
        }
        let mut settings = napi.settings();
        // Older kernels use kthreads for all queues of a device or for none.
        let is_device_threaded = device.defaults.threaded.known() == Some(&true);
        let of_device = if is_device_threaded { NapiThreading::Enabled } else { NapiThreading::Disabled };
        settings.threaded.get_or_insert(of_device);
        match settings.complete().and_then(mode_of) {
            Some(mode) => self.lines.push(format!("mode = \"{mode}\"")),
            None => self.lines.comment(format!("mode: no mode has {settings}")),
        }
    }

    fn rps(&mut self, rx: &RxQueue) {
        match self.lines.known("rps", &rx.rps_cpus) {
            Some(cpus) if cpus.is_empty() => self.lines.push("rps = false"),
            Some(cpus) => self.lines.comment(format!("rps: CPUs {cpus}; a profile can only turn it off")),
            None => {}
        }
    }

    fn cpus(&mut self, snapshot: &Snapshot, key: &'static str, affinity: &Reading<CpuList>) {
        let Some(affinity) = self.lines.known(key, affinity) else { return };
        if cpus::default(snapshot).is_ok_and(|default| default == *affinity) {
            return self.lines.push(format!("{key} = \"default\""));
        }
        match affinity.iter().collect::<Vec<_>>()[..] {
            [cpu] => drop(self.cpus.insert(key, vec![cpu])),
            _ => {
                self.lines.comment(format!("{key}: CPUs {affinity}; a profile sets one CPU per queue, or the default"))
            }
        }
    }

    fn xps(&mut self, queue: u32, tx: Option<&TxQueue>, irq: Option<&Irq>) {
        let Some(tx) = tx else { return };
        let cpus = self.lines.known("xps", &tx.xps_cpus);
        let rx_queues = self.lines.known("xps", &tx.xps_rxqs);
        let (Some(cpus), Some(rx_queues)) = (cpus, rx_queues) else { return };
        // With a single queue, the kernel has no CPU list.
        let cpus = cpus.clone().unwrap_or_default();
        let of_irq = irq.and_then(|irq| irq.affinity.known());
        let policy = match (cpus.is_empty(), rx_queues.as_slice()) {
            (_, [rx]) if *rx == queue => "rx-queue",
            (true, []) => "off",
            (false, []) if of_irq == Some(&cpus) => "irq-cpu",
            _ => {
                return self.lines.comment(format!("xps: no policy selects CPUs {cpus}, receive queues {rx_queues:?}"));
            }
        };
        if policy == "rx-queue" && !cpus.is_empty() {
            self.lines
                .comment(format!("xps: CPUs {cpus} for senders without a receive queue; a profile cannot say both"));
        }
        self.lines.push(format!("xps = \"{policy}\""));
    }

    fn scheduling(&mut self, scheduling: &Reading<Scheduling>) {
        let Some(scheduling) = self.lines.known("thread-scheduling", scheduling) else { return };
        match *scheduling {
            Scheduling { policy: Policy::Fifo { priority }, reset_on_fork: false } => {
                self.lines.push(format!("thread-scheduling = \"fifo:{priority}\""));
            }
            Scheduling { policy: Policy::Other { nice }, reset_on_fork: false } => {
                self.lines.push(format!("thread-scheduling = \"other:{nice}\""));
            }
            other => self.lines.comment(format!("thread-scheduling: a profile cannot express {other:?}")),
        }
    }
}

/// The mode with these values whose text is shortest; `None` if the values contradict each other.
fn mode_of(values: NapiSettings) -> Option<DeliveryMode> {
    let NapiSettings { defer_hard_irqs, gro_flush_timeout_ns: gro_ns, irq_suspend_timeout_ns, threaded } = values;
    let gro_usecs = format!("{}.{:03}", gro_ns / 1_000, gro_ns % 1_000);
    let names = [
        format!("base,gro-flush-timeout={gro_ns}"),
        format!("defer{gro_usecs}"),
        format!("suspend{gro_usecs}"),
        format!("threaded,gro-flush-timeout={gro_ns}"),
        format!("threadedbusy,gro-flush-timeout={gro_ns}"),
    ];
    let threaded = threaded.kernel_value();
    let modes = names.into_iter().filter_map(|name| {
        let text = format!(
            "{name},defer-hard-irqs={defer_hard_irqs},irq-suspend-timeout={irq_suspend_timeout_ns},threaded={threaded}"
        );
        text.parse::<DeliveryMode>().ok()
    });
    modes.min_by_key(|mode| mode.to_string().len())
}

fn context_label(context: RssContextId) -> String {
    if context == RssContextId::MAIN { "main".to_owned() } else { format!("context{}", context.get()) }
}

/// `None` for a rule that a profile cannot express.
fn flow_rule(rule: &FlowRule, contexts: &[RssContextId]) -> Option<String> {
    let matches = &rule.matches;
    let (family, destination, is_host) = match matches.addresses {
        FlowAddresses::V4 { source: None, destination } => {
            let address = destination.map(|prefix| prefix.address().to_string());
            ("ipv4", address, destination.is_none_or(|prefix| prefix.bits() == 32))
        }
        FlowAddresses::V6 { source: None, destination } => {
            let address = destination.map(|prefix| prefix.address().to_string());
            ("ipv6", address, destination.is_none_or(|prefix| prefix.bits() == 128))
        }
        _ => return None,
    };
    let protocol = match matches.transport {
        FlowTransport::Tcp => "tcp",
        FlowTransport::Udp => "udp",
    };
    let mut text = format!("{{ protocol = \"{protocol}\", family = \"{family}\"");
    if !is_host || matches.source_port.is_some() || (matches.destination_port.is_none() && destination.is_none()) {
        return None;
    }
    // Writing to a string cannot fail.
    if let Some(port) = matches.destination_port {
        let _ = write!(text, ", port = {port}");
    }
    if let Some(destination) = destination {
        let _ = write!(text, ", address = \"{destination}\"");
    }
    let _ = match rule.action {
        FlowAction::Queue(queue) => write!(text, ", to-queue = {queue} }}"),
        FlowAction::Context(context) if context != RssContextId::MAIN && contexts.contains(&context) => {
            write!(text, ", to-rss = \"{}\" }}", context_label(context))
        }
        FlowAction::Context(_) | FlowAction::Discard => return None,
    };
    Some(text)
}

/// A basic string of TOML.
/// Value of the key `name` that selects exactly the device with this name, as TOML.
#[must_use]
pub fn selects_device(name: &str) -> String {
    quoted(&glob::Pattern::escape(name))
}

fn quoted(text: &str) -> String {
    let escape = |letter: char| match letter {
        '"' | '\\' => format!("\\{letter}"),
        ' '..='~' => letter.to_string(),
        // Printed as it is, some of these would act on the terminal.
        _ => format!("\\U{:08X}", u32::from(letter)),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(defer_hard_irqs: u32, gro_us: u64, suspend_ns: u64, threaded: u32) -> Option<String> {
        let threaded = quell_mode::Threaded::from_kernel_value(threaded).unwrap();
        let values = NapiSettings {
            defer_hard_irqs,
            gro_flush_timeout_ns: gro_us * 1_000,
            irq_suspend_timeout_ns: suspend_ns,
            threaded,
        };
        mode_of(values).map(|mode| mode.to_string())
    }

    #[test]
    fn the_shortest_mode_with_the_values_is_chosen() {
        assert_eq!(mode(0, 0, 0, 0).as_deref(), Some("base"));
        assert_eq!(mode(100, 20, 0, 0).as_deref(), Some("defer20"));
        assert_eq!(mode(100, 20, 20_000_000, 0).as_deref(), Some("suspend20"));
        assert_eq!(mode(7, 20, 5_000, 0).as_deref(), Some("suspend20,defer-hard-irqs=7,irq-suspend-timeout=5us"));
        assert_eq!(mode(0, 0, 0, 1).as_deref(), Some("threaded"));
        assert_eq!(mode(5, 0, 0, 0).as_deref(), Some("base,defer-hard-irqs=5"));
    }

    #[test]
    fn values_that_no_mode_has_are_not_made_up() {
        assert_eq!(mode(0, 0, 20_000_000, 0), None, "suspension without deferral");
    }

    #[test]
    fn any_name_is_a_string_of_toml() {
        assert_eq!(quoted("eth0"), r#""eth0""#);
        assert_eq!(quoted("a\"\\\u{1b}\u{202e}"), r#""a\"\\\U0000001B\U0000202E""#);
    }

    fn lines(text: &str) -> Lines {
        Lines(text.lines().map(ToOwned::to_owned).collect())
    }

    #[test]
    fn a_refused_setting_becomes_a_comment_once() {
        let mut profile = lines("[device.a]\nname = \"a\"\nrings.rx = 8");
        assert!(profile.comment_out(2, "a driver\nrefuses it"));
        assert_eq!(profile.0[2], "# rings.rx = 8  # left out: a driver refuses it");
        let mut hostile = lines("rings.rx = 8");
        assert!(hostile.comment_out(0, "`a\u{1b}[31m` is refused"));
        assert!(hostile.0[0].ends_with(r"# left out: `a\u{1b}[31m` is refused"), "{}", hostile.0[0]);
        assert!(!profile.comment_out(2, "again") && !profile.comment_out(3, "no such line"));
    }

    #[test]
    fn a_refused_header_takes_its_table_along() {
        let mut profile = lines("[device.a]\n# a\n\n[device.a.queues.b]\nqueues = \"3\"\n\n[device.c]");
        assert!(profile.comment_out(3, "no queue 3"));
        let expected =
            "[device.a]\n# a\n\n# [device.a.queues.b]  # left out: no queue 3\n# queues = \"3\"\n\n[device.c]";
        assert_eq!(profile, lines(expected));
    }
}
