//! What the text about epoll busy polling in production states about the mechanism, as it holds in
//! the model: deferral against interrupts, whom busy polling helps, and what two NAPI ids in one
//! epoll do.

use quell_sim::{Assignment, Epolls, Figures, HostProfile, Load, Run, RunScale, Server, Spread};

const MS: u64 = 1_000_000;
const SCALE: RunScale = RunScale { queues: 4, warm_up_ns: 8 * MS, measured_ns: 20 * MS, hashed: true, seed: 9 };
const LOAD: Load = Load::Qps(400e3);

fn run(text: &str) -> Run {
    let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
    Run::memcached(text.parse().expect("a mode"), LOAD, &host, SCALE)
}

fn figures(run: &Run) -> Figures {
    run.simulate().expect("it runs").figures(8)
}

#[test]
fn deferral_cuts_interrupts_and_the_cpu_they_take_and_brings_latency() {
    let (base, deferred) = (figures(&run("base")), figures(&run("defer200")));
    assert!(deferred.irqs_per_s < 0.01 * base.irqs_per_s);
    assert!(deferred.cpu_pct < 0.9 * base.cpu_pct, "{} {}", base.cpu_pct, deferred.cpu_pct);
    assert!(deferred.mean_us > base.mean_us, "{} {}", base.mean_us, deferred.mean_us);
}

#[test]
fn busy_polling_lowers_the_high_percentiles_against_interrupts() {
    let (base, polled) = (figures(&run("base")), figures(&run("fullbusy")));
    assert!(polled.p99_us <= base.p99_us && polled.mean_us < base.mean_us);
}

#[test]
fn each_worker_has_to_have_connections_of_one_napi_id_only() {
    let mean = |assignment| {
        let server = Server::EventLoop { workers: 4, epolls: Epolls::Own, assignment };
        figures(&Run { server, spread: Spread::Hashed, floating: false, ..run("fullbusy") }).mean_us
    };
    let (by_id, mixed) = (mean(Assignment::ByQueue), mean(Assignment::InTurn));
    assert!(mixed > 1.5 * by_id, "{by_id} {mixed}");
}

#[test]
fn the_two_timeouts_trade_latency_for_interrupts_so_that_no_value_is_right_for_all() {
    let (short, long) = (figures(&run("defer20")), figures(&run("defer200")));
    assert!(short.mean_us < long.mean_us && short.polls_per_s > long.polls_per_s);
}
