//! How much one core can generate, how punctually, and where its time goes: `quell-load` against a
//! blind flooder, pair by pair, on a veth of its own with the null responder on the other CPU.
//!
//! `cargo bench -p quell-load --bench generator_limit [-- REPEATS [SECONDS]]`, as root. The
//! generator, the flooder and the responder run under `SCHED_FIFO` below the NAPI threads, so that
//! other programs on the machine disturb all of them alike and little.
//!
//! Where the time goes: `perf record -e cpu-clock -C 1` while it runs, then
//! `perf report --comm quell-load-0 --sort dso`: this binary and `[vdso]` against the kernel.
//!
//! Seen on a virtual machine with 2 CPUs, kernel 6.18, other programs running, 20 repeats of 0.4 s:
//! flooder 200,000 requests/s (135,000 to 258,000), `quell-load` 248,000 (162,000 to 283,000), 1.18
//! times the flooder's in the median pair; with the client's NAPI deferred 1.27 times. Lateness p99
//! at 20,000, 40,000 and 60,000/s: 10, 18 and 30 µs; deferred 7, 9 and (an earlier run; 119 in one
//! that was disturbed) 10 µs. A request took the generator's thread 2.4 µs, 0.4 of them in user code
//! by tick sampling, and the client's NAPI thread as much again. Reading the clock (55 ns each, two
//! a request) is the largest part of the user code that is not a system call's entry.
//!
//! The responder is a program in user space and close to its own limit at these rates.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its purpose")]

mod flooder;
mod lab;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::capability::{Capability, effective};
use quell_linux::proc::ProcRoot;
use quell_load::{
    Distribution, Generator, LoadReport, LoadSpec, Polling, RequestResponse, Responder, ResponderSpec, RunSpec,
    Schedule, ServeShape, Transport, Workload,
};
use quell_stats::Spread;

use lab::{CLIENT_CPU, Lab, SERVER_CPU, pin_fifo};

const SIZES: RequestResponse = RequestResponse { request_bytes: 64, response_bytes: 64, check_content: true };
const CONNECTIONS: u32 = 64;
const FIFO_PRIORITY: u32 = 10;
const PORT: u16 = 7100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<f64>().ok());
    let repeats = arguments.next().unwrap_or(10.0) as usize;
    let seconds = arguments.next().unwrap_or(0.5);
    if !may_make_labs() {
        eprintln!("skipped: needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_SYS_NICE)");
        return Ok(());
    }
    let lab = Lab::new()?;
    let responder = respond(&lab)?;
    let bench = Bench { lab: &lab, seconds };
    let half = bench.throughput(repeats)?;
    for deferred in [false, true] {
        println!("\nopen loop, client NAPI {}", if deferred { "deferred" } else { "as interrupts" });
        println!(
            "{:>9} {:>9} | lateness µs: {:>7} {:>7} {:>7} {:>8} | {:>9}",
            "rate", "qps", "p50", "p99", "p99.9", "<=10us", "p50 us"
        );
        lab.defer_client(deferred)?;
        for rate in [20_000.0, 40_000.0, 60_000.0, half] {
            bench.punctuality(rate)?;
        }
    }
    drop(responder);
    Ok(())
}

fn may_make_labs() -> bool {
    let needed = [Capability::SysAdmin, Capability::NetAdmin, Capability::SysNice];
    effective(&ProcRoot::default()).is_ok_and(|held| held.is_some_and(|held| held.missing(&needed).is_empty()))
}

fn respond(lab: &Lab) -> Result<Responder, Box<dyn Error>> {
    let spec = ResponderSpec {
        address: Lab::server_address(PORT),
        transport: Transport::Tcp,
        shape: ServeShape::Epoll,
        sizes: SIZES,
        work_us: 0,
        workers: 1,
        cpus: vec![SERVER_CPU],
    };
    let responder = Responder::start(spec, Some(Arc::clone(&lab.server)))?;
    for &tid in responder.tids() {
        pin_fifo(tid, SERVER_CPU, FIFO_PRIORITY)?;
    }
    Ok(responder)
}

struct Bench<'a> {
    lab: &'a Lab,
    seconds: f64,
}

