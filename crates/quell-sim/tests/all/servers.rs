//! Servers, traffic and settings of a run: how each changes the metrics.

use crate::common::*;
use quell_mode::DeliveryMode;
use quell_sim::sweep::{Point, Setup, SweepRow};
use quell_sim::{
    Assignment, ConnectionSpread, Constants, Epolls, HostProfile, KernelRules, Load, Run, RunError, RunResult,
    RunScale, ServerKind, SimCoalescing, TrafficKind,
};

const SCALE: RunScale = RunScale { queues: 2, warm_up_ns: 3 * MS, measured_ns: 12 * MS, hashed: false, seed: 3 };

fn run(text: &str, load: Load) -> Run {
    Run::memcached(mode(text), load, &fixed_host(), SCALE)
}

/// A host with fixed costs, so that a new fit of the shipped profile does not change the results.
fn fixed_host() -> HostProfile {
    let mut host = host();
    host.constants = Constants { client_tail_share: 0.0, client_outlier_share: 0.0, ..Default::default() };
    host
}

fn simulate(run: &Run) -> RunResult {
    run.simulate().expect("it runs")
}

fn workers(workers: usize, epolls: Epolls, assignment: Assignment) -> ServerKind {
    ServerKind::EventLoop { workers, epolls, assignment }
}

/// Creates a run with two connections and one request at a time on each of them.
fn ping_pong(text: &str, server: ServerKind) -> Run {
    Run { traffic: TrafficKind::Mirrored, connections: 2, server, irqs_apart: true, ..run(text, Load::Max) }
}

#[test]
fn a_mirrored_client_measures_all_the_time_between_its_requests() {
    let result = simulate(&ping_pong("base", ServerKind::one_worker_per_queue(2)));
    let little_us = 2e6 / result.qps;
    assert!((result.mean_us / little_us - 1.0).abs() < 0.02, "{} {little_us}", result.mean_us);
}

#[test]
fn two_workers_per_queue_have_a_higher_throughput_than_one() {
    let most = |workers_count| {
        let server = workers(workers_count, Epolls::Own, Assignment::ByQueue);
        simulate(&Run { server, irqs_apart: true, ..run("base", Load::Max) }).qps
    };
    let (one, two) = (most(2), most(4));
    assert!(two > 1.3 * one, "{one} {two}");
}

#[test]
fn one_worker_serves_all_requests_of_two_queues() {
    let server = workers(1, Epolls::Own, Assignment::ByQueue);
    let result = simulate(&Run { server, ..run("base", Load::Qps(200e3)) });
    assert!((result.qps / 50e3 - 1.0).abs() < 0.10, "{}", result.qps);
}

#[test]
fn an_epoll_that_all_workers_share_polls_one_queue_only() {
    let mean = |epolls| {
        let server = workers(2, epolls, Assignment::ByQueue);
        simulate(&Run { server, floating: false, ..run("fullbusy", Load::Qps(200e3)) }).mean_us
    };
    let (own, shared) = (mean(Epolls::Own), mean(Epolls::Shared));
    assert!(shared > 2.0 * own, "{own} {shared}");
}

#[test]
fn workers_with_connections_of_both_queues_poll_the_wrong_queue() {
    let mean = |assignment| {
        let server = workers(2, Epolls::Own, assignment);
        let spread = ConnectionSpread::Hashed;
        simulate(&Run { server, spread, floating: false, ..run("fullbusy", Load::Qps(200e3)) }).mean_us
    };
    let (steered, mixed) = (mean(Assignment::ByQueue), mean(Assignment::InTurn));
    assert!(mixed > 1.5 * steered, "{steered} {mixed}");
}

#[test]
fn so_busy_poll_affects_a_blocking_receiver() {
    let tps = |text| simulate(&ping_pong(text, ServerKind::BlockingReceive)).qps;
    let (interrupts, polled) = (tps("base"), tps("sockpoll50"));
    assert!(polled > 1.1 * interrupts, "{interrupts} {polled}");
}

#[test]
fn so_busy_poll_with_an_epoll_server_is_refused() {
    let refused = ping_pong("sockpoll50", ServerKind::one_worker_per_queue(2)).simulate();
    assert!(matches!(refused, Err(RunError::Setting(why)) if why.contains("recv")));
}

