//! Records the noise of this machine: CPU time per request and latency of memcached in the veth lab, under a constant
//! mode. `cargo bench -p quell-experiment --bench method` replays the recordings. Needs root and memcached.
//!
//! setsid --wait cargo bench -p quell-bench --bench record_noise -- DIRECTORY [SECONDS-PER-RECORDING [NAME]]
//!
//! The lab has a higher priority than other sessions, so other programs disturb it little. In recordings named
//! `beside`, a thread of the same priority on each CPU spins for 1 ms and sleeps for 4 ms on average, at random. In
//! recordings named `builds`, the lab has the same priority as compilers that run at the same time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_bench::counters::CpuUse;
use quell_bench::counters::{CounterReading, Watched};
use quell_bench::cpus::CpuLayout;
use quell_bench::experiment::Preview;
use quell_bench::lab::veth::{CLIENT_DEVICE, SERVER_DEVICE, VethLab, VethPlan, unique_name};
use quell_bench::server::{PORT, Server, ServerCommand};
use quell_host::attach::{Selection, Targets};
use quell_host::journal::Journal;
use quell_host::switching::Switching;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, Policy, Scheduling};
use quell_linux::{CpuList, Pid};
use quell_load::{
    Distribution, Generator, LoadReport, LoadSpec, Memcached, RunObserver, RunSpec, Schedule, Transport, Workload,
};
use quell_mode::{DeliveryMode, NapiSettings, Threaded};
use quell_test_support::LabTurn;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

const SLICE_MS: u32 = 200;
const SETTLE_MS: u32 = 20;
/// CPU of the server, and CPU of the generator.
const CPUS: [u32; 2] = [0, 1];

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
    let _turn = LabTurn::wait();
    let directory = tempfile::tempdir().unwrap();
    let mut lab = VethLab::raise(&Journal::in_dir(directory.path()), unique_name(), plan()).unwrap();
    let memcached = ServerCommand::Memcached { program: "memcached".into() };
    let server = Server::start(&mut lab, &memcached, PORT, &|| false).unwrap();
    let memcached = Memcached { get_share: 0.97, ..Memcached::facebook() };
    let spec = LoadSpec {
        connections: 16,
        threads: 1,
        cpus: vec![CPUS[1]],
        ..LoadSpec::new(server.address(), Transport::Tcp, Workload::Memcached(memcached))
    };
    let mut generator = Generator::connect(spec, Some(Arc::clone(&lab.client.namespace))).unwrap();
    generator.preload(Generator::PRELOAD_LIMIT, &mut ()).unwrap();
    let mut workers = server.workers().unwrap();
    Server::pin(&mut workers, lab.server.queues.ids(), &lab.plan.cpus.server).unwrap();
    if company != Company::Builds {
        let of_server = server.processes().unwrap().into_iter();
        let threads = of_server.flat_map(|pid| ProcRoot::default().process(pid).tids().unwrap());
        threads.chain(lab.server.napi_threads.iter().copied()).for_each(prioritise);
        // The generator gets no real-time priority: it spins, so the kernel would throttle it for 50 ms per second.
        std::fs::write("/proc/self/autogroup", "-20").unwrap();
    }
    let targets = Targets::find(Selection::Processes(server.processes().unwrap())).unwrap();
    let plan = Preview::of(&targets, &[*mode]).unwrap().plan;
    let mut switching = Switching::begin(&Journal::in_dir(directory.path()), targets, &plan, None).unwrap();
    switching.switch_to(0).unwrap();
    let other = (company == Company::OtherProgram).then(OtherProgram::start);
    let mut text = String::from("cpu_ns,foreign,requests,p25,p50,p90,p99,p99_9,max\n");
    let began = Instant::now();
    while began.elapsed() < time {
        let (load, watched) = slice(&lab, &server, &mut generator, rate_per_s);
        writeln!(text, "{}", line(&load, &watched)).unwrap();
    }
    drop((other, generator));
    assert!(switching.end().unwrap().failed.is_empty());
    server.stop().unwrap();
    assert!(lab.take_down().unwrap().failed.is_empty());
    text
}

fn prioritise(tid: Pid) {
    let scheduling = Scheduling { policy: Policy::Fifo { priority: 1 }, reset_on_fork: false };
    sched::set_scheduling(tid, scheduling).unwrap();
}

fn plan() -> VethPlan {
    let client_napi = NapiSettings {
        threaded: Threaded::Thread,
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: 1_000_000,
        ..NapiSettings::default()
    };
    let cpus = CpuLayout::plan(&CPUS, 1, 1, false).unwrap();
    VethPlan { queues: 1, cpus, interrupt_stand_in: true, client_napi }
}

fn slice(lab: &VethLab, server: &Server, generator: &mut Generator, rate_per_s: f64) -> (LoadReport, Slice) {
    let watched = Watched {
        server: server.processes().unwrap(),
        server_napi: lab.server.napi_threads.clone(),
        generator: generator.tids(),
        client_napi: lab.client.napi_threads.clone(),
        server_cpus: [CPUS[0]].into_iter().collect(),
        client_cpus: [CPUS[1]].into_iter().collect(),
        server_devices: vec![SERVER_DEVICE.to_owned()],
        client_devices: vec![CLIENT_DEVICE.to_owned()],
        irqs: Vec::new(),
    };
    let mut slice = Slice { watched, proc: ProcRoot::default(), from: None, to: None };
    let schedule = Schedule::Open { rate_per_s, gaps: Distribution::FACEBOOK_GAPS };
    let run = RunSpec { schedule, warm_up_ms: SETTLE_MS, measure_ms: SLICE_MS };
    (generator.run(&run, &mut slice).unwrap(), slice)
}

fn line(load: &LoadReport, slice: &Slice) -> String {
    let counters = slice.watched.between(slice.from.as_ref().unwrap(), slice.to.as_ref().unwrap());
    let run_ns = counters.server_run_ns.unwrap() + counters.napi_run_ns.unwrap();
    let foreign = counters.server_cpus.as_ref().and_then(CpuUse::foreign_share).unwrap();
    let latency = [0.25, 0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| {
        let ns = load.latency.quantile(quantile).unwrap_or_default().as_nanos();
        (ns / 100).to_string()
    });
    let cpu_ns = run_ns / load.answered_in_window.max(1);
    format!("{cpu_ns},{:.0},{},{}", foreign * 1e3, load.latency.count(), latency.join(","))
}

/// Reads the counters at the start and at the end of the measured time.
struct Slice {
    watched: Watched,
    proc: ProcRoot,
    from: Option<CounterReading>,
    to: Option<CounterReading>,
}

impl RunObserver for Slice {
    fn window_started(&mut self) {
        self.from = Some(self.watched.snapshot(&self.proc, None));
    }

    fn window_ended(&mut self) {
        self.to = Some(self.watched.snapshot(&self.proc, None));
    }
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
