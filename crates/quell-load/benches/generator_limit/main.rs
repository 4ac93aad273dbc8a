//! Measures the throughput and punctuality of one generator core. It compares `quell-load` with a blind flooder and
//! with the published experiments' order of work, in pairs. The lab is a private veth with the server on the other CPU.
//! The first server is an XDP program, so that the client is the limit. The second is a program in user space.
//!
//! `cargo bench -p quell-load --bench generator_limit [-- REPEATS [SECONDS]]`, as root. All generators and the server
//! run under `SCHED_FIFO` below the NAPI threads. Other programs can still get up to 50 ms per second of the core from
//! the kernel's fair server (`kernel/sched/deadline.c`). A p99.9 of 50 ms is attributed to the fair server, not to the
//! generator.
//!
//! Results on a virtual machine with 2 CPUs, kernel 6.18, with other programs running (load average 4), 10 repeats of
//! 0.4 s: median (lowest to highest):
//!
//! | closed loop, XDP | requests/s | of the flooder's |
//! | --- | --- | --- |
//! | blind flooder | 191,000 (163,000 to 296,000) | |
//! | `quell-load` | 210,000 (176,000 to 311,000) | 1.09 (0.74 to 1.59) |
//! | `quell-load`, client NAPI deferred | 295,000 (213,000 to 358,000) | 1.35 (1.06 to 1.88) |
//! | published order of work | 205,000 (171,000 to 260,000) | 0.93 (0.78 to 1.22) |
//!
//! | % of sends within 10 µs, XDP | 20,000/s | 40,000/s | 60,000/s | 105,000/s |
//! | --- | --- | --- | --- | --- |
//! | `quell-load` | 99.0 (98.6 to 99.9) | 98.6 (96.5 to 99.8) | 96.8 (93.4 to 99.0) | 94.9 (84.0 to 98.3) |
//! | client NAPI deferred | 99.6 (99.1 to 99.9) | 99.4 (98.7 to 99.9) | 98.7 (97.5 to 99.6) | 97.7 (91.9 to 98.7) |
//! | published order | 98.9 (97.6 to 99.7) | 98.0 (95.5 to 99.5) | 94.6 (92.8 to 99.3) | 86.2 (76.1 to 96.1) |
//!
//! A second run had the ratios 0.98 (0.83 to 1.88), 1.21 (0.79 to 2.18) and 0.89 (0.58 to 1.27). The speed of the core
//! changes by half from one second to the next. Ratios of two consecutive trials therefore only show that `quell-load`
//! is about as fast as the flooder.
//!
//! Against the program in user space, which is half of the limit: flooder 181,000, `quell-load` 1.11 times that (0.81
//! to 1.38), deferred 1.11 (1.01 to 1.99), published order 0.81 (0.57 to 1.19). In the second run 1.12 (0.96 to 1.30),
//! 1.24 (1.04 to 1.33) and 0.92 (0.83 to 1.19).
//!
//! # Profile
//!
//! `generator_limit plain 5` runs one closed loop against the XDP program for 5 seconds. The variant is `plain` or
//! `deferred`. The executable is in `target/release/deps`.
//!
//! - `perf record -e cpu-clock -F 9973 generator_limit plain 2`, then `perf script -F comm,ip,sym,dso`. Of the samples
//!   of `quell-load-0`, 86 to 88 % are in the kernel, 3 to 4 % in `[vdso]` (the clock), and 4.5 to 5.5 % in this
//!   program. Another 4.5 to 5 % are at the instruction after a `syscall`; they belong to the kernel's exit path, which
//!   holds interrupts off. Own code with the clock is 8 to 9 %, or 12 to 14 % if the latter is attributed to it;
//!   deferred 8, or 11 to 12 %.
//! - `valgrind --tool=callgrind --separate-threads=yes generator_limit plain 5`: 803 instructions of the program per
//!   request (deferred 910). Sending takes 180, receiving 170, parsing and matching answers 140, two histograms 119,
//!   the loop itself 97, the rest below 50 each. Of the clock, only its entry is counted. There is no hot spot.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its purpose")]

mod contender;
mod flooder;
mod lab;
mod scheduled;

use std::error::Error;
use std::sync::Arc;

use quell_linux::capability::{Capability, effective};
use quell_linux::proc::ProcRoot;
use quell_linux::sched::set_affinity;
use quell_linux::{CpuList, Pid};
use quell_load::{Responder, ResponderSpec, ServeShape, Transport};
use quell_stats::Spread;

use contender::{Contender, FIFO_PRIORITY, Lateness, SIZES, Trial};
use lab::{Lab, SERVER_CPU, pin_fifo};

const RESPONDER_PORT: u16 = 7100;
const ECHO_PORT: u16 = 7101;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let number = |at: usize| arguments.get(at).and_then(|argument| argument.parse::<f64>().ok());
    if !may_make_labs() {
        eprintln!("skipped: needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_SYS_NICE)");
        return Ok(());
    }
    // On the generator's CPU, `SCHED_FIFO` would starve this thread. The kernel's fair server would then run it at the
    // generator's expense.
    set_affinity(Pid::of_this_thread(), &CpuList::from_iter([SERVER_CPU]))?;
    let lab = Lab::new()?;
    match arguments.first().map(String::as_str) {
        Some("plain") => one_trial(&lab, Contender::Plain, number(1).unwrap_or(5.0)),
        Some("deferred") => one_trial(&lab, Contender::Deferred, number(1).unwrap_or(5.0)),
        _ => compare(&lab, number(0).unwrap_or(10.0) as usize, number(1).unwrap_or(0.5)),
    }
}

