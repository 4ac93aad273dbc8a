//! Findings as text: most severe first, each kind once with its places and fixes.

use quell_host::findings::{Finding, FindingsReport, Fix, FixText, Node, Rule, Severity, kinds_of};
use quell_linux::visible::counted;

use super::terminal::Terminal;
use crate::output::on_one_line;

/// Maximum number of places shown per kind of finding; `--json` lists all.
const PLACES_MAX: usize = 6;
const NODES_MAX: usize = 6;
const INDENT: &str = "  ";

#[must_use]
pub(crate) fn report(report: &FindingsReport, terminal: Terminal) -> String {
    let mut out = String::new();
    for kind in kinds(&report.findings) {
        out.push_str(&of_kind(&kind, terminal));
        out.push('\n');
    }
    out.push_str(&summary(report, terminal));
    out
}

/// Groups findings by rule and severity, in order of first occurrence.
fn kinds(findings: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut kinds: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        let same = |kind: &&mut Vec<&Finding>| {
            kind.first().is_some_and(|first| first.id == finding.id && first.severity == finding.severity)
        };
        match kinds.iter_mut().find(same) {
            Some(kind) => kind.push(finding),
            None => kinds.push(vec![finding]),
        }
    }
    kinds
}

fn of_kind(kind: &[&Finding], terminal: Terminal) -> String {
    let Some(first) = kind.first() else { return String::new() };
    let word = first.severity.word();
    let link = if first.severity == Severity::CannotTell { " whether" } else { ":" };
    let title = terminal.wrap(&format!("{word}{link} {} [{}]", first.title, first.id));
    let mut out = title.replacen(word, &paint(word, first.severity, terminal), 1) + "\n";
    let matters = first.severity >= Severity::Warning;
    for (number, finding) in kind.iter().enumerate().take(PLACES_MAX) {
        out.push_str(&set(&format!("{}: {}", named(&finding.nodes), finding.observed), "", terminal));
        // A fix of several places in a row stands below the last one.
        let is_shown_later =
            number + 1 < PLACES_MAX && kind.get(number + 1).is_some_and(|next| next.fix == finding.fix);
        if (matters || first.severity == Severity::Note) && !is_shown_later {
            out.push_str(&fixes(&finding.fix, terminal));
        }
    }
    if kind.len() > PLACES_MAX {
        out.push_str(&set(&format!("and {} more; --json lists all", kind.len() - PLACES_MAX), "", terminal));
    }
    if matters {
        out.push_str(&set(first.impact, "why: ", terminal));
    }
    out
}

fn fixes(fixes: &[Fix], terminal: Terminal) -> String {
    let text = |fix: &Fix| match fix.text() {
        // Commands are not wrapped, so that they can be copied. All of them need root.
        FixText::Command(command) => format!("{INDENT}run: {}\n", on_one_line(&command)),
        FixText::Advice(advice) => set(&advice, "fix: ", terminal),
    };
    fixes.iter().map(text).collect()
}

fn set(text: &str, label: &str, terminal: Terminal) -> String {
    let first = format!("{INDENT}{label}");
    let rest = " ".repeat(first.len());
    terminal.fill(&on_one_line(text), &first, &rest) + "\n"
}

fn named(nodes: &[Node]) -> String {
    let mut names: Vec<String> = nodes.iter().take(NODES_MAX).map(Node::to_string).collect();
    if nodes.len() > NODES_MAX {
        names.push(format!("{} more", nodes.len() - NODES_MAX));
    }
    names.join(", ")
}

/// Number of problems, and the commands that say more.
#[must_use]
pub(crate) fn overview(report: &FindingsReport, terminal: Terminal) -> String {
    let fill = |text: &str| terminal.fill(text, "", "") + "\n";
    let found = counts(report).unwrap_or_else(|| "no problem".to_owned());
    format!(
        "\n{}",
        fill(&format!(
            "{found} found on this host: `quell doctor --all` explains them; `quell --help` lists the commands"
        ))
    )
}

fn summary(report: &FindingsReport, terminal: Terminal) -> String {
    let counts = counts(report);
    let explain = if counts.is_some() { "; for details: `quell doctor --explain ID`" } else { "" };
    let found = counts.unwrap_or_else(|| "nothing found".to_owned());
    let rest = match report.not_applied.len() {
        0 => String::new(),
        count => format!("; skipped without a second snapshot: {}", counted(count, "rule")),
    };
    let uses_ynl = |fix: &Fix| fix.to_string().contains("ynl --family");
    let ynl = match report.findings.iter().any(|finding| finding.fix.iter().any(uses_ynl)) {
        true => "; ynl is in the kernel's sources (tools/net/ynl), and a profile sets the same (docs/show.md)",
        false => "",
    };
    terminal.fill(&format!("{found}{rest}{explain}{ynl}"), "", "") + "\n"
}

/// Number of findings of each severity. Absent without findings.
fn counts(report: &FindingsReport) -> Option<String> {
    let severities = [Severity::Serious, Severity::Warning, Severity::Note, Severity::CannotTell];
    let count = |severity| kinds_of(severity, report.findings.iter());
    let numbers = severities.map(|severity| (count(severity), severity.word()));
    let counts: Vec<String> = numbers
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|&(count, word)| match (count, word) {
            (1, _) | (_, "serious" | "cannot tell") => format!("{count} {word}"),
            _ => format!("{count} {word}s"),
        })
        .collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

fn paint(text: &str, severity: Severity, terminal: Terminal) -> String {
    let colour = match severity {
        Severity::Serious => "1;31",
        Severity::Warning => "33",
        Severity::Note => "36",
        Severity::CannotTell => "2",
    };
    if terminal.colour { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
}

#[must_use]
pub(crate) fn explanation(rule: &Rule, terminal: Terminal) -> String {
    let fill = |text: &str| terminal.fill(text, "", "");
    let snapshots = if rule.needs_two { ", from two snapshots" } else { "" };
    format!(
        "{}: {} ({}{}{snapshots})\n\n{}\n\n{}\n\n{}\n",
        rule.id,
        rule.title,
        if rule.severity > Severity::Note { "at most " } else { "" },
        rule.severity.word(),
        fill(rule.impact),
        fill(rule.explanation),
        fill(&format!("Source: {}.", rule.source))
    )
}

#[must_use]
pub(crate) fn list(rules: impl Iterator<Item = &'static Rule>, terminal: Terminal) -> String {
    let rules: Vec<&Rule> = rules.collect();
    let widest = rules.iter().map(|rule| rule.id.len()).max().unwrap_or(0);
    let line = |rule: &&Rule| {
        let columns = format!("{:widest$}  {:7}  ", rule.id, rule.severity.word());
        match terminal.fits(columns.len() + rule.title.len()) {
            true => format!("{columns}{}\n", rule.title),
            false => terminal.fill(rule.title, &columns, &" ".repeat(columns.len())) + "\n",
        }
    };
    rules.iter().map(line).collect()
}
