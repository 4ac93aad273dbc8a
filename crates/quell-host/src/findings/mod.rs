//! What is wrong with the picture of a host, how bad it is, and what mends it: rules that are pure functions of one
//! picture, or of two that were taken some seconds apart. A value that is not known never makes a finding; where the
//! load is too low to tell, that is said. Reading the picture and changing the host are elsewhere.

mod deferral;
mod device;
mod host;
mod lacking;
mod markdown;
mod mend;
mod node;
mod placement;
mod polling;
mod queues;
mod sharing;
mod suspension;
pub(crate) mod view;

use schemars::JsonSchema;
use serde::Serialize;

use crate::picture::Picture;

pub use markdown::markdown;
pub use mend::Mend;
pub use node::Node;
pub use suspension::READY_FILE_HOLDS_SUSPENSION;
use view::View;

/// The `schema` field of reports as JSON.
pub const SCHEMA: &str = "quell-findings/1";

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It cannot be told at this load, or from here.
    CannotTell,
    /// Worth knowing; nothing suffers by it.
    Note,
    /// Latency, CPU time or settings are lost to it.
    Warning,
    /// Packets stall or are lost, or what was set up has no effect at all.
    Serious,
}

impl Severity {
    /// The word for it.
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

/// One thing that can be wrong, and how it is recognised.
#[derive(Debug)]
pub struct Rule {
    /// Its name, for `--explain` and for scripts.
    pub id: &'static str,
    /// How bad it is at its worst.
    pub severity: Severity,
    /// What is wrong, in a few words.
    pub title: &'static str,
    /// Why it matters, in one sentence.
    pub why: &'static str,
    /// Where that is known from: a file of the kernel, a document, a measurement.
    pub source: &'static str,
    /// How it is seen, what is not claimed, and how it is mended.
    pub explanation: &'static str,
    /// It compares two pictures.
    pub needs_two: bool,
    examine: fn(&View<'_>) -> Vec<Observation>,
}

/// What a rule saw; what it has in common with all others of its kind is the rule's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Observation {
    severity: Severity,
    nodes: Vec<Node>,
    seen: String,
    mend: Vec<Mend>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// The rule's name.
    pub id: &'static str,
    /// How bad it is here.
    pub severity: Severity,
    /// What is wrong, in a few words.
    pub title: &'static str,
    /// What was seen.
    pub seen: String,
    /// Where it was seen.
    pub nodes: Vec<Node>,
    /// Why it matters, in one sentence.
    pub why: &'static str,
    /// Where that is known from.
    pub source: &'static str,
    /// What mends it.
    pub mend: Vec<Mend>,
}

/// What an examination came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The time between the two pictures, nanoseconds; absent with one.
    pub interval_ns: Option<u64>,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// The rules that were not applied because they compare two pictures.
    pub not_applied: Vec<&'static str>,
}

impl Report {
    /// How bad the worst finding is; absent without one.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// All rules, by what they are about.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    let groups: [&[&Rule]; 8] = [
        suspension::RULES,
        queues::RULES,
        polling::RULES,
        sharing::RULES,
        placement::RULES,
        deferral::RULES,
        device::RULES,
        host::RULES,
    ];
    groups.into_iter().flatten().copied().chain(lacking::RULES.iter().copied())
}

/// The rule of this name.
#[must_use]
pub fn rule(id: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.id == id)
}

/// Applies every rule to a picture, and to the one `before`, if there is one of the same boot.
#[must_use]
pub fn examine(now: &Picture, before: Option<&Picture>) -> Report {
    let view = View::new(now, before);
    let (mut findings, mut not_applied) = (Vec::new(), Vec::new());
    for rule in rules() {
        if rule.needs_two && view.interval_ns().is_none() {
            not_applied.push(rule.id);
            continue;
        }
        findings.extend((rule.examine)(&view).into_iter().map(|observation| rule.finding(observation)));
    }
    // A stable sort: within a severity they stay in the order of the rules.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Report { schema: SCHEMA, interval_ns: view.interval_ns(), findings, not_applied }
}

impl Rule {
    fn finding(&self, observation: Observation) -> Finding {
        let Observation { severity, nodes, seen, mend } = observation;
        let Self { id, title, why, source, .. } = *self;
        Finding { id, severity, title, seen, nodes, why, source, mend }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_says_everything() {
        let mut names: Vec<&str> = rules().map(|rule| rule.id).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        for rule in rules() {
            assert!(rule.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", rule.id);
            for text in [rule.why, rule.explanation] {
                assert!(text.ends_with('.'), "{}: {text}", rule.id);
            }
            assert!(!rule.title.ends_with('.') && !rule.source.is_empty(), "{}", rule.id);
        }
    }
}
