//! Tests of statements in the publication on IRQ suspension. They hold in the model of the published host.

use quell_sim::{Figures, HostProfile, Load, Run, RunScale};

const MS: u64 = 1_000_000;
const SCALE: RunScale = RunScale { queues: 8, warm_up_ns: 12 * MS, measured_ns: 20 * MS, hashed: true, seed: 5 };
const LOW: Load = Load::Qps(200e3);
const HIGH: Load = Load::Qps(800e3);

fn figures(text: &str, load: Load) -> Figures {
    let (mode, host) = (text.parse().expect("a mode"), HostProfile::shipped("epyc7662-cx5").expect("it ships"));
    Run::memcached(mode, load, &host, SCALE).simulate().expect("it runs").figures(8)
}

#[test]
fn suspension_reaches_nearly_the_throughput_of_full_busy_polling_and_much_more_than_base() {
    let [base, full, suspend] = ["base", "fullbusy", "suspend20"].map(|mode| figures(mode, Load::Max).qps);
    assert!(suspend > 0.95 * full, "{suspend} {full}");
    assert!(suspend > 1.1 * base, "{suspend} {base}");
}

#[test]
fn small_deferral_timeouts_cost_throughput() {
    let [defer10, defer200] = ["defer10", "defer200"].map(|mode| figures(mode, Load::Max).qps);
    assert!(defer10 < 0.95 * defer200, "{defer10} {defer200}");
}

#[test]
fn at_low_load_suspension_takes_far_less_cpu_than_busy_polling() {
    let [suspend, napi, full] = ["suspend20", "napibusy", "fullbusy"].map(|mode| figures(mode, LOW).cpu_pct);
    assert!(suspend < 0.6 * napi && napi < 0.7 * full && full > 99.0, "{suspend} {napi} {full}");
}

#[test]
fn full_busy_polling_has_the_lowest_latency_at_low_load() {
    let full = figures("fullbusy", LOW).mean_us;
    for other in ["base", "defer10", "suspend10", "napibusy"] {
        assert!(figures(other, LOW).mean_us > full, "{other}");
    }
}

#[test]
fn a_larger_timeout_trades_latency_for_cpu() {
    for family in ["defer", "suspend"] {
        let [small, large] = [10, 200].map(|timeout| figures(&format!("{family}{timeout}"), LOW));
        assert!(large.mean_us > 1.5 * small.mean_us && large.cpu_pct < small.cpu_pct, "{family}");
    }
}

#[test]
fn suspension_beats_deferral_as_timeout_and_load_grow() {
    for timeout in [20, 50, 200] {
        let [defer, suspend] = ["defer", "suspend"].map(|family| figures(&format!("{family}{timeout}"), HIGH).mean_us);
        assert!(suspend < defer, "{timeout}: {suspend} {defer}");
    }
}

#[test]
fn deferral_and_suspension_avoid_more_than_99_percent_of_the_interrupts() {
    let base = figures("base", HIGH).irqs_per_s;
    for other in ["defer10", "defer200", "napibusy", "fullbusy", "suspend20"] {
        assert!(figures(other, HIGH).irqs_per_s < 0.01 * base, "{other}");
    }
}

#[test]
fn at_full_load_a_batch_has_two_polls_with_busy_polling_and_most_connections_with_base() {
    let (full, base) = (figures("fullbusy", Load::Max), figures("base", Load::Max));
    assert!((60.0..66.0).contains(&full.epoll_events), "{}", full.epoll_events);
    assert!(base.epoll_events > 400.0, "{}", base.epoll_events);
}
