//! Diagnoses a host: problems, their severity, and their fixes. The rules are pure functions of one snapshot, or of two
//! snapshots taken some seconds apart. Unknown values never cause a finding. A rule states when the load is too low for
//! a verdict.

mod cpus;
mod deferral;
mod device;
mod fix;
mod host;
mod lacking;
mod management;
mod markdown;
mod missing_queue;
mod node;
mod other_events;
mod owners;
mod placement;
mod polling;
mod queues;
mod setting;
mod sharing;
pub(crate) mod sorting;
mod stalls;
mod starved;
mod stopped;
mod suspension;
pub(crate) mod text;
mod xdp;

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::{NapiId, Pid};
use quell_sampler::QueueSample;
use schemars::JsonSchema;
use serde::Serialize;

use crate::behavior::Behavior;
use crate::snapshot::{Process, Snapshot};

use crate::snapshot::query::SnapshotQuery;
pub(crate) use device::{GRO_OFF_ID, gro_on, lacks_napi};
pub use fix::{Fix, FixText};
pub use markdown::markdown;
pub(crate) use missing_queue::link_up;
pub use missing_queue::{MISSING_QUEUE_ID, add_missing_queues};
pub use node::Node;
pub use polling::WITHOUT_NAPI_ID;
pub(crate) use polling::fix_of_bypass;
pub use queues::{see_the_events, strace_of_waits};
pub use setting::are_owned;
pub use sharing::{EPOLL_MIXES_NAPIS, mixes_queues, observed_to_mix, unpolled_queues};
pub(crate) use sharing::{UDP_KEEPS_FIRST_QUEUE, UDP_ON_SEVERAL_QUEUES, queue_per_udp_socket};
pub(crate) use sorting::{
    CONNECTIONS_THAT_SPREAD, can_be_pinned, can_come_to_mix, expected_device, lacking, modes_without_epolls,
    next_will_mix, receiving_devices, with_the_same_listeners,
};
pub use sorting::{
    LackingCpus, QueuePerEpoll, STEERED, are_attached, are_placed, are_steered, compare_with, cpus_lacking_for_pollers,
    name_mode, one_queue_if_attached, set_instead, stays_when_steered, will_mix, workers_can_be_pinned,
};
pub(crate) use starved::starved_program;
pub use stopped::{StoppedServer, Unreached, check_not_stopped};
pub use text::time_text;

pub const SCHEMA: &str = "quell-findings/1";

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The load or the available data do not allow a verdict.
    CannotTell,
    /// Worth knowing, without a negative effect.
    Note,
    /// Costs latency or CPU time, or loses settings.
    Warning,
    /// Packets stall or are lost, or a configured feature has no effect.
    Serious,
}

impl Severity {
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::CannotTell => "cannot tell",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Serious => "serious",
        }
    }
}

/// A kind of finding.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Rule {
    /// Name of the rule, as findings have it.
    pub id: &'static str,
    /// Highest severity that the rule reports.
    pub severity: Severity,
    /// The problem in a few words.
    pub title: &'static str,
    /// Effect of the problem, in one sentence.
    pub impact: &'static str,
    /// Source: a kernel file, a document or a measurement.
    pub source: &'static str,
    /// Method of detection, its limits, and the fix.
    pub explanation: &'static str,
    /// Whether the rule compares two snapshots.
    pub needs_two: bool,
    /// Whether the rule judges by counters whether the present settings work. It says nothing about planned settings.
    #[serde(skip)]
    judges_settings: bool,
    /// Whether a serious finding means that packets of the program stall. Commands refuse to set what causes it.
    #[serde(skip)]
    pub(crate) stalls: bool,
    #[serde(skip)]
    examine: fn(&SnapshotQuery<'_>) -> Vec<Observation>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Observation {
    severity: Severity,
    nodes: Vec<Node>,
    observed: String,
    fix: Vec<Fix>,
}

/// A detected problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// Rule ID.
    pub id: &'static str,
    /// Severity in this case.
    pub severity: Severity,
    /// The problem in a few words.
    pub title: &'static str,
    /// Observed facts.
    pub observed: String,
    /// Affected objects.
    pub nodes: Vec<Node>,
    /// Effect of the problem, in one sentence.
    pub impact: &'static str,
    /// Source of the rule: a kernel file, a document or a measurement.
    pub source: &'static str,
    /// How to fix the problem.
    pub fix: Vec<Fix>,
}

