//! A profile plan as a tree of old → new values by device and queue, with impossible changes; as text and as JSON.

use std::fmt::Write as _;

use quell_change::change::Drift;
use quell_host::attach::owners::CoveredOwner;
use quell_host::findings::Finding;
use quell_host::plan::{ChangeText, ImpossibleSetting, PlannedChange, ProfilePlan, ProfileStep};
use quell_linux::CpuList;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PlanReport<'a> {
    schema: &'static str,
    changes: Vec<ChangeReport<'a>>,
    impossible: Vec<ImpossibleReport<'a>>,
    /// Owners of these queues, some of whose values are not in force while the changes are made.
    covers: &'a [CoveredOwner],
    /// Findings that the changes cause.
    findings: &'a [Finding],
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct ChangeReport<'a> {
    #[serde(flatten)]
    change: &'a PlannedChange,
    wanted_by: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct ImpossibleReport<'a> {
    what: &'a str,
    reason: String,
    wanted_by: String,
}

impl<'a> PlanReport<'a> {
    pub(crate) const SCHEMA: &'static str = "quell-plan/1";

    pub(crate) fn new(plan: &'a ProfilePlan, covers: &'a [CoveredOwner], findings: &'a [Finding]) -> Self {
        let change = |step: &'a ProfileStep| ChangeReport {
            change: &step.change,
            wanted_by: step.wanted_by.as_ref().map(ToString::to_string),
        };
        let impossible = |one: &'a ImpossibleSetting| ImpossibleReport {
            what: &one.what,
            reason: one.message.clone(),
            wanted_by: one.wanted_by.to_string(),
        };
        Self {
            schema: Self::SCHEMA,
            changes: plan.steps.iter().map(change).collect(),
            impossible: plan.impossible.iter().map(impossible).collect(),
            covers,
            findings,
        }
    }
}

/// Output of `quell apply --reassert`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ReassertReport {
    schema: &'static str,
    /// Settings that had drifted. They were set again if they have a current value.
    drifted: Vec<Drift>,
}

impl ReassertReport {
    pub(crate) const SCHEMA: &str = "quell-reassert/1";

    pub(crate) fn new(drifted: Vec<Drift>) -> Self {
        Self { schema: Self::SCHEMA, drifted }
    }
}

struct Line {
    device: Option<String>,
    queues: Vec<u32>,
    text: ChangeText,
}

pub(crate) fn tree(plan: &ProfilePlan) -> String {
    let lines = lines(plan);
    let mut text = String::new();
    let mut device = None;
    for line in &lines {
        if line.device.is_some() && line.device != device {
            let _ = writeln!(text, "{}", line.device.as_deref().unwrap_or_default());
        }
        device.clone_from(&line.device);
        let indent = if line.device.is_some() { "  " } else { "" };
        let queues: CpuList = line.queues.iter().copied().collect();
        let queues = match line.queues.len() {
            0 => String::new(),
            1 => format!("queue {queues} "),
            _ => format!("queues {queues} "),
        };
        let _ = writeln!(text, "{indent}{queues}{}", line.text);
    }
    if !plan.impossible.is_empty() {
        let _ = writeln!(text, "not possible here:\n{}", impossible(plan));
    } else if lines.is_empty() {
        text.push_str("nothing to change\n");
    }
    text
}

fn lines(plan: &ProfilePlan) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut devices: Vec<Option<String>> = Vec::new();
    for step in &plan.steps {
        let (text, device) = (step.change.text(), step.change.device().map(ToString::to_string));
        if !devices.contains(&device) {
            devices.push(device.clone());
        }
        match lines.iter_mut().find(|line| line.device == device && line.text == text && !line.queues.is_empty()) {
            Some(line) => line.queues.extend(step.change.queue()),
            None => lines.push(Line { device, queues: step.change.queue().into_iter().collect(), text }),
        }
    }
    lines.sort_by_key(|line| devices.iter().position(|device| *device == line.device));
    lines
}

pub(crate) fn impossible(plan: &ProfilePlan) -> String {
    let lines = plan.impossible.iter().map(|one| format!("  {}: {} ({})", one.what, one.message, one.wanted_by));
    lines.collect::<Vec<_>>().join("\n")
}

/// `present` introduces the value that others have set: `now`, or `was` after it was set again.
pub(crate) fn drift(drift: &Drift, present: &str) -> String {
    let device = drift.device.as_ref().map(|device| format!("{device} ")).unwrap_or_default();
    let queue = drift.queue.map(|queue| format!("queue {queue} ")).unwrap_or_default();
    let now = match (&drift.now, &drift.missing) {
        (Some(now), _) => format!("{present} {now}"),
        (None, Some(missing)) => format!("missing: {missing}"),
        (None, None) => "not found".to_owned(),
    };
    format!("{device}{queue}{}: {}, {now}", drift.setting, drift.made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_host::plan::{DeviceId, Diff, ProfileStep};
    use quell_linux::Ifindex;

    fn rps(queue: u32, old: &str) -> ProfileStep {
        let device = DeviceId { namespace: 1, ifindex: Ifindex::new(2).unwrap(), name: "eth0".into() };
        let cpus = Diff { old: Some(old.parse().unwrap()), new: Some(CpuList::default()) };
        ProfileStep { change: PlannedChange::RpsCpus { device, queue, cpus }, wanted_by: None }
    }

    #[test]
    fn equal_changes_of_queues_are_one_line() {
        let sysctl = PlannedChange::Sysctl {
            name: "net.core.busy_poll".into(),
            value: Diff { old: Some("50".into()), new: Some("0".into()) },
        };
        let steps = vec![rps(0, "0-3"), rps(1, "0-3"), rps(2, "1"), ProfileStep { change: sysctl, wanted_by: None }];
        let plan = ProfilePlan { steps, ..ProfilePlan::default() };
        let expected =
            "eth0\n  queues 0-1 rps_cpus: 0-3 → none\n  queue 2 rps_cpus: 1 → none\nnet.core.busy_poll: 50 → 0\n";
        assert_eq!(tree(&plan), expected);
    }

    #[test]
    fn a_plan_without_changes_says_so() {
        assert_eq!(tree(&ProfilePlan::default()), "nothing to change\n");
    }
}
