//! Records the noise of this machine: CPU time per request and latency of memcached in the veth lab, under a constant
//! mode. `cargo bench -p quell-experiment --bench method` replays the recordings. Needs root and memcached.
//!
//! setsid --wait cargo bench -p quell-subject --bench record_noise -- DIRECTORY [SECONDS-PER-RECORDING [NAME]]
//!
//! The lab has a higher priority than other sessions, so other programs disturb it little. In recordings named
//! `beside`, a thread of the same priority on each CPU spins for 1 ms and sleeps for 4 ms on average, at random. In
//! recordings named `builds`, the lab has the same priority as compilers that run at the same time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{CPUS, MemcachedLab, cpu_ns_per_request};
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, Policy, Scheduling};
use quell_linux::{CpuList, Pid};
use quell_load::{Distribution, LoadReport, Schedule};
use quell_mode::DeliveryMode;
use quell_subject::counters::{CpuUse, TrialCounters};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Recordings: name, mode, requests per second, and the other programs on the lab's CPUs.
const RECORDINGS: [(&str, &str, f64, Company); 7] = [
    ("base-40k", "base", 40_000.0, Company::Quiet),
    ("base-40k-beside", "base", 40_000.0, Company::OtherProgram),
    ("base-20k", "base", 20_000.0, Company::Quiet),
    ("base-20k-beside", "base", 20_000.0, Company::OtherProgram),
    ("suspend200-40k", "suspend200", 40_000.0, Company::Quiet),
    ("suspend200-20k", "suspend200", 20_000.0, Company::Quiet),
    ("base-20k-builds", "base", 20_000.0, Company::Builds),
];

#[derive(Clone, Copy, PartialEq)]
enum Company {
    Quiet,
    /// A program that uses 20 % of each CPU.
    OtherProgram,
    /// All other programs of this machine, at the same priority as the lab.
    Builds,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let directory = PathBuf::from(arguments.first().map_or("noise", |argument| argument));
    let seconds = arguments.get(1).map_or(120, |seconds| seconds.parse().unwrap());
    std::fs::create_dir_all(&directory).unwrap();
    for (name, mode, rate_per_s, company) in RECORDINGS {
        if arguments.get(2).is_none_or(|wanted| wanted == name) {
            let text = record(&mode.parse().unwrap(), rate_per_s, company, Duration::from_secs(seconds));
            write(&directory, name, &text);
        }
    }
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name).with_extension("csv");
    std::fs::write(&path, text).unwrap();
    println!("{}: {} slices", path.display(), text.lines().count() - 1);
}

/// Measures one recording as CSV, one line per slice: CPU time of the server per request in ns, CPU share of other
/// programs in thousandths, number of requests, and latency quantiles in tenths of a µs.
fn record(mode: &DeliveryMode, rate_per_s: f64, company: Company, time: Duration) -> String {
    let mut lab = MemcachedLab::raise(mode);
    if company != Company::Builds {
        let of_server = lab.server.processes().unwrap().into_iter();
        let threads = of_server.flat_map(|pid| ProcRoot::default().process(pid).tids().unwrap());
        threads.chain(lab.lab.server.napi_threads.iter().copied()).for_each(prioritise);
        // The generator gets no real-time priority: it spins, so the kernel would throttle it for 50 ms per second.
        std::fs::write("/proc/self/autogroup", "-20").unwrap();
    }
    let other = (company == Company::OtherProgram).then(OtherProgram::start);
    let mut text = String::from("cpu_ns,foreign,requests,p25,p50,p90,p99,p99_9,max\n");
    let began = Instant::now();
    while began.elapsed() < time {
        let (load, counters) = lab.slice(Schedule::Open { rate_per_s, gaps: Distribution::FACEBOOK_GAPS });
        writeln!(text, "{}", line(&load, &counters)).unwrap();
    }
    drop(other);
    lab.take_down();
    text
}

fn prioritise(tid: Pid) {
    let scheduling = Scheduling { policy: Policy::Fifo { priority: 1 }, reset_on_fork: false };
    sched::set_scheduling(tid, scheduling).unwrap();
}

fn line(load: &LoadReport, counters: &TrialCounters) -> String {
    let foreign = counters.server_cpus.as_ref().and_then(CpuUse::foreign_share).unwrap();
    let latency = [0.25, 0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| {
        let ns = load.latency.quantile(quantile).unwrap_or_default().as_nanos();
        (ns / 100).to_string()
    });
    let cpu_ns = cpu_ns_per_request(load, counters);
    format!("{cpu_ns},{:.0},{},{}", foreign * 1e3, load.latency.count(), latency.join(","))
}

/// A program that uses 20 % of each CPU at random times.
struct OtherProgram {
    is_over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl OtherProgram {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = CPUS.map(|cpu| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || spin_and_sleep(cpu, &is_over))
        });
        Self { is_over, threads: threads.into() }
    }
}

impl Drop for OtherProgram {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn spin_and_sleep(cpu: u32, is_over: &AtomicBool) {
    prioritise(Pid::of_this_thread());
    sched::set_affinity(Pid::of_this_thread(), &[cpu].into_iter().collect::<CpuList>()).unwrap();
    let mut random = Pcg64::seed_from_u64(u64::from(cpu));
    let mut exponential =
        |mean_ms: f64| Duration::from_secs_f64(-random.random::<f64>().ln().max(-20.0) * mean_ms / 1e3);
    while !is_over.load(Ordering::Relaxed) {
        let until = Instant::now() + exponential(1.0);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        std::thread::sleep(exponential(4.0));
    }
}