/// Result of applying the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct FindingsReport {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// Time between the two snapshots in nanoseconds; absent with a single snapshot.
    pub interval_ns: Option<u64>,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
    /// Rules that were skipped because they need two snapshots.
    pub not_applied: Vec<&'static str>,
}

impl FindingsReport {
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Leaves out findings about processes of Quell alone (`quell load`, `respond`, `export`, `top`), except those about
    /// their AF_XDP sockets, which a reader measures by them.
    pub fn leave_out_own(&mut self, now: &Snapshot) {
        self.leave_out(now, Process::is_own, |id| id.starts_with("xdp-"));
    }

    /// Leaves out findings about other processes than these programs alone, except those about the present SSH session.
    pub fn leave_out_others(&mut self, now: &Snapshot, programs: &BTreeSet<Pid>) {
        let is_of_session = |id: &str| id == management::SESSION.id;
        self.leave_out(now, |process| !programs.contains(&process.pid), is_of_session);
    }

    fn leave_out(&mut self, now: &Snapshot, is_out: impl Fn(&Process) -> bool, keeps: impl Fn(&str) -> bool) {
        let out: Vec<&Process> = now.processes.iter().filter(|process| is_out(process)).collect();
        self.findings.retain(|finding| {
            let mut are_out = finding.nodes.iter().filter_map(|node| node.is_of_any(&out)).peekable();
            keeps(finding.id) || are_out.peek().is_none() || !are_out.all(|is_out| is_out)
        });
    }
}

pub fn rules() -> impl Iterator<Item = &'static Rule> {
    let groups: [&[&Rule]; 15] = [
        // Before what can follow from it.
        missing_queue::RULES,
        stopped::RULES,
        stalls::RULES,
        suspension::RULES,
        queues::RULES,
        polling::RULES,
        xdp::RULES,
        sharing::RULES,
        placement::RULES,
        cpus::RULES,
        deferral::RULES,
        device::RULES,
        host::RULES,
        owners::RULES,
        management::RULES,
    ];
    groups.into_iter().flatten().copied().chain(lacking::RULES.iter().copied())
}

#[must_use]
pub fn rule(id: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.id == id)
}

/// Applies every rule to a snapshot. `before` is an earlier snapshot of the same boot, if available.
#[must_use]
pub fn examine(now: &Snapshot, before: Option<&Snapshot>) -> FindingsReport {
    examine_sampled(now, before, &BTreeMap::new())
}

/// The same with the polls of NAPI instances that were sampled between the two snapshots. Rules prefer them to counters.
#[must_use]
pub fn examine_sampled(
    now: &Snapshot,
    before: Option<&Snapshot>,
    polls: &BTreeMap<NapiId, QueueSample>,
) -> FindingsReport {
    examine_observed(now, before, polls, None)
}

#[must_use]
pub fn examine_observed(
    now: &Snapshot,
    before: Option<&Snapshot>,
    polls: &BTreeMap<NapiId, QueueSample>,
    behavior: Option<&Behavior>,
) -> FindingsReport {
    let query = SnapshotQuery::new(now, before).with_polls(polls).with_behavior(behavior);
    let (mut findings, mut not_applied) = (Vec::new(), Vec::new());
    for rule in rules() {
        if rule.needs_two && query.interval_ns().is_none() {
            not_applied.push(rule.id);
            continue;
        }
        findings.extend((rule.examine)(&query).into_iter().map(|observation| rule.finding(&query, observation)));
    }
    // A stable sort keeps the order of the rules within a severity.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    FindingsReport { schema: SCHEMA, interval_ns: query.interval_ns(), findings, not_applied }
}

/// Findings of the rules that predict a stall.
pub(crate) fn stalls(query: &SnapshotQuery<'_>) -> Vec<Finding> {
    let of =
        |rule: &'static Rule| (rule.examine)(query).into_iter().map(|observation| rule.finding(query, observation));
    let applies = |rule: &&'static Rule| {
        rule.stalls && !rule.judges_settings && (!rule.needs_two || query.interval_ns().is_some())
    };
    rules().filter(applies).flat_map(of).collect()
}