#[test]
fn a_busy_polling_napi_thread_is_faster_than_one_that_is_woken() {
    let tps = |text| simulate(&ping_pong(text, ServerKind::BlockingReceive)).qps;
    let (woken, polling) = (tps("threaded"), tps("threadedbusy"));
    assert!(polling > 1.1 * woken, "{woken} {polling}");
}

#[test]
fn looping_for_events_inside_epoll_wait_is_faster_than_repeated_calls() {
    let tps = |event_loop_in_epoll_wait| {
        let rules = KernelRules { event_loop_in_epoll_wait, ..KernelRules::default() };
        simulate(&Run { rules, ..ping_pong("eventspin1000000", ServerKind::one_worker_per_queue(2)) }).qps
    };
    let (user, kernel) = (tps(false), tps(true));
    assert!(kernel > 1.01 * user, "{user} {kernel}");
}

#[test]
fn a_rate_of_zero_and_a_shape_of_one_are_refused() {
    for (rate_qps, gap_shape) in [(0.0, 0.1), (1e5, 1.0)] {
        let run = Run { traffic: TrafficKind::Scheduled { rate_qps, gap_shape }, ..run("base", Load::Max) };
        assert!(matches!(run.simulate(), Err(RunError::Setting(_))));
    }
}

#[test]
fn imbalanced_queues_increase_latency_near_saturation() {
    let p95 = |spread| {
        let result = simulate(&Run { spread, floating: false, ..run("defer200", Load::Qps(1300e3)) });
        result.latency.quantile(0.95).expect("there were requests")
    };
    let (uneven, even) = (p95(ConnectionSpread::Imbalanced { percent: 30 }), p95(ConnectionSpread::Even));
    assert!(uneven > even, "{uneven:?} {even:?}");
}

/// All modes that the modelled epoll server supports.
const EVERY_MODE: &str = "base,defer20,napibusy,fullbusy,suspend20,threaded,threadedbusy,userbusy,eventspin50";

fn small_setup() -> Setup {
    let Setup { warm_up_ns, measured_ns, .. } = Setup::new(fixed_host());
    let short = |ns| ns / 10;
    Setup { warm_up_ns: short(warm_up_ns), measured_ns: short(measured_ns), ..Setup::new(fixed_host()).with_queues(2) }
}

fn rows(setup: &Setup, modes: &str, load: Load) -> Vec<SweepRow> {
    let modes = DeliveryMode::parse_list(modes).expect("modes");
    let row = |mode| setup.row(&Point { mode, load, seed: SCALE.seed }).expect("it runs");
    modes.into_iter().map(row).collect()
}

#[test]
fn no_mode_executes_more_than_the_cpus_of_the_setup_can() {
    let setup = small_setup();
    let possible_per_s = setup.cpus() as f64 * setup.host.cpu_ghz * 1e9;
    for row in rows(&setup, EVERY_MODE, Load::Max) {
        let executed_per_s = row.figures.cycles_per_query * row.figures.qps;
        assert!(executed_per_s <= 1.000_001 * possible_per_s, "{}: {executed_per_s} {possible_per_s}", row.mode);
    }
}

/// The patch's cover letter says (v10, October 2025): "Threaded napi busy-polling has not been shown to yield
/// efficiency or throughput benefits".
#[test]
fn threads_that_never_stop_polling_gain_no_throughput_and_cost_whole_cpus() {
    let setup = small_setup();
    let [base, threads] = &rows(&setup, "base,threadedbusy", Load::Max)[..] else { panic!("two rows") };
    let gained = threads.figures.qps / base.figures.qps;
    assert!((0.3..=1.0).contains(&gained), "{gained}");
    assert!(threads.figures.cycles_per_query >= base.figures.cycles_per_query);
    let [base, threads] = &rows(&setup, "base,threadedbusy", Load::Qps(100e3))[..] else { panic!("two rows") };
    assert!((threads.figures.qps / base.figures.qps - 1.0).abs() < 0.1, "{base:?} {threads:?}");
    assert!(base.figures.cpu_pct < 50.0 && threads.figures.cpu_pct > 99.0, "{base:?} {threads:?}");
}