impl Bench<'_> {
    /// Closed loops, interleaved. Half of what the generator reaches.
    fn throughput(&self, repeats: usize) -> Result<f64, Box<dyn Error>> {
        let (mut blind, mut plain, mut deferred) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        for _ in 0..repeats {
            self.lab.defer_client(false)?;
            blind.push(self.flood()?);
            let report = self.generate(Schedule::Closed)?;
            plain.push(report.qps);
            self.lab.defer_client(true)?;
            deferred.push(self.generate(Schedule::Closed)?.qps);
            last = Some(report);
        }
        let ratio = |ours: &[f64]| ours.iter().zip(&blind).map(|(a, b)| a / b).collect::<Vec<_>>();
        println!("closed loop, {CONNECTIONS} connections, {repeats} interleaved repeats (median, low, high)");
        print_spread("blind flooder, requests/s", &blind);
        print_spread("quell-load, requests/s", &plain);
        print_spread("  ratio to the flooder", &ratio(&plain));
        print_spread("quell-load, deferred client NAPI", &deferred);
        print_spread("  ratio to the flooder", &ratio(&deferred));
        let report = last.ok_or("no repeat")?;
        if let Some(cpu) = report.cpu {
            let us = |ns: u64| ns as f64 / 1e3 / report.answered_in_window as f64;
            println!(
                "generator thread, µs a request: run {:.2}, user {:.2}, system {:.2}",
                us(cpu.run_ns),
                us(cpu.user_ns),
                us(cpu.system_ns)
            );
        }
        println!("errors {:?}, engines {:?}", report.errors, report.engines);
        Ok(Spread::of(plain.into_iter().map(Some)).ok_or("no repeat")?.median / 2.0)
    }

    fn punctuality(&self, rate_per_s: f64) -> Result<(), Box<dyn Error>> {
        let report = self.generate(Schedule::Open { rate_per_s, gaps: Distribution::FACEBOOK_GAPS })?;
        let us = |d: Option<Duration>| d.map_or(f64::NAN, |d| d.as_nanos() as f64 / 1e3);
        let lateness = &report.lateness;
        println!(
            "{rate_per_s:9.0} {:9.0} |              {:7.1} {:7.1} {:7.1} {:7.2}% | {:9.1} {:?} late: {} wait {}",
            report.qps,
            us(lateness.p50()),
            us(lateness.p99()),
            us(lateness.p99_9()),
            100.0 * share_within(&report, Duration::from_micros(10)),
            us(report.latency.p50()),
            report.engines[0].engine,
            report.generator_was_late,
            report.cpu.map_or(0, |cpu| cpu.wait_ns / 1000),
        );
        Ok(())
    }

    fn generate(&self, schedule: Schedule) -> Result<LoadReport, Box<dyn Error>> {
        let spec = LoadSpec {
            connections: CONNECTIONS,
            cpus: vec![CLIENT_CPU],
            polling: Polling::Auto,
            ..LoadSpec::new(Lab::server_address(PORT), Transport::Tcp, Workload::RequestResponse(SIZES))
        };
        let mut generator = Generator::connect(spec, Some(Arc::clone(&self.lab.client)))?;
        for tid in generator.tids() {
            pin_fifo(tid, CLIENT_CPU, FIFO_PRIORITY)?;
        }
        let run = RunSpec { schedule, warm_up_ms: 100, measure_ms: (self.seconds * 1e3) as u32 };
        Ok(generator.run(&run, &mut ())?)
    }

    fn flood(&self) -> Result<f64, Box<dyn Error>> {
        let duration = Duration::from_secs_f64(self.seconds);
        let request = vec![b'r'; SIZES.request_bytes as usize];
        let flooded = self.lab.client.run(|| {
            pin_fifo(Pid::of_this_thread(), CLIENT_CPU, FIFO_PRIORITY).map_err(|error| error.to_string())?;
            let address = Lab::server_address(PORT);
            flooder::flood(address, CONNECTIONS as usize, &request, Duration::from_millis(100), duration)
                .map_err(|error| error.to_string())
        })?;
        Ok(flooded?)
    }
}

/// The share of sends that were at most `limit` late.
fn share_within(report: &LoadReport, limit: Duration) -> f64 {
    let mut low = 0.0;
    let mut high = 1.0;
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        match report.lateness.quantile(middle) {
            Some(lateness) if lateness <= limit => low = middle,
            _ => high = middle,
        }
    }
    low
}

fn print_spread(name: &str, values: &[f64]) {
    let Some(spread) = Spread::of(values.iter().map(|&value| Some(value))) else { return };
    println!("{name:34} {:10.2} {:10.2} {:10.2}", spread.median, spread.min, spread.max);
}
