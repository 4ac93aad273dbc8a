//! `/proc/interrupts`: the number of each interrupt per CPU. Only the name from the driver tells the purpose of an
//! interrupt. Netlink reports its NAPI instance.

use std::collections::BTreeMap;

use super::text::{Line, Malformed, lines, number};
use super::{ProcError, ProcRoot};

/// A line of the file: an IRQ with its number, or an architecture-specific kind (`LOC`, `RES`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptLine {
    /// Label without its colon: the IRQ number or an abbreviation.
    pub label: String,
    /// Counts by CPU. `None` if the line does not have one count for each CPU in the first line. That is the case for
    /// kinds with a single count (`ERR`, `MIS`), and after CPU hotplug during the read.
    pub per_cpu: Option<BTreeMap<u32, u64>>,
    pub total: u64,
    /// Text after the counts: interrupt chip, hardware line and trigger, then the names from the drivers.
    pub description: String,
}

impl InterruptLine {
    /// IRQ number; `None` for architecture-specific kinds.
    #[must_use]
    pub fn irq(&self) -> Option<u32> {
        number(self.label.as_bytes())
    }

    /// Names from the drivers, for example `eth0-TxRx-3`. A shared interrupt has several names, separated by commas.
    /// Two blanks precede the names in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        let last = self.description.rsplit("  ").next();
        last.unwrap_or_default().trim_start()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    pub lines: Vec<InterruptLine>,
}

impl Interrupts {
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

    #[must_use]
    pub fn irq(&self, irq: u32) -> Option<&InterruptLine> {
        self.lines.iter().find(|line| line.irq() == Some(irq))
    }

    /// Line of an architecture-specific kind by its abbreviation: `LOC` counts timer interrupts on x86.
    #[must_use]
    pub fn kind(&self, label: &str) -> Option<&InterruptLine> {
        self.lines.iter().find(|line| line.label == label)
    }
}

/// CPU numbers in the first line, for example `CPU0 CPU1`. After CPU hotplug they need not be contiguous.
pub(super) fn cpu_columns(head: Line<'_>) -> Result<Vec<u32>, Malformed> {
    head.fields()
        .map(|field| {
            let cpu = field.strip_prefix(b"CPU").and_then(number);
            cpu.ok_or_else(|| head.malformed("CPU0 CPU1 …", field))
        })
        .collect()
}

/// Splits a line into its label, without the colon, and the text after it.
pub(super) fn label(line: Line<'_>) -> Result<(String, Line<'_>), Malformed> {
    let Some(colon) = line.bytes.iter().position(|&byte| byte == b':') else {
        return Err(line.malformed("a label and a colon", line.bytes));
    };
    let label = String::from_utf8_lossy(line.bytes[..colon].trim_ascii()).into_owned();
    let rest = Line { number: line.number, bytes: &line.bytes[colon + 1..] };
    Ok((label, rest))
}

/// Counts by CPU; `None` if the number of counts differs from the number of CPUs.
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
    fn counts_belong_to_the_cpus_of_the_first_line() {
        let table = parse(" CPU0  CPU2\n 24:  1  5  IO-APIC   5-edge      eth0-rx-0, eth0-tx-0\n");
        let line = table.irq(24).unwrap();
        assert_eq!(line.per_cpu, Some(BTreeMap::from([(0, 1), (2, 5)])));
        assert_eq!((line.total, line.name()), (6, "eth0-rx-0, eth0-tx-0"));
    }

    #[test]
    fn a_line_with_too_few_or_too_many_counts_has_only_a_total() {
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
