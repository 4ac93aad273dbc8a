//! `/proc/interrupts`: how often each interrupt came, per CPU. What an interrupt serves is in the
//! driver's words; which NAPI it belongs to is netlink's to say.

use std::collections::BTreeMap;

use super::text::{Line, Malformed, lines, number};
use super::{ProcError, ProcRoot};

/// One line: an interrupt by its number, or one of the architecture's own kinds (`LOC`, `RES`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptLine {
    /// The label without its colon: an IRQ number or an abbreviation.
    pub label: String,
    /// Count of each CPU. `None` when the line has not one count for each CPU of the head line: the
    /// kinds that are counted once for all (`ERR`, `MIS`), and a CPU that came or went meanwhile.
    pub per_cpu: Option<BTreeMap<u32, u64>>,
    /// Sum of the counts.
    pub total: u64,
    /// What follows the counts: chip, line and trigger, then the names the drivers gave.
    pub description: String,
}

impl InterruptLine {
    /// The IRQ number; `None` for the architecture's own kinds.
    #[must_use]
    pub fn irq(&self) -> Option<u32> {
        number(self.label.as_bytes())
    }

    /// The names that drivers gave the interrupt, like `eth0-TxRx-3`; several, separated by a comma,
    /// when they share it. The kernel sets them off by two blanks.
    #[must_use]
    pub fn name(&self) -> &str {
        let last = self.description.rsplit("  ").next();
        last.unwrap_or_default().trim_start()
    }
}

/// All interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The lines, in the kernel's order.
    pub lines: Vec<InterruptLine>,
}

impl Interrupts {
    /// Parses the file.
    ///
    /// # Errors
    /// When the head line does not name CPUs, or a line has no label or no count.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut lines = lines(bytes);
        let Some(head) = lines.next() else {
            return Ok(Self::default());
        };
        let cpus = cpu_columns(head)?;
        let lines = lines
            .filter(|line| line.fields().next().is_some())
            .map(|line| interrupt_line(line, &cpus))
            .collect::<Result<_, _>>()?;
        Ok(Self { lines })
    }

    /// The line of an IRQ number.
    #[must_use]
    pub fn irq(&self, irq: u32) -> Option<&InterruptLine> {
        self.lines.iter().find(|line| line.irq() == Some(irq))
    }

    /// The line of one of the architecture's own kinds, by its abbreviation: `LOC` counts the timer
    /// interrupts on x86.
    #[must_use]
    pub fn kind(&self, label: &str) -> Option<&InterruptLine> {
        self.lines.iter().find(|line| line.label == label)
    }
}

/// The CPU numbers in a head line like `CPU0 CPU1`; with hotplug they need not be contiguous.
pub(super) fn cpu_columns(head: Line<'_>) -> Result<Vec<u32>, Malformed> {
    head.fields()
        .map(|field| {
            let cpu = field.strip_prefix(b"CPU").and_then(number);
            cpu.ok_or_else(|| head.malformed("CPU0 CPU1 …", field))
        })
        .collect()
}

/// A line's label without its colon, and what follows the colon.
pub(super) fn label(line: Line<'_>) -> Result<(String, Line<'_>), Malformed> {
    let Some(colon) = line.bytes.iter().position(|&byte| byte == b':') else {
        return Err(line.malformed("a label and a colon", line.bytes));
    };
    let label = String::from_utf8_lossy(line.bytes[..colon].trim_ascii()).into_owned();
    let rest = Line { number: line.number, bytes: &line.bytes[colon + 1..] };
    Ok((label, rest))
}

/// Counts by CPU, when there is one for each.
pub(super) fn by_cpu(cpus: &[u32], counts: &[u64]) -> Option<BTreeMap<u32, u64>> {
    (cpus.len() == counts.len()).then(|| cpus.iter().copied().zip(counts.iter().copied()).collect())
}

fn interrupt_line(line: Line<'_>, cpus: &[u32]) -> Result<InterruptLine, Malformed> {
    let (label, rest) = label(line)?;
    let mut counts = Vec::with_capacity(cpus.len());
    let mut remaining = rest.bytes.trim_ascii();
    while !remaining.is_empty() {
        let end = remaining.iter().position(u8::is_ascii_whitespace).unwrap_or(remaining.len());
        let Some(count) = number::<u64>(&remaining[..end]) else { break };
        counts.push(count);
        remaining = remaining[end..].trim_ascii_start();
    }
    if counts.is_empty() {
        return Err(rest.malformed("a count after the label", rest.bytes));
    }
    Ok(InterruptLine {
        label,
        per_cpu: by_cpu(cpus, &counts),
        total: counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        description: String::from_utf8_lossy(remaining).into_owned(),
    })
}

impl ProcRoot {
    /// Reads `/proc/interrupts`.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn interrupts(&self) -> Result<Interrupts, ProcError> {
        self.read("interrupts", Interrupts::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Interrupts {
        Interrupts::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn counts_belong_to_the_cpus_of_the_head_line() {
        let table = parse(" CPU0  CPU2\n 24:  1  5  IO-APIC   5-edge      eth0-rx-0, eth0-tx-0\n");
        let line = table.irq(24).unwrap();
        assert_eq!(line.per_cpu, Some(BTreeMap::from([(0, 1), (2, 5)])));
        assert_eq!((line.total, line.name()), (6, "eth0-rx-0, eth0-tx-0"));
    }

    #[test]
    fn a_line_that_does_not_fit_the_head_line_has_a_total_alone() {
        let table = parse(" CPU0  CPU1\nERR:  3\nLOC:  1  2  4  Local timer interrupts\n");
        let err = table.kind("ERR").unwrap();
        assert_eq!((err.per_cpu.as_ref(), err.total), (None, 3));
        let loc = table.kind("LOC").unwrap();
        assert_eq!((loc.per_cpu.as_ref(), loc.total), (None, 7));
    }

    #[test]
    fn a_line_without_a_count_is_an_error() {
        let error = Interrupts::parse(b" CPU0\n 24:  IO-APIC\n").unwrap_err();
        assert_eq!((error.line, error.expected), (2, "a count after the label"));
    }
}
