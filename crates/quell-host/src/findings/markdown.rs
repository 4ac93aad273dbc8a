//! Formats the rules as `docs/findings.md`; a test compares it with the file. The page has the cause and the fix of each
//! problem; `quell doctor --explain` also prints its detection and its source.

use std::fmt::Write as _;

use super::rules;

#[must_use]
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for rule in rules() {
        let severity = rule.severity.word();
        let snapshots = if rule.needs_two { ", compares two snapshots" } else { "" };
        let fix = rule.explanation.split_once("Fix: ").map(|(_, fix)| format!(" Fix: {fix}")).unwrap_or_default();
        // Writing to a string cannot fail.
        let title = sentence(rule.title);
        let _ = write!(text, "\n## `{}`\n\n{title} ({severity}{snapshots}). {}{fix}\n", rule.id, rule.impact);
    }
    text
}

const HEAD: &str = "# What `quell doctor` detects\n\n```console\n$ quell doctor --explain nested-epoll    # how it is \
                    detected, thresholds, limits, source in the kernel\n```\n\nGenerated from the rules in \
                    `crates/quell-host/src/findings`. Each has its highest severity. Unknown values never cause a \
                    finding. `cannot tell` means that the load or the available data do not allow a verdict.\n";

/// Capitalises the title, except for names from the kernel.
fn sentence(title: &str) -> String {
    if title.split(' ').next().is_some_and(|word| word.contains('-')) {
        return title.to_owned();
    }
    let mut letters = title.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
