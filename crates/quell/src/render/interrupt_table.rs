//! Table of the vm lab: interrupts, softirqs and timer interrupts per 1,000 requests, each as a range.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quell_bench::vm::interrupts::{Counted, InterruptResult, Refusal};

use super::number::{self, ABSENT};

const LEGEND: &str = "
  rx/k     interrupts of the server's receive queue, per 1,000 requests
  net_rx/k NET_RX softirqs on the server's CPU, per 1,000 requests
  timer/k  timer interrupts of the server's CPU, per 1,000 requests
  req/s    only indicates the order of the modes: emulation distorts times
";

/// Setup, table, unsupported modes, checks.
#[must_use]
pub(crate) fn render(result: &InterruptResult) -> String {
    let mut text = format!(
        "Linux {} under emulation, {} with interrupt {}; {}\n\n{}\n{LEGEND}\n",
        result.kernel,
        result.driver.as_deref().unwrap_or("a NIC"),
        result.rx_irq,
        result.load,
        grid(result)
    );
    for (mode, Refusal { reason, nearest }) in &result.refused {
        text.push_str(&format!("{mode} is not supported here: {reason}\n"));
        if let Some(nearest) = nearest {
            text.push_str(&format!("  nearest supported mode: {nearest}\n"));
        }
    }
    let left_out = result.trials.len() - result.sound_trials().count();
    if left_out > 0 {
        text.push_str(&format!("{left_out} trials discarded: the emulator had to wait for a CPU of the host\n"));
    }
    if let Some(share) = result.starved_by() {
        let percent = (share * 100.0).round();
        text.push_str(&format!(
            "the emulator waited for a CPU of the host for {percent} % of the time: packets then arrive in bursts, \
             with fewer interrupts and more timers than on an idle host\n"
        ));
    }
    for check in result.checks() {
        let verdict = if check.holds { "ok    " } else { "FAILED" };
        text.push_str(&format!("{verdict} {}: {}\n", check.claim, check.seen));
    }
    text
}

fn grid(result: &InterruptResult) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["", "rx/k", "net_rx/k", "timer/k", "req/s"]);
    for mode in result.modes() {
        let cell = |counted| range(result.range(mode, counted));
        let rates = result.sound_trials().filter(|trial| trial.mode == mode).map(|trial| trial.requests_per_s());
        table.add_row([
            mode.to_owned(),
            cell(Counted::RxInterrupts),
            cell(Counted::NetRxSoftirqs),
            cell(Counted::TimerInterrupts),
            range(lowest_and_highest(rates)),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let right = index > 0;
        column.set_cell_alignment(if right { CellAlignment::Right } else { CellAlignment::Left });
        column.set_padding(if right { (2, 0) } else { (0, 0) });
    }
    table.trim_fmt()
}

fn lowest_and_highest(figures: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    Some((figures.clone().reduce(f64::min)?, figures.reduce(f64::max)?))
}

/// `877–967`, or a single value if both are equal.
fn range(range: Option<(f64, f64)>) -> String {
    let Some((lowest, highest)) = range else { return ABSENT.to_owned() };
    let (lowest, highest) = (number::short(lowest), number::short(highest));
    if lowest == highest { lowest } else { format!("{lowest}–{highest}") }
}