/// Runs one closed loop against the XDP program, for a profiler.
fn one_trial(lab: &Lab, contender: Contender, seconds: f64) -> Result<(), Box<dyn Error>> {
    let _echo = lab.echo(ECHO_PORT)?;
    let reached = Trial { lab, port: ECHO_PORT, seconds }.closed_loop(contender)?;
    println!("{}: {:.0} requests answered", contender.name(), reached.qps * seconds);
    Ok(())
}

fn compare(lab: &Lab, repeats: usize, seconds: f64) -> Result<(), Box<dyn Error>> {
    println!("the server is an XDP program");
    let echo = lab.echo(ECHO_PORT)?;
    measure(&Trial { lab, port: ECHO_PORT, seconds }, repeats)?;
    drop(echo);
    println!("\nthe server is a program in user space (quell respond, epoll)");
    let _responder = respond(lab)?;
    measure(&Trial { lab, port: RESPONDER_PORT, seconds }, repeats)
}

fn may_make_labs() -> bool {
    let needed = [Capability::SysAdmin, Capability::NetAdmin, Capability::SysNice];
    effective(&ProcRoot::default()).is_ok_and(|held| held.is_some_and(|held| held.missing(&needed).is_empty()))
}

fn respond(lab: &Lab) -> Result<Responder, Box<dyn Error>> {
    let spec = ResponderSpec {
        address: Lab::server_address(RESPONDER_PORT),
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

fn measure(trial: &Trial<'_>, repeats: usize) -> Result<(), Box<dyn Error>> {
    let limit = throughput(trial, repeats)?;
    println!(
        "\n{:>9} {:34}{:>24}{:>24}{:>24}{:>24}",
        "rate/s", "lateness, µs", "p50", "p99", "p99.9", "% within 10 µs"
    );
    for rate in [20_000.0, 40_000.0, 60_000.0, limit / 2.0] {
        punctuality(trial, rate, repeats)?;
    }
    Ok(())
}

/// Interleaved closed loops. Returns the throughput of the plain generator.
fn throughput(trial: &Trial<'_>, repeats: usize) -> Result<f64, Box<dyn Error>> {
    let mut reached = Contender::ALL.map(|_| Vec::new());
    for repeat in 0..repeats {
        for at in 0..reached.len() {
            let at = (at + repeat) % reached.len();
            reached[at].push(trial.closed_loop(Contender::ALL[at])?);
        }
    }
    println!("closed loop, {repeats} interleaved repeats: median (low to high)");
    let blind = qps_of(&reached[0]);
    for (contender, reached) in Contender::ALL.iter().zip(&reached) {
        let ratios: Vec<f64> = qps_of(reached).iter().zip(&blind).map(|(ours, blind)| ours / blind).collect();
        println!(
            "{:34}{:>26} requests/s{:>20} of the flooder's",
            contender.name(),
            spread(&qps_of(reached), 0),
            spread(&ratios, 2)
        );
        let run_us: Vec<f64> = reached.iter().filter_map(|one| one.run_us).collect();
        if !run_us.is_empty() {
            println!("{:34}{:>26} µs of its thread's CPU time a request", "", spread(&run_us, 2));
        }
    }
    Ok(Spread::of(qps_of(&reached[1]).into_iter().map(Some)).ok_or("no repeat")?.median)
}

fn qps_of(reached: &[contender::Reached]) -> Vec<f64> {
    reached.iter().map(|one| one.qps).collect()
}

fn punctuality(trial: &Trial<'_>, rate_per_s: f64, repeats: usize) -> Result<(), Box<dyn Error>> {
    let mut late = Contender::PUNCTUAL.map(|_| Vec::new());
    for repeat in 0..repeats {
        for at in 0..late.len() {
            let at = (at + repeat) % late.len();
            late[at].push(trial.open_loop(Contender::PUNCTUAL[at], rate_per_s)?);
        }
    }
    for (contender, late) in Contender::PUNCTUAL.iter().zip(&late) {
        let column =
            |figure: fn(&Lateness) -> f64, decimals| spread(&late.iter().map(figure).collect::<Vec<_>>(), decimals);
        println!(
            "{rate_per_s:9.0} {:34}{:>24}{:>24}{:>24}{:>24}",
            contender.name(),
            column(|late| late.p50_us, 1),
            column(|late| late.p99_us, 1),
            column(|late| late.p99_9_us, 0),
            column(|late| late.within_10_us * 100.0, 2),
        );
    }
    Ok(())
}

/// Formats median, lowest and highest.
fn spread(values: &[f64], decimals: usize) -> String {
    match Spread::of(values.iter().map(|&value| Some(value))) {
        Some(Spread { median, min, max, .. }) => format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})"),
        None => "-".to_owned(),
    }
}
