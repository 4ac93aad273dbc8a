//! Formats the rules as `docs/findings.md`; a test compares it with the file.

use std::fmt::Write as _;

use super::rules;

#[must_use]
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for rule in rules() {
        let severity = rule.severity.word();
        let snapshots = if rule.needs_two { ", compares two snapshots" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n## `{}`\n\n{} ({severity}{snapshots}).\n\n{}\n\nSource: {}.\n\n{}\n",
            rule.id,
            sentence(rule.title),
            rule.impact,
            rule.source,
            rule.explanation
        );
    }
    text
}

const HEAD: &str = "# What `quell doctor` detects\n\nGenerated from the rules in `crates/quell-host/src/findings`; a test \
                    keeps it current. Unknown values never cause a finding. `cannot tell` means that the load or the \
                    available data do not allow a verdict.\n";

/// Capitalises the title, except for names from the kernel.
fn sentence(title: &str) -> String {
    if title.split(' ').next().is_some_and(|word| word.contains('-')) {
        return title.to_owned();
    }
    let mut letters = title.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
