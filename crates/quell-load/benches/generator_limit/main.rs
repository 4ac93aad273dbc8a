//! Measures the throughput and punctuality of one generator core. It compares `quell-load`, in pairs, with a blind
//! flooder and with a generator that works in the order of the published one. The lab is a private veth with the server
//! on the other CPU. The first server is an XDP program, so that the client is the limit. The second runs in user
//! space.
//!
//! `cargo bench -p quell-load --bench generator_limit [-- REPEATS [SECONDS]]`, as root. All generators and the server
//! run under `SCHED_FIFO` below the NAPI threads. Other programs can still get up to 50 ms per second of the core from
//! the kernel's fair server (`kernel/sched/deadline.c`). A p99.9 of 50 ms is attributed to the fair server, not to the
//! generator.
//!
//! `closed-loop` as the first argument compares orders of sending against memcached instead: see `closed_loop`.
//! `docs/results/generator.md` has results for both.
//!
//! # Profile
//!
//! `generator_limit plain 5` runs one closed loop against the XDP program for 5 seconds. The variant is `plain`,
//! `batched` or `deferred`. The executable is in `target/release/deps`.
//!
//! - `perf record -e cpu-clock -F 9973 generator_limit plain 2`, then `perf script -F comm,ip,sym,dso`. Of the samples
//!   in `quell-load-0`, 86 to 88 % are in the kernel, 3 to 4 % in `[vdso]` (the clock), and 4.5 to 5.5 % in this
//!   program. Another 4.5 to 5 % are at the instruction after a `syscall`; they belong to the kernel's exit path, which
//!   keeps interrupts disabled. This program's code and the clock take 8 to 9 %, or 12 to 14 % if the samples after
//!   `syscall` are included; with deferral, 8 % or 11 to 12 %.
//! - `valgrind --tool=callgrind --separate-threads=yes generator_limit plain 5`: the program executes 803 instructions
//!   per request (910 with deferral). Sending takes 180, receiving 170, parsing and matching answers 140, two
//!   histograms 119, the loop itself 97, and everything else less than 50 each. Only the entry to the clock is counted.
//!   There is no hot spot.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its purpose")]

mod closed_loop;
mod contender;
mod flooder;
mod lab;
mod scheduled;

use std::error::Error;
use std::sync::Arc;

use quell_linux::Pid;
use quell_linux::capability::{Capability, effective};
use quell_linux::proc::ProcRoot;
use quell_load::{Responder, ResponderSpec, ServeShape, Transport};
use quell_stats::Spread;

use contender::{Contender, FIFO_PRIORITY, Lateness, SIZES, Trial};
use lab::{Interrupts, Lab, SERVER_CPU, pin_fifo};

const RESPONDER_PORT: u16 = 7100;
const ECHO_PORT: u16 = 7101;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let number = |at: usize| arguments.get(at).and_then(|argument| argument.parse::<f64>().ok());
    if !may_make_labs() {
        eprintln!("skipped: needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_SYS_NICE)");
        return Ok(());
    }
    if arguments.first().is_some_and(|first| first == "closed-loop") {
        return closed_loop::run(std::env::args().skip_while(|argument| argument != "closed-loop").skip(1));
    }
    // Runs on the server's CPU, so that this thread takes no time from the generator. Its priority is above the
    // server's, which would otherwise delay reading the generator's CPU time at the end of the window.
    pin_fifo(Pid::of_this_thread(), SERVER_CPU, FIFO_PRIORITY + 1)?;
    let lab = Lab::new(Interrupts::Thread)?;
    match arguments.first().map(String::as_str) {
        Some("plain") => one_trial(&lab, Contender::Plain, number(1).unwrap_or(5.0)),
        Some("batched") => one_trial(&lab, Contender::Batched, number(1).unwrap_or(5.0)),
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

/// Interleaves closed loops of all contenders. Returns the throughput of the plain generator.
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
            println!("{:34}{:>26} µs of its thread's CPU time per request", "", spread(&run_us, 2));
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

/// Formats the median and, in parentheses, the lowest and highest value.
fn spread(values: &[f64], decimals: usize) -> String {
    match Spread::of(values.iter().map(|&value| Some(value))) {
        Some(Spread { median, min, max, .. }) => format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})"),
        None => "-".to_owned(),
    }
}
