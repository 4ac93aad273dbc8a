//! Tests of statements in the publication on epoll busy polling in production. They concern deferral, busy polling, and
//! an epoll with two NAPI IDs, and hold in the model.

use quell_sim::{Assignment, ConnectionSpread, Epolls, Figures, HostProfile, Load, Run, RunScale, ServerKind};

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
fn deferral_avoids_interrupts_and_their_cpu_time_and_adds_latency() {
    let (base, deferred) = (figures(&run("base")), figures(&run("defer200")));
    assert!(deferred.irqs_per_s < 0.01 * base.irqs_per_s);
    assert!(deferred.cpu_pct < 0.9 * base.cpu_pct, "{} {}", base.cpu_pct, deferred.cpu_pct);
    assert!(deferred.mean_us > base.mean_us, "{} {}", base.mean_us, deferred.mean_us);
}

#[test]
fn busy_polling_lowers_high_percentiles() {
    let (base, polled) = (figures(&run("base")), figures(&run("fullbusy")));
    assert!(polled.p99_us <= base.p99_us && polled.mean_us < base.mean_us);
}

#[test]
fn a_worker_with_connections_of_several_napi_ids_is_slower() {
    let mean = |assignment| {
        let server = ServerKind::EventLoop { workers: 4, epolls: Epolls::Own, assignment };
        figures(&Run { server, spread: ConnectionSpread::Hashed, floating: false, ..run("fullbusy") }).mean_us
    };
    let (by_id, mixed) = (mean(Assignment::ByQueue), mean(Assignment::InTurn));
    assert!(mixed > 1.5 * by_id, "{by_id} {mixed}");
}

#[test]
fn a_longer_timeout_trades_latency_for_fewer_polls() {
    let (short, long) = (figures(&run("defer20")), figures(&run("defer200")));
    assert!(short.mean_us < long.mean_us && short.polls_per_s > long.polls_per_s);
}
