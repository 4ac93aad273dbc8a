//! Cost of the sampler: run time of its programs, as the kernel accounts it, and CPU time per request with and without
//! it. A request is one datagram that this process sends and receives over a veth pair, so that its CPU time includes the
//! softirqs of both. Rounds with and without the sampler alternate. Needs root.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its figures, and panics on failure")]

use std::path::Path;

use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use quell_linux::clock;
use quell_linux::event::Trigger;
use quell_linux::netdev::PartialNapiSettings;
use quell_sampler::Sampler;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram};

const ROUNDS: usize = 40;
const REQUESTS: u32 = 10_000;

fn main() {
    let defer = PartialNapiSettings {
        defer_hard_irqs: Some(1_000_000),
        gro_flush_timeout_ns: Some(20_000),
        irq_suspend_timeout_ns: Some(0),
        threaded: None,
    };
    for (mode, settings) in [("base", PartialNapiSettings::default()), ("defer20", defer)] {
        let Some(lab) = TestLab::raise("smp-cost", 1) else { return };
        let program = UdpProgram::start(&lab, Trigger::Level);
        lab.set_napi(&settings);
        requests(&program);
        println!("{mode}:");
        ratio(&lab, &program);
        run_time(&lab, &program);
    }
}

fn sampler(lab: &TestLab) -> Sampler {
    let mut sampler = Sampler::attach(Path::new("/sys")).unwrap();
    sampler.select(lab.napis.iter().copied().collect()).unwrap();
    sampler
}

/// CPU time per request in nanoseconds.
fn requests(program: &UdpProgram) -> f64 {
    let before_ns = clock::process_cpu_ns();
    for _ in 0..REQUESTS {
        program.send(1);
        assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
    }
    (clock::process_cpu_ns() - before_ns) as f64 / f64::from(REQUESTS)
}

fn ratio(lab: &TestLab, program: &UdpProgram) {
    let with_sampler = || {
        let _sampler = sampler(lab);
        requests(program)
    };
    let mut without = Vec::new();
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let (with, base) = match round % 2 {
            0 => (with_sampler(), requests(program)),
            _ => {
                let base = requests(program);
                (with_sampler(), base)
            }
        };
        without.push(base);
        ratios.push(with / base);
    }
    let (mean, error) = mean_and_error(&ratios.iter().map(|ratio| ratio.ln()).collect::<Vec<_>>());
    let [low, middle, high] = [-2.0, 0.0, 2.0].map(|errors| ((mean + errors * error).exp() - 1.0) * 100.0);
    let (base, _) = mean_and_error(&without);
    println!("  CPU per request: {base:.0} ns; with the sampler {middle:+.2} % ({low:+.2} to {high:+.2}, 95 %)");
}

fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

fn run_time(lab: &TestLab, program: &UdpProgram) {
    let _stats = enable_stats(Stats::RunTime).unwrap();
    let _sampler = sampler(lab);
    (0..5).for_each(|_| {
        requests(program);
    });
    for program in loaded_programs().map(Result::unwrap) {
        if let Some(name) = program.name_as_str().filter(|name| name.starts_with("quell_")) {
            let (ns, runs) = (program.run_time().as_nanos(), program.run_count());
            println!("  {name}: {} ns a run, {runs} runs", ns / u128::from(runs.max(1)));
        }
    }
}