/// Findings that a change of the host adds. `after` is `now` with the change; `before` is an earlier snapshot. Counters of
/// the time between `before` and `now` do not show how the changed settings work.
pub(crate) fn added(
    now: &Snapshot,
    after: &Snapshot,
    before: Option<&Snapshot>,
    behavior: Option<&Behavior>,
) -> Vec<Finding> {
    let examine = |snapshot| examine_observed(snapshot, before, &BTreeMap::new(), behavior);
    let there = examine(now).findings;
    let there: BTreeSet<_> = there.iter().map(|known| (known.id, &known.nodes, known.severity)).collect();
    let mut then = examine(after).findings;
    then.retain(|finding| {
        finding.severity > Severity::CannotTell
            && !finding.judges_settings()
            // No mode has an effect on these connections, so that each plan has the finding.
            && (finding.id == polling::WITHOUT_NAPI_ID
                || !there.contains(&(finding.id, &finding.nodes, finding.severity)))
    });
    then
}

/// Number of kinds of findings of a severity: several places with the same problem are one.
#[must_use]
pub fn kinds_of<'a>(severity: Severity, findings: impl Iterator<Item = &'a Finding>) -> usize {
    findings.filter(|finding| finding.severity == severity).map(|finding| finding.id).collect::<BTreeSet<_>>().len()
}

impl Finding {
    /// Whether it concerns queues alone, not the way in which a program waits for them.
    #[must_use]
    pub fn is_about_queues(&self) -> bool {
        !self.nodes.iter().any(|node| matches!(node, Node::Epoll { .. }))
    }

    /// Processes of its epolls.
    pub(crate) fn epoll_pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.nodes.iter().filter_map(|node| match node {
            Node::Epoll { pid, .. } => Some(*pid),
            _ => None,
        })
    }

    /// Whether it is about an epoll of one of these programs.
    #[must_use]
    pub fn has_epoll_of(&self, programs: &BTreeSet<Pid>) -> bool {
        self.epoll_pids().any(|pid| programs.contains(&pid))
    }

    /// Whether an epoll that polls has connections of several queues, of which it polls one.
    #[must_use]
    pub fn leaves_queues_unpolled(&self) -> bool {
        self.id == EPOLL_MIXES_NAPIS && self.severity >= Severity::Warning
    }

    /// Whether a comparison of modes under it means little: it is serious, or no mode has an effect on a good deal of the
    /// packets.
    #[must_use]
    pub fn spoils_comparison(&self) -> bool {
        self.severity == Severity::Serious || self.id == WITHOUT_NAPI_ID && self.severity == Severity::Warning
    }

    /// Whether counters showed how present settings work, which concerns only programs that receive under them.
    pub(crate) fn judges_settings(&self) -> bool {
        rule(self.id).is_some_and(|rule| rule.judges_settings)
    }

    /// Whether the program would stall with these settings. Commands refuse to set them.
    #[must_use]
    pub fn predicts_stall(&self) -> bool {
        self.severity == Severity::Serious && self.is_about_stalls()
    }

    #[must_use]
    pub fn is_about_stalls(&self) -> bool {
        rule(self.id).is_some_and(|rule| rule.stalls)
    }
}

impl Rule {
    fn finding(&self, query: &SnapshotQuery<'_>, observation: Observation) -> Finding {
        let Observation { severity, nodes, observed, fix } = observation;
        let nodes = nodes.into_iter().map(|node| node.in_namespace(query)).collect();
        let Self { id, title, impact, source, .. } = *self;
        Finding { id, severity, title, observed, nodes, impact, source, fix }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_unique_id_and_complete_texts() {
        let mut names: Vec<&str> = rules().map(|rule| rule.id).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        for rule in rules() {
            assert!(rule.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", rule.id);
            for text in [rule.impact, rule.explanation] {
                assert!(text.ends_with('.'), "{}: {text}", rule.id);
            }
            assert!(!rule.title.ends_with('.') && !rule.source.is_empty(), "{}", rule.id);
        }
    }
}
