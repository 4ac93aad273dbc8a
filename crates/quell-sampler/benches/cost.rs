//! Cost of the sampler: run time of its programs, as the kernel accounts it, and CPU time per request with and without
//! it. A request is one datagram that this process sends and receives over a veth pair, so that its CPU time includes the
//! softirqs of both. Rounds with and without the sampler alternate. Needs root.
//!
//! The kernel's accounting is part of the run time. An empty program at the same tracepoint shows how large that part is:
//! its rounds alternate with those of the sampler. clang-14 compiles it, because no other program needs it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its figures, and panics on failure")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use aya::programs::{BtfTracePoint, loaded_programs};
use aya::sys::{Stats, enable_stats};
use aya::{Btf, Ebpf};
use quell_linux::clock;
use quell_linux::event::Trigger;
use quell_linux::netdev::PartialNapiSettings;
use quell_sampler::Sampler;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram};

const ROUNDS: usize = 40;
const REQUESTS: u32 = 5_000;

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
        let owners =
            [("quell top", for_top as Attach), ("quell attach --follow", for_follow), ("the keeper", for_keeper)];
        for (owner, attach) in owners {
            println!("{mode}, programs of {owner}:");
            ratio(&program, || attach(&lab));
            run_time(&program, || attach(&lab));
        }
    }
}

type Attach = fn(&TestLab) -> Sampler;

/// With the programs at timers and softirqs.
fn for_top(lab: &TestLab) -> Sampler {
    let mut sampler = Sampler::attach(Path::new("/sys")).unwrap();
    sampler.select(lab.napis.iter().copied().collect()).unwrap();
    sampler
}

/// The program that counts polls without the clock.
fn for_keeper(lab: &TestLab) -> Sampler {
    Sampler::watching(Path::new("/sys"), lab.napis.iter().copied().collect()).unwrap()
}

/// Only the program at polls.
fn for_follow(lab: &TestLab) -> Sampler {
    Sampler::of(Path::new("/sys"), lab.napis.iter().copied()).unwrap()
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

fn ratio(program: &UdpProgram, attach: impl Fn() -> Sampler) {
    let with_sampler = || {
        let _sampler = attach();
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

/// An empty program at the tracepoint, detached on drop.
fn empty() -> Ebpf {
    let object = std::env::temp_dir().join(format!("quell-empty-{}.o", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/empty.bpf.c");
    let mut clang = Command::new("clang-14");
    assert!(clang.args(["-O2", "-target", "bpfel", "-c", source, "-o"]).arg(&object).status().unwrap().success());
    let mut programs = Ebpf::load(&std::fs::read(&object).unwrap()).unwrap();
    std::fs::remove_file(object).unwrap();
    let program: &mut BtfTracePoint = programs.program_mut(EMPTY).unwrap().try_into().unwrap();
    program.load("napi_poll", &Btf::from_sys_fs().unwrap()).unwrap();
    program.attach().unwrap();
    programs
}

const EMPTY: &str = "quell_empty";

/// Mean run time of each program in nanoseconds per run, with the time that the empty program does not take.
fn run_time(program: &UdpProgram, attach: impl Fn() -> Sampler) {
    let _stats = enable_stats(Stats::RunTime).unwrap();
    let mut rounds: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let of_sampler = || {
            let _sampler = attach();
            requests(program);
            run_times()
        };
        let of_empty = || {
            let _empty = empty();
            requests(program);
            run_times()[EMPTY]
        };
        let (sampler, empty) = match round % 2 {
            0 => (of_sampler(), of_empty()),
            _ => {
                let empty = of_empty();
                (of_sampler(), empty)
            }
        };
        for (name, ns) in sampler {
            rounds.entry(name).or_default().push((ns, ns - empty));
        }
    }
    for (name, rounds) in rounds {
        let (gross, net): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        let ((gross, _), (net, error)) = (mean_and_error(&gross), mean_and_error(&net));
        let half = 2.0 * error;
        println!("  {name}: {gross:.0} ns a run, {net:.1} ± {half:.1} ns (95 %) more than an empty program");
    }
}

/// Run time per run in nanoseconds of each loaded program of this benchmark.
fn run_times() -> BTreeMap<String, f64> {
    let programs = loaded_programs().map(Result::unwrap).filter(|program| program.run_count() > 0);
    let times = programs.filter_map(|program| {
        let name = program.name_as_str().filter(|name| name.starts_with("quell_"))?;
        Some((name.to_owned(), program.run_time().as_nanos() as f64 / program.run_count() as f64))
    });
    times.collect()
}
