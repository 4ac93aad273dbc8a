//! Refuses modes under which programs would stall, and ends those that are found while they are set.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quell_host::attach::Attachment;
use quell_host::behavior::{Behavior, observe, polling_programs};
use quell_host::findings::{Finding, FixText, Node, Severity, examine_observed};
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;
use quell_result::top::{IntervalReport, ObservedQueue};

use super::attach::watch::QueueEvents;
use crate::exit::{Exit, Failure};
use crate::render::attach::finding_lines;

const OBSERVED_AGAIN: Duration = Duration::from_secs(30);

/// Fails if one of these findings predicts a stall. `insisting` is what `--accept-stalls` does in this command.
pub(super) fn refuse(findings: &[Finding], insisting: &str) -> Result<(), Failure> {
    match findings.iter().find(|finding| finding.predicts_stall()) {
        Some(finding) => Err(refused(finding, insisting)),
        None => Ok(()),
    }
}

/// The failure because of a predicted stall.
pub(super) fn refused(finding: &Finding, insisting: &str) -> Failure {
    refused_because(finding, &finding.observed, insisting)
}

/// The failure because of an epoll to which several queues deliver.
pub(super) fn refused_mixed(finding: &Finding, insisting: &str) -> Failure {
    refused_because(finding, &format!("{}; data came from several of them", finding.observed), insisting)
}

fn refused_because(Finding { id, title, impact, fix, .. }: &Finding, observed: &str, insisting: &str) -> Failure {
    let advice = fix.iter().find_map(|fix| match fix.text() {
        FixText::Advice(text) => Some(format!("What helps: {text}. ")),
        FixText::Command(_) => None,
    });
    Failure::new(
        Exit::VerifyFailed,
        format!(
            "{id}: {title}: {observed}. {impact} {}Nothing was changed; --accept-stalls {insisting} anyway",
            advice.unwrap_or_default()
        ),
    )
}

/// Findings about stalls under the settings in force. A warning can mean that samples do not decide it.
fn of_stalls(snapshot: &Snapshot, behavior: &Behavior) -> Vec<Finding> {
    let mut findings = examine_observed(snapshot, None, &BTreeMap::new(), Some(behavior)).findings;
    findings.retain(|finding| finding.is_about_stalls() && finding.severity > Severity::Note);
    findings
}

/// Stalls that an observation of these programs predicts, if packets of a queue waited for longer than its timer allows.
pub(super) fn of_long_waits(report: &IntervalReport, snapshot: &Snapshot, pids: &[Pid]) -> Vec<Finding> {
    let waits_long = |queue: &ObservedQueue| {
        let timer_ns = queue.settings.gro_flush_timeout_ns.filter(|ns| *ns > 0);
        let p99_ns = queue.sample.as_ref().and_then(|sample| sample.wait.p99_ns);
        timer_ns.zip(p99_ns).is_some_and(|(timer_ns, p99_ns)| p99_ns > 2 * timer_ns)
    };
    let programs: BTreeSet<Pid> = polling_programs(snapshot).into_iter().filter(|pid| pids.contains(pid)).collect();
    if programs.is_empty() || !report.queues.iter().any(waits_long) {
        return Vec::new();
    }
    let mut findings = of_stalls(snapshot, &observe(snapshot, &programs, true));
    findings.retain(|finding| finding.predicts_stall() && finding.has_epoll_of(&programs));
    findings
}

/// Observes the programs of an attachment while it lives, in a thread of its own, so that passes go on.
#[derive(Default)]
pub(super) struct StallForecast {
    observation: Option<JoinHandle<Behavior>>,
    due: Option<Instant>,
    observed: BTreeSet<Pid>,
    /// Whether the next observation has to count calls.
    must_count: bool,
    /// Whether the latest observation was to count calls.
    counts: bool,
    reported: BTreeSet<(&'static str, Vec<Node>)>,
}

impl StallForecast {
    /// Begins and ends observations. `is_new` says that this pass set the mode on new objects: the waits of their programs
    /// are counted, too. Returns a line for each new finding that predicts a stall. The mode must end once another
    /// observation confirms one, unless stalls are accepted.
    pub(super) fn look(&mut self, attachment: &Attachment, snapshot: &Snapshot, is_new: bool) -> QueueEvents {
        self.must_count |= is_new;
        match self.observation.take_if(|observation| observation.is_finished()) {
            Some(observation) => observation
                .join()
                .map_or_else(|_| QueueEvents::default(), |observed| self.judge(attachment, snapshot, &observed)),
            None => {
                // The snapshot is older than the changes of this pass.
                if self.observation.is_none() && !is_new {
                    self.observation = self.begin(attachment, snapshot);
                }
                QueueEvents::default()
            }
        }
    }

    fn begin(&mut self, attachment: &Attachment, snapshot: &Snapshot) -> Option<JoinHandle<Behavior>> {
        let pids = attachment.targets().pids();
        let programs: BTreeSet<_> = polling_programs(snapshot).intersection(&pids).copied().collect();
        // The preload library of `quell run` sets epolls, too, which no pass reports.
        let counts = self.must_count || !programs.is_subset(&self.observed);
        if programs.is_empty() || !(counts || Instant::now() >= self.due?) {
            return None;
        }
        (self.must_count, self.counts) = (false, counts);
        self.due = Some(Instant::now() + OBSERVED_AGAIN);
        self.observed.clone_from(&programs);
        let snapshot = snapshot.clone();
        Some(thread::spawn(move || observe(&snapshot, &programs, counts)))
    }

    fn judge(&mut self, attachment: &Attachment, snapshot: &Snapshot, behavior: &Behavior) -> QueueEvents {
        let mut findings = of_stalls(snapshot, behavior);
        // Counted calls decide what samples leave open.
        self.must_count |= behavior.not_counted.is_some() && !self.counts && !findings.is_empty();
        findings.retain(Finding::predicts_stall);
        let (programs, mode) = (attachment.targets().pids(), attachment.request().mode);
        let confirmed = findings.iter().find(|finding| {
            finding.has_epoll_of(&programs) && self.reported.contains(&(finding.id, finding.nodes.clone()))
        });
        let reverted = |Finding { id, title, observed, .. }: &Finding| {
            format!("{mode} was reverted because its queues would stall: {id}: {title}: {observed}")
        };
        let must_end = confirmed.filter(|_| !attachment.accepts_stalls()).map(reverted);
        findings.retain(|finding| self.reported.insert((finding.id, finding.nodes.clone())));
        self.must_count |= !findings.is_empty();
        QueueEvents { lines: finding_lines(&findings), must_end }
    }
}
