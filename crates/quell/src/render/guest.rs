//! The part of a guest's result that other subjects do not have: counts per 1,000 requests, nearest alternatives of refused
//! modes, and the checks.

use quell_linux::visible::{self, counted};
use quell_result::experiment::LoadExperiment;
use quell_result::facts::GuestFacts;
use quell_result::figures::{self, Work};
use quell_result::guest_checks as checks;
use quell_stats::Spread;

use super::number::{self, ABSENT};
use super::terminal::Terminal;
use quell_cli::table::{Grid, legend};

const COUNTS: [(&str, &str); 3] =
    [(figures::IRQS, "rx/k"), (figures::NET_RX, "net_rx/k"), (figures::TIMER_IRQS, "timer/k")];

const MEANINGS: [(&str, &str); 4] = [
    ("rx/k", "interrupts of the server's receive queue, per 1,000 requests: median (lowest to highest)"),
    ("net_rx/k", "NET_RX softirqs on the server's CPU, per 1,000 requests"),
    ("timer/k", "timer interrupts of the server's CPU, per 1,000 requests"),
    ("req/s", "only indicates the order of the modes: emulation distorts times"),
];

#[must_use]
pub(crate) fn render(facts: &GuestFacts, experiment: &LoadExperiment) -> String {
    let meanings = legend(&MEANINGS, Terminal::of_stdout());
    let mut text = format!("\n{}\n{meanings}\n", counts(experiment));
    for (mode, nearest) in &facts.nearest {
        text.push_str(&format!("nearest to {}, which is not supported here: {nearest}\n", visible::name(mode)));
    }
    let left_out = experiment.record.slices.len() - checks::sound_slices(experiment).count();
    if left_out > 0 {
        text.push_str(&format!(
            "{} left out above: the emulator had to wait for a CPU of the host\n",
            counted(left_out, "slice")
        ));
    }
    if let Some(share) = checks::starved_by(experiment) {
        let percent = (share * 100.0).round();
        text.push_str(&format!(
            "the emulator waited for a CPU of the host for up to {percent} % of the time: packets then arrive in bursts, \
             with fewer interrupts and more timers than on an idle host\n"
        ));
    }
    for check in checks::checks(experiment) {
        let verdict = if check.holds { "ok    " } else { "FAILED" };
        text.push_str(&format!("{verdict} {}: {}\n", check.claim, check.observed));
    }
    text
}

fn counts(experiment: &LoadExperiment) -> String {
    let headings = COUNTS.iter().map(|(_, heading)| *heading).chain(["req/s"]);
    let mut table = Grid::new(std::iter::once("").chain(headings), 1);
    for treatment in experiment.treatment_names() {
        let arms = experiment.arms_of(treatment);
        let spread = |metric: &str| {
            let slices = checks::sound_slices(experiment).filter(|slice| arms.contains(&slice.arm));
            Spread::of(slices.map(|slice| slice.observation.metric(metric)))
        };
        let count = |(cost, _): &(&str, &str)| range(spread(&Work::Request.name(cost)), 1e3);
        let rate = range(spread(figures::REQUESTS), 1.0);
        let row = std::iter::once(visible::name(treatment).into_owned()).chain(COUNTS.iter().map(count)).chain([rate]);
        table.push(row);
    }
    table.render(Terminal::of_stdout())
}

fn range(spread: Option<Spread>, factor: f64) -> String {
    let Some(Spread { median, min, max, .. }) = spread else { return ABSENT.to_owned() };
    let [median, min, max] = [median, min, max].map(|value| number::short(value * factor));
    if min == max { median } else { format!("{median} ({min} to {max})") }
}