#[test]
fn a_thread_that_polls_from_outside_is_faster_than_interrupts_for_a_program_without_epoll() {
    let tps = |text| simulate(&ping_pong(text, ServerKind::BlockingReceive)).qps;
    let (interrupts, polled) = (tps("base"), tps("userbusy"));
    assert!(polled > 1.1 * interrupts, "{interrupts} {polled}");
}

#[test]
fn under_userbusy_nobody_else_polls_and_the_timer_stays_a_safety_net() {
    let counters = simulate(&ping_pong("userbusy", ServerKind::BlockingReceive)).counters;
    assert_eq!((counters.irqs, counters.timer_irqs), (0, 0));
    assert_eq!(counters.polls, counters.busy_polls);
    assert!(counters.responses > 0 && counters.empty_polls > 0, "{counters:?}");
}

#[test]
fn a_polling_thread_costs_its_whole_cpu_at_equal_numbers_of_cpus() {
    let setup = Setup { irqs_apart: true, ..small_setup() };
    for polled in ["userbusy", "userbusy,poller-cpu=2,poller-class=fifo:1"] {
        let [base, polled] = &rows(&setup, &format!("base,{polled}"), Load::Qps(100e3))[..] else { panic!("two rows") };
        assert_eq!(base.cpus, polled.cpus);
        assert!(polled.figures.p50_us < base.figures.p50_us, "{base:?} {polled:?}");
        // Two of four CPUs poll.
        assert!(polled.figures.cpu_pct > 50.0 && base.figures.cpu_pct < 25.0, "{base:?} {polled:?}");
        assert!(polled.figures.cycles_per_query > 2.0 * base.figures.cycles_per_query, "{base:?} {polled:?}");
    }
}

/// On a veth, a packet is in its socket's queue when the sender's call returns: there is no interrupt to save.
fn veth() -> HostProfile {
    let HostProfile { constants, .. } = fixed_host();
    let constants = Constants { device_irq_ns: 100.0, idle_exit_ns: 100.0, idle_entry_ns: 0.0, ..constants };
    HostProfile { constants, coalescing: SimCoalescing::NONE, idle_states: Vec::new(), ..fixed_host() }
}

/// Measured on a veth, in a closed loop with one request: the median is 1.22 times that of `base` if server and poller
/// share a CPU (docs/modes.md).
#[test]
fn a_polling_thread_on_the_cpu_of_the_program_delays_it_where_no_interrupt_is_saved() {
    let p50 = |text, host, irqs_apart| {
        let run = Run { host, irqs_apart, queues: 1, connections: 1, ..ping_pong(text, ServerKind::BlockingReceive) };
        simulate(&run).latency.quantile(0.5).expect("there were requests")
    };
    let slower =
        |host: HostProfile, irqs_apart| p50("userbusy", host.clone(), irqs_apart) > p50("base", host, irqs_apart);
    assert!(slower(veth(), false));
    assert!(!slower(fixed_host(), false) && !slower(fixed_host(), true));
}

#[test]
fn polling_threads_that_the_host_cannot_have_are_refused() {
    for (text, words) in [
        ("userbusy,poller-cpu=3", "too few CPUs"),
        ("userbusy,poller-class=idle", "SCHED_IDLE"),
        ("userbusy,poller-cpu=1,poller-class=fifo:1", "CPU of a worker"),
    ] {
        let run = Run { irqs_apart: true, ..run(text, Load::Qps(100e3)) };
        assert!(matches!(run.simulate(), Err(RunError::Setting(why)) if why.contains(words)), "{text}");
    }
}

#[test]
fn contention_grows_with_load_and_is_absent_where_a_worker_polls_its_own_queue() {
    let growth = |text, load| {
        let cycles = |contention_ns| {
            let mut run = run(text, load);
            // The walk of adaptive moderation outweighs small effects in short runs.
            (run.host.coalescing.adaptive_rx, run.host.coalescing.adaptive_tx) = (false, false);
            (run.irqs_apart, run.host.constants.contention_ns) = (true, contention_ns);
            simulate(&run).cycles_per_query
        };
        cycles(2000.0) / cycles(0.0) - 1.0
    };
    let [low, high] = [200e3, 1200e3].map(|qps| growth("base", Load::Qps(qps)));
    assert!(high > 0.01 && high > 3.0 * low, "{low} {high}");
    assert_eq!(growth("fullbusy", Load::Max), 0.0);
}
